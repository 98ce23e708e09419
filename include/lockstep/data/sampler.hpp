// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/error.hpp>
#include <lockstep/data/detail/draws.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

/// In which order an epoch visits the samples.
enum class epoch_order : std::uint8_t {
  shuffled,                      ///< a permutation drawn from (seed, epoch)
  sequential,                    ///< 0, 1, 2, ...
  weighted,                      ///< each draw by itself takes sample i with probability weight[i] / (sum of all weights)
  weighted_without_replacement,  ///< likewise, among the samples that weren't drawn yet: none comes twice
};

/// What happens when the samples don't divide by the ranks.
enum class epoch_end : std::uint8_t {
  pad,     ///< every rank takes ceil(samples / size): the epoch's order starts again where it ran out. 0 samples stay 0
  uneven,  ///< every sample exactly once: ranks differ by at most one, the first ranks take more
  drop,    ///< every rank takes floor(samples / size): the end of the epoch's order is left out
};

struct sampler_options {
  std::uint64_t seed = 0;
  epoch_order order = epoch_order::shuffled;
  epoch_end end = epoch_end::pad;
  /// One a sample, in any unit, for the weighted orders; 0 leaves a sample out. Read by the constructor only.
  std::span<double const> weights{};
  /// How many samples a weighted epoch draws, all ranks together. Left out: as many as there are; without replacement, as many
  /// as have a positive weight.
  std::optional<std::size_t> draws{};
};

/// Says which samples one rank takes in an epoch. All ranks walk one order of all samples side by side: rank r of n takes
/// places r, r + n, r + 2n, ... of it. So equally long pieces of all ranks together are one piece of the order, whatever n is.
///
/// The order depends on the seed, the epoch, the number of samples and, where it is weighted, on the weights and the number of
/// draws. It does not depend on rank and size, and is the same on every platform: weights are drawn from in integers, after
/// rounding each to a multiple of 2^-b times the power of two above the largest, but never down to 0, where b = 63 - (binary
/// digits of the number of samples): 43 for a million samples.
class sampler {
 public:
  /// Any number of samples, fewer than ranks and none included. Throws usage_error unless size >= 1 and 0 <= rank < size; for
  /// weights that are not one a sample, negative, not finite or all 0; for weights or draws of an order that isn't weighted;
  /// and for more draws than there are samples to draw.
  explicit sampler(std::size_t samples, int size = 1, rank_id rank = rank_id{0}, sampler_options const& options = {})
      : order_size_(samples), seed_(options.seed), order_(options.order), end_(options.end) {
    if (size < 1 || number(rank) < 0 || number(rank) >= size) {
      refuse(std::string("sampler for rank ") + std::to_string(number(rank)) + " of " + std::to_string(size) +
             ": give at least one rank, and a rank from 0 to one less than there are");
    }
    size_ = static_cast<std::size_t>(size);
    rank_ = static_cast<std::size_t>(number(rank));
    if (order_ == epoch_order::weighted || order_ == epoch_order::weighted_without_replacement) {
      weigh(options);
    } else {
      expects(options.weights.empty() && !options.draws, "weights and draws are for the weighted orders of an epoch");
    }
  }

  /// How many samples the order of every epoch has: all of them, or the draws of a weighted order. The same on every rank.
  [[nodiscard]] std::size_t order_size() const noexcept { return order_size_; }

  /// How many samples this rank takes in every epoch.
  [[nodiscard]] std::size_t count() const noexcept {
    std::size_t const remainder = order_size_ % size_;
    switch (end_) {
      case epoch_end::pad: return order_size_ / size_ + (remainder != 0 ? 1 : 0);
      case epoch_end::uneven: return order_size_ / size_ + (rank_ < remainder ? 1 : 0);
      case epoch_end::drop: break;
    }
    return order_size_ / size_;
  }

  /// The order that all ranks walk in epoch `epoch`; order_size() samples. Complexity: O(samples) time and memory; weighted,
  /// O(samples + draws * log(samples)).
  [[nodiscard]] std::vector<std::size_t> order(std::uint64_t epoch) const {
    data_detail::epoch_random random{seed_, epoch};
    if (order_ == epoch_order::weighted) {
      return weighted_->with_replacement(order_size_, random);
    }
    if (order_ == epoch_order::weighted_without_replacement) {
      return weighted_->without_replacement(order_size_, random);
    }
    std::vector<std::size_t> order(order_size_);
    for (std::size_t index = 0; index < order_size_; ++index) {
      order[index] = index;
    }
    if (order_ == epoch_order::shuffled) {
      for (std::size_t left = order_size_; left > 1; --left) {
        std::swap(order[left - 1], order[static_cast<std::size_t>(random.below(left))]);
      }
    }
    return order;
  }

  /// The samples that this rank takes in epoch `epoch`, in order: count() of them, or what is left from number `first` on, to
  /// go on in the middle of an epoch. Two epochs have two orders (of few samples there are few orders, and they repeat).
  /// Throws usage_error when first > count(). Complexity: that of order(); O(count()) when sequential.
  [[nodiscard]] std::vector<std::size_t> epoch(std::uint64_t epoch, std::size_t first = 0) const {
    if (first > count()) {
      refuse(std::string("sample ") + std::to_string(first) + " of an epoch in which this rank takes " +
             std::to_string(count()));
    }
    std::vector<std::size_t> mine(count() - first);
    if (mine.empty()) {
      return mine;
    }
    std::size_t place = (first * size_ + rank_) % order_size_;
    std::size_t const stride = size_ % order_size_;
    for (std::size_t& sample : mine) {
      sample = place;
      place = place < order_size_ - stride ? place + stride : place - (order_size_ - stride);
    }
    if (order_ != epoch_order::sequential) {
      std::vector<std::size_t> const walked = order(epoch);
      for (std::size_t& sample : mine) {
        sample = walked[sample];
      }
    }
    return mine;
  }

 private:
  // Checks weights and draws for order_size_ samples, and makes order_size_ that of the draws.
  void weigh(sampler_options const& options) {
    std::size_t const samples = order_size_;
    if (options.weights.size() != samples) {
      refuse(std::to_string(options.weights.size()) + " weights for " + std::to_string(samples) +
             " samples: a weighted order takes one a sample");
    }
    weighted_ = std::make_shared<data_detail::weighted_draws const>(options.weights);
    bool const repeats = order_ == epoch_order::weighted;
    order_size_ = options.draws.value_or(repeats ? samples : weighted_->positive());
    if (order_size_ > weighted_->positive() && (!repeats || samples == 0)) {
      refuse(std::to_string(order_size_) + " draws " + (repeats ? "" : "without replacement ") + "from " +
             std::to_string(weighted_->positive()) + " samples of positive weight");
    }
  }

  std::size_t order_size_;
  std::size_t size_ = 1;
  std::size_t rank_ = 0;
  std::uint64_t seed_;
  epoch_order order_;
  epoch_end end_;
  std::shared_ptr<data_detail::weighted_draws const> weighted_;  // of the weighted orders; copies share it
};

}  // namespace lockstep
