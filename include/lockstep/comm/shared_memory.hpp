// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/backend/host.hpp>
#include <lockstep/comm/detail/request.hpp>
#include <lockstep/comm/detail/shared_memory_group.hpp>
#include <lockstep/concepts.hpp>
#include <lockstep/core/element_type.hpp>
#include <lockstep/core/error.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

/// The transport of ranks that are threads of one process and read and write each other's memory.
struct shared_memory {};

/// One rank's end of a group of threads.
///
/// Every collective is collective: each rank calls the same ones, with the same count, type, reduction and root, in the same
/// order, on memory of its own. It is checked in the calling thread, then enqueued: on `stream`, or run at once in the calling
/// thread, which blocks until all ranks arrived and all are done. The memory must stay until then. A rank's collectives run one
/// at a time: enqueue them on one stream, or order its streams by events.
///
/// Each rank combines one part of the elements over all ranks, in the order of the ranks, so results have the same bits on
/// every rank and in every run. 16-bit floating types are added in f32 and rounded once; integers wrap around; `min` and `max`
/// of a NaN with anything are NaN.
///
/// Throws, in the calling thread: usage_error for a root outside the group or elements without memory, aborted_error after an
/// abort. Throws, from the stream: usage_error on every rank when the ranks' calls differ, naming two ranks and both calls;
/// timeout_error when a rank does not arrive in host::options::timeout_seconds, naming it; aborted_error on the other ranks.
/// Each of them aborts the group. A collective succeeds on every rank or on none.
///
/// Thread safety: `abort`, `aborted`, `abort_reason` and `bytes_moved` may run beside every call.
class shared_memory_communicator {
 public:
  using stream_ref = host::stream_ref;

  /// One communicator a rank: rank r drives devices[r]. Throws usage_error for no devices, or a timeout that is not above 0.
  [[nodiscard]] static std::vector<shared_memory_communicator> create(std::span<device_id const> devices,
                                                                      host::options const& options) {
    auto const group = std::make_shared<comm_detail::shared_memory_group>(devices, options.timeout_seconds);
    std::vector<shared_memory_communicator> ranks;
    ranks.reserve(devices.size());
    for (int rank = 0; rank < group->size(); ++rank) {
      ranks.push_back(shared_memory_communicator{group, rank_id{rank}});
    }
    return ranks;
  }

  shared_memory_communicator(shared_memory_communicator&&) noexcept = default;
  shared_memory_communicator& operator=(shared_memory_communicator&&) noexcept = default;

  [[nodiscard]] rank_id rank() const noexcept { return rank_; }
  /// 0 when moved from.
  [[nodiscard]] int size() const noexcept { return group_ != nullptr ? group_->size() : 0; }
  /// Bytes of other ranks' memory that this rank read or wrote so far.
  [[nodiscard]] std::uint64_t bytes_moved() const noexcept { return group_->bytes_moved(rank_); }

  /// Combines the elements of all ranks; every rank gets the result. Moves 2 * bytes * (N - 1) / N a rank.
  void all_reduce(typed_span data, reduction how, stream_ref stream) {
    enqueue({.which = comm_detail::collective::all_reduce, .data = data, .how = how}, stream);
  }
  /// The same, but `root` alone gets the result: the memory of the others is unchanged.
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

  /// Blocks until a stream or event is done. Collectives there end in time by themselves.
  template <class Point>
  void wait(Point const& point) const {
    point.synchronize();
  }

  /// Ends the group: ranks that wait in a collective, and all that call one later, get an aborted_error with the reason. A
  /// collective in which all ranks arrived already completes. The first reason stays. Does nothing on a
  /// communicator that was moved from.
  void abort(std::string reason) noexcept {
    if (group_ != nullptr) {
      group_->abort(std::move(reason));
    }
  }
  [[nodiscard]] bool aborted() const noexcept { return group_->aborted(); }
  /// Empty until aborted.
  [[nodiscard]] std::string abort_reason() const { return group_->abort_reason(); }

 private:
  shared_memory_communicator(std::shared_ptr<comm_detail::shared_memory_group> group, rank_id rank) noexcept
      : group_(std::move(group)), rank_(rank) {}

  void enqueue(comm_detail::request const& wanted, stream_ref stream) const {
    expects(group_ != nullptr, "a communicator was used after it was moved from");
    comm_detail::check(wanted, size());
    group_->check_alive(rank_, wanted);
    if (size() > 1) {
      stream.enqueue([group = group_, rank = rank_, wanted] { group->run(rank, wanted); });
    }
  }

  std::shared_ptr<comm_detail::shared_memory_group> group_;  // enqueued collectives share it too
  rank_id rank_;
};

template <>
struct communicator_for<shared_memory, host> {
  using type = shared_memory_communicator;
  [[nodiscard]] static std::vector<type> create(std::span<device_id const> devices, host::options const& options) {
    return type::create(devices, options);
  }
};

template <>
struct communicator_for<automatic, host> : communicator_for<shared_memory, host> {};

}  // namespace lockstep
