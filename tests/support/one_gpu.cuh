// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/comm/detail/request.hpp>
#include <lockstep/core/deadline.hpp>
#include <lockstep/lockstep.cuh>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

/// Several ranks on one GPU, for machines that have no more: a backend, and a transport whose kernels wait for each other.
///
/// A kernel that waits for another rank's needs that one to start beside it, and on a GPU of its own it always does. On a
/// shared one, whatever waits for the whole GPU waits for ever: cudaFree, perhaps cudaMalloc, making a stream, loading a
/// kernel, and two streams that share one of CUDA's connections. So memory and streams come from pools, kernels are loaded
/// before the first rank may wait, and there are as many connections as streams.
namespace support {

inline constexpr int most_ranks = 8;
inline constexpr int most_streams = 32;

/// Read when CUDA starts, which comes after this.
inline bool const connections_asked_for = setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0) == 0;

/// Memory for trainers, one after another. Nothing goes back to CUDA, and nothing is used twice, until nothing is in use.
class resting_pool {
 public:
  using take_function = cudaError_t (*)(void**, std::size_t);
  using free_function = cudaError_t (*)(void*);

  resting_pool(take_function take, free_function free, std::size_t slab_bytes)
      : take_(take), free_(free), slab_bytes_(slab_bytes) {}

  /// Null when CUDA has no more; what no GPU has is not asked for.
  [[nodiscard]] void* take(std::size_t bytes) {
    std::scoped_lock const lock(mutex_);
    if (bytes > most_bytes_) {
      return nullptr;
    }
    std::size_t const rounded = (bytes + 512) / 512 * 512;
    std::size_t at = 0;
    while (at < slabs_.size() && slabs_[at].bytes - slabs_[at].used < rounded) {
      ++at;
    }
    if (at == slabs_.size() && !grow((std::max)(rounded, slab_bytes_))) {
      return nullptr;
    }
    void* const taken = slabs_[at].begin + slabs_[at].used;
    slabs_[at].used += rounded;
    ++live_;
    return taken;
  }
  void give_back() noexcept {
    std::scoped_lock const lock(mutex_);
    --live_;
  }
  /// How many pieces are in use.
  [[nodiscard]] std::size_t live() const {
    std::scoped_lock const lock(mutex_);
    return live_;
  }
  /// Makes what was given back usable again, if that is everything. Requires: then nothing runs on the GPU.
  void settle() {
    std::scoped_lock const lock(mutex_);
    if (live_ == 0) {
      while (slabs_.size() > 1) {
        lockstep::check(free_(slabs_.back().begin));
        slabs_.pop_back();
      }
      for (slab& s : slabs_) {
        s.used = 0;
      }
    }
    if (slabs_.empty() || slabs_.back().bytes - slabs_.back().used < slab_bytes_ / 2) {
      static_cast<void>(grow(slab_bytes_));
    }
  }

 private:
  struct slab {
    std::byte* begin;
    std::size_t bytes;
    std::size_t used;
  };

  bool grow(std::size_t bytes) {
    void* memory = nullptr;
    cudaError_t const code = take_(&memory, bytes);
    if (code == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());
      return false;
    }
    lockstep::check(code);
    slabs_.push_back({static_cast<std::byte*>(memory), bytes, 0});
    return true;
  }

  static constexpr std::size_t most_bytes_ = std::size_t{1} << 42U;

  take_function take_;
  free_function free_;
  std::size_t slab_bytes_;
  mutable std::mutex mutex_;
  std::vector<slab> slabs_;
  std::size_t live_ = 0;
};

inline resting_pool& device_pool() {
  static resting_pool pool{[](void** memory, std::size_t bytes) { return cudaMalloc(memory, bytes); },
                           [](void* memory) { return cudaFree(memory); }, std::size_t{64} << 20U};
  return pool;
}
inline resting_pool& pinned_pool() {
  static resting_pool pool{[](void** memory, std::size_t bytes) {
                             return cudaHostAlloc(memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
                           },
                           [](void* memory) { return cudaFreeHost(memory); }, std::size_t{8} << 20U};
  return pool;
}

/// All streams that there will be; those given back are used again last.
class stream_pool {
 public:
  void fill() {
    std::scoped_lock const lock(mutex_);
    for (; made_ < most_streams; ++made_) {
      cudaStream_t made = nullptr;
      lockstep::check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
      resting_.push_back(made);
    }
  }
  [[nodiscard]] cudaStream_t take() {
    fill();
    std::scoped_lock const lock(mutex_);
    lockstep::expects(!resting_.empty(), "one_gpu: more streams at once than the GPU has connections");
    cudaStream_t const taken = resting_.front();
    resting_.pop_front();
    return taken;
  }
  void give_back(cudaStream_t stream) noexcept {
    std::scoped_lock const lock(mutex_);
    resting_.push_back(stream);
  }

 private:
  std::mutex mutex_;
  std::deque<cudaStream_t> resting_;
  int made_ = 0;
};

inline stream_pool& streams() {
  static stream_pool pool;
  return pool;
}

class pooled_stream {
 public:
  pooled_stream() : stream_(streams().take()) {}
  pooled_stream(pooled_stream const&) = delete;
  pooled_stream& operator=(pooled_stream const&) = delete;
  ~pooled_stream() { streams().give_back(stream_); }

  [[nodiscard]] cudaStream_t get() const noexcept { return stream_; }

 private:
  cudaStream_t stream_;
};

/// lockstep::cuda with devices 0 to 7, all of them GPU 0.
struct one_gpu : lockstep::cuda {
  class device;
  class stream;
  struct give_back {
    void operator()(void*) const noexcept { device_pool().give_back(); }
  };
  struct give_back_pinned {
    void operator()(void*) const noexcept { pinned_pool().give_back(); }
  };
  using buffer = lockstep::accounted_buffer<give_back>;
  using pinned_buffer = lockstep::accounted_buffer<give_back_pinned>;

  /// Whether devices made from now on do all their work on one stream. Then ranks wait for each other whatever CUDA makes of a
  /// graph's branches.
  static inline std::atomic<bool> one_stream{false};

  [[nodiscard]] static int device_count() noexcept { return lockstep::cuda::device_count() == 0 ? 0 : most_ranks; }

  using lockstep::cuda::copy;
  /// Like that of cuda; but where the host waits, no call of CUDA's waits with it.
  static void copy(stream_ref stream, void* to, void const* from, std::size_t bytes);
};

/// Its id is its own; its memory and streams are GPU 0's.
class one_gpu::device : private pooled_stream, public lockstep::cuda::device {
 public:
  explicit device(lockstep::device_id id = lockstep::device_id{0}, lockstep::cuda::options const& options = {})
      : lockstep::cuda::device(lockstep::device_id{0}, stream_ref{pooled_stream::get()}, options), id_(id) {}

  [[nodiscard]] lockstep::device_id id() const noexcept { return id_; }

  [[nodiscard]] buffer allocate(std::size_t bytes, lockstep::memory_use use) {
    void* const memory = device_pool().take(bytes);
    if (memory == nullptr) {
      throw lockstep::out_of_memory(id_, bytes, std::string{name_of(use)});
    }
    return {memory, account_, use, bytes};
  }
  [[nodiscard]] pinned_buffer allocate_pinned(std::size_t bytes) const {
    void* const memory = pinned_pool().take(bytes);
    if (memory == nullptr) {
      throw lockstep::out_of_memory(id_, bytes, std::string("pinned host memory"));
    }
    return {memory, nullptr, lockstep::memory_use::other, bytes};
  }
  [[nodiscard]] lockstep::memory_usage memory() const noexcept { return account_->usage(); }
  [[nodiscard]] lockstep::memory_account& account() const noexcept { return *account_; }

 private:
  lockstep::device_id id_;
  std::shared_ptr<lockstep::memory_account> account_ = std::make_shared<lockstep::memory_account>();
};

class one_gpu::stream {
 public:
  explicit stream(device const& owner) : ref_(owner.stream()) {
    if (!one_stream) {
      ref_ = own_.emplace().get();
    }
  }

  [[nodiscard]] stream_ref ref() const noexcept { return ref_; }
  operator stream_ref() const noexcept { return ref_; }  // NOLINT(google-explicit-constructor): a view of the same thing

 private:
  std::optional<pooled_stream> own_;
  stream_ref ref_;
};

inline bool is_pageable(void const* memory) {
  cudaPointerAttributes known{};
  lockstep::check(cudaPointerGetAttributes(&known, memory));
  return known.type == cudaMemoryTypeUnregistered;
}

inline void one_gpu::copy(stream_ref stream, void* to, void const* from, std::size_t bytes) {
  if (bytes == 0) {
    return;
  }
  bool const to_pageable = is_pageable(to);
  bool const from_pageable = is_pageable(from);
  if (!to_pageable && !from_pageable) {
    lockstep::cuda::copy(stream, to, from, bytes);
    return;
  }
  pinned_buffer const between{pinned_pool().take(bytes), nullptr, lockstep::memory_use::other, bytes};
  lockstep::expects(between.data() != nullptr, "one_gpu: no pinned memory is left");
  if (from_pageable) {
    std::memcpy(between.data(), from, bytes);
  }
  lockstep::cuda::copy(stream, to_pageable ? between.data() : to, from_pageable ? between.data() : from, bytes);
  while (!stream.done()) {
    std::this_thread::sleep_for(std::chrono::microseconds{20});
  }
  if (to_pageable) {
    std::memcpy(to, between.data(), bytes);
  }
}

// ---- what is loaded before ranks wait for each other ---------------------------------------------------------------------

/// Each launches some kernels once and waits for them.
inline std::vector<void (*)()>& loaders() {
  static std::vector<void (*)()> all;
  return all;
}
/// Read `loads<f>` anywhere, and `f` is one of the loaders.
template <void (*Load)()>
inline bool const loads = (loaders().push_back(Load), true);

/// Of the library's own, all but the updates.
inline void load_library() {
  one_gpu::device device;
  auto const stream = device.stream();
  auto const memory = device.allocate(4096, lockstep::memory_use::other);
  auto* const floats = memory.as<float>();
  for (std::size_t const bytes : {1, 2, 4, 16, 36, 1024}) {
    one_gpu::zero(stream, memory.data(), bytes);
    one_gpu::copy(stream, floats + 512, floats, bytes);
  }
  std::array const transfers{lockstep::transfer{floats + 512, floats, 16}};
  one_gpu::copy(stream, std::span<lockstep::transfer const>{transfers});
  lockstep::parameter_list const parameters{std::array{lockstep::parameter{"p", floats, floats + 1, {1}}}};
  lockstep::step_totals<one_gpu> const totals{device, parameters, {}};
  lockstep::squared_norm<one_gpu> const norm{device, {{{floats, 1, lockstep::element_type::f32}, 0}}};
  norm.run(stream, {0, 1}, memory.as<double>() + 8);
  lockstep::cuda::for_each(stream, 1, lockstep::pipeline_detail::scale<float>{floats, 1});
  stream.synchronize();
}

template <lockstep::elementwise_optimizer Optimizer>
void load_update() {
  using update_type = lockstep::elementwise_update<one_gpu, Optimizer>;
  one_gpu::device device;
  auto const stream = device.stream();
  auto const memory = device.allocate(4096, lockstep::memory_use::other);
  one_gpu::zero(stream, memory.data(), memory.bytes());
  typename update_type::segment segment;
  segment.value = memory.data();
  segment.gradient = memory.as<float>() + 16;
  segment.master = memory.as<float>() + 32;
  for (std::size_t slot = 0; slot < lockstep::slot_count<Optimizer>; ++slot) {
    segment.slots[slot] = memory.as<float>() + 48 + slot;
  }
  segment.count = 1;
  segment.value_type = lockstep::element_type::bf16;
  update_type update{device, {segment}};
  Optimizer const optimizer{};
  update.load_masters(stream);
  update.set(stream, std::span{&optimizer, 1});
  update.prepare(stream, memory.as<std::uint64_t>() + 64);
  update.run(stream, {0, 1}, nullptr, nullptr);
  stream.synchronize();
}

/// Call where no rank waits: before a group of ranks is made. Then the memory of the groups that are gone can be used again.
inline void settle() {
  static std::mutex mutex;
  static bool first = true;
  std::scoped_lock const lock(mutex);
  lockstep::cuda::device_guard const current{lockstep::device_id{0}};
  auto const rest = [] {
    if (device_pool().live() == 0 && pinned_pool().live() == 0) {
      lockstep::check(cudaDeviceSynchronize());
    }
    device_pool().settle();
    pinned_pool().settle();
  };
  rest();
  if (std::exchange(first, false)) {
    streams().fill();
    std::vector<lockstep::cuda::event> events(512);  // CUDA keeps their memory for later ones
    pooled_stream const stream;
    for (lockstep::cuda::event& e : events) {
      e.record(stream.get());
    }
    for (auto* const load : loaders()) {
      load();
    }
    rest();
  }
}

// ---- the transport -------------------------------------------------------------------------------------------------------

/// The transport between ranks on one GPU.
struct shared_gpu {};

namespace shared_gpu_detail {

using lockstep::element_type;
using lockstep::reduction;
using lockstep::comm_detail::collective;

inline constexpr unsigned threads = 256;

/// In device memory. All of it counts up and nothing is reset, so that kernels can be replayed.
struct board {
  unsigned long long arrived;            // at collectives, all ranks together
  unsigned long long left;               // the same at their ends
  unsigned long long calls[most_ranks];  // collectives that a rank has done
  void* data[most_ranks];                // of the collective that runs
};

/// In host memory that the GPU sees.
struct signals {
  int aborted;
  int gave_up;                             // a kernel has waited for too long
  unsigned long long entered[most_ranks];  // collectives that a rank has begun
};

struct call {
  board* shared;
  signals* signs;
  int rank;
  int size;
  collective which;
  reduction how;
  element_type type;
  int root;
  void* data;
  std::size_t count;
  std::size_t equal;  // elements of every part but the last
};

inline __device__ unsigned long long nanoseconds() {
  unsigned long long now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

/// One thread a rank calls it. Returns false when the group has ended, or has to: not all ranks came within 20 seconds.
inline __device__ bool meet(unsigned long long* arrived, unsigned long long goal, signals* signs) {
  __threadfence();
  atomicAdd(arrived, 1ULL);
  unsigned long long const start = nanoseconds();
  while (*static_cast<unsigned long long volatile*>(arrived) < goal) {
    if (*static_cast<int volatile*>(&signs->aborted) != 0 || *static_cast<int volatile*>(&signs->gave_up) != 0) {
      return false;
    }
    if (nanoseconds() - start > 20'000'000'000ULL) {
      *static_cast<int volatile*>(&signs->gave_up) = 1;
      __threadfence_system();
      return false;
    }
    __nanosleep(200);
  }
  __threadfence();
  return true;
}

template <class T>
struct wide {
  using type = T;
};
template <>
struct wide<lockstep::float16> {
  using type = float;
};
template <>
struct wide<lockstep::bfloat16> {
  using type = float;
};

template <class T>
__device__ T* memory_of(call const& now, int rank) {
  return static_cast<T*>(*static_cast<void* volatile*>(&now.shared->data[rank]));
}

/// Element i of all ranks, combined in rank order.
template <class T>
__device__ T combined(call const& now, std::size_t i) {
  using number = typename wide<T>::type;
  auto all = static_cast<number>(memory_of<T>(now, 0)[i]);
  for (int rank = 1; rank < now.size; ++rank) {
    auto const next = static_cast<number>(memory_of<T>(now, rank)[i]);
    if (now.how == reduction::sum) {
      all = static_cast<number>(all + next);
    } else if (now.how == reduction::min ? next < all : all < next) {
      all = next;
    }
  }
  return static_cast<T>(all);
}

/// Every element is read and written by one thread of one rank, but for those that nobody writes.
template <class T>
__device__ void work(call const& now) {
  auto const part = [&](int rank, auto&& each) {  // plan::part
    std::size_t const end = rank + 1 == now.size ? now.count : (rank + 1) * now.equal;
    for (std::size_t i = rank * now.equal + threadIdx.x; i < end; i += threads) {
      each(i);
    }
  };
  T* const mine = static_cast<T*>(now.data);
  switch (now.which) {
    case collective::all_reduce:
      part(now.rank, [&](std::size_t i) {
        T const all = combined<T>(now, i);
        for (int rank = 0; rank < now.size; ++rank) {
          memory_of<T>(now, rank)[i] = all;
        }
      });
      break;
    case collective::reduce:
      part(now.rank, [&](std::size_t i) { memory_of<T>(now, now.root)[i] = combined<T>(now, i); });
      break;
    case collective::reduce_scatter: part(now.rank, [&](std::size_t i) { mine[i] = combined<T>(now, i); }); break;
    case collective::broadcast:
      for (int rank = 0; rank < now.size && now.rank != now.root; ++rank) {
        part(rank, [&](std::size_t i) { mine[i] = memory_of<T>(now, now.root)[i]; });
      }
      break;
    case collective::all_gather:
      for (int rank = 0; rank < now.size; ++rank) {
        if (rank != now.rank) {
          part(rank, [&](std::size_t i) { mine[i] = memory_of<T>(now, rank)[i]; });
        }
      }
      break;
  }
}

/// One block a rank. A template, so that many translation units may have it.
template <class = void>
__global__ void __launch_bounds__(threads) run(call const now) {
  __shared__ bool go;
  __shared__ unsigned long long number;
  if (threadIdx.x == 0) {
    number = now.shared->calls[now.rank] + 1;
    now.shared->data[now.rank] = now.data;
    *static_cast<unsigned long long volatile*>(&now.signs->entered[now.rank]) = number;
    go = meet(&now.shared->arrived, number * now.size, now.signs);
  }
  __syncthreads();
  if (!go) {
    return;
  }
  switch (now.type) {
    case element_type::f32: work<float>(now); break;
    case element_type::f64: work<double>(now); break;
    case element_type::f16: work<lockstep::float16>(now); break;
    case element_type::bf16: work<lockstep::bfloat16>(now); break;
    case element_type::i8: work<std::int8_t>(now); break;
    case element_type::u8: work<std::uint8_t>(now); break;
    case element_type::i32: work<std::int32_t>(now); break;
    case element_type::u32: work<std::uint32_t>(now); break;
    case element_type::i64: work<std::int64_t>(now); break;
    case element_type::u64: work<std::uint64_t>(now); break;
  }
  __syncthreads();
  if (threadIdx.x == 0 && meet(&now.shared->left, number * now.size, now.signs)) {
    now.shared->calls[now.rank] = number;
  }
}

/// What the ranks of one group share. Thread safety: every call may run beside every other.
class group {
 public:
  group(std::span<lockstep::device_id const> devices, double timeout_seconds)
      : devices_(devices.begin(), devices.end()),
        timeout_seconds_(timeout_seconds),
        board_(device_pool().take(sizeof(board)), nullptr, lockstep::memory_use::other, sizeof(board)),
        signals_(pinned_pool().take(sizeof(signals)), nullptr, lockstep::memory_use::other, sizeof(signals)) {
    lockstep::expects(board_.data() != nullptr && signals_.data() != nullptr, "one_gpu: no memory is left");
    *signals_.as<signals>() = {};
    pooled_stream const stream;
    one_gpu::zero(stream.get(), board_.data(), sizeof(board));
    one_gpu::stream_ref{stream.get()}.synchronize();
  }

  [[nodiscard]] int size() const noexcept { return static_cast<int>(devices_.size()); }
  [[nodiscard]] std::uint64_t bytes_moved() const noexcept { return bytes_moved_; }

  void enqueue(lockstep::rank_id rank, lockstep::comm_detail::request const& wanted, one_gpu::stream_ref stream) {
    lockstep::comm_detail::check(wanted, size());
    expect_going_on(rank, [&] { return to_string(wanted); });
    if (size() == 1) {
      return;
    }
    call const now{.shared = board_.as<board>(),
                   .signs = signals_.as<signals>(),
                   .rank = number(rank),
                   .size = size(),
                   .which = wanted.which,
                   .how = wanted.how,
                   .type = wanted.data.type,
                   .root = number(wanted.root),
                   .data = wanted.data.data,
                   .count = wanted.data.count,
                   .equal = lockstep::plan::part(wanted.data.count, 0, devices_.size()).count};
    run<><<<1, threads, 0, stream.get()>>>(now);
    lockstep::check(cudaGetLastError());
    bytes_moved_ += wanted.data.bytes();
  }

  template <class Point>
  void wait(lockstep::rank_id rank, Point const& point) {
    auto const waiting = [] { return std::string("waiting"); };
    try {
      auto const deadline = lockstep::deadline_after(timeout_seconds_);
      while (!point.done()) {
        expect_going_on(rank, waiting);
        if (gave_up() || std::chrono::steady_clock::now() >= deadline) {
          late(rank);
        }
        std::this_thread::sleep_for(std::chrono::microseconds{20});
      }
      expect_going_on(rank, waiting);
      if (gave_up()) {
        late(rank);
      }
    } catch (lockstep::error const&) {
      let_end(point);
      throw;
    }
  }

  /// Kernels that wait see it too.
  void abort(std::string reason) noexcept {
    std::scoped_lock const lock(mutex_);
    if (!aborted_) {
      reason_ = std::move(reason);
      aborted_ = true;
      *static_cast<int volatile*>(&signals_.as<signals>()->aborted) = 1;
    }
  }
  [[nodiscard]] bool aborted() const noexcept { return aborted_; }
  [[nodiscard]] std::string abort_reason() const {
    std::scoped_lock const lock(mutex_);
    return reason_;
  }

 private:
  template <class Doing>
  void expect_going_on(lockstep::rank_id rank, Doing const& doing) const {
    if (aborted_) {
      throw stopped(doing(), rank);
    }
  }
  [[nodiscard]] lockstep::aborted_error stopped(std::string const& doing, lockstep::rank_id rank) const {
    return lockstep::aborted_error(doing + " on rank " + std::to_string(number(rank)) + " was stopped: " + abort_reason());
  }
  [[nodiscard]] bool gave_up() const { return *static_cast<int volatile*>(&signals_.as<signals>()->gave_up) != 0; }
  [[nodiscard]] std::string name(std::size_t rank) const {
    return std::string("rank ") + std::to_string(rank) + " (device " + std::to_string(number(devices_[rank])) + ")";
  }

  /// `rank` has waited for as long as it may: names those who have begun fewer collectives than others.
  [[noreturn]] void late(lockstep::rank_id rank) {
    std::array<unsigned long long, most_ranks> entered{};
    unsigned long long most = 0;
    for (std::size_t r = 0; r < devices_.size(); ++r) {
      entered[r] = *static_cast<unsigned long long volatile*>(&signals_.as<signals>()->entered[r]);
      most = (std::max)(most, entered[r]);
    }
    std::string reason;
    lockstep::rank_id missing{-1};
    for (std::size_t r = 0; r < devices_.size(); ++r) {
      if (entered[r] < most) {
        missing = reason.empty() ? lockstep::rank_id{static_cast<int>(r)} : missing;
        reason += (reason.empty() ? "" : ", ") + name(r);
      }
    }
    reason = (reason.empty() ? std::string("all arrived, but nothing was done") : reason + " did not arrive") + " within " +
             std::to_string(timeout_seconds_) + " seconds";
    bool const first = !aborted();
    abort(reason);
    if (!first) {
      throw stopped("waiting", rank);
    }
    throw lockstep::timeout_error(missing, reason);
  }

  /// Kernels that wait end soon after an abort; then the memory of the ranks is left alone.
  template <class Point>
  void let_end(Point const& point) const noexcept {
    try {
      auto const deadline = lockstep::deadline_after(5);
      while (aborted() && !point.done() && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::microseconds{20});
      }
    } catch (lockstep::error const&) {  // the caller has one already
    }
  }

  std::vector<lockstep::device_id> devices_;
  double timeout_seconds_;
  one_gpu::buffer board_;
  one_gpu::pinned_buffer signals_;
  std::atomic<std::uint64_t> bytes_moved_{0};
  std::atomic<bool> aborted_{false};  // written under the mutex
  mutable std::mutex mutex_;
  std::string reason_;  // guarded by it
};

/// Launches the kernel once: one rank meets itself.
inline void load_collective() {
  auto const memory = one_gpu::device{}.allocate(sizeof(board), lockstep::memory_use::other);
  auto const host = one_gpu::device{}.allocate_pinned(sizeof(signals));
  *host.as<signals>() = {};
  pooled_stream const stream;
  one_gpu::zero(stream.get(), memory.data(), memory.bytes());
  run<><<<1, threads, 0, stream.get()>>>({.shared = memory.as<board>(), .signs = host.as<signals>(), .rank = 0, .size = 1});
  lockstep::check(cudaGetLastError());
  one_gpu::stream_ref{stream.get()}.synchronize();
}

}  // namespace shared_gpu_detail

/// One rank's end of a group on one GPU. Collectives may be captured. Sums are added in rank order, 16-bit elements in f32 and
/// rounded once. Ranks that differ in what they call get wrong results.
class shared_gpu_communicator {
 public:
  using stream_ref = one_gpu::stream_ref;
  using reduction = lockstep::reduction;
  using typed_span = lockstep::typed_span;
  using rank_id = lockstep::rank_id;

  [[nodiscard]] static std::vector<shared_gpu_communicator> create(std::span<lockstep::device_id const> devices,
                                                                   lockstep::cuda::options const& options) {
    lockstep::expects(!devices.empty() && devices.size() <= most_ranks, "one_gpu: give 1 to 8 devices");
    static_cast<void>(loads<load_library> && loads<shared_gpu_detail::load_collective>);
    settle();
    auto const group = std::make_shared<shared_gpu_detail::group>(devices, options.timeout_seconds);
    std::vector<shared_gpu_communicator> ranks;
    for (std::size_t rank = 0; rank < devices.size(); ++rank) {
      ranks.push_back(shared_gpu_communicator{group, rank_id{static_cast<int>(rank)}});
    }
    return ranks;
  }

  [[nodiscard]] rank_id rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return group_ != nullptr ? group_->size() : 0; }
  /// Of all ranks: the bytes of every collective.
  [[nodiscard]] std::uint64_t bytes_moved() const noexcept { return group_->bytes_moved(); }

  void all_reduce(typed_span data, reduction how, stream_ref stream) {
    group_->enqueue(rank_, {.which = collective::all_reduce, .data = data, .how = how}, stream);
  }
  void reduce(typed_span data, reduction how, rank_id root, stream_ref stream) {
    group_->enqueue(rank_, {.which = collective::reduce, .data = data, .how = how, .root = root}, stream);
  }
  void broadcast(typed_span data, rank_id root, stream_ref stream) {
    group_->enqueue(rank_, {.which = collective::broadcast, .data = data, .root = root}, stream);
  }
  void reduce_scatter(typed_span data, reduction how, stream_ref stream) {
    group_->enqueue(rank_, {.which = collective::reduce_scatter, .data = data, .how = how}, stream);
  }
  void all_gather(typed_span data, stream_ref stream) {
    group_->enqueue(rank_, {.which = collective::all_gather, .data = data}, stream);
  }
  template <class Point>
  void wait(Point const& point) {
    group_->wait(rank_, point);
  }
  void abort(std::string reason) noexcept { group_->abort(std::move(reason)); }
  [[nodiscard]] bool aborted() const noexcept { return group_->aborted(); }
  [[nodiscard]] std::string abort_reason() const { return group_->abort_reason(); }

 private:
  using collective = lockstep::comm_detail::collective;

  shared_gpu_communicator(std::shared_ptr<shared_gpu_detail::group> group, rank_id rank) noexcept
      : group_(std::move(group)), rank_(rank) {}

  std::shared_ptr<shared_gpu_detail::group> group_;
  rank_id rank_;
};

}  // namespace support

template <>
struct lockstep::communicator_for<support::shared_gpu, support::one_gpu> {
  using type = support::shared_gpu_communicator;
  [[nodiscard]] static std::vector<type> create(std::span<device_id const> devices, cuda::options const& options) {
    return type::create(devices, options);
  }
};
