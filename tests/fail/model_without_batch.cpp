// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// expect: lockstep: Model must have a public type named batch; see docs/concepts.md#model-batch

#include "parts.hpp"

struct bad : tensors {
  using backend = lockstep::host;
  void train(lockstep::train_context<backend>&, pairs const&) {}
};

int main() {
  std::vector<float> x(8), y(8);
  lockstep::trainer<bad, lockstep::sgd, lockstep::peer_all_reduce<>> trainer{
      lockstep::devices::first(2), [](auto&) { return bad{}; }, lockstep::sgd{.learning_rate = 0.5F}};
  auto const result = trainer.step({x, y}, {.micro_batches = 2});
  trainer.predict(pairs{x, y}, std::span<float>{x});
  auto const bytes = trainer.memory(lockstep::rank_id{0}).total() + trainer.bytes_moved();
  return result.samples() + bytes > 0 ? 0 : 1;
}
