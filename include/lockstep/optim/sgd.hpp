// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/host_device.hpp>
#include <lockstep/core/options.hpp>
#include <lockstep/optim/detail/hyperparameter.hpp>

#include <array>
#include <cstdint>
#include <string_view>

namespace lockstep {

/// Where momentum looks at the gradient.
enum class momentum_kind : std::uint8_t { heavy_ball, nesterov };

/// Stochastic gradient descent, with momentum and weight decay where they are not 0. An elementwise optimizer. One element, one
/// step:
///
///     g = gradient + weight_decay * value
///     b = momentum * b + g                                     (the slot "momentum", 0 before the first step)
///     value = value - learning_rate * b                        (heavy_ball)
///     value = value - learning_rate * (g + momentum * b)       (nesterov)
///
/// So the first step has b = g. The learning rate stands outside b: a schedule that changes it scales the whole step, past
/// gradients included. Nesterov's momentum is that of Sutskever, Martens, Dahl and Hinton, "On the importance of initialization
/// and momentum in deep learning" (2013), equations 3 and 4, at a constant learning rate: with their velocity
/// v = -learning_rate * b, `value` is their look-ahead point theta + momentum * v, where the gradient is taken.
/// There is no dampening: a heavy ball with dampening d is one with (1 - d) times the learning rate.
///
/// With momentum 0 the slot holds g, and what it held before (an infinity, say) has no effect; momentum that is turned on later
/// goes on from there.
///
/// Example: `sgd{.learning_rate = 0.1f, .momentum = 0.9f, .kind = momentum_kind::nesterov}`.
struct sgd {
  float learning_rate = 0.01f;
  /// In [0, 1).
  float momentum = 0;
  /// Added to the gradient, times the value: the derivative of weight_decay / 2 * value^2.
  float weight_decay = 0;
  momentum_kind kind = momentum_kind::heavy_ball;

  static constexpr std::array<std::string_view, 1> slots{"momentum"};

  /// The factors of one step, the same for every element.
  struct prepared {
    float learning_rate;
    float momentum;
    float weight_decay;
    /// The step is learning_rate * (of_gradient * g + of_momentum * b).
    float of_gradient;
    float of_momentum;
  };

  /// Throws usage_error naming the first field that is out of range or not a number.
  void validate() const {
    optim_detail::expects_not_negative("sgd.learning_rate", learning_rate);
    optim_detail::expects_fraction("sgd.momentum", momentum);
    optim_detail::expects_not_negative("sgd.weight_decay", weight_decay);
  }

  /// Takes the learning rate from `info`: it is this object's `learning_rate` as the schedule leaves it.
  [[nodiscard]] LOCKSTEP_HOST_DEVICE prepared prepare(update_info const& info) const {
    if (kind == momentum_kind::nesterov) {
      return {info.learning_rate, momentum, weight_decay, 1, momentum};
    }
    return {info.learning_rate, momentum, weight_decay, 0, 1};
  }

  [[nodiscard]] LOCKSTEP_HOST_DEVICE float operator()(float value, float gradient, float& momentum_slot,
                                                      prepared const& p) const {
    float const g = gradient + p.weight_decay * value;
    momentum_slot = p.momentum == 0 ? g : p.momentum * momentum_slot + g;
    return value - p.learning_rate * (p.of_gradient * g + p.of_momentum * momentum_slot);
  }
};

}  // namespace lockstep
