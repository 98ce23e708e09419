// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/backend/cuda.cuh>
#include <lockstep/comm/detail/nccl_group.cuh>
#include <lockstep/comm/detail/request.hpp>
#include <lockstep/comm/nccl_error.cuh>
#include <lockstep/concepts.hpp>
#include <lockstep/core/element_type.hpp>
#include <lockstep/core/error.hpp>

#include <nccl.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

/// The transport of NCCL, between GPUs of one process or of several.
struct nccl {};

/// One rank's end of an NCCL communicator. One thread a rank; the ranks of a process are made together by `create`, those of
/// several processes by `join`, and somebody else's communicator is used through `adopt`.
///
/// Every collective is collective: each rank calls the same ones, with the same count, type, reduction and root, in the same
/// order, on memory of its own device. It is checked, then enqueued on `stream`, which must be of that device; the host goes
/// on, but for the first collectives of their kind, in which ranks connect and so wait for each other. The memory must stay
/// until they are done, and nothing else may be allocated, freed or synchronised on the device by a rank that others wait for.
/// A rank's collectives run one at a time: enqueue them on one stream, or order its streams by events. In a group of one
/// nothing travels, nothing is enqueued, and NCCL is not even started.
///
/// Communicators are non-blocking, so that no call outlasts the deadline. NCCL then enqueues in a thread that it starts for
/// each call, or for all calls that are made `together`; the replay of a graph has none of that.
///
/// Results have the same bits on every rank. Sums are NCCL's: in the elements' own type, rounded at each addition, in an order
/// that depends on count and topology; with two ranks there is one addition. Integers wrap around. What `min` and `max` make of
/// a NaN is NCCL's.
///
/// Capture: collectives may be captured in a CUDA graph, in thread-local or relaxed mode, by all ranks or none. Call each kind
/// once before, so that ranks are connected. A graph that holds collectives must be destroyed before the communicator: until
/// then NCCL can neither finalise nor abort it. A captured collective counts in `bytes_moved` once, when it is captured.
///
/// Throws, in the calling thread: usage_error for a root outside the group, elements without memory, or a call that differs
/// from another rank's of this process, which is named; aborted_error after an abort; timeout_error when ranks don't connect in
/// cuda::options::timeout_seconds, naming those of this process that did not arrive; nccl_error. All but the first two kinds of
/// usage_error end the group. Failures on the device come out of `wait`.
///
/// The end: the last communicator of this process closes all of them, in at most the timeout and some seconds more. What can't
/// be closed by then, because a graph is left or another process does not follow, is left to a thread of its own.
///
/// Nothing is set in the environment. Whether NCCL uses the multicast of NVLink is its own choice, or the user's
/// (NCCL_NVLS_ENABLE), as are all its other settings.
///
/// Thread safety: `abort`, `aborted`, `abort_reason` and `bytes_moved` may run beside every call.
class nccl_communicator {
 public:
  using stream_ref = cuda::stream_ref;

  /// One communicator a rank: rank r drives devices[r]. Throws usage_error for no devices, one that is not there or is listed
  /// twice, or a timeout that is not above 0; nccl_error or timeout_error, naming rank and device, when NCCL does not start.
  [[nodiscard]] static std::vector<nccl_communicator> create(std::span<device_id const> devices, cuda::options const& options) {
    expects(!devices.empty(), "a communicator needs at least one device");
    for (std::size_t rank = 0; rank < devices.size(); ++rank) {
      expect_device(devices[rank], options);
      for (std::size_t before = 0; before < rank; ++before) {
        if (devices[before] == devices[rank]) {
          refuse(std::string("ranks ") + std::to_string(before) + " and " + std::to_string(rank) + " are both on device " +
                 std::to_string(number(devices[rank])) + ": list each device once");
        }
      }
    }
    auto const group = std::make_shared<comm_detail::nccl_group>(static_cast<int>(devices.size()), devices.size(),
                                                                 static_cast<double>(options.timeout_seconds));
    std::vector<nccl_communicator> ranks;
    ranks.reserve(devices.size());
    for (std::size_t rank = 0; rank < devices.size(); ++rank) {
      group->introduce(rank, rank_id{static_cast<int>(rank)}, devices[rank]);
    }
    if (devices.size() > 1) {
      cuda::device_guard const current{devices.front()};
      ncclUniqueId id;
      check(ncclGetUniqueId(&id));
      group->start(id);
    }
    for (std::size_t rank = 0; rank < devices.size(); ++rank) {
      ranks.push_back(nccl_communicator{group, rank});
    }
    return ranks;
  }

  /// One rank of a group over processes. Rank 0's ncclGetUniqueId makes the `id`, which the program brings to the others.
  /// Collective: returns when all `size` ranks called it. Throws usage_error for a rank outside the group, a device that is not
  /// there, or a timeout that is not above 0; nccl_error; timeout_error when not all ranks came in time.
  /// An abort ends the rank's own communicator; other processes notice by errors of NCCL's, or at their own deadline.
  [[nodiscard]] static nccl_communicator join(ncclUniqueId const& id, rank_id rank, int size, device_id device,
                                              cuda::options const& options = {}) {
    if (number(rank) < 0 || number(rank) >= size) {
      refuse(std::string("nccl_communicator::join: rank ") + std::to_string(number(rank)) + " is none of " +
             std::to_string(size) + " ranks");
    }
    expect_device(device, options);
    auto const group = std::make_shared<comm_detail::nccl_group>(size, 1, static_cast<double>(options.timeout_seconds));
    group->introduce(0, rank, device);
    if (size > 1) {
      group->start(id);
    }
    return nccl_communicator{group, 0};
  }

  /// A rank of somebody else's communicator, which must outlive this one. Rank and size are asked of NCCL, which must say that
  /// it is on `device`. It is never finalised, destroyed or aborted here: after an abort it is not used any more, and
  /// collectives that run on it end when its owner calls ncclCommAbort. On a blocking one, ranks that connect wait for each
  /// other without a deadline. Adopted communicators of one process don't know each other: an abort reaches only the one on
  /// which it is called, and who is missing can't be told.
  [[nodiscard]] static nccl_communicator adopt(ncclComm_t communicator, device_id device, cuda::options const& options = {}) {
    expects(communicator != nullptr, "nccl_communicator::adopt: there is no communicator");
    expect_device(device, options);
    int rank = 0;
    int size = 0;
    int actual = 0;
    check(ncclCommUserRank(communicator, &rank));
    check(ncclCommCount(communicator, &size));
    check(ncclCommCuDevice(communicator, &actual));
    if (actual != number(device)) {
      refuse(std::string("nccl_communicator::adopt: the communicator is on device ") + std::to_string(actual) + ", not " +
             std::to_string(number(device)));
    }
    auto const group = std::make_shared<comm_detail::nccl_group>(size, 1, static_cast<double>(options.timeout_seconds));
    group->introduce(0, rank_id{rank}, device);
    comm_detail::nccl_group::member& self = group->members().front();
    self.owned = false;
    self.handle = communicator;
    return nccl_communicator{group, 0};
  }

  nccl_communicator(nccl_communicator&&) noexcept = default;
  nccl_communicator& operator=(nccl_communicator&& other) noexcept {
    if (this != &other) {
      leave();
      group_ = std::move(other.group_);
      self_ = other.self_;
      rank_ = other.rank_;
    }
    return *this;
  }
  /// Requires: no collective of this rank is under way, and no graph holds one.
  ~nccl_communicator() { leave(); }

  [[nodiscard]] rank_id rank() const noexcept { return rank_; }
  /// 0 when moved from.
  [[nodiscard]] int size() const noexcept { return group_ != nullptr ? group_->size() : 0; }
  /// Bytes that this rank sent or received so far, the larger of the two, by the formulas below.
  [[nodiscard]] std::uint64_t bytes_moved() const noexcept { return self_->bytes_moved; }

  /// Combines the elements of all ranks; every rank gets the result. Moves 2 * bytes * (N - 1) / N a rank.
  void all_reduce(typed_span data, reduction how, stream_ref stream) {
    enqueue({.which = comm_detail::collective::all_reduce, .data = data, .how = how}, stream);
  }
  /// The same, but `root` alone gets the result: the memory of the others is unchanged. Moves `bytes` a rank.
  void reduce(typed_span data, reduction how, rank_id root, stream_ref stream) {
    enqueue({.which = comm_detail::collective::reduce, .data = data, .how = how, .root = root}, stream);
  }
  /// Copies the elements of `root` to every rank. Moves `bytes` a rank.
  void broadcast(typed_span data, rank_id root, stream_ref stream) {
    enqueue({.which = comm_detail::collective::broadcast, .data = data, .root = root}, stream);
  }
  /// Combines like all_reduce; each rank gets its part of the result, plan::part(count, rank, size), in place. The rest of its
  /// memory is unspecified afterwards. Moves bytes * (N - 1) / N a rank.
  void reduce_scatter(typed_span data, reduction how, stream_ref stream) {
    enqueue({.which = comm_detail::collective::reduce_scatter, .data = data, .how = how}, stream);
  }
  /// Copies each rank's part, plan::part(count, rank, size), to the same place on every rank. Moves bytes * (N - 1) / N a rank.
  void all_gather(typed_span data, stream_ref stream) {
    enqueue({.which = comm_detail::collective::all_gather, .data = data}, stream);
  }

  /// Runs `work()`, whose collectives of this communicator are enqueued at its end, fused into as few launches as NCCL can make
  /// of them. They may be on several streams: then all of them wait for all of these, and go on together. When `work` throws,
  /// what it called before is enqueued nonetheless.
  template <std::invocable Work>
  void together(Work&& work) {
    group().together(*self_, work);
  }

  /// Call before the launch of a graph that holds collectives of this communicator: then a rank that does not launch it in time
  /// is named. Nothing else depends on it. Throws like a collective.
  void replay() { group().replay(*self_); }

  /// Blocks the host until `point` (a stream or an event) is complete. Throws timeout_error when that takes longer than
  /// cuda::options::timeout_seconds, naming the ranks of this process that did not arrive at a collective; aborted_error when
  /// the group was aborted before it was complete; nccl_error when NCCL fails; cuda_error when something on the device did. The
  /// first and third end the group.
  template <class Point>
  requires requires(Point const& point) {
    { point.done() } -> std::convertible_to<bool>;
  }
  void wait(Point const& point) { group().wait(*self_, point); }

  /// Ends the group: ranks that wait, and all that call something later, get an aborted_error with the reason. The first reason
  /// stays. Ends the communicators of this process's ranks with ncclCommAbort, in the background, so that what runs on the
  /// devices ends too; a rank that is in a call does that when it leaves the call. Does nothing on a communicator that was
  /// moved from.
  void abort(std::string reason) noexcept {
    if (group_ != nullptr) {
      group_->abort(std::move(reason));
    }
  }
  [[nodiscard]] bool aborted() const noexcept { return group_->aborted(); }
  /// Empty until aborted.
  [[nodiscard]] std::string abort_reason() const { return group_->abort_reason(); }

 private:
  nccl_communicator(std::shared_ptr<comm_detail::nccl_group> group, std::size_t index) noexcept
      : group_(std::move(group)), self_(&group_->members()[index]), rank_(self_->rank) {}

  /// Throws usage_error for a device that is not there, or a timeout that is not above 0.
  static void expect_device(device_id device, cuda::options const& options) {
    static_cast<void>(cuda::device{device, cuda::stream_ref{}, options});
  }

  [[nodiscard]] comm_detail::nccl_group& group() const {
    expects(group_ != nullptr, "a communicator was used after it was moved from");
    return *group_;
  }
  void enqueue(comm_detail::request const& wanted, stream_ref stream) const {
    comm_detail::nccl_group& all = group();
    comm_detail::check(wanted, all.size());
    all.run(*self_, wanted, stream.get());
  }
  void leave() noexcept {
    if (group_ != nullptr) {
      std::exchange(group_, nullptr)->leave(*self_);
    }
  }

  std::shared_ptr<comm_detail::nccl_group> group_;
  comm_detail::nccl_group::member* self_;  // one of the group's
  rank_id rank_;
};

template <>
struct communicator_for<nccl, cuda> {
  using type = nccl_communicator;
  [[nodiscard]] static std::vector<type> create(std::span<device_id const> devices, cuda::options const& options) {
    return type::create(devices, options);
  }
};

template <>
struct communicator_for<automatic, cuda> : communicator_for<nccl, cuda> {};

}  // namespace lockstep
