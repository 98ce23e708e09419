// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <stdexcept>
#include <vector>

namespace lockstep::plan {

/// Where arrays lie in one piece of memory, in elements.
struct arena_layout {
  /// The first element of each array.
  std::vector<std::size_t> offsets;
  /// Elements of the arena: the end of the last array, without padding after it.
  std::size_t count = 0;
};

/// Lays arrays of `counts` elements one after another, each at a multiple of `alignment` elements. With alignment 1 there are
/// no gaps, so that all gradients of one type are one stretch.
/// Throws std::invalid_argument for alignment 0, and std::length_error where the arena's element count does not fit
/// std::size_t.
[[nodiscard]] inline arena_layout lay_out(std::span<std::size_t const> counts, std::size_t alignment = 1) {
  if (alignment == 0) {
    throw std::invalid_argument("lockstep: the alignment of an arena is at least 1 element");
  }
  constexpr std::size_t most = static_cast<std::size_t>(-1);
  arena_layout layout;
  layout.offsets.reserve(counts.size());
  for (std::size_t const count : counts) {
    std::size_t const over = layout.count % alignment;
    std::size_t const padding = over == 0 ? 0 : alignment - over;
    if (padding > most - layout.count || count > most - layout.count - padding) {
      throw std::length_error("lockstep: the element count of an arena overflows");
    }
    layout.offsets.push_back(layout.count + padding);
    layout.count += padding + count;
  }
  return layout;
}

}  // namespace lockstep::plan
