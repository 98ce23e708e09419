// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

#include "support/policies.hpp"
#include "support/ruled_cases.hpp"
#include "support/thrown.hpp"

#include <lockstep/lockstep.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

using support::refused;

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

/// A whole optimizer that does what the others do: it multiplies every gradient by what it is told.
struct whole_sgd {
  float learning_rate = 0.1F;
  float momentum = 0;
  std::map<void const*, std::vector<float>> velocities{};

  void step(lockstep::update_context<lockstep::host>& ctx, std::span<lockstep::parameter const> parameters) {
    for (lockstep::parameter const& p : parameters) {
      std::vector<float>& velocity = velocities[p.value];
      velocity.resize(p.count());
      lockstep::visit(p.gradient_type, [&]<class G>(std::type_identity<G>) {
        for (std::size_t e = 0; e < p.count(); ++e) {
          float const gradient = static_cast<float>(static_cast<G const*>(p.gradient)[e]) * ctx.gradient_factor();
          velocity[e] = momentum * velocity[e] + gradient;
          static_cast<float*>(p.value)[e] -= ctx.info().learning_rate * velocity[e];
        }
      });
    }
  }
};
using scheduled_whole = lockstep::scheduled<whole_sgd, lockstep::step_decay>;

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
    train<all_reduce, rows, ruled_cases::weighing>(seed, ranks, "all_reduce, weighing");
    train<all_reduce, rows, ruled_cases::voting>(seed, ranks, "all_reduce, voting");
    train<gather, rows, ruled_cases::reporting>(seed, ranks, "gather, reporting");
    train<gather, rows, ruled_cases::counting>(seed, ranks, "gather, counting");
    train<sharded, rows, ruled_cases::measured>(seed, ranks, "sharded, measured");
    train<sharded, rows, ruled_cases::voting>(seed, ranks, "sharded, voting");
  }
}

TEST_CASE("trainer rules: whole optimizers are told the factor of weights, loss scale and bounded norm together") {
  std::uint64_t const first = tests::seed();
  for (std::uint64_t seed = first; seed < first + 20; ++seed) {
    int const ranks = static_cast<int>(tests::generator{seed ^ 0x5eedU}.whole(1, 8));
    CAPTURE(seed);
    CAPTURE(ranks);
    ruled_cases::train_case<host_setup, all_reduce, weighed_rows, ruled_cases::measured, scheduled_whole>(seed, ranks);
    ruled_cases::train_case<host_setup, gather, rows, ruled_cases::counting, scheduled_whole>(seed, ranks);
  }
}

namespace {

using weighed_model = support::ruled_model<lockstep::host, weighed_rows, lockstep::model_promises{}>;
constexpr lockstep::model_promises counts{.counts_weight = true};

template <class Model>
auto trainer_of(lockstep::gradient_rules const& rules) {
  return lockstep::trainer<Model, lockstep::sgd, all_reduce>{lockstep::devices::first(2),
                                                             [](auto& device) {
                                                               return Model{device, {3}, lockstep::element_type::f32, false};
                                                             },
                                                             lockstep::sgd{}, rules, host_setup::options()};
}

}  // namespace

TEST_CASE("trainer rules: bad rules and weights are refused before any work, and nothing is lost") {
  auto trainer = trainer_of<weighed_model>({.max_norm = 1.0F});
  std::vector<float> good{1, 31, 0.5F, 2, 31, 0.25F};
  weighed_rows batch{};
  batch.data = batch.on_host = good.data();
  batch.count = 2;
  batch.width = 3;
  CHECK_FALSE(trainer.step(batch).skipped());

  trainer.rules().max_norm.reset();
  CHECK(refused([&] { trainer.step(batch); }).find("which of them there are is fixed") != std::string::npos);
  trainer.rules().max_norm = -1.0F;
  CHECK(refused([&] { trainer.step(batch); }).find("max_norm must be greater than 0") != std::string::npos);
  trainer.rules().max_norm = 2.0F;
  good[0] = -3;
  CHECK(refused([&] { trainer.step(batch); }).find("batch_weight is finite, and not negative") != std::string::npos);
  good[0] = std::numeric_limits<float>::infinity();
  CHECK(refused([&] { trainer.step(batch); }).find("batch_weight is finite") != std::string::npos);
  good[0] = 1;
  CHECK(trainer.step(batch).applied_steps() == 2);

  CHECK(refused([] { static_cast<void>(trainer_of<weighed_model>({.max_norm = 0.0F})); }).find("max_norm") !=
        std::string::npos);
  lockstep::loss_scale narrow{.initial = 2, .highest = 1};
  CHECK(refused([&] { static_cast<void>(trainer_of<weighed_model>({.loss_scale = narrow})); }).find("loss_scale.initial") !=
        std::string::npos);
  auto both = trainer_of<support::ruled_model<lockstep::host, weighed_rows, counts>>({});
  CHECK(refused([&] { both.step(batch); }).find("the model counts it itself") != std::string::npos);
}

TEST_CASE("trainer rules: the fourth argument of a trainer may be braces, which are options") {
  lockstep::trainer<weighed_model, lockstep::sgd, all_reduce> trainer{
      lockstep::devices::first(2),
      [](auto& device) {
        return weighed_model{device, {3}, lockstep::element_type::f32, false};
      },
      lockstep::sgd{},
      {}};
  CHECK(trainer.size() == 2);
}
