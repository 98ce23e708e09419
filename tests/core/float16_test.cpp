// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#include <lockstep/core/float16.hpp>

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <random>
#include <type_traits>

namespace {

using lockstep::bfloat16;
using lockstep::float16;

static_assert(sizeof(float16) == 2 && sizeof(bfloat16) == 2);
static_assert(std::is_trivially_copyable_v<float16> && std::is_trivially_copyable_v<bfloat16>);
static_assert(static_cast<float>(float16{1.5F}) == 1.5F && static_cast<float>(bfloat16{-2.0F}) == -2.0F);
static_assert(float16{}.bits == 0 && bfloat16{}.bits == 0);

/// A binary format described by its numbers: the reference works in f64, where every value of it and every tie is exact.
struct format {
  int mantissa_bits;
  int min_exponent;  // of normal numbers
  int max_exponent;
};
constexpr format half_format{10, -14, 15};
constexpr format bfloat_format{7, -126, 127};

/// The value that the stored bits stand for.
double decode(std::uint16_t bits, format f) {
  int const exponent_bits = 15 - f.mantissa_bits;
  int const exponent = (bits >> f.mantissa_bits) & ((1 << exponent_bits) - 1);
  int const mantissa = bits & ((1 << f.mantissa_bits) - 1);
  double magnitude = 0;
  if (exponent == (1 << exponent_bits) - 1) {
    magnitude = mantissa == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = std::ldexp(mantissa, f.min_exponent - f.mantissa_bits);
  } else {
    magnitude = std::ldexp((1 << f.mantissa_bits) + mantissa, f.min_exponent + exponent - 1 - f.mantissa_bits);
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

/// The value of the format next to `value`, ties to even. Requires: not NaN, the default rounding mode.
double nearest(double value, format f) {
  if (value == 0 || std::isinf(value)) {
    return value;
  }
  int const exponent = std::ilogb(value) < f.min_exponent ? f.min_exponent : std::ilogb(value);
  double const step = std::ldexp(1.0, exponent - f.mantissa_bits);
  double const rounded = std::nearbyint(value / step) * step;
  return std::abs(rounded) >= std::ldexp(1.0, f.max_exponent + 1)
             ? std::copysign(std::numeric_limits<double>::infinity(), value)
             : rounded;
}

template <class T>
bool converts_like_reference(float value, format f) {
  T const converted{value};
  double const expected = std::isnan(value) ? value : nearest(value, f);
  double const got = decode(converted.bits, f);
  bool const same_sign = ((converted.bits & 0x8000) != 0) == std::signbit(value);
  return same_sign && (std::isnan(expected) ? std::isnan(got) : got == expected);
}

template <class T>
int all_values_round_trip(format f) {
  int wrong = 0;
  std::uint16_t const quiet = static_cast<std::uint16_t>(1 << (f.mantissa_bits - 1));
  for (std::uint32_t pattern = 0; pattern <= 0xffff; ++pattern) {
    T stored;
    stored.bits = static_cast<std::uint16_t>(pattern);
    float const value = stored;
    double const expected = decode(stored.bits, f);
    bool const nan = std::isnan(expected);
    bool const decoded = nan ? std::isnan(value) : (value == expected && std::signbit(value) == std::signbit(expected));
    std::uint16_t const back = T{value}.bits;
    bool const encoded = back == stored.bits || (nan && back == (stored.bits | quiet));  // a NaN may become a quiet one
    wrong += decoded && encoded ? 0 : 1;
  }
  return wrong;
}

/// Every value of the format, every midpoint to the next, and the floats beside each.
template <class T>
int wrong_around_ties(format f) {
  int wrong = 0;
  int const last_finite = ((1 << (15 - f.mantissa_bits)) - 1) * (1 << f.mantissa_bits) - 1;
  for (int pattern = 0; pattern <= last_finite; ++pattern) {
    double const low = decode(static_cast<std::uint16_t>(pattern), f);
    double const step =
        std::ldexp(1.0, (low == 0 || std::ilogb(low) < f.min_exponent ? f.min_exponent : std::ilogb(low)) - f.mantissa_bits);
    for (double const exact : {low, low + step / 2, low + step / 4}) {
      auto const value = static_cast<float>(exact);
      for (float const near : {value, std::nextafter(value, -1e30F), std::nextafter(value, HUGE_VALF)}) {
        wrong += converts_like_reference<T>(near, f) ? 0 : 1;
        wrong += converts_like_reference<T>(-near, f) ? 0 : 1;
      }
    }
  }
  return wrong;
}

template <class T>
int wrong_of_random_floats(format f, std::uint64_t seed) {
  std::mt19937_64 random{seed};
  int wrong = 0;
  for (int draw = 0; draw < 300000; ++draw) {
    std::uint64_t const bits = random();
    // Any pattern, or one whose exponent lies where the format rounds.
    auto const anything = static_cast<std::uint32_t>(bits);
    auto const close = (anything & 0x807fffffU) | (static_cast<std::uint32_t>(96 + (bits >> 32) % 52) << 23);
    wrong += converts_like_reference<T>(std::bit_cast<float>(anything), f) ? 0 : 1;
    wrong += converts_like_reference<T>(std::bit_cast<float>(close), f) ? 0 : 1;
  }
  return wrong;
}

std::uint64_t test_seed() {
  char const* const given = std::getenv("LOCKSTEP_TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
}

}  // namespace

TEST_CASE("float16: each of the 65,536 stored values becomes its f32 value and comes back") {
  CHECK(all_values_round_trip<float16>(half_format) == 0);
}

TEST_CASE("bfloat16: each of the 65,536 stored values becomes its f32 value and comes back") {
  CHECK(all_values_round_trip<bfloat16>(bfloat_format) == 0);
}

TEST_CASE("float16: around every value and every tie, f32 is rounded to nearest even") {
  CHECK(wrong_around_ties<float16>(half_format) == 0);
}

TEST_CASE("bfloat16: around every value and every tie, f32 is rounded to nearest even") {
  CHECK(wrong_around_ties<bfloat16>(bfloat_format) == 0);
}

TEST_CASE("float16 and bfloat16: random f32 patterns round like the f64 reference") {
  auto const seed = test_seed();
  INFO("LOCKSTEP_TEST_SEED=" << seed);
  CHECK(wrong_of_random_floats<float16>(half_format, seed) == 0);
  CHECK(wrong_of_random_floats<bfloat16>(bfloat_format, seed) == 0);
}

TEST_CASE("float16 and bfloat16: the ends of the range have the known bits") {
  float const infinity = std::numeric_limits<float>::infinity();
  CHECK(float16{65504.0F}.bits == 0x7bff);
  CHECK(float16{65519.996F}.bits == 0x7bff);
  CHECK(float16{65520.0F}.bits == 0x7c00);
  CHECK(float16{-infinity}.bits == 0xfc00);
  CHECK(float16{-0.0F}.bits == 0x8000);
  CHECK(float16{0x1p-24F}.bits == 0x0001);
  CHECK(float16{0x1p-25F}.bits == 0x0000);
  CHECK(float16{0x1.000002p-25F}.bits == 0x0001);
  CHECK(float16{0x1p-14F}.bits == 0x0400);
  CHECK(bfloat16{std::numeric_limits<float>::max()}.bits == 0x7f80);
  CHECK(bfloat16{infinity}.bits == 0x7f80);
  CHECK(bfloat16{1.0F}.bits == 0x3f80);
  CHECK(bfloat16{std::numeric_limits<float>::denorm_min()}.bits == 0x0000);
  // A NaN whose payload lies in the dropped bits only must not become an infinity.
  CHECK(std::isnan(static_cast<float>(float16{std::bit_cast<float>(0x7f800001U)})));
  CHECK(std::isnan(static_cast<float>(bfloat16{std::bit_cast<float>(0xff800001U)})));
}
