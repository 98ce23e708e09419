// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/concepts.hpp>
#include <lockstep/core/host_device.hpp>
#include <lockstep/optim/detail/hyperparameter.hpp>

#include <type_traits>

namespace lockstep {

// Without these, a call of a user's optimizer that lacks LOCKSTEP_HOST_DEVICE would be a warning, and do nothing on a GPU.
#if defined(__CUDACC__)
#pragma nv_diagnostic push
#pragma nv_diag_error 20011, 20013, 20014, 20015
#endif

/// An elementwise optimizer that sees gradients cut to [-limit, limit], each element by itself:
///
///     gradient = min(max(gradient, -limit), limit)
///
/// What is cut is the gradient of the mean loss, as the optimizer would get it: summed over devices and micro-batches, loss
/// scale and number of samples divided out. An infinity becomes the limit; what is not a number stays so. Weight decay that the
/// optimizer adds to the gradient is not cut. Mikolov, "Statistical language models based on neural networks" (2012), cuts so,
/// at 15.
///
/// It is its Optimizer, with the same members, slots and prepare. Scheduled or cut first makes no difference.
///
/// Example: `clipped_by_value{adamw{.learning_rate = 1e-3f}, 0.5f}`, whose type is `clipped_by_value<adamw>`.
template <class Optimizer>
struct clipped_by_value : Optimizer {
  static_assert(elementwise_optimizer<Optimizer> || !concepts_detail::mentions_step<Optimizer>,
                "lockstep: Optimizer must be elementwise for its gradients to be clipped by value; see "
                "docs/concepts.md#optimizer-clipped");

  /// Finite and greater than 0.
  float limit = 1;

  /// Throws usage_error naming the first field that is out of range, of the optimizer or the limit.
  void validate() const {
    if constexpr (requires(Optimizer const& base) { base.validate(); }) {
      Optimizer::validate();
    }
    optim_detail::expects_positive("clipped_by_value.limit", limit);
  }

  /// `rest`: the slots, and what the optimizer prepared.
  template <class... Rest>
  requires std::is_invocable_r_v<float, Optimizer const&, float, float, Rest...>
  [[nodiscard]] LOCKSTEP_HOST_DEVICE float operator()(float value, float gradient, Rest&&... rest) const {
    float const not_above = gradient > limit ? limit : gradient;  // comparisons with what is not a number are false
    return Optimizer::operator()(value, not_above < -limit ? -limit : not_above, rest...);
  }
};
template <class Optimizer>
clipped_by_value(Optimizer, float) -> clipped_by_value<Optimizer>;

#if defined(__CUDACC__)
#pragma nv_diagnostic pop
#endif

}  // namespace lockstep
