// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#include <lockstep/plan/split.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "../seed.hpp"

using lockstep::plan::part;
using lockstep::plan::range;
using lockstep::plan::split;

namespace {

std::vector<std::size_t> sizes(std::size_t total, std::size_t pieces) {
  std::vector<std::size_t> result;
  for (std::size_t i = 0; i < pieces; ++i) {
    result.push_back(split(total, pieces, i).count);
  }
  return result;
}

}  // namespace

TEST_CASE("split: 9 samples on 4 devices and 36 on 7 leave no device without work") {
  CHECK(sizes(9, 4) == std::vector<std::size_t>{3, 2, 2, 2});
  CHECK(sizes(36, 7) == std::vector<std::size_t>{6, 5, 5, 5, 5, 5, 5});
}

TEST_CASE("split: with fewer samples than devices the first devices have one each") {
  CHECK(sizes(3, 5) == std::vector<std::size_t>{1, 1, 1, 0, 0});
}

TEST_CASE("split: no samples give every device an empty range at zero") {
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(split(0, 4, i) == range{0, 0});
  }
}

TEST_CASE("split: one piece is everything, up to the largest count") {
  constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
  CHECK(split(most, 1, 0) == range{0, most});
  CHECK(split(most, 2, 1).end() == most);
  static_assert(split(10, 3, 1) == range{4, 3});
}

TEST_CASE("split: pieces cover everything once, in order, and differ by at most one") {
  auto const seed = tests::seed();
  INFO("LOCKSTEP_TEST_SEED=", seed);
  tests::generator random{seed};
  for (int i = 0; i < 3000; ++i) {
    std::size_t const total = random.whole(0, random.once_in(2) ? 100 : std::size_t{1} << 60);
    std::size_t const pieces = random.whole(1, 70);
    std::size_t end = 0;
    std::size_t smallest = std::numeric_limits<std::size_t>::max();
    std::size_t largest = 0;
    std::size_t working = 0;
    for (std::size_t k = 0; k < pieces; ++k) {
      range const r = split(total, pieces, k);
      REQUIRE(r.first == end);
      end = r.end();
      REQUIRE((k == 0 || r.count <= smallest));  // larger ones first
      smallest = std::min(smallest, r.count);
      largest = std::max(largest, r.count);
      working += r.count != 0 ? 1 : 0;
    }
    REQUIRE(end == total);
    REQUIRE(largest - smallest <= 1);
    REQUIRE(working == std::min(total, pieces));
  }
}

TEST_CASE("part: the parts of all ranks cover the span, and begin at multiples of 16") {
  auto const seed = tests::seed();
  INFO("LOCKSTEP_TEST_SEED=", seed);
  tests::generator random{seed};
  for (int i = 0; i < 3000; ++i) {
    std::size_t const count = random.whole(0, random.once_in(2) ? 2000 : std::size_t{1} << 60);
    std::size_t const size = random.whole(1, 70);
    std::size_t end = 0;
    for (std::size_t rank = 0; rank < size; ++rank) {
      range const r = part(count, rank, size);
      REQUIRE(r.first == end);
      REQUIRE(r.first % 16 == 0);
      if (rank + 1 < size) {
        REQUIRE(r.count % 16 == 0);
        REQUIRE(r.count == part(count, 0, size).count);
      } else {
        // The last rank has at most the elements that 16 a rank can't share out more than the others.
        REQUIRE(r.count - part(count, 0, size).count < 16 * size);
      }
      end = r.end();
    }
    REQUIRE(end == count);
  }
}

TEST_CASE("part: a span too small to share lies with the last rank") {
  CHECK(part(63, 0, 4) == range{0, 0});
  CHECK(part(63, 3, 4) == range{0, 63});
  CHECK(part(64, 3, 4) == range{48, 16});
  CHECK(part(0, 0, 1) == range{0, 0});
  CHECK(part(5, 0, 1) == range{0, 5});
}
