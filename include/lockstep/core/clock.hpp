// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/host_device.hpp>

#include <chrono>
#include <cstdint>

namespace lockstep {

/// Nanoseconds of a clock that never goes back: this host's, or in a kernel its GPU's, which moves on in steps of up to about a
/// microsecond.
[[nodiscard]] LOCKSTEP_HOST_DEVICE inline std::uint64_t clock_ns() {
#if defined(__CUDA_ARCH__)
  std::uint64_t now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
#else
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
#endif
}

}  // namespace lockstep
