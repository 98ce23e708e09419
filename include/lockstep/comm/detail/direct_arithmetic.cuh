// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/comm/detail/combine.hpp>
#include <lockstep/concepts.hpp>
#include <lockstep/core/element_type.hpp>
#include <lockstep/core/float16.hpp>

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

/// How elements are combined that come in words of eight bytes. An arithmetic has `wide<Words>`, what that many words are added
/// up in, and begins, adds and ends.
namespace lockstep::comm_detail {

template <class T>
struct sum_in_words;

template <>
struct sum_in_words<float> {
  static constexpr int unroll = 4;
  template <int Words>
  struct wide {
    float values[2 * Words];
  };

  template <int Words>
  __device__ static void begin(wide<Words>& sum, std::uint64_t const (&words)[Words]) {
    for (int i = 0; i < Words; ++i) {
      sum.values[2 * i] = __uint_as_float(static_cast<std::uint32_t>(words[i]));
      sum.values[2 * i + 1] = __uint_as_float(static_cast<std::uint32_t>(words[i] >> 32U));
    }
  }
  template <int Words>
  __device__ static void add(wide<Words>& sum, std::uint64_t const (&words)[Words]) {
    for (int i = 0; i < Words; ++i) {
      sum.values[2 * i] = __fadd_rn(sum.values[2 * i], __uint_as_float(static_cast<std::uint32_t>(words[i])));
      sum.values[2 * i + 1] = __fadd_rn(sum.values[2 * i + 1], __uint_as_float(static_cast<std::uint32_t>(words[i] >> 32U)));
    }
  }
  template <int Words>
  __device__ static void end(wide<Words> const& sum, std::uint64_t (&words)[Words]) {
    for (int i = 0; i < Words; ++i) {
      words[i] = __float_as_uint(sum.values[2 * i]) | std::uint64_t{__float_as_uint(sum.values[2 * i + 1])} << 32U;
    }
  }
};

/// 16-bit elements: added in f32 and rounded once.
template <class T>
requires is_16_bit_float<T>
struct sum_in_words<T> {
  static constexpr int unroll = 2;
  template <int Words>
  struct wide {
    float values[4 * Words];
  };

  template <int Words>
  __device__ static void begin(wide<Words>& sum, std::uint64_t const (&words)[Words]) {
    for (int i = 0; i < 4 * Words; ++i) {
      sum.values[i] = element(words[i / 4], i % 4);
    }
  }
  template <int Words>
  __device__ static void add(wide<Words>& sum, std::uint64_t const (&words)[Words]) {
    for (int i = 0; i < 4 * Words; ++i) {
      sum.values[i] = __fadd_rn(sum.values[i], element(words[i / 4], i % 4));
    }
  }
  template <int Words>
  __device__ static void end(wide<Words> const& sum, std::uint64_t (&words)[Words]) {
    for (int i = 0; i < Words; ++i) {
      words[i] = pair(sum.values[4 * i], sum.values[4 * i + 1]) |
                 std::uint64_t{pair(sum.values[4 * i + 2], sum.values[4 * i + 3])} << 32U;
    }
  }

 private:
  __device__ static float element(std::uint64_t word, int i) {
    T value;
    value.bits = static_cast<std::uint16_t>(word >> (16U * static_cast<unsigned>(i)));
    return static_cast<float>(value);
  }
  __device__ static std::uint32_t pair(float low, float high) {
#if __CUDA_ARCH__ >= 800
    if constexpr (std::is_same_v<T, bfloat16>) {  // one instruction, which rounds like bfloat16 does
      std::uint32_t both = 0;
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
      return both;
    }
#endif
    return T{low}.bits | std::uint32_t{T{high}.bits} << 16U;
  }
};

/// Any elements and reduction, chosen when it runs.
struct any_in_words {
  static constexpr int unroll = 1;
  element_type type;
  reduction how;

  template <int Words>
  struct wide {
    std::uint64_t words[Words];  // the elements themselves, but for those of 16-bit floats
    float values[4 * Words];
  };

  template <int Words>
  __device__ void begin(wide<Words>& all, std::uint64_t const (&words)[Words]) const {
    for (int i = 0; i < Words; ++i) {
      all.words[i] = words[i];
    }
    if (type == element_type::f16) {
      widen<float16>(all.values, words);
    } else if (type == element_type::bf16) {
      widen<bfloat16>(all.values, words);
    }
  }
  template <int Words>
  __device__ void add(wide<Words>& all, std::uint64_t const (&words)[Words]) const {
    switch (how) {
      case reduction::sum: return add_as<reduction::sum>(all, words);
      case reduction::min: return add_as<reduction::min>(all, words);
      case reduction::max: return add_as<reduction::max>(all, words);
    }
  }
  template <int Words>
  __device__ void end(wide<Words> const& all, std::uint64_t (&words)[Words]) const {
    for (int i = 0; i < Words; ++i) {
      words[i] = all.words[i];
    }
    if (type == element_type::f16) {
      narrow<float16>(all.values, words);
    } else if (type == element_type::bf16) {
      narrow<bfloat16>(all.values, words);
    }
  }

 private:
  template <class T, int Words>
  __device__ static void widen(float (&values)[4 * Words], std::uint64_t const (&words)[Words]) {
    for (int i = 0; i < 4 * Words; ++i) {
      T value;
      value.bits = static_cast<std::uint16_t>(words[i / 4] >> (16U * static_cast<unsigned>(i % 4)));
      values[i] = static_cast<float>(value);
    }
  }
  template <class T, int Words>
  __device__ static void narrow(float const (&values)[4 * Words], std::uint64_t (&words)[Words]) {
    for (int i = 0; i < Words; ++i) {
      words[i] = 0;
      for (int k = 0; k < 4; ++k) {
        words[i] |= std::uint64_t{T{values[4 * i + k]}.bits} << (16U * static_cast<unsigned>(k));
      }
    }
  }
  template <reduction How, int Words>
  __device__ void add_as(wide<Words>& all, std::uint64_t const (&words)[Words]) const {
    switch (type) {
      case element_type::f32: return fold<How, float>(all, words);
      case element_type::f64: return fold<How, double>(all, words);
      case element_type::f16: return fold_wide<How, float16>(all, words);
      case element_type::bf16: return fold_wide<How, bfloat16>(all, words);
      case element_type::i8: return fold<How, std::int8_t>(all, words);
      case element_type::u8: return fold<How, std::uint8_t>(all, words);
      case element_type::i32: return fold<How, std::int32_t>(all, words);
      case element_type::u32: return fold<How, std::uint32_t>(all, words);
      case element_type::i64: return fold<How, std::int64_t>(all, words);
      case element_type::u64: return fold<How, std::uint64_t>(all, words);
    }
  }
  template <reduction How, class T, int Words>
  __device__ static void fold(wide<Words>& all, std::uint64_t const (&words)[Words]) {
    using bits =
        std::conditional_t<sizeof(T) == 1, std::uint8_t, std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>;
    constexpr int elements = 8 / sizeof(T);
    for (int i = 0; i < Words; ++i) {
      std::uint64_t result = 0;
      for (int k = 0; k < elements; ++k) {
        constexpr unsigned width = 8 * sizeof(T);
        auto const a = __builtin_bit_cast(T, static_cast<bits>(all.words[i] >> (width * static_cast<unsigned>(k))));
        auto const b = __builtin_bit_cast(T, static_cast<bits>(words[i] >> (width * static_cast<unsigned>(k))));
        result |= std::uint64_t{__builtin_bit_cast(bits, combined<How>(a, b))} << (width * static_cast<unsigned>(k));
      }
      all.words[i] = result;
    }
  }
  template <reduction How, class T, int Words>
  __device__ static void fold_wide(wide<Words>& all, std::uint64_t const (&words)[Words]) {
    float values[4 * Words];
    widen<T>(values, words);
    for (int i = 0; i < 4 * Words; ++i) {
      all.values[i] = combined<How>(all.values[i], values[i]);
    }
  }
};

}  // namespace lockstep::comm_detail
