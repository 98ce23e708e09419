// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/memory.hpp>
#include <lockstep/core/parameter_list.hpp>
#include <lockstep/plan/buckets.hpp>
#include <lockstep/plan/readiness.hpp>
#include <lockstep/plan/split.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace lockstep {

/// Which memory of a parameter travels.
enum class bucket_side : std::uint8_t { gradient, value };

/// The memory behind planned buckets: turns each bucket into contiguous spans that a communicator takes. Stretches that stay in
/// place are handed over where they lie; the others go through one staging span, which all buckets share, one after another on
/// one stream. Does not own the parameters' memory.
template <class Backend>
class bucket_memory {
 public:
  using stream_ref = typename Backend::stream_ref;

  /// Requires: `parameters` outlives this object. Allocates the staging span (the largest that a bucket needs).
  bucket_memory(typename Backend::device& device, parameter_list const& parameters, std::vector<plan::piece> pieces,
                std::vector<plan::bucket> buckets)
      : parameters_(&parameters), pieces_(std::move(pieces)) {
    std::size_t staging_bytes = 0;
    for (plan::bucket const& bucket : buckets) {
      staging_bytes = (std::max)({staging_bytes, bucket.staged_count * element_size(bucket, bucket_side::gradient),
                                  bucket.staged_count * element_size(bucket, bucket_side::value)});
    }
    staging_ = device.allocate(staging_bytes, memory_use::staging);
    for (plan::bucket& bucket : buckets) {
      entries_.push_back(make_entry(std::move(bucket)));
    }
  }

  [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }

  /// What the buffers in a bucket are to hold; they agree.
  [[nodiscard]] buffer_sync sync_of(std::size_t bucket) const {
    return parameters_->distinct(pieces_[entries_[bucket].bucket.pieces.front()].parameter).sync;
  }

  /// What tells from marks which of these buckets may launch.
  [[nodiscard]] plan::readiness readiness() const {
    std::vector<plan::bucket> buckets;
    for (entry const& e : entries_) {
      buckets.push_back(e.bucket);
    }
    return {parameters_->distinct_of_listing(), pieces_, buckets};
  }

  /// Sets the gradients of every bucket to zero, a stretch of memory at a time.
  void zero_gradients(stream_ref stream) const {
    for (entry const& e : entries_) {
      for (plan::stretch const& stretch : e.bucket.stretches) {
        typed_span const memory = span_of(stretch, bucket_side::gradient);
        Backend::zero(stream, memory.data, memory.bytes());
      }
    }
  }

  /// Calls `travel(span)` for each contiguous span of a bucket. Its staged pieces lie in the staging span from `stage` to
  /// `unstage`.
  template <class Travel>
  void each_span(std::size_t bucket, bucket_side side, Travel&& travel) const {
    entry const& e = entries_[bucket];
    for (plan::stretch const& stretch : e.bucket.stretches) {
      if (stretch.staged_at == plan::none) {
        travel(span_of(stretch, side));
      }
    }
    if (e.bucket.staged_count != 0) {
      travel(typed_span{staging_.data(), e.bucket.staged_count, type_of(e.bucket, side)});
    }
  }
  void stage(std::size_t bucket, bucket_side side, stream_ref stream) const {
    if (entries_[bucket].bucket.staged_count != 0) {
      Backend::copy(stream, std::span<transfer const>{entries_[bucket].staged[static_cast<std::size_t>(side)].in});
    }
  }
  void unstage(std::size_t bucket, bucket_side side, stream_ref stream) const {
    if (entries_[bucket].bucket.staged_count != 0) {
      Backend::copy(stream, std::span<transfer const>{entries_[bucket].staged[static_cast<std::size_t>(side)].out});
    }
  }

  /// Calls `visit(parameter, first element, count)` for what remains of a bucket when each of its spans is cut to the range
  /// `owned(elements of the span)`.
  template <class Owned, class Visit>
  void each_owned(std::size_t bucket, Owned&& owned, Visit&& visit) const {
    plan::bucket const& b = entries_[bucket].bucket;
    auto const cut = [&](plan::stretch const& stretch, std::size_t offset, plan::range keep) {
      for (std::size_t const index : stretch.pieces) {
        plan::piece const& piece = pieces_[index];
        std::size_t const low = (std::max)(offset, keep.first);
        std::size_t const high = (std::min)(offset + piece.count, keep.end());
        if (low < high) {
          visit(piece.parameter, piece.first + (low - offset), high - low);
        }
        offset += piece.count;
      }
    };
    plan::range const staged = owned(b.staged_count);
    for (plan::stretch const& stretch : b.stretches) {
      bool const in_place = stretch.staged_at == plan::none;
      cut(stretch, in_place ? 0 : stretch.staged_at, in_place ? owned(stretch.count) : staged);
    }
  }

 private:
  struct copies {
    std::vector<transfer> in;
    std::vector<transfer> out;
  };
  struct entry {
    plan::bucket bucket;
    copies staged[2];  // by bucket_side
  };

  [[nodiscard]] element_type type_of(plan::bucket const& bucket, bucket_side side) const {
    parameter const& p = parameters_->distinct(pieces_[bucket.pieces.front()].parameter);
    return side == bucket_side::gradient && p.trainable() ? p.gradient_type : p.value_type;
  }
  [[nodiscard]] std::size_t element_size(plan::bucket const& bucket, bucket_side side) const {
    return size_of(type_of(bucket, side));
  }
  [[nodiscard]] typed_span span_of(plan::piece const& piece, bucket_side side) const {
    parameter const& p = parameters_->distinct(piece.parameter);
    return (side == bucket_side::gradient ? p.gradients() : p.values()).part(piece.first, piece.count);
  }
  [[nodiscard]] typed_span span_of(plan::stretch const& stretch, bucket_side side) const {
    typed_span const front = span_of(pieces_[stretch.pieces.front()], side);
    return {front.data, stretch.count, front.type};
  }

  [[nodiscard]] entry make_entry(plan::bucket bucket) const {
    entry made{std::move(bucket), {}};
    for (plan::stretch const& stretch : made.bucket.stretches) {
      if (stretch.staged_at == plan::none) {
        continue;
      }
      for (bucket_side const side : {bucket_side::gradient, bucket_side::value}) {
        typed_span const memory = span_of(stretch, side);
        if (memory.data == nullptr) {
          continue;  // a buffer has no gradient
        }
        void* const slot = static_cast<std::byte*>(staging_.data()) + stretch.staged_at * size_of(memory.type);
        made.staged[static_cast<std::size_t>(side)].in.push_back({slot, memory.data, memory.bytes()});
        made.staged[static_cast<std::size_t>(side)].out.push_back({memory.data, slot, memory.bytes()});
      }
    }
    return made;
  }

  parameter_list const* parameters_;
  std::vector<plan::piece> pieces_;
  typename Backend::buffer staging_;
  std::vector<entry> entries_;
};

}  // namespace lockstep
