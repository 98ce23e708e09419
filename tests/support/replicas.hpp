// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "threads.hpp"

#include <lockstep/lockstep.hpp>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace support {

/// Runs `work(rank, replica, model)` in a thread a rank, without a trainer: `make(device_context&)` builds the model of each.
/// Returns what each threw, as text ("" for nothing).
template <class Policy, class Make, class Work>
std::vector<std::string> on_replicas(int size, Make make, Work work, lockstep::host::options const& options = {}) {
  std::vector<lockstep::device_id> ids;
  for (int r = 0; r < size; ++r) {
    ids.push_back(lockstep::device_id{r});
  }
  auto communicators = lockstep::communicator_for<typename Policy::transport, lockstep::host>::create(ids, options);
  return on_ranks(size, [&](int rank) {
    auto const r = static_cast<std::size_t>(rank);
    lockstep::host::device device{ids[r], options};
    lockstep::device_context<lockstep::host> context{device, lockstep::rank_id{rank}, size};
    auto model = make(context);
    lockstep::replica<Policy, lockstep::sgd, lockstep::host> replica{device, std::move(communicators[r]), model.parameters(),
                                                                     lockstep::sgd{.learning_rate = 0.5F},
                                                                     lockstep::promises_of<decltype(model)>()};
    work(rank, replica, model);
  });
}

}  // namespace support
