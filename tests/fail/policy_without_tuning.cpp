// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// expect: lockstep: Policy must have a public static constexpr lockstep::tuning tuning_values; see
// docs/concepts.md#policy-tuning

#include "parts.hpp"

struct bad {
  using transport = lockstep::automatic;
};

int main() {
  std::vector<float> x(8), y(8);
  lockstep::trainer<line, lockstep::sgd, bad> trainer{lockstep::devices::first(2), [](auto&) { return line{}; },
                                                      lockstep::sgd{.learning_rate = 0.5F}};
  auto result = trainer.step({x, y}, {.micro_batches = 2});
  return result.loss() > 0 ? trainer.size() : 1;
}
