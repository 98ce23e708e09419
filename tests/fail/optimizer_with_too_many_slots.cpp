// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// expect: lockstep: Optimizer must take one float& for each name in its slots; see docs/concepts.md#optimizer-slot-count

#include "parts.hpp"

struct bad : lockstep::sgd {
  static constexpr std::array<std::string_view, 3> slots{"a", "b", "c"};
};

int main() {
  std::vector<float> x(8), y(8);
  lockstep::trainer<line, bad, lockstep::peer_all_reduce<>> trainer{lockstep::devices::first(2), [](auto&) { return line{}; },
                                                                    bad{}};
  trainer.step({x, y});
  trainer.model().value[0] = 1;
  trainer.optimizer().learning_rate = 1;
  return trainer.model(lockstep::rank_id{1}).value[0] > 0 ? 0 : 1;
}
