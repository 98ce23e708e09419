// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#include <lockstep/concepts.hpp>
#include <lockstep/core/host_device.hpp>
#include <lockstep/optim/adam.hpp>
#include <lockstep/optim/adamw.hpp>
#include <lockstep/optim/clip_by_value.hpp>
#include <lockstep/optim/sgd.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>

#include "../seed.hpp"
#include "../support/thrown.hpp"

using lockstep::adamw;
using lockstep::clipped_by_value;
using lockstep::sgd;
using lockstep::update_info;
using support::refusal;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

/// What each sees of a gradient is its new value.
struct plain {
  LOCKSTEP_HOST_DEVICE float operator()(float, float gradient) const { return gradient; }
};
struct with_slots {
  static constexpr std::array<std::string_view, 3> slots{"a", "b", "c"};
  LOCKSTEP_HOST_DEVICE float operator()(float value, float gradient, float& a, float& b, float& c) const {
    a += gradient;
    b += value;
    c += 1;
    return gradient;
  }
};
struct prepared_only {
  float learning_rate = 2;
  LOCKSTEP_HOST_DEVICE float prepare(update_info const& info) const { return info.learning_rate; }
  LOCKSTEP_HOST_DEVICE float operator()(float, float gradient, float const& rate) const { return rate * gradient; }
};
struct by_value {
  float learning_rate = 2;
  LOCKSTEP_HOST_DEVICE float prepare(update_info const& info) const { return info.learning_rate; }
  LOCKSTEP_HOST_DEVICE float operator()(float, float gradient, float rate) const { return rate * gradient; }
};
struct takes_anything {
  template <class... Slots>
  LOCKSTEP_HOST_DEVICE float operator()(float, float gradient, Slots&...) const {
    return gradient;
  }
};

template <class O>
inline constexpr bool is_like_its_base =
    lockstep::elementwise_optimizer<clipped_by_value<O>>&& std::is_aggregate_v<clipped_by_value<O>>&&
        lockstep::slot_count<clipped_by_value<O>> == lockstep::slot_count<O>&& lockstep::prepares<clipped_by_value<O>> ==
    lockstep::prepares<O>&& std::is_same_v<lockstep::prepared_type<clipped_by_value<O>>, lockstep::prepared_type<O>>;
static_assert(is_like_its_base<plain> && is_like_its_base<with_slots> && is_like_its_base<prepared_only>);
static_assert(is_like_its_base<by_value> && is_like_its_base<takes_anything>);
static_assert(is_like_its_base<sgd> && is_like_its_base<lockstep::adam> && is_like_its_base<adamw>);
static_assert(is_like_its_base<clipped_by_value<adamw>>);
static_assert(lockstep::slot_names<clipped_by_value<adamw>>()[1] == "second_moment");
static_assert(std::is_same_v<decltype(clipped_by_value{sgd{}, 1.0F}), clipped_by_value<sgd>>);
// As many arguments as the optimizer takes, and no more: the concepts tell a missing slot by that.
static_assert(!std::is_invocable_v<clipped_by_value<plain> const&, float, float, float&>);
static_assert(!std::is_invocable_v<clipped_by_value<with_slots> const&, float, float, float&, float&>);

}  // namespace

TEST_CASE("clip_by_value: gradients within the limit go through, bit for bit, and others become the limit") {
  clipped_by_value<plain> const o{{}, 0.5F};
  for (float const g : {0.25F, -0.25F, 0.5F, -0.5F, 0.0F, 1e-45F, -1e-45F}) {
    CHECK(o(0, g) == g);
  }
  CHECK(std::signbit(o(0, -0.0F)));
  CHECK_FALSE(std::signbit(o(0, 0.0F)));
  CHECK(o(0, std::nextafter(0.5F, 1.0F)) == 0.5F);
  CHECK(o(0, std::nextafter(-0.5F, -1.0F)) == -0.5F);
  CHECK(o(0, 3e38F) == 0.5F);
  CHECK(o(0, infinity) == 0.5F);
  CHECK(o(0, -infinity) == -0.5F);
}

TEST_CASE("clip_by_value: what is not a number stays so") {
  clipped_by_value<plain> const o{{}, 0.5F};
  CHECK(std::isnan(o(0, not_a_number)));
  CHECK(std::isnan(o(0, -not_a_number)));
}

TEST_CASE("clip_by_value: slots and what was prepared reach the optimizer") {
  clipped_by_value<with_slots> const o{{}, 2};
  float a = 1;
  float b = 2;
  float c = 3;
  CHECK(o(10, 5, a, b, c) == 2.0F);
  CHECK(a == 3.0F);
  CHECK(b == 12.0F);
  CHECK(c == 4.0F);
  clipped_by_value<prepared_only> const p{{.learning_rate = 3}, 2};
  CHECK(p(0, 5, p.prepare({.learning_rate = p.learning_rate})) == 6.0F);
  clipped_by_value<by_value> const q{{.learning_rate = 3}, 2};
  CHECK(q(0, -5, q.prepare({.learning_rate = q.learning_rate})) == -6.0F);
}

TEST_CASE("clip_by_value: steps are those of the optimizer with gradients cut by hand, bit for bit") {
  auto const seed = tests::seed();
  INFO("LOCKSTEP_TEST_SEED=", seed);
  tests::generator random{seed};
  for (int run = 0; run < 300; ++run) {
    float const limit = std::pow(10.0F, random.real(-3, 1));
    sgd const descend{.learning_rate = 0.1F, .momentum = random.real(0, 1), .weight_decay = random.real(0, 0.1F)};
    adamw const adapt{.learning_rate = 0.01F, .weight_decay = random.real(0, 0.1F)};
    clipped_by_value const clipped_descend{descend, limit};
    clipped_by_value const clipped_adapt{adapt, limit};
    std::array<float, 5> got{1, 0, 1, 0, 0};
    std::array<float, 5> right = got;
    for (std::uint64_t t = 1; t <= 50; ++t) {
      float const gradient = random.real(-1, 1) * std::pow(10.0F, random.real(-3, 1));
      float const cut = std::clamp(gradient, -limit, limit);
      update_info const of_descend{.step = t, .learning_rate = descend.learning_rate};
      update_info const of_adapt{.step = t, .learning_rate = adapt.learning_rate};
      got[0] = clipped_descend(got[0], gradient, got[1], clipped_descend.prepare(of_descend));
      right[0] = descend(right[0], cut, right[1], descend.prepare(of_descend));
      got[2] = clipped_adapt(got[2], gradient, got[3], got[4], clipped_adapt.prepare(of_adapt));
      right[2] = adapt(right[2], cut, right[3], right[4], adapt.prepare(of_adapt));
      REQUIRE(got == right);
    }
  }
}

TEST_CASE("clip_by_value: the smaller of two limits holds") {
  CHECK(clipped_by_value<clipped_by_value<plain>>{{{}, 1}, 2}(0, 5) == 1.0F);
  CHECK(clipped_by_value<clipped_by_value<plain>>{{{}, 2}, 1}(0, 5) == 1.0F);
}

TEST_CASE("clip_by_value: fields out of range are refused by name, with the value") {
  CHECK(refusal(clipped_by_value{sgd{}, 1.0F}).empty());
  CHECK(refusal(clipped_by_value<plain>{}).empty());
  CHECK(refusal(clipped_by_value{sgd{}, 0.0F}) ==
        "lockstep: clipped_by_value.limit must be finite and greater than 0, and is 0");
  for (float const limit : {-1.0F, infinity, not_a_number}) {
    CHECK(refusal(clipped_by_value{plain{}, limit}).find("clipped_by_value.limit must") != std::string::npos);
  }
  CHECK(refusal(clipped_by_value{sgd{.learning_rate = -1}, 1.0F}).find("sgd.learning_rate must") != std::string::npos);
  CHECK(refusal(clipped_by_value{clipped_by_value{sgd{}, -1.0F}, 1.0F}).find("clipped_by_value.limit must") !=
        std::string::npos);
}
