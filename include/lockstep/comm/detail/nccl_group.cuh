// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/backend/cuda.cuh>
#include <lockstep/comm/detail/group_calls.hpp>
#include <lockstep/comm/detail/request.hpp>
#include <lockstep/comm/nccl_error.cuh>
#include <lockstep/concepts.hpp>
#include <lockstep/core/deadline.hpp>
#include <lockstep/core/element_type.hpp>
#include <lockstep/core/error.hpp>
#include <lockstep/plan/split.hpp>

#include <cuda_runtime.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace lockstep::comm_detail {

[[nodiscard]] inline ncclDataType_t nccl_type(element_type type) {
  switch (type) {
    case element_type::f32: return ncclFloat32;
    case element_type::f64: return ncclFloat64;
    case element_type::f16: return ncclFloat16;
    case element_type::bf16: return ncclBfloat16;
    case element_type::i8: return ncclInt8;
    case element_type::u8: return ncclUint8;
    case element_type::i32: return ncclInt32;
    case element_type::u32: return ncclUint32;
    case element_type::i64: return ncclInt64;
    case element_type::u64: return ncclUint64;
  }
  refuse("NCCL has no elements of that type");
}

[[nodiscard]] constexpr ncclRedOp_t nccl_operator(reduction how) noexcept {
  return how == reduction::sum ? ncclSum : how == reduction::min ? ncclMin : ncclMax;
}

/// The ranks of one group that live in this process: all of a group made by `create`, one otherwise. Outlives its communicators
/// while a thread still ends theirs.
///
/// NCCL's handles are used by the thread of their rank, under the rank's mutex. A handle leaves that thread once: given up
/// after an abort, by whoever finds its mutex free, or closed by the last rank of the process that goes. Both end in a thread
/// of their own, for ncclCommAbort and ncclCommFinalize wait while a graph exists that captured a collective, and that graph
/// may belong to the caller.
class nccl_group : public std::enable_shared_from_this<nccl_group> {
 public:
  struct alignas(64) member {
    rank_id rank{0};
    device_id device{0};
    bool owned = true;  // the handle: ended here, or by its owner
    std::recursive_mutex mutex;
    // Guarded by the member's mutex.
    ncclComm_t handle = nullptr;  // none in a group of one, and once it was given up
    int depth = 0;                // of NCCL groups that are open

    std::atomic<std::uint64_t> bytes_moved{0};
  };

  nccl_group(int size, std::size_t members, double timeout_seconds)
      : members_(members), present_(members), calls_(size, members, timeout_seconds) {}

  [[nodiscard]] int size() const noexcept { return calls_.size(); }
  /// Each introduces itself before the start.
  void introduce(std::size_t index, rank_id rank, device_id device) {
    members_[index].rank = rank;
    members_[index].device = device;
    calls_.introduce(index, {rank, device});
  }
  [[nodiscard]] std::vector<member>& members() noexcept { return members_; }

  /// Initialises NCCL for all members at once, and waits until every rank of the group takes part.
  void start(ncclUniqueId const& id) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    std::exception_ptr thrown;
    lockstep::check(ncclGroupStart());
    try {
      for (member& m : members_) {
        cuda::device_guard const current{m.device};
        expect_started(m, ncclCommInitRankConfig(&m.handle, size(), id, number(m.rank), &config));
      }
    } catch (...) {
      thrown = std::current_exception();
    }
    ncclResult_t const ended = ncclGroupEnd();
    try {
      if (thrown != nullptr) {
        std::rethrow_exception(thrown);
      }
      expect_started(members_.front(), ended);
      auto const deadline = deadline_after(calls_.timeout_seconds());
      for (member& m : members_) {
        wait_for_start(m, deadline);
      }
    } catch (...) {
      // One after another: the first call waits for the thread that starts them all.
      in_background([this] {
        for (member& m : members_) {
          static_cast<void>(cudaSetDevice(number(m.device)));
          static_cast<void>(ncclCommAbort(std::exchange(m.handle, nullptr)));
        }
      });
      wait_for_background(grace_seconds);
      throw;
    }
  }

  // ---- what a rank calls, in its own thread ----

  void run(member& self, request const& wanted, cudaStream_t stream) {
    auto const doing = [&] { return to_string(wanted); };
    if (size() == 1) {
      check_alive(self, doing);
      return;
    }
    section const running{*this, self};
    check_alive(self, doing);
    post(self, {wanted});
    if (wanted.data.count != 0) {
      fused(self, [&] { issue(self, wanted, stream); });
      self.bytes_moved += moved(wanted);
    }
  }

  template <class Work>
  void together(member& self, Work& work) {
    auto const doing = [] { return std::string("together"); };
    if (size() == 1) {
      check_alive(self, doing);
      work();
      return;
    }
    section const running{*this, self};
    check_alive(self, doing);
    fused(self, work);
  }

  void replay(member& self) {
    noted_call const call{.is_replay = true};
    check_alive(self, [&] { return to_string(call); });
    if (size() > 1) {
      post(self, call);
    }
  }

  template <class Point>
  void wait(member& self, Point const& point) {
    auto const waiting = [] { return std::string("waiting"); };
    try {
      auto const deadline = deadline_after(calls_.timeout_seconds());
      for (patience between; !point.done(); between.pause()) {
        check_alive(self, waiting);
        watch(self);
        if (std::chrono::steady_clock::now() >= deadline) {
          late(self);
        }
      }
      check_alive(self, waiting);  // after an abort, collectives end without having done their work
    } catch (error const&) {
      if (aborted()) {
        give_up(self);
        let_end(point);
      }
      throw;
    }
  }

  /// The communicator of `self` goes.
  void leave(member& self) noexcept {
    if (aborted()) {
      give_up(self);
    }
    if (--present_ == 0) {
      bool const open = std::any_of(members_.begin(), members_.end(), to_be_closed);
      if (open) {
        in_background([this] { close(); });
      }
      wait_for_background(open ? calls_.timeout_seconds() + grace_seconds : grace_seconds);
    }
  }

  // ---- what any thread may call ----

  /// The first reason stays. Returns whether this is the first.
  bool abort(std::string reason) noexcept {
    bool const first = calls_.abort(std::move(reason));
    for (member& m : members_) {
      give_up(m);
    }
    return first;
  }
  [[nodiscard]] bool aborted() const noexcept { return calls_.aborted(); }
  [[nodiscard]] std::string abort_reason() const { return calls_.abort_reason(); }

 private:
  /// How long to wait for threads that end communicators, beyond what they wait for.
  static constexpr double grace_seconds = 5;

  /// The time in which a rank uses its handle. An abort that comes meanwhile is heeded at its end.
  class section {
   public:
    section(nccl_group& group, member& self) : group_(group), self_(self) { self_.mutex.lock(); }
    section(section const&) = delete;
    section& operator=(section const&) = delete;
    ~section() {
      self_.mutex.unlock();
      if (group_.aborted()) {
        group_.give_up(self_);
      }
    }

   private:
    nccl_group& group_;
    member& self_;
  };

  [[nodiscard]] std::size_t index_of(member const& m) const noexcept { return static_cast<std::size_t>(&m - members_.data()); }
  [[nodiscard]] std::string name(member const& m) const { return calls_.name(index_of(m)); }

  // ---- starting ----

  void expect_started(member const& m, ncclResult_t code) const {
    if (!accepted(code)) {
      throw nccl_error(code, name(m) + ", starting NCCL: " + explain(code));
    }
  }

  void wait_for_start(member& m, std::chrono::steady_clock::time_point deadline) {
    for (patience between;; between.pause()) {
      ncclResult_t state = ncclSuccess;
      expect_started(m, ncclCommGetAsyncError(m.handle, &state));
      expect_started(m, state);
      if (state != ncclInProgress) {
        return;
      }
      if (std::chrono::steady_clock::now() >= deadline) {
        throw timeout_error(rank_id{-1}, name(m) + ", starting NCCL: not all " + std::to_string(size()) +
                                             " ranks took part within " + calls_.seconds());
      }
    }
  }

  // ---- calls ----

  template <class Doing>
  void check_alive(member const& self, Doing const& doing) const {
    calls_.check_alive(index_of(self), doing);
  }

  /// Ends the group unless NCCL took the call.
  void expect_accepted(member& self, ncclResult_t code) {
    if (accepted(code)) [[likely]] {
      return;
    }
    std::string const doing = to_string(calls_.last(index_of(self)));
    std::string const reason = name(self) + ", " + doing + ": " + explain(code);
    if (!abort(reason)) {
      throw stopped(doing, self.rank, abort_reason());
    }
    throw nccl_error(code, reason);
  }

  /// Notes a call of `self`. Throws usage_error, and ends the group, when another rank of this process made another one
  /// instead.
  void post(member& self, noted_call const& call) {
    std::string const dispute = calls_.post(index_of(self), call);
    if (!dispute.empty()) {
      if (!abort(dispute)) {
        throw stopped(to_string(call), self.rank, abort_reason());
      }
      refuse(dispute);
    }
  }

  /// Makes one NCCL group of all that `calls` enqueues, and waits until it is on its streams. Where one is open already, it
  /// takes part in that. What was enqueued before an exception goes its way.
  template <class Calls>
  void fused(member& self, Calls&& calls) {
    if (self.depth != 0) {
      calls();
      return;
    }
    expect_accepted(self, ncclGroupStart());
    ++self.depth;
    std::exception_ptr thrown;
    try {
      calls();
    } catch (...) {
      thrown = std::current_exception();
    }
    --self.depth;
    ncclResult_t const ended = ncclGroupEnd();
    if (thrown == nullptr) {
      expect_accepted(self, ended);
      settle(self);
      return;
    }
    try {
      settle(self);
    } catch (error const&) {  // the first exception is the cause
    }
    std::rethrow_exception(thrown);
  }

  /// A non-blocking communicator enqueues in a thread of NCCL's own. It may wait there for other ranks, when they connect.
  void settle(member& self) {
    auto const deadline = deadline_after(calls_.timeout_seconds());
    for (patience between;; between.pause()) {
      ncclResult_t state = ncclSuccess;
      expect_accepted(self, ncclCommGetAsyncError(self.handle, &state));
      expect_accepted(self, state);
      if (state != ncclInProgress) {
        return;
      }
      check_alive(self, [&] { return to_string(calls_.last(index_of(self))); });
      if (std::chrono::steady_clock::now() >= deadline) {
        late(self);
      }
    }
  }

  void issue(member& self, request const& wanted, cudaStream_t stream) {
    typed_span const all = wanted.data;
    ncclDataType_t const type = nccl_type(all.type);
    ncclRedOp_t const how = nccl_operator(wanted.how);
    int const root = number(wanted.root);
    ncclComm_t const comm = self.handle;
    // Parts are equal, but for a rest that the last rank has beside.
    auto const ranks = static_cast<std::size_t>(size());
    std::size_t const equal = plan::part(all.count, 0, ranks).count;
    void* const mine = all.part(static_cast<std::size_t>(number(self.rank)) * equal, equal).data;
    typed_span const rest = all.part(ranks * equal, all.count - ranks * equal);
    switch (wanted.which) {
      case collective::all_reduce:
        return expect_accepted(self, ncclAllReduce(all.data, all.data, all.count, type, how, comm, stream));
      case collective::reduce:
        return expect_accepted(self, ncclReduce(all.data, all.data, all.count, type, how, root, comm, stream));
      case collective::broadcast:
        return expect_accepted(self, ncclBroadcast(all.data, all.data, all.count, type, root, comm, stream));
      case collective::reduce_scatter:
        if (equal != 0) {
          expect_accepted(self, ncclReduceScatter(all.data, mine, equal, type, how, comm, stream));
        }
        if (rest.count != 0) {
          expect_accepted(self, ncclReduce(rest.data, rest.data, rest.count, type, how, size() - 1, comm, stream));
        }
        return;
      case collective::all_gather:
        if (equal != 0) {
          expect_accepted(self, ncclAllGather(mine, all.data, equal, type, comm, stream));
        }
        if (rest.count != 0) {
          expect_accepted(self, ncclBroadcast(rest.data, rest.data, rest.count, type, size() - 1, comm, stream));
        }
        return;
    }
  }

  /// By the formulas at the communicator's members.
  [[nodiscard]] std::uint64_t moved(request const& wanted) const noexcept {
    std::uint64_t const bytes = wanted.data.bytes();
    auto const ranks = static_cast<std::uint64_t>(size());
    switch (wanted.which) {
      case collective::all_reduce: return 2 * bytes * (ranks - 1) / ranks;
      case collective::reduce_scatter:
      case collective::all_gather: return bytes * (ranks - 1) / ranks;
      case collective::reduce:
      case collective::broadcast: break;
    }
    return bytes;
  }

  // ---- waiting ----

  /// Ends the group when NCCL met an error, of the network say.
  void watch(member& self) {
    std::scoped_lock const lock(self.mutex);
    if (self.handle != nullptr) {
      ncclResult_t state = ncclSuccess;
      expect_accepted(self, ncclCommGetAsyncError(self.handle, &state));
      expect_accepted(self, state);
    }
  }

  /// `self` has waited as long as it may: ends the group, naming the ranks that fell behind where they are of this process.
  [[noreturn]] void late(member& self) {
    group_calls::verdict const found = calls_.late(index_of(self));
    if (!abort(found.reason)) {
      throw stopped("waiting", self.rank, abort_reason());
    }
    throw timeout_error(found.missing, found.reason);
  }

  /// After an abort: gives collectives that run a second to end, so that the caller's memory is left alone.
  template <class Point>
  static void let_end(Point const& point) noexcept {
    try {
      auto const deadline = deadline_after(1);
      for (patience between; !point.done() && std::chrono::steady_clock::now() < deadline;) {
        between.pause();
      }
    } catch (error const&) {  // the caller has one already
    }
  }

  // ---- ending ----

  /// Aborts the communicator of `m`, unless its rank is using it: it will do so itself. A communicator of somebody else's is
  /// left to its owner.
  void give_up(member& m) noexcept {
    std::unique_lock const lock(m.mutex, std::try_to_lock);
    if (!lock.owns_lock() || m.depth != 0 || m.handle == nullptr) {
      return;
    }
    ncclComm_t const handle = std::exchange(m.handle, nullptr);
    if (m.owned) {
      in_background([handle, device = m.device] {
        static_cast<void>(cudaSetDevice(number(device)));
        static_cast<void>(ncclCommAbort(handle));
      });
    }
  }

  [[nodiscard]] static bool to_be_closed(member const& m) noexcept { return m.handle != nullptr && m.owned; }

  /// No rank of this process uses its communicator any more. Aborts those that can't be finalised in time.
  void close() noexcept {
    bool healthy = !aborted();
    auto const each = [&](auto const& end) {
      for (member& m : members_) {
        if (to_be_closed(m)) {
          static_cast<void>(cudaSetDevice(number(m.device)));
          end(m);
        }
      }
    };
    each([&](member& m) { healthy = healthy && accepted(ncclCommFinalize(m.handle)); });
    auto const deadline = deadline_after(calls_.timeout_seconds());
    each([&](member& m) {
      ncclResult_t state = ncclInProgress;
      for (patience between; healthy && state == ncclInProgress; between.pause()) {
        healthy = ncclCommGetAsyncError(m.handle, &state) == ncclSuccess && accepted(state) &&
                  std::chrono::steady_clock::now() < deadline;
      }
    });
    each([&](member& m) {
      ncclComm_t const handle = std::exchange(m.handle, nullptr);
      static_cast<void>(healthy ? ncclCommDestroy(handle) : ncclCommAbort(handle));
    });
  }

  template <class Work>
  void in_background(Work work) noexcept {
    ++background_;
    auto const run = [self = shared_from_this(), work] {
      work();
      --self->background_;
    };
    try {
      std::thread{run}.detach();
    } catch (...) {  // no more threads: here, then
      run();
    }
  }

  void wait_for_background(double most_seconds) const noexcept {
    auto const deadline = deadline_after(most_seconds);
    while (background_ != 0 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::microseconds{100});
    }
  }

  std::vector<member> members_;
  std::atomic<int> background_{0};
  std::atomic<std::size_t> present_;
  group_calls calls_;
};

}  // namespace lockstep::comm_detail
