// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/comm/detail/request.hpp>
#include <lockstep/concepts.hpp>
#include <lockstep/core/error.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

/// What groups of ranks on devices share, whose work goes on while the host does: who has called what, and how it ended.
namespace lockstep::comm_detail {

/// How often to look at something that another thread or device will do: at once, then after whoever else wants the processor,
/// then every 20 microseconds.
class patience {
 public:
  void pause() {
    if (++polls_ < 400) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds{20});
    }
  }

 private:
  int polls_ = 0;
};

/// What ranks compare: a collective, the launch of a graph that holds some, or a meeting.
struct noted_call {
  request wanted{};
  bool is_replay = false;
  bool is_meeting = false;

  [[nodiscard]] friend constexpr bool agree(noted_call const& a, noted_call const& b) noexcept {
    return a.is_replay == b.is_replay && a.is_meeting == b.is_meeting &&
           (a.is_replay || a.is_meeting || agree(a.wanted, b.wanted));
  }
};

[[nodiscard]] inline std::string to_string(noted_call const& call) {
  return call.is_replay ? "the replay of a graph" : call.is_meeting ? "a meeting" : to_string(call.wanted);
}

/// The calls of those ranks of a group that live in this process, and the end of the group. Thread safety: every call may run
/// beside every other.
class group_calls {
 public:
  struct caller {
    rank_id rank{0};
    device_id device{0};
  };
  /// Who keeps the others waiting.
  struct verdict {
    rank_id missing{-1};  // -1: nobody of this process
    std::string reason;
  };

  group_calls(int size, std::size_t callers, double timeout_seconds)
      : size_(size), timeout_seconds_(timeout_seconds), callers_(callers) {}

  /// Before the first call.
  void introduce(std::size_t index, caller who) { callers_[index].who = who; }

  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] double timeout_seconds() const noexcept { return timeout_seconds_; }
  /// "60 seconds"
  [[nodiscard]] std::string seconds() const {
    char text[32];
    std::snprintf(text, sizeof text, "%g seconds", timeout_seconds_);
    return text;
  }
  /// "rank 2 (device 1)"
  [[nodiscard]] std::string name(std::size_t index) const { return name(callers_[index].who); }

  // ---- the end ----

  /// The first reason stays. Returns whether this is the first.
  bool abort(std::string reason) noexcept {
    std::scoped_lock const lock(mutex_);
    if (aborted_) {
      return false;
    }
    reason_ = std::move(reason);
    aborted_ = true;
    return true;
  }
  [[nodiscard]] bool aborted() const noexcept { return aborted_; }
  [[nodiscard]] std::string abort_reason() const {
    std::scoped_lock const lock(mutex_);
    return reason_;
  }
  /// Throws aborted_error after an abort, with what `doing()` says the rank was about.
  template <class Doing>
  void check_alive(std::size_t index, Doing const& doing) const {
    if (aborted()) [[unlikely]] {
      throw stopped(doing(), callers_[index].who.rank, abort_reason());
    }
  }

  // ---- calls ----

  /// Notes a call. Returns what is wrong where another rank of this process made another one instead; "" otherwise.
  [[nodiscard]] std::string post(std::size_t index, noted_call const& call) {
    std::scoped_lock const lock(mutex_);
    std::string dispute;
    state& self = callers_[index];
    auto const place = static_cast<std::size_t>(self.calls - dropped_);
    if (place == calls_.size()) {
      calls_.push_back({call, self.who.rank});
    } else if (!agree(calls_[place].call, call)) {
      dispute = std::string("rank ") + std::to_string(number(self.who.rank)) + " called " + to_string(call) + " while rank " +
                std::to_string(number(calls_[place].by)) + " called " + to_string(calls_[place].call);
    }
    ++self.calls;
    self.last = call;
    std::uint64_t made = self.calls;  // by every rank
    for (state const& one : callers_) {
      made = (std::min)(made, one.calls);
    }
    calls_.erase(calls_.begin(), calls_.begin() + static_cast<std::ptrdiff_t>(made - dropped_));
    dropped_ = made;
    return dispute;
  }
  /// The last call of a rank.
  [[nodiscard]] noted_call last(std::size_t index) const {
    std::scoped_lock const lock(mutex_);
    return callers_[index].last;
  }

  /// A rank has waited as long as it may.
  [[nodiscard]] verdict late(std::size_t index) const {
    std::scoped_lock const lock(mutex_);
    state const& self = callers_[index];
    verdict found;
    if (self.calls > dropped_) {  // the oldest call is one that `self` made, and not every rank
      for (state const& one : callers_) {
        if (one.calls == dropped_) {
          found.missing = found.reason.empty() ? one.who.rank : found.missing;
          found.reason += (found.reason.empty() ? "" : ", ") + name(one.who);
        }
      }
      found.reason += " did not arrive at " + to_string(calls_.front().call) + " within " + seconds();
      return found;
    }
    found.reason = name(self.who) + ": " + (self.calls == 0 ? "what it waited for" : to_string(self.last)) +
                   " did not complete within " + seconds();
    if (self.calls != 0) {
      found.reason += std::string(", although every rank") +
                      (callers_.size() == static_cast<std::size_t>(size_) ? "" : " of this process") + " arrived";
    }
    return found;
  }

 private:
  struct state {
    caller who;
    std::uint64_t calls = 0;
    noted_call last;
  };
  struct posted {
    noted_call call;
    rank_id by;
  };

  [[nodiscard]] static std::string name(caller const& who) {
    return std::string("rank ") + std::to_string(number(who.rank)) + " (device " + std::to_string(number(who.device)) + ")";
  }

  int size_;
  double timeout_seconds_;
  std::atomic<bool> aborted_{false};  // written under the mutex
  mutable std::mutex mutex_;
  // Guarded by it.
  std::string reason_;
  std::vector<state> callers_;  // but for who they are
  std::vector<posted> calls_;   // those that not every rank of this process has made
  std::uint64_t dropped_ = 0;   // how many came before these
};

}  // namespace lockstep::comm_detail
