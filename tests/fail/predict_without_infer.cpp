// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// expect: lockstep: Model must have a public infer to predict; see docs/concepts.md#model-predict

#include "parts.hpp"

int main() {
  std::vector<float> x(8), y(8);
  lockstep::trainer<line, lockstep::sgd, lockstep::peer_all_reduce<>> trainer{
      lockstep::devices::first(2), [](auto&) { return line{}; }, lockstep::sgd{.learning_rate = 0.5F}};
  trainer.predict(pairs{x, y}, std::span<float>{x});
  return 0;
}
