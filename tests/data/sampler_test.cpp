// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <lockstep/data/sampler.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <set>
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
    REQUIRE(mine.order(epoch).size() == mine.order_size());
    REQUIRE(mine.order(epoch) == sampler{samples, 1, rank_id{0}, options}.epoch(epoch));
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

using weights = std::vector<double>;

// Draws by weight with a scan of all samples: no tree, and whole numbers as weights.
std::vector<std::size_t> drawn_by_scan(weights const& of, std::size_t draws, bool replaced, std::uint64_t seed,
                                       std::uint64_t epoch) {
  std::seed_seq words{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32U),
                      static_cast<std::uint32_t>(epoch), static_cast<std::uint32_t>(epoch >> 32U)};
  std::mt19937_64 engine{words};
  auto const largest = static_cast<std::uint64_t>(*std::max_element(of.begin(), of.end()));
  int const shift = 63 - static_cast<int>(std::bit_width(of.size())) - static_cast<int>(std::bit_width(largest));
  std::vector<std::uint64_t> lengths;
  for (double const weight : of) {
    lengths.push_back(static_cast<std::uint64_t>(weight) << shift);
  }
  std::vector<std::size_t> drawn;
  while (drawn.size() < draws) {
    std::uint64_t const total = std::accumulate(lengths.begin(), lengths.end(), std::uint64_t{0});
    std::uint64_t point = total;
    while (point >= total) {
      point = engine() & (std::bit_ceil(total) - 1);
    }
    std::size_t sample = 0;
    while (point >= lengths[sample]) {
      point -= lengths[sample++];
    }
    drawn.push_back(sample);
    lengths[sample] = replaced ? lengths[sample] : 0;
  }
  return drawn;
}

weights random_weights(std::mt19937_64& random, std::size_t samples) {
  weights made(samples);
  for (double& weight : made) {
    weight = static_cast<double>(random() % 3 == 0 ? 0 : random() % 100);
  }
  if (samples != 0) {
    made[random() % samples] = 7;
  }
  return made;
}

std::size_t positive(weights const& of) {
  return static_cast<std::size_t>(std::count_if(of.begin(), of.end(), [](double weight) { return weight > 0; }));
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

TEST_CASE("sampler: an epoch that begins at any sample goes on as the whole one does") {
  std::uint64_t const seed = test_seed();
  INFO("LOCKSTEP_TEST_SEED=" << seed);
  std::mt19937_64 random{seed};
  for (int round = 0; round < 300; ++round) {
    std::size_t const samples = random() % 30;
    weights const weighed = random_weights(random, samples);
    int const size = 1 + static_cast<int>(random() % 9);
    sampler_options options{.seed = random()};
    options.end = std::array{epoch_end::pad, epoch_end::uneven, epoch_end::drop}[random() % 3];
    options.order = std::array{epoch_order::shuffled, epoch_order::sequential, epoch_order::weighted,
                               epoch_order::weighted_without_replacement}[random() % 4];
    if (options.order == epoch_order::weighted || options.order == epoch_order::weighted_without_replacement) {
      options.weights = weighed;
    }
    for (int rank = 0; rank < size; ++rank) {
      sampler const mine{samples, size, rank_id{rank}, options};
      auto const whole = mine.epoch(5);
      for (std::size_t first = 0; first <= whole.size(); ++first) {
        auto const rest = mine.epoch(5, first);
        REQUIRE(rest.size() == whole.size() - first);
        REQUIRE(std::equal(rest.begin(), rest.end(), whole.begin() + static_cast<std::ptrdiff_t>(first)));
      }
      REQUIRE_THROWS_AS(static_cast<void>(mine.epoch(5, whole.size() + 1)), lockstep::usage_error);
    }
  }
  CHECK_THROWS_WITH_AS((static_cast<void>(sampler{5, 2, rank_id{1}}.epoch(0, 4))),
                       "lockstep: sample 4 of an epoch in which this rank takes 3", lockstep::usage_error);
}

TEST_CASE("sampler: weighted draws are those of a plain scan, and the ranks walk one order of them") {
  std::uint64_t const seed = test_seed();
  INFO("LOCKSTEP_TEST_SEED=" << seed);
  std::mt19937_64 random{seed};
  for (int round = 0; round < 1000; ++round) {
    std::size_t const samples = 1 + random() % (round % 2 == 0 ? 6 : 70);
    weights const weighed = random_weights(random, samples);
    bool const replaced = random() % 2 == 0;
    std::size_t const most = replaced ? 2 * samples : positive(weighed);
    std::size_t const draws = random() % (most + 1);
    std::uint64_t const epoch = random();
    sampler_options options{.seed = random(), .weights = weighed, .draws = draws};
    options.order = replaced ? epoch_order::weighted : epoch_order::weighted_without_replacement;
    auto const expected = drawn_by_scan(weighed, draws, replaced, options.seed, epoch);
    REQUIRE((sampler{samples, 1, rank_id{0}, options}.order(epoch)) == expected);

    int const size = 1 + static_cast<int>(random() % 9);
    auto const ranks = static_cast<std::size_t>(size);
    options.end = std::array{epoch_end::pad, epoch_end::uneven, epoch_end::drop}[random() % 3];
    std::size_t const padded = (draws + ranks - 1) / ranks * ranks;
    std::size_t const taken = options.end == epoch_end::pad      ? padded
                              : options.end == epoch_end::uneven ? draws
                                                                 : draws / ranks * ranks;
    auto const together = walk(samples, size, options, epoch);
    REQUIRE(together.size() == taken);
    for (std::size_t place = 0; place < taken; ++place) {
      REQUIRE(together[place] == expected[place % draws]);
    }

    options.draws = std::nullopt;
    REQUIRE((sampler{samples, 1, rank_id{0}, options}.count()) == (replaced ? samples : positive(weighed)));
    auto const all = walk(samples, 1, options, epoch);
    std::size_t const both = std::min(draws, all.size());  // more draws begin as fewer do
    REQUIRE(std::equal(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(both), expected.begin()));
    if (!replaced) {
      REQUIRE(std::set<std::size_t>(all.begin(), all.end()).size() == positive(weighed));
    }
  }
}

TEST_CASE("sampler: the weighted orders of one seed are these on every platform") {
  weights const weighed{0.1, 1.0 / 3, 0, 2.5, 1e-3, 0.7};
  sampler_options options{.seed = 2026, .order = epoch_order::weighted, .weights = weighed, .draws = 12};
  CHECK((sampler{6, 1, rank_id{0}, options}.epoch(4)) == std::vector<std::size_t>{3, 3, 1, 1, 3, 5, 3, 3, 1, 3, 3, 3});
  options.order = epoch_order::weighted_without_replacement;
  options.draws = std::nullopt;
  CHECK((sampler{6, 1, rank_id{0}, options}.epoch(4)) == std::vector<std::size_t>{3, 5, 1, 0, 4});
}

TEST_CASE("sampler: with replacement, samples come as often as their weights say") {
  weights const weighed{0.1, 3, 0, 1.0 / 3, 2, 0.05, 0, 1, 1, 0.7};
  double const total = std::accumulate(weighed.begin(), weighed.end(), 0.0);
  std::size_t const draws = 200000;
  sampler const drawn{10, 1, rank_id{0}, {.seed = 3, .order = epoch_order::weighted, .weights = weighed, .draws = draws}};
  std::array<double, 10> seen{};
  for (std::size_t const sample : drawn.epoch(0)) {
    ++seen[sample];
  }
  double squares = 0;
  for (std::size_t sample = 0; sample < 10; ++sample) {
    double const expected = static_cast<double>(draws) * weighed[sample] / total;
    if (expected == 0) {
      CHECK(seen[sample] == 0);
    } else {
      squares += (seen[sample] - expected) * (seen[sample] - expected) / expected;
    }
  }
  CHECK(squares < 24.32);  // chi-square, 7 degrees of freedom: one seed of a thousand is above, and this one is fixed
}

TEST_CASE("sampler: without replacement, pairs come as often as draws among those left say") {
  weights const weighed{5, 1, 0, 2.5, 0.5};
  double const total = 9;
  int const epochs = 40000;
  sampler const drawn{
      5, 1, rank_id{0}, {.seed = 8, .order = epoch_order::weighted_without_replacement, .weights = weighed, .draws = 2}};
  std::array<std::array<double, 5>, 5> seen{};
  for (int epoch = 0; epoch < epochs; ++epoch) {
    auto const pair = drawn.epoch(static_cast<std::uint64_t>(epoch));
    ++seen[pair[0]][pair[1]];
  }
  double squares = 0;
  for (std::size_t first = 0; first < 5; ++first) {
    for (std::size_t second = 0; second < 5; ++second) {
      double const expected =
          first == second ? 0 : epochs * weighed[first] / total * weighed[second] / (total - weighed[first]);
      if (expected == 0) {
        CHECK(seen[first][second] == 0);
      } else {
        squares += (seen[first][second] - expected) * (seen[first][second] - expected) / expected;
      }
    }
  }
  CHECK(squares < 31.26);  // chi-square, 11 degrees of freedom: one seed of a thousand is above, and this one is fixed
}

TEST_CASE("sampler: what has no weight is never drawn, and the least weight is drawn in the end") {
  for (std::size_t samples = 1; samples < 40; ++samples) {
    for (std::size_t only = 0; only < samples; ++only) {
      weights weighed(samples, 0.0);
      weighed[only] = 1e-300;
      sampler_options options{.seed = only, .order = epoch_order::weighted, .weights = weighed};
      REQUIRE((sampler{samples, 1, rank_id{0}, options}.epoch(1)) == std::vector<std::size_t>(samples, only));
      options.order = epoch_order::weighted_without_replacement;
      REQUIRE((sampler{samples, 1, rank_id{0}, options}.epoch(1)) == std::vector<std::size_t>{only});
    }
  }
  weights const apart{std::numeric_limits<double>::denorm_min(), -0.0, std::numeric_limits<double>::max()};
  sampler_options options{.order = epoch_order::weighted_without_replacement, .weights = apart};
  CHECK((sampler{3, 1, rank_id{0}, options}.epoch(0)) == std::vector<std::size_t>{2, 0});
  // Against 1e200 all that is left has the least length there is: the draws come down to single points.
  weights const dust{0, 1e-200, 0, 1e-200, 1e200, 0, 0, 1e-200, 1e-200, 0};
  options.weights = dust;
  for (std::uint64_t epoch = 0; epoch < 200; ++epoch) {
    auto drawn = sampler{10, 1, rank_id{0}, options}.epoch(epoch);
    REQUIRE(drawn[0] == 4);
    std::sort(drawn.begin(), drawn.end());
    REQUIRE(drawn == std::vector<std::size_t>{1, 3, 4, 7, 8});
  }
}

TEST_CASE("sampler: weights in another unit give the same draws") {
  std::mt19937_64 random{4};
  weights weighed;
  for (int sample = 0; sample < 50; ++sample) {
    weighed.push_back(static_cast<double>(random() >> 11U) / 7);
  }
  for (auto const order : {epoch_order::weighted, epoch_order::weighted_without_replacement}) {
    auto const expected = sampler{50, 1, rank_id{0}, {.order = order, .weights = weighed}}.epoch(2);
    for (int const exponent : {-900, -1, 1, 900}) {
      weights scaled = weighed;
      for (double& weight : scaled) {
        weight = std::ldexp(weight, exponent);
      }
      CHECK((sampler{50, 1, rank_id{0}, {.order = order, .weights = scaled}}.epoch(2)) == expected);
    }
  }
}

TEST_CASE("sampler: weights that can't be drawn from are refused") {
  auto const with = [](weights const& given, std::optional<std::size_t> draws = {}, epoch_order order = epoch_order::weighted) {
    static_cast<void>(sampler{3, 1, rank_id{0}, {.order = order, .weights = given, .draws = draws}});
  };
  auto const once = epoch_order::weighted_without_replacement;
  double const infinite = std::numeric_limits<double>::infinity();
  CHECK_THROWS_WITH_AS(with({1, 2}), "lockstep: 2 weights for 3 samples: a weighted order takes one a sample",
                       lockstep::usage_error);
  CHECK_THROWS_WITH_AS(with({}), doctest::Contains("0 weights for 3 samples"), lockstep::usage_error);
  CHECK_THROWS_WITH_AS(with({1, -0.5, 2}), "lockstep: weight 1 is -0.500000: a sample's weight is 0 or more, and finite",
                       lockstep::usage_error);
  CHECK_THROWS_WITH_AS(with({1, 2, infinite}), doctest::Contains("weight 2 is inf"), lockstep::usage_error);
  CHECK_THROWS_WITH_AS(with({1, 2, -infinite}), doctest::Contains("weight 2 is -inf"), lockstep::usage_error);
  CHECK_THROWS_WITH_AS(with({std::numeric_limits<double>::quiet_NaN(), 2, 1}), doctest::Contains("weight 0 is nan"),
                       lockstep::usage_error);
  CHECK_THROWS_WITH_AS(with({0, 0, 0}), doctest::Contains("all weights are 0"), lockstep::usage_error);
  CHECK_THROWS_WITH_AS(with({0, 0, 0}, 0), doctest::Contains("all weights are 0"), lockstep::usage_error);
  CHECK_THROWS_WITH_AS(with({0, 1, 2}, 3, once), "lockstep: 3 draws without replacement from 2 samples of positive weight",
                       lockstep::usage_error);
  CHECK_NOTHROW(with({0, 1, 2}, 2, once));
  CHECK_THROWS_WITH_AS(with({1, 1, 1}, {}, epoch_order::shuffled), doctest::Contains("for the weighted orders"),
                       lockstep::usage_error);
  CHECK_THROWS_WITH_AS(with({}, 2, epoch_order::sequential), doctest::Contains("for the weighted orders"),
                       lockstep::usage_error);
  CHECK((sampler{0, 2, rank_id{1}, {.order = epoch_order::weighted}}.epoch(0).empty()));
  CHECK((sampler{0, 2, rank_id{1}, {.order = once}}.epoch(0).empty()));
  CHECK_THROWS_WITH_AS((sampler{0, 1, rank_id{0}, {.order = epoch_order::weighted, .draws = 1}}),
                       "lockstep: 1 draws from 0 samples of positive weight", lockstep::usage_error);
}
