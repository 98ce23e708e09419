// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <tuple>
#include <vector>

namespace lockstep::plan {

/// Elements [first, first + count) of one parameter, whose gradient was said to be ready.
struct mark {
  /// Index into the list of distinct parameters.
  std::size_t parameter = 0;
  std::size_t first = 0;
  std::size_t count = 0;

  friend bool operator==(mark const&, mark const&) = default;
};

/// What a rank updates: stretches of distinct parameters, and the bucket that each travels in.
struct owned_stretches {
  std::vector<mark> stretches;
  std::vector<std::size_t> buckets;
};

/// Cuts the parameters at every end of a mark, and puts the pieces into the order in which they became ready.
///
/// `counts` has the elements of each distinct parameter, `marks` what was marked, in the order recorded. Every element is in
/// exactly one piece; a parameter without elements has one piece without elements. A piece stands where the first mark that
/// covers it stands; pieces of the same mark are in address order. Pieces that no mark covers follow, the last parameter first
/// and in address order within one. So without marks the pieces are the parameters, backwards.
///
/// Marks may overlap and repeat. What lies outside a parameter is cut off; a mark of no elements, or of a parameter outside the
/// list, is ignored.
/// Complexity: O(n log n) for n parameters and marks together.
[[nodiscard]] inline std::vector<mark> cut_and_order(std::span<std::size_t const> counts, std::span<mark const> marks) {
  std::vector<mark> inside;
  for (mark m : marks) {
    if (m.parameter < counts.size() && m.first < counts[m.parameter] && m.count != 0) {
      std::size_t const left = counts[m.parameter] - m.first;
      m.count = m.count < left ? m.count : left;
      inside.push_back(m);
    }
  }

  auto const lies_before = [](mark const& a, mark const& b) {
    return std::tie(a.parameter, a.first) < std::tie(b.parameter, b.first);
  };
  std::vector<mark> pieces;  // in address order
  for (std::size_t p = 0; p < counts.size(); ++p) {
    pieces.push_back({p, 0, 0});
  }
  for (mark const& m : inside) {
    pieces.push_back({m.parameter, m.first, 0});
    if (m.first + m.count < counts[m.parameter]) {
      pieces.push_back({m.parameter, m.first + m.count, 0});
    }
  }
  std::sort(pieces.begin(), pieces.end(), lies_before);
  pieces.erase(std::unique(pieces.begin(), pieces.end()), pieces.end());
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    bool const last = i + 1 == pieces.size() || pieces[i + 1].parameter != pieces[i].parameter;
    pieces[i].count = (last ? counts[pieces[i].parameter] : pieces[i + 1].first) - pieces[i].first;
  }

  // skip[i] leads towards the first piece, from i on, that has no place yet.
  std::vector<std::size_t> skip(pieces.size() + 1);
  std::iota(skip.begin(), skip.end(), std::size_t{0});
  auto const unplaced_from = [&](std::size_t i) {
    while (skip[i] != i) {
      skip[i] = skip[skip[i]];
      i = skip[i];
    }
    return i;
  };
  std::vector<mark> ordered;
  ordered.reserve(pieces.size());
  auto const place = [&](std::size_t i) {
    ordered.push_back(pieces[i]);
    skip[i] = i + 1;
  };
  for (mark const& m : inside) {
    auto const index = [&](mark const& position) {
      return static_cast<std::size_t>(std::lower_bound(pieces.begin(), pieces.end(), position, lies_before) - pieces.begin());
    };
    std::size_t const end = index({m.parameter, m.first + m.count, 0});
    for (std::size_t i = unplaced_from(index(m)); i < end; i = unplaced_from(i)) {
      place(i);
    }
  }
  for (std::size_t end = pieces.size(); end != 0;) {
    std::size_t begin = end - 1;
    while (begin != 0 && pieces[begin - 1].parameter == pieces[end - 1].parameter) {
      --begin;
    }
    for (std::size_t i = begin; i < end; ++i) {
      if (skip[i] == i) {
        place(i);
      }
    }
    end = begin;
  }
  return ordered;
}

}  // namespace lockstep::plan
