// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/host_device.hpp>
#include <lockstep/optim/detail/hyperparameter.hpp>

#include <cstdint>

namespace lockstep {

/// What a step's gradients were, over all ranks: all finite, or some infinite or not a number.
enum class gradient_range : std::uint8_t { finite, overflowed };

/// Where a dynamic loss scale stands between two steps.
struct loss_scale_state {
  /// What the loss is multiplied by in the next step.
  float scale = 1;
  /// Steps with finite gradients since the scale last changed, or was last to change.
  std::uint32_t good_steps = 0;

  friend bool operator==(loss_scale_state const&, loss_scale_state const&) = default;
};

/// How a loss scale follows the range of 16-bit gradients: it falls when they overflow, and rises after a number of steps in
/// which they did not. A state machine by itself: it neither scales a loss nor looks at gradients. Micikevicius et al., "Mixed
/// precision training" (2018), scale by a constant in section 3.2, on loss scaling, and propose in the end that it should
/// follow the overflows.
///
/// With the defaults the scale stays a power of two, so that scaling only moves exponents.
///
///     loss_scale_state state = options.first();
///     state = options.next(state, gradient_range::finite);   // behind each step
struct loss_scale {
  /// In [lowest, highest].
  float initial = 65536;
  /// Finite, at least 1; 1 never rises.
  float growth = 2;
  /// Steps with finite gradients, one behind the other, before the scale rises. At least 1.
  std::uint32_t growth_interval = 2000;
  /// In (0, 1]; 1 never falls.
  float backoff = 0.5f;
  /// Greater than 0, finite, and not above `highest`.
  float lowest = 1;
  float highest = 16777216;

  /// Throws usage_error naming the first field that is out of range or not a number.
  void validate() const {
    optim_detail::expects_positive("loss_scale.lowest", lowest);
    optim_detail::expects_positive("loss_scale.highest", highest);
    if (lowest > highest) {
      optim_detail::refuse_field("loss_scale.lowest", "not be above loss_scale.highest", lowest);
    }
    if (!(initial >= lowest && initial <= highest)) {
      optim_detail::refuse_field("loss_scale.initial", "lie in [loss_scale.lowest, loss_scale.highest]", initial);
    }
    optim_detail::expects_positive("loss_scale.growth", growth);
    if (growth < 1) {
      optim_detail::refuse_field("loss_scale.growth", "be at least 1", growth);
    }
    optim_detail::expects_at_least_one("loss_scale.growth_interval", growth_interval);
    optim_detail::expects_positive_part("loss_scale.backoff", backoff);
  }

  /// The state before the first step.
  [[nodiscard]] LOCKSTEP_HOST_DEVICE constexpr loss_scale_state first() const { return {initial, 0}; }

  /// The state behind a step that had `state` before it.
  ///
  /// Overflowed: the scale becomes scale * backoff, or `lowest` where that is higher; the count of good steps begins anew. At
  /// `lowest` the scale stays, and the step is as overflowed as any.
  /// Finite: one more good step. At the `growth_interval`-th the scale becomes scale * growth, or `highest` where that is
  /// lower, and the count begins anew, also where the scale was `highest` and stays. A step with more good steps behind it than
  /// the interval, because that was made shorter, rises at once. A scale outside of [lowest, highest], because these were
  /// changed, comes back the next time that it falls or rises.
  [[nodiscard]] LOCKSTEP_HOST_DEVICE constexpr loss_scale_state next(loss_scale_state const& state,
                                                                     gradient_range gradients) const {
    if (gradients == gradient_range::overflowed) {
      return {within_limits(state.scale * backoff), 0};
    }
    if (state.good_steps >= growth_interval - 1) {
      return {within_limits(state.scale * growth), 0};
    }
    return {state.scale, state.good_steps + 1};
  }

  friend bool operator==(loss_scale const&, loss_scale const&) = default;

 private:
  [[nodiscard]] LOCKSTEP_HOST_DEVICE constexpr float within_limits(float scale) const {
    return scale < lowest ? lowest : scale > highest ? highest : scale;
  }
};

}  // namespace lockstep
