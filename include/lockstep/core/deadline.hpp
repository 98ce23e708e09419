// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace lockstep {

/// The point in time `seconds` >= 0 from now; infinity and the like count as three years, which is what clocks can hold.
[[nodiscard]] inline std::chrono::steady_clock::time_point deadline_after(double seconds) noexcept {
  double const held = seconds < 1e8 ? seconds : 1e8;
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>{held});
}

}  // namespace lockstep
