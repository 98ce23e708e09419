// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Trainers on one GPU: alone, and with several ranks that share it. Steps by calls and steps that are replayed.

#include "support/gpu_trainer_cases.cuh"

#include <lockstep/lockstep.cuh>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

using gpu_cases::fed_batch;
using gpu_cases::one_gpu_setup;
using gpu_cases::one_stream_each;
using gpu_cases::outcome;
using gpu_cases::pull_trainer;
using gpu_cases::single_setup;
using lockstep::single_device;
using support::gpu_pull_model;
using support::one_gpu;
using support::pull_plan;
using support::pull_reference;

namespace {

using all_reduce = one_gpu_setup::all_reduce;
using gather = one_gpu_setup::gather;

/// One of the two policies adds to gradients, the other writes over them first.
outcome train_under(bool gathers, std::uint64_t seed, int ranks, std::size_t graphs) {
  return gathers ? gpu_cases::train_random_case<one_gpu_setup, gather, gpu_cases::accumulates>(seed, ranks, graphs)
                 : gpu_cases::train_random_case<one_gpu_setup, all_reduce>(seed, ranks, graphs);
}

}  // namespace

TEST_CASE("trainer on one GPU: random models give the gradients and losses of the formula, with graphs the same bits") {
  std::uint64_t const first = tests::seed();
  for (std::uint64_t seed = first; seed < first + 20; ++seed) {
    CAPTURE(seed);
    auto const called = gpu_cases::train_random_case<single_setup, single_device>(seed, 1, 0);
    auto const replayed = gpu_cases::train_random_case<single_setup, single_device>(seed, 1, 8);
    CHECK(called == replayed);
  }
}

TEST_CASE("trainer on one GPU: 1 to 4 ranks under every policy give the gradients and losses of the formula") {
  std::uint64_t const first = tests::seed();
  for (std::uint64_t seed = first; seed < first + 12; ++seed) {
    int const ranks = static_cast<int>(tests::generator{seed ^ 0x5eedU}.whole(1, 4));
    for (bool const gathers : {false, true}) {
      CAPTURE(seed);
      CAPTURE(ranks);
      CAPTURE(gathers);
      CHECK(train_under(gathers, seed, ranks, 0) == train_under(gathers, seed, ranks, 0));
    }
  }
}

TEST_CASE("trainer on one GPU: 1 to 4 ranks that replay their steps give the same bits as ranks that don't") {
  std::uint64_t const first = tests::seed();
  for (std::uint64_t seed = first; seed < first + 12; ++seed) {
    int const ranks = static_cast<int>(tests::generator{seed ^ 0x5eedU}.whole(1, 4));
    for (bool const gathers : {false, true}) {
      CAPTURE(seed);
      CAPTURE(ranks);
      CAPTURE(gathers);
      outcome const called = train_under(gathers, seed, ranks, 0);
      one_stream_each const one;
      CHECK(train_under(gathers, seed, ranks, 8) == called);
    }
  }
}

TEST_CASE("trainer on one GPU: the branches of replayed steps may run side by side") {
  std::uint64_t const first = tests::seed();
  for (std::uint64_t seed = first; seed < first + 6; ++seed) {
    for (bool const gathers : {false, true}) {
      CAPTURE(seed);
      CAPTURE(gathers);
      CHECK(train_under(gathers, seed, 2, 8) == train_under(gathers, seed, 2, 0));
    }
  }
}

TEST_CASE("trainer on one GPU: a model that can't be captured is called in every step") {
  constexpr lockstep::model_promises called{.capturable = false};
  std::uint64_t const first = tests::seed();
  for (std::uint64_t seed = first; seed < first + 4; ++seed) {
    CAPTURE(seed);
    gpu_cases::train_random_case<one_gpu_setup, all_reduce, called>(seed, 3, 8);
  }
}

TEST_CASE("trainer on one GPU: no more graphs are kept than the options allow, and results stay right") {
  gpu_cases::check_bounded<single_setup, single_device>(1);
  one_stream_each const one;
  gpu_cases::check_bounded<one_gpu_setup, all_reduce>(3);
}

TEST_CASE("trainer on one GPU: what asks for the step's number is not captured, and pieces tell steps apart") {
  gpu_cases::check_not_captured<single_setup, single_device>(1);
  one_stream_each const one;
  gpu_cases::check_not_captured<one_gpu_setup, all_reduce>(2);
}

TEST_CASE("trainer on one GPU: host batches may be written over when step returns, pageable or pinned") {
  for (auto const kind : {gpu_cases::host_memory::pageable, gpu_cases::host_memory::pinned}) {
    gpu_cases::check_host_batches<single_setup, single_device>(1, kind);
    one_stream_each const one;
    gpu_cases::check_host_batches<one_gpu_setup, all_reduce>(2, kind);
    gpu_cases::check_host_batches<one_gpu_setup, all_reduce>(4, kind);
  }
}

TEST_CASE("trainer on one GPU: results are read late, within 64 steps, or after the trainer is gone") {
  tests::generator random{3};
  fed_batch<single_setup> const fed{random, 1, 12, 3};
  pull_plan const plan{.counts = {40, 300, 7}};
  pull_reference truth{plan};
  std::vector<double> losses;
  for (int k = 0; k < 70; ++k) {
    losses.push_back(truth.step(fed.samples, 0.125));
  }
  auto const is = [&](lockstep::step_result const& result) {
    return result.loss() == doctest::Approx(losses[result.step() - 1]).epsilon(1e-5);
  };
  std::vector<lockstep::step_result> results;
  {
    pull_trainer<single_setup, single_device> trainer{lockstep::devices{0},
                                                      [&](auto& device) {
                                                        return gpu_pull_model<lockstep::cuda>{device, plan};
                                                      },
                                                      lockstep::sgd{.learning_rate = 0.125F, .momentum = 0.5F}};
    for (int k = 0; k < 70; ++k) {
      results.push_back(trainer.step_shards(fed.resident.shards()));
    }
    CHECK(is(results[69]));
    CHECK(is(results[6]));  // 63 steps back
    CHECK(is(results[6]));
    for (std::size_t const k : {std::size_t{5}, std::size_t{0}}) {
      CHECK_THROWS_WITH_AS(static_cast<void>(results[k].loss()),
                           "lockstep: step_result: read it within 64 steps; what it stood for is gone", lockstep::usage_error);
      CHECK(results[k].step() == k + 1);
    }
  }
  for (std::size_t k = 6; k < 70; ++k) {
    CAPTURE(k);
    CHECK(is(results[k]));  // most of them for the first time
  }
  CHECK_THROWS_AS(static_cast<void>(results[4].loss()), lockstep::error);
}

TEST_CASE("trainer on one GPU: every rank starts from the values of rank 0") {
  pull_plan const plan{.counts = {40, 3}};
  pull_trainer<one_gpu_setup, all_reduce> trainer{
      lockstep::devices::first(3),
      [&](auto& device) {
        pull_plan mine = plan;
        mine.memory = static_cast<support::layout>(number(device.rank()));
        return gpu_pull_model<one_gpu>{device, mine, {.start = static_cast<float>(number(device.rank()))}};
      },
      lockstep::sgd{.learning_rate = 0.125F, .momentum = 0.5F}};
  pull_reference truth{plan};
  gpu_cases::check_values(trainer, truth, 1e-7);
  // Ranks whose memory is laid out differently agree on what travels together.
  tests::generator random{3};
  fed_batch<one_gpu_setup> const fed{random, 3, 12, 3};
  for (int k = 0; k < 4; ++k) {
    trainer.step_shards(fed.resident.shards());
    truth.step(fed.samples, 0.125);
  }
  gpu_cases::check_values(trainer, truth, 1e-5);
}
