// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <lockstep/data/sampler.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <vector>

namespace {

using lockstep::epoch_end;
using lockstep::epoch_order;
using lockstep::rank_id;
using lockstep::sampler;
using lockstep::sampler_options;

std::uint64_t test_seed() {
  char const* const given = std::getenv("LOCKSTEP_TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
}

// What the ranks take, put back into the order that they walk side by side.
std::vector<std::size_t> walk(std::size_t samples, int size, sampler_options const& options, std::uint64_t epoch) {
  std::vector<std::vector<std::size_t>> ranks;
  for (int rank = 0; rank < size; ++rank) {
    sampler const mine{samples, size, rank_id{rank}, options};
    ranks.push_back(mine.epoch(epoch));
    REQUIRE(ranks.back().size() == mine.count());
  }
  std::vector<std::size_t> all;
  for (std::size_t place = 0; place < ranks[0].size(); ++place) {
    for (auto const& rank : ranks) {
      if (place < rank.size()) {
        all.push_back(rank[place]);
      }
    }
  }
  return all;
}

}  // namespace

TEST_CASE("sampler: for random sizes the ranks together take one permutation, padded, uneven or cut") {
  std::uint64_t const seed = test_seed();
  INFO("LOCKSTEP_TEST_SEED=" << seed);
  std::mt19937_64 random{seed};
  for (int round = 0; round < 3000; ++round) {
    std::size_t const samples = random() % (round % 2 == 0 ? 12 : 120);
    int const size = 1 + static_cast<int>(random() % 20);
    sampler_options options{.seed = random()};
    options.end = std::array{epoch_end::pad, epoch_end::uneven, epoch_end::drop}[random() % 3];
    options.order = random() % 4 == 0 ? epoch_order::sequential : epoch_order::shuffled;
    std::uint64_t const epoch = random();
    CAPTURE(samples);
    CAPTURE(size);
    CAPTURE(static_cast<int>(options.end));

    auto const whole = walk(samples, 1, options, epoch);
    auto sorted = whole;
    std::sort(sorted.begin(), sorted.end());
    REQUIRE(sorted.size() == samples);
    for (std::size_t index = 0; index < samples; ++index) {
      REQUIRE(sorted[index] == index);
      if (options.order == epoch_order::sequential) {
        REQUIRE(whole[index] == index);
      }
    }

    auto const ranks = static_cast<std::size_t>(size);
    auto const together = walk(samples, size, options, epoch);
    std::size_t expected = samples;
    if (options.end == epoch_end::pad) {
      expected = (samples + ranks - 1) / ranks * ranks;
    } else if (options.end == epoch_end::drop) {
      expected = samples / ranks * ranks;
    }
    REQUIRE(together.size() == expected);
    for (std::size_t place = 0; place < expected; ++place) {
      REQUIRE(together[place] == whole[place % samples]);
    }
    for (int rank = 0; rank < size; ++rank) {
      std::size_t const count = sampler{samples, size, rank_id{rank}, options}.count();
      std::size_t const floor = samples / ranks;
      bool const one_more =
          samples % ranks != 0 && (options.end == epoch_end::pad ||
                                   (options.end == epoch_end::uneven && static_cast<std::size_t>(rank) < samples % ranks));
      REQUIRE(count == floor + (one_more ? 1 : 0));
    }
  }
}

TEST_CASE("sampler: fewer samples than ranks are repeated when padded and leave ranks without when uneven") {
  for (int rank = 0; rank < 5; ++rank) {
    sampler const padded{2, 5, rank_id{rank}, {.order = epoch_order::sequential, .end = epoch_end::pad}};
    CHECK(padded.epoch(0) == std::vector<std::size_t>{static_cast<std::size_t>(rank % 2)});
    sampler const uneven{2, 5, rank_id{rank}, {.order = epoch_order::sequential, .end = epoch_end::uneven}};
    CHECK(uneven.count() == (rank < 2 ? 1U : 0U));
    CHECK(sampler{2, 5, rank_id{rank}, {.end = epoch_end::drop}}.epoch(0).empty());
  }
}

TEST_CASE("sampler: no samples give empty epochs in every mode") {
  for (auto const end : {epoch_end::pad, epoch_end::uneven, epoch_end::drop}) {
    sampler const none{0, 3, rank_id{2}, {.end = end}};
    CHECK(none.count() == 0);
    CHECK(none.epoch(7).empty());
  }
}

TEST_CASE("sampler: the order is the same on every platform") {
  CHECK(sampler{10, 1, rank_id{0}, {.seed = 42}}.epoch(0) == std::vector<std::size_t>{8, 0, 2, 3, 9, 1, 5, 7, 4, 6});
  CHECK(sampler{10, 1, rank_id{0}, {.seed = 42}}.epoch(1) == std::vector<std::size_t>{3, 6, 1, 9, 7, 8, 2, 4, 0, 5});
}

TEST_CASE("sampler: another epoch or seed is another order, the same one the same") {
  std::vector<std::vector<std::size_t>> orders;
  for (std::uint64_t const seed : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 32U}) {
    for (std::uint64_t const epoch : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{2}, std::uint64_t{1} << 32U}) {
      sampler const one{50, 1, rank_id{0}, {.seed = seed}};
      orders.push_back(one.epoch(epoch));
      CHECK(one.epoch(epoch) == orders.back());
    }
  }
  std::sort(orders.begin(), orders.end());
  CHECK(std::adjacent_find(orders.begin(), orders.end()) == orders.end());
}

TEST_CASE("sampler: each of the orders of 3 samples is as likely as another") {
  std::array<int, 27> seen{};
  int const draws = 6000;
  sampler const three{3, 1, rank_id{0}, {.seed = 5}};
  for (int epoch = 0; epoch < draws; ++epoch) {
    auto const order = three.epoch(static_cast<std::uint64_t>(epoch));
    ++seen[9 * order[0] + 3 * order[1] + order[2]];
  }
  int orders = 0;
  for (int const count : seen) {
    if (count != 0) {
      ++orders;
      CHECK(count > 850);  // 1000 expected, standard deviation 29; the seed is fixed
      CHECK(count < 1150);
    }
  }
  CHECK(orders == 6);
}

TEST_CASE("sampler: a rank outside the world or a world of none is refused") {
  CHECK_THROWS_WITH_AS((sampler{5, 0}), doctest::Contains("rank 0 of 0"), lockstep::usage_error);
  CHECK_THROWS_AS((sampler{5, -1}), lockstep::usage_error);
  CHECK_THROWS_AS((sampler{5, 2, rank_id{2}}), lockstep::usage_error);
  CHECK_THROWS_AS((sampler{5, 2, rank_id{-1}}), lockstep::usage_error);
}
