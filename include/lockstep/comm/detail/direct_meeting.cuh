// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/comm/detail/direct_device.cuh>
#include <lockstep/comm/detail/direct_plan.hpp>

#include <cstdint>

namespace lockstep::comm_detail {

/// All ranks meet: what each enqueued before is done, and seen, by what any enqueues behind. One block, a thread a rank. The
/// count of meetings lies in the rank's own window and only goes up, so a replayed meeting is like any other; that of a rank is
/// at most one ahead of another's, so the flags need no second place.
template <class = void>
__global__ void meet_peers(direct_world const __grid_constant__ world) {
  int const peer = static_cast<int>(threadIdx.x);
  if (world.size < 2) {
    return;
  }
  auto* const count = reinterpret_cast<std::uint64_t*>(own_window(world) + direct_layout::meetings());
  std::uint64_t const number = *count + 1;
  bool came = true;
  if (peer < world.size && peer != world.rank) {
    fence_system();
    store_release(reinterpret_cast<std::uint64_t*>(world.windows[peer] + direct_layout::meeting_flag(world.rank)), number);
    auto const* const flag = reinterpret_cast<std::uint64_t const*>(own_window(world) + direct_layout::meeting_flag(peer));
    direct_patience patience;
    while (came && load_acquire(flag) < number) {
      came = patience.go_on(world, 0, number, peer);
    }
    fence_system();
  }
  if (__syncthreads_and(came ? 1 : 0) != 0 && threadIdx.x == 0) {
    *count = number;
  }
}

}  // namespace lockstep::comm_detail
