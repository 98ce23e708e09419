// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// expect: lockstep: Policy's tuning must have bucket_bytes >= 1024 and stage_below_bytes <= bucket_bytes; see
// docs/concepts.md#tuning

#include "parts.hpp"

constexpr lockstep::tuning tiny{.bucket_bytes = 64};

int main() {
  std::vector<float> x(8), y(8);
  lockstep::trainer<line, lockstep::sgd, lockstep::peer_all_reduce<lockstep::automatic, tiny>> trainer{
      lockstep::devices::first(2), [](auto&) { return line{}; }, lockstep::sgd{.learning_rate = 0.5F}};
  auto result = trainer.step({x, y}, {.micro_batches = 2});
  return result.loss() > 0 ? trainer.size() : 1;
}
