// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#include <lockstep/plan/order.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <set>
#include <vector>

#include "../seed.hpp"

using lockstep::plan::cut_and_order;
using lockstep::plan::mark;

namespace {

constexpr std::size_t most = std::numeric_limits<std::size_t>::max();

/// The same answer, found an element at a time.
std::vector<mark> reference(std::vector<std::size_t> const& counts, std::vector<mark> const& marks) {
  struct keyed {
    std::size_t rank;  // of the first mark that covers the piece
    mark piece;
  };
  std::vector<keyed> found;
  for (std::size_t back = 0; back < counts.size(); ++back) {
    std::size_t const p = counts.size() - 1 - back;
    std::vector<std::size_t> first_mark(counts[p], most);
    std::set<std::size_t> cuts;
    for (std::size_t m = 0; m < marks.size(); ++m) {
      if (marks[m].parameter != p) {
        continue;
      }
      for (std::size_t e = marks[m].first; e < counts[p] && e - marks[m].first < marks[m].count; ++e) {
        first_mark[e] = std::min(first_mark[e], m);
        if (e == marks[m].first) {
          cuts.insert(e);
        }
        if (e - marks[m].first + 1 == marks[m].count) {
          cuts.insert(e + 1);
        }
      }
    }
    mark open{p, 0, 0};
    for (std::size_t e = 0; e < counts[p]; ++e) {
      if (e != 0 && cuts.count(e) != 0) {
        found.push_back({first_mark[open.first], open});
        open = {p, e, 0};
      }
      ++open.count;
    }
    found.push_back({counts[p] == 0 ? most : first_mark[open.first], open});
  }
  std::stable_sort(found.begin(), found.end(), [](keyed const& a, keyed const& b) { return a.rank < b.rank; });
  std::vector<mark> result;
  for (keyed const& k : found) {
    result.push_back(k.piece);
  }
  return result;
}

}  // namespace

TEST_CASE("order: without marks the pieces are the parameters backwards") {
  std::array<std::size_t, 3> const counts{5, 0, 7};
  CHECK(cut_and_order(counts, {}) == std::vector<mark>{{2, 0, 7}, {1, 0, 0}, {0, 0, 5}});
}

TEST_CASE("order: without parameters there are no pieces, whatever was marked") {
  std::array<mark, 1> const marks{{{0, 0, 4}}};
  CHECK(cut_and_order({}, marks).empty());
}

TEST_CASE("order: a tensor marked layer by layer is cut into its layers, in the order of the marks") {
  std::array<std::size_t, 2> const counts{12, 3};
  std::array<mark, 3> const marks{{{0, 8, 4}, {0, 4, 4}, {0, 0, 4}}};
  CHECK(cut_and_order(counts, marks) == std::vector<mark>{{0, 8, 4}, {0, 4, 4}, {0, 0, 4}, {1, 0, 3}});
}

TEST_CASE("order: overlapping marks cut each other, and the first one places what both cover") {
  std::array<std::size_t, 1> const counts{10};
  std::array<mark, 2> const marks{{{0, 4, 4}, {0, 2, 4}}};
  CHECK(cut_and_order(counts, marks) == std::vector<mark>{{0, 4, 2}, {0, 6, 2}, {0, 2, 2}, {0, 0, 2}, {0, 8, 2}});
}

TEST_CASE("order: repeated marks, marks outside and marks of nothing change nothing") {
  std::array<std::size_t, 2> const counts{10, 4};
  std::array<mark, 8> const marks{
      {{0, 5, most}, {0, 5, 5}, {7, 0, 3}, {most, 0, 1}, {0, 10, 3}, {0, most, most}, {0, 3, 0}, {1, 0, 4}}};
  CHECK(cut_and_order(counts, marks) == std::vector<mark>{{0, 5, 5}, {1, 0, 4}, {0, 0, 5}});
}

TEST_CASE("order: pieces agree with a search that looks at every element") {
  auto const seed = tests::seed();
  INFO("LOCKSTEP_TEST_SEED=", seed);
  tests::generator random{seed};
  for (int i = 0; i < 4000; ++i) {
    std::vector<std::size_t> counts(random.whole(0, 6));
    for (std::size_t& count : counts) {
      count = random.once_in(6) ? 0 : random.whole(1, 20);
    }
    std::vector<mark> marks(random.whole(0, 12));
    for (mark& m : marks) {
      m = {random.whole(0, 6), random.whole(0, 22), random.once_in(10) ? most : random.whole(0, 12)};
    }
    std::vector<mark> const pieces = cut_and_order(counts, marks);
    REQUIRE(pieces == reference(counts, marks));

    std::vector<std::vector<int>> covered;
    for (std::size_t const count : counts) {
      covered.emplace_back(count, 0);
    }
    for (mark const& piece : pieces) {
      REQUIRE((piece.count != 0 || counts[piece.parameter] == 0));
      for (std::size_t e = piece.first; e < piece.first + piece.count; ++e) {
        ++covered.at(piece.parameter).at(e);
      }
    }
    for (auto const& parameter : covered) {
      REQUIRE(std::all_of(parameter.begin(), parameter.end(), [](int times) { return times == 1; }));
    }
  }
}

TEST_CASE("order: forty thousand marks of one parameter, forwards and backwards, cut it once each") {
  constexpr std::size_t n = 20000;
  std::array<std::size_t, 1> const counts{2 * n};
  std::vector<mark> marks;
  for (std::size_t k = n; k-- > 0;) {
    marks.push_back({0, 2 * k, 2});
  }
  for (std::size_t k = 0; k < n; ++k) {
    marks.push_back({0, 0, 2 * k + 2});
  }
  std::vector<mark> const pieces = cut_and_order(counts, marks);
  REQUIRE(pieces.size() == n);
  CHECK(pieces.front() == mark{0, 2 * n - 2, 2});
  CHECK(pieces.back() == mark{0, 0, 2});
}
