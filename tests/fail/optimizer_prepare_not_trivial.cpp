// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// expect: lockstep: Optimizer::prepare must be const, take a lockstep::update_info const& and return what is trivially
// copyable; see docs/concepts.md#optimizer-prepare

#include "parts.hpp"

struct bad {
  std::vector<float> prepare(lockstep::update_info const&) const { return {0.1F}; }
  float operator()(float value, float gradient, std::vector<float> const& p) const { return value - p[0] * gradient; }
};

int main() {
  std::vector<float> x(8), y(8);
  lockstep::trainer<line, bad, lockstep::peer_all_reduce<>> trainer{lockstep::devices::first(2), [](auto&) { return line{}; },
                                                                    bad{}};
  auto result = trainer.step({x, y}, {.micro_batches = 2});
  return result.loss() > 0 ? trainer.size() : 1;
}
