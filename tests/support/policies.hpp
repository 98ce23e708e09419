// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/lockstep.hpp>

#include <cstddef>
#include <type_traits>

namespace support {

/// Small buckets, so that small models have many.
inline constexpr lockstep::tuning small_buckets{.bucket_bytes = 1024, .stage_below_bytes = 256};
inline constexpr lockstep::tuning staged_buckets{.bucket_bytes = 2048, .stage_below_bytes = 2048};

/// Each rank updates its part of every span and gathers the others': the hardest case for ownership.
struct sharded {
  using transport = lockstep::shared_memory;
  static constexpr lockstep::tuning tuning_values = small_buckets;

  static void reduce(lockstep::shared_memory_communicator& communicator, lockstep::typed_span gradients,
                     lockstep::host::stream_ref stream) {
    communicator.reduce_scatter(gradients, lockstep::reduction::sum, stream);
  }
  static constexpr lockstep::plan::range owned(std::size_t count, lockstep::rank_id rank, int size) noexcept {
    return lockstep::plan::part(count, static_cast<std::size_t>(number(rank)), static_cast<std::size_t>(size));
  }
  static void publish(lockstep::shared_memory_communicator& communicator, lockstep::typed_span values,
                      lockstep::host::stream_ref stream) {
    communicator.all_gather(values, stream);
  }
};

/// Calls `f(std::type_identity<Policy>{}, name)` for every policy that takes several devices.
template <class F>
void for_each_parallel_policy(F&& f) {
  f(std::type_identity<lockstep::replicate_and_gather<lockstep::shared_memory, small_buckets>>{}, "replicate_and_gather");
  f(std::type_identity<lockstep::peer_all_reduce<lockstep::automatic, small_buckets>>{}, "peer_all_reduce");
}

/// The same with several tunings of each.
template <class F>
void for_each_tuned_policy(F&& f) {
  for_each_parallel_policy(f);
  f(std::type_identity<lockstep::replicate_and_gather<>>{}, "replicate_and_gather, default tuning");
  f(std::type_identity<lockstep::peer_all_reduce<>>{}, "peer_all_reduce, default tuning");
  f(std::type_identity<lockstep::peer_all_reduce<lockstep::automatic, staged_buckets>>{}, "peer_all_reduce, staged");
  f(std::type_identity<sharded>{}, "sharded");
}

}  // namespace support
