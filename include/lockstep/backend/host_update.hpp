// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/backend/elementwise.hpp>
#include <lockstep/backend/host.hpp>
#include <lockstep/concepts.hpp>
#include <lockstep/core/update.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep {

/// One loop a segment, in the type of its value and gradient. Every call enqueues a task that refers to this object; what its
/// pointers point at is read when the task runs.
template <elementwise_optimizer Optimizer>
class elementwise_update<host, Optimizer> {
 public:
  static constexpr std::size_t slots = slot_count<Optimizer>;
  using segment = update_segment<slots>;

  elementwise_update(host::device&, std::vector<segment> segments) : segments_(std::move(segments)), set_(segments_) {
    std::stable_sort(segments_.begin(), segments_.end(),
                     [](segment const& a, segment const& b) { return a.bucket < b.bucket; });
  }
  elementwise_update(elementwise_update const&) = delete;  // tasks know its address
  elementwise_update& operator=(elementwise_update const&) = delete;

  /// Makes every f32 master equal to the 16-bit value it stands for.
  void load_masters(host::stream_ref stream) const {
    stream.enqueue([this] {
      for (segment const& s : segments_) {
        elementwise::visit(s.value_type, [&]<class V>(std::type_identity<V>) {
          for (std::size_t i = 0; s.master != nullptr && i < s.count; ++i) {
            s.master[i] = static_cast<float>(static_cast<V const*>(s.value)[i]);
          }
        });
      }
    });
  }

  /// `optimizers`, one or one a group, are those of later calls. Throws usage_error when there are too few.
  void set(host::stream_ref stream, std::span<Optimizer const> optimizers) {
    if (set_.set(optimizers)) {
      stream.enqueue([this, changed = set_.all()]() mutable { optimizers_ = std::move(changed); });
    }
  }

  /// Works out what all elements of a group share, for update number `*applied` + 1. Throws usage_error before `set`.
  void prepare(host::stream_ref stream, std::uint64_t const* applied) {
    static_cast<void>(set_.all());
    stream.enqueue([this, applied] {
      prepared_.clear();
      for (Optimizer const& optimizer : optimizers_) {
        auto const group = static_cast<std::uint8_t>(prepared_.size());
        prepared_.push_back(elementwise::prepare(optimizer, info_for(optimizer, *applied + 1, group)));
      }
    });
  }

  /// Updates the segments of these buckets. Requires: `prepare` came before.
  void run(host::stream_ref stream, plan::range buckets, step_decision const* decision, double const* uses) const {
    stream.enqueue([=, this] {
      if (decision != nullptr && decision->skipped != 0) {
        return;
      }
      float const factor = decision == nullptr ? 1 : decision->factor;
      auto const before = [](segment const& s, std::size_t bucket) { return s.bucket < bucket; };
      auto const last = std::lower_bound(segments_.begin(), segments_.end(), buckets.end(), before);
      for (auto s = std::lower_bound(segments_.begin(), last, buckets.first, before); s != last; ++s) {
        if (uses == nullptr || uses[s->parameter] != 0) {
          update(*s, optimizers_[s->group], prepared_[s->group], factor);
        }
      }
    });
  }

 private:
  static void update(segment const& s, Optimizer const& optimizer, prepared_type<Optimizer> const& prepared, float factor) {
    elementwise::visit(s.value_type, [&]<class V>(std::type_identity<V>) {
      elementwise::visit(s.gradient_type, [&]<class G>(std::type_identity<G>) {
        [&]<std::size_t... S>(std::index_sequence<S...>) {
          loop(static_cast<V*>(s.value), static_cast<G const*>(s.gradient), s.master, s.count, factor, optimizer, prepared,
               s.slots[S]...);
        }
        (std::make_index_sequence<slots>{});
      });
    });
  }

  // Optimizer and prepared are copies and the arrays are distinct, so that the compiler may keep and reorder what it likes.
  template <class V, class G, class... Slot>
  static void loop(V* __restrict__ value, G const* __restrict__ gradient, float* __restrict__ master, std::size_t count,
                   float factor, Optimizer const optimizer, prepared_type<Optimizer> const prepared,
                   Slot* __restrict__... slot) {
    for (std::size_t i = 0; i < count; ++i) {
      float const g = static_cast<float>(gradient[i]) * factor;
      if constexpr (std::is_same_v<V, float>) {
        value[i] = elementwise::call(optimizer, prepared, value[i], g, slot[i]...);
      } else {
        master[i] = elementwise::call(optimizer, prepared, master[i], g, slot[i]...);
        value[i] = V(master[i]);
      }
    }
  }

  std::vector<segment> segments_;  // in the order of their buckets
  elementwise::hyperparameters<Optimizer> set_;
  // One a group; belong to the stream's tasks.
  std::vector<Optimizer> optimizers_;
  std::vector<prepared_type<Optimizer>> prepared_;
};

}  // namespace lockstep
