// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace lockstep::plan {

/// Stands for no index and no offset.
inline constexpr std::size_t none = static_cast<std::size_t>(-1);

/// A part of one parameter whose gradient becomes ready at once.
struct piece {
  /// Index into the list of distinct parameters.
  std::size_t parameter = 0;
  /// The first element within the parameter, and how many.
  std::size_t first = 0;
  std::size_t count = 0;
  /// Pieces of different kinds (value type, gradient type) never share a bucket.
  std::uint32_t kind = 0;
  /// Bytes of one element of the gradient. At least 1; 0 is read as 1.
  std::uint32_t gradient_bytes = 4;
  /// The piece, by its index in the same list, whose gradient and value memory begin where this piece's end, on every rank.
  std::size_t next = none;
};

/// A maximal row of a bucket's pieces that are neighbours in memory: travels without a copy.
struct stretch {
  /// Indices of pieces, in address order.
  std::vector<std::size_t> pieces;
  /// Elements in all.
  std::size_t count = 0;
  /// Element offset in the bucket's staging span; `none` for a stretch that stays where it is.
  std::size_t staged_at = none;
};

/// Pieces that are reduced together.
struct bucket {
  std::uint32_t kind = 0;
  std::uint32_t gradient_bytes = 4;
  /// Indices of pieces, in order of readiness.
  std::vector<std::size_t> pieces;
  /// Every piece that has elements is in one of these. In order of readiness of the piece at the lowest address.
  std::vector<stretch> stretches;
  /// Elements in all.
  std::size_t count = 0;
  /// How many of them travel through the staging span, which they fill without holes.
  std::size_t staged_count = 0;
};

namespace buckets_detail {

[[nodiscard]] constexpr bool alike(piece const& a, piece const& b) noexcept {
  return a.kind == b.kind && a.gradient_bytes == b.gradient_bytes;
}

/// Bytes of one element of a piece or bucket.
template <class T>
[[nodiscard]] constexpr std::size_t element_bytes(T const& of) noexcept {
  return of.gradient_bytes == 0 ? 1 : of.gradient_bytes;
}

/// `next` of every piece, `none` where the link can't be true.
[[nodiscard]] inline std::vector<std::size_t> sound_links(std::span<piece const> pieces) {
  std::vector<std::size_t> next(pieces.size(), none);
  std::vector<std::size_t> claims(pieces.size(), 0);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    std::size_t const to = pieces[i].next;
    if (to < pieces.size() && pieces[i].count != 0 && pieces[to].count != 0 && alike(pieces[i], pieces[to])) {
      next[i] = to;
      ++claims[to];
    }
  }
  for (std::size_t& to : next) {
    if (to != none && claims[to] > 1) {
      to = none;
    }
  }
  // At most one link leads to each piece now: what can't be reached from a piece that none leads to lies on a cycle.
  std::vector<bool> reached(pieces.size(), false);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    for (std::size_t at = claims[i] == 1 ? none : i; at != none; at = next[at]) {
      reached[at] = true;
    }
  }
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (!reached[i]) {
      next[i] = none;
    }
  }
  return next;
}

/// Cuts the list into buckets, ordered by their last piece. Fills everything but the stretches.
[[nodiscard]] inline std::vector<bucket> fill(std::span<piece const> pieces, std::size_t bucket_bytes) {
  std::vector<bucket> buckets;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::size_t> open;  // kind and element size -> index of its open bucket
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    piece const& p = pieces[i];
    std::size_t const limit = bucket_bytes / element_bytes(p);
    auto const [position, first_of_kind] = open.try_emplace({p.kind, p.gradient_bytes}, buckets.size());
    if (!first_of_kind) {
      std::size_t const filled = buckets[position->second].count;
      if (filled > limit || p.count > limit - filled) {
        position->second = buckets.size();
      }
    }
    if (position->second == buckets.size()) {
      buckets.emplace_back();
      buckets.back().kind = p.kind;
      buckets.back().gradient_bytes = p.gradient_bytes;
    }
    bucket& target = buckets[position->second];
    target.pieces.push_back(i);
    target.count += p.count;
  }
  std::sort(buckets.begin(), buckets.end(), [](bucket const& a, bucket const& b) { return a.pieces.back() < b.pieces.back(); });
  return buckets;
}

/// Gives every stretch of fewer than `stage_below_bytes` bytes a place in the staging span, unless it would be there alone.
inline void stage(bucket& b, std::size_t stage_below_bytes) {
  auto const is_small = [&](stretch const& s) {
    return stage_below_bytes != 0 && s.count <= (stage_below_bytes - 1) / element_bytes(b);
  };
  if (std::count_if(b.stretches.begin(), b.stretches.end(), is_small) < 2) {
    return;
  }
  for (stretch& s : b.stretches) {
    if (is_small(s)) {
      s.staged_at = b.staged_count;
      b.staged_count += s.count;
    }
  }
}

}  // namespace buckets_detail

/// Cuts `pieces`, given in order of readiness, into buckets, given in launch order. The same list gives the same plan on every
/// rank.
///
/// One bucket of each kind is open at a time; it is closed before it would grow beyond `bucket_bytes` gradient bytes, and a
/// larger piece is a bucket by itself. Buckets are ordered by their last piece. Stretches of fewer than `stage_below_bytes`
/// bytes are staged, packed without holes; a single one stays in place, because moving it would save nothing. A piece without
/// elements is listed in its bucket and in no stretch: links from and to it are ignored, so link past it.
///
/// A link that can't be true is ignored, which costs a copy and never a wrong result: to an index outside the list, to a piece
/// of another kind, one of several links to the same piece (all of them), one of a cycle.
/// Complexity: O(n log n).
[[nodiscard]] inline std::vector<bucket> plan_buckets(std::span<piece const> pieces, std::size_t bucket_bytes,
                                                      std::size_t stage_below_bytes) {
  std::vector<bucket> buckets = buckets_detail::fill(pieces, bucket_bytes);
  std::vector<std::size_t> next = buckets_detail::sound_links(pieces);
  std::vector<std::size_t> bucket_of(pieces.size(), none);
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    for (std::size_t const i : buckets[b].pieces) {
      bucket_of[i] = b;
    }
  }
  std::vector<bool> follows(pieces.size(), false);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (next[i] != none && bucket_of[next[i]] != bucket_of[i]) {
      next[i] = none;
    }
    if (next[i] != none) {
      follows[next[i]] = true;
    }
  }
  for (bucket& b : buckets) {
    for (std::size_t const i : b.pieces) {
      if (pieces[i].count == 0 || follows[i]) {
        continue;
      }
      stretch& row = b.stretches.emplace_back();
      for (std::size_t at = i; at != none; at = next[at]) {
        row.pieces.push_back(at);
        row.count += pieces[at].count;
      }
    }
    buckets_detail::stage(b, stage_below_bytes);
  }
  return buckets;
}

}  // namespace lockstep::plan
