// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/error.hpp>
#include <lockstep/core/options.hpp>
#include <lockstep/core/update.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep {

/// What a device leaves of a step for the host to read.
struct step_outcome {
  step_sums sums;
  /// Sums over all ranks, by the model's names.
  double metrics[metric_names{}.size()] = {};  // no std::array: kernels write it
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
  step_result(step_outcome const& known, metric_names const& metrics) noexcept
      : outcome_(known), step_(known.step), metrics_(metrics) {}
  /// One that is fetched when it is asked for.
  step_result(std::shared_ptr<void> source, fetch from, std::uint64_t step, metric_names const& metrics) noexcept
      : source_(std::move(source)), fetch_(from), step_(step), metrics_(metrics) {}

  /// The mean loss over what counted, before the update; 0 when nothing did. Throws usage_error when it is first asked for
  /// after 64 later steps.
  [[nodiscard]] double loss() const { return outcome().sums.mean_loss(); }
  /// What counted: samples, or tokens, say, where a batch brings its weight or the model counts it.
  [[nodiscard]] double weight() const { return outcome().sums.weight; }
  /// The same as a whole number, the nearest: how many samples counted, where each counts once.
  [[nodiscard]] std::size_t samples() const {
    return outcome().sums.counts() ? static_cast<std::size_t>(std::llround(outcome().sums.weight)) : 0;
  }
  /// What the model added up under this name, over all ranks and micro-batches: the number of right answers, say. Throws
  /// usage_error for a name that the model does not promise.
  [[nodiscard]] double metric(std::string_view name) const {
    for (std::size_t m = 0; m < count_of(metrics_); ++m) {
      if (metrics_[m] == name) {
        return outcome().metrics[m];
      }
    }
    refuse(std::string("step_result: the model has no metric '") + std::string(name) + "'");
  }
  /// The same a unit of weight: the share of right answers. 0 when nothing counted.
  [[nodiscard]] double mean_metric(std::string_view name) const {
    double const sum = metric(name);
    return outcome().sums.counts() ? sum / outcome().sums.weight : 0;
  }
  /// Counts steps from 1.
  [[nodiscard]] std::uint64_t step() const noexcept { return step_; }
  /// How many updates were made so far, this step's included. Schedules follow this number.
  [[nodiscard]] std::uint64_t applied_steps() const { return outcome().applied; }
  /// Whether no update was made: a rank voted to skip, nothing counted, or gradients overflowed.
  [[nodiscard]] bool skipped() const { return outcome().sums.skipped(); }
  /// Whether some gradient was infinite or not a number. Looked at where there are gradient_rules; else false.
  [[nodiscard]] bool overflowed() const { return outcome().sums.overflowed(); }
  /// The Euclidean norm of all gradients together, of the mean loss, before it was bounded. Measured where there are
  /// gradient_rules; else 0. Infinite or not a number where gradients overflowed.
  [[nodiscard]] double gradient_norm() const { return outcome().sums.gradient_norm(); }
  /// The loss scale that this step was taken with; 1 without one.
  [[nodiscard]] double loss_scale() const { return outcome().sums.ranks > 0 ? outcome().sums.scale / outcome().sums.ranks : 1; }

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
  metric_names metrics_{};
};

}  // namespace lockstep
