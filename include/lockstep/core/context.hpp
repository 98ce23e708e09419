// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/element_type.hpp>
#include <lockstep/core/error.hpp>
#include <lockstep/core/memory.hpp>
#include <lockstep/core/options.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>

namespace lockstep {

/// Who is told of a model's marks. Plain function pointers, so that a model compiled in its own .cpp knows no policy.
/// Null members are not called.
struct gradient_listener {
  void* self = nullptr;
  /// Parameters [first, first + count) of the model's list are complete.
  void (*ready)(void* self, std::size_t first, std::size_t count) = nullptr;
  /// The gradients within `bytes` bytes from `first` are complete.
  void (*ready_memory)(void* self, void const* first, std::size_t bytes) = nullptr;
  /// Parameter `index` takes no part in this micro-batch.
  void (*unused)(void* self, std::size_t index) = nullptr;
  /// The model asked for the number of the step, so that each step may differ.
  void (*step)(void* self) = nullptr;
  /// Adds up over the ranks, on the model's stream.
  void (*all_reduce)(void* self, typed_span data) = nullptr;
};

/// Everything a train_context says. Filled by the library; or by hand, to call a model's `train` alone (in its own tests, say).
template <class Backend>
struct train_arguments {
  typename Backend::stream_ref stream{};
  typename Backend::weight sample_weight{};
  typename Backend::weight shard_weight{};
  std::optional<float> host_sample_weight = std::nullopt;
  float* loss = nullptr;
  /// Null for what the model does not promise.
  float* counted = nullptr;
  float* skip_vote = nullptr;
  float* metrics = nullptr;
  std::size_t metric_count = 0;
  float* use_counts = nullptr;
  bool accumulate = true;
  rank_id rank{0};
  std::uint64_t step = 1;
  std::size_t shard = 0;
  gradient_listener listener{};
};

/// What `train` may ask and say. One object a call; valid until the call returns. Names no policy.
template <class Backend>
class train_context {
 public:
  using weight = typename Backend::weight;

  explicit train_context(train_arguments<Backend> const& arguments) noexcept : arguments_(arguments) {}
  train_context(train_context const&) = delete;  // the marks belong to one call
  train_context& operator=(train_context const&) = delete;

  /// Where the model enqueues its work. On the host, work runs at once in the calling thread.
  [[nodiscard]] typename Backend::stream_ref stream() const noexcept { return arguments_.stream; }

  /// The factor of each sample's loss and derivative: (loss scale) / (samples that were announced for all ranks and
  /// micro-batches; 1 where none were).
  [[nodiscard]] weight sample_weight() const noexcept { return arguments_.sample_weight; }
  /// The factor for a model that takes the mean over its shard: sample_weight() times the samples of this call. Where samples
  /// don't count alike, such a mean is to be multiplied by sample_weight() and what it was divided by instead.
  [[nodiscard]] weight shard_weight() const noexcept { return arguments_.shard_weight; }
  /// sample_weight() as a float on the host, for kernels that take one by value. Throws usage_error where a loss scale is in
  /// play, which lives on the device.
  [[nodiscard]] float host_sample_weight() const {
    expects(arguments_.host_sample_weight.has_value(),
            "ctx.host_sample_weight: the loss scale lives on the device; pass ctx.sample_weight() to the kernel");
    return *arguments_.host_sample_weight;
  }

  /// Where the model adds the weighted loss of its shard: one f32, in the memory of the backend, zero when the call begins.
  [[nodiscard]] float* loss() const noexcept { return arguments_.loss; }

  /// Where the model adds what its samples count for, like the loss: one f32, which counts exactly up to 2^24 a call. Throws
  /// usage_error unless it promises `counts_weight`.
  [[nodiscard]] float* counted() const {
    expects(arguments_.counted != nullptr, "ctx.counted was called by a model that does not promise counts_weight");
    return arguments_.counted;
  }
  /// Where the model adds up metric `index` of those that it promises, like `counted`. Throws usage_error beyond them.
  [[nodiscard]] float* metric(std::size_t index) const {
    expects(index < arguments_.metric_count, "ctx.metric: the model promises no metric of this index");
    return arguments_.metrics + index;
  }
  /// Where the model writes anything but zero to have the step left out on all ranks: one f32, zero when the call begins.
  /// Throws usage_error unless it promises `votes`.
  [[nodiscard]] float* skip_vote() const {
    expects(arguments_.skip_vote != nullptr, "ctx.skip_vote was called by a model that does not promise votes");
    return arguments_.skip_vote;
  }
  /// One f32 a parameter, in the order of parameters(), zero when the call begins: the model writes anything but zero for those
  /// that took part in this call. Throws usage_error unless it promises `counts_uses`.
  [[nodiscard]] float* use_counts() const {
    expects(arguments_.use_counts != nullptr, "ctx.use_counts was called by a model that does not promise counts_uses");
    return arguments_.use_counts;
  }

  /// Adds `data`, in the memory of the backend, up over all ranks, in place, in the order of this rank's other work: statistics
  /// of a batch normalisation, say. Collective: every rank makes the same calls in every micro-batch, with an empty shard too.
  /// Throws usage_error unless the model promises `communicates`.
  void all_reduce(typed_span data) {
    expects(arguments_.listener.all_reduce != nullptr,
            "ctx.all_reduce was called by a model that does not promise communicates");
    arguments_.listener.all_reduce(arguments_.listener.self, data);
  }

  /// False when gradients hold nothing yet: a model that promises `honours_accumulate` then overwrites them.
  [[nodiscard]] bool accumulate() const noexcept { return arguments_.accumulate; }

  [[nodiscard]] rank_id rank() const noexcept { return arguments_.rank; }
  /// Counts steps from 1. A model that asks is not captured in a CUDA graph, which would give it the same answer each time.
  [[nodiscard]] std::uint64_t step() const noexcept {
    if (arguments_.listener.step != nullptr) {
      arguments_.listener.step(arguments_.listener.self);
    }
    return arguments_.step;
  }
  /// Differs for every call of one step, over all ranks. With step(), the key of a random stream (dropout).
  [[nodiscard]] std::size_t shard() const noexcept { return arguments_.shard; }

  /// Parameter `index` of parameters() is complete: everything of this step that writes its gradient or reads its value has
  /// been enqueued. A hint: leaving it out costs time only; saying it too early is an error. Acts in the last micro-batch, and
  /// not at all for a model that communicates. A parameter listed twice is complete once each of its listings was marked.
  void gradient_ready(std::size_t index) { gradient_ready(index, 1); }
  /// The same for parameters [first, first + count). Throws usage_error past the end of the list.
  void gradient_ready(std::size_t first, std::size_t count) {
    if (arguments_.listener.ready != nullptr) {
      arguments_.listener.ready(arguments_.listener.self, first, count);
    }
  }
  /// The same by address: every gradient, or part of one, that lies in `gradients` is complete, tied listings included.
  /// Throws usage_error for memory that holds no gradient.
  template <class T, std::size_t Extent>
  void gradient_ready(std::span<T, Extent> gradients) {
    if (arguments_.listener.ready_memory != nullptr) {
      arguments_.listener.ready_memory(arguments_.listener.self, gradients.data(), gradients.size_bytes());
    }
  }

  /// Parameter `index` takes no part in this call: its gradient was not written, by this listing of a tied one at least.
  /// Instead of gradient_ready, not after it. Used in no call on any rank, the parameter keeps its value and its optimizer
  /// state, weight decay and momentum included. Throws usage_error unless the model promises `reports_unused`.
  void unused(std::size_t index) {
    if (arguments_.listener.unused != nullptr) {
      arguments_.listener.unused(arguments_.listener.self, index);
    }
  }

 private:
  train_arguments<Backend> arguments_;
};

/// What `infer` may ask.
template <class Backend>
class infer_context {
 public:
  infer_context(typename Backend::stream_ref stream, rank_id rank) noexcept : stream_(stream), rank_(rank) {}

  [[nodiscard]] typename Backend::stream_ref stream() const noexcept { return stream_; }
  [[nodiscard]] rank_id rank() const noexcept { return rank_; }

 private:
  typename Backend::stream_ref stream_;
  rank_id rank_;
};

/// What a whole optimizer's `step` may ask.
template <class Backend>
class update_context {
 public:
  using weight = typename Backend::weight;

  update_context(typename Backend::stream_ref stream, weight gradient_factor, update_info const& info) noexcept
      : stream_(stream), gradient_factor_(gradient_factor), info_(info) {}

  /// Where the optimizer enqueues its work.
  [[nodiscard]] typename Backend::stream_ref stream() const noexcept { return stream_; }
  /// Multiply every gradient by this: (announced samples) / (what counted * loss scale), and, where the norm is bounded,
  /// max_norm / norm.
  [[nodiscard]] weight gradient_factor() const noexcept { return gradient_factor_; }
  [[nodiscard]] update_info const& info() const noexcept { return info_; }

 private:
  typename Backend::stream_ref stream_;
  weight gradient_factor_;
  update_info info_;
};

/// Makes `device` the calling thread's current one until the returned guard ends, where its backend has such a thing.
template <class Device>
[[nodiscard]] auto activate(Device const& device) {
  if constexpr (requires { device.activate(); }) {
    return device.activate();
  } else {
    return std::monostate{};
  }
}

/// "rank 2 (device 1)", and behind the number what other tools call the device, where it knows that. For messages.
template <class Device>
[[nodiscard]] std::string place_of(rank_id rank, Device const& device) {
  std::string text = std::string("rank ") + std::to_string(number(rank)) + " (device " + std::to_string(number(device.id()));
  if constexpr (requires { device.name(); }) {
    try {
      text += ", " + device.name();
    } catch (error const&) {  // a device that is lost does not say
    }
  }
  return text + ")";
}

/// What a model's factory is given: the device that its replica will live on.
template <class Backend>
class device_context {
 public:
  device_context(typename Backend::device& device, rank_id rank, int size) noexcept
      : device_(device), rank_(rank), size_(size) {}

  [[nodiscard]] typename Backend::device& device() const noexcept { return device_; }
  [[nodiscard]] typename Backend::stream_ref stream() const { return device_.stream(); }
  /// Memory of the device, accounted under `use`. Throws out_of_memory.
  [[nodiscard]] typename Backend::buffer allocate(std::size_t bytes, memory_use use) const {
    return device_.allocate(bytes, use);
  }
  [[nodiscard]] rank_id rank() const noexcept { return rank_; }
  /// How many ranks train together.
  [[nodiscard]] int size() const noexcept { return size_; }

 private:
  typename Backend::device& device_;
  rank_id rank_;
  int size_;
};

}  // namespace lockstep
