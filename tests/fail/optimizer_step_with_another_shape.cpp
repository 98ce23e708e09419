// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// expect: lockstep: Optimizer::step must be a public void step(lockstep::update_context<backend>&,
// std::span<lockstep::parameter const>); see docs/concepts.md#optimizer-step

#include "parts.hpp"

struct bad {
  void step(std::span<lockstep::parameter const>) {}
};

int main() {
  std::vector<float> x(8), y(8);
  lockstep::trainer<line, bad, lockstep::peer_all_reduce<>> trainer{lockstep::devices::first(2), [](auto&) { return line{}; },
                                                                    std::vector<bad>{bad{}, bad{}}};
  auto result = trainer.step({x, y}, {.micro_batches = 2});
  return result.loss() > 0 ? trainer.size() : 1;
}
