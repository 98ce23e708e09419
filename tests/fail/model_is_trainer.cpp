// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// expect: lockstep: Model must be a model, not a trainer; see docs/concepts.md#nested-trainer

#include "parts.hpp"

using inner = lockstep::trainer<line, lockstep::sgd, lockstep::peer_all_reduce<>>;

int main() {
  std::vector<float> x(8), y(8);
  lockstep::trainer<inner, lockstep::sgd, lockstep::peer_all_reduce<>> trainer{
      lockstep::devices::first(2), [](auto&) -> inner& { throw 1; }, lockstep::sgd{.learning_rate = 0.5F}};
  auto result = trainer.step({x, y}, {.micro_batches = 2});
  return result.loss() > 0 ? trainer.size() : 1;
}
