// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

#include "support/policies.hpp"
#include "support/pull_model.hpp"
#include "support/pull_reference.hpp"

#include <lockstep/lockstep.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

using support::layout;
using support::marking;
using support::pull_model;
using support::pull_plan;
using support::pull_reference;
using support::pull_samples;
using support::random_plan;

namespace {

constexpr lockstep::model_promises accumulates{.honours_accumulate = true};

template <class Trainer>
bool replicas_identical(Trainer& trainer) {
  auto const& root = trainer.model().parameters();
  for (int r = 1; r < trainer.size(); ++r) {
    auto const& mine = trainer.model(lockstep::rank_id{r}).parameters();
    for (std::size_t p = 0; p < root.size(); ++p) {
      if (root[p].count() != 0 && std::memcmp(root[p].value, mine[p].value, root[p].values().bytes()) != 0) {
        return false;
      }
    }
  }
  return true;
}

template <class Model>
std::vector<float> values_of(Model& model) {
  std::vector<float> all;
  for (lockstep::parameter const& p : model.parameters()) {
    lockstep::visit(p.value_type, [&]<class T>(std::type_identity<T>) {
      for (std::size_t e = 0; e < p.count(); ++e) {
        all.push_back(static_cast<float>(static_cast<T const*>(p.value)[e]));
      }
    });
  }
  return all;
}

/// Cuts parameters, and does not say so.
struct cutting_policy : lockstep::sharded_optimizer<lockstep::automatic, support::small_buckets> {
  static constexpr bool splits_updates = false;
};

/// One random case under one policy: a few steps, each compared with the reference. Returns the values it ends with.
template <class Policy, lockstep::model_promises Promises>
std::vector<float> train_random_case(std::uint64_t seed, int ranks) {
  tests::generator random{seed};
  pull_plan const plan = random_plan(random);
  using model = pull_model<float, Promises>;
  lockstep::trainer<model, lockstep::sgd, Policy> trainer{lockstep::devices::first(ranks), [&](auto&) { return model{plan}; },
                                                          lockstep::sgd{.learning_rate = 0.125F, .momentum = 0.5F}};
  pull_reference truth{plan};
  for (int k = 0; k < 4; ++k) {
    pull_samples const samples{random, random.whole(1, random.chance(0.5) ? 9 : 257), random.whole(1, 8)};
    auto const result = trainer.step(samples.view(), {.micro_batches = random.whole(1, 4)});
    double const loss = truth.step(samples, 0.125);
    CHECK(result.loss() == doctest::Approx(loss).epsilon(1e-5));
    CHECK(result.samples() == samples.count);
    CHECK(result.step() == static_cast<std::uint64_t>(k + 1));
    CHECK_FALSE(result.skipped());
    CHECK(replicas_identical(trainer));
    double worst = 0;
    for (std::size_t p = 0; p < truth.values.size(); ++p) {
      auto const* const value = static_cast<float const*>(trainer.model().parameters()[p].value);
      for (std::size_t e = 0; e < truth.values[p].size(); ++e) {
        worst = std::max(worst, std::abs(static_cast<double>(value[e]) - truth.values[p][e]));
      }
    }
    CHECK(worst < 4e-6);  // values are of order 1, and each step adds a few roundings of 2^-24 each
  }
  return values_of(trainer.model());
}

}  // namespace

TEST_CASE("trainer: every policy, device count and batch size gives the gradient and loss of one device") {
  std::uint64_t const first = tests::seed();
  for (std::uint64_t seed = first; seed < first + 60; ++seed) {
    CAPTURE(seed);
    int const ranks = static_cast<int>(tests::generator{seed ^ 0x5eedU}.whole(1, 8));
    CAPTURE(ranks);
    train_random_case<lockstep::single_device, lockstep::model_promises{}>(seed, 1);
    train_random_case<lockstep::single_device, accumulates>(seed, 1);
    support::for_each_tuned_policy([&]<class Policy>(std::type_identity<Policy>, std::string const& name) {
      CAPTURE(name);
      train_random_case<Policy, lockstep::model_promises{}>(seed, ranks);
      train_random_case<Policy, accumulates>(seed, ranks);
    });
  }
}

TEST_CASE("trainer: the same seed gives the same bits in every run of one policy and device count") {
  std::uint64_t const first = tests::seed();
  for (std::uint64_t seed = first; seed < first + 10; ++seed) {
    CAPTURE(seed);
    support::for_each_tuned_policy([&]<class Policy>(std::type_identity<Policy>, std::string const& name) {
      CAPTURE(name);
      CHECK(train_random_case<Policy, lockstep::model_promises{}>(seed, 5) ==
            train_random_case<Policy, lockstep::model_promises{}>(seed, 5));
    });
  }
}

TEST_CASE("trainer: however gradient_ready is called, the result has the same bits") {
  std::uint64_t const seed = tests::seed();
  CAPTURE(seed);
  support::for_each_tuned_policy([&]<class Policy>(std::type_identity<Policy>, std::string const& name) {
    CAPTURE(name);
    std::vector<float> plain;
    for (int way = 0; way <= static_cast<int>(marking::shuffled); ++way) {
      CAPTURE(way);
      tests::generator random{seed};
      pull_plan plan = random_plan(random);
      plan.memory = layout::arena;
      plan.tied = {0};
      plan.marks = static_cast<marking>(way);
      lockstep::trainer<pull_model<>, lockstep::adamw, Policy> trainer{
          lockstep::devices::first(3), [&](auto&) { return pull_model<>{plan}; }, lockstep::adamw{}};
      for (int k = 0; k < 5; ++k) {
        pull_samples const samples{random, 17, 3};
        trainer.step(samples.view(), {.micro_batches = 2});
      }
      if (plain.empty()) {
        plain = values_of(trainer.model());
      }
      CHECK(values_of(trainer.model()) == plain);
    }
  });
}

TEST_CASE("trainer: a tied parameter is reduced and stepped once, however often it is listed") {
  support::for_each_parallel_policy([&]<class Policy>(std::type_identity<Policy>, std::string const& name) {
    CAPTURE(name);
    pull_plan plan{.counts = {4, 6}, .memory = layout::arena, .marks = marking::in_order, .tied = {1, 1}, .seed = 1};
    lockstep::trainer<pull_model<>, lockstep::sgd, Policy> trainer{lockstep::devices::first(2),
                                                                   [&](auto&) { return pull_model<>{plan}; },
                                                                   lockstep::sgd{.learning_rate = 0.125F, .momentum = 0.5F}};
    tests::generator random{7};
    pull_samples const samples{random, 8, 2};
    auto const before = values_of(trainer.model());
    trainer.step(samples.view());
    // One step of SGD with the gradient of three uses: value - rate * 3 * (value - mean of the samples).
    auto const* const after = static_cast<float const*>(trainer.model().parameters()[1].value);
    for (std::size_t e = 0; e < 6; ++e) {
      double mean = 0;
      for (std::size_t s = 0; s < 8; ++s) {
        mean += static_cast<double>(samples.data[s * 2 + (1 + e) % 2]) / 8;
      }
      double const value = static_cast<double>(before[4 + e]);
      CHECK(static_cast<double>(after[e]) == doctest::Approx(value - 0.125 * 3 * (value - mean)).epsilon(1e-5));
    }
  });
}

TEST_CASE("trainer: 16-bit values follow an f32 master") {
  support::for_each_parallel_policy([&]<class Policy>(std::type_identity<Policy>, std::string const& name) {
    CAPTURE(name);
    auto const end_of = [&]<class Value>(std::type_identity<Value>) {
      pull_plan const plan{.counts = {40, 3}};
      lockstep::trainer<pull_model<Value>, lockstep::sgd, Policy> trainer{
          lockstep::devices::first(3), [&](auto&) { return pull_model<Value>{plan}; }, lockstep::sgd{.learning_rate = 1e-3F}};
      tests::generator random{3};
      pull_samples const samples{random, 12, 5};
      for (int k = 0; k < 400; ++k) {
        trainer.step(samples.view());
      }
      CHECK(replicas_identical(trainer));
      return values_of(trainer.model());
    };
    // A step changes a value by less than half a unit of bfloat16 near 1, so without a master nothing would ever move.
    auto const exact = end_of(std::type_identity<float>{});
    auto const half = end_of(std::type_identity<lockstep::float16>{});
    auto const brain = end_of(std::type_identity<lockstep::bfloat16>{});
    for (std::size_t i = 0; i < exact.size(); ++i) {
      CHECK(std::abs(half[i] - exact[i]) < 2e-3F);
      CHECK(std::abs(brain[i] - exact[i]) < 1e-2F);
    }
  });
}

namespace {

struct line {  // y = a x + b, squared error
  using backend = lockstep::host;
  using batch = std::tuple<std::span<float const>, std::span<float const>>;
  float value[2]{}, gradient[2]{};
  std::array<lockstep::parameter, 2> parameters() {
    return {{{"a", &value[0], &gradient[0], {1}}, {"b", &value[1], &gradient[1], {1}}}};
  }
  void train(lockstep::train_context<backend>& ctx, batch const& shard) {
    auto const& [x, y] = shard;
    for (std::size_t i = 0; i < x.size(); ++i) {
      float const error = value[0] * x[i] + value[1] - y[i];
      *ctx.loss() += ctx.sample_weight() * error * error / 2;
      gradient[0] += ctx.sample_weight() * error * x[i];
      gradient[1] += ctx.sample_weight() * error;
    }
  }
};

/// Takes the mean over its shard, as models with a library's loss do.
struct mean_line : line {
  void train(lockstep::train_context<backend>& ctx, batch const& shard) {
    auto const& [x, y] = shard;
    float loss = 0;
    float by_a = 0;
    float by_b = 0;
    auto const mean = 1.0F / static_cast<float>(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      float const error = value[0] * x[i] + value[1] - y[i];
      loss += mean * error * error / 2;
      by_a += mean * error * x[i];
      by_b += mean * error;
    }
    *ctx.loss() += ctx.shard_weight() * loss;
    gradient[0] += ctx.shard_weight() * by_a;
    gradient[1] += ctx.shard_weight() * by_b;
  }
};

template <class Model, class Policy>
void fit_line(int ranks) {
  std::vector<float> x;
  std::vector<float> y;
  for (int i = 0; i < 101; ++i) {
    x.push_back(0.01F * static_cast<float>(i));
    y.push_back(3 * x.back() - 1);
  }
  lockstep::trainer<Model, lockstep::sgd, Policy> trainer{lockstep::devices::first(ranks), [](auto&) { return Model{}; },
                                                          lockstep::sgd{.learning_rate = 0.5F, .momentum = 0.9F}};
  for (int k = 0; k < 200; ++k) {
    trainer.step({x, y});
  }
  CHECK(trainer.model().value[0] == doctest::Approx(3).epsilon(1e-3));
  CHECK(trainer.model().value[1] == doctest::Approx(-1).epsilon(1e-3));
}

}  // namespace

TEST_CASE("trainer: the smallest whole program finds its line under every policy") {
  fit_line<line, lockstep::single_device>(1);
  fit_line<mean_line, lockstep::single_device>(1);
  support::for_each_parallel_policy([&]<class Policy>(std::type_identity<Policy>, std::string const& name) {
    CAPTURE(name);
    fit_line<line, Policy>(4);
    fit_line<mean_line, Policy>(4);  // means of uneven shards
  });
}

TEST_CASE("trainer: 9 samples on 4 devices and 36 on 7 leave no device without work") {
  for (auto const& [samples, ranks] : {std::pair{std::size_t{9}, 4}, std::pair{std::size_t{36}, 7}}) {
    std::vector<std::size_t> seen(static_cast<std::size_t>(ranks), 0);
    struct counter : line {
      std::size_t* seen = nullptr;
      void train(lockstep::train_context<backend>& ctx, batch const& shard) {
        *seen += lockstep::sample_count(shard);
        line::train(ctx, shard);
      }
    };
    lockstep::trainer<counter, lockstep::sgd, lockstep::replicate_and_gather<>> trainer{
        lockstep::devices::first(ranks),
        [&](lockstep::device_context<lockstep::host>& device) {
          counter made;
          made.seen = &seen[static_cast<std::size_t>(lockstep::number(device.rank()))];
          return made;
        },
        lockstep::sgd{}};
    std::vector<float> const x(samples, 1.0F);
    trainer.step({x, x});
    auto const [least, most] = std::minmax_element(seen.begin(), seen.end());
    CHECK(*most - *least <= 1);
    CHECK(*least > 0);
  }
}

TEST_CASE("trainer: with fewer samples than devices, replicated arguments go to those that work") {
  struct tempered : line {
    using batch = std::tuple<std::span<float const>, std::span<float const>, lockstep::replicated<float>>;
    void train(lockstep::train_context<backend>& ctx, batch const& shard) {
      CHECK(std::get<2>(shard).value == 2.0F);
      line::train(ctx, {std::get<0>(shard), std::get<1>(shard)});
    }
  };
  support::for_each_parallel_policy([&]<class Policy>(std::type_identity<Policy>, std::string const& name) {
    CAPTURE(name);
    lockstep::trainer<tempered, lockstep::sgd, Policy> trainer{lockstep::devices::first(4), [](auto&) { return tempered{}; },
                                                               lockstep::sgd{.learning_rate = 0.5F}};
    std::vector<float> const x{1.0F};
    std::vector<float> const y{2.0F};
    CHECK(trainer.step({x, y, lockstep::replicated{2.0F}}).loss() == doctest::Approx(2.0));
    CHECK(trainer.model(lockstep::rank_id{3}).value[1] == doctest::Approx(1.0));
  });
}

TEST_CASE("trainer: shards that are there already, one a device, empty ones too") {
  support::for_each_parallel_policy([&]<class Policy>(std::type_identity<Policy>, std::string const& name) {
    CAPTURE(name);
    tests::generator random{11};
    pull_samples const all{random, 10, 3};
    lockstep::trainer<pull_model<>, lockstep::sgd, Policy> whole{lockstep::devices::first(3),
                                                                 [](auto&) { return pull_model<>{{}}; }, lockstep::sgd{}};
    lockstep::trainer<pull_model<>, lockstep::sgd, Policy> parts{lockstep::devices::first(3),
                                                                 [](auto&) { return pull_model<>{{}}; }, lockstep::sgd{}};
    auto const view = all.view();
    double const loss = whole.step(view).loss();
    std::vector<pull_model<>::batch> const shards{lockstep::slice(view, 0, 7), lockstep::slice(view, 7, 0),
                                                  lockstep::slice(view, 7, 3)};
    CHECK(parts.step_shards(shards).loss() == doctest::Approx(loss).epsilon(1e-5));
    auto const a = values_of(whole.model());
    auto const b = values_of(parts.model());
    for (std::size_t i = 0; i < a.size(); ++i) {
      CHECK(a[i] == doctest::Approx(b[i]).epsilon(1e-5));
    }
    CHECK_THROWS_AS(parts.step_shards(std::span{shards}.first(2)), lockstep::usage_error);
    std::vector<pull_model<>::batch> const none(3, lockstep::slice(view, 0, 0));
    CHECK_THROWS_AS(parts.step_shards(none), lockstep::usage_error);
  });
}

TEST_CASE("trainer: predictions are gathered in the order of the batch") {
  tests::generator random{5};
  pull_samples const all{random, 23, 4};
  std::vector<float> expected(23);
  lockstep::trainer<pull_model<>, lockstep::sgd, lockstep::single_device> one{
      lockstep::devices::first(1), [](auto&) { return pull_model<>{{}}; }, lockstep::sgd{}};
  one.predict(all.view(), std::span{expected});
  support::for_each_parallel_policy([&]<class Policy>(std::type_identity<Policy>, std::string const& name) {
    CAPTURE(name);
    for (int const ranks : {1, 2, 7}) {
      lockstep::trainer<pull_model<>, lockstep::sgd, Policy> trainer{lockstep::devices::first(ranks),
                                                                     [](auto&) { return pull_model<>{{}}; }, lockstep::sgd{}};
      std::vector<float> got(23, -99.0F);
      trainer.predict(all.view(), std::span{got});
      CHECK(got == expected);
      std::vector<float> few(3, -99.0F);
      trainer.predict(lockstep::slice(all.view(), 4, 3), std::span{few});
      CHECK(std::equal(few.begin(), few.end(), expected.begin() + 4));
      CHECK_THROWS_WITH_AS(trainer.predict(all.view(), std::span{few}),
                           "lockstep: predict: the batch has 23 samples, the output has room for 3", lockstep::usage_error);
    }
  });
}

TEST_CASE("trainer: parameter groups have an optimizer each, and hyperparameters change between steps") {
  struct grouped : pull_model<> {
    grouped() : pull_model<>({.counts = {2, 2}}) { listed_[1].group = 1; }
  };
  support::for_each_parallel_policy([&]<class Policy>(std::type_identity<Policy>, std::string const& name) {
    CAPTURE(name);
    lockstep::trainer<grouped, lockstep::sgd, Policy> trainer{
        lockstep::devices::first(2),
        [](auto&) { return grouped{}; },
        {lockstep::sgd{.learning_rate = 0.5F}, lockstep::sgd{.learning_rate = 0.0F}}};
    tests::generator random{2};
    pull_samples const samples{random, 6, 1};
    auto const start = values_of(trainer.model());
    trainer.step(samples.view());
    auto const first = values_of(trainer.model());
    CHECK(first[0] != start[0]);
    CHECK(first[2] == start[2]);
    trainer.optimizer(0).learning_rate = 0.0F;
    trainer.optimizer(1).learning_rate = 0.5F;
    trainer.step(samples.view());
    auto const second = values_of(trainer.model());
    CHECK(second[0] == first[0]);
    CHECK(second[2] != first[2]);
    CHECK(replicas_identical(trainer));
    CHECK_THROWS_AS(static_cast<void>(trainer.optimizer(2)), lockstep::usage_error);
  });
}

namespace {

/// A whole optimizer: signed gradient steps, counting its own calls.
struct sign_descent {
  float rate = 0.25F;
  int calls = 0;
  std::size_t listed = 0;

  void step(lockstep::update_context<lockstep::host>& ctx, std::span<lockstep::parameter const> parameters) {
    ++calls;
    listed = parameters.size();
    for (lockstep::parameter const& p : parameters) {
      for (std::size_t e = 0; e < p.count(); ++e) {
        float const g = static_cast<float const*>(p.gradient)[e] * ctx.gradient_factor();
        static_cast<float*>(p.value)[e] -= g > 0 ? rate : g < 0 ? -rate : 0;
      }
    }
  }
};

}  // namespace

TEST_CASE("trainer: a whole optimizer steps each distinct parameter once, where the policy updates") {
  support::for_each_parallel_policy([&]<class Policy>(std::type_identity<Policy>, std::string const& name) {
    CAPTURE(name);
    pull_plan const plan{.counts = {3, 4, 5}, .tied = {1}};
    lockstep::trainer<pull_model<>, sign_descent, Policy> trainer{lockstep::devices::first(3),
                                                                  [&](auto&) { return pull_model<>{plan}; }, sign_descent{}};
    tests::generator random{4};
    pull_samples const samples{random, 9, 2};
    auto const before = values_of(trainer.model());
    trainer.step(samples.view());
    auto const after = values_of(trainer.model());
    for (std::size_t i = 0; i < before.size(); ++i) {
      CHECK(std::abs(after[i] - before[i]) == 0.25F);
    }
    CHECK(replicas_identical(trainer));
    CHECK(trainer.optimizer(0, lockstep::rank_id{0}).calls == 1);
    CHECK(trainer.optimizer(0, lockstep::rank_id{0}).listed == 3);
    bool const root_only = name.find("gather") != std::string::npos;
    CHECK(trainer.optimizer(0, lockstep::rank_id{2}).calls == (root_only ? 0 : 1));
  });
}

TEST_CASE("trainer: a parameter that no rank used keeps value and optimizer state; used somewhere, it gets the sum") {
  constexpr lockstep::model_promises reports{.honours_accumulate = true, .reports_unused = true};
  using model = pull_model<float, reports>;
  support::for_each_parallel_policy([&]<class Policy>(std::type_identity<Policy>, std::string const& name) {
    CAPTURE(name);
    for (marking const marks : {marking::none, marking::in_order}) {
      pull_plan const plan{.counts = {3, 4, 5}, .memory = layout::arena, .marks = marks, .tied = {}, .seed = 1};
      lockstep::trainer<model, lockstep::sgd, Policy> trainer{
          lockstep::devices::first(3), [&](auto&) { return model{plan}; },
          lockstep::sgd{.learning_rate = 0.1F, .momentum = 0.9F, .weight_decay = 0.1F}};
      tests::generator random{4};
      pull_samples const samples{random, 9, 1};
      trainer.step(samples.view());  // momentum is no longer zero
      for (int r = 0; r < 3; ++r) {
        trainer.model(lockstep::rank_id{r}).leave_out = {1};
      }
      auto const before = values_of(trainer.model());
      trainer.step(samples.view(), {.micro_batches = 2});
      auto const after = values_of(trainer.model());
      CHECK(std::equal(before.begin() + 3, before.begin() + 7, after.begin() + 3));
      CHECK(before[0] != after[0]);
      CHECK(before[7] != after[7]);
      CHECK(replicas_identical(trainer));

      // Used on rank 1 only: the gradient is that rank's part.
      trainer.model(lockstep::rank_id{1}).leave_out = {};
      trainer.optimizer().momentum = 0;
      trainer.optimizer().weight_decay = 0;
      trainer.step(samples.view());
      auto const last = values_of(trainer.model());
      double pull = 0;
      for (std::size_t s = 3; s < 6; ++s) {
        pull += static_cast<double>(after[3]) - static_cast<double>(samples.data[s]);
      }
      CHECK(static_cast<double>(last[3]) == doctest::Approx(static_cast<double>(after[3]) - 0.1 * pull / 9).epsilon(1e-5));
      CHECK(replicas_identical(trainer));
    }
  });
}

namespace {

/// Lists one of its parameters twice, and leaves the second listing out.
struct half_used : line {
  static constexpr lockstep::model_promises promises{.honours_accumulate = true, .reports_unused = true};
  bool second_first = false;
  std::array<lockstep::parameter, 3> parameters() {
    auto const [a, b] = line::parameters();
    lockstep::parameter again = a;
    again.name = "a.again";
    return {a, b, again};
  }
  void train(lockstep::train_context<backend>& ctx, batch const& shard) {
    if (second_first) {
      ctx.unused(2);
    }
    if (!ctx.accumulate()) {
      gradient[0] = gradient[1] = 0;
    }
    line::train(ctx, shard);
    ctx.gradient_ready(0, 2);
    if (!second_first) {
      ctx.unused(2);
    }
  }
};

}  // namespace

TEST_CASE("trainer: a tied parameter that one of its listings leaves out keeps the gradient of the other") {
  support::for_each_tuned_policy([&]<class Policy>(std::type_identity<Policy>, std::string const& name) {
    CAPTURE(name);
    for (bool const second_first : {false, true}) {
      auto const build = [&](auto&) {
        half_used made;
        made.second_first = second_first;
        return made;
      };
      lockstep::trainer<half_used, lockstep::sgd, Policy> trainer{lockstep::devices::first(2), build,
                                                                  lockstep::sgd{.learning_rate = 0.5F}};
      std::vector<float> const x(4, 1.0F);
      std::vector<float> const y(4, 2.0F);
      for (int k = 0; k < 3; ++k) {
        trainer.step({x, y});
      }
      // One device: error 2, then 0; a and b both 1 after the first step.
      CHECK(trainer.model().value[0] == doctest::Approx(1.0));
      CHECK(trainer.model().value[1] == doctest::Approx(1.0));
    }
  });
}

TEST_CASE("trainer: an infinite deadline is none") {
  lockstep::trainer<line, lockstep::sgd, lockstep::peer_all_reduce<>> trainer{
      lockstep::devices::first(3), [](auto&) { return line{}; }, lockstep::sgd{},
      lockstep::host::options{.timeout_seconds = std::numeric_limits<double>::infinity()}};
  std::vector<float> const x(10, 1.0F);
  CHECK(trainer.step({x, x}).samples() == 10);
}

TEST_CASE("trainer: optimizer state is cut between ranks as the policy cuts the update") {
  pull_plan const plan{.counts = {1000, 24, 600}};
  lockstep::trainer<pull_model<lockstep::bfloat16>, lockstep::adamw,
                    lockstep::sharded_optimizer<lockstep::automatic, support::small_buckets>>
      trainer{lockstep::devices::first(4), [&](auto&) { return pull_model<lockstep::bfloat16>{plan}; }, lockstep::adamw{}};
  tests::generator random{4};
  pull_samples const samples{random, 8, 1};
  trainer.step(samples.view());
  std::size_t state = 0;
  for (int r = 0; r < 4; ++r) {
    std::size_t const here = trainer.memory(lockstep::rank_id{r})[lockstep::memory_use::optimizer_state];
    CHECK(here < 1624 * 3 * sizeof(float) / 2);
    state += here;
  }
  CHECK(state == 1624 * 3 * sizeof(float));  // two moments and a master for each element, once
}

TEST_CASE("trainer: a whole optimizer is refused where the policy cuts parameters") {
  CHECK_THROWS_WITH_AS((lockstep::trainer<pull_model<>, sign_descent, cutting_policy>{
                           lockstep::devices::first(2), [](auto&) { return pull_model<>{{.counts = {100}}}; }, sign_descent{}}),
                       doctest::Contains("the policy cuts 'p0' between ranks"), lockstep::usage_error);
}

TEST_CASE("trainer: buffers are the root's on every rank after each step") {
  struct counting : line {
    float running[3]{};
    std::int64_t seen = 0;
    std::array<lockstep::parameter, 4> parameters() {
      auto const [a, b] = line::parameters();
      return {a, lockstep::buffer("running", running, {3}), b, lockstep::buffer("seen", &seen, {})};
    }
    void train(lockstep::train_context<backend>& ctx, batch const& shard) {
      running[1] += static_cast<float>(1 + lockstep::number(ctx.rank()));
      seen += static_cast<std::int64_t>(lockstep::sample_count(shard));
      line::train(ctx, shard);
    }
  };
  support::for_each_parallel_policy([&]<class Policy>(std::type_identity<Policy>, std::string const& name) {
    CAPTURE(name);
    lockstep::trainer<counting, lockstep::sgd, Policy> trainer{lockstep::devices::first(3), [](auto&) { return counting{}; },
                                                               lockstep::sgd{}};
    std::vector<float> const x(7, 1.0F);
    trainer.step({x, x});
    trainer.step({x, x});
    for (int r = 0; r < 3; ++r) {
      CHECK(trainer.model(lockstep::rank_id{r}).running[1] == 2.0F);
      CHECK(trainer.model(lockstep::rank_id{r}).seen == 6);
    }
  });
}

TEST_CASE("trainer: parameters have the same names under every policy, on every rank, whatever was trained") {
  auto const names_under = []<class Policy>(std::type_identity<Policy>, int ranks) {
    pull_plan const plan{.counts = {3, 4}, .tied = {1}};
    lockstep::trainer<pull_model<>, lockstep::adamw, Policy> trainer{
        lockstep::devices::first(ranks), [&](auto&) { return pull_model<>{plan}; }, lockstep::adamw{}};
    tests::generator random{4};
    pull_samples const samples{random, 9, 2};
    trainer.step(samples.view());
    std::vector<std::string> names;
    for (lockstep::parameter const& p : trainer.model(lockstep::rank_id{ranks - 1}).parameters()) {
      names.push_back(p.name);
    }
    return names;
  };
  std::vector<std::string> const plain{"p0", "p1", "p1.again"};
  CHECK(names_under(std::type_identity<lockstep::single_device>{}, 1) == plain);
  support::for_each_parallel_policy([&]<class Policy>(std::type_identity<Policy> policy, std::string const& name) {
    CAPTURE(name);
    CHECK(names_under(policy, 3) == plain);
  });
}

TEST_CASE("trainer: every rank starts from the values of rank 0") {
  support::for_each_parallel_policy([&]<class Policy>(std::type_identity<Policy>, std::string const& name) {
    CAPTURE(name);
    lockstep::trainer<line, lockstep::sgd, Policy> trainer{lockstep::devices::first(4),
                                                           [](lockstep::device_context<lockstep::host>& device) {
                                                             line made;
                                                             made.value[0] = static_cast<float>(number(device.rank())) + 5;
                                                             return made;
                                                           },
                                                           lockstep::sgd{}};
    for (int r = 0; r < 4; ++r) {
      CHECK(trainer.model(lockstep::rank_id{r}).value[0] == 5.0F);
    }
  });
}

TEST_CASE("trainer: the memory report shows each device's share, optimizer state with the root only where gathered") {
  pull_plan const plan{.counts = {100, 28}};
  lockstep::trainer<pull_model<>, lockstep::adamw, lockstep::replicate_and_gather<>> gather{
      lockstep::devices::first(3), [&](auto&) { return pull_model<>{plan}; }, lockstep::adamw{}};
  lockstep::trainer<pull_model<>, lockstep::adamw, lockstep::peer_all_reduce<>> peers{
      lockstep::devices::first(3), [&](auto&) { return pull_model<>{plan}; }, lockstep::adamw{}};
  for (int r = 0; r < 3; ++r) {
    auto const here = gather.memory(lockstep::rank_id{r});
    CHECK(here[lockstep::memory_use::parameters] == 128 * 4);
    CHECK(here[lockstep::memory_use::gradients] == 128 * 4);
    CHECK(here[lockstep::memory_use::optimizer_state] == (r == 0 ? 2 * 128 * 4 : 0));
    CHECK(here.peak_bytes >= here.total());
    CHECK(peers.memory(lockstep::rank_id{r})[lockstep::memory_use::optimizer_state] == 2 * 128 * 4);
  }
}

TEST_CASE("trainer: under sharded_optimizer each device keeps its part of the optimizer state") {
  pull_plan const plan{.counts = {16 * 1000, 16 * 2000}};
  for (int const ranks : {1, 2, 3, 4, 6}) {
    CAPTURE(ranks);
    lockstep::trainer<pull_model<>, lockstep::adamw, lockstep::sharded_optimizer<>> trainer{
        lockstep::devices::first(ranks), [&](auto&) { return pull_model<>{plan}; }, lockstep::adamw{}};
    std::size_t const share = 2 * 16 * 3000 * sizeof(float) / static_cast<std::size_t>(ranks);
    for (int r = 0; r < ranks; ++r) {
      std::size_t const here = trainer.memory(lockstep::rank_id{r})[lockstep::memory_use::optimizer_state];
      CHECK(here <= share + 1024);  // parts are cut at multiples of 16 elements, and slots aligned
      CHECK(here + 1024 >= share);
    }
  }
}

TEST_CASE("trainer: bytes moved a step are those of the policy's formula") {
  pull_plan const plan{.counts = {1600}};
  constexpr std::uint64_t bytes = 1600 * 4;
  tests::generator random{4};
  pull_samples const samples{random, 8, 1};
  auto const moved_a_step = [&](auto& trainer) {
    trainer.step(samples.view());
    trainer.step(samples.view());
    std::uint64_t const before = trainer.bytes_moved();
    trainer.step(samples.view());
    return trainer.bytes_moved() - before;
  };
  lockstep::trainer<pull_model<>, lockstep::sgd, lockstep::single_device> one{
      lockstep::devices::first(1), [&](auto&) { return pull_model<>{plan}; }, lockstep::sgd{}};
  CHECK(moved_a_step(one) == 0);
  lockstep::trainer<pull_model<>, lockstep::sgd, lockstep::peer_all_reduce<>> peers{
      lockstep::devices::first(4), [&](auto&) { return pull_model<>{plan}; }, lockstep::sgd{}};
  std::uint64_t const peer_bytes = moved_a_step(peers);
  CHECK(peer_bytes >= 2 * bytes * 3);                                        // 2 G (N - 1) over all devices ...
  CHECK(peer_bytes <= 2 * bytes * 3 + 2 * sizeof(lockstep::step_sums) * 3);  // ... and the sums of a step
  lockstep::trainer<pull_model<>, lockstep::sgd, lockstep::replicate_and_gather<>> gather{
      lockstep::devices::first(4), [&](auto&) { return pull_model<>{plan}; }, lockstep::sgd{}};
  std::uint64_t const gather_bytes = moved_a_step(gather);
  // G (N - 1) to the root, added up by all ranks together and so a part more, and P (N - 1) from it.
  CHECK(gather_bytes >= bytes * 3 + bytes * 3);
  CHECK(gather_bytes <= bytes * 3 + bytes * 3 / 4 + bytes * 3 + 2 * sizeof(lockstep::step_sums) * 3);
}

namespace {

/// A policy of the user's own: peer_all_reduce that counts what it sends.
struct counting_all_reduce {
  using transport = lockstep::shared_memory;
  static constexpr lockstep::tuning tuning_values{};
  static inline std::atomic<int> reductions{0};

  static void reduce(lockstep::shared_memory_communicator& communicator, lockstep::typed_span gradients,
                     lockstep::host::stream_ref stream) {
    ++reductions;
    communicator.all_reduce(gradients, lockstep::reduction::sum, stream);
  }
  static constexpr lockstep::plan::range owned(std::size_t count, lockstep::rank_id, int) noexcept { return {0, count}; }
};

}  // namespace

TEST_CASE("trainer: thousands of small tensors travel as one, and a policy may be the user's own") {
  for (layout const memory : {layout::arena, layout::scattered}) {
    pull_plan const plan{.counts = std::vector<std::size_t>(3000, 5), .memory = memory, .marks = marking::in_order};
    lockstep::trainer<pull_model<>, lockstep::sgd, counting_all_reduce> trainer{
        lockstep::devices::first(3), [&](auto&) { return pull_model<>{plan}; }, lockstep::sgd{}};
    tests::generator random{4};
    pull_samples const samples{random, 8, 1};
    for (int k = 0; k < 3; ++k) {
      counting_all_reduce::reductions = 0;
      trainer.step(samples.view());
      CHECK(counting_all_reduce::reductions == 3);  // one a rank
    }
    CHECK(replicas_identical(trainer));
    // Gradients in an arena are never kept twice; scattered ones need the one staging span.
    std::size_t const staging = trainer.memory(lockstep::rank_id{0})[lockstep::memory_use::staging];
    CHECK(staging == (memory == layout::arena ? 0 : 3000 * 5 * sizeof(float)));
  }
}

TEST_CASE("trainer: devices::all is one device a hardware thread") {
  lockstep::trainer<line, lockstep::sgd, lockstep::peer_all_reduce<>> trainer{lockstep::devices::all(),
                                                                              [](auto&) { return line{}; }, lockstep::sgd{}};
  CHECK(trainer.size() == lockstep::host::device_count());
  std::vector<float> const x(100, 1.0F);
  CHECK(trainer.step({x, x}).samples() == 100);
}

TEST_CASE("trainer: several trainers live side by side, and one after another") {
  auto const make = [] {
    return std::make_unique<lockstep::trainer<line, lockstep::sgd, lockstep::peer_all_reduce<>>>(
        lockstep::devices::first(3), [](auto&) { return line{}; }, lockstep::sgd{});
  };
  auto a = make();
  auto b = make();
  std::vector<float> const x(10, 1.0F);
  for (int k = 0; k < 20; ++k) {
    CHECK(a->step({x, x}).loss() == b->step({x, x}).loss());
  }
  a.reset();
  auto c = make();
  CHECK(c->step({x, x}).loss() > b->step({x, x}).loss());
}
