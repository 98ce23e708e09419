// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <lockstep/concepts.hpp>
#include <lockstep/data/loader.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <numeric>
#include <random>
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using lockstep::column;
using lockstep::epoch_end;
using lockstep::epoch_order;
using lockstep::last_batch;
using lockstep::loader;
using lockstep::loader_options;
using lockstep::rank_id;
using lockstep::table;

std::uint64_t test_seed() {
  char const* const given = std::getenv("LOCKSTEP_TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
}

// Row r is {r, r + 0.5} with label r.
table<float, int> numbered(std::size_t rows) {
  column<float> values{{}, 2};
  column<int> labels{std::vector<int>(rows)};
  std::iota(labels.values.begin(), labels.values.end(), 0);
  for (int const label : labels.values) {
    values.values.push_back(static_cast<float>(label));
    values.values.push_back(static_cast<float>(label) + 0.5F);
  }
  return table{std::move(values), std::move(labels)};
}

// The labels of every batch; checks that the columns stay together.
std::vector<std::vector<int>> run_through(loader<table<float, int>> const& batches, std::uint64_t epoch) {
  std::vector<std::vector<int>> seen;
  for (auto const& batch : batches.epoch(epoch)) {
    auto const& [values, labels] = batch;
    seen.emplace_back(labels.data(), labels.data() + labels.count());
    REQUIRE(values.count() == labels.count());
    for (std::size_t sample = 0; sample < labels.count(); ++sample) {
      REQUIRE(values[sample][1] == static_cast<float>(labels[sample][0]) + 0.5F);
    }
  }
  return seen;
}

// A data set whose gather counts its calls and fails at one of them.
struct failing_set {
  using storage = std::vector<std::size_t>;
  using batch = lockstep::sample_view<std::size_t const>;

  std::size_t fails_at;
  mutable std::atomic<std::size_t> calls{0};

  std::size_t rows() const { return 10; }
  batch gather(std::span<std::size_t const> rows, storage& into) const {
    if (calls++ == fails_at) {
      throw std::runtime_error("disk on fire");
    }
    into.assign(rows.begin(), rows.end());
    return {into.data(), into.size(), 1};
  }
};

}  // namespace

static_assert(lockstep::batch<loader<table<float, int>>::batch>);
static_assert(std::input_iterator<lockstep::loader_epoch<table<float>>::iterator>);
static_assert(!std::is_constructible_v<loader<table<float>>, table<float>, loader_options>);
static_assert(std::is_constructible_v<loader<table<float>>, table<float>&, loader_options>);

TEST_CASE("loader: an epoch yields every sample once, in batches of the size asked for") {
  auto const data = numbered(10);
  loader const batches{data, {.batch = 4, .seed = 1, .prefetch = 2}};
  CHECK(batches.batches() == 3);
  auto const seen = run_through(batches, 0);
  REQUIRE(seen.size() == 3);
  CHECK(seen[0].size() == 4);
  CHECK(seen[2].size() == 2);
  std::vector<int> all;
  for (auto const& batch : seen) {
    all.insert(all.end(), batch.begin(), batch.end());
  }
  CHECK_FALSE(std::is_sorted(all.begin(), all.end()));
  std::sort(all.begin(), all.end());
  for (int sample = 0; sample < 10; ++sample) {
    CHECK(all[static_cast<std::size_t>(sample)] == sample);
  }
  CHECK(run_through(batches, 1) != seen);
  CHECK(run_through(batches, 0) == seen);
}

TEST_CASE("loader: random settings give the sampler's order on every process, whatever the prefetch") {
  std::uint64_t const seed = test_seed();
  INFO("LOCKSTEP_TEST_SEED=" << seed);
  std::mt19937_64 random{seed};
  for (int round = 0; round < 400; ++round) {
    std::size_t const rows = random() % 40;
    auto const data = numbered(rows);
    loader_options options{.batch = 1 + random() % 9, .seed = random()};
    options.order = random() % 3 == 0 ? epoch_order::sequential : epoch_order::shuffled;
    options.end = std::array{epoch_end::pad, epoch_end::uneven, epoch_end::drop}[random() % 3];
    options.last = random() % 2 == 0 ? last_batch::keep : last_batch::drop;
    options.size = 1 + static_cast<int>(random() % 4);
    std::uint64_t const epoch = random();
    std::size_t const batches = loader{data, options}.batches();
    std::size_t most = 0;
    std::size_t least = SIZE_MAX;
    for (int rank = 0; rank < options.size; ++rank) {
      options.rank = rank_id{rank};
      lockstep::sampler const expected{
          rows, options.size, options.rank, {.seed = options.seed, .order = options.order, .end = options.end}};
      most = std::max(most, expected.count());
      least = std::min(least, expected.count());
      options.prefetch = 0;
      auto const seen = run_through(loader{data, options}, epoch);
      options.prefetch = 1 + random() % 5;
      REQUIRE(run_through(loader{data, options}, epoch) == seen);
      REQUIRE(seen.size() == batches);
      std::vector<int> all;
      for (auto const& batch : seen) {
        all.insert(all.end(), batch.begin(), batch.end());
        if (options.last == last_batch::drop) {
          REQUIRE(batch.size() == options.batch);
        }
      }
      auto const order = expected.epoch(epoch);
      REQUIRE(all.size() == (options.last == last_batch::drop ? batches * options.batch : order.size()));
      REQUIRE(std::equal(all.begin(), all.end(), order.begin(),
                         [](int label, std::size_t row) { return label == static_cast<int>(row); }));
    }
    REQUIRE(batches == (options.last == last_batch::drop ? least / options.batch : (most + options.batch - 1) / options.batch));
  }
}

TEST_CASE("loader: processes that run out of samples first yield an empty last batch") {
  auto const data = numbered(5);
  for (int rank = 0; rank < 2; ++rank) {
    loader const batches{data, {.batch = 1, .end = epoch_end::uneven, .rank = rank_id{rank}, .size = 2}};
    auto const seen = run_through(batches, 3);
    REQUIRE(seen.size() == 3);
    CHECK(seen[2].size() == (rank == 0 ? 1U : 0U));
  }
}

TEST_CASE("loader: no samples are no batches") {
  auto const data = numbered(0);
  CHECK((loader{data, {.batch = 3}}).batches() == 0);
  CHECK(run_through(loader{data, {.batch = 3}}, 0).empty());
}

TEST_CASE("loader: a batch stays as it is until the next is asked for, while the thread gathers ahead") {
  auto const data = numbered(64);
  loader const batches{data, {.batch = 8, .order = epoch_order::sequential, .prefetch = 3}};
  int first = 0;
  for (auto const& batch : batches.epoch(0)) {
    for (int again = 0; again < 20; ++again) {
      std::this_thread::yield();
      for (std::size_t sample = 0; sample < 8; ++sample) {
        REQUIRE(std::get<1>(batch)[sample][0] == first + static_cast<int>(sample));
      }
    }
    first += 8;
  }
  CHECK(first == 64);
}

TEST_CASE("loader: gathers as far ahead as it was told and no further") {
  failing_set const data{.fails_at = 99};
  for (std::size_t const prefetch : {std::size_t{0}, std::size_t{1}, std::size_t{3}}) {
    data.calls = 0;
    loader const batches{data, {.batch = 1, .prefetch = prefetch}};
    std::size_t position = 0;
    for ([[maybe_unused]] auto const& batch : batches.epoch(0)) {
      ++position;
      std::size_t const ahead = std::min<std::size_t>(position + prefetch, 10);
      while (data.calls < ahead) {  // it does get there
        std::this_thread::yield();
      }
      REQUIRE(data.calls == ahead);
    }
    CHECK(position == 10);
  }
}

TEST_CASE("loader: leaving a loop early, by break or exception, or never starting it, ends the thread") {
  auto const data = numbered(1000);
  loader const batches{data, {.batch = 3, .prefetch = 4}};
  for (std::uint64_t round = 0; round < 50; ++round) {
    std::uint64_t count = 0;
    for ([[maybe_unused]] auto const& batch : batches.epoch(round)) {
      if (count++ == round) {
        break;
      }
    }
    auto const unread = batches.epoch(round);
  }
  CHECK_THROWS_AS(
      [&] {
        for ([[maybe_unused]] auto const& batch : batches.epoch(0)) {
          throw std::runtime_error("from the loop");
        }
      }(),
      std::runtime_error);
}

TEST_CASE("loader: several epochs of one loader may run at once") {
  auto const data = numbered(100);
  loader const batches{data, {.batch = 7, .seed = 3}};
  auto const expected = run_through(batches, 0);
  std::vector<std::vector<std::vector<int>>> seen(3);
  std::vector<std::thread> readers;
  for (auto& mine : seen) {
    readers.emplace_back([&] { mine = run_through(batches, 0); });
  }
  for (auto& reader : readers) {
    reader.join();
  }
  for (auto const& mine : seen) {
    CHECK(mine == expected);
  }
  auto one = batches.epoch(0);
  auto two = batches.epoch(0);
  auto b = two.begin();
  for (auto a = one.begin(); a != one.end(); ++a, ++b) {
    REQUIRE(b != two.end());
    REQUIRE(std::get<1>(*a)[0][0] == std::get<1>(*b)[0][0]);
    REQUIRE(std::get<1>(*a).data() != std::get<1>(*b).data());
  }
  CHECK(b == two.end());
}

TEST_CASE("loader: what gathering throws comes out at its batch, after those before it") {
  for (std::size_t const prefetch : {std::size_t{0}, std::size_t{1}, std::size_t{20}}) {
    for (std::size_t fails_at = 0; fails_at < 5; ++fails_at) {
      failing_set const data{.fails_at = fails_at};
      loader const batches{data, {.batch = 2, .prefetch = prefetch}};
      std::size_t seen = 0;
      auto epoch = batches.epoch(0);
      CHECK_THROWS_WITH_AS(
          [&] {
            for ([[maybe_unused]] auto const& batch : epoch) {
              ++seen;
            }
          }(),
          "disk on fire", std::runtime_error);
      CHECK(seen == fails_at);
      auto const abandoned = batches.epoch(1);
    }
  }
}

TEST_CASE("loader: an epoch is run through once, and a batch of nothing or a rank outside is refused") {
  auto const data = numbered(4);
  auto epoch = loader{data, {.batch = 4}}.epoch(0);
  auto it = epoch.begin();
  CHECK_THROWS_AS(epoch.begin(), lockstep::usage_error);
  ++it;
  CHECK(it == epoch.end());
  CHECK_THROWS_AS((loader{data, {.batch = 0}}), lockstep::usage_error);
  CHECK_THROWS_AS((loader{data, {.size = 0}}), lockstep::usage_error);
  CHECK_THROWS_AS((loader{data, {.rank = rank_id{2}, .size = 2}}), lockstep::usage_error);
}
