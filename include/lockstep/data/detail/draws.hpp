// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/error.hpp>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace lockstep::data_detail {

/// The random numbers of one epoch, the same on every platform: std::shuffle and the standard distributions may differ between
/// standard libraries; the engine and its seeding may not.
class epoch_random {
 public:
  epoch_random(std::uint64_t seed, std::uint64_t epoch) {
    std::seed_seq words{low(seed), high(seed), low(epoch), high(epoch)};
    engine_.seed(words);
  }

  /// Uniform in [0, bound): draws as many bits as the largest result has, until the number fits. Requires: bound > 0.
  std::uint64_t below(std::uint64_t bound) {
    std::uint64_t const mask = ~std::uint64_t{0} >> std::countl_zero((bound - 1) | 1U);
    std::uint64_t draw = engine_() & mask;
    while (draw >= bound) {
      draw = engine_() & mask;
    }
    return draw;
  }

 private:
  [[nodiscard]] static std::uint32_t low(std::uint64_t word) noexcept { return static_cast<std::uint32_t>(word); }
  [[nodiscard]] static std::uint32_t high(std::uint64_t word) noexcept { return static_cast<std::uint32_t>(word >> 32U); }

  std::mt19937_64 engine_;
};

/// Draws samples by weight, in integers: each sample owns a stretch of [0, total) as long as its weight, and is drawn when a
/// uniform number falls into it. The stretches lie in a tree of partial sums (P. Fenwick, "A new data structure for cumulative
/// frequency tables", Software: Practice and Experience 24(3), 1994); without replacement, what was drawn is taken out of the
/// tree (C. Wong and M. Easton, "An efficient method for weighted sampling without replacement", SIAM J. Comput. 9(1), 1980).
///
/// A weight becomes an integer once: rounded to a multiple of 2^-b times the power of two above the largest weight, never down
/// to 0, where b = 63 - (binary digits of the number of samples). Scaling by a power of two is exact, so no platform differs.
class weighted_draws {
 public:
  static_assert(std::numeric_limits<double>::is_iec559);

  /// Throws usage_error naming the weight that is negative or not finite; and when there are weights, and all are 0.
  explicit weighted_draws(std::span<double const> weights) : lengths_(weights.size()), sums_(weights.size()) {
    double largest = 0;
    for (std::size_t index = 0; index < weights.size(); ++index) {
      double const weight = weights[index];
      if (!std::isfinite(weight) || weight < 0) {
        refuse(std::string("weight ") + std::to_string(index) + " is " + std::to_string(weight) +
               ": a sample's weight is 0 or more, and finite");
      }
      largest = largest < weight ? weight : largest;
    }
    expects(weights.empty() || largest > 0, "all weights are 0: the weight of at least one sample is positive");
    int exponent = 0;
    static_cast<void>(std::frexp(largest, &exponent));
    int const digits = 63 - static_cast<int>(std::bit_width(weights.size()));
    for (std::size_t index = 0; index < weights.size(); ++index) {
      if (weights[index] > 0) {
        auto const length = static_cast<std::uint64_t>(std::round(std::ldexp(weights[index], digits - exponent)));
        lengths_[index] = length == 0 ? 1 : length;
        total_ += lengths_[index];
        ++positive_;
      }
      sums_[index] += lengths_[index];
      if (std::size_t const above = index | (index + 1); above < sums_.size()) {
        sums_[above] += sums_[index];
      }
    }
  }

  /// How many samples have a positive weight: the others are never drawn.
  [[nodiscard]] std::size_t positive() const noexcept { return positive_; }

  /// Requires: positive() > 0, or count is 0.
  [[nodiscard]] std::vector<std::size_t> with_replacement(std::size_t count, epoch_random random) const {
    std::vector<std::size_t> drawn(count);
    for (std::size_t& sample : drawn) {
      sample = owner(sums_, random.below(total_));
    }
    return drawn;
  }

  /// Requires: count <= positive().
  [[nodiscard]] std::vector<std::size_t> without_replacement(std::size_t count, epoch_random random) const {
    std::vector<std::size_t> drawn(count);
    std::vector<std::uint64_t> sums = sums_;
    std::uint64_t total = total_;
    for (std::size_t& sample : drawn) {
      sample = owner(sums, random.below(total));
      total -= lengths_[sample];
      for (std::size_t index = sample; index < sums.size(); index |= index + 1) {
        sums[index] -= lengths_[sample];
      }
    }
    return drawn;
  }

 private:
  // The sample in whose stretch `point` lies: as many samples as end at or before it lie in front.
  [[nodiscard]] static std::size_t owner(std::vector<std::uint64_t> const& sums, std::uint64_t point) noexcept {
    std::size_t before = 0;
    for (std::size_t step = std::bit_floor(sums.size()); step != 0; step /= 2) {
      if (step <= sums.size() - before && sums[before + step - 1] <= point) {
        point -= sums[before + step - 1];
        before += step;
      }
    }
    return before;
  }

  std::vector<std::uint64_t> lengths_;
  std::vector<std::uint64_t> sums_;  // sums_[i] adds up the lengths from i & (i + 1) to i
  std::uint64_t total_ = 0;          // below 2^63
  std::size_t positive_ = 0;
};

}  // namespace lockstep::data_detail
