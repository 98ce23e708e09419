// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/error.hpp>
#include <lockstep/optim/loss_scale.hpp>

#include <optional>

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

  /// Throws usage_error for what is out of range or not a number.
  void validate() const {
    expects(!max_norm || *max_norm > 0, "gradient_rules.max_norm must be greater than 0");
    if (loss_scale) {
      loss_scale->validate();
    }
  }
};

}  // namespace lockstep
