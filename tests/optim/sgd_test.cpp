// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#include <lockstep/concepts.hpp>
#include <lockstep/optim/sgd.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "../seed.hpp"
#include "../support/thrown.hpp"

using lockstep::momentum_kind;
using lockstep::sgd;
using lockstep::update_info;
using support::refusal;

static_assert(lockstep::elementwise_optimizer<sgd>);
static_assert(std::is_aggregate_v<sgd>);
static_assert(lockstep::slot_names<sgd>()[0] == "momentum");

namespace {

constexpr double unit = 0x1p-24;  // largest relative error of one f32 rounding
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

/// The formula in f64, and a bound on how far f32 can be from it: each rounding adds at most `unit` times the magnitude that is
/// rounded, and earlier errors are carried on by the formula's own factors. A few roundings more than there are make room for
/// what is of second order.
struct reference {
  double value = 0;
  double slot = 0;
  double value_error = 0;
  double slot_error = 0;

  void step(sgd const& o, double rate, double gradient) {
    double const momentum = static_cast<double>(o.momentum);
    double const decay = static_cast<double>(o.weight_decay);
    bool const nesterov = o.kind == momentum_kind::nesterov;
    double const g = gradient + decay * value;
    double const g_error = decay * value_error + 3 * unit * (std::abs(gradient) + std::abs(decay * value));
    slot_error = momentum * slot_error + g_error + 3 * unit * (std::abs(momentum * slot) + std::abs(g));
    slot = momentum * slot + g;
    double const change = nesterov ? g + momentum * slot : slot;
    double const size = nesterov ? std::abs(g) + std::abs(momentum * slot) : std::abs(slot);
    double const change_error = (nesterov ? g_error + momentum * slot_error : slot_error) + 4 * unit * size;
    value -= rate * change;
    value_error += rate * change_error + 2 * unit * (std::abs(value) + rate * size);
  }
};

struct element {
  float value = 0;
  float slot = 0;

  void step(sgd const& o, update_info const& info, float gradient) { value = o(value, gradient, slot, o.prepare(info)); }
};

sgd random_sgd(tests::generator& random) {
  return {.learning_rate = random.real(0.001f, 0.2f),
          .momentum = random.once_in(4) ? 0 : random.real(0, 0.99f),
          .weight_decay = random.once_in(3) ? 0 : random.real(0, 0.1f),
          .kind = random.once_in(2) ? momentum_kind::heavy_ball : momentum_kind::nesterov};
}

/// Magnitudes from 1e-4 to 1, either sign, or zero.
float random_gradient(tests::generator& random) {
  float const size = random.once_in(10) ? 0 : std::pow(10.0f, random.real(-4, 0));
  return random.once_in(2) ? size : -size;
}

}  // namespace

TEST_CASE("sgd: one step from any state is the formula to within its roundings") {
  auto const seed = tests::seed();
  INFO("LOCKSTEP_TEST_SEED=", seed);
  tests::generator random{seed};
  for (int i = 0; i < 5000; ++i) {
    sgd const o = random_sgd(random);
    element e{random.real(-2, 2), random.real(-5, 5)};
    reference r{static_cast<double>(e.value), static_cast<double>(e.slot)};
    float const gradient = random_gradient(random);
    e.step(o, {.step = random.whole(1, 1000), .learning_rate = o.learning_rate}, gradient);
    r.step(o, static_cast<double>(o.learning_rate), static_cast<double>(gradient));
    REQUIRE(std::abs(static_cast<double>(e.slot) - r.slot) <= r.slot_error);
    REQUIRE(std::abs(static_cast<double>(e.value) - r.value) <= r.value_error);
    REQUIRE(r.value_error < 100 * unit);  // values are of order 1
  }
}

TEST_CASE("sgd: hundreds of steps under a changing learning rate stay within the roundings of the formula") {
  auto const seed = tests::seed();
  INFO("LOCKSTEP_TEST_SEED=", seed);
  tests::generator random{seed};
  for (int i = 0; i < 200; ++i) {
    sgd o = random_sgd(random);
    o.momentum *= 0.95f;
    o.weight_decay *= 0.01f;  // the bound takes no account of signs: a strong decay makes it grow where errors shrink
    element e{random.real(-2, 2)};
    reference r{static_cast<double>(e.value)};
    double farthest = 1;
    for (std::uint64_t t = 1; t <= 300; ++t) {
      float const rate = o.learning_rate * random.real(0.1f, 1);
      float const gradient = random_gradient(random);
      e.step(o, {.step = t, .learning_rate = rate}, gradient);
      r.step(o, static_cast<double>(rate), static_cast<double>(gradient));
      farthest = std::max(farthest, std::abs(r.value));
      REQUIRE(std::abs(static_cast<double>(e.slot) - r.slot) <= r.slot_error);
      REQUIRE(std::abs(static_cast<double>(e.value) - r.value) <= r.value_error);
    }
    REQUIRE(r.value_error < 1e-3 * farthest);  // the bound says something
  }
}

TEST_CASE("sgd: nesterov's value is the look-ahead point of the paper's velocity form") {
  auto const seed = tests::seed();
  INFO("LOCKSTEP_TEST_SEED=", seed);
  tests::generator random{seed};
  for (int i = 0; i < 200; ++i) {
    sgd const o{.learning_rate = random.real(0.001f, 0.1f), .momentum = random.real(0, 0.95f), .kind = momentum_kind::nesterov};
    double const rate = static_cast<double>(o.learning_rate);
    double const momentum = static_cast<double>(o.momentum);
    double const steepness = static_cast<double>(random.real(0.1f, 2));
    // f(x) = steepness / 2 * x^2. Equations 3 and 4: v = momentum * v - rate * f'(theta + momentum * v), theta = theta + v.
    element e{1};
    double theta = 1;
    double v = 0;
    for (std::uint64_t t = 1; t <= 300; ++t) {
      e.step(o, {.step = t, .learning_rate = o.learning_rate}, static_cast<float>(steepness) * e.value);
      v = momentum * v - rate * steepness * (theta + momentum * v);
      theta += v;
      // A contraction: roundings of values up to 1 don't build up beyond 1 / (rate * steepness) of them, times momentum's
      // share.
      double const bound = 4 * unit / (rate * steepness);
      REQUIRE(std::abs(static_cast<double>(e.value) - (theta + momentum * v)) <= bound + 20 * unit);
      REQUIRE(std::abs(static_cast<double>(e.slot) + v / rate) <= (bound + 20 * unit) / rate);
    }
  }
}

TEST_CASE("sgd: the first step has the gradient in the slot, bit for bit") {
  for (auto const kind : {momentum_kind::heavy_ball, momentum_kind::nesterov}) {
    sgd const o{.momentum = 0.9f, .kind = kind};
    element e{1};
    e.step(o, {.learning_rate = 0.5f}, 0.3f);
    CHECK(e.slot == 0.3f);
    CHECK(e.value == doctest::Approx(kind == momentum_kind::nesterov ? 1 - 0.5 * 1.9 * 0.3 : 1 - 0.5 * 0.3));
  }
}

TEST_CASE("sgd: the learning rate comes from the step, not from the member") {
  element e{1};
  e.step(sgd{.learning_rate = 100}, {.learning_rate = 0.25f}, 1);
  CHECK(e.value == 0.75f);
}

TEST_CASE("sgd: a zero gradient without decay changes nothing") {
  element e{0.7f};
  for (std::uint64_t t = 1; t <= 5; ++t) {
    e.step(sgd{.momentum = 0.9f}, {.step = t, .learning_rate = 0.1f}, 0);
    CHECK(e.value == 0.7f);
    CHECK(e.slot == 0);
  }
}

TEST_CASE("sgd: weight decay alone shrinks the value by a factor a step") {
  element e{1};
  double expected = 1;
  sgd const o{.weight_decay = 0.5f};
  for (std::uint64_t t = 1; t <= 50; ++t) {
    e.step(o, {.step = t, .learning_rate = 0.125f}, 0);
    expected *= 1 - 0.125 * 0.5;
    CHECK(std::abs(static_cast<double>(e.value) / expected - 1) <= 3 * unit * static_cast<double>(t));
  }
}

TEST_CASE("sgd: without momentum what the slot held has no effect, and it holds the gradient afterwards") {
  for (auto const kind : {momentum_kind::heavy_ball, momentum_kind::nesterov}) {
    element e{1, infinity};
    e.step(sgd{.kind = kind}, {.learning_rate = 0.5f}, 0.5f);
    CHECK(e.value == 0.75f);
    CHECK(e.slot == 0.5f);
  }
}

TEST_CASE("sgd: the largest step number is a step like any other") {
  element e{1, 2};
  e.step(sgd{.momentum = 0.5f}, {.step = std::numeric_limits<std::uint64_t>::max(), .learning_rate = 0.25f}, 1);
  CHECK(e.slot == 2);
  CHECK(e.value == 0.5f);
}

TEST_CASE("sgd: fields out of range are refused by name, with the value") {
  CHECK(refusal(sgd{}).empty());
  CHECK(refusal(sgd{.learning_rate = 0, .momentum = 0.999f, .weight_decay = 3}).empty());
  CHECK(refusal(sgd{.learning_rate = -0.5f}) == "lockstep: sgd.learning_rate must be finite and not negative, and is -0.5");
  CHECK(refusal(sgd{.learning_rate = infinity}) == "lockstep: sgd.learning_rate must be finite and not negative, and is inf");
  CHECK(refusal(sgd{.learning_rate = not_a_number}).find("sgd.learning_rate must") != std::string::npos);
  CHECK(refusal(sgd{.momentum = 1}) == "lockstep: sgd.momentum must lie in [0, 1), and is 1");
  CHECK(refusal(sgd{.momentum = -0.1f}).find("sgd.momentum must") != std::string::npos);
  CHECK(refusal(sgd{.momentum = not_a_number}).find("sgd.momentum must") != std::string::npos);
  CHECK(refusal(sgd{.weight_decay = -1e-9f}).find("sgd.weight_decay must") != std::string::npos);
  CHECK(refusal(sgd{.weight_decay = not_a_number}).find("sgd.weight_decay must") != std::string::npos);
}
