// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/error.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

/// In which order an epoch visits the samples.
enum class epoch_order : std::uint8_t {
  shuffled,    ///< a permutation drawn from (seed, epoch)
  sequential,  ///< 0, 1, 2, ...
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
};

/// Says which samples one rank takes in an epoch. All ranks walk one order of all samples side by side: rank r of n takes
/// places r, r + n, r + 2n, ... of it. So equally long pieces of all ranks together are one piece of the order, whatever n is.
///
/// The order depends on the seed, the epoch and the number of samples only, and is the same on every platform.
class sampler {
 public:
  /// Any number of samples, fewer than ranks and none included. Throws usage_error unless size >= 1 and 0 <= rank < size.
  explicit sampler(std::size_t samples, int size = 1, rank_id rank = rank_id{0}, sampler_options const& options = {})
      : samples_(samples), options_(options) {
    if (size < 1 || number(rank) < 0 || number(rank) >= size) {
      refuse(std::string("sampler for rank ") + std::to_string(number(rank)) + " of " + std::to_string(size) +
             ": give at least one rank, and a rank from 0 to one less than there are");
    }
    size_ = static_cast<std::size_t>(size);
    rank_ = static_cast<std::size_t>(number(rank));
  }

  /// How many samples this rank takes in every epoch.
  [[nodiscard]] std::size_t count() const noexcept {
    std::size_t const remainder = samples_ % size_;
    switch (options_.end) {
      case epoch_end::pad: return samples_ / size_ + (remainder != 0 ? 1 : 0);
      case epoch_end::uneven: return samples_ / size_ + (rank_ < remainder ? 1 : 0);
      case epoch_end::drop: break;
    }
    return samples_ / size_;
  }

  /// The samples that this rank takes in epoch `epoch`, in order; count() of them. Two epochs have two orders (of few samples
  /// there are few orders, and they repeat). Complexity: O(samples) time and memory when shuffled, O(count()) otherwise.
  [[nodiscard]] std::vector<std::size_t> epoch(std::uint64_t epoch) const {
    std::vector<std::size_t> mine(count());
    if (mine.empty()) {
      return mine;
    }
    std::size_t place = rank_ % samples_;
    std::size_t const stride = size_ % samples_;
    for (std::size_t& sample : mine) {
      sample = place;
      place = place < samples_ - stride ? place + stride : place - (samples_ - stride);
    }
    if (options_.order == epoch_order::shuffled) {
      std::vector<std::size_t> const order = shuffled(epoch);
      for (std::size_t& sample : mine) {
        sample = order[sample];
      }
    }
    return mine;
  }

 private:
  // std::shuffle and std::uniform_int_distribution may differ between standard libraries; the engine and its seeding may not.
  [[nodiscard]] std::vector<std::size_t> shuffled(std::uint64_t epoch) const {
    std::seed_seq words{low(options_.seed), high(options_.seed), low(epoch), high(epoch)};
    std::mt19937_64 random{words};
    std::vector<std::size_t> order(samples_);
    for (std::size_t index = 0; index < samples_; ++index) {
      order[index] = index;
    }
    for (std::size_t left = samples_; left > 1; --left) {
      std::swap(order[left - 1], order[below(left, random)]);
    }
    return order;
  }

  // Uniform in [0, bound): draws as many bits as the largest result has, until the number fits.
  [[nodiscard]] static std::size_t below(std::size_t bound, std::mt19937_64& random) {
    std::uint64_t const mask = ~std::uint64_t{0} >> std::countl_zero(std::uint64_t{bound - 1} | 1U);
    std::uint64_t draw = random() & mask;
    while (draw >= bound) {
      draw = random() & mask;
    }
    return static_cast<std::size_t>(draw);
  }

  [[nodiscard]] static std::uint32_t low(std::uint64_t word) noexcept { return static_cast<std::uint32_t>(word); }
  [[nodiscard]] static std::uint32_t high(std::uint64_t word) noexcept { return static_cast<std::uint32_t>(word >> 32U); }

  std::size_t samples_;
  std::size_t size_ = 1;
  std::size_t rank_ = 0;
  sampler_options options_;
};

}  // namespace lockstep
