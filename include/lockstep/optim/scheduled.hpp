// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/concepts.hpp>
#include <lockstep/core/context.hpp>
#include <lockstep/core/host_device.hpp>
#include <lockstep/core/options.hpp>
#include <lockstep/core/parameter.hpp>
#include <lockstep/optim/schedule.hpp>

#include <span>

namespace lockstep {

// Without these, a call of a user's `prepare` or schedule that lacks LOCKSTEP_HOST_DEVICE would be a warning, and do nothing on
// a GPU.
#if defined(__CUDACC__)
#pragma nv_diagnostic push
#pragma nv_diag_error 20011, 20013, 20014, 20015
#endif

namespace optim_detail {

/// Has a `step` that is used, well formed or not.
template <class O>
concept steps_by_itself = concepts_detail::mentions_step<O> && !elementwise_optimizer<O>;

/// What an optimizer is told instead of `info`.
template <class Schedule>
[[nodiscard]] LOCKSTEP_HOST_DEVICE update_info at_scheduled_rate(Schedule const& schedule, update_info info) {
  info.learning_rate *= schedule(info.step);
  return info;
}

template <class Optimizer, class Schedule>
void validate_scheduled(Optimizer const& optimizer, Schedule const& schedule) {
  if constexpr (requires { optimizer.validate(); }) {
    optimizer.validate();
  }
  validate_schedule(schedule);
}

}  // namespace optim_detail

/// An optimizer whose learning rate is multiplied by a schedule of the applied step: in step t,
///
///     learning_rate * schedule(t)
///
/// It is its Optimizer, with the same members, slots and call, and of the same kind. The schedule of an elementwise one runs
/// once a step and group, where `prepare` does: on the device, also when a step is replayed. `learning_rate` stays the
/// unscheduled one; it and the fields of `schedule` may be changed between steps. Steps that were skipped don't count.
/// Schedules of what is scheduled already multiply.
///
/// Example: `scheduled{adamw{.learning_rate = 1e-3f}, warm_up{500, cosine{.steps = 9500}}}`, whose type is
/// `scheduled<adamw, warm_up<cosine>>`.
template <class Optimizer, class Schedule>
struct scheduled : Optimizer {
  static_assert(learning_rate_schedule<Schedule>,
                "lockstep: Schedule must be trivially copyable and callable as float(std::uint64_t step) const; see "
                "docs/concepts.md#schedule");
  static_assert(prepares<Optimizer> || !elementwise_optimizer<Optimizer>,
                "lockstep: Optimizer must have a prepare to be scheduled, which is told the learning rate; see "
                "docs/concepts.md#optimizer-scheduled");

  Schedule schedule{};

  /// Throws usage_error naming the first field that is out of range, of the optimizer or the schedule.
  void validate() const { optim_detail::validate_scheduled(static_cast<Optimizer const&>(*this), schedule); }

  [[nodiscard]] LOCKSTEP_HOST_DEVICE auto prepare(update_info const& info) const requires prepares<Optimizer> {
    update_info const now = optim_detail::at_scheduled_rate(schedule, info);
    return Optimizer::prepare(now);
  }
};

/// The same for a whole optimizer: its `step` gets a context whose info() has the scheduled learning rate.
template <optim_detail::steps_by_itself Optimizer, class Schedule>
struct scheduled<Optimizer, Schedule> : Optimizer {
  static_assert(learning_rate_schedule<Schedule>,
                "lockstep: Schedule must be trivially copyable and callable as float(std::uint64_t step) const; see "
                "docs/concepts.md#schedule");

  Schedule schedule{};

  /// Throws usage_error naming the first field that is out of range, of the optimizer or the schedule.
  void validate() const { optim_detail::validate_scheduled(static_cast<Optimizer const&>(*this), schedule); }

  template <class Backend>
  requires whole_optimizer<Optimizer, Backend>
  void step(update_context<Backend>& ctx, std::span<parameter const> parameters) {
    update_info const now = optim_detail::at_scheduled_rate(schedule, ctx.info());
    update_context<Backend> scheduled_ctx{ctx.stream(), ctx.gradient_factor(), now};
    Optimizer::step(scheduled_ctx, parameters);
  }
};

template <class Optimizer, class Schedule>
scheduled(Optimizer, Schedule) -> scheduled<Optimizer, Schedule>;

#if defined(__CUDACC__)
#pragma nv_diagnostic pop
#endif

}  // namespace lockstep
