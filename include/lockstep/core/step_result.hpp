// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/update.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace lockstep {

/// What a device leaves of a step for the host to read.
struct step_outcome {
  step_sums sums;
  /// Counts steps from 1.
  std::uint64_t step = 0;
  /// How many updates were made, this step's included.
  std::uint64_t applied = 0;
};

/// What one step came to, over all ranks. The same on every rank. Where devices work behind the host's back, asking for
/// anything but the number of the step waits until the step is done, and throws what went wrong there.
class step_result {
 public:
  using fetch = step_outcome (*)(void* source, std::uint64_t step);

  step_result() = default;
  explicit step_result(step_outcome const& known) noexcept : outcome_(known), step_(known.step) {}
  /// One that is fetched when it is asked for.
  step_result(std::shared_ptr<void> source, fetch from, std::uint64_t step) noexcept
      : source_(std::move(source)), fetch_(from), step_(step) {}

  /// The mean loss over the samples that counted, before the update; 0 when none did. Throws usage_error when it is first asked
  /// for after 64 later steps.
  [[nodiscard]] double loss() const { return outcome().sums.mean_loss(); }
  /// How many samples counted.
  [[nodiscard]] std::size_t samples() const { return static_cast<std::size_t>(outcome().sums.weight); }
  /// Counts steps from 1.
  [[nodiscard]] std::uint64_t step() const noexcept { return step_; }
  /// Whether no update was made, because a rank voted to skip or no sample counted.
  [[nodiscard]] bool skipped() const { return outcome().sums.skipped(); }

 private:
  step_outcome const& outcome() const {
    if (source_ != nullptr) {
      outcome_ = fetch_(source_.get(), step_);
      source_.reset();
    }
    return outcome_;
  }

  mutable std::shared_ptr<void> source_;
  fetch fetch_ = nullptr;
  mutable step_outcome outcome_;
  std::uint64_t step_ = 0;
};

}  // namespace lockstep
