// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/host_device.hpp>

#include <cstdint>

namespace lockstep {

namespace float16_detail {

LOCKSTEP_HOST_DEVICE constexpr std::uint32_t bits_of(float value) noexcept { return __builtin_bit_cast(std::uint32_t, value); }
LOCKSTEP_HOST_DEVICE constexpr float float_of(std::uint32_t bits) noexcept { return __builtin_bit_cast(float, bits); }

/// Drops the low `shift` bits of `bits`, rounding to nearest, ties to even. Requires 0 < shift < 32.
LOCKSTEP_HOST_DEVICE constexpr std::uint32_t round_shift(std::uint32_t bits, std::uint32_t shift) noexcept {
  std::uint32_t const half = (std::uint32_t{1} << (shift - 1)) - 1;
  return (bits + half + ((bits >> shift) & 1U)) >> shift;
}

LOCKSTEP_HOST_DEVICE constexpr std::uint16_t to_half(float value) noexcept {
#if defined(__CUDA_ARCH__)
  if (!__builtin_is_constant_evaluated()) {  // one instruction for what follows, but for the bits of a NaN
    std::uint16_t half = 0;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return half;
  }
#endif
  std::uint32_t const bits = bits_of(value);
  std::uint32_t const sign = (bits >> 16) & 0x8000U;
  std::uint32_t const magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) {  // NaN: stays one, made quiet
    return static_cast<std::uint16_t>(sign | 0x7e00U | ((magnitude >> 13) & 0x3ffU));
  }
  if (magnitude >= 0x477ff000U) {  // 65520 and above round to infinity
    return static_cast<std::uint16_t>(sign | 0x7c00U);
  }
  if (magnitude < 0x33000001U) {  // at most 2^-25: rounds to zero
    return static_cast<std::uint16_t>(sign);
  }
  if (magnitude < 0x38800000U) {  // below 2^-14: a subnormal half
    std::uint32_t const exponent = magnitude >> 23;
    std::uint32_t const mantissa = (magnitude & 0x7fffffU) | 0x800000U;
    return static_cast<std::uint16_t>(sign | round_shift(mantissa, 126 - exponent));
  }
  return static_cast<std::uint16_t>(sign | round_shift(magnitude - 0x38000000U, 13));
}

LOCKSTEP_HOST_DEVICE constexpr float from_half(std::uint16_t half) noexcept {
#if defined(__CUDA_ARCH__)
  if (!__builtin_is_constant_evaluated()) {
    float value = 0;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
  }
#endif
  std::uint32_t const sign = (half & 0x8000U) << 16;
  std::uint32_t const exponent = (half >> 10) & 0x1fU;
  std::uint32_t const mantissa = half & 0x3ffU;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in f32
    float const magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return sign != 0 ? -magnitude : magnitude;
  }
  return float_of(sign | (exponent == 0x1fU ? 0x7f800000U : (exponent + 112) << 23) | (mantissa << 13));
}

LOCKSTEP_HOST_DEVICE constexpr std::uint16_t to_bfloat(float value) noexcept {
  std::uint32_t const bits = bits_of(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) {
    return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  }
  return static_cast<std::uint16_t>(round_shift(bits, 16));
}

}  // namespace float16_detail

/// IEEE 754 binary16, as stored: 1 sign, 5 exponent, 10 mantissa bits. Computes nothing: converts to f32 exactly, and from
/// f32 rounding to nearest even (overflow becomes infinity, NaN stays NaN). Layout-compatible with CUDA's `__half`.
struct float16 {
  std::uint16_t bits = 0;

  constexpr float16() noexcept = default;
  LOCKSTEP_HOST_DEVICE constexpr explicit float16(float value) noexcept : bits(float16_detail::to_half(value)) {}
  LOCKSTEP_HOST_DEVICE constexpr operator float() const noexcept { return float16_detail::from_half(bits); }  // NOLINT
};

/// bfloat16: the upper half of an f32 (1 sign, 8 exponent, 7 mantissa bits). Converts like float16. Layout-compatible with
/// CUDA's `__nv_bfloat16`.
struct bfloat16 {
  std::uint16_t bits = 0;

  constexpr bfloat16() noexcept = default;
  LOCKSTEP_HOST_DEVICE constexpr explicit bfloat16(float value) noexcept : bits(float16_detail::to_bfloat(value)) {}
  LOCKSTEP_HOST_DEVICE constexpr operator float() const noexcept {  // NOLINT: widening loses nothing
    return float16_detail::float_of(static_cast<std::uint32_t>(bits) << 16);
  }
};

}  // namespace lockstep
