// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/comm/detail/direct_device.cuh>
#include <lockstep/core/clock.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace lockstep::comm_detail {

inline constexpr unsigned probe_threads = 256;

/// What rank `from` writes to rank `to` at the checked start.
[[nodiscard]] LOCKSTEP_HOST_DEVICE constexpr std::uint64_t probe_word(int from, int to, std::uint64_t at) noexcept {
  return (static_cast<std::uint64_t>(from * most_peers + to) + 1) * 0x9E3779B97F4A7C15U + at * 0xBF58476D1CE4E5B9U;
}

/// Writes a pattern to every peer, waits for those of the peers, and says in the signals what came. A block a peer. Uses the
/// inboxes for chunks and the flags of channel 0, which must be cleared afterwards.
template <class = void>
__global__ void __launch_bounds__(probe_threads) probe_peers(direct_world const __grid_constant__ world, std::uint64_t words) {
  if (world.size < 2) {
    return;
  }
  __shared__ bool came;
  int const me = world.rank;
  int const peer = (me + 1 + static_cast<int>(blockIdx.x)) % world.size;
  std::uint64_t const begin = clock_ns();
  auto* const to = reinterpret_cast<std::uint64_t*>(world.windows[peer] + world.layout.slot(peer, 0, 0, me));
  for (std::uint64_t i = threadIdx.x; i < words; i += probe_threads) {
    to[i] = probe_word(me, peer, i);
  }
  __syncthreads();
  direct_signals::probed& said = world.signals->probes[me][peer];
  if (threadIdx.x == 0) {
    fence_system();
    *static_cast<std::uint64_t volatile*>(&said.nanoseconds) = clock_ns() - begin;
    store_relaxed(reinterpret_cast<std::uint64_t*>(world.windows[peer] + world.layout.chunk_flag(0, me)), 1);
    auto const* const flag = reinterpret_cast<std::uint64_t const*>(world.windows[me] + world.layout.chunk_flag(0, peer));
    came = true;
    while (came && load_acquire(flag) == 0) {
      came = clock_ns() - begin < world.timeout_ns;
    }
  }
  __syncthreads();
  bool right = came;
  auto const* const from = reinterpret_cast<std::uint64_t const*>(world.windows[me] + world.layout.slot(me, 0, 0, peer));
  for (std::uint64_t i = threadIdx.x; i < words && right; i += probe_threads) {
    right = __ldcg(reinterpret_cast<unsigned long long const*>(from + i)) == probe_word(peer, me, i);
  }
  bool const all_right = __syncthreads_and(right ? 1 : 0) != 0;
  if (threadIdx.x == 0) {
    *static_cast<std::uint32_t volatile*>(&said.verdict) = all_right ? 1 : came ? 3 : 2;
  }
}

}  // namespace lockstep::comm_detail
