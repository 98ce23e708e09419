// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#include <lockstep/concepts.hpp>
#include <lockstep/optim/adamw.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "../support/thrown.hpp"
#include "adam_reference.hpp"

using lockstep::adamw;
using lockstep::update_info;
using support::refusal;
using tests::adam_element;
using tests::adam_reference;
using tests::unit;

static_assert(lockstep::elementwise_optimizer<adamw>);
static_assert(std::is_aggregate_v<adamw>);
static_assert(lockstep::slot_names<adamw>()[0] == "first_moment");
static_assert(lockstep::slot_names<adamw>()[1] == "second_moment");

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

}  // namespace

TEST_CASE("adamw: one step from any state is the formula to within its roundings") {
  auto const seed = tests::seed();
  INFO("LOCKSTEP_TEST_SEED=", seed);
  tests::generator random{seed};
  for (int i = 0; i < 5000; ++i) {
    auto const o = tests::random_adam<adamw>(random);
    adam_element e{random.real(-2, 2), random.real(-1, 1), random.real(0.5f, 4)};
    adam_reference r{tests::decay_kind::decoupled, static_cast<double>(e.value), static_cast<double>(e.m),
                     static_cast<double>(e.v)};
    std::uint64_t const t = random.whole(1, random.once_in(2) ? 10 : 1000000);
    float const gradient = tests::random_gradient(random, 2);
    e.step(o, update_info{.step = t, .learning_rate = o.learning_rate}, gradient);
    double const moved = r.step(o, t, static_cast<double>(o.learning_rate), static_cast<double>(gradient));
    REQUIRE(std::abs(static_cast<double>(e.m) - r.m) <= r.m_error);
    REQUIRE(std::abs(static_cast<double>(e.v) - r.v) <= r.v_error);
    REQUIRE(std::abs(static_cast<double>(e.value) - r.value) <= r.value_error);
    REQUIRE(r.value_error <= 2 * unit * std::abs(r.value) + 1000 * unit * (moved + static_cast<double>(o.learning_rate)));
  }
}

TEST_CASE("adamw: hundreds of steps under a changing learning rate stay within the roundings of the formula") {
  auto const seed = tests::seed();
  INFO("LOCKSTEP_TEST_SEED=", seed);
  tests::generator random{seed};
  for (int i = 0; i < 150; ++i) {
    auto const o = tests::random_adam<adamw>(random);
    adam_element e{random.real(-2, 2)};
    adam_reference r{tests::decay_kind::decoupled, static_cast<double>(e.value)};
    double path = std::abs(r.value);
    for (std::uint64_t t = 1; t <= 300; ++t) {
      float const rate = o.learning_rate * random.real(0.1f, 1);
      float const gradient = tests::random_gradient(random, t);
      e.step(o, update_info{.step = t, .learning_rate = rate}, gradient);
      path += r.step(o, t, static_cast<double>(rate), static_cast<double>(gradient));
      REQUIRE(std::abs(static_cast<double>(e.m) - r.m) <= r.m_error);
      REQUIRE(std::abs(static_cast<double>(e.v) - r.v) <= r.v_error);
      REQUIRE(std::abs(static_cast<double>(e.value) - r.value) <= r.value_error);
    }
    REQUIRE(r.value_error < 1e-3 * path);  // the bound says something
  }
}

TEST_CASE("adamw: the first step moves by the learning rate against the sign of the gradient, whatever its size") {
  adamw o{.epsilon = 1e-20f};
  o.weight_decay = 0;
  for (float const gradient : {1e-6f, -0.3f, 1000.0f}) {
    adam_element e{0};
    e.step(o, update_info{.step = 1, .learning_rate = 0.25f}, gradient);
    CHECK(std::abs(static_cast<double>(e.value) + std::copysign(0.25, static_cast<double>(gradient))) <= 0.25 * 8 * unit);
  }
}

TEST_CASE("adamw: bias corrections are right at every step, from the first to the largest") {
  constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  for (float const beta : {0.0f, 0.1f, 0.9f, 0.999f, 0.9999999f}) {
    for (std::uint64_t const t : {std::uint64_t{1}, std::uint64_t{2}, std::uint64_t{10}, std::uint64_t{1000},
                                  std::uint64_t{10000000}, std::uint64_t{1} << 40, most}) {
      CAPTURE(beta);
      CAPTURE(t);
      adamw const o{.beta1 = beta, .beta2 = beta};
      auto const p = o.prepare(update_info{.step = t, .learning_rate = 0.5f});
      double const correction = adam_reference::correction(static_cast<double>(beta), t);
      CHECK(std::abs(static_cast<double>(p.moments.step_size) * correction / 0.5 - 1) <= 2 * unit);
      CHECK(std::abs(static_cast<double>(p.moments.root_factor) * std::sqrt(correction) - 1) <= 2 * unit);
    }
  }
}

TEST_CASE("adamw: the learning rate comes from the step, not from the member") {
  adam_element a{1};
  adam_element b{1};
  a.step(adamw{.learning_rate = 100}, update_info{.learning_rate = 0.25f}, 1);
  b.step(adamw{.learning_rate = 0.01f}, update_info{.learning_rate = 0.25f}, 1);
  CHECK(a.value == b.value);
  CHECK(a.value == doctest::Approx(0.75).epsilon(0.01));
}

TEST_CASE("adamw: a zero gradient without decay changes nothing") {
  adamw o{};
  o.weight_decay = 0;
  adam_element e{0.7f};
  for (std::uint64_t t = 1; t <= 5; ++t) {
    e.step(o, update_info{.step = t, .learning_rate = 0.1f}, 0);
    CHECK(e.value == 0.7f);
    CHECK(e.m == 0);
    CHECK(e.v == 0);
  }
}

TEST_CASE("adamw: a learning rate of zero keeps the value and moves the moments") {
  adam_element e{0.7f};
  e.step(adamw{.weight_decay = 0.5f}, update_info{.learning_rate = 0}, 2);
  CHECK(e.value == 0.7f);
  CHECK(e.m > 0);
  CHECK(e.v > 0);
}

TEST_CASE("adamw: weight decay alone shrinks the value by a factor a step and leaves the moments alone") {
  adam_element e{1};
  double expected = 1;
  for (std::uint64_t t = 1; t <= 50; ++t) {
    e.step(adamw{.weight_decay = 0.5f}, update_info{.step = t, .learning_rate = 0.125f}, 0);
    expected *= 1 - 0.125 * 0.5;
    CHECK(std::abs(static_cast<double>(e.value) / expected - 1) <= 3 * unit * static_cast<double>(t));
  }
  CHECK(e.m == 0);
  CHECK(e.v == 0);
}

TEST_CASE("adamw: a small decay adds up in full over many steps") {
  // 1 - 3.3e-6 lies between two f32 values: a factor of that type would decay by 0.65% too little at every step, 4e-4 in all.
  // Roundings of the value even out instead, as the value moves from one binary digit to the next.
  adamw const o{.weight_decay = 1e-2f};
  update_info info{.learning_rate = 3.3e-4f};
  adam_element e{1};
  for (info.step = 1; info.step <= 20000; ++info.step) {
    e.step(o, info, 0);
  }
  double const expected = std::pow(1 - static_cast<double>(1e-2f) * static_cast<double>(3.3e-4f), 20000);
  CHECK(std::abs(static_cast<double>(e.value) / expected - 1) <= 5e-5);
}

TEST_CASE("adamw: decay takes the value from before the step") {
  adam_element e{1};
  e.step(adamw{.epsilon = 1e-20f, .weight_decay = 1}, update_info{.learning_rate = 0.25f}, 1);
  CHECK(static_cast<double>(e.value) == doctest::Approx(0.5));
}

TEST_CASE("adamw: fields out of range are refused by name, with the value") {
  CHECK(refusal(adamw{}).empty());
  CHECK(refusal(adamw{.learning_rate = 0, .beta1 = 0, .beta2 = 0, .epsilon = 1, .weight_decay = 0}).empty());
  CHECK(refusal(adamw{.learning_rate = -0.5f}) == "lockstep: adamw.learning_rate must be finite and not negative, and is -0.5");
  CHECK(refusal(adamw{.beta1 = 1}) == "lockstep: adamw.beta1 must lie in [0, 1), and is 1");
  CHECK(refusal(adamw{.beta2 = 1.5f}) == "lockstep: adamw.beta2 must lie in [0, 1), and is 1.5");
  CHECK(refusal(adamw{.epsilon = 0}) == "lockstep: adamw.epsilon must be finite and greater than 0, and is 0");
  for (float const bad : {-0.001f, infinity, -infinity, not_a_number}) {
    CAPTURE(bad);
    CHECK(refusal(adamw{.learning_rate = bad}).find("adamw.learning_rate must") != std::string::npos);
    CHECK(refusal(adamw{.beta1 = bad}).find("adamw.beta1 must") != std::string::npos);
    CHECK(refusal(adamw{.beta2 = bad}).find("adamw.beta2 must") != std::string::npos);
    CHECK(refusal(adamw{.epsilon = bad}).find("adamw.epsilon must") != std::string::npos);
    CHECK(refusal(adamw{.weight_decay = bad}).find("adamw.weight_decay must") != std::string::npos);
  }
}
