// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/backend/host_faults.hpp>
#include <lockstep/core/deadline.hpp>
#include <lockstep/core/error.hpp>
#include <lockstep/core/memory.hpp>
#include <lockstep/core/options.hpp>
#include <lockstep/core/spin.hpp>
#include <lockstep/core/work_queue.hpp>

#include <atomic>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>

namespace lockstep {

/// The backend without a GPU: a device is a thread of the caller's, its memory is this process's.
struct host {
  struct options;
  class device;
  struct give_back;
  /// 64-byte aligned.
  using buffer = accounted_buffer<give_back>;
  using pinned_buffer = buffer;
  class stream;
  class stream_ref;
  class event;
  using weight = float;
  struct profiler_range;

  /// Work on the stream of a device has been done when the call that enqueues it returns.
  static constexpr bool asynchronous = false;

  /// Any number of devices can be made; this many run at once: one a hardware thread.
  [[nodiscard]] static int device_count() noexcept { return hardware_threads(); }

  /// Enqueues setting `bytes` bytes to zero.
  static void zero(stream_ref stream, void* memory, std::size_t bytes);
  /// Enqueues copying `bytes` bytes. The two may overlap.
  static void copy(stream_ref stream, void* to, void const* from, std::size_t bytes);
  /// Enqueues many copies as one task. The list must live until they are done.
  static void copy(stream_ref stream, std::span<transfer const> transfers);
  /// Enqueues one call of a function object.
  template <class F>
  static void invoke(stream_ref stream, F const& f);
  /// Enqueues one call `f(i)` for each i in [0, count).
  template <class F>
  static void for_each(stream_ref stream, std::size_t count, F const& f);
};

/// Names a stretch of work for a profiler; here there is none.
struct host::profiler_range {
  explicit profiler_range(char const*) noexcept {}
};

struct host::give_back {
  static constexpr std::align_val_t alignment{64};
  void operator()(void* memory) const noexcept { ::operator delete(memory, alignment); }
};

struct host::options {
  /// How long a rank waits for another before it gives up and names it. Above 0.
  double timeout_seconds = 60;
  /// What to check beside, for debugging.
  lockstep::checking checking = lockstep::checking::none;
  /// Whether to measure how long devices work, for `busy_seconds`. Costs a few microseconds a step and bucket on a GPU.
  bool measure_busy = false;
  /// Failures to inject, for tests.
  std::shared_ptr<host_faults const> faults = nullptr;
};

/// Where work is enqueued: a stream, or (by default) the calling thread, in which work runs at once. Owns nothing.
class host::stream_ref {
 public:
  stream_ref() noexcept = default;

  /// Runs `task` now, or in the stream after what was enqueued before. An exception that it throws there comes out of
  /// `synchronize`; until then later tasks are dropped.
  template <std::invocable Task>
  void enqueue(Task&& task) const {
    if (queue_ == nullptr) {
      std::forward<Task>(task)();
    } else {
      queue_->enqueue(std::forward<Task>(task));
    }
  }

  /// Blocks until all that was enqueued before is done; rethrows a task's exception, once.
  void synchronize() const {
    if (queue_ != nullptr) {
      queue_->wait();
    }
  }
  /// The same, returning false when `deadline` passes first.
  [[nodiscard]] bool synchronize(work_queue::time_point deadline) const { return queue_ == nullptr || queue_->wait(deadline); }

  /// Throws what a task threw, once; waits for nothing.
  void check() const {
    if (queue_ != nullptr) {
      queue_->rethrow();
    }
  }

  /// What is enqueued later runs after the work that `recorded` stands for now. In the calling thread this blocks.
  void wait(event const& recorded) const;

  friend bool operator==(stream_ref, stream_ref) noexcept = default;

 private:
  friend host::stream;
  friend host::event;
  explicit stream_ref(work_queue* queue) noexcept : queue_(queue) {}

  work_queue* queue_ = nullptr;
};

/// A thread of its own that runs enqueued work in order, started by the first: for communication beside computation.
/// The destructor finishes what was enqueued.
class host::stream {
 public:
  stream() : stream(std::string{"lockstep"}) {}
  explicit stream(host::device const& owner);
  stream(stream&&) noexcept = default;
  stream& operator=(stream&&) noexcept = default;

  [[nodiscard]] stream_ref ref() const noexcept { return stream_ref{queue_.get()}; }
  operator stream_ref() const noexcept { return ref(); }  // NOLINT(google-explicit-constructor): a view of the same thing

  template <std::invocable Task>
  void enqueue(Task&& task) const {
    ref().enqueue(std::forward<Task>(task));
  }
  void synchronize() const { ref().synchronize(); }
  [[nodiscard]] bool synchronize(work_queue::time_point deadline) const { return ref().synchronize(deadline); }
  void wait(event const& recorded) const { ref().wait(recorded); }

  /// Gives the thread up, because a task does not return; see work_queue::abandon.
  void abandon() const noexcept { queue_->abandon(); }

 private:
  explicit stream(std::string name) : queue_(std::make_unique<work_queue>(std::move(name))) {}

  std::unique_ptr<work_queue> queue_;  // streams move; stream_refs know its address
};

/// A point in a stream. Complete until it is recorded; can be recorded again, which leaves earlier waits as they were.
/// Completes also when work before it failed: the failure comes out of the stream.
class host::event {
 public:
  /// From now on stands for all that was enqueued on `stream` before this call.
  void record(stream_ref stream) { point_ = stream.queue_ == nullptr ? work_queue::ticket{} : stream.queue_->here(); }
  [[nodiscard]] bool complete() const noexcept { return point_.reached(); }
  /// Blocks until it completes. Throws aborted_error when the stream is abandoned before.
  void synchronize() const { point_.wait(); }

 private:
  friend host::stream_ref;

  work_queue::ticket point_;
};

inline void host::stream_ref::wait(event const& recorded) const {
  if (!recorded.complete()) {
    enqueue([point = recorded.point_] { point.wait(); });
  }
}

/// One participant of the host backend: a place for memory and its books. Thread safety: every call may run beside every other.
class host::device {
 public:
  /// Throws usage_error for a negative id, or a timeout that is not above 0.
  explicit device(device_id id = device_id{0}, host::options const& options = {}) : id_(id), options_(options) {
    expects(number(id) >= 0, "devices count from 0");
    expects(options.timeout_seconds > 0, "host::options: timeout_seconds must be above 0");
  }
  device(device const&) = delete;  // replicas know its address
  device& operator=(device const&) = delete;

  [[nodiscard]] device_id id() const noexcept { return id_; }
  /// Work runs at once, in the calling thread.
  [[nodiscard]] stream_ref stream() const noexcept { return {}; }
  [[nodiscard]] host::options const& options() const noexcept { return options_; }

  /// `bytes` >= 0 bytes, accounted under `use` until the buffer is destroyed. Throws out_of_memory.
  [[nodiscard]] buffer allocate(std::size_t bytes, memory_use use) {
    std::uint64_t const count = allocations_.fetch_add(1, std::memory_order_relaxed) + 1;
    bool const refused = options_.faults != nullptr && options_.faults->fails_allocation(id_, count, use);
    bool const impossible = bytes > static_cast<std::size_t>(PTRDIFF_MAX);
    void* const memory = refused || impossible ? nullptr : ::operator new(bytes, give_back::alignment, std::nothrow);
    if (memory == nullptr) {
      throw out_of_memory(id_, bytes, std::string{name_of(use)});
    }
    return {memory, account_, use, bytes};
  }
  /// A little memory that host and device both reach; here all memory is such.
  [[nodiscard]] pinned_buffer allocate_pinned(std::size_t bytes) { return allocate(bytes, memory_use::other); }
  [[nodiscard]] memory_usage memory() const noexcept { return account_->usage(); }
  /// The books, for memory that a model allocates by itself.
  [[nodiscard]] memory_account& account() const noexcept { return *account_; }

  /// Called once a step before any of its work: here injected faults act. `aborted()` says whether the step was given up.
  template <std::predicate Aborted>
  void begin_step(std::uint64_t step, Aborted&& aborted) const {
    if (options_.faults != nullptr) {
      auto const patience = deadline_after(2 * options_.timeout_seconds);  // where all are absent, nobody aborts
      options_.faults->act(id_, step, [&] { return aborted() || std::chrono::steady_clock::now() > patience; });
    }
  }

 private:
  device_id id_;
  host::options options_;
  std::shared_ptr<memory_account> account_ = std::make_shared<memory_account>();
  std::atomic<std::uint64_t> allocations_{0};
};

inline host::stream::stream(host::device const& owner)
    : stream(std::string("lockstep ") + std::to_string(number(owner.id()))) {}

inline void host::zero(stream_ref stream, void* memory, std::size_t bytes) {
  if (bytes != 0) {
    stream.enqueue([=] { std::memset(memory, 0, bytes); });
  }
}

inline void host::copy(stream_ref stream, void* to, void const* from, std::size_t bytes) {
  if (bytes != 0 && to != from) {
    stream.enqueue([=] { std::memmove(to, from, bytes); });
  }
}

inline void host::copy(stream_ref stream, std::span<transfer const> transfers) {
  stream.enqueue([transfers] {
    for (transfer const& one : transfers) {
      std::memcpy(one.to, one.from, one.bytes);
    }
  });
}

template <class F>
void host::invoke(stream_ref stream, F const& f) {
  stream.enqueue([f] { f(); });
}

template <class F>
void host::for_each(stream_ref stream, std::size_t count, F const& f) {
  stream.enqueue([f, count] {
    for (std::size_t i = 0; i < count; ++i) {
      f(i);
    }
  });
}

}  // namespace lockstep
