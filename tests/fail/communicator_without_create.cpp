// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// expect: lockstep: communicator_for<transport, backend> must have a create(devices, options) that returns a std::vector of its
// type; see docs/concepts.md#communicator-create

#include "parts.hpp"

struct pigeons {};
template <>
struct lockstep::communicator_for<pigeons, lockstep::host> {
  using type = lockstep::shared_memory_communicator;
};

int main() {
  std::vector<float> x(8), y(8);
  lockstep::trainer<line, lockstep::sgd, lockstep::peer_all_reduce<pigeons>> trainer{
      lockstep::devices::first(2), [](auto&) { return line{}; }, lockstep::sgd{.learning_rate = 0.5F}};
  auto result = trainer.step({x, y}, {.micro_batches = 2});
  return result.loss() > 0 ? trainer.size() : 1;
}
