// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// What docs/quickstart.md quotes, and whether it does what the page says.

#include "../../examples/models/mlp.hpp"
#include "../seed.hpp"
#include "../support/threads.hpp"

#include <lockstep/lockstep.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <span>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace {

lockstep::table<float, std::int32_t> random_rows(tests::generator& random, std::size_t rows, std::size_t width) {
  lockstep::column<float> values{{}, width};
  lockstep::column<std::int32_t> labels{{}, 1};
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < width; ++j) {
      values.values.push_back(random.real(-1.0F, 1.0F));
    }
    labels.values.push_back(static_cast<std::int32_t>(random.whole(0, 2)));
  }
  return lockstep::table<float, std::int32_t>{std::move(values), std::move(labels)};
}

auto make_trainer(int devices, std::uint64_t seed) {
  return lockstep::trainer<examples::mlp, lockstep::sgd, lockstep::peer_all_reduce<>>{
      lockstep::devices::first(devices),
      [seed](lockstep::device_context<lockstep::host>& device) {
        return examples::mlp{device, {5, 8, 3}, seed};
      },
      {lockstep::sgd{.learning_rate = 0.1F}, lockstep::sgd{.learning_rate = 0.1F}}};
}

std::vector<float> values_of(examples::mlp const& model) {
  std::vector<float> all;
  for (lockstep::parameter const& p : model.parameters()) {
    auto const* const values = static_cast<float const*>(p.value);
    all.insert(all.end(), values, values + p.count());
  }
  return all;
}

}  // namespace

TEST_CASE("quickstart: the gradients of the example's model pass the check") {
  std::uint64_t const seed = tests::seed();
  CAPTURE(seed);
  tests::generator random{seed};
  auto const rows = random_rows(random, 9, 5);
  auto const batch = rows.view();
  auto const factory = [seed](lockstep::device_context<lockstep::host>& device) {
    return examples::mlp{device, {5, 3}, seed};  // one layer, so no ReLU whose corner a step could cross
  };

  auto const report = lockstep::gradient_check<examples::mlp>(lockstep::devices::first(1), factory, batch);
  if (!report.within(0.01)) {
    std::puts(to_string(report).c_str());
  }
  CHECK(report.within(0.01));
  CHECK(report.checked == 15 + 3);
}

TEST_CASE("quickstart: the parts of the page together learn digits") {
  std::string const path = LOCKSTEP_DATA_DIR "/digits/digits.csv";
  constexpr int classes = 10;
  constexpr int epochs = 3;
  std::ostringstream log;

  std::ifstream file{path};
  lockstep::table<float, int> digits = lockstep::read_labelled_csv(file, path, classes);
  for (float& pixel : digits.values<0>()) {
    pixel /= 16.0F;
  }

  lockstep::trainer<examples::mlp, lockstep::adamw, lockstep::peer_all_reduce<>> trainer{
      lockstep::devices::first(4),
      [](lockstep::device_context<lockstep::host>& device) {
        return examples::mlp{device, {64, 64, classes}, 1};
      },
      {lockstep::adamw{.learning_rate = 3e-3F, .weight_decay = 0.01F},   // weights
       lockstep::adamw{.learning_rate = 3e-3F, .weight_decay = 0.0F}}};  // biases

  lockstep::loader loader{digits, {.batch = 64, .seed = 1}};
  lockstep::progress progress{epochs * loader.batches(), {.out = log}};
  for (std::uint64_t epoch = 0; epoch < epochs; ++epoch) {
    for (auto const& batch : loader.epoch(epoch)) {
      auto const result = trainer.step(batch);
      progress.update(result);
    }
  }
  progress.finish();

  std::vector<float> probabilities(digits.rows() * classes);
  lockstep::sample_view<float> const predicted{probabilities.data(), digits.rows(), classes};
  trainer.predict(digits.view(), predicted);

  std::size_t right = 0;
  for (std::size_t i = 0; i < digits.rows(); ++i) {
    right +=
        std::max_element(predicted[i].begin(), predicted[i].end()) - predicted[i].begin() == digits.values<1>()[i] ? 1U : 0U;
  }
  CHECK(static_cast<double>(right) > 0.8 * static_cast<double>(digits.rows()));
  CHECK(log.str().find("100%") != std::string::npos);
}

TEST_CASE("quickstart: the marks of the example's model come late enough") {
  std::uint64_t const seed = tests::seed();
  CAPTURE(seed);
  tests::generator random{seed};
  auto const rows = random_rows(random, 9, 5);
  auto const factory = [seed](lockstep::device_context<lockstep::host>& device) {
    return examples::mlp{device, {5, 8, 3}, seed};
  };
  lockstep::host::options const options{.checking = lockstep::checking::marks};
  lockstep::trainer<examples::mlp, lockstep::sgd, lockstep::peer_all_reduce<>> checked{lockstep::devices::first(2), factory,
                                                                                       lockstep::sgd{}, options};
  lockstep::trainer<examples::mlp, lockstep::sgd, lockstep::peer_all_reduce<>> plain{lockstep::devices::first(2), factory,
                                                                                     lockstep::sgd{}};
  for (int k = 0; k < 3; ++k) {
    CHECK(checked.step(rows.view()).loss() == plain.step(rows.view()).loss());
  }
}

TEST_CASE("quickstart: micro-batches give the step of the whole batch") {
  std::uint64_t const seed = tests::seed();
  CAPTURE(seed);
  tests::generator random{seed};
  auto const rows = random_rows(random, 23, 5);
  auto const batch = rows.view();
  auto whole = make_trainer(1, seed);
  auto trainer = make_trainer(3, seed);
  for (int k = 0; k < 3; ++k) {
    double const loss = whole.step(batch).loss();
    auto const result = trainer.step(batch, {.micro_batches = 4});
    CHECK(result.loss() == doctest::Approx(loss).epsilon(1e-4));
    CHECK(result.samples() == 23);
  }
  std::vector<float> const expected = values_of(whole.model());
  std::vector<float> const got = values_of(trainer.model());
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CHECK(std::abs(got[i] - expected[i]) < 1e-4F);
  }
}

TEST_CASE("quickstart: learning rates change between steps") {
  tests::generator random{3};
  auto const rows = random_rows(random, 12, 5);
  auto trainer = make_trainer(2, 3);
  trainer.step(rows.view());
  std::vector<float> const before = values_of(trainer.model());
  float rate = 0;
  trainer.optimizer(0).learning_rate = rate;
  trainer.optimizer(1).learning_rate = rate;
  trainer.step(rows.view());
  CHECK(values_of(trainer.model()) == before);
  rate = 0.1F;
  trainer.optimizer(1).learning_rate = rate;
  trainer.step(rows.view());
  std::vector<float> const after = values_of(trainer.model());
  CHECK(std::equal(before.begin(), before.begin() + 40, after.begin()));                  // layer 0's weights, group 0
  CHECK_FALSE(std::equal(before.begin() + 40, before.begin() + 48, after.begin() + 40));  // its biases, group 1
}

TEST_CASE("quickstart: a communicator alone adds over the ranks") {
  std::vector<lockstep::device_id> const ids{lockstep::device_id{0}, lockstep::device_id{1}, lockstep::device_id{2}};
  auto communicators = lockstep::shared_memory_communicator::create(ids, {.timeout_seconds = 20});
  std::vector<float> sums(3);
  auto const said = support::on_ranks(3, [&](int number) {
    auto const rank = static_cast<std::size_t>(number);
    std::vector<float> data(1000, static_cast<float>(rank));
    communicators[rank].all_reduce(std::span{data}, lockstep::reduction::sum, lockstep::host::stream_ref{});
    sums[rank] = data[999];
  });
  CHECK(said == std::vector<std::string>(3));
  CHECK(sums == std::vector<float>(3, 3.0F));
}

TEST_CASE("quickstart: the planner alone puts gradients into buckets, the last parameter first") {
  std::vector<std::size_t> const counts{4000, 8, 2000, 8};  // elements of each gradient
  std::vector<lockstep::plan::piece> pieces;
  for (lockstep::plan::mark const& ready : lockstep::plan::cut_and_order(counts, {})) {
    pieces.push_back({.parameter = ready.parameter, .first = ready.first, .count = ready.count});
  }
  std::vector<lockstep::plan::bucket> const buckets = lockstep::plan::plan_buckets(pieces, 16 << 10, 1 << 10);
  REQUIRE(buckets.size() == 2);  // 16 KiB hold 4,096 elements: one bucket of 8 + 2000 + 8, one of 4000
  CHECK(buckets[0].count == 2016);
  CHECK(buckets[0].staged_count == 16);  // the two of 32 bytes travel together
  CHECK(buckets[1].count == 4000);
}

TEST_CASE("quickstart: the sampler alone gives every sample to one rank") {
  std::size_t const samples = 12;
  int const ranks = 3;
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<std::size_t> all;
    for (int rank = 0; rank < ranks; ++rank) {
      lockstep::sampler const sampler{samples, ranks, lockstep::rank_id{rank}, {.seed = 7}};
      std::vector<std::size_t> const mine = sampler.epoch(epoch);
      all.insert(all.end(), mine.begin(), mine.end());
    }
    std::sort(all.begin(), all.end());
    for (std::size_t i = 0; i < samples; ++i) {
      CHECK(all[i] == i);
    }
  }
}

TEST_CASE("quickstart: training goes on at a saved position, with the batches that were left") {
  lockstep::table<float> const data{lockstep::column{std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}}};
  lockstep::loader const loader{data, {.batch = 4, .seed = 1}};
  std::uint64_t const epochs = 3;
  std::vector<float> seen;
  lockstep::loader_position position;
  auto const run_until = [&](std::size_t steps) {
    std::size_t done = 0;
    auto const train = [&](auto const& batch) {
      auto const& values = std::get<0>(batch);
      seen.insert(seen.end(), values.data(), values.data() + values.count());
      return ++done == steps;
    };

    for (; position.epoch < epochs; position = {position.epoch + 1, 0}) {
      auto epoch = loader.epoch(position);
      for (auto const& batch : epoch) {
        bool const enough = train(batch);
        position = epoch.next();  // behind this batch, whatever was gathered ahead
        if (enough) {
          return;  // write position.epoch and position.batch beside the model
        }
      }
    }
  };
  run_until(9);
  std::vector<float> const whole = std::exchange(seen, {});
  CHECK(whole.size() == 30);
  for (std::size_t stop = 1; stop < 9; ++stop) {
    position = {};
    seen.clear();
    run_until(stop);
    CHECK(seen.size() < 30);
    run_until(99);
    CHECK(seen == whole);
  }
}

TEST_CASE("quickstart: with a global batch, the processes' batches of a step are one batch, and weights are followed") {
  lockstep::table<float> const data{lockstep::column{std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}}};
  std::vector<double> const weights{0, 0, 1, 1, 1, 1, 1, 1, 1, 5};
  int const processes = 3;
  lockstep::loader const alone{data,
                               {.seed = 1, .order = lockstep::epoch_order::weighted, .global_batch = 8, .weights = weights}};
  auto whole = alone.epoch(0);
  std::vector<float> seen;
  for (int process = 0; process < processes; ++process) {
    lockstep::loader const loader{data,
                                  {.seed = 1,
                                   .order = lockstep::epoch_order::weighted,
                                   .rank = lockstep::rank_id{process},
                                   .size = processes,
                                   .global_batch = 8,
                                   .weights = weights}};
    auto mine = loader.epoch(0);
    auto const& values = std::get<0>(*mine.begin());
    seen.insert(seen.end(), values.data(), values.data() + values.count());
  }
  auto const& values = std::get<0>(*whole.begin());
  CHECK(seen == std::vector<float>(values.data(), values.data() + values.count()));
  CHECK(seen.size() == 8);
  for (float const value : seen) {
    CHECK(value >= 2);
  }
}

TEST_CASE("quickstart: ranks with other numbers of batches step as often as the longest") {
  std::vector<lockstep::device_id> const ids{lockstep::device_id{0}, lockstep::device_id{1}, lockstep::device_id{2}};
  auto communicators = lockstep::shared_memory_communicator::create(ids, {.timeout_seconds = 30});
  std::vector<std::vector<double>> losses(3);
  auto const said = support::on_ranks(3, [&](int rank) {
    auto const r = static_cast<std::size_t>(rank);
    float value = 0;
    float gradient = 0;
    std::vector<lockstep::parameter> const parameters{{"value", &value, &gradient, {1}}};
    lockstep::host::device device{ids[r]};
    lockstep::replica<lockstep::peer_all_reduce<>, lockstep::sgd, lockstep::host> replica{
        device, std::move(communicators[r]), parameters, lockstep::sgd{.learning_rate = 1.0F}};
    std::vector<std::vector<float>> const batches(r, std::vector<float>(2, static_cast<float>(r)));  // 0, 1 and 2 of them
    auto const backward = [&](lockstep::train_context<lockstep::host>& ctx, std::vector<float> const& batch) {
      for (float const x : batch) {
        *ctx.loss() += ctx.sample_weight() * x;
        gradient += ctx.sample_weight() * x;
      }
    };

    std::uint64_t const steps = replica.longest(batches.size());
    for (std::size_t k = 0; k < steps; ++k) {
      bool const has_one = k < batches.size();
      auto step = replica.begin({.samples = has_one ? batches[k].size() : 0});
      if (has_one) {
        auto ctx = step.micro_batch(batches[k].size());
        backward(ctx, batches[k]);
      }
      losses[r].push_back(step.finish().loss());
    }
    lockstep::expects(value == -3.5F, "the means were 1.5 and 2");
  });
  CHECK(said == std::vector<std::string>(3));
  CHECK(losses == std::vector<std::vector<double>>(3, {1.5, 2.0}));
}
