// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// expect: lockstep: Policy must have a public static plan::range owned(count, rank, size); see docs/concepts.md#policy-owned

#include "parts.hpp"

struct bad : lockstep::peer_all_reduce<> {
  static std::size_t owned(std::size_t count, lockstep::rank_id, int) { return count; }
};

int main() {
  std::vector<float> x(8), y(8);
  lockstep::trainer<line, lockstep::sgd, bad> trainer{lockstep::devices::first(2), [](auto&) { return line{}; },
                                                      lockstep::sgd{.learning_rate = 0.5F}};
  auto result = trainer.step({x, y}, {.micro_batches = 2});
  return result.loss() > 0 ? trainer.size() : 1;
}
