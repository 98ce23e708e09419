// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/concepts.hpp>
#include <lockstep/core/element_type.hpp>
#include <lockstep/core/host_device.hpp>
#include <lockstep/plan/split.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <type_traits>

/// The arithmetic of a reduction over memory that this process can read.
namespace lockstep::comm_detail {

template <class T>
inline constexpr bool is_16_bit_float = std::same_as<T, float16> || std::same_as<T, bfloat16>;

/// What elements are combined in: f32 for the 16-bit types, so that they are rounded once.
template <class T>
using wide = std::conditional_t<is_16_bit_float<T>, float, T>;

/// Integers wrap around. `min` and `max` of a NaN with anything are NaN; of equal values, the first.
template <reduction How, class A>
[[nodiscard]] LOCKSTEP_HOST_DEVICE constexpr A combined(A a, A b) noexcept {
  if constexpr (How == reduction::sum) {
    if constexpr (std::integral<A>) {
      using modular = std::make_unsigned_t<A>;
      return static_cast<A>(static_cast<modular>(static_cast<modular>(a) + static_cast<modular>(b)));
    } else {
      return a + b;
    }
  } else {
    bool const closer = How == reduction::min ? b < a : a < b;
    if constexpr (std::floating_point<A>) {
      return (closer || b != b) ? b : a;
    } else {
      return closer ? b : a;
    }
  }
}

/// Elements that are combined before the result is written: they stay in the nearest cache, and loops of a known length are
/// vectorised.
inline constexpr std::size_t block_length = 512;

/// For elements [first, first + length), in every block: starts with those of rank 0, combines those of ranks 1 to ranks - 1 in
/// that order, and calls `write(first, results, length)`. `source(rank)` points at element 0 of a rank.
template <class T, reduction How, class Source, class Write>
void combine(plan::range part, int ranks, Source const& source, Write const& write) {
  auto const one_block = [&](std::size_t first, auto length) {
    std::array<wide<T>, block_length> values;
    T const* from = static_cast<T const*>(source(0)) + first;
    for (std::size_t i = 0; i < length; ++i) {
      values[i] = static_cast<wide<T>>(from[i]);
    }
    for (int rank = 1; rank < ranks; ++rank) {
      from = static_cast<T const*>(source(rank)) + first;
      for (std::size_t i = 0; i < length; ++i) {
        values[i] = combined<How>(values[i], static_cast<wide<T>>(from[i]));
      }
    }
    if constexpr (std::same_as<T, wide<T>>) {
      write(first, values.data(), length);
    } else {
      std::array<T, block_length> rounded;
      for (std::size_t i = 0; i < length; ++i) {
        rounded[i] = T{values[i]};
      }
      write(first, rounded.data(), length);
    }
  };
  std::size_t first = part.first;
  for (; part.end() - first >= block_length; first += block_length) {
    one_block(first, std::integral_constant<std::size_t, block_length>{});
  }
  if (first != part.end()) {
    one_block(first, part.end() - first);
  }
}

}  // namespace lockstep::comm_detail
