// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// expect: lockstep: Model must have a public type named backend, such as lockstep::host; see docs/concepts.md#model-backend

#include "parts.hpp"

struct bad : tensors {
  using batch = pairs;
  void train(lockstep::train_context<lockstep::host>&, batch const&) {}
};

int main() {
  std::vector<float> x(8), y(8);
  lockstep::trainer<bad, lockstep::sgd, lockstep::peer_all_reduce<>> trainer{
      lockstep::devices::first(2), [](auto&) { return bad{}; }, lockstep::sgd{.learning_rate = 0.5F}};
  trainer.step({x, y});
  trainer.model().value[0] = 1;
  trainer.optimizer().learning_rate = 1;
  return trainer.model(lockstep::rank_id{1}).value[0] > 0 ? 0 : 1;
}
