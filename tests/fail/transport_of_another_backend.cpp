// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// expect: lockstep: Policy's transport must have a communicator on this backend; see docs/concepts.md#transport

#include "parts.hpp"

struct other : lockstep::host {};

struct bad : tensors {
  using backend = other;
  using batch = pairs;
  void train(lockstep::train_context<backend>&, batch const&) {}
};

int main() {
  std::vector<float> x(8), y(8);
  lockstep::trainer<bad, lockstep::sgd, lockstep::peer_all_reduce<lockstep::shared_memory>> trainer{
      lockstep::devices::first(2), [](auto&) { return bad{}; }, lockstep::sgd{}, {.timeout_seconds = 5}};
  auto result = trainer.step({x, y}, {.micro_batches = 2});
  return result.loss() > 0 ? trainer.size() : 1;
}
