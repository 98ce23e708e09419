// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/concepts.hpp>
#include <lockstep/core/clock.hpp>
#include <lockstep/core/element_type.hpp>
#include <lockstep/core/host_device.hpp>
#include <lockstep/core/memory.hpp>
#include <lockstep/core/parameter_list.hpp>
#include <lockstep/core/step_result.hpp>
#include <lockstep/core/update.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace lockstep {

/// What a device counts from step to step, in its own memory.
struct step_counters {
  std::uint64_t steps = 0;
  std::uint64_t applied = 0;
  /// Time spent on forward and backward, and on updates; and when what runs now began.
  std::uint64_t training_ns = 0;
  std::uint64_t training_since = 0;
  std::uint64_t updating_ns = 0;
  std::uint64_t updating_since = 0;
};

/// What is enqueued for a step's totals: one call each, on one thread of the device.
namespace totals_detail {

/// Puts everything to its start, once.
struct clear {
  step_sums* sums;
  step_counters* counters;
  float* loss;

  LOCKSTEP_HOST_DEVICE void operator()() const {
    *sums = {};
    *counters = {};
    *loss = 0;
  }
};

/// A step begins: this rank's part of the sums. The loss cell is zero already.
struct open {
  step_sums* sums;
  step_counters* counters;
  double nominal;
  double samples;

  LOCKSTEP_HOST_DEVICE void operator()() const {
    *sums = {0, samples, 0, nominal, nominal * nominal, 1};
    ++counters->steps;
  }
};

/// A micro-batch has ended.
struct take_loss {
  step_sums* sums;
  float* loss;

  LOCKSTEP_HOST_DEVICE void operator()() const {
    sums->loss += static_cast<double>(*loss);
    *loss = 0;
  }
};

/// This rank votes to leave the step out: it has no samples and no loss.
struct withdraw {
  step_sums* sums;

  LOCKSTEP_HOST_DEVICE void operator()() const {
    sums->loss = 0;
    sums->weight = 0;
    sums->votes = 1;
  }
};

/// Between these two a device works.
struct start_clock {
  std::uint64_t* since;

  LOCKSTEP_HOST_DEVICE void operator()() const { *since = clock_ns(); }
};
struct stop_clock {
  std::uint64_t* total;
  std::uint64_t const* since;

  LOCKSTEP_HOST_DEVICE void operator()() const { *total += clock_ns() - *since; }
};

/// All is added up: leaves the outcome where the host reads it. `loss` is null, or is taken first.
struct close {
  step_sums* sums;
  step_counters* counters;
  float* loss;
  step_outcome* outcomes;
  std::uint64_t slots;

  LOCKSTEP_HOST_DEVICE void operator()() const {
    if (loss != nullptr) {
      take_loss{sums, loss}();
    }
    if (!sums->skipped()) {
      ++counters->applied;
    }
    outcomes[counters->steps % slots] = {*sums, counters->steps, counters->applied};
  }
};

}  // namespace totals_detail

/// What a step adds up over all ranks beside gradients: the loss, the samples that counted, votes to skip, and, where the model
/// reports them, in how many micro-batches each parameter was used. All of it lies in device memory, and is worked out there.
template <class Backend>
class step_totals {
 public:
  using stream_ref = typename Backend::stream_ref;

  /// Outcomes are kept for this many steps.
  static constexpr std::uint64_t kept = 64;

  /// Requires: `parameters` outlives this object.
  step_totals(typename Backend::device& device, parameter_list const& parameters, bool reports_unused)
      : parameters_(&parameters),
        measures_busy_(device.options().measure_busy),
        uses_(reports_unused ? parameters.distinct_count() : 0, 0.0),
        unused_(reports_unused ? parameters.listings().size() : 0, 0),
        sums_(device.allocate(sizeof(step_sums) + uses_.size() * sizeof(double), memory_use::other)),
        counters_(device.allocate(sizeof(step_counters), memory_use::other)),
        loss_(device.allocate(sizeof(float), memory_use::other)),
        outcomes_(device.allocate_pinned(kept * sizeof(step_outcome))) {
    std::fill_n(outcomes_.template as<step_outcome>(), kept, step_outcome{});
    Backend::invoke(device.stream(), totals_detail::clear{sums(), counters(), loss_cell()});
  }

  /// `nominal` samples were announced for all ranks, `samples` of them for this one.
  void open(stream_ref stream, double nominal, std::size_t samples) {
    Backend::invoke(stream, totals_detail::open{sums(), counters(), nominal, static_cast<double>(samples)});
    std::fill(uses_.begin(), uses_.end(), 0.0);
    std::fill(unused_.begin(), unused_.end(), std::uint8_t{0});
    pending_loss_ = false;
  }

  /// Where the model adds its weighted loss: zero when a micro-batch begins.
  [[nodiscard]] float* loss_cell() const noexcept { return loss_.template as<float>(); }

  /// A listing takes no part in the micro-batch that runs. Returns the distinct parameter when none of its listings does.
  std::optional<std::size_t> mark_unused(std::size_t listing) {
    unused_[listing] = 1;
    auto const distinct = parameters_->distinct_of_listing();
    for (std::size_t other = 0; other < unused_.size(); ++other) {
      if (distinct[other] == distinct[listing] && unused_[other] == 0) {
        return std::nullopt;
      }
    }
    return distinct[listing];
  }

  /// The model has run; its loss is taken by the next call of `take_loss` or `close`.
  void close_micro_batch() {
    pending_loss_ = true;
    for (std::size_t listing = 0; listing < unused_.size(); ++listing) {
      if (std::exchange(unused_[listing], std::uint8_t{0}) == 0) {
        uses_[parameters_->distinct_of_listing()[listing]] += 1;
      }
    }
  }

  /// Before another micro-batch, and before `reduce`. Behind `open`.
  void take_loss(stream_ref stream) {
    if (std::exchange(pending_loss_, false)) {
      Backend::invoke(stream, totals_detail::take_loss{sums(), loss_cell()});
    }
  }

  /// This rank votes to leave the step out.
  void withdraw(stream_ref stream) { Backend::invoke(stream, totals_detail::withdraw{sums()}); }

  /// What this rank adds has been enqueued, but for the use counts, which the host knows.
  void contribute(stream_ref stream) {
    if (!uses_.empty()) {
      Backend::copy(stream, sums() + 1, uses_.data(), uses_.size() * sizeof(double));
    }
  }

  /// Adds up over the ranks.
  template <class Communicator>
  void reduce(Communicator& communicator, stream_ref stream) {
    communicator.all_reduce(typed_span{sums_.data(), sizeof(step_sums) / sizeof(double) + uses_.size(), element_type::f64},
                            reduction::sum, stream);
  }

  /// Leaves the outcome of the step where the host reads it.
  void close(stream_ref stream) {
    Backend::invoke(stream,
                    totals_detail::close{sums(), counters(), std::exchange(pending_loss_, false) ? loss_cell() : nullptr,
                                         outcomes_.template as<step_outcome>(), kept});
  }

  /// Measures what is enqueued between the two: forward and backward, or an update.
  enum class measured { training, updating };
  void start_clock(measured which, stream_ref stream) {
    if (measures_busy_) {
      Backend::invoke(stream, totals_detail::start_clock{since(which)});
    }
  }
  void stop_clock(measured which, stream_ref stream) {
    if (measures_busy_) {
      step_counters* const all = counters();
      Backend::invoke(
          stream, totals_detail::stop_clock{which == measured::training ? &all->training_ns : &all->updating_ns, since(which)});
    }
  }
  /// Enqueues copying the counters to `host`.
  void read_counters(step_counters& host, stream_ref stream) const { Backend::copy(stream, &host, counters(), sizeof host); }

  /// The outcome of a step: done, and not `kept` or more steps back.
  [[nodiscard]] step_outcome const& outcome(std::uint64_t step) const noexcept {
    return outcomes_.template as<step_outcome>()[step % kept];
  }

  /// In device memory; sums over all ranks once they were reduced.
  [[nodiscard]] step_sums* sums() const noexcept { return sums_.template as<step_sums>(); }
  /// In device memory: in how many micro-batches each distinct parameter was used; null where the model does not report that.
  [[nodiscard]] double const* uses() const noexcept {
    return uses_.empty() ? nullptr : reinterpret_cast<double const*>(sums() + 1);
  }
  /// The same on the host, empty where they are not reported, once what was enqueued is done.
  [[nodiscard]] std::vector<double> uses_on_host(stream_ref stream) const {
    std::vector<double> counts(uses_.size());
    Backend::copy(stream, counts.data(), uses(), counts.size() * sizeof(double));
    return counts;
  }
  /// In device memory: how many updates were made before this step.
  [[nodiscard]] std::uint64_t const* applied() const noexcept { return &counters()->applied; }

 private:
  static_assert(sizeof(step_sums) % sizeof(double) == 0);

  [[nodiscard]] std::uint64_t* since(measured which) const noexcept {
    return which == measured::training ? &counters()->training_since : &counters()->updating_since;
  }
  [[nodiscard]] step_counters* counters() const noexcept { return counters_.template as<step_counters>(); }

  parameter_list const* parameters_;
  bool measures_busy_;
  std::vector<double> uses_;          // by distinct parameter, on this rank
  std::vector<std::uint8_t> unused_;  // by listing, in the micro-batch that runs
  bool pending_loss_ = false;         // the loss cell holds a micro-batch's
  typename Backend::buffer sums_;     // step_sums, and the use counts behind it
  typename Backend::buffer counters_;
  typename Backend::buffer loss_;
  typename Backend::pinned_buffer outcomes_;
};

}  // namespace lockstep
