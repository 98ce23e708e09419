// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// expect: lockstep: Optimizer must be callable for one element, or have a step for all parameters; see
// docs/concepts.md#optimizer

#include "parts.hpp"

struct bad {
  float learning_rate = 0.1F;
};

int main() {
  std::vector<float> x(8), y(8);
  lockstep::trainer<line, bad, lockstep::peer_all_reduce<>> trainer{
      lockstep::devices::first(2), [](auto&) { return line{}; }, {.learning_rate = 0.5F}};
  trainer.step({x, y});
  trainer.model().value[0] = 1;
  trainer.optimizer().learning_rate = 1;
  return trainer.model(lockstep::rank_id{1}).value[0] > 0 ? 0 : 1;
}
