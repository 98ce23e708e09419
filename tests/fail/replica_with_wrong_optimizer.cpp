// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// expect: lockstep: Optimizer must be callable as float(float value, float gradient, float& slots..., prepared); see
// docs/concepts.md#optimizer-call

#include "parts.hpp"

struct bad {
  float learning_rate = 1;
  float operator()(float value) const { return value; }
};

int main() {
  tensors mine;
  lockstep::host::device device;
  std::vector<lockstep::device_id> const ids{lockstep::device_id{0}};
  auto communicators = lockstep::communicator_for<lockstep::local, lockstep::host>::create(ids, {});
  lockstep::replica<lockstep::single_device, bad, lockstep::host> replica{
      device, std::move(communicators[0]), mine.parameters(), {.learning_rate = 0.5F}, {.reports_unused = true}};
  auto step = replica.begin({.samples = 4, .total_samples = 4});
  auto ctx = step.micro_batch(4);
  ctx.gradient_ready(0);
  return step.finish().loss() > 0 ? replica.size() : 0;
}
