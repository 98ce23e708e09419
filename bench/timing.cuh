// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/backend/cuda.cuh>
#include <lockstep/core/error.hpp>
#include <lockstep/core/memory.hpp>

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

/// Times what is enqueued on one GPU, beside the bandwidth that a plain copy reaches in the same run.
namespace bench {

/// Microseconds a call: the median of the repetitions; one in ten is below `low_us`, one in ten above `high_us`.
struct timing {
  double median_us = 0;
  double low_us = 0;
  double high_us = 0;
};

namespace detail {

struct destroy {
  void operator()(cudaEvent_t event) const noexcept { static_cast<void>(cudaEventDestroy(event)); }
  void operator()(cudaGraph_t graph) const noexcept { static_cast<void>(cudaGraphDestroy(graph)); }
  void operator()(cudaGraphExec_t graph) const noexcept { static_cast<void>(cudaGraphExecDestroy(graph)); }
};
template <class Handle>
using owned = std::unique_ptr<std::remove_pointer_t<Handle>, destroy>;

inline owned<cudaEvent_t> make_event() {
  cudaEvent_t made = nullptr;
  lockstep::check(cudaEventCreate(&made));
  return owned<cudaEvent_t>{made};
}

/// `calls` calls of `enqueue`, recorded as a graph.
template <class Enqueue>
owned<cudaGraphExec_t> record(lockstep::cuda::stream_ref stream, Enqueue& enqueue, int calls) {
  lockstep::check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
  for (int call = 0; call < calls; ++call) {
    enqueue();
  }
  cudaGraph_t graph = nullptr;
  lockstep::check(cudaStreamEndCapture(stream.get(), &graph));
  owned<cudaGraph_t> const recorded{graph};
  cudaGraphExec_t ready = nullptr;
  lockstep::check(cudaGraphInstantiate(&ready, graph, 0));
  return owned<cudaGraphExec_t>{ready};
}

/// One thread copies one T.
template <class T>
__global__ void copy(T* __restrict__ to, T const* __restrict__ from, std::size_t count) {
  std::size_t const i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) {
    __stcs(to + i, __ldcs(from + i));
  }
}

}  // namespace detail

/// Times what `enqueue()` puts on `stream`, by events around it. Short work is recorded `calls` > 1 times in one CUDA graph, so
/// that the host's part does not count. The first repetitions warm up and are not looked at.
template <class Enqueue>
timing measure(lockstep::cuda::stream_ref stream, Enqueue enqueue, int calls = 1, int repetitions = 60) {
  enqueue();  // loads what it needs
  stream.synchronize();
  detail::owned<cudaGraphExec_t> const graph = calls > 1 ? detail::record(stream, enqueue, calls) : nullptr;
  detail::owned<cudaEvent_t> const before = detail::make_event();
  detail::owned<cudaEvent_t> const after = detail::make_event();
  int const warm_up = repetitions / 4 + 1;
  std::vector<double> all;
  for (int repetition = -warm_up; repetition < repetitions; ++repetition) {
    lockstep::check(cudaEventRecord(before.get(), stream.get()));
    if (graph != nullptr) {
      lockstep::check(cudaGraphLaunch(graph.get(), stream.get()));
    } else {
      enqueue();
    }
    lockstep::check(cudaEventRecord(after.get(), stream.get()));
    lockstep::check(cudaEventSynchronize(after.get()));
    float milliseconds = 0;
    lockstep::check(cudaEventElapsedTime(&milliseconds, before.get(), after.get()));
    if (repetition >= 0) {
      all.push_back(static_cast<double>(milliseconds) * 1000 / calls);
    }
  }
  std::sort(all.begin(), all.end());
  return {all[all.size() / 2], all[all.size() / 10], all[all.size() - 1 - all.size() / 10]};
}

/// What was measured once.
struct row {
  std::string name;
  std::size_t elements = 0;
  /// Read and written, all together.
  std::size_t bytes = 0;
  timing time;

  /// Billions of bytes a second.
  [[nodiscard]] double bandwidth() const { return static_cast<double>(bytes) / time.median_us / 1000; }
};

/// Copies that move `bytes` bytes, half read and half written: a kernel that only copies, and CUDA's own copy.
inline std::vector<row> measure_copies(lockstep::cuda::device& device, std::size_t bytes) {
  std::size_t const half = bytes / 2 / sizeof(uint4) * sizeof(uint4);
  lockstep::cuda::buffer const from = device.allocate(half, lockstep::memory_use::other);
  lockstep::cuda::buffer const to = device.allocate(half, lockstep::memory_use::other);
  lockstep::cuda::zero(device.stream(), from.data(), half);
  std::size_t const count = half / sizeof(uint4);
  auto const blocks = static_cast<unsigned>((count + 511) / 512);
  std::vector<row> rows;
  rows.push_back({"copy, a kernel", count, 2 * half, measure(device.stream(), [&] {
                    detail::copy<<<blocks, 512, 0, device.stream().get()>>>(to.as<uint4>(), from.as<uint4>(), count);
                    lockstep::check(cudaGetLastError());
                  })});
  rows.push_back({"copy, cudaMemcpyAsync", count, 2 * half,
                  measure(device.stream(), [&] { lockstep::cuda::copy(device.stream(), to.data(), from.data(), half); })});
  return rows;
}

/// A table, with each bandwidth as a part of `best_copy`, in GB/s.
inline void print(std::vector<row> const& rows, double best_copy) {
  std::printf("%-48s%12s%10s%20s%10s%8s\n", "", "elements", "us", "10% .. 90%", "GB/s", "% copy");
  for (row const& r : rows) {
    std::printf("%-48s%12zu%10.2f%10.2f%10.2f%10.0f%8.1f\n", r.name.c_str(), r.elements, r.time.median_us, r.time.low_us,
                r.time.high_us, r.bandwidth(), 100 * r.bandwidth() / best_copy);
  }
}

/// The same as JSON, with what it was measured on. Names hold no quotes. Throws error when the file can't be written.
inline void write_json(std::string const& path, std::string const& benchmark, std::string const& commit,
                       std::vector<row> const& rows, double best_copy) {
  cudaDeviceProp properties{};
  int driver = 0;
  int runtime = 0;
  lockstep::check(cudaGetDeviceProperties(&properties, 0));
  lockstep::check(cudaDriverGetVersion(&driver));
  lockstep::check(cudaRuntimeGetVersion(&runtime));
  auto const version = [](int number) { return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10); };
  std::ofstream file{path};
  file << "{\n  \"benchmark\": \"" << benchmark << "\",\n  \"commit\": \"" << commit << "\",\n  \"gpu\": \""
       << static_cast<char const*>(properties.name) << "\",\n  \"cuda_of_driver\": \"" << version(driver)
       << "\",\n  \"cuda\": \"" << version(runtime) << "\",\n  \"copy_gb_per_second\": " << best_copy << ",\n  \"rows\": [";
  char const* separator = "\n";
  for (row const& r : rows) {
    file << separator << "    {\"name\": \"" << r.name << "\", \"elements\": " << r.elements << ", \"bytes\": " << r.bytes
         << ", \"median_us\": " << r.time.median_us << ", \"low_us\": " << r.time.low_us << ", \"high_us\": " << r.time.high_us
         << ", \"gb_per_second\": " << r.bandwidth() << ", \"of_copy\": " << r.bandwidth() / best_copy << "}";
    separator = ",\n";
  }
  file << "\n  ]\n}\n";
  file.close();
  if (!file) {
    throw lockstep::error(std::string("can't write ") + path);
  }
}

}  // namespace bench
