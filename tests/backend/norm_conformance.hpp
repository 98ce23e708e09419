// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../seed.hpp"

#include <lockstep/core/element_type.hpp>
#include <lockstep/core/float16.hpp>
#include <lockstep/core/memory.hpp>
#include <lockstep/core/update.hpp>
#include <lockstep/plan/split.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

/// What every backend's squared_norm must do. Its header is included by the test, beside this one.
namespace tests {

/// Gradients of every type and alignment in one piece of device memory, on both sides of which lies what must not be read: what
/// is not a number.
template <class Backend>
class squared {
 public:
  squared(typename Backend::device& device, generator& random, std::vector<std::size_t> const& sizes) : device_(device) {
    for (std::size_t const size : sizes) {
      for (lockstep::element_type const type : {lockstep::element_type::f32, lockstep::element_type::f16,
                                                lockstep::element_type::bf16, lockstep::element_type::f64}) {
        add(random, type, size);
      }
    }
    bytes_.resize(bytes_.size() + 64, std::byte{0xff});
    memory_ = device.allocate(bytes_.size(), lockstep::memory_use::other);
    sum_ = device.allocate(sizeof(double), lockstep::memory_use::other);
  }

  [[nodiscard]] std::vector<lockstep::gradient_stretch> stretches() const {
    std::vector<lockstep::gradient_stretch> all;
    for (placed const& p : placed_) {
      all.push_back({{memory_.template as<std::byte>() + p.at, p.count, p.type}, p.bucket});
    }
    return all;
  }
  /// The sum of squares in a range of buckets, in f64.
  [[nodiscard]] double expected(lockstep::plan::range buckets) const {
    double sum = 0;
    for (placed const& p : placed_) {
      sum += p.bucket >= buckets.first && p.bucket < buckets.end() ? p.squares : 0.0;
    }
    return sum;
  }
  /// What `norm` adds to 1.
  [[nodiscard]] double found(lockstep::squared_norm<Backend> const& norm, lockstep::plan::range buckets) const {
    Backend::copy(device_.stream(), memory_.data(), bytes_.data(), bytes_.size());
    double sum = 1;
    Backend::copy(device_.stream(), sum_.data(), &sum, sizeof sum);
    norm.run(device_.stream(), buckets, sum_.template as<double>());
    Backend::copy(device_.stream(), &sum, sum_.data(), sizeof sum);
    device_.stream().synchronize();
    return sum - 1;
  }

  [[nodiscard]] std::size_t size() const noexcept { return placed_.size(); }
  /// Puts `value` at element `index` of stretch `which`.
  void put(std::size_t which, std::size_t index, double value) {
    lockstep::visit(placed_[which].type, [&]<class T>(std::type_identity<T>) { write<T>(placed_[which].at, index, value); });
  }
  [[nodiscard]] std::size_t count(std::size_t which) const { return placed_[which].count; }

 private:
  struct placed {
    std::size_t at;
    std::size_t count;
    lockstep::element_type type;
    std::size_t bucket;
    double squares;
  };

  template <class T>
  double write(std::size_t at, std::size_t index, double value) {
    if constexpr (sizeof(T) == 2) {
      T const element(static_cast<float>(value));
      std::memcpy(bytes_.data() + at + index * sizeof element, &element, sizeof element);
      return static_cast<double>(static_cast<float>(element));
    } else {
      auto const element = static_cast<T>(value);
      std::memcpy(bytes_.data() + at + index * sizeof element, &element, sizeof element);
      return static_cast<double>(element);
    }
  }

  void add(generator& random, lockstep::element_type type, std::size_t size) {
    std::size_t const width = lockstep::size_of(type);
    std::size_t const gap = 64 + width * random.whole(0, 15);
    placed p{(bytes_.size() + 63) / 64 * 64 + gap, size, type, random.whole(0, 4), 0};
    bytes_.resize(p.at + size * width, std::byte{0xff});
    for (std::size_t i = 0; i < size; ++i) {
      double const value = random.real(-3, 3);
      lockstep::visit(type, [&]<class T>(std::type_identity<T>) {
        double const g = write<T>(p.at, i, value);
        p.squares += g * g;
      });
    }
    placed_.push_back(p);
  }

  typename Backend::device& device_;
  std::vector<std::byte> bytes_;
  std::vector<placed> placed_;
  typename Backend::buffer memory_;
  typename Backend::buffer sum_;
};

inline std::vector<std::size_t> norm_sizes() {
  return {0, 1, 2, 3, 4, 5, 7, 8, 9, 31, 255, 256, 257, 1023, 4097, 32767, 32768, 32769, 100003};
}

/// Of any types, sizes, alignments and buckets, up to rounding; and the same bits each time.
template <class Backend>
void squares_are_added_up() {
  std::uint64_t const seed_value = seed();
  INFO("LOCKSTEP_TEST_SEED=", seed_value);
  generator random{seed_value};
  typename Backend::device device;
  squared<Backend> const them{device, random, norm_sizes()};
  lockstep::squared_norm<Backend> const norm{device, them.stretches()};
  for (lockstep::plan::range const buckets :
       std::vector<lockstep::plan::range>{{0, 5}, {0, 1}, {1, 1}, {2, 3}, {4, 1}, {3, 100}, {5, 3}, {2, 0}, {100000, 1}}) {
    INFO("buckets from ", buckets.first, ", ", buckets.count, " of them");
    double const once = them.found(norm, buckets);
    CHECK(std::abs(once - them.expected(buckets)) <= 1e-12 * (1 + them.expected(buckets)));
    CHECK(them.found(norm, buckets) == once);
  }
  CHECK(them.found(lockstep::squared_norm<Backend>{device, {}}, {0, 5}) == 0);
}

/// Wherever it lies. The square of a large f32 does not overflow.
template <class Backend>
void what_is_not_finite_is_found() {
  std::uint64_t const seed_value = seed();
  INFO("LOCKSTEP_TEST_SEED=", seed_value);
  generator random{seed_value};
  typename Backend::device device;
  squared<Backend> them{device, random, {1, 5, 257, 33000}};
  lockstep::squared_norm<Backend> const norm{device, them.stretches()};
  for (std::size_t which = 0; which < them.size(); ++which) {
    std::size_t const last = them.count(which) - 1;
    for (std::size_t const index : {std::size_t{0}, last, static_cast<std::size_t>(random.whole(0, last))}) {
      INFO("stretch ", which, ", element ", index);
      them.put(which, index, std::numeric_limits<double>::infinity());
      CHECK_FALSE(std::isfinite(them.found(norm, {0, 5})));
      them.put(which, index, std::numeric_limits<double>::quiet_NaN());
      CHECK(std::isnan(them.found(norm, {0, 5})));
      them.put(which, index, 0);
    }
    CHECK(std::isfinite(them.found(norm, {0, 5})));
  }
  them.put(0, 0, 3e38);
  CHECK(them.found(norm, {0, 5}) == doctest::Approx(static_cast<double>(3e38F) * static_cast<double>(3e38F)));
}

}  // namespace tests
