// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace lockstep::data_detail {

/// Items [first, end) of a source, filled ahead by background threads and handed to one reader in order. A source has a type
/// `slot` and `fill(index, slot)`, which the threads call beside each other, for different indices and slots.
///
/// Each thread claims the next index that isn't claimed, so all items before one that fails are on their way when it does.
template <class Source>
class gather_ahead {
 public:
  using slot = typename Source::slot;

  /// Holds at most prefetch + 1 slots: the reader's and those ahead. Of `threads` threads at most `prefetch` are started; with
  /// none, take() fills. Throws what starting a thread throws, with no thread left.
  gather_ahead(Source& source, std::size_t first, std::size_t end, std::size_t prefetch, std::size_t threads)
      : source_(source),
        end_(end),
        next_(first),
        places_(prefetch < end - first ? prefetch + 1 : end - first),
        claimed_(first),
        released_(first) {
    try {
      for (std::size_t started = 0; started < (std::min)({threads, prefetch, end - first}); ++started) {
        threads_.emplace_back([this] { work(); });
      }
    } catch (...) {
      stop();
      throw;
    }
  }
  gather_ahead(gather_ahead const&) = delete;  // threads fill its slots
  gather_ahead& operator=(gather_ahead const&) = delete;
  ~gather_ahead() { stop(); }

  /// The index of the item that take() hands out next.
  [[nodiscard]] std::size_t next() const noexcept { return next_; }

  /// Waits for the next item; nullptr after the last. It stays as it is until the next call. Throws what filling it threw, when
  /// all threads have ended; nothing is handed out after that.
  slot const* take() {
    release();
    if (failed_ || next_ == end_) {
      return nullptr;
    }
    place& wanted = place_of(next_);
    try {
      if (threads_.empty()) {
        source_.fill(next_, wanted.content);
      } else {
        wait_for(wanted);
      }
    } catch (...) {
      failed_ = true;
      throw;
    }
    ++next_;
    holds_ = true;
    return &wanted.content;
  }

 private:
  struct place {
    slot content{};
    bool filled = false;  // or failed
    std::exception_ptr failure{};
  };

  [[nodiscard]] place& place_of(std::size_t index) noexcept { return places_[index % places_.size()]; }

  // Gives the slot of the item that the reader holds to the threads.
  void release() {
    if (!std::exchange(holds_, false) || threads_.empty()) {
      return;
    }
    {
      std::lock_guard const lock{mutex_};
      place_of(released_).filled = false;
      ++released_;
    }
    changed_.notify_all();
  }

  void wait_for(place& wanted) {
    {
      std::unique_lock lock{mutex_};
      changed_.wait(lock, [&] { return wanted.filled; });
    }
    if (wanted.failure != nullptr) {
      stop();
      std::rethrow_exception(std::exchange(wanted.failure, nullptr));
    }
  }

  void work() noexcept {
    std::unique_lock lock{mutex_};
    for (;;) {
      changed_.wait(lock, [this] { return claimed_ == end_ || claimed_ - released_ < places_.size(); });
      if (claimed_ == end_) {
        return;
      }
      std::size_t const index = claimed_++;
      place& mine = place_of(index);
      lock.unlock();
      try {
        source_.fill(index, mine.content);
      } catch (...) {
        mine.failure = std::current_exception();
      }
      lock.lock();
      if (mine.failure != nullptr) {
        claimed_ = end_;  // nothing behind it will be read
      }
      mine.filled = true;
      changed_.notify_all();
    }
  }

  // Waits for the item that each thread is at.
  void stop() noexcept {
    {
      std::lock_guard const lock{mutex_};
      claimed_ = end_;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) {
      if (thread.joinable()) {
        thread.join();
      }
    }
  }

  Source& source_;
  std::size_t const end_;
  std::size_t next_;  // of the reader, as the two below
  bool holds_ = false;
  bool failed_ = false;
  std::vector<place> places_;

  std::mutex mutex_;  // guards the two below and each place's `filled`, and with it hands contents over
  std::condition_variable changed_;
  std::size_t claimed_;
  std::size_t released_;

  std::vector<std::thread> threads_;
};

}  // namespace lockstep::data_detail
