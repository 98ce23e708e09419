// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

#include "../examples/models/mlp.hpp"
#include "support/policies.hpp"
#include "support/pull_model.hpp"

#include <lockstep/lockstep.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace {

/// The loss is x^2 + 3 x + 1, whatever the sample. `Wrong` is added to the gradient.
template <class Real, int Wrong = 0>
struct square {
  using backend = lockstep::host;
  using batch = std::span<float const>;
  Real x = 2;
  Real gradient = 0;
  std::array<lockstep::parameter, 1> parameters() { return {{{"x", &x, &gradient, {1}}}}; }
  void train(lockstep::train_context<backend>& ctx, batch const& shard) {
    for (std::size_t i = 0; i < shard.size(); ++i) {
      *ctx.loss() += ctx.sample_weight() * static_cast<float>(x * x + 3 * x + 1);
      gradient += ctx.sample_weight() * (2 * x + 3 + Wrong);
    }
  }
};

struct digits_batch {
  digits_batch(std::size_t samples, std::size_t width, std::size_t classes) : count(samples), pixels(width) {
    tests::generator random{3};
    for (std::size_t i = 0; i < samples * width; ++i) {
      images.push_back(random.real(0, 1));
    }
    for (std::size_t i = 0; i < samples; ++i) {
      labels.push_back(static_cast<std::int32_t>(random.whole(0, classes - 1)));
    }
  }
  [[nodiscard]] examples::mlp::batch view() const { return {{images.data(), count, pixels}, {labels.data(), count, 1}}; }
  std::size_t count;
  std::size_t pixels;
  std::vector<float> images;
  std::vector<std::int32_t> labels;
};

/// The perceptron with one gradient spoilt, as by a forgotten factor.
struct spoilt_mlp : examples::mlp {
  using examples::mlp::mlp;
  void train(lockstep::train_context<lockstep::host>& ctx, batch const& shard) {
    examples::mlp::train(ctx, shard);
    auto const& bias = parameters()[3];
    static_cast<float*>(bias.gradient)[2] *= 1.1F;
  }
};

}  // namespace

TEST_CASE("gradient_check: x^2 + 3 x + 1 has gradient 7 at 2, in f32 and f64, under every policy") {
  std::vector<float> const samples(5);
  auto const check = [&]<class Model, class Policy>(std::type_identity<Model>, std::type_identity<Policy>, int ranks) {
    auto const report = lockstep::gradient_check<Model, Policy>(
        lockstep::devices::first(ranks), [](auto&) { return Model{}; }, std::span{samples});
    CHECK(report.within());
    CHECK(report.checked == 1);
    CHECK(report.worst.parameter == "x");
    CHECK(report.worst.analytic == doctest::Approx(7));
    CHECK(report.worst.numeric == doctest::Approx(7).epsilon(1e-3));
  };
  check(std::type_identity<square<float>>{}, std::type_identity<lockstep::single_device>{}, 1);
  check(std::type_identity<square<double>>{}, std::type_identity<lockstep::single_device>{}, 1);
  support::for_each_parallel_policy([&]<class Policy>(std::type_identity<Policy>, std::string const& name) {
    CAPTURE(name);
    check(std::type_identity<square<float>>{}, std::type_identity<Policy>{}, 3);
    check(std::type_identity<square<double>>{}, std::type_identity<Policy>{}, 7);
  });
}

TEST_CASE("gradient_check: a wrong gradient is named with both numbers") {
  std::vector<float> const samples(4);
  auto const report = lockstep::gradient_check<square<float, 1>>(
      lockstep::devices::first(1), [](auto&) { return square<float, 1>{}; }, std::span{samples});
  CHECK_FALSE(report.within());
  CHECK(to_string(report).find("worst of 1 elements: 'x'[0] has gradient 8, but its loss says 7") == 0);
}

TEST_CASE("gradient_check: the perceptron of the examples passes under every policy, a spoilt one is found out") {
  digits_batch const data{13, 12, 5};
  auto const build = [](auto& device) { return spoilt_mlp{device, {12, 7, 5}, 1}; };
  support::for_each_parallel_policy([&]<class Policy>(std::type_identity<Policy>, std::string const& name) {
    CAPTURE(name);
    auto const good = lockstep::gradient_check<examples::mlp, Policy>(
        lockstep::devices::first(3),
        [](auto& device) {
          return examples::mlp{device, {12, 7, 5}, 1};
        },
        data.view(), {.elements_per_parameter = 12, .seed = 5, .micro_batches = 2});
    CHECK_MESSAGE(good.within(), to_string(good));
    CHECK(good.checked == 12 + 7 + 12 + 5);
    auto const bad = lockstep::gradient_check<spoilt_mlp, Policy>(lockstep::devices::first(3), build, data.view());
    CHECK_MESSAGE(!bad.within(), to_string(bad));
    CHECK(bad.worst.parameter == "layer1.bias");
    CHECK(bad.worst.element == 2);
  });
}

TEST_CASE("gradient_check: 16-bit values are moved by what they can hold") {
  tests::generator random{4};
  support::pull_samples const samples{random, 6, 3};
  auto const report = lockstep::gradient_check<support::pull_model<lockstep::bfloat16>>(
      lockstep::devices::first(1), [](auto&) { return support::pull_model<lockstep::bfloat16>{{}}; }, samples.view());
  CHECK_MESSAGE(report.within(), to_string(report));
}
