// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// expect: lockstep: Optimizer must be copyable and assignable, which a lambda with captures is not; see
// docs/concepts.md#optimizer-copyable

#include "parts.hpp"

int main() {
  std::vector<float> x(8), y(8);
  float const rate = 0.1F;
  auto const descend = [rate](float value, float gradient) { return value - rate * gradient; };
  lockstep::trainer<line, std::remove_const_t<decltype(descend)>, lockstep::peer_all_reduce<>> trainer{
      lockstep::devices::first(2), [](auto&) { return line{}; }, descend};
  trainer.step({x, y});
  return trainer.size();
}
