// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// expect: lockstep: Model::backend must be a backend, such as lockstep::host; see docs/concepts.md#backend

#include "parts.hpp"

struct cpu {
  using weight = float;
};

struct bad : tensors {
  using backend = cpu;
  using batch = pairs;
  void train(lockstep::train_context<backend>&, batch const&) {}
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
