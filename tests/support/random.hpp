// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>

namespace support {

/// A fresh seed, or that of the environment variable LOCKSTEP_TEST_SEED; print it with what failed.
inline std::uint64_t draw_seed() {
  if (char const* const given = std::getenv("LOCKSTEP_TEST_SEED")) {
    return std::stoull(given);
  }
  std::random_device device;
  return (std::uint64_t{device()} << 32U) | device();
}

/// A few draws over one generator.
class draws {
 public:
  explicit draws(std::uint64_t seed) : engine_(seed) {}

  /// A whole number in [low, high].
  std::size_t between(std::size_t low, std::size_t high) {
    return std::uniform_int_distribution<std::size_t>{low, high}(engine_);
  }
  float real(float low, float high) { return std::uniform_real_distribution<float>{low, high}(engine_); }
  bool chance(double probability) { return std::bernoulli_distribution{probability}(engine_); }
  std::mt19937_64& engine() noexcept { return engine_; }

 private:
  std::mt19937_64 engine_;
};

}  // namespace support
