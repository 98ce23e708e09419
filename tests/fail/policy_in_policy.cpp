// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// expect: lockstep: Policy must hold a transport, not another policy; see docs/concepts.md#nested-policy

#include "parts.hpp"

int main() {
  std::vector<float> x(8), y(8);
  lockstep::trainer<line, lockstep::sgd, lockstep::peer_all_reduce<lockstep::replicate_and_gather<>>> trainer{
      lockstep::devices::first(2), [](auto&) { return line{}; }, lockstep::sgd{.learning_rate = 0.5F}};
  std::vector<pairs> shards{{x, y}, {x, y}};
  auto result = trainer.step_shards(shards, {.micro_batches = 4});
  return result.skipped() ? trainer.size() : 1;
}
