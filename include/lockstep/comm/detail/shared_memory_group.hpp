// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/comm/detail/combine.hpp>
#include <lockstep/comm/detail/request.hpp>
#include <lockstep/core/deadline.hpp>
#include <lockstep/core/error.hpp>
#include <lockstep/core/spin.hpp>
#include <lockstep/plan/split.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep::comm_detail {

/// What the ranks of a shared_memory_communicator share.
///
/// A collective has three phases. A rank *enters*: it posts what it wants and waits until every rank has. The mutex decides
/// once, for all ranks, whether the round is released or the group aborted. After the release no rank can fail: all do their
/// part of the work and *leave* together, so nobody's memory goes away while another rank works on it.
class shared_memory_group {
 public:
  shared_memory_group(std::span<device_id const> devices, double timeout_seconds)
      : members_(devices.size()), timeout_seconds_(timeout_seconds) {
    expects(!devices.empty(), "a communicator needs at least one device");
    expects(timeout_seconds > 0, "host::options: timeout_seconds must be above 0");
    for (std::size_t rank = 0; rank < devices.size(); ++rank) {
      members_[rank].device = devices[rank];
    }
  }

  [[nodiscard]] int size() const noexcept { return static_cast<int>(members_.size()); }
  [[nodiscard]] std::uint64_t bytes_moved(rank_id rank) const noexcept { return at(rank).bytes_moved.load(); }

  [[nodiscard]] bool aborted() const noexcept { return aborted_.load(std::memory_order_acquire); }
  [[nodiscard]] std::string abort_reason() const {
    std::scoped_lock const lock(mutex_);
    return reason_;
  }
  void abort(std::string reason) noexcept {
    {
      std::scoped_lock const lock(mutex_);
      if (!aborted_) {
        reason_ = std::move(reason);
        aborted_.store(true, std::memory_order_release);
      }
    }
    changed_.notify_all();
  }
  void check_alive(rank_id rank, request const& wanted) const {
    if (aborted()) {
      throw stopped(wanted, rank, abort_reason());
    }
  }

  /// Takes `rank`'s part in one collective. Requires: size() > 1, and `wanted` was checked.
  void run(rank_id rank, request const& wanted) {
    check_alive(rank, wanted);
    member& self = at(rank);
    std::uint64_t const round = self.entered.load(std::memory_order_relaxed) + 1;
    self.wanted = wanted;
    enter(rank, round);
    std::size_t const differing = disagreeing();
    if (differing == 0) {
      self.bytes_moved += work(rank, wanted);
    }
    leave(round);
    if (differing != 0) {  // nobody posts again: each rank aborts before it could
      std::string const dispute = std::string("rank ") + std::to_string(differing) + " called " +
                                  to_string(members_[differing].wanted) + " while rank 0 called " +
                                  to_string(members_.front().wanted);
      abort(dispute);
      refuse(dispute);
    }
  }

 private:
  /// Aligned so that ranks don't share cache lines, which are fetched in pairs.
  struct alignas(128) member {
    device_id device{0};
    request wanted;  // read by others between the release of a round and its end
    std::atomic<std::uint64_t> entered{0};
    std::atomic<std::uint64_t> bytes_moved{0};
  };

  [[nodiscard]] member& at(rank_id rank) noexcept { return members_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] member const& at(rank_id rank) const noexcept { return members_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] std::byte* memory_of(int rank) const noexcept {
    return static_cast<std::byte*>(at(rank_id{rank}).wanted.data.data);
  }

  /// Waits until every rank entered `round`. Throws aborted_error, or timeout_error; no rank then gets past this round.
  void enter(rank_id rank, std::uint64_t round) {
    member& self = at(rank);
    self.entered.store(round, std::memory_order_release);
    if (arrivals_.fetch_add(1, std::memory_order_acq_rel) + 1 == round * members_.size()) {
      {
        std::scoped_lock const lock(mutex_);
        if (!aborted_) {
          released_.store(round, std::memory_order_release);
        }
      }
      changed_.notify_all();
    }
    auto const released = [&] { return released_.load(std::memory_order_acquire) >= round; };
    spin_briefly(size(), [&] { return released() || aborted(); });
    if (released()) {
      return;
    }
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline(), [&] { return released() || aborted(); });
    if (released()) {
      return;
    }
    if (aborted()) {
      throw stopped(self.wanted, rank, reason_);
    }
    int missing = 0;
    while (missing < size() && at(rank_id{missing}).entered.load(std::memory_order_acquire) >= round) {
      ++missing;
    }
    if (missing == size()) {  // the last one entered, and waits for the mutex to say so
      released_.store(round, std::memory_order_release);
      return;
    }
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%g", timeout_seconds_);
    reason_ = std::string("rank ") + std::to_string(missing) + " (device " +
              std::to_string(number(at(rank_id{missing}).device)) + ") did not arrive at " + to_string(self.wanted) +
              " within " + seconds + " seconds";
    aborted_.store(true, std::memory_order_release);
    std::string const reason = reason_;
    lock.unlock();
    changed_.notify_all();
    throw timeout_error(rank_id{missing}, reason);
  }

  /// Waits until every rank is done with `round`. All have entered it and none can fail, so this takes no deadline.
  void leave(std::uint64_t round) {
    if (departures_.fetch_add(1, std::memory_order_acq_rel) + 1 == round * members_.size()) {
      {
        std::scoped_lock const lock(mutex_);
        ended_.store(round, std::memory_order_release);
      }
      changed_.notify_all();
      return;
    }
    auto const ended = [&] { return ended_.load(std::memory_order_acquire) >= round; };
    if (!spin_briefly(size(), ended)) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, ended);
    }
  }

  /// The first rank that wants another thing than rank 0; 0 when all agree. The same on every rank.
  [[nodiscard]] std::size_t disagreeing() const noexcept {
    for (std::size_t rank = 1; rank < members_.size(); ++rank) {
      if (!agree(members_[rank].wanted, members_.front().wanted)) {
        return rank;
      }
    }
    return 0;
  }

  /// Reads and writes the ranks' memory; returns how many bytes of it belong to others.
  [[nodiscard]] std::uint64_t work(rank_id rank, request const& wanted) const {
    plan::range const part = part_of(number(rank));
    switch (wanted.which) {
      case collective::all_reduce: return reduce_part(rank, wanted, part, 0, size());
      case collective::reduce: return reduce_part(rank, wanted, part, number(wanted.root), number(wanted.root) + 1);
      case collective::reduce_scatter: return reduce_part(rank, wanted, part, number(rank), number(rank) + 1);
      case collective::broadcast: return fetch(rank, number(wanted.root), {0, wanted.data.count});
      case collective::all_gather: break;
    }
    std::uint64_t bytes = 0;
    for (int other = 0; other < size(); ++other) {
      bytes += fetch(rank, other, part_of(other));
    }
    return bytes;
  }

  [[nodiscard]] plan::range part_of(int rank) const noexcept {
    return plan::part(members_.front().wanted.data.count, static_cast<std::size_t>(rank), members_.size());
  }

  /// Copies elements `part` of rank `from` to this rank's memory.
  [[nodiscard]] std::uint64_t fetch(rank_id rank, int from, plan::range part) const {
    std::size_t const element = size_of(at(rank).wanted.data.type);
    if (from == number(rank) || part.count == 0) {
      return 0;
    }
    std::memcpy(memory_of(number(rank)) + part.first * element, memory_of(from) + part.first * element, part.count * element);
    return part.count * element;
  }

  /// Combines elements `part` of all ranks, and writes the result to ranks [first_target, last_target).
  [[nodiscard]] std::uint64_t reduce_part(rank_id rank, request const& wanted, plan::range part, int first_target,
                                          int last_target) const {
    auto const combine_as = [&]<class T, reduction How>(std::type_identity<T>, std::integral_constant<reduction, How>) {
      combine<T, How>(
          part, size(), [&](int source) -> void const* { return memory_of(source); },
          [&](std::size_t first, T const* results, std::size_t length) {
            for (int target = first_target; target < last_target; ++target) {
              std::memcpy(memory_of(target) + first * sizeof(T), results, length * sizeof(T));
            }
          });
    };
    visit(wanted.data.type, [&](auto type) {
      switch (wanted.how) {
        case reduction::sum: return combine_as(type, std::integral_constant<reduction, reduction::sum>{});
        case reduction::min: return combine_as(type, std::integral_constant<reduction, reduction::min>{});
        case reduction::max: return combine_as(type, std::integral_constant<reduction, reduction::max>{});
      }
    });
    bool const own_target = first_target <= number(rank) && number(rank) < last_target;
    int const foreign = (size() - 1) + (last_target - first_target) - (own_target ? 1 : 0);
    return part.count * size_of(wanted.data.type) * static_cast<std::uint64_t>(foreign);
  }

  [[nodiscard]] std::chrono::steady_clock::time_point deadline() const noexcept { return deadline_after(timeout_seconds_); }

  std::vector<member> members_;
  double timeout_seconds_;
  std::atomic<std::uint64_t> arrivals_{0};
  std::atomic<std::uint64_t> departures_{0};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string reason_;  // guarded by the mutex
  // Written under the mutex, which makes them one decision; read outside of it while spinning.
  std::atomic<std::uint64_t> released_{0};  // the last round that every rank entered
  std::atomic<std::uint64_t> ended_{0};     // the last round that every rank left
  std::atomic<bool> aborted_{false};
};

}  // namespace lockstep::comm_detail
