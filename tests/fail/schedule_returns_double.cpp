// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// expect: lockstep: Schedule must be trivially copyable and callable as float(std::uint64_t step) const; see
// docs/concepts.md#schedule

#include "parts.hpp"

#include <lockstep/optim/scheduled.hpp>

#include <cstdint>

struct inverse {
  double operator()(std::uint64_t step) const { return 1.0 / static_cast<double>(step); }
};

int main() {
  std::vector<float> x(8), y(8);
  lockstep::trainer<line, lockstep::scheduled<lockstep::sgd, inverse>, lockstep::peer_all_reduce<>> trainer{
      lockstep::devices::first(2), [](auto&) { return line{}; }, lockstep::scheduled{lockstep::sgd{}, inverse{}}};
  auto result = trainer.step({x, y}, {.micro_batches = 2});
  return result.loss() > 0 ? trainer.size() : 1;
}
