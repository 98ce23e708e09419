// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>

/// Where property tests take their random numbers from.
namespace tests {

/// LOCKSTEP_TEST_SEED when it is set, so that a failure can be repeated; a fresh one otherwise. Print it with INFO.
[[nodiscard]] inline std::uint64_t seed() {
  if (char const* const given = std::getenv("LOCKSTEP_TEST_SEED"); given != nullptr) {
    return std::stoull(given);
  }
  return std::random_device{}();
}

/// Random numbers of one test case.
class generator {
 public:
  explicit generator(std::uint64_t seed_value) : engine_(seed_value) {}

  /// A whole number in [low, high].
  [[nodiscard]] std::size_t whole(std::size_t low, std::size_t high) {
    return std::uniform_int_distribution<std::size_t>{low, high}(engine_);
  }
  /// A real number in [low, high).
  [[nodiscard]] float real(float low, float high) { return std::uniform_real_distribution<float>{low, high}(engine_); }
  /// True once in `times` calls, on average.
  [[nodiscard]] bool once_in(std::size_t times) { return whole(1, times) == 1; }

  /// True with the given probability.
  [[nodiscard]] bool chance(double probability) { return std::bernoulli_distribution{probability}(engine_); }

  [[nodiscard]] std::mt19937_64& engine() noexcept { return engine_; }

 private:
  std::mt19937_64 engine_;
};

}  // namespace tests
