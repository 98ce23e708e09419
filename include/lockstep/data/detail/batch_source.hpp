// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/data/sampler.hpp>
#include <lockstep/plan/split.hpp>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace lockstep::data_detail {

/// How an order of `samples` samples is cut into batches: batch k is places [k * size, (k + 1) * size) of it, as far as there
/// are, of which this process takes piece `piece` of `pieces`.
struct batch_cut {
  std::size_t samples = 0;
  std::size_t size = 1;
  std::size_t pieces = 1;
  std::size_t piece = 0;

  /// The places of batch `index` that this process takes; none behind the end.
  [[nodiscard]] plan::range places(std::size_t index) const noexcept {
    std::size_t const first = index <= samples / size ? index * size : samples;
    std::size_t const count = samples - first < size ? samples - first : size;
    plan::range const mine = plan::split(count, pieces, piece);
    return {first + mine.first, mine.count};
  }
};

/// Gathers the batches of one epoch, in any order, beside each other as far as the data set allows it.
template <class Dataset>
class batch_source {
 public:
  struct slot {
    typename Dataset::storage memory{};
    std::optional<typename Dataset::batch> batch{};
  };

  /// One piece a batch cuts the samples of this rank, several the order of all.
  batch_source(Dataset const& data, sampler const& samples, std::uint64_t epoch, batch_cut const& cut)
      : data_(data), sampler_(samples), epoch_(epoch), cut_(cut) {}

  /// Puts batch `index` into `into`.
  void fill(std::size_t index, slot& into) {
    plan::range const places = cut_.places(index);
    into.batch.emplace(data_.gather(order().subspan(places.first, places.count), into.memory));
  }

 private:
  // Drawn by the first that asks, while others wait.
  std::span<std::size_t const> order() {
    std::lock_guard const lock{mutex_};
    if (!drawn_) {
      order_ = cut_.pieces == 1 ? sampler_.epoch(epoch_) : sampler_.order(epoch_);
      drawn_ = true;
    }
    return order_;
  }

  Dataset const& data_;
  sampler const sampler_;
  std::uint64_t const epoch_;
  batch_cut const cut_;

  std::mutex mutex_;  // guards the two below until they are drawn
  bool drawn_ = false;
  std::vector<std::size_t> order_;
};

}  // namespace lockstep::data_detail
