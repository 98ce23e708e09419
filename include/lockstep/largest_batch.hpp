// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/batch.hpp>
#include <lockstep/core/devices.hpp>
#include <lockstep/core/error.hpp>
#include <lockstep/core/memory.hpp>
#include <lockstep/core/options.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <exception>
#include <limits>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep {

struct largest_batch_options {
  /// Samples a device: the fewest and the most that are tried.
  std::size_t first = 1;
  std::size_t limit = 65536;
  /// Only multiples of this are tried, what kernels like: 8, say. The first is `first`, rounded up.
  std::size_t multiple_of = 1;
  /// How many steps a size must take to hold. Memory is still taken in the first steps: optimizer state in the first, a second
  /// place for batches from the host in the second, and a CUDA graph for each of the two places in the third and fourth.
  std::size_t steps = 4;
  /// How each step is taken.
  step_options step{};
};

/// What a search came to.
struct largest_batch_report {
  /// The most samples a device with which training held; 0 where not even the first size did.
  std::size_t samples = 0;
  /// The same of all devices together: of a step.
  std::size_t step_samples = 0;
  /// What each rank's device held after these steps, in rank order, and the most that it held: `trainer.memory(rank)`.
  std::vector<memory_usage> memory;
  /// The fewest samples a device that were tried and did not hold, and what ran out then; 0 and empty where all sizes held.
  std::size_t too_many = 0;
  std::string reason;
  /// How many trainers were built.
  std::size_t tries = 0;
};

/// "96 samples a device fit, with at most 81920 bytes on rank 2; 97 did not: rank 2 (device 2), step 1, training: ..."
[[nodiscard]] inline std::string to_string(largest_batch_report const& report) {
  auto const samples = [](std::size_t count) {
    return std::to_string(count) + (count == 1 ? " sample a device" : " samples a device");
  };
  if (report.samples == 0) {
    return std::string("not even ") + samples(report.too_many) + (report.too_many == 1 ? " fits: " : " fit: ") + report.reason;
  }
  auto const fullest = std::max_element(report.memory.begin(), report.memory.end(),
                                        [](auto const& a, auto const& b) { return a.peak_bytes < b.peak_bytes; });
  std::string text = samples(report.samples) + (report.samples == 1 ? " fits" : " fit") + ", with at most " +
                     std::to_string(fullest->peak_bytes) + " bytes on rank " + std::to_string(fullest - report.memory.begin());
  return report.too_many == 0 ? text + "; more were not tried"
                              : text + "; " + std::to_string(report.too_many) + " did not: " + report.reason;
}

namespace largest_batch_detail {

template <class MakeTrainer>
using trainer_made_by = std::invoke_result_t<MakeTrainer&>;

template <class MakeTrainer>
concept makes_trainers = std::invocable<MakeTrainer&> && std::is_object_v<trainer_made_by<MakeTrainer>> && requires {
  typename trainer_made_by<MakeTrainer>::batch_type;
  typename trainer_made_by<MakeTrainer>::backend_type;
};

template <class MakeBatch>
using made_by = std::remove_cvref_t<std::invoke_result_t<MakeBatch&, std::size_t>>;

template <class MakeBatch, class Batch>
concept makes_batches = std::invocable<MakeBatch&, std::size_t> && std::convertible_to < made_by<MakeBatch>
&, Batch const& > ;

template <class MakeBatch, class Batch>
concept makes_shards = std::invocable<MakeBatch&, std::size_t> && std::convertible_to < made_by<MakeBatch>
&, std::span < Batch const >> ;

/// Call in a catch block: whether what was caught, or what it nests, says that memory ran out.
template <class Backend>
[[nodiscard]] bool caught_out_of_memory() {
  try {
    throw;
  } catch (out_of_memory const&) {
    return true;
  } catch (std::bad_alloc const&) {
    return true;
  } catch (std::exception const& caught) {
    if constexpr (requires { Backend::is_out_of_memory(caught); }) {
      if (Backend::is_out_of_memory(caught)) {
        return true;
      }
    }
    try {
      std::rethrow_if_nested(caught);
    } catch (...) {
      return caught_out_of_memory<Backend>();
    }
    return false;
  } catch (...) {
    return false;
  }
}

/// Call in a catch block: the message of what was caught.
[[nodiscard]] inline std::string caught_message() {
  try {
    throw;
  } catch (std::exception const& caught) {
    return caught.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

inline void expect_samples(std::size_t made, std::size_t wanted, char const* of) {
  if (made != wanted) {
    refuse(std::string("find_largest_batch: make_batch was asked for ") + std::to_string(wanted) + " samples" + of +
           " and made " + std::to_string(made) + "; where there are no more, give a lower limit");
  }
}

/// What the devices held while they trained.
struct training {
  std::size_t step_samples = 0;
  std::vector<memory_usage> memory;
};

/// A few steps of a fresh trainer on `samples` samples a device. Nothing of it is left afterwards. Throws what they throw.
template <class MakeTrainer, class MakeBatch>
training train(MakeTrainer& make_trainer, MakeBatch& make_batch, std::size_t samples, largest_batch_options const& options) {
  using batch_type = typename trainer_made_by<MakeTrainer>::batch_type;
  std::optional<made_by<MakeBatch>> made;  // outlives the trainer, whose devices may still read it
  auto trainer = make_trainer();
  training held;
  held.step_samples = samples * static_cast<std::size_t>(trainer.size());
  made.emplace(make_batch(held.step_samples));
  if constexpr (makes_batches<MakeBatch, batch_type>) {
    batch_type const& batch = *made;
    expect_samples(lockstep::sample_count(batch), held.step_samples, "");
    for (std::size_t step = 0; step < options.steps; ++step) {
      trainer.step(batch, options.step);
    }
  } else {
    std::span<batch_type const> const shards = *made;
    for (batch_type const& shard : shards) {
      expect_samples(lockstep::sample_count(shard), samples, " for each device");
    }
    for (std::size_t step = 0; step < options.steps; ++step) {
      trainer.step_shards(shards, options.step);
    }
  }
  trainer.synchronize();
  for (int rank = 0; rank < trainer.size(); ++rank) {
    held.memory.push_back(trainer.memory(rank_id{rank}));
  }
  return held;
}

}  // namespace largest_batch_detail

/// Finds how many samples a device a training step may have before memory runs out, by trying.
///
/// `make_trainer()` returns a trainer, a fresh one each time. `make_batch(n)` returns what its `step` takes, with n samples for
/// all devices together, evenly; or one batch a device, for `step_shards`: something that converts to `std::span<batch const>`.
/// What it returns is kept until its trainer has ended, so it may own the data: a tuple of vectors for a tuple of spans, say.
///
///   auto const found = lockstep::find_largest_batch(make_trainer, make_batch, {.first = 8, .limit = 4096, .multiple_of = 8});
///   std::puts(to_string(found).c_str());
///
/// Sizes double until one does not hold, or the limit is reached; then the gap between the last that held and the first that
/// did not is halved until no multiple lies between them. A size holds when making its trainer and batch, some steps, and
/// waiting for the devices end without running out of memory: `out_of_memory`, `std::bad_alloc`, a failed cudaMalloc that
/// `check` reported, or an exception that nests one of these. Code with errors of its own throws std::bad_alloc where memory is
/// short. Each try's trainer and batch are gone before the next is made.
///
/// The size that is reported was trained, and the next larger multiple did not hold. Where memory does not grow with the size
/// alone (kernels that choose their workspace, other programs on the device), a still larger size might hold as well; and a
/// loop that also predicts, or whose batches vary, needs some room beside. Host systems promise more memory than they have:
/// there, a limit is the better answer.
///
/// Throws usage_error for options out of range, before any try, and for a batch of another size than asked for; what is no lack
/// of memory comes straight out. After a timeout_error the thread of a model that hangs may still read the batch: then let
/// make_batch return views of memory that stays. Complexity: at most 2 + 2 log2(limit / multiple_of) tries.
template <class MakeTrainer, class MakeBatch>
requires(
    largest_batch_detail::makes_trainers<MakeTrainer> &&
    (largest_batch_detail::makes_batches<MakeBatch, typename largest_batch_detail::trainer_made_by<MakeTrainer>::batch_type> ||
     largest_batch_detail::makes_shards<MakeBatch, typename largest_batch_detail::trainer_made_by<MakeTrainer>::batch_type>))
    [[nodiscard]] largest_batch_report
    find_largest_batch(MakeTrainer&& make_trainer, MakeBatch&& make_batch, largest_batch_options const& options = {}) {
  using backend_type = typename largest_batch_detail::trainer_made_by<MakeTrainer>::backend_type;
  expects(options.first >= 1 && options.multiple_of >= 1 && options.steps >= 1 && options.step.micro_batches >= 1,
          "find_largest_batch: first, multiple_of, steps and micro_batches are at least 1");
  expects(options.limit <= (std::numeric_limits<std::size_t>::max)() / devices::max_count,
          "find_largest_batch: the limit, on all devices together, is more than can be counted");
  std::size_t const unit = options.multiple_of;
  std::size_t const lowest = options.first / unit + (options.first % unit != 0 ? 1 : 0);
  std::size_t const highest = options.limit / unit;
  if (lowest > highest) {
    refuse(std::string("find_largest_batch: there is no multiple of ") + std::to_string(unit) + " from first, " +
           std::to_string(options.first) + ", to limit, " + std::to_string(options.limit));
  }

  largest_batch_report report;
  auto const holds = [&](std::size_t units) {
    std::size_t const samples = units * unit;
    ++report.tries;
    try {
      auto held = largest_batch_detail::train(make_trainer, make_batch, samples, options);
      report.samples = samples;
      report.step_samples = held.step_samples;
      report.memory = std::move(held.memory);
      return true;
    } catch (...) {
      if (!largest_batch_detail::caught_out_of_memory<backend_type>()) {
        throw;
      }
      report.too_many = samples;
      report.reason = largest_batch_detail::caught_message();
      return false;
    }
  };

  std::size_t held = 0;
  std::size_t next = lowest;
  while (holds(next)) {
    if (next == highest) {
      return report;
    }
    held = next;
    next = next > highest / 2 ? highest : 2 * next;
  }
  for (std::size_t failed = next; held != 0 && failed - held > 1;) {
    std::size_t const middle = held + (failed - held) / 2;
    (holds(middle) ? held : failed) = middle;
  }
  return report;
}

}  // namespace lockstep
