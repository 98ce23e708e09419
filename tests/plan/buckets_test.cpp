// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#include <lockstep/plan/buckets.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "../seed.hpp"

using lockstep::plan::bucket;
using lockstep::plan::none;
using lockstep::plan::piece;
using lockstep::plan::plan_buckets;
using lockstep::plan::stretch;

namespace {

using indices = std::vector<std::size_t>;

/// Pieces of `counts` f32 elements, all of one kind, no neighbours.
std::vector<piece> scattered(std::vector<std::size_t> const& counts) {
  std::vector<piece> pieces;
  for (std::size_t const count : counts) {
    pieces.push_back({.parameter = pieces.size(), .count = count});
  }
  return pieces;
}

std::vector<indices> members(std::vector<bucket> const& buckets) {
  std::vector<indices> result;
  for (bucket const& b : buckets) {
    result.push_back(b.pieces);
  }
  return result;
}

std::vector<indices> rows(bucket const& b) {
  std::vector<indices> result;
  for (stretch const& s : b.stretches) {
    result.push_back(s.pieces);
  }
  return result;
}

/// A piece, and where its gradient lies: in which block of memory, and at which element of it.
struct placed {
  std::size_t block;
  std::size_t offset;
};

struct model {
  std::vector<piece> pieces;
  std::vector<placed> places;  // of each piece
};

/// Blocks of memory, cut into pieces with a gap here and there; pieces in random order, linked where they touch.
model random_model(tests::generator& random) {
  struct cut {
    piece described;
    placed place;
  };
  std::vector<cut> cuts;
  std::size_t const blocks = random.whole(0, 5);
  for (std::size_t block = 0; block < blocks; ++block) {
    std::size_t offset = 0;
    auto kind = static_cast<std::uint32_t>(random.whole(0, 2));
    for (std::size_t left = random.whole(1, 9); left != 0; --left) {
      if (random.once_in(8)) {
        kind = static_cast<std::uint32_t>(random.whole(0, 2));  // a link across kinds, if no gap lies between
      }
      if (random.once_in(5)) {
        offset += random.whole(1, 9);
      }
      std::size_t const count = random.once_in(10) ? 0 : random.whole(1, random.once_in(4) ? 90 : 12);
      cuts.push_back(
          {{.parameter = cuts.size(), .count = count, .kind = kind, .gradient_bytes = kind == 1 ? 2u : 4u}, {block, offset}});
      offset += count;
    }
  }
  if (random.once_in(2)) {
    std::shuffle(cuts.begin(), cuts.end(), random.engine());
  } else {
    std::reverse(cuts.begin(), cuts.end());
  }
  model m;
  std::map<std::pair<std::size_t, std::size_t>, std::size_t> at;  // where a piece with elements begins
  for (cut const& c : cuts) {
    if (c.described.count != 0) {
      at[{c.place.block, c.place.offset}] = m.pieces.size();
    }
    m.pieces.push_back(c.described);
    m.places.push_back(c.place);
  }
  for (std::size_t i = 0; i < m.pieces.size(); ++i) {
    auto const found = at.find({m.places[i].block, m.places[i].offset + m.pieces[i].count});
    if (found != at.end()) {
      m.pieces[i].next = found->second;
    }
  }
  return m;
}

/// Which pieces share a bucket: one kind after the other, then sorted by last piece.
std::vector<indices> reference_members(std::vector<piece> const& pieces, std::size_t bucket_bytes) {
  std::set<std::pair<std::uint32_t, std::uint32_t>> kinds;
  for (piece const& p : pieces) {
    kinds.insert({p.kind, p.gradient_bytes});
  }
  std::map<std::size_t, indices> by_last;
  for (auto const& kind : kinds) {
    indices now;
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (std::pair{pieces[i].kind, pieces[i].gradient_bytes} != kind) {
        continue;
      }
      std::size_t const more = pieces[i].count * pieces[i].gradient_bytes;
      if (!now.empty() && bytes + more > bucket_bytes) {
        by_last[now.back()] = now;
        now.clear();
        bytes = 0;
      }
      now.push_back(i);
      bytes += more;
    }
    by_last[now.back()] = now;
  }
  std::vector<indices> result;
  for (auto const& entry : by_last) {
    result.push_back(entry.second);
  }
  return result;
}

/// The rows of touching pieces of one bucket, found by sorting addresses.
std::set<indices> reference_rows(model const& m, indices members_of_bucket) {
  std::erase_if(members_of_bucket, [&](std::size_t i) { return m.pieces[i].count == 0; });
  std::sort(members_of_bucket.begin(), members_of_bucket.end(), [&](std::size_t a, std::size_t b) {
    return std::pair{m.places[a].block, m.places[a].offset} < std::pair{m.places[b].block, m.places[b].offset};
  });
  std::set<indices> result;
  indices row;
  for (std::size_t const i : members_of_bucket) {
    if (!row.empty()) {
      std::size_t const last = row.back();
      if (m.places[last].block != m.places[i].block || m.places[last].offset + m.pieces[last].count != m.places[i].offset) {
        result.insert(row);
        row.clear();
      }
    }
    row.push_back(i);
  }
  if (!row.empty()) {
    result.insert(row);
  }
  return result;
}

/// What holds for every plan, however bad the links are.
void require_sound(std::vector<piece> const& pieces, std::vector<bucket> const& buckets, std::size_t stage_below_bytes) {
  std::vector<int> in_bucket(pieces.size(), 0);
  std::vector<int> in_stretch(pieces.size(), 0);
  for (bucket const& b : buckets) {
    std::size_t count = 0;
    for (std::size_t const i : b.pieces) {
      ++in_bucket.at(i);
      count += pieces[i].count;
      REQUIRE(pieces[i].kind == b.kind);
      REQUIRE(pieces[i].gradient_bytes == b.gradient_bytes);
    }
    REQUIRE(b.count == count);
    REQUIRE(std::is_sorted(b.pieces.begin(), b.pieces.end()));
    std::size_t last_head = 0;
    std::size_t candidates = 0;
    std::vector<int> staging(b.staged_count, 0);
    for (stretch const& s : b.stretches) {
      REQUIRE(!s.pieces.empty());
      REQUIRE(s.pieces.front() >= last_head);
      last_head = s.pieces.front();
      std::size_t elements = 0;
      for (std::size_t k = 0; k < s.pieces.size(); ++k) {
        ++in_stretch.at(s.pieces[k]);
        REQUIRE(std::binary_search(b.pieces.begin(), b.pieces.end(), s.pieces[k]));
        REQUIRE((k == 0 || pieces[s.pieces[k - 1]].next == s.pieces[k]));
        elements += pieces[s.pieces[k]].count;
      }
      REQUIRE(s.count == elements);
      candidates += s.count * b.gradient_bytes < stage_below_bytes ? 1 : 0;
      if (s.staged_at != none) {
        REQUIRE(s.count * b.gradient_bytes < stage_below_bytes);
        for (std::size_t e = 0; e < s.count; ++e) {
          ++staging.at(s.staged_at + e);
        }
      }
    }
    REQUIRE(std::all_of(staging.begin(), staging.end(), [](int times) { return times == 1; }));
    auto const staged =
        std::count_if(b.stretches.begin(), b.stretches.end(), [](auto const& s) { return s.staged_at != none; });
    REQUIRE(static_cast<std::size_t>(staged) == (candidates == 1 ? 0 : candidates));
  }
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    REQUIRE(in_bucket[i] == 1);
    REQUIRE(in_stretch[i] == (pieces[i].count == 0 ? 0 : 1));
  }
  REQUIRE(std::is_sorted(buckets.begin(), buckets.end(),
                         [](bucket const& a, bucket const& b) { return a.pieces.back() < b.pieces.back(); }));
}

}  // namespace

TEST_CASE("buckets: no pieces are no buckets") { CHECK(plan_buckets({}, 1024, 64).empty()); }

TEST_CASE("buckets: a bucket is closed before it would exceed its bytes, and may be filled exactly") {
  auto const buckets = plan_buckets(scattered({100, 156, 1, 255, 1}), 1024, 0);
  CHECK(members(buckets) == std::vector<indices>{{0, 1}, {2, 3}, {4}});
}

TEST_CASE("buckets: a larger piece is a bucket by itself") {
  CHECK(members(plan_buckets(scattered({1, 257, 0, 1}), 1024, 0)) == std::vector<indices>{{0}, {1}, {2, 3}});
  CHECK(members(plan_buckets(scattered({0, 257}), 1024, 0)) == std::vector<indices>{{0}, {1}});
}

TEST_CASE("buckets: element counts near the largest don't overflow") {
  constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
  CHECK(members(plan_buckets(scattered({most, most, 2, most - 1}), 1024, 64)) == std::vector<indices>{{0}, {1}, {2}, {3}});
  auto const one = plan_buckets(scattered({most / 4 - 2, 2}), most, most);
  REQUIRE(one.size() == 1);
  CHECK(one[0].staged_count == most / 4);
}

TEST_CASE("buckets: kinds fill side by side, and a bucket launches where its last piece is ready") {
  std::vector<piece> pieces = scattered({10, 10, 10, 10, 10});
  pieces[1].kind = pieces[4].kind = 7;
  CHECK(members(plan_buckets(pieces, 1024, 0)) == std::vector<indices>{{0, 2, 3}, {1, 4}});
  pieces[4].kind = 0;
  CHECK(members(plan_buckets(pieces, 1024, 0)) == std::vector<indices>{{1}, {0, 2, 3, 4}});
}

TEST_CASE("buckets: neighbours are one stretch in address order, whatever the order of readiness") {
  std::vector<piece> pieces = scattered({10, 20, 30, 40});
  pieces[3].next = 1;  // 3, 1, 0 lie one after another
  pieces[1].next = 0;
  auto const buckets = plan_buckets(pieces, 1024, 0);
  REQUIRE(buckets.size() == 1);
  CHECK(rows(buckets[0]) == std::vector<indices>{{2}, {3, 1, 0}});
  CHECK(buckets[0].stretches[1].count == 70);
  CHECK(buckets[0].staged_count == 0);
}

TEST_CASE("buckets: neighbours in another bucket end a stretch") {
  std::vector<piece> pieces = scattered({200, 200, 40});
  pieces[2].next = 1;
  pieces[1].next = 0;
  auto const buckets = plan_buckets(pieces, 1024, 0);
  REQUIRE(buckets.size() == 2);
  CHECK(rows(buckets[0]) == std::vector<indices>{{0}});
  CHECK(rows(buckets[1]) == std::vector<indices>{{2, 1}});
}

TEST_CASE("buckets: small stretches are staged side by side, large ones stay") {
  auto const buckets = plan_buckets(scattered({15, 16, 3}), 1024, 64);
  REQUIRE(buckets.size() == 1);
  CHECK(buckets[0].stretches[0].staged_at == 0);
  CHECK(buckets[0].stretches[1].staged_at == none);
  CHECK(buckets[0].stretches[2].staged_at == 15);
  CHECK(buckets[0].staged_count == 18);
}

TEST_CASE("buckets: a stretch that would be staged alone stays in place") {
  auto const buckets = plan_buckets(scattered({15, 16}), 1024, 64);
  REQUIRE(buckets.size() == 1);
  CHECK(buckets[0].stretches[0].staged_at == none);
  CHECK(buckets[0].staged_count == 0);
}

TEST_CASE("buckets: links that can't be true are ignored") {
  std::vector<piece> const clean = scattered({1, 2, 3, 4, 0});
  std::vector<indices> const apart{{0}, {1}, {2}, {3}};
  auto const planned = [&](auto const& change) {
    std::vector<piece> pieces = clean;
    change(pieces);
    std::vector<indices> all;
    for (bucket const& b : plan_buckets(pieces, 1024, 0)) {
      for (indices const& row : rows(b)) {
        all.push_back(row);
      }
    }
    std::sort(all.begin(), all.end());
    return all;
  };
  CHECK(planned([](auto& p) { p[0].next = 5; }) == apart);                                // outside the list
  CHECK(planned([](auto& p) { p[0].next = 0; }) == apart);                                // itself
  CHECK(planned([](auto& p) { p[0].next = p[1].next = 2; }) == apart);                    // two claims
  CHECK(planned([](auto& p) { p[0].next = 4, p[4].next = 1; }) == apart);                 // no elements
  CHECK(planned([](auto& p) { p[0].next = 1, p[1].next = 2, p[2].next = 0; }) == apart);  // a cycle
  CHECK(planned([](auto& p) { p[0].next = 1, p[1].kind = 3; }) == apart);                 // another kind
  CHECK(planned([](auto& p) { p[0].next = 1, p[1].gradient_bytes = 2; }) == apart);       // another element size
  CHECK(planned([](auto& p) { p[0].next = 1, p[1].next = 0, p[2].next = 3; }) == std::vector<indices>{{0}, {1}, {2, 3}});
  // A link across kinds takes no part, so it casts no doubt on another one.
  CHECK(planned([](auto& p) { p[0].next = p[1].next = 2, p[0].kind = 3; }) == std::vector<indices>{{0}, {1, 2}, {3}});
}

TEST_CASE("buckets: an element size of zero is read as one byte") {
  std::vector<piece> pieces = scattered({1000, 24, 1});
  for (piece& p : pieces) {
    p.gradient_bytes = 0;
  }
  CHECK(members(plan_buckets(pieces, 1024, 64)) == std::vector<indices>{{0, 1}, {2}});
}

TEST_CASE("buckets: plans of random models agree with a model that sorts addresses") {
  auto const seed = tests::seed();
  INFO("LOCKSTEP_TEST_SEED=", seed);
  tests::generator random{seed};
  for (int i = 0; i < 4000; ++i) {
    model const m = random_model(random);
    std::size_t const bucket_bytes = random.whole(0, 600);
    std::size_t const stage_below_bytes = random.whole(0, 120);
    auto const buckets = plan_buckets(m.pieces, bucket_bytes, stage_below_bytes);
    require_sound(m.pieces, buckets, stage_below_bytes);
    REQUIRE(members(buckets) == reference_members(m.pieces, bucket_bytes));
    for (bucket const& b : buckets) {
      REQUIRE((b.count * b.gradient_bytes <= bucket_bytes || b.pieces.size() == 1));
      std::vector<indices> const found = rows(b);
      REQUIRE(std::set<indices>(found.begin(), found.end()) == reference_rows(m, b.pieces));
    }
  }
}

TEST_CASE("buckets: random links, true or not, never break a plan") {
  auto const seed = tests::seed();
  INFO("LOCKSTEP_TEST_SEED=", seed);
  tests::generator random{seed};
  for (int i = 0; i < 4000; ++i) {
    std::vector<piece> pieces(random.whole(0, 14));
    std::size_t const kinds = random.whole(1, 3);
    for (piece& p : pieces) {
      p.count = random.whole(0, 9);
      p.kind = static_cast<std::uint32_t>(random.whole(1, kinds));
      p.gradient_bytes = random.once_in(6) ? 2 : 4;
      p.next = random.once_in(3) ? none : random.whole(0, pieces.size() + 1);
    }
    std::size_t const stage_below_bytes = random.whole(0, 60);
    require_sound(pieces, plan_buckets(pieces, random.whole(0, 200), stage_below_bytes), stage_below_bytes);
  }
}

TEST_CASE("buckets: a hundred thousand pieces of fifty thousand kinds have one long stretch") {
  std::vector<piece> pieces(100000);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    pieces[i].count = 10;
    pieces[i].kind = static_cast<std::uint32_t>(i % 2 == 0 ? 0 : i);  // many kinds, too
    pieces[i].next = i >= 2 ? i - 2 : none;
  }
  auto const buckets = plan_buckets(pieces, std::size_t{1} << 30, 64);
  REQUIRE(buckets.size() == 50001);
  std::size_t most = 0;
  for (bucket const& b : buckets) {
    most = std::max(most, b.stretches.size() == 1 ? b.stretches[0].pieces.size() : 0);
  }
  CHECK(most == 50000);
}
