// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/backend/elementwise.hpp>
#include <lockstep/backend/host.hpp>
#include <lockstep/concepts.hpp>
#include <lockstep/core/update.hpp>
#include <lockstep/plan/split.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep {

/// One loop a segment, in the type of its value and gradient.
template <elementwise_optimizer Optimizer>
class elementwise_update<host, Optimizer> {
 public:
  static constexpr std::size_t slots = slot_count<Optimizer>;
  using segment = update_segment<slots>;

  elementwise_update(host::device&, std::vector<segment> segments) : segments_(std::move(segments)) {
    for (segment const& s : segments_) {
      groups_ = (std::max)(groups_, std::size_t{s.group});
    }
  }

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

  void set(host::stream_ref stream, std::span<Optimizer const> optimizers) {
    stream.enqueue([this, optimizers] { optimizers_.assign(optimizers.begin(), optimizers.end()); });
  }

  void prepare(host::stream_ref stream, std::uint64_t const* applied) {
    stream.enqueue([this, applied] {
      prepared_.clear();
      for (std::size_t group = 0; group < 256; ++group) {
        Optimizer const& optimizer = optimizers_[optimizers_.size() == 1 ? 0 : group];
        prepared_.push_back(elementwise::prepare(optimizer, info_for(optimizer, *applied + 1, static_cast<std::uint8_t>(group))));
        if (group == groups_) {
          break;
        }
      }
    });
  }

  void run(host::stream_ref stream, plan::range buckets, step_sums const* sums, double const* uses) const {
    stream.enqueue([=, this] {
      if (sums != nullptr && sums->skipped()) {
        return;
      }
      float const factor = sums != nullptr ? sums->factor() : 1.0F;
      for (segment const& s : segments_) {
        if (s.bucket >= buckets.first && s.bucket < buckets.end() && (uses == nullptr || uses[s.parameter] != 0)) {
          update(s, optimizers_[optimizers_.size() == 1 ? 0 : s.group], prepared_[s.group], factor);
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

  std::vector<segment> segments_;
  std::vector<Optimizer> optimizers_;
  std::vector<prepared_type<Optimizer>> prepared_;
  std::size_t groups_ = 0;
};

}  // namespace lockstep
