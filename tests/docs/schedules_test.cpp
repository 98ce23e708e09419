// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Code that docs/schedules.md quotes.

#include <lockstep/lockstep.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <span>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

namespace {

/// y = a x, where samples without a target are padding.
struct padded_line {
  using backend = lockstep::host;
  using batch = std::tuple<std::span<float const>, std::span<float const>>;
  static constexpr lockstep::model_promises promises{.counts_weight = true, .metrics = {"close"}};

  float a = 0, gradient = 0;

  std::vector<lockstep::parameter> parameters() { return {{"a", &a, &gradient, {1}}}; }

  void train(lockstep::train_context<backend>& ctx, batch const& shard) {
    auto const& [x, y] = shard;
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (std::isnan(y[i])) {
        continue;
      }
      float const error = a * x[i] - y[i];
      *ctx.loss() += ctx.sample_weight() * error * error / 2;
      gradient += ctx.sample_weight() * error * x[i];
      *ctx.counted() += 1;
      *ctx.metric(0) += std::abs(error) < 0.5F ? 1.0F : 0.0F;
    }
  }
};

}  // namespace

TEST_CASE("docs/schedules.md: rules, and what counts") {
  auto const factory = [](auto&) { return padded_line{}; };
  float const none = NAN;
  std::vector<float> const x{1, 2, 3, 4, 5}, y{3, none, none, 12, 15};
  std::ostringstream log;

  lockstep::trainer<padded_line, lockstep::sgd, lockstep::peer_all_reduce<>> trainer{
      lockstep::devices::first(3), factory, lockstep::sgd{.learning_rate = 0.05F},
      lockstep::gradient_rules{.max_norm = 10, .loss_scale = lockstep::loss_scale{}}};

  for (int k = 0; k < 40; ++k) {
    auto const result = trainer.step({x, y}, {.micro_batches = 2});
    log << "loss " << result.loss() << ", norm " << result.gradient_norm() << ", close: " << result.mean_metric("close")
        << " of " << result.weight() << (result.skipped() ? ", skipped\n" : "\n");
  }
  trainer.rules().max_norm = 1;  // holds for the next step

  float const before = trainer.model().a;
  std::vector<float> const far(5, 1000);
  CHECK(trainer.step({x, far}).gradient_norm() > 1);
  CHECK(trainer.model().a - before == doctest::Approx(0.05F));  // a norm of 1
  std::string const printed = log.str();
  CHECK(printed.substr(0, 36) == "loss 63, norm 42, close: 0 of 3\nloss");  // (9 + 144 + 225) / 2 / 3; (3 + 48 + 75) / 3
  CHECK(printed.find("close: 1 of 3\n") != std::string::npos);
  CHECK(printed.find("skipped") == std::string::npos);
  CHECK(before == doctest::Approx(3).epsilon(1e-3));
}
