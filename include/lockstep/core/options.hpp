// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace lockstep {

/// How a policy cuts its communication. Affects speed only, never results; given as a template argument:
/// `peer_all_reduce<automatic, tuning{.bucket_bytes = 64u << 20}>`.
struct tuning {
  /// A bucket is closed before it would grow beyond this many gradient bytes. At least 1,024. A gradient larger than that is a
  /// bucket by itself.
  std::size_t bucket_bytes = std::size_t{32} << 20;
  /// Stretches of memory smaller than this are copied into one staging span and travel together; larger ones stay in place.
  std::size_t stage_below_bytes = std::size_t{64} << 10;

  friend bool operator==(tuning const&, tuning const&) = default;
};

/// Whether every field of `t` lies in its stated range.
[[nodiscard]] constexpr bool in_range(tuning const& t) noexcept {
  return t.bucket_bytes >= 1024 && t.stage_below_bytes <= t.bucket_bytes;
}

/// What a backend's options may ask to be checked while training, for debugging.
enum class checking : std::uint8_t {
  /// Nothing beyond what is always checked.
  none,
  /// That no gradient is written, and no value read, after `gradient_ready` said it would not be. Slow: every mark waits for
  /// the
  /// device, and nothing is reduced before backward has ended.
  marks,
};

/// What one training step may be told.
struct step_options {
  /// Into how many pieces each device cuts its shard; they run one after another and their gradients add up. At least 1.
  std::size_t micro_batches = 1;
};

/// When a step may update parameters.
enum class updates : std::uint8_t {
  /// Once all gradients, and the votes of all ranks, are known.
  held,
  /// Each bucket as soon as its gradients are reduced, while backward goes on. Only where `total_samples` is given, no rank
  /// calls
  /// `skip`, and nothing is done between `reduce` and `update`. What needs all gradients first holds the update all the same:
  /// gradient_rules, a whole optimizer, a model that reports or counts uses, counts its weight, or votes.
  as_reduced,
};

/// What a rank knows of a step before it starts.
struct step_info {
  /// Samples that this rank will train on, over all its micro-batches; 0 when it has none.
  std::size_t samples = 0;
  /// Samples of all ranks, the same on every rank; 0 when not known. Then sample weights are 1, gradients are sums over
  /// samples, and the update divides by the number that was counted. Give it where it is known, for 16-bit gradients above all.
  std::size_t total_samples = 0;
  /// When buckets may be updated. The same on every rank.
  lockstep::updates updates = lockstep::updates::held;
  /// What this rank's samples count for, where not one each: their tokens, say. Loss and gradients are divided by the sum of
  /// these over all ranks.
  std::optional<double> weight = std::nullopt;
  /// The same of all ranks together, where `weight` is given and updates are `as_reduced`; the same on every rank.
  std::optional<double> total_weight = std::nullopt;
  /// Some rank trains a number of samples for the first time, and may load kernels and allocate on the way: nothing is reduced
  /// before backward has ended. A rank that finds so by itself holds back by itself.
  bool first_of_its_sizes = false;
};

/// What an optimizer's `prepare` is told, once a step and group.
struct update_info {
  /// Counts applied updates from 1; skipped steps don't count.
  std::uint64_t step = 1;
  /// The optimizer's own `learning_rate`, as the schedule of the applied step leaves it; 1 for optimizers without one.
  float learning_rate = 1;
  /// The parameter group being updated.
  std::uint8_t group = 0;
};

/// Names of metrics, one after another from the first; null behind the last.
using metric_names = std::array<char const*, 8>;
[[nodiscard]] constexpr std::size_t count_of(metric_names const& names) noexcept {
  std::size_t count = 0;
  while (count < names.size() && names[count] != nullptr) {
    ++count;
  }
  return count;
}

/// What a model promises of its `train` beyond what the compiler can see, as
/// `static constexpr lockstep::model_promises promises{.honours_accumulate = true};`.
struct model_promises {
  /// When `ctx.accumulate()` is false, `train` overwrites every gradient instead of adding to it, except those it reports
  /// `unused`; where it `counts_uses`, all of them, with zero where a parameter took no part. Saves the pass that sets
  /// gradients to zero.
  bool honours_accumulate = false;
  /// `train` calls `ctx.unused(i)` for parameters that take no part. A parameter that no rank used stays untouched.
  bool reports_unused = false;
  /// After its first call for a number of samples, `train` neither allocates nor frees device memory nor waits for the device,
  /// and enqueues the same work each time: the step may be recorded in a CUDA graph and replayed. A model that can't promise
  /// it says false; its gradients are then reduced after backward. Has no meaning on the host.
  bool capturable = true;
  /// `train` says itself, at `ctx.counted()`, what its samples counted for: the tokens that were not padding, say. Updates are
  /// held until all have counted.
  bool counts_weight = false;
  /// `train` may vote, at `ctx.skip_vote()`, to leave the step out on all ranks. Updates are then held until all have voted.
  bool votes = false;
  /// `train` counts, at `ctx.use_counts()`, which parameters took part, where only the device knows. One that no rank used
  /// stays untouched. Updates are held.
  bool counts_uses = false;
  /// `train` calls `ctx.all_reduce` (synchronised statistics): it then runs on every rank in every micro-batch, with empty
  /// shards too, and its gradients are reduced after backward.
  bool communicates = false;
  /// Names of what `train` adds up beside the loss, at `ctx.metric(0)`, `ctx.metric(1)`, ...: `.metrics = {"correct"}`.
  metric_names metrics{};
};

}  // namespace lockstep
