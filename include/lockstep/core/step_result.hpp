// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep {

/// What one step came to, over all ranks. The same on every rank.
class step_result {
 public:
  step_result() = default;
  step_result(double loss, std::size_t samples, std::uint64_t step, bool skipped) noexcept
      : loss_(loss), samples_(samples), step_(step), skipped_(skipped) {}

  /// The mean loss over the samples that counted, before the update; 0 when none did.
  [[nodiscard]] double loss() const { return loss_; }
  /// How many samples counted.
  [[nodiscard]] std::size_t samples() const { return samples_; }
  /// Counts steps from 1.
  [[nodiscard]] std::uint64_t step() const { return step_; }
  /// Whether no update was made, because a rank voted to skip or no sample counted.
  [[nodiscard]] bool skipped() const { return skipped_; }

 private:
  double loss_ = 0;
  std::size_t samples_ = 0;
  std::uint64_t step_ = 0;
  bool skipped_ = false;
};

}  // namespace lockstep
