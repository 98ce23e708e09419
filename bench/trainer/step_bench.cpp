// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// The digits model at batch 64, trained by `trainer` under single_device and by the loop one would write by hand. Each case
// takes LOCKSTEP_BENCH_STEPS steps (default 200), so that a run of more steps less a run of fewer is the steps alone.

#include "../../examples/models/mlp.hpp"

#include <lockstep/lockstep.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr std::size_t batch_samples = 64;
constexpr std::size_t pixels = 64;
constexpr std::size_t classes = 10;

struct random_batch {
  random_batch() {
    std::mt19937 random{1};
    for (std::size_t i = 0; i < batch_samples * pixels; ++i) {
      images.push_back(static_cast<float>(random() % 17) / 16.0F);
    }
    for (std::size_t i = 0; i < batch_samples; ++i) {
      labels.push_back(static_cast<std::int32_t>(random() % classes));
    }
  }
  [[nodiscard]] examples::mlp::batch view() const {
    return {lockstep::sample_view<float const>{images.data(), batch_samples, pixels},
            lockstep::sample_view<std::int32_t const>{labels.data(), batch_samples, 1}};
  }
  std::vector<float> images;
  std::vector<std::int32_t> labels;
};

int steps() {
  char const* const given = std::getenv("LOCKSTEP_BENCH_STEPS");
  return given != nullptr ? std::stoi(given) : 200;
}

constexpr float rate = 3e-3F;
constexpr float decay = 0.01F;

/// AdamW as a program of its own would write it.
void adamw_by_hand(float* __restrict__ value, float const* __restrict__ gradient, float* __restrict__ m, float* __restrict__ v,
                   std::size_t count, float weight_decay, float step_size, float root_correction) {
  for (std::size_t i = 0; i < count; ++i) {
    m[i] = 0.9F * m[i] + 0.1F * gradient[i];
    v[i] = 0.999F * v[i] + 0.001F * gradient[i] * gradient[i];
    value[i] -= rate * weight_decay * value[i] + step_size * m[i] / (std::sqrt(v[i]) * root_correction + 1e-8F);
  }
}

}  // namespace

TEST_CASE("step: by hand") {
  lockstep::host::device device;
  lockstep::device_context<lockstep::host> const context{device, lockstep::rank_id{0}, 1};
  examples::mlp model{context, {pixels, 64, classes}, 1};
  std::vector<std::vector<float>> first;
  std::vector<std::vector<float>> second;
  for (lockstep::parameter const& p : model.parameters()) {
    first.emplace_back(p.count(), 0.0F);
    second.emplace_back(p.count(), 0.0F);
  }
  random_batch const data;
  double loss = 0;
  for (int k = 1; k <= steps(); ++k) {
    float cell = 0;
    float correct = 0;
    constexpr float weight = 1.0F / static_cast<float>(batch_samples);
    lockstep::train_context<lockstep::host> ctx{{.sample_weight = weight,
                                                 .shard_weight = 1.0F,
                                                 .host_sample_weight = weight,
                                                 .loss = &cell,
                                                 .metrics = &correct,
                                                 .metric_count = 1,
                                                 .accumulate = false}};
    model.train(ctx, data.view());
    auto const step_size = static_cast<float>(static_cast<double>(rate) / (1 - std::pow(0.9, k)));
    auto const root_correction = static_cast<float>(1 / std::sqrt(1 - std::pow(0.999, k)));
    for (std::size_t p = 0; p < first.size(); ++p) {
      lockstep::parameter const& described = model.parameters()[p];
      adamw_by_hand(static_cast<float*>(described.value), static_cast<float const*>(described.gradient), first[p].data(),
                    second[p].data(), described.count(), described.group == 0 ? decay : 0.0F, step_size, root_correction);
    }
    loss = static_cast<double>(cell);
  }
  CHECK(loss < 2.5);
}

TEST_CASE("step: trainer under single_device") {
  lockstep::trainer<examples::mlp, lockstep::adamw, lockstep::single_device> trainer{
      lockstep::devices::first(1),
      [](auto& device) {
        return examples::mlp{device, {pixels, 64, classes}, 1};
      },
      {lockstep::adamw{.learning_rate = rate, .weight_decay = decay},
       lockstep::adamw{.learning_rate = rate, .weight_decay = 0}}};
  random_batch const data;
  double loss = 0;
  for (int k = 1; k <= steps(); ++k) {
    loss = trainer.step(data.view()).loss();
  }
  CHECK(loss < 2.5);
}
