// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// expect: lockstep: Policy must be a policy, such as lockstep::peer_all_reduce<>; see docs/concepts.md#policy

#include "parts.hpp"

int main() {
  std::vector<float> x(8), y(8);
  lockstep::trainer<line, lockstep::sgd, lockstep::shared_memory> trainer{
      lockstep::devices::first(2), [](auto&) { return line{}; }, lockstep::sgd{.learning_rate = 0.5F}};
  auto const result = trainer.step({x, y}, {.micro_batches = 2});
  trainer.predict(pairs{x, y}, std::span<float>{x});
  auto const bytes = trainer.memory(lockstep::rank_id{0}).total() + trainer.bytes_moved();
  return result.samples() + bytes > 0 ? 0 : 1;
}
