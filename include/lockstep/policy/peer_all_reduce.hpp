// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/concepts.hpp>

namespace lockstep {

/// Every rank keeps parameters, gradients and optimizer state; gradients are added over all ranks while backward goes on, and
/// every rank makes the same update. Over the wire: 2 G (N - 1) / N bytes a device and step, for G gradient bytes on N devices.
template <class Transport = automatic, tuning Tuning = tuning{}>
struct peer_all_reduce {
  using transport = Transport;
  static constexpr tuning tuning_values = Tuning;

  /// Afterwards every rank holds the sum of `gradients` over the ranks.
  template <class Communicator, class Stream>
  static void reduce(Communicator& communicator, typed_span gradients, Stream stream) {
    communicator.all_reduce(gradients, reduction::sum, stream);
  }

  /// Every rank updates everything.
  [[nodiscard]] static constexpr plan::range owned(std::size_t count, rank_id, int) noexcept { return {0, count}; }
};

}  // namespace lockstep
