// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// expect: lockstep: Backend must be a backend, such as lockstep::host; see docs/concepts.md#backend

#include "parts.hpp"

struct cpu {
  using weight = float;
  struct stream_ref {};
};

int main() {
  tensors mine;
  lockstep::host::device device;
  std::vector<lockstep::device_id> const ids{lockstep::device_id{0}};
  auto communicators = lockstep::communicator_for<lockstep::local, lockstep::host>::create(ids, {});
  lockstep::replica<lockstep::peer_all_reduce<>, lockstep::sgd, cpu> replica{
      device, std::move(communicators[0]), mine.parameters(), lockstep::sgd{}, {.reports_unused = true}};
  auto step = replica.begin({.samples = 4, .total_samples = 4});
  auto ctx = step.micro_batch(4);
  ctx.gradient_ready(0);
  return step.finish().loss() > 0 ? replica.size() : 0;
}
