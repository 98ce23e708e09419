// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Fits y = a x + b on three devices, and says whether it came out right.

#include <lockstep/lockstep.hpp>

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <span>
#include <tuple>
#include <vector>

static_assert(LOCKSTEP_VERSION > 0);

struct line {
  using backend = lockstep::host;
  using batch = std::tuple<std::span<float const>, std::span<float const>>;  // x, y

  float a = 0, b = 0, gradient_a = 0, gradient_b = 0;

  std::vector<lockstep::parameter> parameters() { return {{"a", &a, &gradient_a, {1}}, {"b", &b, &gradient_b, {1}}}; }

  void train(lockstep::train_context<backend>& ctx, batch const& shard) {
    auto const& [x, y] = shard;
    for (std::size_t i = 0; i < x.size(); ++i) {
      float const error = a * x[i] + b - y[i];
      *ctx.loss() += ctx.sample_weight() * error * error / 2;
      gradient_a += ctx.sample_weight() * error * x[i];
      gradient_b += ctx.sample_weight() * error;
    }
  }
};

int main() {
  std::vector<float> x;
  std::vector<float> y;
  for (int i = 0; i <= 100; ++i) {
    x.push_back(static_cast<float>(i) / 100);
    y.push_back(2 - 5 * x.back());
  }
  lockstep::trainer<line, lockstep::sgd, lockstep::peer_all_reduce<>> trainer{
      lockstep::devices::first(3), [](auto&) { return line{}; }, lockstep::sgd{.learning_rate = 0.5F, .momentum = 0.9F}};
  for (int step = 0; step < 200; ++step) {
    trainer.step({x, y});
  }
  line const& fitted = trainer.model();
  std::printf("a = %.3f, b = %.3f\n", double{fitted.a}, double{fitted.b});
  return std::abs(fitted.a + 5) < 1e-3F && std::abs(fitted.b - 2) < 1e-3F ? 0 : 1;
}
