// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// expect: lockstep: Model::parameters must return a range of lockstep::parameter; see docs/concepts.md#model-parameters-range

#include "parts.hpp"

struct bad {
  using backend = lockstep::host;
  using batch = pairs;
  float value[2]{};
  std::span<float> parameters() { return value; }
  void train(lockstep::train_context<backend>&, batch const&) {}
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
