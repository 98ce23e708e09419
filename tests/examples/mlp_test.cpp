// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// The examples' perceptron on the host in 16 bits, and what it counts. Its gradients in f32: tests/gradient_check_test.cpp.

#include "../../examples/models/mlp.hpp"
#include "../seed.hpp"

#include <lockstep/lockstep.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace {

using lockstep::bfloat16;
using lockstep::float16;

std::vector<std::size_t> const widths{24, 40, 16};

struct samples {
  samples(tests::generator& random, std::size_t count) : labels(count) {
    for (std::size_t i = 0; i < count * widths.front(); ++i) {
      inputs.push_back(random.real(-1, 1));
    }
    for (std::int32_t& label : labels) {
      label = static_cast<std::int32_t>(random.whole(0, widths.back() - 1));
    }
  }
  [[nodiscard]] examples::mlp::batch view() const {
    return {{inputs.data(), labels.size(), widths.front()}, {labels.data(), labels.size(), 1}};
  }
  std::vector<float> inputs;
  std::vector<std::int32_t> labels;
};

/// A model, and what its last call of `train` came to.
template <class Value>
struct trained {
  using model_type = examples::basic_mlp<Value>;

  void train(samples const& s, float weight, bool accumulate = false) {
    lockstep::train_context<lockstep::host> ctx{
        {.sample_weight = weight, .loss = &loss, .metrics = &correct, .metric_count = 1, .accumulate = accumulate}};
    model.train(ctx, s.view());
  }
  [[nodiscard]] std::vector<float> gradients() const {
    std::vector<float> all;
    for (lockstep::parameter const& p : model.parameters()) {
      auto const* const first = static_cast<float const*>(p.gradient);
      all.insert(all.end(), first, first + p.count());
    }
    return all;
  }

  lockstep::host::device device;
  model_type model{{device, lockstep::rank_id{0}, 1}, widths, 3};
  float loss = 0;
  float correct = 0;
};

/// An f32 model with the values that one in 16 bits has.
template <class Value>
void take_values(examples::basic_mlp<Value> const& from, examples::mlp const& to) {
  for (std::size_t p = 0; p < from.parameters().size(); ++p) {
    auto const* const values = static_cast<Value const*>(from.parameters()[p].value);
    std::copy_n(values, from.parameters()[p].count(), static_cast<float*>(to.parameters()[p].value));
  }
}

/// |found - wanted| / |wanted|, both as vectors.
double relative_error(std::vector<float> const& found, std::vector<float> const& wanted) {
  double off = 0;
  double size = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    off += std::pow(static_cast<double>(found[i]) - static_cast<double>(wanted[i]), 2);
    size += std::pow(static_cast<double>(wanted[i]), 2);
  }
  return std::sqrt(off / size);
}

template <class Value>
void compare_with_f32(double tolerance) {
  tests::generator random{7};
  samples const s{random, 50};
  trained<Value> narrow;
  trained<float> wide;
  take_values(narrow.model, wide.model);
  narrow.train(s, 1.0F / 64);
  wide.train(s, 1.0F / 64);
  CHECK(narrow.loss == doctest::Approx(wide.loss).epsilon(tolerance));
  double const error = relative_error(narrow.gradients(), wide.gradients());
  CHECK(error < tolerance);
  CHECK(error > tolerance / 100);  // results were rounded
}

template <class Value>
void compare_scaled() {
  constexpr float scale = 64;
  tests::generator random{11};
  samples const s{random, 3};
  trained<Value> plain;
  trained<Value> scaled;
  plain.train(s, 64);  // what moves by 64 then neither leaves 16 bits nor loses its last places there
  scaled.train(s, 64 * scale);
  std::vector<float> wanted = plain.gradients();
  for (float& x : wanted) {
    x *= scale;
  }
  CHECK(scaled.gradients() == wanted);
  CHECK(scaled.loss == scale * plain.loss);
  CHECK(std::any_of(wanted.begin(), wanted.end(), [](float x) { return x != 0; }));
}

template <class Value>
void count_right_answers() {
  tests::generator random{13};
  samples s{random, 60};
  trained<Value> t;
  std::vector<float> probabilities(s.labels.size() * widths.back());
  lockstep::infer_context<lockstep::host> ctx{{}, lockstep::rank_id{0}};
  t.model.infer(ctx, s.view(), {probabilities.data(), s.labels.size(), widths.back()});
  for (std::size_t i = 0; i < s.labels.size(); ++i) {
    auto const row = std::span{probabilities}.subspan(i * widths.back(), widths.back());
    auto const label = i % 3 == 0 ? std::max_element(row.begin(), row.end()) : std::min_element(row.begin(), row.end());
    s.labels[i] = static_cast<std::int32_t>(label - row.begin());
  }
  t.train(s, 1);
  CHECK(t.correct == 20);
  t.train(s, 1, true);
  CHECK(t.correct == 40);
}

}  // namespace

TEST_CASE("mlp: in 16 bits, loss and gradients are those of f32 but for rounding") {
  compare_with_f32<bfloat16>(1e-2);
  compare_with_f32<float16>(1.5e-3);
}

TEST_CASE("mlp: a loss scale in the weight scales loss and gradients exactly") {
  compare_scaled<float>();
  compare_scaled<bfloat16>();
  compare_scaled<float16>();
}

TEST_CASE("mlp: in f16, derivatives that are too small vanish, and a loss scale keeps them") {
  tests::generator random{17};
  samples const s{random, 20};
  constexpr float tiny = 0x1p-26F;  // half of the smallest f16
  auto const all_zero = [](std::vector<float> const& values) {
    return std::all_of(values.begin(), values.end(), [](float x) { return x == 0; });
  };
  trained<float16> vanished;
  vanished.train(s, tiny);
  CHECK(all_zero(vanished.gradients()));
  trained<float16> kept;
  kept.train(s, 65536 * tiny);
  CHECK_FALSE(all_zero(kept.gradients()));
  trained<bfloat16> in_range;
  in_range.train(s, tiny);
  CHECK_FALSE(all_zero(in_range.gradients()));
}

TEST_CASE("mlp: right answers are counted, over calls too") {
  count_right_answers<float>();
  count_right_answers<bfloat16>();
  count_right_answers<float16>();
}

TEST_CASE("mlp: in f16, steps that overflow are skipped until the loss scale fits, and then the loss falls") {
  tests::generator random{31};
  samples const s{random, 50};
  lockstep::trainer<examples::basic_mlp<float16>, lockstep::sgd, lockstep::peer_all_reduce<>> trainer{
      lockstep::devices::first(2),
      [](lockstep::device_context<lockstep::host>& device) {
        return examples::basic_mlp<float16>{device, widths, 7};
      },
      lockstep::sgd{.learning_rate = 0.5F}, lockstep::gradient_rules{.loss_scale = lockstep::loss_scale{.initial = 16777216}}};
  double const loss = trainer.step(s.view()).loss();
  int skipped = 0;
  double scale = 0;
  double last = 0;
  for (int step = 2; step <= 60; ++step) {
    auto const result = trainer.step(s.view(), {.micro_batches = 2});
    skipped += result.skipped() ? 1 : 0;
    scale = result.loss_scale();
    last = result.loss();
  }
  CHECK(skipped > 0);  // 2^24 / 50 is beyond f16
  CHECK(skipped < 20);
  CHECK(scale < 16777216);
  CHECK(last < 0.9 * loss);
}
