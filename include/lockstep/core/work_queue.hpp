// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/error.hpp>
#include <lockstep/core/spin.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#if defined(__linux__)
#include <pthread.h>
#endif

namespace lockstep {

/// One thread that runs tasks in the order they were enqueued. The thread starts with the first task.
/// The first exception that a task throws is kept, and tasks after it are dropped, until `wait` rethrows it.
/// Thread safety: every call but the destructor may run beside every other.
class work_queue {
  struct shared_state {
    std::mutex mutex;
    std::condition_variable work;
    std::condition_variable progress;
    std::deque<std::function<void()>> tasks;
    std::exception_ptr failure;
    bool stopping = false;
    // Written under the mutex; read outside of it while spinning.
    std::atomic<std::uint64_t> enqueued{0};
    std::atomic<std::uint64_t> finished{0};  // dropped tasks count
    std::atomic<bool> abandoned{false};
  };

 public:
  using time_point = std::chrono::steady_clock::time_point;

  /// A point in a queue, reached once every task enqueued before it ran or was dropped. A default one is reached. Stays valid
  /// when the queue is gone.
  class ticket {
   public:
    ticket() noexcept = default;

    [[nodiscard]] bool reached() const noexcept {
      return shared_ == nullptr || shared_->finished.load(std::memory_order_acquire) >= number_;
    }
    /// Blocks until the point is reached. Throws aborted_error when the queue is abandoned before.
    void wait() const {
      static_cast<void>(wait_with([](auto& condition, auto& lock, auto const& over) {
        condition.wait(lock, over);
        return true;
      }));
    }
    /// The same, returning false when `deadline` passes first.
    [[nodiscard]] bool wait(time_point deadline) const {
      return wait_with(
          [deadline](auto& condition, auto& lock, auto const& over) { return condition.wait_until(lock, deadline, over); });
    }

   private:
    friend work_queue;
    ticket(std::shared_ptr<shared_state> shared, std::uint64_t number) noexcept : shared_(std::move(shared)), number_(number) {}

    template <class Sleep>
    bool wait_with(Sleep sleep) const {
      if (spin_briefly(busy_threads, [this] { return reached(); })) {
        return true;
      }
      std::unique_lock lock(shared_->mutex);
      bool const over = sleep(shared_->progress, lock, [this] { return reached() || shared_->abandoned.load(); });
      if (over && !reached()) {
        throw aborted_error("the work queue was abandoned, because a task of it did not return");
      }
      return over;
    }

    std::shared_ptr<shared_state> shared_;
    std::uint64_t number_ = 0;
  };

  /// `name`, cut to 15 characters, is what debuggers call the thread.
  explicit work_queue(std::string name = {}) : name_(std::move(name)), shared_(std::make_shared<shared_state>()) {}
  work_queue(work_queue const&) = delete;  // its thread and its users know its address
  work_queue& operator=(work_queue const&) = delete;
  /// Runs what is enqueued and joins the thread. A kept exception is lost.
  ~work_queue() {
    {
      std::scoped_lock const lock(shared_->mutex);
      shared_->stopping = true;
    }
    shared_->work.notify_one();
    if (thread_.joinable()) {
      thread_.join();
    }
  }

  /// Throws usage_error for an empty task or an abandoned queue, std::system_error when no thread can be started.
  void enqueue(std::function<void()> task) {
    expects(task != nullptr, "a work queue was given an empty task");
    {
      std::scoped_lock const lock(shared_->mutex);
      expects(!shared_->abandoned, "the work queue was abandoned: it takes no more tasks");
      if (!thread_.joinable()) {
        thread_ = std::thread(run, shared_, name_);
      }
      shared_->tasks.push_back(std::move(task));
      shared_->enqueued.fetch_add(1, std::memory_order_release);
    }
    shared_->work.notify_one();
  }

  /// The point after all that was enqueued so far.
  [[nodiscard]] ticket here() const noexcept { return {shared_, shared_->enqueued.load(std::memory_order_acquire)}; }

  /// Blocks until all that was enqueued before the call is done; false when `deadline` passes first. Rethrows the kept
  /// exception, once. Requires: the caller is no task of this queue. Throws aborted_error when the queue is abandoned before.
  [[nodiscard]] bool wait(time_point deadline) {
    if (!here().wait(deadline)) {
      return false;
    }
    rethrow();
    return true;
  }
  /// The same without a deadline.
  void wait() {
    here().wait();
    rethrow();
  }

  /// Rethrows the kept exception, once; waits for nothing.
  void rethrow() {
    std::unique_lock lock(shared_->mutex);
    if (std::exception_ptr const failure = std::exchange(shared_->failure, nullptr); failure != nullptr) {
      lock.unlock();
      std::rethrow_exception(failure);
    }
  }

  /// Gives the thread up for good, because a task does not return: the thread is detached, tasks that wait are dropped, and
  /// those who wait for them get an aborted_error. What the running task refers to must outlive it.
  void abandon() noexcept {
    std::deque<std::function<void()>> dropped;  // destroyed outside the lock
    {
      std::scoped_lock const lock(shared_->mutex);
      shared_->abandoned = true;
      shared_->stopping = true;
      dropped.swap(shared_->tasks);
      if (thread_.joinable()) {
        thread_.detach();
      }
    }
    shared_->work.notify_one();
    shared_->progress.notify_all();
  }

 private:
  // The one that waits, the one that works, and one more: on fewer hardware threads spinning takes time from the work.
  static constexpr int busy_threads = 3;

  static void run(std::shared_ptr<shared_state> const& shared, [[maybe_unused]] std::string const& name) {
#if defined(__linux__)
    if (!name.empty()) {
      pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
    }
#endif
    std::unique_lock lock(shared->mutex);
    for (;;) {
      if (shared->tasks.empty() && !shared->stopping) {
        lock.unlock();
        spin_briefly(busy_threads, [&] { return shared->enqueued.load(std::memory_order_acquire) != shared->finished.load(); });
        lock.lock();
        shared->work.wait(lock, [&] { return !shared->tasks.empty() || shared->stopping; });
      }
      if (shared->tasks.empty()) {
        return;
      }
      std::function<void()> task = std::move(shared->tasks.front());
      shared->tasks.pop_front();
      bool const dropped = shared->failure != nullptr;
      lock.unlock();
      std::exception_ptr failure;
      if (!dropped) {
        try {
          task();
        } catch (...) {
          failure = std::current_exception();
        }
      }
      task = nullptr;  // what it captured is gone before it counts as done
      lock.lock();
      if (failure != nullptr) {
        shared->failure = std::move(failure);
      }
      shared->finished.fetch_add(1, std::memory_order_release);
      shared->progress.notify_all();
    }
  }

  std::string name_;
  std::shared_ptr<shared_state> shared_;
  std::thread thread_;  // guarded by the mutex
};

}  // namespace lockstep
