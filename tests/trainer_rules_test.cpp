// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

#include "support/policies.hpp"
#include "support/ruled_cases.hpp"

#include <lockstep/lockstep.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

namespace {

struct host_setup {
  using backend = lockstep::host;
  static std::shared_ptr<void> memory(int, std::size_t bytes) { return std::make_unique<std::byte[]>(bytes); }
  static void copy(void* to, void const* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
  static lockstep::host::options options() { return {.timeout_seconds = 30}; }
};

using all_reduce = lockstep::peer_all_reduce<lockstep::automatic, support::small_buckets>;
using gather = lockstep::replicate_and_gather<lockstep::automatic, support::small_buckets>;
using sharded = lockstep::sharded_optimizer<lockstep::automatic, support::small_buckets>;
using lockstep::single_device;
using support::rows;
using support::weighed_rows;

template <class Policy, class Batch, lockstep::model_promises Promises>
void train(std::uint64_t seed, int ranks, std::string const& what) {
  CAPTURE(what);
  ruled_cases::train_case<host_setup, Policy, Batch, Promises>(seed, ranks);
}

}  // namespace

TEST_CASE("trainer rules: weights, votes, metrics, unused parameters, loss scale and bounded norms give one device's result") {
  std::uint64_t const first = tests::seed();
  for (std::uint64_t seed = first; seed < first + 60; ++seed) {
    int const ranks = static_cast<int>(tests::generator{seed ^ 0x5eedU}.whole(1, 8));
    CAPTURE(seed);
    CAPTURE(ranks);
    train<single_device, weighed_rows, ruled_cases::measured>(seed, 1, "single_device, measured");
    train<single_device, rows, ruled_cases::counting>(seed, 1, "single_device, counting");
    train<all_reduce, weighed_rows, ruled_cases::measured>(seed, ranks, "all_reduce, measured");
    train<all_reduce, rows, ruled_cases::voting>(seed, ranks, "all_reduce, voting");
    train<gather, rows, ruled_cases::reporting>(seed, ranks, "gather, reporting");
    train<gather, rows, ruled_cases::counting>(seed, ranks, "gather, counting");
    train<sharded, rows, ruled_cases::measured>(seed, ranks, "sharded, measured");
    train<sharded, rows, ruled_cases::voting>(seed, ranks, "sharded, voting");
  }
}
