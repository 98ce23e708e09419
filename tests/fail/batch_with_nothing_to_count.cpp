// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// expect: lockstep: Model::batch must have a free function sample_count(batch); see docs/concepts.md#batch-count

#include "parts.hpp"

struct bad : tensors {
  using backend = lockstep::host;
  using batch = std::tuple<lockstep::replicated<float>>;
  void train(lockstep::train_context<backend>&, batch const&) {}
};

int main() {
  std::vector<float> x(8), y(8);
  lockstep::trainer<bad, lockstep::sgd, lockstep::peer_all_reduce<>> trainer{
      lockstep::devices::first(2), [](auto&) { return bad{}; }, lockstep::sgd{.learning_rate = 0.5F}};
  trainer.step({lockstep::replicated{0.5F}});
  return 0;
}
