// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/error.hpp>
#include <lockstep/optim/loss_scale.hpp>

#include <cstdio>
#include <optional>
#include <string>

namespace lockstep {

/// What holds for the gradients of all parameters together, in every step. Either rule has all gradients looked at before any
/// parameter is updated; a step in which one is infinite or not a number then makes no update, on any rank. The order within a
/// step is fixed: gradients are added up over micro-batches and ranks, the loss scale and the weight of the step are divided
/// out, once; the norm is taken and bounded; then the optimizer is called. The same on every rank.
struct gradient_rules {
  /// The largest Euclidean norm of all gradients together, those of other parameter groups and ranks included: where it is
  /// larger, all are multiplied by max_norm / norm (Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent
  /// neural networks" (2013), algorithm 1). Greater than 0; infinity measures the norm, and bounds nothing.
  std::optional<float> max_norm = std::nullopt;
  /// Multiplies losses, so that the gradients of f16 models don't vanish, by a factor that follows their overflows.
  std::optional<lockstep::loss_scale> loss_scale = std::nullopt;

  /// Whether all gradients must be known before one is applied.
  [[nodiscard]] bool any() const noexcept { return max_norm || loss_scale; }

  /// Whether the same rules are there, with whatever numbers.
  [[nodiscard]] bool same_kinds(gradient_rules const& other) const noexcept {
    return max_norm.has_value() == other.max_norm.has_value() && loss_scale.has_value() == other.loss_scale.has_value();
  }

  /// Throws usage_error for what is out of range or not a number.
  void validate() const {
    expects(!max_norm || *max_norm > 0, "gradient_rules.max_norm must be greater than 0");
    if (loss_scale) {
      loss_scale->validate();
    }
  }
};

/// "max_norm 0.5, loss_scale no"; a loss scale with all of its fields.
[[nodiscard]] inline std::string to_string(gradient_rules const& rules) {
  auto const number = [](float value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.9g", static_cast<double>(value));
    return std::string(text);
  };
  std::string text = std::string("max_norm ") + (rules.max_norm ? number(*rules.max_norm) : "no") + ", loss_scale ";
  if (!rules.loss_scale) {
    return text + "no";
  }
  loss_scale const& scale = *rules.loss_scale;
  return text + "initial " + number(scale.initial) + ", growth " + number(scale.growth) + " every " +
         std::to_string(scale.growth_interval) + ", backoff " + number(scale.backoff) + ", lowest " + number(scale.lowest) +
         ", highest " + number(scale.highest);
}

}  // namespace lockstep
