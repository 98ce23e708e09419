// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// expect: lockstep: Policy::publish must be a public static publish(communicator, values, stream); see
// docs/concepts.md#policy-publish

#include "parts.hpp"

struct bad : lockstep::replicate_and_gather<> {
  template <class Communicator>
  static void publish(Communicator&, lockstep::typed_span) {}
};

int main() {
  std::vector<float> x(8), y(8);
  lockstep::trainer<line, lockstep::sgd, bad> trainer{lockstep::devices::first(2), [](auto&) { return line{}; },
                                                      lockstep::sgd{.learning_rate = 0.5F}};
  auto result = trainer.step({x, y}, {.micro_batches = 2});
  return result.loss() > 0 ? trainer.size() : 1;
}
