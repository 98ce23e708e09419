// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#include "../seed.hpp"
#include "../support/thrown.hpp"

#include <lockstep/lockstep.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

using lockstep::adam;
using lockstep::adamw;
using lockstep::clipped_by_value;
using lockstep::cosine;
using lockstep::host;
using lockstep::scheduled;
using lockstep::sgd;
using lockstep::step_decay;
using lockstep::update_info;
using lockstep::warm_up;
using support::refusal;
using support::refused;

namespace {

/// No slots and no rate of its own: what it is told is the step.
struct told {
  LOCKSTEP_HOST_DEVICE float prepare(update_info const& info) const { return info.learning_rate; }
  LOCKSTEP_HOST_DEVICE float operator()(float value, float, float rate) const { return value - rate; }
};
/// Whole: keeps what it was told.
struct keeps_rates {
  float learning_rate = 1;
  std::shared_ptr<std::vector<float>> rates = std::make_shared<std::vector<float>>();
  void step(lockstep::update_context<host>& ctx, std::span<lockstep::parameter const> parameters) {
    CHECK(ctx.info().step == rates->size() + 1);
    rates->push_back(ctx.info().learning_rate);
    for (lockstep::parameter const& p : parameters) {
      auto const* const gradient = static_cast<float const*>(p.gradient);
      for (std::size_t i = 0; i < p.count(); ++i) {
        static_cast<float*>(p.value)[i] -= ctx.info().learning_rate * ctx.gradient_factor() * gradient[i];
      }
    }
  }
};

template <class O>
inline constexpr bool is_like_its_base =
    lockstep::elementwise_optimizer<scheduled<O, cosine>>&& std::is_aggregate_v<scheduled<O, cosine>>&&
            lockstep::slot_count<scheduled<O, cosine>> ==
        lockstep::slot_count<O>&& std::is_same_v<lockstep::prepared_type<scheduled<O, cosine>>, lockstep::prepared_type<O>> &&
    !lockstep::whole_optimizer<scheduled<O, cosine>, host>;
static_assert(is_like_its_base<sgd> && is_like_its_base<adam> && is_like_its_base<adamw> && is_like_its_base<told>);
static_assert(is_like_its_base<clipped_by_value<adamw>> && is_like_its_base<scheduled<adamw, step_decay>>);
static_assert(lockstep::elementwise_optimizer<clipped_by_value<scheduled<adamw, cosine>>>);
static_assert(lockstep::slot_names<scheduled<adamw, cosine>>()[1] == "second_moment");
static_assert(std::is_same_v<decltype(scheduled{adamw{.learning_rate = 1}, warm_up{5, cosine{.steps = 10}}}),
                             scheduled<adamw, warm_up<cosine>>>);
static_assert(lockstep::whole_optimizer<scheduled<keeps_rates, cosine>, host>);
static_assert(lockstep::optimizer<scheduled<keeps_rates, cosine>, host>);
static_assert(!lockstep::elementwise_optimizer<scheduled<keeps_rates, cosine>>);

struct line {  // y = a x + b, squared error
  using backend = host;
  using batch = std::tuple<std::span<float const>, std::span<float const>>;
  float value[2]{}, gradient[2]{};
  std::array<lockstep::parameter, 2> parameters() {
    return {{{"a", &value[0], &gradient[0], {1}}, {"b", &value[1], &gradient[1], {1}, {.group = 1}}}};
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

struct samples {
  std::vector<float> x, y;

  explicit samples(tests::generator& random) {
    for (int i = 0; i < 20; ++i) {
      x.push_back(random.real(-1, 1));
      y.push_back(3 * x.back() - 1);
    }
  }
};

using values = std::array<float, 2>;

/// Where training ends: both parameters after each of 40 steps. `before` may change the optimizer before step t = 1, 2, ...
template <class Policy, class Optimizer>
std::vector<values> path(int devices, samples const& data, Optimizer const& optimizer,
                         std::function<void(Optimizer&, std::uint64_t)> const& before = {}) {
  lockstep::trainer<line, Optimizer, Policy> trainer{lockstep::devices::first(devices), [](auto&) { return line{}; },
                                                     optimizer};
  std::vector<values> all;
  for (std::uint64_t t = 1; t <= 40; ++t) {
    if (before) {
      before(trainer.optimizer(), t);
    }
    trainer.step({data.x, data.y});
    all.push_back({trainer.model().value[0], trainer.model().value[1]});
  }
  return all;
}

using falling = warm_up<cosine>;
constexpr falling one_schedule{5, {.steps = 30, .floor = 0.1F}};

/// The optimizer under that schedule on three devices: what it does with its rate set by hand each step.
template <class Optimizer>
std::vector<values> trains_as_by_hand(Optimizer const& optimizer, samples const& data) {
  using policy = lockstep::peer_all_reduce<>;
  float const rate = optimizer.learning_rate;
  auto const got = path<policy>(3, data, scheduled{optimizer, one_schedule});
  CHECK(got == path<policy, Optimizer>(3, data, optimizer,
                                       [&](Optimizer& o, std::uint64_t t) { o.learning_rate = rate * one_schedule(t); }));
  CHECK(got != path<policy>(3, data, optimizer));
  return got;
}

void check_near(std::vector<values> const& got, std::vector<values> const& right) {
  for (std::size_t t = 0; t < right.size(); ++t) {
    for (std::size_t i = 0; i < 2; ++i) {
      CAPTURE(t);
      CHECK(std::abs(got[t][i] - right[t][i]) <= 1e-4F);
    }
  }
}

}  // namespace

TEST_CASE("scheduled: the learning rate that the optimizer prepares from is the schedule's") {
  auto const seed = tests::seed();
  INFO("LOCKSTEP_TEST_SEED=", seed);
  tests::generator random{seed};
  for (int i = 0; i < 1000; ++i) {
    warm_up const schedule{random.whole(0, 50), cosine{.steps = random.whole(1, 50), .floor = random.real(0, 1)}};
    scheduled const o{told{}, schedule};
    update_info const info{.step = random.whole(1, 120), .learning_rate = random.real(0, 1), .group = 3};
    REQUIRE(o.prepare(info) == info.learning_rate * schedule(info.step));
  }
}

TEST_CASE("scheduled: the step and the group reach the optimizer as they are") {
  struct tells {
    update_info prepare(update_info const& info) const { return info; }
    float operator()(float value, float, update_info const&) const { return value; }
  };
  update_info const got = scheduled{tells{}, lockstep::constant{0.5F}}.prepare({.step = 7, .learning_rate = 4, .group = 2});
  CHECK(got.step == 7);
  CHECK(got.learning_rate == 2.0F);
  CHECK(got.group == 2);
}

TEST_CASE("scheduled: one step of any optimizer is that at the scheduled rate, bit for bit") {
  auto const seed = tests::seed();
  INFO("LOCKSTEP_TEST_SEED=", seed);
  tests::generator random{seed};
  for (int i = 0; i < 1000; ++i) {
    step_decay const schedule{random.whole(1, 20), random.real(0.1F, 1)};
    std::uint64_t const t = random.whole(1, 100);
    float const gradient = random.real(-1, 1);
    sgd const descend{.learning_rate = random.real(0, 1), .momentum = random.real(0, 1)};
    scheduled const decaying{descend, schedule};
    float slot = random.real(-1, 1);
    float same_slot = slot;
    float const got = decaying(1, gradient, slot, decaying.prepare({.step = t, .learning_rate = decaying.learning_rate}));
    float const right =
        descend(1, gradient, same_slot, descend.prepare({.step = t, .learning_rate = descend.learning_rate * schedule(t)}));
    REQUIRE(got == right);
    REQUIRE(slot == same_slot);
  }
}

TEST_CASE("scheduled: schedules of schedules multiply") {
  scheduled const o{scheduled{told{}, step_decay{.every = 2, .gamma = 0.5F}}, warm_up<>{.steps = 4}};
  for (std::uint64_t t = 1; t <= 10; ++t) {
    CHECK(o.prepare({.step = t, .learning_rate = 8}) == 8 * warm_up<>{.steps = 4}(t)*step_decay{2, 0.5F}(t));
  }
}

TEST_CASE("scheduled: clipped by value first or last, the steps are the same, bit for bit") {
  auto const seed = tests::seed();
  INFO("LOCKSTEP_TEST_SEED=", seed);
  tests::generator random{seed};
  adamw const adapt{.learning_rate = 0.1F};
  scheduled const first{clipped_by_value{adapt, 0.25F}, one_schedule};
  clipped_by_value const last{scheduled{adapt, one_schedule}, 0.25F};
  std::array<float, 3> a{1, 0, 0};
  std::array<float, 3> b = a;
  std::array<float, 3> right = a;
  for (std::uint64_t t = 1; t <= 50; ++t) {
    float const gradient = random.real(-1, 1);
    update_info const info{.step = t, .learning_rate = adapt.learning_rate};
    update_info const now{.step = t, .learning_rate = adapt.learning_rate * one_schedule(t)};
    a[0] = first(a[0], gradient, a[1], a[2], first.prepare(info));
    b[0] = last(b[0], gradient, b[1], b[2], last.prepare(info));
    right[0] = adapt(right[0], std::clamp(gradient, -0.25F, 0.25F), right[1], right[2], adapt.prepare(now));
    REQUIRE(a == right);
    REQUIRE(b == right);
  }
}

TEST_CASE("scheduled: clipped gradients are those of the mean loss over all devices") {
  tests::generator random{1};
  samples const data{random};
  clipped_by_value const o{scheduled{sgd{.learning_rate = 1}, falling{4, {.steps = 1}}}, 0.25F};  // a quarter in step 1
  values const after = path<lockstep::peer_all_reduce<>>(3, data, o).front();
  double by_a = 0;
  double by_b = 0;
  for (std::size_t i = 0; i < data.x.size(); ++i) {  // at a = b = 0
    by_a -= static_cast<double>(data.y[i] * data.x[i]) / static_cast<double>(data.x.size());
    by_b -= static_cast<double>(data.y[i]) / static_cast<double>(data.x.size());
  }
  REQUIRE(by_a < -0.3);
  REQUIRE(by_b > 0.3);
  CHECK(after[0] == 0.0625F);
  CHECK(after[1] == -0.0625F);
}

TEST_CASE("scheduled: sgd, adam and adamw train on three devices as with the rate set by hand, and as on one") {
  auto const seed = tests::seed();
  INFO("LOCKSTEP_TEST_SEED=", seed);
  tests::generator random{seed};
  samples const data{random};
  scheduled const descend{sgd{.learning_rate = 0.3F, .momentum = 0.5F}, one_schedule};
  scheduled const adapt{adamw{.learning_rate = 0.1F, .epsilon = 1e-2F}, one_schedule};
  auto const descended = path<lockstep::single_device>(1, data, descend);
  check_near(trains_as_by_hand<sgd>(descend, data), descended);
  check_near(path<lockstep::sharded_optimizer<>>(3, data, descend), descended);
  check_near(trains_as_by_hand<adamw>(adapt, data), path<lockstep::single_device>(1, data, adapt));
  trains_as_by_hand(adam{.learning_rate = 0.1F, .epsilon = 1e-2F}, data);
}

TEST_CASE("scheduled: a learning rate, and a schedule, that are changed between steps hold from the next on") {
  tests::generator random{3};
  samples const data{random};
  using optimizer = scheduled<sgd, falling>;
  falling const slow{2, {.steps = 100}};
  falling const fast{2, {.steps = 30}};
  auto const got = path<lockstep::peer_all_reduce<>, optimizer>(3, data, optimizer{{.learning_rate = 0.5F}, slow},
                                                                [&](optimizer& o, std::uint64_t t) {
                                                                  if (t == 12) {
                                                                    o.learning_rate = 0.25F;
                                                                  }
                                                                  if (t == 20) {
                                                                    o.schedule = fast;
                                                                  }
                                                                });
  auto const by_hand = path<lockstep::peer_all_reduce<>, sgd>(
      3, data, sgd{}, [&](sgd& o, std::uint64_t t) { o.learning_rate = (t < 12 ? 0.5F : 0.25F) * (t < 20 ? slow : fast)(t); });
  CHECK(got == by_hand);
}

TEST_CASE("scheduled: each parameter group has its own rate and schedule") {
  tests::generator random{4};
  samples const data{random};
  using optimizer = scheduled<sgd, falling>;
  falling const slow{2, {.steps = 100}};
  falling const fast{0, {.steps = 8}};
  lockstep::trainer<line, optimizer, lockstep::peer_all_reduce<>> trainer{
      lockstep::devices::first(2), [](auto&) { return line{}; },
      std::vector<optimizer>{{{.learning_rate = 0.5F}, slow}, {{.learning_rate = 0.25F}, fast}}};
  lockstep::trainer<line, sgd, lockstep::peer_all_reduce<>> by_hand{lockstep::devices::first(2), [](auto&) { return line{}; },
                                                                    std::vector<sgd>{{}, {}}};
  for (std::uint64_t t = 1; t <= 10; ++t) {
    by_hand.optimizer(0).learning_rate = 0.5F * slow(t);
    by_hand.optimizer(1).learning_rate = 0.25F * fast(t);
    trainer.step({data.x, data.y});
    by_hand.step({data.x, data.y});
    CHECK(trainer.model().value[0] == by_hand.model().value[0]);
    CHECK(trainer.model().value[1] == by_hand.model().value[1]);
  }
}

TEST_CASE("scheduled: a whole optimizer is told the scheduled rate, and gets gradients, factor and parameters as they are") {
  tests::generator random{5};
  samples const data{random};
  keeps_rates const whole{.learning_rate = 0.5F};
  auto const got = path<lockstep::single_device>(1, data, scheduled{whole, one_schedule});
  REQUIRE(whole.rates->size() == 40);
  for (std::uint64_t t = 1; t <= 40; ++t) {
    CHECK((*whole.rates)[t - 1] == 0.5F * one_schedule(t));
  }
  auto const right = path<lockstep::single_device>(1, data, scheduled{sgd{.learning_rate = 0.5F}, one_schedule});
  check_near(got, right);
}

TEST_CASE("scheduled: a schedule may be a function object of one's own") {
  scheduled const o{told{}, [](std::uint64_t step) { return 1 / std::sqrt(static_cast<float>(step)); }};
  CHECK(o.prepare({.step = 4, .learning_rate = 3}) == 1.5F);
  CHECK(refusal(o).empty());
}

TEST_CASE("scheduled: fields out of range, of optimizer or schedule, are refused by name") {
  CHECK(refusal(scheduled{sgd{}, cosine{}}).empty());
  CHECK(refusal(scheduled{sgd{.learning_rate = -1}, cosine{}}).find("sgd.learning_rate must") != std::string::npos);
  CHECK(refusal(scheduled{sgd{}, cosine{.steps = 0}}).find("cosine.steps must") != std::string::npos);
  CHECK(refusal(scheduled{keeps_rates{}, cosine{.floor = 2}}).find("cosine.floor must") != std::string::npos);
  CHECK(refusal(clipped_by_value{scheduled{sgd{}, cosine{.steps = 0}}, 1.0F}).find("cosine.steps must") != std::string::npos);
  CHECK(refusal(scheduled{clipped_by_value{sgd{}, -1.0F}, cosine{}}).find("clipped_by_value.limit must") != std::string::npos);
}

TEST_CASE("scheduled: a trainer refuses fields out of range before any work") {
  tests::generator random{6};
  samples const data{random};
  scheduled const zero_steps{sgd{}, falling{.then = {.steps = 0}}};
  CHECK(refused([&] { path<lockstep::single_device>(1, data, zero_steps); }).find("cosine.steps must") != std::string::npos);
}
