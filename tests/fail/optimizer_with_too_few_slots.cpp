// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// expect: lockstep: Optimizer must take one float& for each name in its slots; see docs/concepts.md#optimizer-slot-count

#include "parts.hpp"

struct bad {
  static constexpr std::array<std::string_view, 1> slots{"m"};
  float operator()(float value, float gradient, float& m, float& v) const { return value - gradient * m * v; }
};

int main() {
  std::vector<float> x(8), y(8);
  lockstep::trainer<line, bad, lockstep::peer_all_reduce<>> trainer{lockstep::devices::first(2), [](auto&) { return line{}; },
                                                                    bad{}};
  auto result = trainer.step({x, y}, {.micro_batches = 2});
  return result.loss() > 0 ? trainer.size() : 1;
}
