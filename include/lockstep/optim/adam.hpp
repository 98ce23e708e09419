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

/// Adam: Kingma and Ba, "Adam: a method for stochastic optimization" (2015), algorithm 1. An elementwise optimizer. One
/// element, applied step t = 1, 2, ...:
///
///     g = gradient + weight_decay * value
///     m = beta1 * m + (1 - beta1) * g                          (the slot "first_moment", 0 before the first step)
///     v = beta2 * v + (1 - beta2) * g^2                        (the slot "second_moment", 0 before the first step)
///     m_hat = m / (1 - beta1^t),  v_hat = v / (1 - beta2^t)
///     value = value - learning_rate * m_hat / (sqrt(v_hat) + epsilon)
///
/// Weight decay is not in the paper: it is the derivative of weight_decay / 2 * value^2, added to the gradient, and so is
/// scaled by the moments too. `adamw` has the decay that is not. The corrections are worked out in f64 once a step and hold for
/// every t; everything else is f32.
///
/// Example: `adam{.learning_rate = 3e-4f, .beta2 = 0.99f}`.
struct adam {
  float learning_rate = 1e-3f;
  /// Both in [0, 1).
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  /// Greater than 0.
  float epsilon = 1e-8f;
  float weight_decay = 0;

  static constexpr std::array<std::string_view, 2> slots{"first_moment", "second_moment"};

  /// The factors of one step, the same for every element.
  struct prepared {
    optim_detail::moment_factors moments;
    float weight_decay;
  };

  /// Throws usage_error naming the first field that is out of range or not a number.
  void validate() const {
    optim_detail::expects_not_negative("adam.learning_rate", learning_rate);
    optim_detail::expects_fraction("adam.beta1", beta1);
    optim_detail::expects_fraction("adam.beta2", beta2);
    optim_detail::expects_positive("adam.epsilon", epsilon);
    optim_detail::expects_not_negative("adam.weight_decay", weight_decay);
  }

  /// Takes the learning rate from `info`: it is this object's `learning_rate` as the schedule leaves it. Requires: info.step
  /// >= 1.
  [[nodiscard]] LOCKSTEP_HOST_DEVICE prepared prepare(update_info const& info) const {
    return {optim_detail::prepare_moments(info, beta1, beta2, epsilon), weight_decay};
  }

  [[nodiscard]] LOCKSTEP_HOST_DEVICE float operator()(float value, float gradient, float& first_moment, float& second_moment,
                                                      prepared const& p) const {
    float const g = gradient + p.weight_decay * value;
    return value - optim_detail::advance_moments(g, first_moment, second_moment, p.moments);
  }
};

}  // namespace lockstep
