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

/// Calls `f(std::type_identity<Policy>{}, name)` for every policy that takes several devices.
template <class F>
void for_each_parallel_policy(F&& f) {
  f(std::type_identity<lockstep::replicate_and_gather<lockstep::shared_memory, small_buckets>>{}, "replicate_and_gather");
  f(std::type_identity<lockstep::peer_all_reduce<lockstep::automatic, small_buckets>>{}, "peer_all_reduce");
}

/// The same and the one whose ranks update parts, with several tunings of each; with one of each under sanitizers, which see
/// the same code.
template <class F>
void for_each_tuned_policy(F&& f) {
  for_each_parallel_policy(f);
  f(std::type_identity<lockstep::sharded_optimizer<lockstep::automatic, small_buckets>>{}, "sharded_optimizer");
#if !LOCKSTEP_TEST_ONE_TUNING
  f(std::type_identity<lockstep::replicate_and_gather<>>{}, "replicate_and_gather, default tuning");
  f(std::type_identity<lockstep::peer_all_reduce<>>{}, "peer_all_reduce, default tuning");
  f(std::type_identity<lockstep::peer_all_reduce<lockstep::automatic, staged_buckets>>{}, "peer_all_reduce, staged");
  f(std::type_identity<lockstep::sharded_optimizer<>>{}, "sharded_optimizer, default tuning");
#endif
}

}  // namespace support
