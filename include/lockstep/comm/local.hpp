// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/comm/detail/request.hpp>
#include <lockstep/concepts.hpp>
#include <lockstep/core/element_type.hpp>
#include <lockstep/core/error.hpp>

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

/// The transport of exactly one rank: nothing travels.
struct local {};

/// The communicator of a group of one. Collectives check their arguments and return: the data is its own result. They throw
/// usage_error for a root other than 0 or elements without memory, aborted_error after `abort`.
/// Thread safety: `abort`, `aborted` and `abort_reason` may run beside every call.
template <class Backend>
class local_communicator {
 public:
  using stream_ref = typename Backend::stream_ref;

  local_communicator() : abort_(std::make_shared<abort_state>()) {}

  /// Throws usage_error unless there is exactly one device.
  [[nodiscard]] static std::vector<local_communicator> create(std::span<device_id const> devices,
                                                              typename Backend::options const&) {
    if (devices.size() != 1) {
      refuse(std::string("the local transport serves exactly one device, not ") + std::to_string(devices.size()));
    }
    return std::vector<local_communicator>(1);
  }

  [[nodiscard]] rank_id rank() const noexcept { return rank_id{0}; }
  [[nodiscard]] int size() const noexcept { return 1; }
  [[nodiscard]] std::uint64_t bytes_moved() const noexcept { return 0; }

  void all_reduce(typed_span data, reduction how, stream_ref) {
    run({.which = comm_detail::collective::all_reduce, .data = data, .how = how});
  }
  void reduce(typed_span data, reduction how, rank_id root, stream_ref) {
    run({.which = comm_detail::collective::reduce, .data = data, .how = how, .root = root});
  }
  void broadcast(typed_span data, rank_id root, stream_ref) {
    run({.which = comm_detail::collective::broadcast, .data = data, .root = root});
  }
  void reduce_scatter(typed_span data, reduction how, stream_ref) {
    run({.which = comm_detail::collective::reduce_scatter, .data = data, .how = how});
  }
  void all_gather(typed_span data, stream_ref) { run({.which = comm_detail::collective::all_gather, .data = data}); }
  /// Blocks until a stream or event is done: there is no other rank to give up on.
  template <class Point>
  void wait(Point const& point) const {
    point.synchronize();
  }

  /// Every later collective throws aborted_error with the reason. The first reason stays.
  void abort(std::string reason) noexcept {
    std::scoped_lock const lock(abort_->mutex);
    if (!abort_->aborted) {
      abort_->reason = std::move(reason);
      abort_->aborted = true;
    }
  }
  [[nodiscard]] bool aborted() const noexcept {
    std::scoped_lock const lock(abort_->mutex);
    return abort_->aborted;
  }
  /// Empty until aborted.
  [[nodiscard]] std::string abort_reason() const {
    std::scoped_lock const lock(abort_->mutex);
    return abort_->reason;
  }

 private:
  struct abort_state {
    std::mutex mutex;
    bool aborted = false;
    std::string reason;
  };

  void run(comm_detail::request const& wanted) const {
    comm_detail::check(wanted, 1);
    std::scoped_lock const lock(abort_->mutex);
    if (abort_->aborted) {
      throw comm_detail::stopped(wanted, rank_id{0}, abort_->reason);
    }
  }

  std::shared_ptr<abort_state> abort_;
};

template <class Backend>
struct communicator_for<local, Backend> {
  using type = local_communicator<Backend>;
  [[nodiscard]] static std::vector<type> create(std::span<device_id const> devices, typename Backend::options const& options) {
    return type::create(devices, options);
  }
};

}  // namespace lockstep
