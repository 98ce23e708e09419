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

/// One loop a segment, in the type of its value and gradient.
template <elementwise_optimizer Optimizer>
class elementwise_update<host, Optimizer> {
 public:
  static constexpr std::size_t slots = slot_count<Optimizer>;
  using segment = update_segment<slots>;

  elementwise_update(host::device&, std::vector<segment> segments) : segments_(std::move(segments)) {
    std::stable_sort(segments_.begin(), segments_.end(), [](segment const& a, segment const& b) { return a.group < b.group; });
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

  /// Synchronizes: nothing; runs in the calling thread, behind what it did before.
  void run(host::stream_ref stream, std::span<Optimizer const> optimizers, std::uint64_t step, float factor,
           std::span<std::uint8_t const> used) const {
    stream.enqueue([=, this] {
      for (std::size_t first = 0, last = 0; first < segments_.size(); first = last) {
        std::uint8_t const group = segments_[first].group;
        Optimizer const& optimizer = optimizers[optimizers.size() == 1 ? 0 : group];
        prepared_type<Optimizer> const ready =
            elementwise::prepare(optimizer, info_for(optimizer, step, group));  // once a group
        for (; last < segments_.size() && segments_[last].group == group; ++last) {
          if (used.empty() || used[segments_[last].parameter] != 0) {
            update(segments_[last], optimizer, ready, factor);
          }
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
};

}  // namespace lockstep
