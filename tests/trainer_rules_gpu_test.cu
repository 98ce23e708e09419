// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// What steps mean on one GPU: alone, and with several ranks that share it. By calls, and replayed.

#include "support/gpu_trainer_cases.cuh"
#include "support/ruled_gpu_setup.cuh"

#include <lockstep/lockstep.cuh>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace {

using lockstep::single_device;
using support::one_gpu;
using support::rows;
using support::weighed_rows;
using all_reduce = lockstep::peer_all_reduce<support::shared_gpu, support::small_buckets>;
using gather = lockstep::replicate_and_gather<support::shared_gpu, support::small_buckets>;
using sharded = lockstep::sharded_optimizer<support::shared_gpu, support::small_buckets>;

template <class Backend, std::size_t Graphs, class Policy, class Batch, lockstep::model_promises Promises>
void train(std::uint64_t seed, int ranks, std::string const& what) {
  CAPTURE(what);
  ruled_cases::train_case<support::ruled_gpu_setup<Backend, Graphs>, Policy, Batch, Promises>(seed, ranks);
}

template <std::size_t Graphs>
void train_alone(std::uint64_t seed) {
  train<lockstep::cuda, Graphs, single_device, weighed_rows, ruled_cases::measured>(seed, 1, "measured");
  train<lockstep::cuda, Graphs, single_device, rows, ruled_cases::counting>(seed, 1, "counting");
  train<lockstep::cuda, Graphs, single_device, rows, ruled_cases::weighing>(seed, 1, "weighing");
  train<lockstep::cuda, Graphs, single_device, rows, ruled_cases::voting>(seed, 1, "voting");
}

template <std::size_t Graphs>
void train_together(std::uint64_t seed, int ranks) {
  train<one_gpu, Graphs, all_reduce, weighed_rows, ruled_cases::measured>(seed, ranks, "all_reduce, measured");
  train<one_gpu, Graphs, all_reduce, rows, ruled_cases::weighing>(seed, ranks, "all_reduce, weighing");
  train<one_gpu, Graphs, all_reduce, rows, ruled_cases::voting>(seed, ranks, "all_reduce, voting");
  train<one_gpu, Graphs, gather, rows, ruled_cases::counting>(seed, ranks, "gather, counting");
  train<one_gpu, Graphs, gather, rows, ruled_cases::reporting>(seed, ranks, "gather, reporting");
  train<one_gpu, Graphs, sharded, rows, ruled_cases::measured>(seed, ranks, "sharded, measured");
}

}  // namespace

TEST_CASE(
    "trainer rules on one GPU: weights, votes, metrics, unused parameters, loss scale and bounded norms give the formula") {
  std::uint64_t const first = tests::seed();
  for (std::uint64_t seed = first; seed < first + 12; ++seed) {
    CAPTURE(seed);
    train_alone<0>(seed);
    train_alone<8>(seed);
  }
}

TEST_CASE("trainer rules on one GPU: the same with 1 to 4 ranks") {
  std::uint64_t const first = tests::seed();
  for (std::uint64_t seed = first; seed < first + 6; ++seed) {
    int const ranks = static_cast<int>(tests::generator{seed ^ 0x5eedU}.whole(1, 4));
    CAPTURE(seed);
    CAPTURE(ranks);
    train_together<0>(seed, ranks);
  }
}

TEST_CASE("trainer rules on one GPU: the same with 1 to 4 ranks that replay their steps") {
  gpu_cases::one_stream_each const one;
  std::uint64_t const first = tests::seed();
  for (std::uint64_t seed = first; seed < first + 6; ++seed) {
    int const ranks = static_cast<int>(tests::generator{seed ^ 0x5eedU}.whole(1, 4));
    CAPTURE(seed);
    CAPTURE(ranks);
    train_together<8>(seed, ranks);
  }
}
