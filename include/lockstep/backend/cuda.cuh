// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/error.hpp>
#include <lockstep/core/memory.hpp>
#include <lockstep/core/options.hpp>

#include <cuda.h>
#include <cuda_runtime.h>
#include <nvtx3/nvToolsExt.h>
#include <cuda/stream_ref>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <source_location>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

namespace lockstep {

/// A call of the CUDA runtime failed.
class cuda_error : public error {
 public:
  cuda_error(cudaError_t code, std::string const& message) : error(message), code_(code) {}

  [[nodiscard]] cudaError_t code() const noexcept { return code_; }

 private:
  cudaError_t code_;
};

/// Throws cuda_error, with the place of the call, unless `code` is success.
inline void check(cudaError_t code, std::source_location place = std::source_location::current()) {
  if (code != cudaSuccess) [[unlikely]] {
    static_cast<void>(cudaGetLastError());  // so that the next call does not report it again
    throw cuda_error(code, std::string("CUDA: ") + cudaGetErrorName(code) + ", " + cudaGetErrorString(code) + ", at " +
                               place.file_name() + ":" + std::to_string(place.line()));
  }
}

/// The backend of NVIDIA GPUs. Kernels and copies are enqueued; the host goes on.
struct cuda {
  struct options;
  struct allocator;
  class device;
  class device_guard;
  struct give_back;
  using buffer = accounted_buffer<give_back>;
  struct give_back_pinned;
  /// Host memory that the GPUs read and write as it lies, and copy from without the host's help.
  using pinned_buffer = accounted_buffer<give_back_pinned>;
  class stream;
  class stream_ref;
  class event;
  class graph;
  class weight;
  class profiler_range;

  /// The host goes on while enqueued work runs.
  static constexpr bool asynchronous = true;

  /// How many GPUs the CUDA runtime sees; 0 without a driver.
  [[nodiscard]] static int device_count() noexcept {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
  }

  /// Whether `failure` is a call of CUDA's that found no memory.
  [[nodiscard]] static bool is_out_of_memory(std::exception const& failure) noexcept {
    auto const* const call = dynamic_cast<cuda_error const*>(&failure);
    return call != nullptr && call->code() == cudaErrorMemoryAllocation;
  }

  /// Enqueues setting `bytes` bytes to zero.
  static void zero(stream_ref stream, void* memory, std::size_t bytes);
  /// Enqueues copying `bytes` bytes between any two memories that CUDA knows. From or to pageable host memory the host waits.
  static void copy(stream_ref stream, void* to, void const* from, std::size_t bytes);
  /// Enqueues many copies within the memory of one device, in as few launches as their list allows.
  static void copy(stream_ref stream, std::span<transfer const> transfers);
  /// Enqueues one call, in one thread of the device, of a trivially copyable function object.
  template <class F>
  static void invoke(stream_ref stream, F const& f);
  /// Enqueues one call `f(i)` for each i in [0, count), in as many threads.
  template <class F>
  static void for_each(stream_ref stream, std::size_t count, F const& f);
};

/// Where the library's device memory comes from, instead of cudaMalloc and cudaFree. Both are called with the device current,
/// by any thread of the library or the caller's, one at a time for each device: at construction, in the first steps of new
/// sizes, when a host batch is larger than those before, and at the end. Requires: memory of that device, aligned to 256 bytes.
/// Where peers are to reach it, memory of cudaMalloc: not of a stream-ordered pool.
struct cuda::allocator {
  /// Null, or std::bad_alloc, where there is not enough.
  std::function<void*(std::size_t bytes)> allocate;
  /// Nothing on the device uses the memory any more. Does not throw.
  std::function<void(void* memory, std::size_t bytes)> free;
};

struct cuda::give_back {
  std::shared_ptr<cuda::allocator const> to = nullptr;
  device_id device{0};
  std::size_t bytes = 0;

  void operator()(void* memory) const noexcept;
};

struct cuda::give_back_pinned {
  void operator()(void* memory) const noexcept { static_cast<void>(cudaFreeHost(memory)); }
};

struct cuda::options {
  /// How long a rank waits for another before it gives up and names it. Above 0.
  double timeout_seconds = 60;
  /// What to check beside, for debugging.
  lockstep::checking checking = lockstep::checking::none;
  /// Whether to measure how long devices work, for `busy_seconds`. Costs a few microseconds a step and bucket on a GPU.
  bool measure_busy = false;
  /// Where device memory comes from; cudaMalloc without one.
  std::shared_ptr<cuda::allocator const> allocator = nullptr;
  /// How many steps, of different batches, a trainer keeps as CUDA graphs; 0 captures none.
  std::size_t graphs = 8;
};

/// A factor that kernels take by value. It becomes a float in device code only, because a loss scale lives there.
class cuda::weight {
 public:
  weight() = default;
  /// `scale` is null, or lies in memory of the device, and multiplies the factor.
  constexpr explicit weight(float factor, float const* scale = nullptr) noexcept : factor_(factor), scale_(scale) {}

  __device__ operator float() const noexcept {  // NOLINT(google-explicit-constructor): it is that number
    return scale_ == nullptr ? factor_ : factor_ * *scale_;
  }

 private:
  float factor_ = 0;
  float const* scale_ = nullptr;
};

namespace cuda_detail {

/// Contexts by the driver's functions, which are found at run time: nobody has to link the driver. The runtime's cudaSetDevice
/// can't go back to a device without opening a context there, and every thread begins on device 0.
class contexts {
 public:
  /// The calling thread's, null when it has none yet.
  [[nodiscard]] static CUcontext current() {
    CUcontext now = nullptr;
    check_driver(functions().get_current(&now));
    return now;
  }
  static void make_current(CUcontext context) { check_driver(functions().set_current(context)); }
  /// The one that the runtime uses on a device; it stays open.
  [[nodiscard]] static CUcontext primary(device_id device) {
    static std::array<std::atomic<CUcontext>, 256> kept{};
    if (number(device) < 0 || static_cast<std::size_t>(number(device)) >= kept.size()) {
      check(cudaErrorInvalidDevice);
    }
    std::atomic<CUcontext>& place = kept[static_cast<std::size_t>(number(device))];
    CUcontext context = place;
    if (context == nullptr) {
      check_driver(functions().retain_primary(&context, number(device)));
      place = context;
    }
    return context;
  }

 private:
  struct table {
    CUresult (*get_current)(CUcontext*);
    CUresult (*set_current)(CUcontext);
    CUresult (*retain_primary)(CUcontext*, CUdevice);
  };

  /// Codes are the same numbers in both interfaces.
  static void check_driver(CUresult code) { check(static_cast<cudaError_t>(code)); }
  template <class Function>
  static void find(char const* name, Function*& found) {
    void* address = nullptr;
    cudaDriverEntryPointQueryResult state{};
    check(cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &state));
    check(state == cudaDriverEntryPointSuccess ? cudaSuccess : cudaErrorInsufficientDriver);
    found = reinterpret_cast<Function*>(address);
  }
  static table const& functions() {
    static table const all = [] {
      table found{};
      CUresult (*initialise)(unsigned) = nullptr;
      find("cuInit", initialise);
      check_driver(initialise(0));
      find("cuCtxGetCurrent", found.get_current);
      find("cuCtxSetCurrent", found.set_current);
      find("cuDevicePrimaryCtxRetain", found.retain_primary);
      return found;
    }();
    return all;
  }
};

}  // namespace cuda_detail

/// Makes a device the calling thread's current one, until the end of the scope. Touches no other device.
class [[nodiscard]] cuda::device_guard {
 public:
  explicit device_guard(device_id device) : before_(cuda_detail::contexts::current()) {
    if (CUcontext const wanted = cuda_detail::contexts::primary(device); wanted != before_) {
      cuda_detail::contexts::make_current(wanted);
      changed_ = true;
    }
  }
  device_guard(device_guard const&) = delete;
  device_guard& operator=(device_guard const&) = delete;
  ~device_guard() {
    if (changed_) {
      try {
        cuda_detail::contexts::make_current(before_);
      } catch (cuda_error const&) {  // a context that is gone
      }
    }
  }

 private:
  CUcontext before_;
  bool changed_ = false;
};

inline void cuda::give_back::operator()(void* memory) const noexcept {
  if (to == nullptr) {
    static_cast<void>(cudaFree(memory));  // which waits for the device
    return;
  }
  try {
    device_guard const current{device};
    static_cast<void>(cudaDeviceSynchronize());
    to->free(memory, bytes);
  } catch (cuda_error const&) {  // the device is lost, and its memory with it
  }
}

/// A CUDA stream of somebody's, with its device's number left to CUDA. Owns nothing; converts from and to what others use.
class cuda::stream_ref {
 public:
  stream_ref() noexcept = default;
  stream_ref(cudaStream_t stream) noexcept : stream_(stream) {}              // NOLINT(google-explicit-constructor)
  stream_ref(::cuda::stream_ref stream) noexcept : stream_(stream.get()) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] cudaStream_t get() const noexcept { return stream_; }
  operator ::cuda::stream_ref() const noexcept { return ::cuda::stream_ref{stream_}; }  // NOLINT(google-explicit-constructor)

  /// Blocks the host until all that was enqueued before is done. Throws cuda_error when something there failed.
  void synchronize() const { lockstep::check(cudaStreamSynchronize(stream_)); }
  /// What is enqueued later runs after the work that `recorded` stands for now. The host goes on.
  void wait(event const& recorded) const;
  /// Whether all that was enqueued before is done. Throws cuda_error when something there failed.
  [[nodiscard]] bool done() const {
    cudaError_t const state = cudaStreamQuery(stream_);
    if (state == cudaErrorNotReady) {
      static_cast<void>(cudaGetLastError());  // no error
      return false;
    }
    lockstep::check(state);
    return true;
  }
  /// Throws cuda_error when something failed; waits for nothing.
  void check() const { static_cast<void>(done()); }

  friend bool operator==(stream_ref, stream_ref) noexcept = default;

 private:
  cudaStream_t stream_ = nullptr;
};

namespace cuda_detail {

struct destroy_stream {
  void operator()(cudaStream_t stream) const noexcept { static_cast<void>(cudaStreamDestroy(stream)); }
};
struct destroy_event {
  void operator()(cudaEvent_t event) const noexcept { static_cast<void>(cudaEventDestroy(event)); }
};
struct destroy_graph {
  void operator()(cudaGraph_t graph) const noexcept { static_cast<void>(cudaGraphDestroy(graph)); }
};
struct destroy_executable {
  void operator()(cudaGraphExec_t executable) const noexcept { static_cast<void>(cudaGraphExecDestroy(executable)); }
};
template <class Handle, class Destroy>
using unique_handle = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy>;

}  // namespace cuda_detail

/// Owns a stream of a device; it does not wait for the default stream.
class cuda::stream {
 public:
  explicit stream(device const& owner);
  explicit stream(device_id device) {
    device_guard const current{device};
    cudaStream_t made = nullptr;
    check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
    stream_.reset(made);
  }

  [[nodiscard]] stream_ref ref() const noexcept { return stream_.get(); }
  operator stream_ref() const noexcept { return ref(); }  // NOLINT(google-explicit-constructor): a view of the same thing

 private:
  friend class cuda::device;

  cuda_detail::unique_handle<cudaStream_t, cuda_detail::destroy_stream> stream_;
};

/// A point in a stream. Complete until it is recorded; can be recorded again. Takes no times. Of the device that is current
/// when it is first recorded.
class cuda::event {
 public:
  void record(stream_ref stream) {
    if (event_ == nullptr) {
      cudaEvent_t made = nullptr;
      check(cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
      event_.reset(made);
    }
    check(cudaEventRecord(event_.get(), stream.get()));
  }
  /// Whether it is complete. Throws cuda_error when something before it failed.
  [[nodiscard]] bool done() const {
    if (event_ == nullptr) {
      return true;
    }
    cudaError_t const state = cudaEventQuery(event_.get());
    if (state == cudaErrorNotReady) {
      static_cast<void>(cudaGetLastError());  // no error
      return false;
    }
    check(state);
    return true;
  }
  /// Blocks the host until it completes.
  void synchronize() const {
    if (event_ != nullptr) {
      check(cudaEventSynchronize(event_.get()));
    }
  }

 private:
  friend cuda::stream_ref;

  cuda_detail::unique_handle<cudaEvent_t, cuda_detail::destroy_event> event_;
};

inline void cuda::stream_ref::wait(event const& recorded) const {
  if (recorded.event_ != nullptr) {
    lockstep::check(cudaStreamWaitEvent(stream_, recorded.event_.get()));
  }
}

/// Work that was recorded once and runs as often as it is launched. Owns the recording, not the memory that it works on.
class cuda::graph {
 public:
  /// Runs `work`, which enqueues on `stream` and on streams that follow it by events and join it again; nothing of that runs
  /// now. The result is on the device, ready to launch. Throws what `work` throws, and cuda_error where it does what can't be
  /// recorded.
  template <class Work>
  [[nodiscard]] static graph capture(stream_ref stream, Work&& work) {
    check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
    cudaGraph_t recorded = nullptr;
    try {
      work();
    } catch (...) {
      static_cast<void>(cudaStreamEndCapture(stream.get(), &recorded));
      static_cast<void>(cudaGetLastError());
      cuda_detail::unique_handle<cudaGraph_t, cuda_detail::destroy_graph> const dropped{recorded};
      throw;
    }
    cudaError_t const ended = cudaStreamEndCapture(stream.get(), &recorded);
    cuda_detail::unique_handle<cudaGraph_t, cuda_detail::destroy_graph> const owned{recorded};
    check(ended);
    cudaGraphExec_t executable = nullptr;
    check(cudaGraphInstantiate(&executable, recorded, 0));
    graph made;
    made.executable_.reset(executable);
    check(cudaGraphUpload(executable, stream.get()));
    return made;
  }

  /// Enqueues the work. Requires: it was captured.
  void launch(stream_ref stream) const { check(cudaGraphLaunch(executable_.get(), stream.get())); }
  [[nodiscard]] explicit operator bool() const noexcept { return executable_ != nullptr; }

 private:
  cuda_detail::unique_handle<cudaGraphExec_t, cuda_detail::destroy_executable> executable_;
};

/// Names what the calling thread does, until the end of the scope, for NVIDIA's profilers (NVTX).
class [[nodiscard]] cuda::profiler_range {
 public:
  explicit profiler_range(char const* name) noexcept { nvtxRangePushA(name); }
  profiler_range(profiler_range const&) = delete;
  profiler_range& operator=(profiler_range const&) = delete;
  ~profiler_range() { nvtxRangePop(); }
};

/// One GPU: a stream to work on, memory, and its books. Thread safety: `allocate` and `memory` may run beside every other call.
class cuda::device {
 public:
  /// Throws usage_error for a device that is not there, or a timeout that is not above 0. Touches no other device.
  explicit device(device_id id = device_id{0}, cuda::options const& options = {}) : device(id, stream_ref{}, options) {
    own_stream_.emplace(id);
    stream_ = own_stream_->ref();
  }
  /// The same on a stream of the caller's, which must outlive this object.
  device(device_id id, stream_ref stream, cuda::options const& options = {}) : id_(id), options_(options), stream_(stream) {
    if (number(id) < 0 || number(id) >= device_count()) {
      refuse(std::string("GPU ") + std::to_string(number(id)) + " is not there; the CUDA runtime sees " +
             std::to_string(device_count()));
    }
    expects(options.timeout_seconds > 0, "cuda::options: timeout_seconds must be above 0");
    expects(options.allocator == nullptr || (options.allocator->allocate && options.allocator->free),
            "cuda::options: an allocator needs both allocate and free");
  }
  device(device const&) = delete;  // replicas know its address
  device& operator=(device const&) = delete;

  [[nodiscard]] device_id id() const noexcept { return id_; }
  [[nodiscard]] stream_ref stream() const noexcept { return stream_; }
  [[nodiscard]] cuda::options const& options() const noexcept { return options_; }
  /// Makes this device the calling thread's current one, until the end of the guard.
  [[nodiscard]] device_guard activate() const { return device_guard{id_}; }

  /// `bytes` >= 0 bytes of plain device memory (cudaMalloc, or what `options::allocator` gives), accounted under `use`. Throws
  /// out_of_memory.
  [[nodiscard]] buffer allocate(std::size_t bytes, memory_use use) {
    device_guard const current{id_};
    std::size_t const wanted = (std::max)(bytes, std::size_t{1});
    void* memory = nullptr;
    if (options_.allocator != nullptr) {
      try {
        memory = options_.allocator->allocate(wanted);
      } catch (std::bad_alloc const&) {
        memory = nullptr;
      }
    } else if (cudaError_t const code = cudaMalloc(&memory, wanted); code == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());
      memory = nullptr;
    } else {
      check(code);
    }
    if (memory == nullptr) {
      throw out_of_memory(id_, bytes, std::string{name_of(use)});
    }
    return {memory, account_, use, bytes, give_back{options_.allocator, id_, wanted}};
  }
  /// `bytes` >= 0 bytes of host memory that this GPU reads and writes too; not in the books, which are the device's. Throws
  /// out_of_memory.
  [[nodiscard]] pinned_buffer allocate_pinned(std::size_t bytes) const {
    device_guard const current{id_};
    void* memory = nullptr;
    cudaError_t const code = cudaHostAlloc(&memory, (std::max)(bytes, std::size_t{1}), cudaHostAllocPortable);
    if (code == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());
      throw out_of_memory(id_, bytes, std::string("pinned host memory"));
    }
    check(code);
    return {memory, nullptr, memory_use::other, bytes};
  }
  /// Whether `memory` lies on this GPU, or moves there by itself (managed memory).
  [[nodiscard]] bool holds(void const* memory) const {
    cudaPointerAttributes known{};
    check(cudaPointerGetAttributes(&known, memory));
    return known.type == cudaMemoryTypeManaged || (known.type == cudaMemoryTypeDevice && known.device == number(id_));
  }
  /// Where `memory` lies, in words.
  [[nodiscard]] static std::string whereabouts(void const* memory) {
    cudaPointerAttributes known{};
    check(cudaPointerGetAttributes(&known, memory));
    return known.type == cudaMemoryTypeDevice ? std::string("on GPU ") + std::to_string(known.device) : "in host memory";
  }
  /// What other tools call this GPU, which may number it differently: model, UUID and PCI address, as in
  /// "NVIDIA H200, GPU-1b2c3d4e-0000-1111-2222-333344445555, 0000:1B:00.0".
  [[nodiscard]] std::string name() const {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, number(id_)));
    char pci_address[32]{};
    check(cudaDeviceGetPCIBusId(pci_address, sizeof pci_address, number(id_)));
    std::string text = std::string(properties.name) + ", GPU";
    for (std::size_t i = 0; i < sizeof properties.uuid.bytes; ++i) {
      constexpr char digits[] = "0123456789abcdef";
      auto const byte = static_cast<unsigned char>(properties.uuid.bytes[i]);
      text += i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "";
      text += digits[byte / 16];
      text += digits[byte % 16];
    }
    return text + ", " + pci_address;
  }
  [[nodiscard]] memory_usage memory() const noexcept { return account_->usage(); }
  /// The books, for memory that a model allocates by itself.
  [[nodiscard]] memory_account& account() const noexcept { return *account_; }

 private:
  device_id id_;
  cuda::options options_;
  std::shared_ptr<memory_account> account_ = std::make_shared<memory_account>();
  std::optional<cuda::stream> own_stream_;
  stream_ref stream_;
};

inline cuda::stream::stream(device const& owner) : stream(owner.id()) {}

namespace cuda_detail {

inline constexpr int copy_threads = 256;
inline constexpr std::size_t copies_a_launch = 128;  // 3 KiB of kernel arguments, of the 4 KiB that every GPU takes

struct copy_list {
  transfer copies[copies_a_launch];
};

/// Copies what it can of `one` in elements of type T, striding over the grid's first dimension; returns the bytes copied.
template <class T>
__device__ std::size_t copy_elements(transfer const& one, std::size_t first, std::size_t stride) {
  std::size_t const count = one.bytes / sizeof(T);
  for (std::size_t i = first; i < count; i += stride) {
    static_cast<T*>(one.to)[i] = static_cast<T const*>(one.from)[i];
  }
  return count * sizeof(T);
}

/// Block (x, y) takes every gridDim.x-th stretch of copy y: 16, 4 or 1 bytes a thread, as addresses allow. A template, so that
/// many translation units may have it.
template <class = void>
__global__ void copy_many(copy_list const list) {
  transfer const one = list.copies[blockIdx.y];
  auto const first = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  std::size_t const stride = std::size_t{gridDim.x} * blockDim.x;
  auto const bits = reinterpret_cast<std::uintptr_t>(one.to) | reinterpret_cast<std::uintptr_t>(one.from);
  std::size_t const done = (bits & 15U) == 0  ? copy_elements<uint4>(one, first, stride)
                           : (bits & 3U) == 0 ? copy_elements<std::uint32_t>(one, first, stride)
                                              : 0;
  for (std::size_t i = done + first; i < one.bytes; i += stride) {
    static_cast<unsigned char*>(one.to)[i] = static_cast<unsigned char const*>(one.from)[i];
  }
}

/// Kernels are loaded when they are first called, or asked about: which must not happen while another rank waits inside a
/// kernel.
template <class... Arguments>
void load(void (*kernel)(Arguments...)) {
  cudaFuncAttributes attributes;
  check(cudaFuncGetAttributes(&attributes, kernel));
}

template <class F>
__global__ void invoke(F const f) {
  f();
}

template <class F>
__global__ void for_each(std::size_t count, F const f) {
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    f(i);
  }
}

}  // namespace cuda_detail

inline void cuda::zero(stream_ref stream, void* memory, std::size_t bytes) {
  if (bytes != 0) {
    check(cudaMemsetAsync(memory, 0, bytes, stream.get()));
  }
}

inline void cuda::copy(stream_ref stream, void* to, void const* from, std::size_t bytes) {
  if (bytes != 0 && to != from) {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream.get()));
  }
}

inline void cuda::copy(stream_ref stream, std::span<transfer const> transfers) {
  for (std::size_t done = 0; done < transfers.size(); done += cuda_detail::copies_a_launch) {
    std::span<transfer const> const part =
        transfers.subspan(done, (std::min)(transfers.size() - done, cuda_detail::copies_a_launch));
    cuda_detail::copy_list list{};
    std::size_t longest = 0;
    for (std::size_t i = 0; i < part.size(); ++i) {
      list.copies[i] = part[i];
      longest = (std::max)(longest, part[i].bytes);
    }
    if (longest != 0) {
      std::size_t const blocks =
          (longest + cuda_detail::copy_threads * sizeof(uint4) - 1) / (cuda_detail::copy_threads * sizeof(uint4));
      dim3 const grid{static_cast<unsigned>((std::min)(blocks, std::size_t{64})), static_cast<unsigned>(part.size())};
      cuda_detail::copy_many<><<<grid, cuda_detail::copy_threads, 0, stream.get()>>>(list);
      check(cudaGetLastError());
    }
  }
}

template <class F>
void cuda::invoke(stream_ref stream, F const& f) {
  cuda_detail::invoke<<<1, 1, 0, stream.get()>>>(f);
  check(cudaGetLastError());
}

template <class F>
void cuda::for_each(stream_ref stream, std::size_t count, F const& f) {
  constexpr std::size_t threads = 256;
  constexpr std::size_t most_blocks = 1024;
  if (count != 0) {
    auto const blocks = static_cast<unsigned>((std::min)((count + threads - 1) / threads, most_blocks));
    cuda_detail::for_each<<<blocks, threads, 0, stream.get()>>>(count, f);
    check(cudaGetLastError());
  }
}

}  // namespace lockstep
