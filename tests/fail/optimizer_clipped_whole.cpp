// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// expect: lockstep: Optimizer must be elementwise for its gradients to be clipped by value; see
// docs/concepts.md#optimizer-clipped

#include "parts.hpp"

#include <lockstep/optim/clip_by_value.hpp>

struct whole {
  float learning_rate = 0.1F;
  void step(lockstep::update_context<lockstep::host>&, std::span<lockstep::parameter const>) {}
};

int main() {
  std::vector<float> x(8), y(8);
  lockstep::trainer<line, lockstep::clipped_by_value<whole>, lockstep::peer_all_reduce<>> trainer{
      lockstep::devices::first(2), [](auto&) { return line{}; }, lockstep::clipped_by_value{whole{}, 0.5F}};
  auto result = trainer.step({x, y}, {.micro_batches = 2});
  return result.loss() > 0 ? trainer.size() : 1;
}
