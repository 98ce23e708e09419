// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// What docs/policies.md quotes, and what it says that no other test does.

#include "../support/policies.hpp"
#include "../seed.hpp"
#include "../support/pull_model.hpp"

#include <lockstep/lockstep.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

using support::pull_model;
using support::pull_plan;
using support::pull_samples;

namespace {

using tuned =
    lockstep::peer_all_reduce<lockstep::automatic, lockstep::tuning{.bucket_bytes = 1 << 20, .stage_below_bytes = 16 << 10}>;

/// The values after a few steps of AdamW.
template <class Policy>
std::vector<float> train(std::uint64_t seed, int devices) {
  tests::generator random{seed};
  pull_plan const plan{.counts = {random.whole(1, 900), random.whole(1, 40), random.whole(1, 900), random.whole(1, 5000)},
                       .memory = random.chance(0.5) ? support::layout::arena : support::layout::scattered,
                       .marks = support::marking::in_order};
  lockstep::trainer<pull_model<>, lockstep::adamw, Policy> trainer{
      lockstep::devices::first(devices), [&](auto&) { return pull_model<>{plan}; }, lockstep::adamw{.learning_rate = 0.05F}};
  for (int k = 0; k < 4; ++k) {
    pull_samples const samples{random, random.whole(1, 40), 3};
    trainer.step(samples.view(), {.micro_batches = 2});
  }
  std::vector<float> all;
  for (lockstep::parameter const& p : trainer.model().parameters()) {
    auto const* const values = static_cast<float const*>(p.value);
    all.insert(all.end(), values, values + p.count());
  }
  return all;
}

/// Writes the gradient of its first parameter only.
struct half_used {
  using backend = lockstep::host;
  using batch = std::span<float const>;
  float value[2]{1, 1};
  float gradient[2]{};
  std::vector<lockstep::parameter> parameters() {
    return {{"used", &value[0], &gradient[0], {1}}, {"other", &value[1], &gradient[1], {1}}};
  }
  void train(lockstep::train_context<backend>& ctx, batch const& shard) {
    for (float const sample : shard) {
      gradient[0] += ctx.sample_weight() * sample;
    }
  }
};

struct reporting : half_used {
  static constexpr lockstep::model_promises promises{.reports_unused = true};
  void train(lockstep::train_context<backend>& ctx, batch const& shard) {
    half_used::train(ctx, shard);
    ctx.unused(1);
  }
};

}  // namespace

TEST_CASE("policies: neither the policy nor its tuning changes a bit, for one number of devices") {
  std::uint64_t const first = tests::seed();
  for (std::uint64_t seed = first; seed < first + 20; ++seed) {
    CAPTURE(seed);
    int const devices = static_cast<int>(tests::generator{seed}.whole(2, 6));
    CAPTURE(devices);
    std::vector<float> const expected = train<lockstep::replicate_and_gather<>>(seed, devices);
    CHECK(train<tuned>(seed, devices) == expected);
    support::for_each_tuned_policy([&]<class Policy>(std::type_identity<Policy>, char const* name) {
      CAPTURE(name);
      CHECK(train<Policy>(seed, devices) == expected);
    });
  }
}

TEST_CASE("policies: with one device, every policy gives the bits of single_device") {
  std::uint64_t const seed = tests::seed();
  CAPTURE(seed);
  std::vector<float> const expected = train<lockstep::single_device>(seed, 1);
  support::for_each_tuned_policy([&]<class Policy>(std::type_identity<Policy>, char const* name) {
    CAPTURE(name);
    CHECK(train<Policy>(seed, 1) == expected);
  });
}

TEST_CASE("policies: bytes moved a step are those that the page says") {
  constexpr std::uint64_t n = 4;
  constexpr std::uint64_t bytes = n * 16 * 25 * sizeof(float);  // G and P; every rank's part is equal
  constexpr std::uint64_t scalars = 2 * (n - 1) * sizeof(lockstep::step_sums);
  auto const moved_a_step = [&]<class Policy>(std::type_identity<Policy>) {
    pull_plan const plan{.counts = {n * 16 * 25}};
    lockstep::trainer<pull_model<>, lockstep::sgd, Policy> trainer{lockstep::devices::first(static_cast<int>(n)),
                                                                   [&](auto&) { return pull_model<>{plan}; }, lockstep::sgd{}};
    tests::generator random{4};
    pull_samples const samples{random, 8, 1};
    trainer.step(samples.view());
    trainer.step(samples.view());
    std::uint64_t const before = trainer.bytes_moved();
    trainer.step(samples.view());
    return trainer.bytes_moved() - before;
  };
  CHECK(moved_a_step(std::type_identity<lockstep::peer_all_reduce<>>{}) == 2 * bytes * (n - 1) + scalars);
  CHECK(moved_a_step(std::type_identity<lockstep::replicate_and_gather<>>{}) ==
        bytes * (n - 1) + bytes * (n * n - 1) / n + scalars);
}

TEST_CASE("policies: a parameter that nobody wrote is updated with zero, unless the model reports it") {
  auto const other_after_a_step = []<class Model>(std::type_identity<Model>) {
    lockstep::trainer<Model, lockstep::sgd, lockstep::peer_all_reduce<>> trainer{
        lockstep::devices::first(2), [](auto&) { return Model{}; }, lockstep::sgd{.learning_rate = 0.5F, .weight_decay = 0.5F}};
    std::vector<float> const samples(4, 1.0F);
    trainer.step(samples);
    CHECK(trainer.model().value[0] == 1 - 0.5F * (1 + 0.5F));
    return trainer.model().value[1];
  };
  CHECK(other_after_a_step(std::type_identity<half_used>{}) == 0.75F);
  CHECK(other_after_a_step(std::type_identity<reporting>{}) == 1.0F);
}
