// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// The one translation unit that is C++20.

#include "fit.hpp"

#include <lockstep/lockstep.hpp>

#include <array>
#include <cstddef>
#include <span>
#include <tuple>

namespace {

struct line {
  using backend = lockstep::host;
  using batch = std::tuple<std::span<float const>, std::span<float const>>;
  float value[2]{};
  float gradient[2]{};
  std::array<lockstep::parameter, 2> parameters() {
    return {{{"slope", &value[0], &gradient[0], {1}}, {"offset", &value[1], &gradient[1], {1}}}};
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

}  // namespace

struct line_fit::state {
  lockstep::trainer<line, lockstep::sgd, lockstep::peer_all_reduce<>> trainer;
};

line_fit::line_fit(int devices)
    : state_(new state{{lockstep::devices::first(devices), [](auto&) { return line{}; },
                        lockstep::sgd{.learning_rate = 0.5F, .momentum = 0.9F}}}) {}

line_fit::~line_fit() = default;

double line_fit::step(std::vector<float> const& x, std::vector<float> const& y) { return state_->trainer.step({x, y}).loss(); }

std::pair<float, float> line_fit::result() const {
  auto const& values = state_->trainer.model().value;
  return {values[0], values[1]};
}
