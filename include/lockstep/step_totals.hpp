// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/concepts.hpp>
#include <lockstep/core/element_type.hpp>
#include <lockstep/core/error.hpp>
#include <lockstep/core/memory.hpp>
#include <lockstep/core/parameter_list.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

/// What a step adds up over all ranks beside gradients: the loss, the samples that counted, votes to skip, and, where the model
/// reports them, in how many micro-batches each parameter was used. The loss is added up in device memory, the rest on the
/// host.
template <class Backend>
class step_totals {
 public:
  using stream_ref = typename Backend::stream_ref;

  /// Requires: `parameters` outlives this object.
  step_totals(typename Backend::device& device, parameter_list const& parameters, bool reports_unused)
      : parameters_(&parameters),
        totals_(first_use + (reports_unused ? parameters.distinct_count() : 0), 0.0),
        on_device_(device.allocate(totals_.size() * sizeof(double), memory_use::other)),
        loss_(device.allocate(sizeof(float), memory_use::other)),
        unused_(reports_unused ? parameters.listings().size() : 0, 0),
        used_(reports_unused ? parameters.distinct_count() : 0, 0) {}

  void begin(stream_ref stream) {
    std::fill(totals_.begin(), totals_.end(), 0.0);
    std::fill(unused_.begin(), unused_.end(), std::uint8_t{0});
    Backend::zero(stream, on_device_.data(), on_device_.bytes());
    Backend::zero(stream, loss_.data(), loss_.bytes());
  }

  /// Where the model adds its weighted loss.
  [[nodiscard]] float* loss_cell() const noexcept { return static_cast<float*>(loss_.data()); }

  /// A listing takes no part in the micro-batch that runs. Returns the distinct parameter when none of its listings does.
  std::optional<std::size_t> mark_unused(std::size_t listing) {
    unused_[listing] = 1;
    auto const distinct = parameters_->distinct_of_listing();
    for (std::size_t other = 0; other < unused_.size(); ++other) {
      if (distinct[other] == distinct[listing] && unused_[other] == 0) {
        return std::nullopt;
      }
    }
    return distinct[listing];
  }

  /// The model has run.
  void close_micro_batch(stream_ref stream) {
    Backend::add_loss(stream, static_cast<double*>(on_device_.data()), loss_cell());
    for (std::size_t listing = 0; listing < unused_.size(); ++listing) {
      if (std::exchange(unused_[listing], std::uint8_t{0}) == 0) {
        totals_[first_use + parameters_->distinct_of_listing()[listing]] += 1;
      }
    }
  }

  /// This rank's part, for `reduce`: `nominal` samples were announced for all ranks, `samples` were trained here. A rank that
  /// votes to skip has no samples and no loss.
  void contribute(stream_ref stream, double nominal, std::size_t samples, bool skips) {
    totals_[weight_sum] = skips ? 0 : static_cast<double>(samples);
    totals_[skip_votes] = skips ? 1 : 0;
    totals_[nominal_sum] = nominal;
    totals_[nominal_squares] = nominal * nominal;
    if (skips) {
      Backend::zero(stream, on_device_.data(), sizeof(double));
    }
    Backend::copy(stream, static_cast<double*>(on_device_.data()) + weight_sum, &totals_[weight_sum],
                  (totals_.size() - weight_sum) * sizeof(double));
  }

  /// Adds up over the ranks. Synchronizes: the host waits for `stream`.
  /// Throws usage_error, on every rank, when the ranks were told different numbers of samples.
  template <class Communicator>
  void reduce(Communicator& communicator, stream_ref stream) {
    if (communicator.size() > 1) {
      communicator.all_reduce(typed_span{on_device_.data(), totals_.size(), element_type::f64}, reduction::sum, stream);
    }
    double const nominal = totals_[nominal_sum];
    Backend::copy(stream, totals_.data(), on_device_.data(), totals_.size() * sizeof(double));
    stream.synchronize();
    // n1 = n2 = ... just where N times the sum of squares is the square of the sum; whole numbers are exact here up to 2^26.
    double const sum = totals_[nominal_sum];
    if (nominal < 0x1p26 && communicator.size() * totals_[nominal_squares] != sum * sum) {
      refuse(std::string("begin: the ranks disagree about total_samples; here it is ") +
             std::to_string(static_cast<std::uint64_t>(nominal)) + ", and its mean over the ranks is " +
             std::to_string(sum / communicator.size()));
    }
    for (std::size_t p = 0; p < used_.size(); ++p) {
      used_[p] = totals_[first_use + p] != 0 ? 1 : 0;
    }
  }

  /// After `reduce`: over all ranks.
  [[nodiscard]] double loss() const noexcept { return totals_[loss_sum]; }
  [[nodiscard]] double weight() const noexcept { return totals_[weight_sum]; }
  [[nodiscard]] bool skipped() const noexcept { return totals_[skip_votes] != 0 || weight() == 0; }
  /// Whether each distinct parameter was used; empty where the model does not report that.
  [[nodiscard]] std::span<std::uint8_t const> used() const noexcept { return used_; }

 private:
  enum total : std::size_t { loss_sum, weight_sum, skip_votes, nominal_sum, nominal_squares, first_use };

  parameter_list const* parameters_;
  std::vector<double> totals_;
  typename Backend::buffer on_device_;
  typename Backend::buffer loss_;
  std::vector<std::uint8_t> unused_;  // by listing, in the micro-batch that runs
  std::vector<std::uint8_t> used_;    // by distinct parameter
};

}  // namespace lockstep
