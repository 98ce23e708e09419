// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// expect: lockstep: Optimizer must be callable for one element under a policy that splits updates between ranks; see
// docs/concepts.md#optimizer-split

#include "parts.hpp"

#include <lockstep/policy/sharded_optimizer.hpp>

struct whole {
  float learning_rate = 0.1F;
  void step(lockstep::update_context<lockstep::host>&, std::span<lockstep::parameter const>) {}
};

int main() {
  std::vector<float> x(8), y(8);
  lockstep::trainer<line, whole, lockstep::sharded_optimizer<>> trainer{
      lockstep::devices::first(2), [](auto&) { return line{}; }, whole{.learning_rate = 0.5F}};
  auto result = trainer.step({x, y}, {.micro_batches = 2});
  return result.loss() > 0 ? trainer.size() : 1;
}
