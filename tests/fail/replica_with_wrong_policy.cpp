// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// expect: lockstep: Policy must be a policy, such as lockstep::peer_all_reduce<>; see docs/concepts.md#policy

#include "parts.hpp"

int main() {
  tensors mine;
  lockstep::host::device device;
  std::vector<lockstep::device_id> const ids{lockstep::device_id{0}};
  auto communicators = lockstep::communicator_for<lockstep::local, lockstep::host>::create(ids, {});
  lockstep::replica<lockstep::local, lockstep::sgd, lockstep::host> replica{
      device, std::move(communicators[0]), mine.parameters(), lockstep::sgd{}, {.reports_unused = true}};
  auto step = replica.begin({.samples = 4, .total_samples = 4});
  auto ctx = step.micro_batch(4);
  ctx.gradient_ready(0);
  return step.finish().loss() > 0 ? replica.size() : 0;
}
