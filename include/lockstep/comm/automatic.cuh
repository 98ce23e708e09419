// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/backend/cuda.cuh>
#include <lockstep/comm/direct.cuh>
#include <lockstep/comm/nccl.cuh>
#include <lockstep/concepts.hpp>
#include <lockstep/core/element_type.hpp>
#include <lockstep/core/error.hpp>

#include <atomic>
#include <concepts>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace lockstep {

/// One rank's end of a group of GPUs of one process: `direct` where its checked start passes for every pair, `nccl` otherwise,
/// which is said once on standard error. All ranks of a group have the same. What each call does, promises and throws is what
/// that communicator's does.
class automatic_communicator {
  // A test and a call that the compiler sees through, in place of a table of functions.
  template <class F>
  decltype(auto) with(F const& f) {
    auto* const direct = std::get_if<direct_communicator>(&chosen_);
    return direct != nullptr ? f(*direct) : f(*std::get_if<nccl_communicator>(&chosen_));
  }
  template <class F>
  decltype(auto) with(F const& f) const {
    auto const* const direct = std::get_if<direct_communicator>(&chosen_);
    return direct != nullptr ? f(*direct) : f(*std::get_if<nccl_communicator>(&chosen_));
  }

 public:
  using stream_ref = cuda::stream_ref;

  /// One communicator a rank: rank r drives devices[r]. Throws what nccl_communicator::create throws, and out_of_memory.
  [[nodiscard]] static std::vector<automatic_communicator> create(std::span<device_id const> devices,
                                                                  cuda::options const& options) {
    if (devices.size() <= direct_communicator::most_ranks) {
      try {
        return wrapped(direct_communicator::create(devices, options));
      } catch (direct_unavailable const& e) {
        static std::atomic<bool> said{false};
        if (!said.exchange(true)) {
          std::fprintf(stderr, "lockstep: %s; NCCL is taken instead\n", e.what());
        }
      }
    }
    return wrapped(nccl_communicator::create(devices, options));
  }

  /// Whether it is a direct_communicator.
  [[nodiscard]] bool is_direct() const noexcept { return std::holds_alternative<direct_communicator>(chosen_); }

  [[nodiscard]] rank_id rank() const noexcept {
    return with([](auto const& one) { return one.rank(); });
  }
  [[nodiscard]] int size() const noexcept {
    return with([](auto const& one) { return one.size(); });
  }
  [[nodiscard]] std::uint64_t bytes_moved() const noexcept {
    return with([](auto const& one) { return one.bytes_moved(); });
  }
  /// Device memory that the group takes for this rank, in bytes, as far as it is this library's.
  [[nodiscard]] std::uint64_t inbox_bytes() const noexcept {
    auto const* const direct = std::get_if<direct_communicator>(&chosen_);
    return direct != nullptr ? direct->inbox_bytes() : 0;
  }

  void all_reduce(typed_span data, reduction how, stream_ref stream) {
    with([&](auto& one) { one.all_reduce(data, how, stream); });
  }
  void reduce(typed_span data, reduction how, rank_id root, stream_ref stream) {
    with([&](auto& one) { one.reduce(data, how, root, stream); });
  }
  void broadcast(typed_span data, rank_id root, stream_ref stream) {
    with([&](auto& one) { one.broadcast(data, root, stream); });
  }
  void reduce_scatter(typed_span data, reduction how, stream_ref stream) {
    with([&](auto& one) { one.reduce_scatter(data, how, stream); });
  }
  void all_gather(typed_span data, stream_ref stream) {
    with([&](auto& one) { one.all_gather(data, stream); });
  }
  /// Runs `work()`, whose collectives NCCL fuses.
  template <std::invocable Work>
  void together(Work&& work) {
    if (auto* const nccl = std::get_if<nccl_communicator>(&chosen_); nccl != nullptr) {
      nccl->together(work);
    } else {
      work();
    }
  }
  void replay() {
    with([](auto& one) { one.replay(); });
  }
  template <class Point>
  requires requires(Point const& point) {
    { point.done() } -> std::convertible_to<bool>;
  }
  void wait(Point const& point) {
    with([&](auto& one) { one.wait(point); });
  }
  void abort(std::string reason) noexcept {
    with([&](auto& one) { one.abort(std::move(reason)); });
  }
  [[nodiscard]] bool aborted() const noexcept {
    return with([](auto const& one) { return one.aborted(); });
  }
  [[nodiscard]] std::string abort_reason() const {
    return with([](auto const& one) { return one.abort_reason(); });
  }

 private:
  using either = std::variant<direct_communicator, nccl_communicator>;

  explicit automatic_communicator(either chosen) noexcept : chosen_(std::move(chosen)) {}

  template <class Communicator>
  static std::vector<automatic_communicator> wrapped(std::vector<Communicator> ranks) {
    std::vector<automatic_communicator> all;
    all.reserve(ranks.size());
    for (Communicator& one : ranks) {
      all.push_back(automatic_communicator{either{std::move(one)}});
    }
    return all;
  }

  either chosen_;
};

template <>
struct communicator_for<automatic, cuda> {
  using type = automatic_communicator;
  [[nodiscard]] static std::vector<type> create(std::span<device_id const> devices, cuda::options const& options) {
    return type::create(devices, options);
  }
};

}  // namespace lockstep
