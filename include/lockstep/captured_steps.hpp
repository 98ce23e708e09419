// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/batch.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace lockstep {

/// Which steps a trainer has seen, and which of them every rank holds as a graph. A step is known by the memory of its shards
/// and its number of micro-batches. Steps that were never seen twice are forgotten first, then those not used for longest.
template <class Batch>
class captured_steps {
 public:
  struct entry {
    std::vector<Batch> shards;
    std::size_t micro_batches = 1;
    std::uint64_t last_used = 0;
    bool recorded = false;
  };

  /// Remembers up to `graphs` steps that are recorded, and as many that are not yet.
  explicit captured_steps(std::size_t graphs) : graphs_(graphs) {}

  /// The place of this step in the list, in [0, 2 * graphs); `capacity()` when it was not seen before, and then it is now
  /// remembered.
  [[nodiscard]] std::size_t find_or_add(std::vector<Batch> const& shards, std::size_t micro_batches) {
    ++clock_;
    for (std::size_t at = 0; at < entries_.size(); ++at) {
      entry& known = entries_[at];
      if (known.micro_batches == micro_batches && same(known.shards, shards)) {
        known.last_used = clock_;
        return at;
      }
    }
    if (graphs_ != 0) {
      entry fresh{shards, micro_batches, clock_, false};
      if (entries_.size() < capacity()) {
        entries_.push_back(std::move(fresh));
      } else {
        *oldest(false) = std::move(fresh);
      }
    }
    return capacity();
  }
  [[nodiscard]] std::size_t capacity() const noexcept { return 2 * graphs_; }

  [[nodiscard]] bool recorded(std::size_t at) const noexcept { return entries_[at].recorded; }
  /// Notes that every rank holds step `at` as a graph. Returns the place of the graph that is to be dropped for it, or
  /// `capacity()`.
  [[nodiscard]] std::size_t set_recorded(std::size_t at) {
    std::size_t drop = capacity();
    if (static_cast<std::size_t>(std::count_if(entries_.begin(), entries_.end(), [](entry const& e) { return e.recorded; })) ==
        graphs_) {
      auto const last = oldest(true);
      last->recorded = false;
      drop = static_cast<std::size_t>(last - entries_.begin());
    }
    entries_[at].recorded = true;
    return drop;
  }

 private:
  static bool same(std::vector<Batch> const& a, std::vector<Batch> const& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](Batch const& one, Batch const& other) { return batch_detail::same(one, other); });
  }
  /// The one not used for longest among those that are recorded, or not.
  auto oldest(bool recorded) {
    return std::min_element(entries_.begin(), entries_.end(), [recorded](entry const& a, entry const& b) {
      auto const age = [recorded](entry const& e) {
        return e.recorded == recorded ? e.last_used : (std::numeric_limits<std::uint64_t>::max)();
      };
      return age(a) < age(b);
    });
  }

  std::size_t graphs_;
  std::uint64_t clock_ = 0;
  std::vector<entry> entries_;
};

}  // namespace lockstep
