// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/backend/cuda.cuh>
#include <lockstep/comm/detail/direct_device.cuh>
#include <lockstep/comm/detail/direct_kernels.cuh>
#include <lockstep/comm/detail/direct_meeting.cuh>
#include <lockstep/comm/detail/direct_memory.cuh>
#include <lockstep/comm/detail/direct_plan.hpp>
#include <lockstep/comm/detail/direct_probe.cuh>
#include <lockstep/comm/detail/group_calls.hpp>
#include <lockstep/comm/detail/request.hpp>
#include <lockstep/comm/direct_tuning.hpp>
#include <lockstep/concepts.hpp>
#include <lockstep/core/deadline.hpp>
#include <lockstep/core/error.hpp>
#include <lockstep/core/memory.hpp>

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

/// GPUs can't reach each other's memory, or not well enough.
class direct_unavailable : public error {
 public:
  direct_unavailable(rank_id first, rank_id second, std::string const& message)
      : error(message), first_(first), second_(second) {}

  /// The pair of ranks that can't: the first one the second one's memory.
  [[nodiscard]] rank_id first() const noexcept { return first_; }
  [[nodiscard]] rank_id second() const noexcept { return second_; }

 private:
  rank_id first_;
  rank_id second_;
};

}  // namespace lockstep

namespace lockstep::comm_detail {

/// The ranks of a direct_communicator, one a device of `Backend`; several devices may be one GPU.
template <class Backend>
class direct_group {
 public:
  struct alignas(64) member {
    device_id device{0};
    device_id gpu{0};  // as CUDA counts them
    typename Backend::buffer window;
    direct_world world;
    std::atomic<std::uint64_t> bytes_moved{0};
  };

  direct_group(std::span<device_id const> devices, typename Backend::options const& options, direct_tuning const& tuning)
      : tuning_(tuning),
        members_(devices.size()),
        calls_(static_cast<int>(devices.size()), devices.size(), static_cast<double>(options.timeout_seconds)) {
    typename Backend::options plain = options;
    plain.allocator = nullptr;  // peers must reach the windows, whatever the program's allocator makes
    std::vector<std::unique_ptr<typename Backend::device>> opened;
    for (std::size_t rank = 0; rank < members_.size(); ++rank) {
      members_[rank].device = devices[rank];
      calls_.introduce(rank, {rank_id{static_cast<int>(rank)}, devices[rank]});
      opened.push_back(std::make_unique<typename Backend::device>(devices[rank], plain));
      auto const current = opened[rank]->activate();
      int gpu = 0;
      lockstep::check(cudaGetDevice(&gpu));
      members_[rank].gpu = device_id{gpu};
    }
    if (size() > 1) {
      connect();
      allocate(opened);
      load(opened);
      probe(opened);
    }
  }
  direct_group(direct_group const&) = delete;
  direct_group& operator=(direct_group const&) = delete;
  /// Requires: nothing of the group is enqueued. Kernels that an abort ends may still be ending.
  ~direct_group() {
    if (calls_.aborted() || gave_up() != members_.size()) {
      for (member const& m : members_) {
        try {
          device_guard const current{m.gpu};
          static_cast<void>(cudaDeviceSynchronize());
        } catch (cuda_error const&) {  // a device that is lost has nothing to wait for
        }
      }
    }
  }

  [[nodiscard]] int size() const noexcept { return calls_.size(); }
  [[nodiscard]] std::vector<member>& members() noexcept { return members_; }
  [[nodiscard]] bool aborted() const noexcept { return calls_.aborted(); }
  [[nodiscard]] std::string abort_reason() const { return calls_.abort_reason(); }
  /// Bytes of each rank's window.
  [[nodiscard]] std::uint64_t window_bytes() const noexcept { return layout_.bytes; }

  void run(std::size_t rank, request const& wanted, cudaStream_t stream) {
    calls_.check_alive(rank, [&] { return to_string(wanted); });
    if (size() == 1) {
      return;
    }
    direct_call call;
    if (wanted.data.count != 0) {
      call = make_call(wanted, size(), tuning_, layout_);
      expect_reachable(rank, wanted, call);
    }
    post(rank, {wanted});
    if (wanted.data.count == 0) {
      return;
    }
    launch(kernel_of(call), members_[rank], call, stream);
    members_[rank].bytes_moved += moved(call);
  }

  void meet(std::size_t rank, cudaStream_t stream) {
    noted_call call;
    call.is_meeting = true;
    calls_.check_alive(rank, [&] { return to_string(call); });
    if (size() > 1) {
      post(rank, call);
      device_guard const current{members_[rank].gpu};
      meet_peers<><<<1, most_peers, 0, stream>>>(members_[rank].world);
      lockstep::check(cudaGetLastError());
    }
  }

  [[nodiscard]] bool reaches(void const* memory) const { return size() == 1 || plain_.contains(memory); }
  [[nodiscard]] std::uint32_t const* stopped(std::size_t rank) const noexcept {
    return &static_cast<direct_header const*>(members_[rank].window.data())->stopped;
  }

  void replay(std::size_t rank) {
    noted_call call;
    call.is_replay = true;
    calls_.check_alive(rank, [&] { return to_string(call); });
    if (size() > 1) {
      post(rank, call);
    }
  }

  template <class Point>
  void wait(std::size_t rank, Point const& point) {
    auto const waiting = [] { return std::string("waiting"); };
    try {
      auto const deadline = deadline_after(calls_.timeout_seconds());
      for (patience between; !point.done(); between.pause()) {
        calls_.check_alive(rank, waiting);
        if (gave_up() != members_.size() || std::chrono::steady_clock::now() >= deadline) {
          late(rank);
        }
      }
      calls_.check_alive(rank, waiting);  // after an abort, collectives end without having done their work
      if (gave_up() != members_.size()) {
        late(rank);
      }
    } catch (error const&) {
      if (aborted()) {
        let_end(point);
      }
      throw;
    }
  }

  /// Kernels that wait see it too.
  bool abort(std::string reason) noexcept {
    bool const first = calls_.abort(std::move(reason));
    if (signals_.data() != nullptr) {
      *static_cast<std::uint32_t volatile*>(&signals()->abort) = 1;
    }
    return first;
  }

 private:
  [[nodiscard]] direct_signals* signals() const noexcept { return signals_.template as<direct_signals>(); }

  // ---- starting ----

  [[noreturn]] void unavailable(std::size_t first, std::size_t second, std::string const& reason) const {
    throw direct_unavailable(rank_id{static_cast<int>(first)}, rank_id{static_cast<int>(second)},
                             std::string("direct: ") + calls_.name(first) + " and " + calls_.name(second) + ": " + reason);
  }

  /// Lets every GPU reach the memory of every other. Lines are left out over links without atomic operations, which may bring
  /// them in pieces. Ranks that share a GPU, as in tests, read them twice.
  void connect() {
    bool brings_lines = true;
    for (std::size_t a = 0; a < members_.size(); ++a) {
      device_guard const current{members_[a].gpu};
      for (std::size_t b = 0; b < members_.size(); ++b) {
        int const own = number(members_[a].gpu);
        int const peer = number(members_[b].gpu);
        if (own == peer) {
          rereads_lines_ = rereads_lines_ || a != b;
          continue;
        }
        int can = 0;
        lockstep::check(cudaDeviceCanAccessPeer(&can, own, peer));
        if (can == 0) {
          unavailable(a, b, "the first GPU can't reach the memory of the second");
        }
        cudaError_t const code = cudaDeviceEnablePeerAccess(peer, 0);
        if (code == cudaErrorPeerAccessAlreadyEnabled) {
          static_cast<void>(cudaGetLastError());
        } else if (code != cudaSuccess) {
          static_cast<void>(cudaGetLastError());
          unavailable(a, b, std::string("peer access: ") + cudaGetErrorString(code));
        }
        int atomics = 0;
        lockstep::check(cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, own, peer));
        brings_lines = brings_lines && atomics != 0;
      }
    }
    if (!brings_lines) {
      tuning_.lines_up_to_bytes = 0;
    }
  }

  /// Blocks that every GPU holds at once of every kernel, shared by the ranks that it has.
  [[nodiscard]] unsigned blocks_at_once() const {
    unsigned blocks = tuning_.max_blocks;
    for (member const& m : members_) {
      device_guard const current{m.gpu};
      int processors = 0;
      lockstep::check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, number(m.gpu)));
      auto sharing = static_cast<unsigned>(
          std::count_if(members_.begin(), members_.end(), [&](member const& other) { return other.gpu == m.gpu; }));
      sharing *= sharing > 1 && tuning_.programmatic_launch ? 2 : 1;  // two launches of a rank are there at once
      for_each_kernel([&](direct_kernel kernel, direct_algorithm algorithm) {
        unsigned const warps = algorithm == direct_algorithm::bulk ? tuning_.bulk_warps + 2 : tuning_.packet_warps;
        int resident = 0;
        lockstep::check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, static_cast<int>(32 * warps), 0));
        blocks = (std::min)(blocks, static_cast<unsigned>(resident * processors) / sharing);
      });
    }
    expects(blocks > 0, "direct: the GPU holds no block of its kernels");
    return blocks;
  }

  template <class Devices>
  void allocate(Devices const& opened) {
    layout_ = make_layout(tuning_, size(), blocks_at_once());
    signals_ = opened.front()->allocate_pinned(sizeof(direct_signals));
    *signals() = {};
    for (std::size_t rank = 0; rank < members_.size(); ++rank) {
      members_[rank].window = opened[rank]->allocate(layout_.bytes, memory_use::staging);
      auto const current = opened[rank]->activate();
      Backend::zero(opened[rank]->stream(), members_[rank].window.data(), layout_.bytes);
    }
    // A little less than the host waits, so that a kernel can say first whom it waited for.
    double const nanoseconds = (std::min)(calls_.timeout_seconds(), 1e8) * 0.95e9;
    for (std::size_t rank = 0; rank < members_.size(); ++rank) {
      direct_world& world = members_[rank].world;
      world.rank = static_cast<int>(rank);
      world.size = size();
      world.layout = layout_;
      world.signals = signals();
      world.rereads_lines = rereads_lines_;
      world.timeout_ns = static_cast<std::uint64_t>(nanoseconds);
      for (std::size_t peer = 0; peer < members_.size(); ++peer) {
        world.windows[peer] = static_cast<std::byte*>(members_[peer].window.data());
      }
    }
    synchronize(opened);
    plain_ = plain_memory{members_.front().window.data()};
  }

  /// Launches every kernel once, to no effect: one that loads while another waits for a peer might wait for it.
  template <class Devices>
  void load(Devices const& opened) {
    for (std::size_t rank = 0; rank < members_.size(); ++rank) {
      auto const current = opened[rank]->activate();
      direct_world world = members_[rank].world;
      world.size = 0;
      for_each_kernel([&](direct_kernel kernel, direct_algorithm) {
        direct_call call;
        kernel<<<1, 32, 0, opened[rank]->stream().get()>>>(world, call);
        lockstep::check(cudaGetLastError());
      });
      meet_peers<><<<1, most_peers, 0, opened[rank]->stream().get()>>>(world);
      lockstep::check(cudaGetLastError());
      probe_peers<><<<1, probe_threads, 0, opened[rank]->stream().get()>>>(world, 0);
      lockstep::check(cudaGetLastError());
    }
    synchronize(opened);
  }

  /// Writes a pattern between each pair, and looks at what came.
  template <class Devices>
  void probe(Devices const& opened) {
    std::uint64_t const bytes = (std::min)(std::uint64_t{1} << 20U, layout_.slots_between / 8 * 8);
    double const seconds = (std::min)(calls_.timeout_seconds(), 10.0);
    for (std::size_t rank = 0; rank < members_.size(); ++rank) {
      auto const current = opened[rank]->activate();
      direct_world world = members_[rank].world;
      world.timeout_ns = static_cast<std::uint64_t>(seconds * 1e9);
      probe_peers<><<<static_cast<unsigned>(size() - 1), probe_threads, 0, opened[rank]->stream().get()>>>(world, bytes / 8);
      lockstep::check(cudaGetLastError());
    }
    synchronize(opened);
    for (std::size_t a = 0; a < members_.size(); ++a) {
      for (std::size_t b = 0; b < members_.size(); ++b) {
        if (a == b) {
          continue;
        }
        direct_signals::probed const& sent = signals()->probes[a][b];
        std::uint32_t const verdict = signals()->probes[b][a].verdict;  // the receiver's
        char text[96];
        if (verdict != 1) {
          std::snprintf(text, sizeof text,
                        verdict == 3 ? "what the first wrote to the second arrived changed"
                                     : "nothing that the first wrote came to the second within %g seconds",
                        seconds);
          unavailable(a, b, text);
        }
        double const gigabytes_per_second =
            static_cast<double>(bytes) / static_cast<double>((std::max)(sent.nanoseconds, std::uint64_t{1}));
        bool const shared = members_[a].gpu == members_[b].gpu;  // by tests: they get in each other's way
        if (!shared && gigabytes_per_second < tuning_.least_gigabytes_per_second) {
          std::snprintf(text, sizeof text, "the first writes to the second at %.2g GB/s, less than %g", gigabytes_per_second,
                        tuning_.least_gigabytes_per_second);
          unavailable(a, b, text);
        }
      }
    }
    for (std::size_t rank = 0; rank < members_.size(); ++rank) {
      auto const current = opened[rank]->activate();
      Backend::zero(opened[rank]->stream(), members_[rank].window.data(), layout_.words_at);
    }
    synchronize(opened);
  }

  template <class Devices>
  static void synchronize(Devices const& opened) {
    for (auto const& one : opened) {
      auto const current = one->activate();
      one->stream().synchronize();
    }
  }

  // ---- calls ----

  /// Throws usage_error where peers would write to memory that they may not reach.
  void expect_reachable(std::size_t rank, request const& wanted, direct_call const& call) const {
    if ((call.targets != 0 || (is_copy(call.which) && call.algorithm == direct_algorithm::bulk)) &&
        !plain_.contains(wanted.data.data)) {
      refuse(to_string(wanted) + ": of this size, peers write to the data of " + calls_.name(rank) +
             ", which must be plain device memory then (cudaMalloc); of a pool, managed or virtual memory, take nccl");
    }
  }

  void post(std::size_t rank, noted_call const& call) {
    std::string const dispute = calls_.post(rank, call);
    if (!dispute.empty()) {
      abort(dispute);
      refuse(dispute);
    }
  }

  void launch(direct_kernel kernel, member& self, direct_call& call, cudaStream_t stream) const {
    device_guard const current{self.gpu};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3{call.blocks};
    config.blockDim = dim3{threads_of(call)};
    config.stream = stream;
    cudaLaunchAttribute early{};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    if (tuning_.programmatic_launch && call.algorithm != direct_algorithm::bulk) {
      config.attrs = &early;
      config.numAttrs = 1;
    }
    lockstep::check(cudaLaunchKernelEx(&config, kernel, self.world, call));
  }

  /// By the formulas at direct_tuning.
  [[nodiscard]] std::uint64_t moved(direct_call const& call) const noexcept {
    auto const ranks = static_cast<std::uint64_t>(size());
    bool const two_hops = call.algorithm == direct_algorithm::bulk && call.scatter &&
                          call.which != collective::reduce_scatter && call.which != collective::all_gather;
    return two_hops ? 2 * call.bytes * (ranks - 1) / ranks : one_hop_bytes(call.which, call.bytes, size());
  }

  // ---- waiting ----

  /// The first rank whose kernels gave up; size() when there is none.
  [[nodiscard]] std::size_t gave_up() const noexcept {
    if (signals_.data() == nullptr) {
      return members_.size();
    }
    std::size_t rank = 0;
    while (rank < members_.size() && *static_cast<std::uint32_t const volatile*>(&signals()->gave_up[rank].code) == 0) {
      ++rank;
    }
    return rank;
  }

  [[noreturn]] void late(std::size_t rank) {
    group_calls::verdict found = calls_.late(rank);
    std::size_t const waited = gave_up();
    if (number(found.missing) < 0 && waited != members_.size()) {
      auto const missing = static_cast<std::size_t>(signals()->gave_up[waited].missing);
      found.missing = rank_id{static_cast<int>(missing)};
      found.reason = calls_.name(missing) + " did not arrive on its device at " + to_string(calls_.last(waited)) + " within " +
                     calls_.seconds() + ", where " + calls_.name(waited) + " waited for it";
    }
    if (!abort(found.reason)) {
      throw comm_detail::stopped("waiting", rank_id{static_cast<int>(rank)}, abort_reason());
    }
    throw timeout_error(found.missing, found.reason);
  }

  /// After an abort: gives collectives that run some time to end, so that the caller's memory is left alone.
  template <class Point>
  static void let_end(Point const& point) noexcept {
    try {
      auto const deadline = deadline_after(2);
      for (patience between; !point.done() && std::chrono::steady_clock::now() < deadline;) {
        between.pause();
      }
    } catch (error const&) {  // the caller has one already
    }
  }

  using device_guard = cuda::device_guard;

  direct_tuning tuning_;
  bool rereads_lines_ = false;
  direct_layout layout_;
  std::vector<member> members_;
  typename Backend::pinned_buffer signals_;
  plain_memory plain_;
  group_calls calls_;
};

}  // namespace lockstep::comm_detail
