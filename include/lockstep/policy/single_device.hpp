// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/comm/local.hpp>
#include <lockstep/concepts.hpp>

namespace lockstep {

/// One device, nothing over the wire. What every other policy is measured against.
struct single_device {
  using transport = local;
  static constexpr tuning tuning_values{};

  template <class Communicator, class Stream>
  static void reduce(Communicator&, typed_span, Stream) noexcept {}

  [[nodiscard]] static constexpr plan::range owned(std::size_t count, rank_id, int) noexcept { return {0, count}; }
};

}  // namespace lockstep
