// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// expect: lockstep: Optimizer must have a prepare to be scheduled, which is told the learning rate; see
// docs/concepts.md#optimizer-scheduled

#include "parts.hpp"

#include <lockstep/optim/schedule.hpp>
#include <lockstep/optim/scheduled.hpp>

struct descend {
  float learning_rate = 0.1F;
  float operator()(float value, float gradient) const { return value - learning_rate * gradient; }
};

int main() {
  std::vector<float> x(8), y(8);
  lockstep::trainer<line, lockstep::scheduled<descend, lockstep::cosine>, lockstep::peer_all_reduce<>> trainer{
      lockstep::devices::first(2), [](auto&) { return line{}; }, {descend{}, {.steps = 100}}};
  auto result = trainer.step({x, y}, {.micro_batches = 2});
  return result.loss() > 0 ? trainer.size() : 1;
}
