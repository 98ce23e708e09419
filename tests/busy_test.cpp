// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#include <lockstep/lockstep.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <span>
#include <thread>
#include <vector>

namespace {

using namespace std::chrono_literals;

/// One number, pulled towards every sample; takes 2 ms a sample.
struct slow {
  using backend = lockstep::host;
  using batch = std::span<float const>;
  float value[1]{}, gradient[1]{};

  std::vector<lockstep::parameter> parameters() { return {{"value", value, gradient, {1}}}; }
  void train(lockstep::train_context<backend>& ctx, batch const& samples) {
    for (float const s : samples) {
      std::this_thread::sleep_for(2ms);
      gradient[0] += ctx.sample_weight() * (value[0] - s);
    }
  }
};

template <class Policy>
std::vector<double> busy_after_four_steps(bool measured) {
  lockstep::trainer<slow, lockstep::sgd, Policy> trainer{lockstep::devices::first(3), [](auto&) { return slow{}; },
                                                         lockstep::sgd{.learning_rate = 0.1F},
                                                         lockstep::host::options{.measure_busy = measured}};
  std::vector<float> const samples(2, 1.0F);  // rank 2 has none
  for (int k = 0; k < 4; ++k) {
    trainer.step(samples);
  }
  std::vector<double> seconds;
  for (int r = 0; r < trainer.size(); ++r) {
    seconds.push_back(trainer.busy_seconds(lockstep::rank_id{r}));
  }
  return seconds;
}

}  // namespace

TEST_CASE("busy_seconds: what a device computes counts, what it waits for does not") {
  std::vector<double> const seconds = busy_after_four_steps<lockstep::peer_all_reduce<>>(true);
  CHECK(seconds[0] >= 4 * 0.002);
  CHECK(seconds[1] >= 4 * 0.002);
  CHECK(seconds[2] > 0);           // it updates
  CHECK(seconds[2] < seconds[1]);  // and waits for the others
}

TEST_CASE("busy_seconds: 0 where it was not asked for") {
  for (double const seconds : busy_after_four_steps<lockstep::replicate_and_gather<>>(false)) {
    CHECK(seconds == 0);
  }
}
