// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

/// Pure arithmetic of the parallel step. Standard headers only; nothing here allocates devices, talks or waits.
namespace lockstep::plan {

/// Elements [first, first + count) of something.
struct range {
  std::size_t first = 0;
  std::size_t count = 0;

  [[nodiscard]] constexpr std::size_t end() const noexcept { return first + count; }
  friend bool operator==(range const&, range const&) = default;
};

/// Piece `index` of `total` things cut into `pieces` pieces whose sizes differ by at most one, larger ones first.
/// Requires: pieces > 0, index < pieces.
[[nodiscard]] constexpr range split(std::size_t total, std::size_t pieces, std::size_t index) noexcept {
  std::size_t const base = total / pieces;
  std::size_t const larger = total % pieces;
  return {index * base + (index < larger ? index : larger), base + (index < larger ? 1 : 0)};
}

/// The part of a span of `count` elements that `rank` of `size` ranks owns after a reduce-scatter: equal parts of a multiple of
/// 16 elements (whole 16-byte accesses for every element type), the rest with the last rank. Requires: size > 0, rank < size.
[[nodiscard]] constexpr range part(std::size_t count, std::size_t rank, std::size_t size) noexcept {
  std::size_t const equal = count / size / 16 * 16;
  std::size_t const first = rank * equal;
  return {first, rank + 1 == size ? count - first : equal};
}

}  // namespace lockstep::plan
