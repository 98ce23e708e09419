// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/concepts.hpp>
#include <lockstep/core/batch.hpp>
#include <lockstep/core/memory.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep {

/// What brings one shard to a device may ask.
template <class Backend>
class place_context {
 public:
  using stream_ref = typename Backend::stream_ref;
  using memory_list = std::vector<typename Backend::buffer>;

  place_context(typename Backend::device& device, stream_ref stream, memory_list& slot) noexcept
      : device_(device), stream_(stream), slot_(slot) {}

  /// Where to enqueue copies.
  [[nodiscard]] stream_ref stream() const noexcept { return stream_; }
  /// Whether `memory` lies on this device, so that its kernels read it as it is.
  [[nodiscard]] bool lies_here(void const* memory) const { return device_.holds(memory); }
  /// `bytes` bytes on this device, until two steps later: at the same address for the same shapes, every other step. Throws
  /// out_of_memory.
  [[nodiscard]] void* memory(std::size_t bytes) {
    if (next_ == slot_.size()) {
      slot_.emplace_back();
    }
    typename Backend::buffer& buffer = slot_[next_++];
    if (buffer.bytes() < bytes) {
      buffer = {};
      buffer = device_.allocate(bytes, memory_use::staging);
    }
    return buffer.data();
  }
  /// A copy of `elements` on this device; where they lie there already, they themselves.
  template <class T>
  [[nodiscard]] T* bring(T* elements, std::size_t count) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (count == 0 || lies_here(elements)) {
      return elements;
    }
    void* const here = memory(count * sizeof(T));
    Backend::copy(stream_, here, elements, count * sizeof(T));
    copied_ = true;
    return static_cast<T*>(here);
  }
  /// Whether anything was copied.
  [[nodiscard]] bool copied() const noexcept { return copied_; }

 private:
  typename Backend::device& device_;
  stream_ref stream_;
  memory_list& slot_;
  std::size_t next_ = 0;
  bool copied_ = false;
};

namespace batch_detail {

template <class Backend, class T, std::size_t Extent>
std::span<T> place(place_context<Backend>& ctx, std::span<T, Extent> batch) {
  return {ctx.bring(batch.data(), batch.size()), batch.size()};
}
template <class Backend, class T>
sample_view<T> place(place_context<Backend>& ctx, sample_view<T> batch) {
  return {ctx.bring(batch.data(), batch.count() * batch.width()), batch.count(), batch.width()};
}
template <class T, class Backend>
concept has_place = requires(place_context<Backend>& ctx, T const& batch) {
  { place(ctx, batch) } -> std::convertible_to<T>;
};
template <class Backend, class T>
replicated<T> place(place_context<Backend>& ctx, replicated<T> const& whole) {
  if constexpr (has_place<T, Backend>) {
    return {place(ctx, whole.value)};
  } else {
    return whole;
  }
}

struct place_fn {
  /// A batch type without `place` is taken as it is.
  template <class Backend, class T>
  requires(!is_tuple<T>::value) T operator()(place_context<Backend>& ctx, T const& batch) const {
    if constexpr (has_place<T, Backend>) {
      return place(ctx, batch);
    } else {
      return batch;
    }
  }
  template <class Backend, class... Views>
  std::tuple<Views...> operator()(place_context<Backend>& ctx, std::tuple<Views...> const& batch) const {
    return std::apply([&](Views const&... views) { return std::tuple<Views...>{(*this)(ctx, views)...}; }, batch);
  }
};

}  // namespace batch_detail

inline namespace customization {

/// `place(ctx, batch)`: the batch in memory of the device, brought there through `ctx` (place_context) where it lies elsewhere.
/// Knows spans, `sample_view`, tuples of these and `replicated`; finds a function `place` in the namespace of any other batch
/// type, and takes one without as it is.
inline constexpr batch_detail::place_fn place{};

}  // namespace customization

/// Two places for a rank's shards on its device, used in turn: while one is trained on, the next shard arrives in the other.
template <class Backend, class Batch>
class input_slots {
 public:
  using stream_ref = typename Backend::stream_ref;

  explicit input_slots(typename Backend::device& device) : device_(device) {}

  /// The shard as the model takes it: on the device, behind what is enqueued on `stream` from now on.
  [[nodiscard]] Batch place(Batch const& shard, stream_ref stream) {
    slot& next = slots_[turn_ % slots_.size()];
    if (!copying_) {
      copying_.emplace(device_);
    }
    copying_->ref().wait(next.free);
    place_context<Backend> ctx{device_, copying_->ref(), next.memory};
    Batch placed = lockstep::place(ctx, shard);
    copied_ = ctx.copied();
    if (copied_) {
      arrived_.record(copying_->ref());
      stream.wait(arrived_);
    }
    return placed;
  }
  /// What was placed last has been used by what is enqueued on `stream`.
  void used(stream_ref stream) {
    if (copied_) {
      slots_[turn_ % slots_.size()].free.record(stream);
      ++turn_;
    }
  }
  /// Blocks until the shard has been read, so that its memory may change.
  void wait_until_read() const {
    if (copied_) {
      arrived_.synchronize();
    }
  }

 private:
  struct slot {
    typename place_context<Backend>::memory_list memory;
    typename Backend::event free;
  };

  typename Backend::device& device_;
  std::array<slot, 2> slots_{};
  std::size_t turn_ = 0;
  bool copied_ = false;
  typename Backend::event arrived_;
  std::optional<typename Backend::stream> copying_;
};

}  // namespace lockstep
