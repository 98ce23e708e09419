// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#include "../support/threads.hpp"

#include <doctest/doctest.h>

#include <lockstep/concepts.hpp>
#include <lockstep/data/loader.hpp>
#include <lockstep/plan/split.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using lockstep::column;
using lockstep::epoch_end;
using lockstep::epoch_options;
using lockstep::epoch_order;
using lockstep::last_batch;
using lockstep::loader;
using lockstep::loader_options;
using lockstep::loader_position;
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

using batches_seen = std::vector<std::vector<int>>;

// The labels of every batch; checks that the columns stay together.
batches_seen run_through(loader<table<float, int>> const& batches, loader_position from, epoch_options const& options = {}) {
  batches_seen seen;
  for (auto const& batch : batches.epoch(from, options)) {
    auto const& [values, labels] = batch;
    seen.emplace_back(labels.data(), labels.data() + labels.count());
    REQUIRE(values.count() == labels.count());
    for (std::size_t sample = 0; sample < labels.count(); ++sample) {
      REQUIRE(values[sample][1] == static_cast<float>(labels[sample][0]) + 0.5F);
    }
  }
  return seen;
}
batches_seen run_through(loader<table<float, int>> const& batches, std::uint64_t epoch) {
  return run_through(batches, {.epoch = epoch});
}

std::vector<int> joined(batches_seen const& batches) {
  std::vector<int> all;
  for (auto const& batch : batches) {
    all.insert(all.end(), batch.begin(), batch.end());
  }
  return all;
}

// Options of every kind but batch, rank and size. Weights are those of `weighed`, which holds one a sample.
loader_options random_options(std::mt19937_64& random, std::vector<double> const& weighed) {
  loader_options options{.seed = random()};
  options.order = std::array{epoch_order::shuffled, epoch_order::sequential, epoch_order::weighted,
                             epoch_order::weighted_without_replacement}[random() % 4];
  options.end = std::array{epoch_end::pad, epoch_end::uneven, epoch_end::drop}[random() % 3];
  options.last = random() % 2 == 0 ? last_batch::keep : last_batch::drop;
  options.prefetch = random() % 6;
  options.threads = 1 + random() % 4;
  if (options.order == epoch_order::weighted || options.order == epoch_order::weighted_without_replacement) {
    options.weights = weighed;
    if (random() % 2 == 0 && !weighed.empty()) {
      options.draws = random() % (weighed.size() + 1);
    }
  }
  return options;
}

std::vector<double> random_weights(std::mt19937_64& random, std::size_t rows) {
  std::vector<double> made(rows);
  for (double& weight : made) {
    weight = static_cast<double>(1 + random() % 5);
  }
  return made;
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

// A data set of rows 0, 1, ... whose gather calls `before` with the rows first.
struct watched_set {
  using storage = std::vector<std::size_t>;
  using batch = lockstep::sample_view<std::size_t const>;

  std::size_t count;
  std::function<void(std::span<std::size_t const>)> before;

  std::size_t rows() const { return count; }
  batch gather(std::span<std::size_t const> rows, storage& into) const {
    before(rows);
    into.assign(rows.begin(), rows.end());
    return {into.data(), into.size(), 1};
  }
};

// Lets threads wait for each other; gives up after a while, so that a failed test ends.
class signal {
 public:
  void raise() {
    {
      std::lock_guard const lock{mutex_};
      ++raised_;
    }
    changed_.notify_all();
  }
  bool wait_for(std::size_t count) {
    std::unique_lock lock{mutex_};
    return changed_.wait_for(lock, std::chrono::seconds{60}, [&] { return raised_ >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t raised_ = 0;
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

TEST_CASE("loader: random settings give the sampler's order on every process, whatever the prefetch and the threads") {
  std::uint64_t const seed = test_seed();
  INFO("LOCKSTEP_TEST_SEED=" << seed);
  std::mt19937_64 random{seed};
  for (int round = 0; round < 400; ++round) {
    std::size_t const rows = random() % 40;
    auto const data = numbered(rows);
    auto const weighed = random_weights(random, rows);
    loader_options options = random_options(random, weighed);
    options.batch = 1 + random() % 9;
    options.size = 1 + static_cast<int>(random() % 9);
    std::uint64_t const epoch = random();
    std::size_t const batches = loader{data, options}.batches();
    std::size_t most = 0;
    std::size_t least = SIZE_MAX;
    for (int rank = 0; rank < options.size; ++rank) {
      options.rank = rank_id{rank};
      lockstep::sampler const expected{rows,
                                       options.size,
                                       options.rank,
                                       {.seed = options.seed,
                                        .order = options.order,
                                        .end = options.end,
                                        .weights = options.weights,
                                        .draws = options.draws}};
      most = std::max(most, expected.count());
      least = std::min(least, expected.count());
      options.prefetch = 0;
      auto const seen = run_through(loader{data, options}, epoch);
      options.prefetch = 1 + random() % 5;
      options.threads = 1 + random() % 4;
      REQUIRE(run_through(loader{data, options}, epoch) == seen);
      REQUIRE(seen.size() == batches);
      for (auto const& batch : seen) {
        REQUIRE((options.last == last_batch::keep || batch.size() == options.batch));
      }
      auto const all = joined(seen);
      auto const order = expected.epoch(epoch);
      REQUIRE(all.size() == (options.last == last_batch::drop ? batches * options.batch : order.size()));
      REQUIRE(std::equal(all.begin(), all.end(), order.begin(),
                         [](int label, std::size_t row) { return label == static_cast<int>(row); }));
    }
    REQUIRE(batches == (options.last == last_batch::drop ? least / options.batch : (most + options.batch - 1) / options.batch));
  }
}

TEST_CASE("loader: the batches of a step of all processes are the one of one process, with a global batch") {
  std::uint64_t const seed = test_seed();
  INFO("LOCKSTEP_TEST_SEED=" << seed);
  std::mt19937_64 random{seed};
  for (int round = 0; round < 300; ++round) {
    std::size_t const rows = random() % 50;
    auto const data = numbered(rows);
    auto const weighed = random_weights(random, rows);
    loader_options options = random_options(random, weighed);
    options.batch = 1 + random() % 20;
    std::uint64_t const epoch = random();
    auto const expected = run_through(loader{data, options}, epoch);
    options.global_batch = std::exchange(options.batch, random() % 3);
    for (options.size = 1; options.size <= 9; ++options.size) {
      batches_seen together(expected.size());
      for (int rank = 0; rank < options.size; ++rank) {
        options.rank = rank_id{rank};
        options.threads = 1 + random() % 4;
        loader const mine{data, options};
        REQUIRE(mine.batches() == expected.size());
        auto const seen = run_through(mine, epoch);
        REQUIRE(seen.size() == expected.size());
        for (std::size_t step = 0; step < seen.size(); ++step) {
          REQUIRE(seen[step].size() == lockstep::plan::split(expected[step].size(), static_cast<std::size_t>(options.size),
                                                             static_cast<std::size_t>(rank))
                                           .count);
          together[step].insert(together[step].end(), seen[step].begin(), seen[step].end());
        }
      }
      REQUIRE(together == expected);
      options.rank = rank_id{0};
    }
  }
}

TEST_CASE("loader: with equal batches a process, the samples of a step depend on how many there are together only") {
  auto const data = numbered(48);
  auto const expected = run_through(loader{data, {.batch = 12, .seed = 9}}, 2);
  for (int const size : {2, 3, 4, 6}) {
    auto const ranks = static_cast<std::size_t>(size);
    for (int rank = 0; rank < size; ++rank) {
      auto const seen = run_through(loader{data, {.batch = 12 / ranks, .seed = 9, .rank = rank_id{rank}, .size = size}}, 2);
      REQUIRE(seen.size() == 4);
      for (std::size_t step = 0; step < 4; ++step) {
        for (std::size_t sample = 0; sample < seen[step].size(); ++sample) {
          REQUIRE(seen[step][sample] == expected[step][sample * ranks + static_cast<std::size_t>(rank)]);
        }
      }
    }
  }
}

TEST_CASE("loader: an epoch that begins at any batch goes on as the whole one does, and says where it stands") {
  std::uint64_t const seed = test_seed();
  INFO("LOCKSTEP_TEST_SEED=" << seed);
  std::mt19937_64 random{seed};
  for (int round = 0; round < 200; ++round) {
    std::size_t const rows = random() % 40;
    auto const data = numbered(rows);
    auto const weighed = random_weights(random, rows);
    loader_options options = random_options(random, weighed);
    options.batch = 1 + random() % 9;
    options.size = 1 + static_cast<int>(random() % 4);
    options.rank = rank_id{static_cast<int>(random() % static_cast<std::size_t>(options.size))};
    if (random() % 2 == 0) {
      options.global_batch = 1 + random() % 20;
    }
    epoch_options const padding{.padded_to = random() % 12};
    loader const batches{data, options};
    auto const whole = run_through(batches, {.epoch = 6}, padding);
    REQUIRE(whole.size() == std::max(batches.batches(), padding.padded_to));
    for (std::size_t first = 0; first <= whole.size(); ++first) {
      auto epoch = batches.epoch({.epoch = 6, .batch = first}, padding);
      REQUIRE(epoch.next() == loader_position{6, first});
      std::size_t taken = first;
      for (auto const& batch : epoch) {
        auto const& labels = std::get<1>(batch);
        REQUIRE(std::vector<int>(labels.data(), labels.data() + labels.count()) == whole[taken]);
        REQUIRE(epoch.next() == loader_position{6, ++taken});
      }
      REQUIRE(taken == whole.size());
      REQUIRE(epoch.next() == loader_position{6, whole.size()});
    }
    REQUIRE_THROWS_AS(static_cast<void>(batches.epoch({.epoch = 6, .batch = whole.size() + 1}, padding)),
                      lockstep::usage_error);
  }
  auto const data = numbered(10);
  loader const batches{data, {.batch = 4}};
  CHECK_THROWS_WITH_AS(static_cast<void>(batches.epoch({0, 4})), "lockstep: batch 4 of an epoch that has 3",
                       lockstep::usage_error);
  CHECK_THROWS_AS(static_cast<void>(batches.epoch({0, ~std::uint64_t{0}})), lockstep::usage_error);
}

TEST_CASE("loader: a run that stops after any batch and goes on from the saved position sees what a run in one go sees") {
  auto const data = numbered(11);
  loader_options options{.seed = 2, .prefetch = 3, .global_batch = 4, .threads = 2};
  loader const batches{data, options};
  batches_seen whole;
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    auto const seen = run_through(batches, epoch);
    whole.insert(whole.end(), seen.begin(), seen.end());
  }
  for (std::size_t stop = 0; stop <= whole.size(); ++stop) {
    batches_seen seen;
    loader_position saved;
    auto const run_until = [&](std::size_t steps) {
      for (loader_position at = saved; at.epoch < 3; at = {at.epoch + 1, 0}) {
        auto epoch = batches.epoch(at);
        for (auto const& batch : epoch) {
          if (seen.size() == steps) {
            return;  // taken, and not trained on
          }
          auto const& labels = std::get<1>(batch);
          seen.emplace_back(labels.data(), labels.data() + labels.count());
          saved = epoch.next();
        }
      }
    };
    run_until(stop);
    REQUIRE(seen.size() == stop);
    run_until(whole.size() + 1);
    REQUIRE(seen == whole);
  }
}

TEST_CASE("loader: an epoch goes on with another number of processes where another left it, with a global batch") {
  auto const data = numbered(50);
  auto const options = [](int rank, int size) {
    return loader_options{.seed = 4, .rank = rank_id{rank}, .size = size, .global_batch = 12};
  };
  auto const expected = run_through(loader{data, options(0, 1)}, 1);
  batches_seen rest(3);
  for (int rank = 0; rank < 5; ++rank) {
    auto const seen = run_through(loader{data, options(rank, 5)}, {.epoch = 1, .batch = 2});
    REQUIRE(seen.size() == 3);
    for (std::size_t step = 0; step < 3; ++step) {
      rest[step].insert(rest[step].end(), seen[step].begin(), seen[step].end());
    }
  }
  CHECK(std::equal(rest.begin(), rest.end(), expected.begin() + 2));
}

TEST_CASE("loader: an epoch padded to a number of batches yields empty ones behind its own") {
  for (std::size_t const rows : {std::size_t{0}, std::size_t{1}, std::size_t{10}}) {
    auto const data = numbered(rows);
    for (std::size_t const batch : {std::size_t{1}, std::size_t{4}, std::size_t{100}, SIZE_MAX / 2 + 1, SIZE_MAX}) {
      for (std::size_t const threads : {std::size_t{1}, std::size_t{3}}) {
        loader const batches{data, {.batch = batch, .seed = 1, .prefetch = 4, .threads = threads}};
        auto const own = run_through(batches, 3);
        for (std::size_t padded = 0; padded < 14; ++padded) {
          auto expected = own;
          expected.resize(std::max(own.size(), padded));
          REQUIRE(run_through(batches, {.epoch = 3}, {.padded_to = padded}) == expected);
        }
      }
    }
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

TEST_CASE("loader: a batch stays as it is until the next is asked for, while threads gather ahead") {
  auto const data = numbered(64);
  loader const batches{data, {.batch = 8, .order = epoch_order::sequential, .prefetch = 3, .threads = 3}};
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
  for (std::size_t threads = 1; threads <= 4; ++threads) {
    for (std::size_t const prefetch : {std::size_t{0}, std::size_t{1}, std::size_t{3}}) {
      data.calls = 0;
      loader const batches{data, {.batch = 1, .prefetch = prefetch, .threads = threads}};
      std::size_t position = 0;
      auto epoch = batches.epoch(0);
      for ([[maybe_unused]] auto const& batch : epoch) {
        ++position;
        std::size_t const ahead = std::min<std::size_t>(position + prefetch, 10);
        while (data.calls < ahead) {  // it does get there
          std::this_thread::yield();
        }
        REQUIRE(data.calls == ahead);
        REQUIRE(epoch.next() == loader_position{0, position});
      }
      CHECK(position == 10);
    }
  }
}

TEST_CASE("loader: leaving a loop at any batch, by break or exception, or never starting it, ends the threads") {
  auto const data = numbered(40);
  std::size_t const before = support::thread_count();
  for (std::size_t threads = 1; threads <= 4; ++threads) {
    for (std::size_t const prefetch : {std::size_t{0}, std::size_t{1}, std::size_t{4}, std::size_t{50}}) {
      loader const batches{data, {.batch = 3, .prefetch = prefetch, .threads = threads}};
      for (std::size_t leave = 0; leave <= batches.batches(); ++leave) {
        std::size_t count = 0;
        for ([[maybe_unused]] auto const& batch : batches.epoch(leave)) {
          if (count++ == leave) {
            break;
          }
        }
        count = 0;
        try {
          for ([[maybe_unused]] auto const& batch : batches.epoch({.epoch = 1, .batch = leave / 2})) {
            if (count++ == leave) {
              throw std::runtime_error("from the loop");
            }
          }
        } catch (std::runtime_error const&) {
          REQUIRE(count == leave + 1);
        }
        auto const unread = batches.epoch(leave);
      }
    }
  }
  CHECK(support::comes_back_to(before));
}

TEST_CASE("loader: starts as many threads as it was told, but no more than batches to gather ahead") {
  struct expectation {
    std::size_t threads, prefetch, batches, started;
  };
  for (auto const& each : {expectation{1, 2, 10, 1}, expectation{4, 6, 10, 4}, expectation{4, 2, 10, 2},
                           expectation{4, 0, 10, 0}, expectation{4, 9, 3, 3}, expectation{2, 2, 0, 0}}) {
    std::size_t const before = support::thread_count();
    {
      signal stay;
      watched_set const waits{each.batches, [&](std::span<std::size_t const>) { static_cast<void>(stay.wait_for(1)); }};
      loader const waiting{waits, {.batch = 1, .prefetch = each.prefetch, .threads = each.threads}};
      auto const epoch = waiting.epoch(0);
      CHECK(support::thread_count() == before + each.started);
      stay.raise();
    }
    CHECK(support::comes_back_to(before));
  }
}

TEST_CASE("loader: several threads gather beside each other, and one thread one batch after another") {
  for (std::size_t threads = 1; threads <= 4; ++threads) {
    signal arrived;
    std::atomic<std::size_t> inside{0};
    std::atomic<std::size_t> most{0};
    std::atomic<bool> met{true};
    watched_set const data{40, [&](std::span<std::size_t const>) {
                             std::size_t const now = ++inside;
                             for (std::size_t seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
                             }
                             arrived.raise();
                             met = arrived.wait_for(threads) && met;  // the first ones wait until all threads are here
                             --inside;
                           }};
    loader const batches{data, {.batch = 2, .order = epoch_order::sequential, .prefetch = 4, .threads = threads}};
    std::size_t row = 0;
    for (auto const& batch : batches.epoch(0)) {
      REQUIRE(batch[0][0] == row);
      REQUIRE(batch[1][0] == row + 1);
      row += 2;
    }
    CHECK(row == 40);
    CHECK(met);
    CHECK(most == threads);
  }
}

TEST_CASE("loader: several epochs of one loader may run at once") {
  auto const data = numbered(100);
  loader const batches{data, {.batch = 7, .seed = 3, .threads = 2}};
  auto const expected = run_through(batches, 0);
  std::vector<batches_seen> seen(3);
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
      CHECK(data.calls == fails_at + 1);  // nothing is gathered behind a failure
      auto const abandoned = batches.epoch(1);
    }
  }
}

TEST_CASE("loader: with several threads too, the first failure in order comes out, at its batch, and no thread is left") {
  std::size_t const before = support::thread_count();
  for (std::size_t threads = 1; threads <= 4; ++threads) {
    for (std::size_t const prefetch : {std::size_t{0}, std::size_t{1}, std::size_t{3}, std::size_t{20}}) {
      for (std::size_t fails_at = 0; fails_at < 12; ++fails_at) {
        std::atomic<bool> broken{true};
        watched_set const data{12, [&](std::span<std::size_t const> rows) {
                                 if (broken && rows[0] >= fails_at) {  // those behind it fail too, perhaps before it
                                   throw std::runtime_error(std::string("row ") + std::to_string(rows[0]));
                                 }
                               }};
        loader const batches{data, {.batch = 1, .order = epoch_order::sequential, .prefetch = prefetch, .threads = threads}};
        auto epoch = batches.epoch(7);
        std::size_t seen = 0;
        std::string said;
        try {
          for (auto const& batch : epoch) {
            REQUIRE(batch[0][0] == seen);
            ++seen;
          }
        } catch (std::runtime_error const& e) {
          said = e.what();
        }
        REQUIRE(seen == fails_at);
        REQUIRE(said == "row " + std::to_string(fails_at));
        REQUIRE(support::comes_back_to(before));  // while the epoch is still there
        REQUIRE(epoch.next() == loader_position{7, fails_at});
        broken = false;
        for (auto const& batch : batches.epoch(epoch.next())) {
          REQUIRE(batch[0][0] == seen);
          ++seen;
        }
        REQUIRE(seen == 12);
      }
    }
  }
}

TEST_CASE("loader: a batch that fails while the one before it is still gathered comes out behind it") {
  signal failed;
  watched_set const data{4, [&](std::span<std::size_t const> rows) {
                           if (rows[0] == 1) {
                             CHECK(failed.wait_for(1));
                           } else if (rows[0] == 2) {
                             failed.raise();
                             throw std::runtime_error("row 2");
                           }
                         }};
  loader const batches{data, {.batch = 1, .order = epoch_order::sequential, .prefetch = 3, .threads = 2}};
  auto epoch = batches.epoch(0);
  auto it = epoch.begin();
  CHECK((*it)[0][0] == 0);
  ++it;
  CHECK((*it)[0][0] == 1);
  CHECK_THROWS_WITH_AS(++it, "row 2", std::runtime_error);
  CHECK(it == epoch.end());
}

TEST_CASE("loader: an epoch is run through once, and a batch of nothing, no thread, or a rank outside is refused") {
  auto const data = numbered(4);
  auto epoch = loader{data, {.batch = 4}}.epoch(0);
  auto it = epoch.begin();
  CHECK_THROWS_AS(epoch.begin(), lockstep::usage_error);
  ++it;
  CHECK(it == epoch.end());
  CHECK_THROWS_AS((loader{data, {.batch = 0}}), lockstep::usage_error);
  CHECK_THROWS_AS((loader{data, {.size = 0}}), lockstep::usage_error);
  CHECK_THROWS_AS((loader{data, {.rank = rank_id{2}, .size = 2}}), lockstep::usage_error);
  CHECK_THROWS_WITH_AS((loader{data, {.global_batch = 0}}), doctest::Contains("at least one sample"), lockstep::usage_error);
  CHECK_THROWS_AS((loader{data, {.rank = rank_id{2}, .size = 2, .global_batch = 4}}), lockstep::usage_error);
  CHECK_THROWS_WITH_AS((loader{data, {.threads = 0}}), doctest::Contains("at least one thread"), lockstep::usage_error);
  CHECK_THROWS_WITH_AS((loader{data, {.order = epoch_order::weighted, .weights = std::vector<double>(3, 1.0)}}),
                       doctest::Contains("3 weights for 4 samples"), lockstep::usage_error);
  CHECK_THROWS_WITH_AS((loader{data, {.draws = 3}}), doctest::Contains("for the weighted orders"), lockstep::usage_error);
}
