// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// expect: lockstep: Model must have a public parameters(); see docs/concepts.md#model-parameters

#include "parts.hpp"

struct bad {
  using backend = lockstep::host;
  using batch = pairs;
  void train(lockstep::train_context<backend>&, batch const&) {}
};

int main() {
  std::vector<float> x(8), y(8);
  lockstep::trainer<bad, lockstep::sgd, lockstep::peer_all_reduce<>> trainer{
      lockstep::devices::first(2), [](auto&) { return bad{}; }, lockstep::sgd{.learning_rate = 0.5F}};
  auto result = trainer.step({x, y}, {.micro_batches = 2});
  return result.loss() > 0 ? trainer.size() : 1;
}
