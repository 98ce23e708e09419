// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#include <lockstep/plan/arena.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <vector>

#include "../seed.hpp"

using lockstep::plan::arena_layout;
using lockstep::plan::lay_out;

TEST_CASE("arena: no arrays are an empty arena") {
  arena_layout const layout = lay_out({}, 16);
  CHECK(layout.offsets.empty());
  CHECK(layout.count == 0);
}

TEST_CASE("arena: with alignment 1 arrays touch") {
  std::array<std::size_t, 4> const counts{3, 0, 5, 2};
  arena_layout const layout = lay_out(counts);
  CHECK(layout.offsets == std::vector<std::size_t>{0, 3, 3, 8});
  CHECK(layout.count == 10);
}

TEST_CASE("arena: with alignment 16 every array begins at a multiple of 16 and nothing follows the last") {
  std::array<std::size_t, 4> const counts{3, 16, 17, 2};
  arena_layout const layout = lay_out(counts, 16);
  CHECK(layout.offsets == std::vector<std::size_t>{0, 16, 32, 64});
  CHECK(layout.count == 66);
}

TEST_CASE("arena: a count that overflows is refused, and the largest that fits is not") {
  constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
  std::array<std::size_t, 2> const fits{most - 5, 5};
  CHECK(lay_out(fits).count == most);
  std::array<std::size_t, 2> const sum{most - 5, 6};
  CHECK_THROWS_AS(static_cast<void>(lay_out(sum)), std::length_error);
  std::array<std::size_t, 2> const padding{most - 5, 0};
  CHECK_THROWS_AS(static_cast<void>(lay_out(padding, 16)), std::length_error);
  std::array<std::size_t, 3> const twice{most, most, 2};  // wraps around to 0
  CHECK_THROWS_AS(static_cast<void>(lay_out(twice)), std::length_error);
}

TEST_CASE("arena: alignment 0 is refused, also without arrays") {
  CHECK_THROWS_AS(static_cast<void>(lay_out({}, 0)), std::invalid_argument);
}

TEST_CASE("arena: arrays are aligned, in order, apart, and no further apart than the alignment asks") {
  auto const seed = tests::seed();
  INFO("LOCKSTEP_TEST_SEED=", seed);
  tests::generator random{seed};
  for (int i = 0; i < 3000; ++i) {
    std::vector<std::size_t> counts(random.whole(0, 20));
    for (std::size_t& count : counts) {
      count = random.once_in(5) ? 0 : random.whole(1, 1000);
    }
    std::size_t const alignment = random.whole(1, 70);
    arena_layout const layout = lay_out(counts, alignment);
    REQUIRE(layout.offsets.size() == counts.size());
    // Occupy the elements one alignment unit at a time: an array takes the first unit that is wholly free.
    std::size_t units = 0;
    std::size_t end = 0;
    for (std::size_t k = 0; k < counts.size(); ++k) {
      REQUIRE(layout.offsets[k] == units * alignment);
      end = units * alignment + counts[k];
      while (units * alignment < end) {
        ++units;
      }
    }
    REQUIRE(layout.count == end);
  }
}
