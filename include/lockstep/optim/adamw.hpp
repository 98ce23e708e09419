// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/host_device.hpp>
#include <lockstep/core/options.hpp>
#include <lockstep/optim/detail/hyperparameter.hpp>
#include <lockstep/optim/detail/moments.hpp>

#include <array>
#include <string_view>

namespace lockstep {

/// Adam with decoupled weight decay: Loshchilov and Hutter, "Decoupled weight decay regularization" (2019), algorithm 2. An
/// elementwise optimizer. One element, applied step t = 1, 2, ...:
///
///     m = beta1 * m + (1 - beta1) * gradient                   (the slot "first_moment", 0 before the first step)
///     v = beta2 * v + (1 - beta2) * gradient^2                 (the slot "second_moment", 0 before the first step)
///     m_hat = m / (1 - beta1^t),  v_hat = v / (1 - beta2^t)
///     value = value - learning_rate * weight_decay * value - learning_rate * m_hat / (sqrt(v_hat) + epsilon)
///
/// Both terms take the value from before the step. The decay is multiplied by the learning rate, as is usual in training
/// programs; the paper multiplies it by the schedule's factor only, so its lambda is (unscheduled learning_rate) *
/// weight_decay. The corrections are worked out in f64 once a step and hold for every t; everything else is f32. Both terms are
/// added before they are subtracted, so that a small decay is not rounded away first.
///
/// Example: `adamw{.learning_rate = 3e-4f, .weight_decay = 0.1f}`.
struct adamw {
  float learning_rate = 1e-3f;
  /// Both in [0, 1).
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  /// Greater than 0.
  float epsilon = 1e-8f;
  float weight_decay = 0.01f;

  static constexpr std::array<std::string_view, 2> slots{"first_moment", "second_moment"};

  /// The factors of one step, the same for every element.
  struct prepared {
    optim_detail::moment_factors moments;
    /// learning_rate * weight_decay
    float decay;
  };

  /// Throws usage_error naming the first field that is out of range or not a number.
  void validate() const {
    optim_detail::expects_not_negative("adamw.learning_rate", learning_rate);
    optim_detail::expects_fraction("adamw.beta1", beta1);
    optim_detail::expects_fraction("adamw.beta2", beta2);
    optim_detail::expects_positive("adamw.epsilon", epsilon);
    optim_detail::expects_not_negative("adamw.weight_decay", weight_decay);
  }

  /// Takes the learning rate from `info`: it is this object's `learning_rate` as the schedule leaves it. Requires: info.step
  /// >= 1.
  [[nodiscard]] LOCKSTEP_HOST_DEVICE prepared prepare(update_info const& info) const {
    return {optim_detail::prepare_moments(info, beta1, beta2, epsilon), info.learning_rate * weight_decay};
  }

  [[nodiscard]] LOCKSTEP_HOST_DEVICE float operator()(float value, float gradient, float& first_moment, float& second_moment,
                                                      prepared const& p) const {
    float const step = optim_detail::advance_moments(gradient, first_moment, second_moment, p.moments);
    return value - (p.decay * value + step);
  }
};

}  // namespace lockstep
