// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#include <lockstep/core/error.hpp>
#include <lockstep/optim/schedule.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "../seed.hpp"
#include "../support/thrown.hpp"

using lockstep::constant;
using lockstep::cosine;
using lockstep::linearly_scaled;
using lockstep::milestone_decay;
using lockstep::one_cycle;
using lockstep::polynomial;
using lockstep::product;
using lockstep::step_decay;
using lockstep::warm_up;
using support::refusal;
using support::refused;

template <class T>
inline constexpr bool is_plain = lockstep::learning_rate_schedule<T>&& std::is_aggregate_v<T>;
static_assert(is_plain<constant> && is_plain<step_decay> && is_plain<milestone_decay> && is_plain<cosine>);
static_assert(is_plain<polynomial> && is_plain<one_cycle> && is_plain<warm_up<>> && is_plain<warm_up<warm_up<cosine>>>);
static_assert(is_plain<product<warm_up<>, milestone_decay>>);
static_assert(std::is_same_v<decltype(warm_up{5, cosine{}}), warm_up<cosine>>);
static_assert(std::is_same_v<decltype(warm_up{5, cosine{}, 0.1F}), warm_up<cosine>>);
static_assert(std::is_same_v<decltype(product{warm_up{5, cosine{}}, step_decay{}}), product<warm_up<cosine>, step_decay>>);
static_assert(!lockstep::learning_rate_schedule<int> && !lockstep::learning_rate_schedule<std::function<float(std::uint64_t)>>);

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
constexpr std::uint64_t last_step = std::numeric_limits<std::uint64_t>::max();
constexpr long double pi = 3.14159265358979323846264338327950288L;

// The formulas as the docstrings have them, in 64 bits of precision.

long double reference(constant const& s, std::uint64_t) { return s.factor; }
long double reference(step_decay const& s, std::uint64_t t) {
  return std::pow(static_cast<long double>(s.gamma), static_cast<long double>((t - 1) / s.every));
}
long double reference(milestone_decay const& s, std::uint64_t t) {
  long double factor = 1;
  for (std::uint64_t const milestone : s.after) {
    if (milestone != 0 && t > milestone) {
      factor *= static_cast<long double>(s.gamma);
    }
  }
  return factor;
}
long double reference(cosine const& s, std::uint64_t t) {
  long double const part = static_cast<long double>(t - 1) / static_cast<long double>(s.steps);
  return t <= s.steps ? s.floor + (1 - static_cast<long double>(s.floor)) * (1 + std::cos(pi * part)) / 2 : s.floor;
}
long double reference(polynomial const& s, std::uint64_t t) {
  long double const steps = static_cast<long double>(s.steps);
  long double const left = (steps - static_cast<long double>(t - 1)) / steps;  // all whole numbers are exact
  long double const floor = s.floor;
  return t <= s.steps ? floor + (1 - floor) * std::pow(left, static_cast<long double>(s.power)) : floor;
}
long double reference(one_cycle const& s, std::uint64_t t) {
  long double const done = static_cast<long double>(t - 1);
  long double const rising = static_cast<long double>(s.warm_up_steps);
  long double const start = s.start;
  if (t <= s.warm_up_steps) {
    return start + (1 - start) * (1 - std::cos(pi * done / rising)) / 2;
  }
  long double const part = (done - rising) / (static_cast<long double>(s.steps) - rising);
  long double const floor = s.floor;
  return t <= s.steps ? floor + (1 - floor) * (1 + std::cos(pi * part)) / 2 : floor;
}
template <class Then>
long double reference(warm_up<Then> const& s, std::uint64_t t) {
  long double const start = s.start;
  return t > s.steps ? reference(s.then, t - s.steps)
                     : (start + (1 - start) * static_cast<long double>(t) / static_cast<long double>(s.steps)) *
                           reference(s.then, std::uint64_t{1});
}

/// A number of steps of any size below 2^62.
std::uint64_t any_steps(tests::generator& random) { return random.whole(1, std::uint64_t{1} << random.whole(0, 62)); }

/// A step, often one near `turn`, where a schedule changes.
std::uint64_t any_step(tests::generator& random, std::uint64_t turn) {
  switch (random.whole(0, 3)) {
    case 0: return random.whole(1, last_step);
    case 1: return turn + random.whole(0, 2);
    case 2: return (turn > 3 ? turn - 3 : 0) + random.whole(1, 3);
    default: return random.whole(1, turn);
  }
}

step_decay any_step_decay(tests::generator& random) { return {any_steps(random), random.real(0.01F, 1)}; }
milestone_decay any_milestone_decay(tests::generator& random) {
  milestone_decay made{.gamma = random.real(0.01F, 1)};
  std::uint64_t last = 0;
  for (std::size_t i = 0, used = random.whole(0, 8); i < used; ++i) {
    last += random.whole(1, 50);
    made.after[i] = last;
  }
  return made;
}
cosine any_cosine(tests::generator& random) { return {any_steps(random), random.once_in(2) ? 0 : random.real(0, 1)}; }
polynomial any_polynomial(tests::generator& random) {
  return {any_steps(random), random.once_in(3) ? 1 : random.real(0.1F, 4), random.once_in(2) ? 0 : random.real(0, 1)};
}
one_cycle any_one_cycle(tests::generator& random) {
  std::uint64_t const steps = any_steps(random);
  return {steps, random.whole(0, steps - 1), random.real(0, 1), random.real(0, 1)};
}
template <class Then>
warm_up<Then> any_warm_up(tests::generator& random, Then const& then) {
  return {random.once_in(5) ? 0 : any_steps(random), then, random.once_in(2) ? 0 : random.real(0, 1)};
}

/// One rounding of f32 away from the formula, `most` of them where factors are multiplied as f32.
template <class Schedule>
void require_formula(Schedule const& s, std::uint64_t t, int most = 1) {
  s.validate();
  long double const right = reference(s, t);
  long double const allowed = most * (0x1.0001p-24L * std::abs(right) + 1e-18L);  // and the reference's own cancellation
  CAPTURE(t);
  REQUIRE(std::abs(static_cast<long double>(s(t)) - right) <= allowed);
}

template <class Schedule>
std::vector<float> first_of(Schedule const& s, std::uint64_t steps) {
  std::vector<float> factors;
  for (std::uint64_t t = 1; t <= steps; ++t) {
    factors.push_back(s(t));
  }
  return factors;
}

void check_near(std::vector<float> const& got, std::vector<double> const& wanted) {
  REQUIRE(got.size() == wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(static_cast<double>(got[i]) - wanted[i]) <= 1e-7);
  }
}

}  // namespace

TEST_CASE("schedule: every one is its formula to one rounding, for any fields and steps") {
  auto const seed = tests::seed();
  INFO("LOCKSTEP_TEST_SEED=", seed);
  tests::generator random{seed};
  for (int i = 0; i < 5000; ++i) {
    require_formula(constant{random.real(0, 10)}, any_step(random, 10));
    step_decay const steps = any_step_decay(random);
    require_formula(steps, any_step(random, steps.every));
    require_formula(any_milestone_decay(random), random.whole(1, 450), 2);
    cosine const wave = any_cosine(random);
    require_formula(wave, any_step(random, wave.steps));
    polynomial const power = any_polynomial(random);
    require_formula(power, any_step(random, power.steps));
    one_cycle const cycle = any_one_cycle(random);
    require_formula(cycle, any_step(random, random.once_in(2) ? cycle.steps : cycle.warm_up_steps + 1));
    auto const warm = any_warm_up(random, wave);
    require_formula(warm, any_step(random, warm.steps + 1), 2);
    auto const twice = any_warm_up(random, any_warm_up(random, any_one_cycle(random)));
    require_formula(twice, any_step(random, twice.steps + 1), 3);
  }
}

TEST_CASE("schedule: small ones are what one works out by hand") {
  double const quarter = (1 + std::sqrt(0.5)) / 2;  // (1 + cos(pi / 4)) / 2
  check_near(first_of(constant{}, 3), {1, 1, 1});
  check_near(first_of(step_decay{.every = 3, .gamma = 0.5F}, 8), {1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25});
  check_near(first_of(milestone_decay{.after = {2, 5}}, 7), {1, 1, 0.1, 0.1, 0.1, 0.01, 0.01});
  check_near(first_of(milestone_decay{}, 3), {1, 1, 1});
  check_near(first_of(cosine{.steps = 4}, 6), {1, quarter, 0.5, 1 - quarter, 0, 0});
  check_near(first_of(cosine{.steps = 2, .floor = 0.5F}, 4), {1, 0.75, 0.5, 0.5});
  check_near(first_of(polynomial{.steps = 4}, 6), {1, 0.75, 0.5, 0.25, 0, 0});
  check_near(first_of(polynomial{.steps = 4, .power = 2, .floor = 0.2F}, 6), {1, 0.65, 0.4, 0.25, 0.2, 0.2});
  check_near(first_of(one_cycle{.steps = 6, .warm_up_steps = 2, .start = 0.2F, .floor = 0.1F}, 8),
             {0.2, 0.6, 1, 0.1 + 0.9 * quarter, 0.55, 1 - 0.9 * quarter, 0.1, 0.1});
  check_near(first_of(one_cycle{.steps = 2}, 3), {1, 0.5, 0});
  check_near(first_of(warm_up<>{.steps = 4}, 6), {0.25, 0.5, 0.75, 1, 1, 1});
  check_near(first_of(warm_up<polynomial>{.steps = 2, .then = {.steps = 2}, .start = 0.5F}, 6), {0.75, 1, 1, 0.5, 0, 0});
  check_near(first_of(warm_up{2, constant{3}}, 4), {1.5, 3, 3, 3});
  check_near(first_of(warm_up<cosine>{.then = {.steps = 2}}, 3), {1, 0.5, 0});
}

TEST_CASE("schedule: first, peak and end are exact") {
  auto const seed = tests::seed();
  INFO("LOCKSTEP_TEST_SEED=", seed);
  tests::generator random{seed};
  for (int i = 0; i < 2000; ++i) {
    cosine const wave = any_cosine(random);
    REQUIRE(wave(1) == 1.0F);
    REQUIRE(wave(wave.steps + 1) == wave.floor);
    REQUIRE(wave(last_step) == wave.floor);
    polynomial const power = any_polynomial(random);
    REQUIRE(power(1) == 1.0F);
    REQUIRE(power(power.steps + 1) == power.floor);
    REQUIRE(power(last_step) == power.floor);
    one_cycle const cycle = any_one_cycle(random);
    REQUIRE(cycle(1) == (cycle.warm_up_steps == 0 ? 1.0F : cycle.start));
    REQUIRE(cycle(cycle.warm_up_steps + 1) == 1.0F);
    REQUIRE(cycle(cycle.steps + 1) == cycle.floor);
    REQUIRE(cycle(last_step) == cycle.floor);
    constant const peak{random.real(0, 10)};
    auto const warm = any_warm_up(random, peak);
    REQUIRE(warm(warm.steps + 1) == peak.factor);
    REQUIRE(warm(warm.steps == 0 ? 1 : warm.steps) == peak.factor);
    REQUIRE(warm(last_step) == peak.factor);
  }
}

TEST_CASE("schedule: what goes down never rises and stays within its floor and 1, and what goes up never falls") {
  auto const seed = tests::seed();
  INFO("LOCKSTEP_TEST_SEED=", seed);
  tests::generator random{seed};
  auto const require_down = [](auto const& s, float floor, std::uint64_t from, std::uint64_t to) {
    float before = s(from);
    REQUIRE(before <= 1.0F);
    for (std::uint64_t t = from + 1; t <= to; ++t) {
      REQUIRE(s(t) <= before);
      before = s(t);
    }
    REQUIRE(before >= floor);
  };
  auto const require_up = [](auto const& s, float start, std::uint64_t to) {
    float before = start;
    for (std::uint64_t t = 1; t <= to; ++t) {
      REQUIRE(s(t) >= before);
      before = s(t);
    }
    REQUIRE(before <= 1.0F);
  };
  for (int i = 0; i < 50; ++i) {
    std::uint64_t const steps = random.whole(1, 300);
    float const floor = random.once_in(2) ? 0 : random.real(0, 1);
    float const start = random.real(0, 1);
    std::uint64_t const rising = random.whole(0, steps - 1);
    require_down(cosine{steps, floor}, floor, 1, steps + 5);
    require_down(polynomial{steps, random.real(0.1F, 4), floor}, floor, 1, steps + 5);
    require_down(one_cycle{steps, rising, start, floor}, floor, rising + 1, steps + 5);
    require_up(one_cycle{steps, rising, start, floor}, start, rising + 1);
    require_down(step_decay{random.whole(1, 20), random.real(0.1F, 1)}, 0, 1, 300);
    require_down(any_milestone_decay(random), 0, 1, 450);
    require_up(warm_up<>{.steps = steps, .start = start}, start, steps + 5);
  }
}

TEST_CASE("schedule: neighbours among more steps than f64 has whole numbers are told apart where they differ") {
  constexpr std::uint64_t half = std::uint64_t{1} << 63;
  CHECK(step_decay{.every = half, .gamma = 0.25F}(half) == 1.0F);
  CHECK(step_decay{.every = half, .gamma = 0.25F}(half + 1) == 0.25F);
  CHECK(milestone_decay{.after = {half - 1, half}}(half - 1) == 1.0F);
  CHECK(milestone_decay{.after = {half - 1, half}}(half) == 0.1F);
  CHECK(milestone_decay{.after = {half - 1, half}}(half + 1) == doctest::Approx(0.01));
  CHECK(cosine{.steps = half}(half / 2 + 1) == 0.5F);
  CHECK(cosine{.steps = half}(half) > 0.0F);
  CHECK(cosine{.steps = half}(half + 1) == 0.0F);
  CHECK(polynomial{.steps = half}(half / 4 * 3 + 1) == 0.25F);
  CHECK(polynomial{.steps = half}(half) == 0x1p-63F);
  CHECK(polynomial{.steps = last_step}(last_step) == 0x1p-64F);
  CHECK(one_cycle{.steps = last_step, .warm_up_steps = half, .start = 0.5F}(half / 2 + 1) == 0.75F);
  CHECK(one_cycle{.steps = last_step, .warm_up_steps = half}(half + 1) == 1.0F);
  CHECK(warm_up<>{.steps = half}(half / 2) == 0.5F);
  CHECK(warm_up<step_decay>{.steps = half, .then = {.every = 3}}(half + 3) == 1.0F);
  CHECK(warm_up<step_decay>{.steps = half, .then = {.every = 3}}(half + 4) == 0.1F);
  CHECK(step_decay{.every = 1, .gamma = 0.5F}(last_step) == 0.0F);
  CHECK(step_decay{.every = 1, .gamma = 1}(last_step) == 1.0F);
}

TEST_CASE("schedule: the last steps of a wave keep all their digits") {
  // ((pi / 2) k / n)^2 for k steps that are left of n, to second order: a form with 1 + cos would cancel to 0.
  constexpr double n = 0x1p40;
  cosine const wave{.steps = std::uint64_t{1} << 40};
  one_cycle const cycle{.steps = std::uint64_t{1} << 41, .warm_up_steps = std::uint64_t{1} << 40, .start = 0};
  for (std::uint64_t k = 1; k < 10; ++k) {
    double const angle = static_cast<double>(pi) / 2 * static_cast<double>(k) / n;
    CHECK(static_cast<double>(wave(wave.steps + 1 - k)) == doctest::Approx(angle * angle).epsilon(1e-7));
    CHECK(static_cast<double>(cycle(cycle.steps + 1 - k)) == doctest::Approx(angle * angle).epsilon(1e-7));
    CHECK(static_cast<double>(cycle(1 + k)) == doctest::Approx(angle * angle).epsilon(1e-7));
  }
}

TEST_CASE("schedule: a warm-up hands over to a schedule that counts from behind it, and a product to one that counts from 1") {
  milestone_decay const decay{.after = {10, 20}};
  warm_up<milestone_decay> const behind{.steps = 5, .then = decay};
  product<warm_up<>, milestone_decay> const beside{{.steps = 5}, decay};
  for (std::uint64_t t = 1; t <= 40; ++t) {
    CHECK(behind(t) == (t <= 5 ? static_cast<float>(t) / 5.0F : decay(t - 5)));
    CHECK(beside(t) == warm_up<>{.steps = 5}(t)*decay(t));
  }
  CHECK(behind(15) == 1.0F);
  CHECK(behind(16) == 0.1F);
  CHECK(beside(10) == 1.0F);
  CHECK(beside(11) == 0.1F);
}

TEST_CASE("schedule: a product is both factors, in either order") {
  auto const seed = tests::seed();
  INFO("LOCKSTEP_TEST_SEED=", seed);
  tests::generator random{seed};
  for (int i = 0; i < 1000; ++i) {
    cosine const first{random.whole(1, 200), random.real(0, 1)};
    step_decay const second{random.whole(1, 50), random.real(0.1F, 1)};
    std::uint64_t const t = random.whole(1, 250);
    REQUIRE(product{first, second}(t) == first(t) * second(t));
    REQUIRE(product{first, second}(t) == product{second, first}(t));
    REQUIRE(product{constant{}, product{first, second}}(t) == product{first, second}(t));
  }
}

TEST_CASE("schedule: fields out of range are refused by name, with the value") {
  CHECK(refusal(constant{0}).empty());
  CHECK(refusal(constant{-1}) == "lockstep: constant.factor must be finite and not negative, and is -1");
  CHECK(refusal(constant{infinity}).find("constant.factor must") != std::string::npos);

  CHECK(refusal(step_decay{}).empty());
  CHECK(refusal(step_decay{.every = 0}) == "lockstep: step_decay.every must be at least 1, and is 0");
  CHECK(refusal(step_decay{.gamma = 0}) == "lockstep: step_decay.gamma must lie in (0, 1], and is 0");
  CHECK(refusal(step_decay{.gamma = 1.5F}).find("step_decay.gamma must") != std::string::npos);
  CHECK(refusal(step_decay{.gamma = not_a_number}).find("step_decay.gamma must") != std::string::npos);

  CHECK(refusal(milestone_decay{.after = {1, 2, 3, 4, 5, 6, 7, last_step}}).empty());
  CHECK(refusal(milestone_decay{.after = {5, 5}}) ==
        "lockstep: milestone_decay.after must rise, with nothing behind a 0, and has 5 behind 5");
  CHECK(refusal(milestone_decay{.after = {7, 3}}).find("has 3 behind 7") != std::string::npos);
  CHECK(refusal(milestone_decay{.after = {0, 3}}).find("has 3 behind a 0") != std::string::npos);
  CHECK(refusal(milestone_decay{.after = {1, 2, 0, 0, 9}}).find("has 9 behind a 0") != std::string::npos);
  CHECK(refusal(milestone_decay{.gamma = 2}).find("milestone_decay.gamma must") != std::string::npos);

  CHECK(refusal(cosine{.steps = 1, .floor = 1}).empty());
  CHECK(refusal(cosine{.steps = 0}) == "lockstep: cosine.steps must be at least 1, and is 0");
  CHECK(refusal(cosine{.floor = 1.5F}) == "lockstep: cosine.floor must lie in [0, 1], and is 1.5");
  CHECK(refusal(cosine{.floor = not_a_number}).find("cosine.floor must") != std::string::npos);

  CHECK(refusal(polynomial{.steps = 0}).find("polynomial.steps must") != std::string::npos);
  CHECK(refusal(polynomial{.power = 0}).find("polynomial.power must") != std::string::npos);
  CHECK(refusal(polynomial{.power = infinity}).find("polynomial.power must") != std::string::npos);
  CHECK(refusal(polynomial{.floor = -0.1F}).find("polynomial.floor must") != std::string::npos);

  CHECK(refusal(one_cycle{.steps = 2, .warm_up_steps = 1}).empty());
  CHECK(refusal(one_cycle{.steps = 0}).find("one_cycle.steps must be at least 1") != std::string::npos);
  CHECK(refusal(one_cycle{.steps = 5, .warm_up_steps = 5}) ==
        "lockstep: one_cycle.warm_up_steps must be less than one_cycle.steps, 5, and is 5");
  CHECK(refusal(one_cycle{.start = -1}).find("one_cycle.start must") != std::string::npos);
  CHECK(refusal(one_cycle{.floor = 2}).find("one_cycle.floor must") != std::string::npos);

  CHECK(refusal(warm_up<cosine>{}).empty());
  CHECK(refusal(warm_up<cosine>{.start = 2}).find("warm_up.start must") != std::string::npos);
  CHECK(refusal(warm_up<cosine>{.then = {.steps = 0}}).find("cosine.steps must") != std::string::npos);
  CHECK(refusal(product{constant{-1}, cosine{}}).find("constant.factor must") != std::string::npos);
  CHECK(refusal(product{constant{}, cosine{.steps = 0}}).find("cosine.steps must") != std::string::npos);
  CHECK(refusal(product{constant{}, cosine{}}).empty());
}

TEST_CASE("linearly_scaled: the rate grows with the batch") {
  static_assert(linearly_scaled(0.1F, {.reference = 256, .batch = 8192}) == 0.1F * 32);
  static_assert(linearly_scaled(0.5F, {.reference = 4, .batch = 1}) == 0.125F);
  static_assert(linearly_scaled(0, {}) == 0);
  CHECK(linearly_scaled(0.1F, {.reference = 3, .batch = 3}) == 0.1F);
  auto const seed = tests::seed();
  INFO("LOCKSTEP_TEST_SEED=", seed);
  tests::generator random{seed};
  for (int i = 0; i < 1000; ++i) {
    float const rate = random.real(0, 1);
    std::uint64_t const reference = any_steps(random);
    std::uint64_t const batch = any_steps(random);
    long double const right =
        static_cast<long double>(rate) * static_cast<long double>(batch) / static_cast<long double>(reference);
    REQUIRE(std::abs(static_cast<long double>(linearly_scaled(rate, {reference, batch})) - right) <= 0x1.0001p-24L * right);
  }
}

TEST_CASE("linearly_scaled: what makes no sense is refused") {
  CHECK(refused([] { return linearly_scaled(0.1F, {.reference = 0}); }) ==
        "lockstep: linearly_scaled: batch_sizes.reference must be at least 1, and is 0");
  CHECK(refused([] { return linearly_scaled(0.1F, {.batch = 0}); }) ==
        "lockstep: linearly_scaled: batch_sizes.batch must be at least 1, and is 0");
  for (float const rate : {-0.1F, infinity, -infinity, not_a_number}) {
    CHECK(refused([&] { return linearly_scaled(rate, {}); }).find("learning_rate must be finite") != std::string::npos);
  }
  CHECK(refused([] { return linearly_scaled(3e38F, {.reference = 1, .batch = 2}); }).find("must stay finite") !=
        std::string::npos);
}
