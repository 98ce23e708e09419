// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/concepts.hpp>

namespace lockstep {

/// Every rank keeps parameters and gradients, but one Nth of the optimizer state: it updates its part of each stretch, from
/// the sum of that part over all ranks, and sends the new values to the others. For optimizers of single elements. Over the
/// wire: (G + P) (N - 1) / N bytes a device and step, for G gradient bytes and P parameter bytes on N devices.
template <class Transport = automatic, tuning Tuning = tuning{}>
struct sharded_optimizer {
  using transport = Transport;
  static constexpr tuning tuning_values = Tuning;
  static constexpr bool splits_updates = true;
  /// Where ranks reach each other's memory, one kernel a bucket does what reduce, update and publish do.
  static constexpr bool shares_updates = true;

  /// Afterwards each rank holds the sum over the ranks of its part of `gradients`; the rest is unspecified.
  template <class Communicator, class Stream>
  static void reduce(Communicator& communicator, typed_span gradients, Stream stream) {
    communicator.reduce_scatter(gradients, reduction::sum, stream);
  }

  /// Every rank updates its part.
  [[nodiscard]] static constexpr plan::range owned(std::size_t count, rank_id rank, int size) noexcept {
    return plan::part(count, static_cast<std::size_t>(number(rank)), static_cast<std::size_t>(size));
  }

  /// Brings each rank's part of `values` to every rank.
  template <class Communicator, class Stream>
  static void publish(Communicator& communicator, typed_span values, Stream stream) {
    communicator.all_gather(values, stream);
  }
};

}  // namespace lockstep
