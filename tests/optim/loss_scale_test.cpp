// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#include <lockstep/core/error.hpp>
#include <lockstep/optim/loss_scale.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "../seed.hpp"
#include "../support/thrown.hpp"

using lockstep::gradient_range;
using lockstep::loss_scale;
using lockstep::loss_scale_state;
using support::refusal;

static_assert(std::is_aggregate_v<loss_scale> && std::is_trivially_copyable_v<loss_scale>);
static_assert(std::is_aggregate_v<loss_scale_state> && std::is_trivially_copyable_v<loss_scale_state>);
static_assert(loss_scale{}.first() == loss_scale_state{65536, 0});
static_assert(loss_scale{}.next({65536, 0}, gradient_range::overflowed) == loss_scale_state{32768, 0});
static_assert(loss_scale{}.next({65536, 1999}, gradient_range::finite) == loss_scale_state{131072, 0});

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

/// The same in f64, told by the steps since the scale could last change.
class model {
 public:
  explicit model(loss_scale const& options) : options_(options), scale_(static_cast<double>(options.initial)) {}

  void after(gradient_range gradients) {
    if (gradients == gradient_range::overflowed) {
      since_ = 0;
      scale_ = std::max(scale_ * static_cast<double>(options_.backoff), static_cast<double>(options_.lowest));
    } else if (++since_ == options_.growth_interval) {
      since_ = 0;
      scale_ = std::min(scale_ * static_cast<double>(options_.growth), static_cast<double>(options_.highest));
    }
  }
  [[nodiscard]] double scale() const { return scale_; }
  [[nodiscard]] std::uint64_t good_steps() const { return since_; }

 private:
  loss_scale options_;
  double scale_;
  std::uint64_t since_ = 0;
};

bool is_power_of_two(float number) {
  int exponent = 0;
  return std::frexp(number, &exponent) == 0.5F;
}

}  // namespace

TEST_CASE("loss_scale: long random runs are what a model in f64 says, floor and ceiling included") {
  auto const seed = tests::seed();
  INFO("LOCKSTEP_TEST_SEED=", seed);
  tests::generator random{seed};
  for (int run = 0; run < 200; ++run) {
    bool const binary = random.once_in(2);
    loss_scale const o{.initial = binary ? 1024 : random.real(10, 1000),
                       .growth = binary ? static_cast<float>(1U << random.whole(0, 3)) : random.real(1, 3),
                       .growth_interval = static_cast<std::uint32_t>(random.whole(1, 30)),
                       .backoff = binary ? 1 / static_cast<float>(1U << random.whole(0, 3)) : random.real(0.1F, 1),
                       .lowest = binary ? 0.25F : random.real(0.1F, 5),
                       .highest = binary ? 1048576 : random.real(2000, 100000)};
    o.validate();
    loss_scale_state state = o.first();
    model right{o};
    double const overflows = 0.3 / static_cast<double>(o.growth_interval);
    std::uint32_t changes = 0;
    for (int step = 0; step < 5000; ++step) {
      auto const gradients = random.chance(overflows) ? gradient_range::overflowed : gradient_range::finite;
      loss_scale_state const before = state;
      state = o.next(state, gradients);
      right.after(gradients);
      REQUIRE(state.good_steps == right.good_steps());
      REQUIRE(state.scale >= o.lowest);
      REQUIRE(state.scale <= o.highest);
      if (binary) {
        REQUIRE(static_cast<double>(state.scale) == right.scale());
        REQUIRE(is_power_of_two(state.scale));
      } else {  // a rounding a change, each at most 2^-24
        changes += before.scale != state.scale ? 1 : 0;
        REQUIRE(std::abs(static_cast<double>(state.scale) / right.scale() - 1) <= 0x1.01p-24 * (changes + 1));
      }
    }
  }
}

TEST_CASE("loss_scale: an overflow lowers it at once") {
  lockstep::loss_scale const options{.initial = 1024, .growth_interval = 500};
  options.validate();
  lockstep::loss_scale_state state = options.first();
  state = options.next(state, lockstep::gradient_range::overflowed);  // behind each step
  CHECK(state.scale == 512.0F);
}

TEST_CASE("loss_scale: it rises in exactly the growth_interval-th step with finite gradients, counted from the last overflow") {
  loss_scale const o{.growth_interval = 5};
  loss_scale_state state = o.next(o.first(), gradient_range::finite);
  state = o.next(state, gradient_range::overflowed);
  CHECK(state == loss_scale_state{32768, 0});
  for (std::uint32_t good = 1; good < 5; ++good) {
    state = o.next(state, gradient_range::finite);
    CHECK(state == loss_scale_state{32768, good});
  }
  state = o.next(state, gradient_range::finite);
  CHECK(state == loss_scale_state{65536, 0});
}

TEST_CASE("loss_scale: at the floor it stays, and goes on counting from there") {
  loss_scale const o{.initial = 3, .growth_interval = 2, .lowest = 1};
  loss_scale_state state = o.next(o.first(), gradient_range::overflowed);
  CHECK(state == loss_scale_state{1.5F, 0});
  state = o.next(state, gradient_range::overflowed);
  CHECK(state == loss_scale_state{1, 0});  // not 0.75
  state = o.next(o.next(state, gradient_range::finite), gradient_range::overflowed);
  CHECK(state == loss_scale_state{1, 0});
  state = o.next(o.next(state, gradient_range::finite), gradient_range::finite);
  CHECK(state == loss_scale_state{2, 0});
}

TEST_CASE("loss_scale: at the ceiling it stays, and its count begins anew at the interval") {
  loss_scale const o{.initial = 6, .growth_interval = 2, .highest = 10};
  loss_scale_state state = o.next(o.next(o.first(), gradient_range::finite), gradient_range::finite);
  CHECK(state == loss_scale_state{10, 0});  // not 12
  state = o.next(state, gradient_range::finite);
  CHECK(state == loss_scale_state{10, 1});
  state = o.next(state, gradient_range::finite);
  CHECK(state == loss_scale_state{10, 0});
  state = o.next(state, gradient_range::overflowed);
  CHECK(state == loss_scale_state{5, 0});
}

TEST_CASE("loss_scale: with growth 1 and backoff 1 it never moves") {
  loss_scale const o{.initial = 100, .growth = 1, .growth_interval = 1, .backoff = 1};
  loss_scale_state state = o.first();
  for (int step = 0; step < 10; ++step) {
    state = o.next(state, step % 3 == 0 ? gradient_range::overflowed : gradient_range::finite);
    CHECK(state == loss_scale_state{100, 0});
  }
}

TEST_CASE("loss_scale: largest and smallest numbers end at the limits") {
  constexpr float largest = std::numeric_limits<float>::max();
  constexpr float smallest = std::numeric_limits<float>::denorm_min();
  loss_scale const o{
      .initial = 1, .growth = largest, .growth_interval = 1, .backoff = smallest, .lowest = smallest, .highest = largest};
  CHECK(refusal(o).empty());
  CHECK(o.next({4, 0}, gradient_range::finite) == loss_scale_state{largest, 0});
  CHECK(o.next({0.25F, 0}, gradient_range::overflowed) == loss_scale_state{smallest, 0});
  loss_scale const slow{.growth_interval = std::numeric_limits<std::uint32_t>::max()};
  CHECK(slow.next({8, slow.growth_interval - 2}, gradient_range::finite) == loss_scale_state{8, slow.growth_interval - 1});
  CHECK(slow.next({8, slow.growth_interval - 1}, gradient_range::finite) == loss_scale_state{16, 0});
}

TEST_CASE("loss_scale: options that change between steps hold from the next on") {
  loss_scale_state const late{1024, 500};
  CHECK(loss_scale{.growth_interval = 100}.next(late, gradient_range::finite) == loss_scale_state{2048, 0});
  CHECK(loss_scale{.growth_interval = 100, .highest = 512}.next(late, gradient_range::finite) == loss_scale_state{512, 0});
  CHECK(loss_scale{.lowest = 4096}.next(late, gradient_range::overflowed) == loss_scale_state{4096, 0});
  CHECK(loss_scale{.highest = 512}.next(late, gradient_range::finite) == loss_scale_state{1024, 501});
}

TEST_CASE("loss_scale: fields out of range are refused by name, with the value") {
  CHECK(refusal(loss_scale{}).empty());
  CHECK(refusal(loss_scale{.initial = 2, .growth = 1, .growth_interval = 1, .backoff = 1, .lowest = 2, .highest = 2}).empty());
  CHECK(refusal(loss_scale{.initial = 0.5F}) ==
        "lockstep: loss_scale.initial must lie in [loss_scale.lowest, loss_scale.highest], and is 0.5");
  CHECK(refusal(loss_scale{.initial = infinity}).find("loss_scale.initial must") != std::string::npos);
  CHECK(refusal(loss_scale{.initial = not_a_number}).find("loss_scale.initial must") != std::string::npos);
  CHECK(refusal(loss_scale{.growth = 0.5F}) == "lockstep: loss_scale.growth must be at least 1, and is 0.5");
  CHECK(refusal(loss_scale{.growth = infinity}).find("loss_scale.growth must") != std::string::npos);
  CHECK(refusal(loss_scale{.growth = not_a_number}).find("loss_scale.growth must") != std::string::npos);
  CHECK(refusal(loss_scale{.growth_interval = 0}) == "lockstep: loss_scale.growth_interval must be at least 1, and is 0");
  CHECK(refusal(loss_scale{.backoff = 0}) == "lockstep: loss_scale.backoff must lie in (0, 1], and is 0");
  CHECK(refusal(loss_scale{.backoff = 1.5F}).find("loss_scale.backoff must") != std::string::npos);
  CHECK(refusal(loss_scale{.backoff = not_a_number}).find("loss_scale.backoff must") != std::string::npos);
  CHECK(refusal(loss_scale{.lowest = 0}) == "lockstep: loss_scale.lowest must be finite and greater than 0, and is 0");
  CHECK(refusal(loss_scale{.lowest = not_a_number}).find("loss_scale.lowest must") != std::string::npos);
  CHECK(refusal(loss_scale{.highest = infinity}).find("loss_scale.highest must") != std::string::npos);
  CHECK(refusal(loss_scale{.highest = 0.5F}) == "lockstep: loss_scale.lowest must not be above loss_scale.highest, and is 1");
}
