// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace lockstep {

/// FNV-1a, 64 bits (RFC 9923), of the bytes in `data`: tells different descriptions and memories apart; no defence against
/// somebody who means harm.
template <class Bytes>
[[nodiscard]] std::uint64_t fnv1a(Bytes const& data) noexcept {
  std::uint64_t sum = 14695981039346656037ULL;
  for (auto const byte : data) {
    sum = (sum ^ static_cast<std::uint8_t>(byte)) * 1099511628211ULL;
  }
  return sum;
}

}  // namespace lockstep
