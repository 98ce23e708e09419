// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#include <lockstep/core/parameter.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <limits>
#include <vector>

using lockstep::parameter;
using lockstep::shape;

namespace {
constexpr std::size_t huge = std::numeric_limits<std::size_t>::max();
}

TEST_CASE("shape: count is the product of the extents, 1 for a scalar") {
  CHECK(shape{}.count() == 1);
  CHECK(shape{7}.count() == 7);
  CHECK(shape{28, 28, 3}.count() == 2352);
  CHECK(shape{1, 2, 1, 2, 1, 2, 1, 2}.count() == 16);
  CHECK(shape{huge}.count() == huge);
  CHECK(shape{huge, 1, 1}.count() == huge);
  CHECK(shape{std::size_t{1} << 32, (std::size_t{1} << 32) - 1}.count() ==
        (std::size_t{1} << 32) * ((std::size_t{1} << 32) - 1));
}

TEST_CASE("shape: a product that does not fit is refused") {
  CHECK_THROWS_AS((shape{huge, 2}), lockstep::usage_error);
  CHECK_THROWS_AS((shape{std::size_t{1} << 32, std::size_t{1} << 32}), lockstep::usage_error);
  CHECK_THROWS_AS((shape{3, 1 + huge / 3}), lockstep::usage_error);
  CHECK_THROWS_AS((shape{std::size_t{1} << 33, 2, std::size_t{1} << 30}), lockstep::usage_error);
}

TEST_CASE("shape: an extent of zero makes no elements, wherever it stands and whatever stands beside it") {
  CHECK(shape{0}.count() == 0);
  CHECK(shape{0, huge, huge}.count() == 0);
  CHECK(shape{huge, huge, 0}.count() == 0);
  CHECK(shape{huge, 0, huge}.extents().size() == 3);
}

TEST_CASE("shape: at most eight dimensions") {
  CHECK(shape{1, 1, 1, 1, 1, 1, 1, 1}.extents().size() == 8);
  CHECK_THROWS_AS((shape{1, 1, 1, 1, 1, 1, 1, 1, 1}), lockstep::usage_error);
  CHECK_THROWS_AS(shape{std::vector<std::size_t>(9, 0)}, lockstep::usage_error);
}

TEST_CASE("shape: equal when the extents are, not when only the counts are") {
  CHECK(shape{2, 3} == shape{2, 3});
  CHECK_FALSE(shape{2, 3} == shape{3, 2});
  CHECK_FALSE(shape{6} == shape{6, 1});
  CHECK(to_string(shape{784, 128}) == "{784, 128}");
  CHECK(to_string(shape{}) == "{}");
}

TEST_CASE("parameter: describes value and gradient, which may differ in type") {
  std::vector<lockstep::bfloat16> values(6);
  std::vector<float> gradients(6);
  parameter const weight{"layer.weight", values.data(), gradients.data(), {2, 3}, {.group = 1}};
  CHECK(weight.name == "layer.weight");
  CHECK(weight.count() == 6);
  CHECK(weight.trainable());
  CHECK(weight.group == 1);
  CHECK(weight.values().data == values.data());
  CHECK(weight.values().type == lockstep::element_type::bf16);
  CHECK(weight.values().bytes() == 12);
  CHECK(weight.gradients().data == gradients.data());
  CHECK(weight.gradients().type == lockstep::element_type::f32);
  CHECK(weight.gradients().bytes() == 24);
}

TEST_CASE("parameter: a buffer has a value and no gradient") {
  std::vector<double> mean(4);
  parameter const running = lockstep::buffer("norm.mean", mean.data(), {4});
  CHECK_FALSE(running.trainable());
  CHECK(running.role == lockstep::parameter_role::buffer);
  CHECK(running.gradient == nullptr);
  CHECK(running.value == mean.data());
  CHECK(running.value_type == lockstep::element_type::f64);
  CHECK(running.count() == 4);
}
