// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// expect: lockstep: Optimizer must be callable as float(float value, float gradient, float& slots..., prepared); see
// docs/concepts.md#optimizer-call

#include "parts.hpp"

struct bad {
  void operator()(float& value, float gradient) const { value -= gradient; }
};

int main() {
  std::vector<float> x(8), y(8);
  lockstep::trainer<line, bad, lockstep::peer_all_reduce<>> trainer{lockstep::devices::first(2), [](auto&) { return line{}; },
                                                                    bad{}};
  std::vector<pairs> shards{{x, y}, {x, y}};
  auto result = trainer.step_shards(shards, {.micro_batches = 4});
  return result.skipped() ? trainer.size() : 1;
}
