// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#include <lockstep/plan/buckets.hpp>
#include <lockstep/plan/order.hpp>
#include <lockstep/plan/readiness.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "../seed.hpp"

using lockstep::plan::bucket;
using lockstep::plan::cut_and_order;
using lockstep::plan::mark;
using lockstep::plan::none;
using lockstep::plan::piece;
using lockstep::plan::plan_buckets;
using lockstep::plan::readiness;

namespace {

/// Everything that was said in a step; the answer is worked out afresh from all of it.
struct reference {
  std::vector<std::size_t> listing_parameter;
  std::vector<piece> pieces;
  std::vector<bucket> buckets;
  std::set<std::size_t> listings;
  std::vector<mark> ranges;

  bool parameter_is_ready(std::size_t parameter) const {
    bool listed = false;
    for (std::size_t i = 0; i < listing_parameter.size(); ++i) {
      if (listing_parameter[i] == parameter) {
        listed = true;
        if (listings.count(i) == 0) {
          return false;
        }
      }
    }
    return listed;
  }
  bool is_ready(piece const& p) const {
    if (p.count == 0 || parameter_is_ready(p.parameter)) {
      return true;
    }
    return std::any_of(ranges.begin(), ranges.end(), [&](mark const& m) {
      return m.parameter == p.parameter && m.first <= p.first && p.first + p.count - m.first <= m.count;
    });
  }
  std::size_t launchable() const {
    std::size_t n = 0;
    while (n < buckets.size() && std::all_of(buckets[n].pieces.begin(), buckets[n].pieces.end(),
                                             [&](std::size_t i) { return is_ready(pieces[i]); })) {
      ++n;
    }
    return n;
  }
};

/// Whole parameters of `count` elements each, a bucket each.
std::vector<piece> whole_parameters(std::vector<std::size_t> const& counts) {
  std::vector<piece> pieces;
  for (std::size_t const count : counts) {
    pieces.push_back({.parameter = pieces.size(), .count = count});
  }
  return pieces;
}

}  // namespace

static_assert(noexcept(std::declval<readiness&>().reset()));
static_assert(noexcept(std::declval<readiness&>().mark(0)));
static_assert(noexcept(std::declval<readiness&>().mark_range(0, 0, 0)));
static_assert(noexcept(std::declval<readiness const&>().launchable()));

TEST_CASE("readiness: of no plan, nothing may launch and marks are ignored") {
  readiness ready;
  ready.mark(0);
  ready.mark_range(0, 0, 10);
  ready.reset();
  CHECK(ready.launchable() == 0);
}

TEST_CASE("readiness: a complete bucket waits for the ones before it") {
  auto const pieces = whole_parameters({4, 4, 4});
  std::array<std::size_t, 3> const listings{0, 1, 2};
  readiness ready{listings, pieces, plan_buckets(pieces, 16, 0)};
  ready.mark(1);
  CHECK(ready.launchable() == 0);
  ready.mark(0);
  CHECK(ready.launchable() == 2);
  ready.mark(2);
  CHECK(ready.launchable() == 3);
  ready.reset();
  CHECK(ready.launchable() == 0);
}

TEST_CASE("readiness: a listing marked twice counts once") {
  auto const pieces = whole_parameters({4, 4});
  std::array<std::size_t, 2> const listings{0, 1};
  readiness ready{listings, pieces, plan_buckets(pieces, 32, 0)};  // one bucket
  ready.mark(0);
  ready.mark(0);
  ready.mark_range(0, 0, 4);
  CHECK(ready.launchable() == 0);
  ready.mark(1);
  CHECK(ready.launchable() == 1);
}

TEST_CASE("readiness: a tied parameter waits for each of its listings") {
  auto const pieces = whole_parameters({4});
  std::array<std::size_t, 3> const listings{0, none, 0};
  readiness ready{listings, pieces, plan_buckets(pieces, 32, 0)};
  ready.mark(0);
  ready.mark(0);
  ready.mark(1);  // has no gradient
  ready.mark(3);  // outside the list
  CHECK(ready.launchable() == 0);
  ready.mark(2);
  CHECK(ready.launchable() == 1);
}

TEST_CASE("readiness: by memory, pieces wholly inside are ready at once") {
  std::array<std::size_t, 1> const counts{12};
  std::array<mark, 3> const marks{{{0, 8, 4}, {0, 4, 4}, {0, 0, 4}}};
  std::vector<piece> pieces;
  for (mark const& m : cut_and_order(counts, marks)) {
    pieces.push_back({.parameter = m.parameter, .first = m.first, .count = m.count});
  }
  std::array<std::size_t, 2> const listings{0, 0};
  readiness ready{listings, pieces, plan_buckets(pieces, 16, 0)};  // a bucket each
  ready.mark_range(0, 7, 4);                                       // one element short at its end
  ready.mark_range(0, 9, 3);                                       // and at its beginning
  CHECK(ready.launchable() == 0);
  ready.mark_range(0, 5, 7);
  CHECK(ready.launchable() == 1);
  ready.mark_range(0, 0, std::numeric_limits<std::size_t>::max());
  CHECK(ready.launchable() == 3);
}

TEST_CASE("readiness: what has no elements is complete from the start, in every step") {
  auto const pieces = whole_parameters({0, 5, 0});
  std::array<std::size_t, 3> const listings{0, 1, 2};
  readiness ready{listings, pieces, plan_buckets(pieces, 16, 0)};
  for (int step = 0; step < 2; ++step) {
    CHECK(ready.launchable() == 1);
    ready.mark(0);
    CHECK(ready.launchable() == 1);
    ready.mark(1);
    CHECK(ready.launchable() == 3);
    ready.reset();
  }
}

TEST_CASE("readiness: a bucket that names a piece outside the list is refused") {
  auto const pieces = whole_parameters({4});
  std::vector<bucket> buckets = plan_buckets(pieces, 16, 0);
  buckets[0].pieces.push_back(1);
  CHECK_THROWS_AS((readiness{{}, pieces, buckets}), std::out_of_range);
}

TEST_CASE("readiness: random marks over random plans agree with a model that remembers all marks") {
  auto const seed = tests::seed();
  INFO("LOCKSTEP_TEST_SEED=", seed);
  tests::generator random{seed};
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::size_t> counts(random.whole(0, 6));
    for (std::size_t& count : counts) {
      count = random.once_in(6) ? 0 : random.whole(1, 20);
    }
    std::vector<mark> recorded(random.whole(0, 8));
    for (mark& m : recorded) {
      m = {random.whole(0, 6), random.whole(0, 20), random.whole(0, 12)};
    }
    reference model;
    for (mark const& m : cut_and_order(counts, recorded)) {
      model.pieces.push_back(
          {.parameter = m.parameter, .first = m.first, .count = m.count, .kind = static_cast<std::uint32_t>(m.parameter % 2)});
    }
    for (std::size_t p = 0; p < counts.size(); ++p) {
      for (std::size_t listings = random.once_in(8) ? 0 : random.whole(1, 2); listings != 0; --listings) {
        model.listing_parameter.push_back(p);
      }
      if (random.once_in(8)) {
        model.listing_parameter.push_back(none);
      }
    }
    std::shuffle(model.listing_parameter.begin(), model.listing_parameter.end(), random.engine());
    model.buckets = plan_buckets(model.pieces, random.whole(0, 120), 0);

    readiness ready{model.listing_parameter, model.pieces, model.buckets};
    for (int step = 0; step < 2; ++step) {
      REQUIRE(ready.launchable() == model.launchable());
      for (std::size_t calls = random.whole(0, 25); calls != 0; --calls) {
        if (random.once_in(2)) {
          std::size_t const listing = random.whole(0, model.listing_parameter.size());
          ready.mark(listing);
          model.listings.insert(listing);
        } else {
          mark m{random.whole(0, 6), random.whole(0, 12), random.once_in(8) ? none : random.whole(0, 20)};
          if (!model.pieces.empty() && random.once_in(2)) {  // exactly one piece
            piece const& p = model.pieces[random.whole(0, model.pieces.size() - 1)];
            m = {p.parameter, p.first, p.count};
          }
          ready.mark_range(m.parameter, m.first, m.count);
          model.ranges.push_back(m);
        }
        REQUIRE(ready.launchable() == model.launchable());
      }
      ready.reset();
      model.listings.clear();
      model.ranges.clear();
    }
  }
}
