// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/backend/cuda.cuh>
#include <lockstep/comm/detail/direct_group.cuh>
#include <lockstep/comm/detail/request.hpp>
#include <lockstep/comm/direct_tuning.hpp>
#include <lockstep/concepts.hpp>
#include <lockstep/core/element_type.hpp>
#include <lockstep/core/error.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

/// The transport of kernels that write to the memory of other GPUs, in one process.
struct direct {};

/// One rank's end of a group of GPUs that reach each other's memory.
///
/// Every collective is collective: each rank calls the same ones, with the same count, type, reduction and root, in the same
/// order, on memory of its own device. It is checked, then enqueued on `stream`, which must be of that device, as one kernel;
/// the host goes on. The memory must stay until it is done; from some MiB up it must be plain device memory (cudaMalloc), for
/// peers write to it. A rank's collectives run one at a time: enqueue them on one stream, or order its streams by events; those
/// of two groups on the same devices too, in the same order on every rank. In a group of one nothing travels, and nothing is
/// enqueued.
///
/// Results have the same bits on every rank and in every run: elements are combined in the order of the ranks. 16-bit floating
/// types are added in f32 and rounded once; integers wrap around; `min` and `max` of a NaN with anything are NaN.
///
/// Capture: collectives may be captured in a CUDA graph, in thread-local or relaxed mode, and replayed, by all ranks or none. A
/// captured collective counts in `bytes_moved` once, when it is captured.
///
/// Waiting: a kernel waits for its peers, but no longer than cuda::options::timeout_seconds. Then it ends, and so do all that
/// the rank enqueued behind it; `wait` throws. What else a GPU has to do for a rank to arrive must be able to run beside it:
/// see direct_tuning for the blocks that it takes.
///
/// Throws, in the calling thread: usage_error for a root outside the group, elements without memory, or a call that differs
/// from another rank's, which is named; aborted_error after an abort; cuda_error. A call that differs ends the group. Failures
/// on the device come out of `wait`.
///
/// Thread safety: `abort`, `aborted`, `abort_reason` and `bytes_moved` may run beside every call.
template <class Backend>
class basic_direct_communicator {
 public:
  using stream_ref = typename Backend::stream_ref;

  /// One communicator a rank: rank r drives devices[r]. Allocates the inboxes, loads every kernel, and lets every pair of GPUs
  /// write to each other. Blocks until that is done; nothing else may run on the devices that waits for this process's host.
  /// Throws usage_error for no devices, one that is not there or is listed twice, more than 16, a timeout that is not above 0,
  /// or a tuning out of range; direct_unavailable, naming the pair, where GPUs don't reach each other; out_of_memory.
  [[nodiscard]] static std::vector<basic_direct_communicator> create(std::span<device_id const> devices,
                                                                     typename Backend::options const& options,
                                                                     direct_tuning const& tuning = {}) {
    expects(!devices.empty(), "a communicator needs at least one device");
    expects(devices.size() <= comm_detail::most_peers, "a direct communicator has at most 16 ranks");
    expects(in_range(tuning), "direct_tuning: a value is out of its range");
    for (std::size_t rank = 0; rank < devices.size(); ++rank) {
      for (std::size_t before = 0; before < rank; ++before) {
        if (devices[before] == devices[rank]) {
          refuse(std::string("ranks ") + std::to_string(before) + " and " + std::to_string(rank) + " are both on device " +
                 std::to_string(number(devices[rank])) + ": list each device once");
        }
      }
    }
    auto const group = std::make_shared<comm_detail::direct_group<Backend>>(devices, options, tuning);
    std::vector<basic_direct_communicator> ranks;
    ranks.reserve(devices.size());
    for (std::size_t rank = 0; rank < devices.size(); ++rank) {
      ranks.push_back(basic_direct_communicator{group, rank});
    }
    return ranks;
  }

  basic_direct_communicator(basic_direct_communicator&&) noexcept = default;
  basic_direct_communicator& operator=(basic_direct_communicator&&) noexcept = default;

  [[nodiscard]] rank_id rank() const noexcept { return rank_id{static_cast<int>(rank_)}; }
  /// 0 when moved from.
  [[nodiscard]] int size() const noexcept { return group_ != nullptr ? group_->size() : 0; }
  /// Bytes that this rank sent or received so far, by the formulas at direct_tuning.
  [[nodiscard]] std::uint64_t bytes_moved() const noexcept { return group_->members()[rank_].bytes_moved; }
  /// Device memory that the group takes for this rank, in bytes.
  [[nodiscard]] std::uint64_t inbox_bytes() const noexcept { return group_->window_bytes(); }

  /// Combines the elements of all ranks; every rank gets the result.
  void all_reduce(typed_span data, reduction how, stream_ref stream) {
    enqueue({.which = comm_detail::collective::all_reduce, .data = data, .how = how}, stream);
  }
  /// The same, but `root` alone gets the result: the memory of the others is unchanged.
  void reduce(typed_span data, reduction how, rank_id root, stream_ref stream) {
    enqueue({.which = comm_detail::collective::reduce, .data = data, .how = how, .root = root}, stream);
  }
  /// Copies the elements of `root` to every rank.
  void broadcast(typed_span data, rank_id root, stream_ref stream) {
    enqueue({.which = comm_detail::collective::broadcast, .data = data, .root = root}, stream);
  }
  /// Combines like all_reduce; each rank gets its part of the result, plan::part(count, rank, size), in place. The rest of its
  /// memory is unspecified afterwards.
  void reduce_scatter(typed_span data, reduction how, stream_ref stream) {
    enqueue({.which = comm_detail::collective::reduce_scatter, .data = data, .how = how}, stream);
  }
  /// Copies each rank's part, plan::part(count, rank, size), to the same place on every rank.
  void all_gather(typed_span data, stream_ref stream) {
    enqueue({.which = comm_detail::collective::all_gather, .data = data}, stream);
  }

  /// Collective: what every rank enqueued on its stream before is done, and seen by what any enqueues on its own behind.
  /// Enqueues one kernel of one block.
  void meet(stream_ref stream) { group().meet(rank_, stream.get()); }
  /// In device memory of this rank: not 0 once one of its kernels has given up waiting.
  [[nodiscard]] std::uint32_t const* stopped() const { return group().stopped(rank_); }

  /// Call before the launch of a graph that holds collectives of this communicator: then a rank that does not launch it in time
  /// is named by its calls. Nothing else depends on it. Throws like a collective.
  void replay() { group().replay(rank_); }

  /// Blocks the host until `point` (a stream or an event) is complete. Throws timeout_error when that takes longer than
  /// cuda::options::timeout_seconds, or a kernel has waited that long for a peer, naming the rank that did not arrive;
  /// aborted_error when the group was aborted before; cuda_error when something on the device failed. The first ends the group.
  template <class Point>
  requires requires(Point const& point) {
    { point.done() } -> std::convertible_to<bool>;
  }
  void wait(Point const& point) { group().wait(rank_, point); }

  /// Ends the group: ranks that wait, and all that call something later, get an aborted_error with the reason, and kernels that
  /// wait for a peer end within milliseconds. The first reason stays. Does nothing on a communicator that was moved from.
  void abort(std::string reason) noexcept {
    if (group_ != nullptr) {
      group_->abort(std::move(reason));
    }
  }
  [[nodiscard]] bool aborted() const noexcept { return group_->aborted(); }
  /// Empty until aborted.
  [[nodiscard]] std::string abort_reason() const { return group_->abort_reason(); }

 private:
  using group_type = comm_detail::direct_group<Backend>;

  basic_direct_communicator(std::shared_ptr<group_type> group, std::size_t rank) noexcept
      : group_(std::move(group)), rank_(rank) {}

  [[nodiscard]] group_type& group() const {
    expects(group_ != nullptr, "a communicator was used after it was moved from");
    return *group_;
  }
  void enqueue(comm_detail::request const& wanted, stream_ref stream) const {
    group_type& all = group();
    comm_detail::check(wanted, all.size());
    all.run(rank_, wanted, stream.get());
  }

  std::shared_ptr<group_type> group_;
  std::size_t rank_;
};

using direct_communicator = basic_direct_communicator<cuda>;

template <>
struct communicator_for<direct, cuda> {
  using type = direct_communicator;
  [[nodiscard]] static std::vector<type> create(std::span<device_id const> devices, cuda::options const& options) {
    return type::create(devices, options);
  }
};

}  // namespace lockstep
