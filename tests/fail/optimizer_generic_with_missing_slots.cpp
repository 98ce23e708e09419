// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// expect: lockstep: Optimizer must take one float& for each name in its slots; see docs/concepts.md#optimizer-slot-count

#include "parts.hpp"

int main() {
  std::vector<float> x(8), y(8);
  auto descend = [](float value, float gradient, auto& momentum) { return value - (momentum += gradient); };
  lockstep::trainer<line, decltype(descend), lockstep::peer_all_reduce<>> trainer{lockstep::devices::first(2),
                                                                                  [](auto&) { return line{}; }, descend};
  trainer.step({x, y});
  return trainer.size();
}
