// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/backend/cuda.cuh>
#include <lockstep/comm/nccl.cuh>
#include <lockstep/concepts.hpp>
#include <lockstep/core/element_type.hpp>

#include "conformance.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

/// What the tests of the NCCL communicator share. Memory, streams and graphs are made and destroyed while no collective runs: a
/// rank that allocates while another's kernel waits for it may hang.
namespace nccl_support {

using lockstep::cuda;
using lockstep::device_id;
using lockstep::nccl_communicator;

/// Devices 0 to count - 1, a rank each.
inline std::vector<nccl_communicator> create(int count, double timeout_seconds = 60) {
  return lockstep::communicator_for<lockstep::nccl, cuda>::create(conformance::first_devices(count),
                                                                  {.timeout_seconds = timeout_seconds});
}

/// Zeroed memory of one device.
template <class T>
class device_array {
 public:
  device_array(device_id device, std::size_t count) : device_(device), count_(count) {
    cuda::device_guard const current{device};
    lockstep::check(cudaMalloc(&data_, (std::max)(bytes(), std::size_t{1})));
    lockstep::check(cudaMemset(data_, 0, bytes()));
    lockstep::check(cudaDeviceSynchronize());
  }
  device_array(device_array&& other) noexcept
      : device_(other.device_), count_(other.count_), data_(std::exchange(other.data_, nullptr)) {}
  device_array& operator=(device_array&&) = delete;
  ~device_array() {
    if (data_ != nullptr) {
      cudaFree(data_);
    }
  }

  [[nodiscard]] T* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return count_ * sizeof(T); }
  [[nodiscard]] std::span<T> span() const noexcept { return {data_, count_}; }

  /// Enqueues copying all elements from the host.
  void put(std::vector<T> const& values, cuda::stream_ref stream) const {
    cuda::copy(stream, data_, values.data(), values.size() * sizeof(T));
  }
  /// The elements, once `stream` has done what it has to. Waits without a deadline: not where collectives may hang.
  [[nodiscard]] std::vector<T> get(cuda::stream_ref stream) const {
    std::vector<T> values(count_);
    cuda::copy(stream, values.data(), data_, bytes());
    stream.synchronize();
    return values;
  }

 private:
  device_id device_;
  std::size_t count_;
  T* data_ = nullptr;
};

/// Runs until the host sets `*released`, or for some ten seconds. A template, so that two units may have it.
template <class = void>
__global__ void hold(int const volatile* released) {
  long long const start = clock64();
  while (*released == 0 && clock64() - start < 20'000'000'000LL) {
  }
}

/// A stream of the current device that is busy until `release`.
class held_stream {
 public:
  explicit held_stream(device_id device) : stream_(device) {
    lockstep::check(cudaHostAlloc(reinterpret_cast<void**>(&released_), sizeof(int), cudaHostAllocMapped));
    *released_ = 0;
    hold<><<<1, 1, 0, stream_.ref().get()>>>(released_);
    lockstep::check(cudaGetLastError());
  }
  held_stream(held_stream const&) = delete;
  held_stream& operator=(held_stream const&) = delete;
  ~held_stream() {
    release();
    cudaStreamSynchronize(stream_.ref().get());
    cudaFreeHost(released_);
  }

  [[nodiscard]] cuda::stream_ref ref() const noexcept { return stream_.ref(); }
  void release() noexcept { *static_cast<int volatile*>(released_) = 1; }

 private:
  cuda::stream stream_;
  int* released_ = nullptr;
};

/// What `enqueue` enqueues on `stream`, as a graph. Everything in the thread of the rank.
template <class Enqueue>
cudaGraph_t capture(cuda::stream_ref stream, Enqueue&& enqueue) {
  lockstep::check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
  cudaGraph_t graph = nullptr;
  try {
    enqueue();
  } catch (...) {
    static_cast<void>(cudaStreamEndCapture(stream.get(), &graph));
    throw;
  }
  lockstep::check(cudaStreamEndCapture(stream.get(), &graph));
  return graph;
}

}  // namespace nccl_support
