// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/concepts.hpp>

namespace lockstep {

/// Rank 0 is the root: its replica is the master and it alone keeps optimizer state. Gradients are added at the root, which
/// updates and broadcasts the new values. Over the wire: G gradient bytes to the root and P parameter bytes from it, for each
/// other device.
template <class Transport = automatic, tuning Tuning = tuning{}>
struct replicate_and_gather {
  using transport = Transport;
  static constexpr tuning tuning_values = Tuning;
  static constexpr rank_id root{0};

  /// Afterwards the root holds the sum of `gradients` over the ranks.
  template <class Communicator, class Stream>
  static void reduce(Communicator& communicator, typed_span gradients, Stream stream) {
    communicator.reduce(gradients, reduction::sum, root, stream);
  }

  /// The root updates everything, the others nothing.
  [[nodiscard]] static constexpr plan::range owned(std::size_t count, rank_id rank, int) noexcept {
    return {0, rank == root ? count : 0};
  }

  /// Brings the root's `values` to every rank.
  template <class Communicator, class Stream>
  static void publish(Communicator& communicator, typed_span values, Stream stream) {
    communicator.broadcast(values, root, stream);
  }
};

}  // namespace lockstep
