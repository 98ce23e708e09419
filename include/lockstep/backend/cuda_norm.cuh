// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/backend/cuda.cuh>
#include <lockstep/core/element_type.hpp>
#include <lockstep/core/float16.hpp>
#include <lockstep/core/memory.hpp>
#include <lockstep/core/update.hpp>
#include <lockstep/plan/split.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace lockstep {

namespace cuda_detail {

inline constexpr unsigned norm_threads = 1024;
inline constexpr std::size_t norm_elements = 8192;  // of a chunk, at most

/// What one warp adds up at once: `count` elements from `data` on.
struct norm_chunk {
  void const* data;
  std::uint32_t count;
  element_type type;
};

/// The squares of the elements of T in 16 bytes.
template <class T>
__device__ double squares_of(uint4 const& bits) {
  struct {
    T elements[sizeof(uint4) / sizeof(T)];
  } const read = __builtin_bit_cast(decltype(read), bits);
  double sum = 0;
#pragma unroll
  for (T const& element : read.elements) {
    double g;
    if constexpr (sizeof(T) == 2) {
      g = static_cast<double>(static_cast<float>(element));
    } else {
      g = static_cast<double>(element);
    }
    sum = fma(g, g, sum);
  }
  return sum;
}

/// A lane's part of the squares in a chunk: 16 bytes at once between those elements at its ends that are not aligned for that.
/// What was read leaves the cache first: the model's work beside it needs that more.
template <class T>
__device__ double squares_in(norm_chunk const& chunk) {
  constexpr unsigned wide = sizeof(uint4) / sizeof(T);
  constexpr int at_once = 8;  // reads that are on their way together
  auto const* const all = static_cast<T const*>(chunk.data);
  unsigned const lane = threadIdx.x % 32;
  auto const behind = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(all) / sizeof(T) % wide);
  unsigned const lead = min((wide - behind) % wide, chunk.count);
  unsigned const groups = (chunk.count - lead) / wide;
  auto const* const aligned = reinterpret_cast<uint4 const*>(all + lead);
  double sum = 0;
  unsigned i = lane;
  for (; i + (at_once - 1) * 32 < groups; i += at_once * 32) {
    uint4 read[at_once];
#pragma unroll
    for (int k = 0; k < at_once; ++k) {
      read[k] = __ldcs(aligned + i + k * 32);
    }
#pragma unroll
    for (int k = 0; k < at_once; ++k) {
      sum += squares_of<T>(read[k]);
    }
  }
  for (; i < groups; i += 32) {
    sum += squares_of<T>(__ldcg(aligned + i));
  }
  auto const add_one = [&](unsigned index) {
    double g;
    if constexpr (sizeof(T) == 2) {
      g = static_cast<double>(static_cast<float>(all[index]));
    } else {
      g = static_cast<double>(all[index]);
    }
    sum = fma(g, g, sum);
  };
  if (lane < lead) {
    add_one(lane);
  }
  if (unsigned const last = lead + groups * wide + lane; last < chunk.count) {
    add_one(last);
  }
  return sum;
}

/// The sum over a warp, for lane 0. In one order.
__device__ inline double sum_of_warp(double mine) {
#pragma unroll
  for (int offset = 16; offset != 0; offset /= 2) {
    mine += __shfl_down_sync(0xffffffffU, mine, offset);
  }
  return mine;
}

/// A warp a chunk, in turn. The last block to end adds up what all found, in the order of the chunks, so that the sum does not
/// depend on the number of blocks. `arrived` is zero before and after.
template <class = void>
__global__ void __launch_bounds__(norm_threads, 1)
    add_squares(norm_chunk const* chunks, unsigned count, double* found, unsigned* arrived, double* sum) {
  constexpr unsigned warps = norm_threads / 32;
  unsigned const warp = threadIdx.x / 32;
  for (unsigned c = blockIdx.x * warps + warp; c < count; c += gridDim.x * warps) {
    norm_chunk const chunk = chunks[c];
    double mine = 0;
    switch (chunk.type) {
      case element_type::f16: mine = squares_in<float16>(chunk); break;
      case element_type::bf16: mine = squares_in<bfloat16>(chunk); break;
      case element_type::f64: mine = squares_in<double>(chunk); break;
      default: mine = squares_in<float>(chunk);
    }
    mine = sum_of_warp(mine);
    if (threadIdx.x % 32 == 0) {
      __stcg(found + c, mine);
    }
  }
  __shared__ bool last;
  __shared__ double parts[warps];
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicInc(arrived, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) {
    return;
  }
  __threadfence();
  double all = 0;
  for (unsigned c = threadIdx.x; c < count; c += norm_threads) {
    all += __ldcg(found + c);
  }
  all = sum_of_warp(all);
  if (threadIdx.x % 32 == 0) {
    parts[warp] = all;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (unsigned w = 1; w < warps; ++w) {
      all += parts[w];
    }
    *sum += all;
  }
}

}  // namespace cuda_detail

/// One launch for any range of buckets: on a part of the device, but for a range that holds the last bucket, behind which the
/// model has ended. Reads every gradient once. Requires: the device is current in every call; calls of `run` are enqueued one
/// behind the other. Synchronizes, at construction: the host waits until the list of chunks is on the device.
template <std::derived_from<cuda> Backend>
class squared_norm<Backend> {
 public:
  squared_norm(typename Backend::device& device, std::vector<gradient_stretch> stretches) {
    std::stable_sort(stretches.begin(), stretches.end(),
                     [](gradient_stretch const& a, gradient_stretch const& b) { return a.bucket < b.bucket; });
    std::vector<cuda_detail::norm_chunk> chunks;
    for (gradient_stretch const& s : stretches) {
      firsts_.resize((std::max)(firsts_.size(), s.bucket + 1), chunks.size());
      for (std::size_t first = 0; first < s.gradients.count; first += cuda_detail::norm_elements) {
        std::size_t const count = (std::min)(s.gradients.count - first, cuda_detail::norm_elements);
        chunks.push_back({s.gradients.part(first, count).data, static_cast<std::uint32_t>(count), s.gradients.type});
      }
    }
    firsts_.push_back(chunks.size());
    std::size_t const bytes = chunks.size() * sizeof(cuda_detail::norm_chunk);
    chunks_ = device.allocate(bytes, memory_use::staging);
    found_ = device.allocate(chunks.size() * sizeof(double), memory_use::staging);
    arrived_ = device.allocate(sizeof(unsigned), memory_use::staging);
    Backend::copy(device.stream(), chunks_.data(), chunks.data(), bytes);
    Backend::zero(device.stream(), arrived_.data(), sizeof(unsigned));
    cuda_detail::load(cuda_detail::add_squares<>);
    int multiprocessors = 0;
    check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, gpu()));
    multiprocessors_ = static_cast<unsigned>(multiprocessors);
    device.stream().synchronize();
  }

  void run(cuda::stream_ref stream, plan::range buckets, double* sum) const {
    std::size_t const first = first_of(buckets.first);
    if (std::size_t const last = first_of(buckets.end()); first < last) {
      constexpr unsigned warps = cuda_detail::norm_threads / 32;
      auto const count = static_cast<unsigned>(last - first);
      // While the model works, a third of the device: multiprocessors that measure don't multiply, and so many read fast
      // enough.
      unsigned const most = last == firsts_.back() ? multiprocessors_ : (multiprocessors_ + 2) / 3;
      unsigned const blocks = (std::min)((count + warps - 1) / warps, most);
      cuda_detail::add_squares<><<<blocks, cuda_detail::norm_threads, 0, stream.get()>>>(
          chunks_.template as<cuda_detail::norm_chunk>() + first, count, found_.template as<double>(),
          arrived_.template as<unsigned>(), sum);
      check(cudaGetLastError());
    }
  }

 private:
  /// The first chunk of a bucket.
  [[nodiscard]] std::size_t first_of(std::size_t bucket) const { return firsts_[(std::min)(bucket, firsts_.size() - 1)]; }

  [[nodiscard]] static int gpu() {
    int current = 0;
    check(cudaGetDevice(&current));
    return current;
  }

  unsigned multiprocessors_ = 1;
  typename Backend::buffer chunks_;
  typename Backend::buffer found_;  // by chunk, of one launch
  typename Backend::buffer arrived_;
  std::vector<std::size_t> firsts_;  // by bucket: its first chunk; at the end, how many chunks there are
};

}  // namespace lockstep
