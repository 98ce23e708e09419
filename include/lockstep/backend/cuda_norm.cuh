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

inline constexpr unsigned norm_threads = 256;
inline constexpr std::size_t norm_elements = 32768;  // of a block, at most

/// What one block adds up: `count` elements from `data` on.
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

/// A thread's part of the squares in a chunk: 16 bytes at once between those elements at its ends that are not aligned for
/// that.
template <class T>
__device__ double squares_in(norm_chunk const& chunk) {
  constexpr unsigned wide = sizeof(uint4) / sizeof(T);
  constexpr int at_once = 4;  // reads that are on their way together
  auto const* const all = static_cast<T const*>(chunk.data);
  auto const behind = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(all) / sizeof(T) % wide);
  unsigned const lead = min((wide - behind) % wide, chunk.count);
  unsigned const groups = (chunk.count - lead) / wide;
  auto const* const aligned = reinterpret_cast<uint4 const*>(all + lead);
  double sum = 0;
  unsigned i = threadIdx.x;
  for (; i + (at_once - 1) * norm_threads < groups; i += at_once * norm_threads) {
    uint4 read[at_once];
#pragma unroll
    for (int k = 0; k < at_once; ++k) {
      read[k] = __ldcg(aligned + i + k * norm_threads);
    }
#pragma unroll
    for (int k = 0; k < at_once; ++k) {
      sum += squares_of<T>(read[k]);
    }
  }
  for (; i < groups; i += norm_threads) {
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
  if (threadIdx.x < lead) {
    add_one(threadIdx.x);
  }
  if (unsigned const last = lead + groups * wide + threadIdx.x; last < chunk.count) {
    add_one(last);
  }
  return sum;
}

/// The sum over all threads of a block, for thread 0. In one order.
__device__ inline double sum_of_block(double mine) {
  __shared__ double warps[norm_threads / 32];
  for (int offset = 16; offset != 0; offset /= 2) {
    mine += __shfl_down_sync(0xffffffffU, mine, offset);
  }
  __syncthreads();  // the shared memory may still be read from the call before
  if (threadIdx.x % 32 == 0) {
    warps[threadIdx.x / 32] = mine;
  }
  __syncthreads();
  double sum = 0;
  if (threadIdx.x == 0) {
    for (double const part : warps) {
      sum += part;
    }
  }
  return sum;
}

/// One block a chunk. The last to end adds up what all found, in the order of the chunks. `arrived` is zero before and after.
template <class = void>
__global__ void __launch_bounds__(norm_threads)
    add_squares(norm_chunk const* chunks, double* found, unsigned* arrived, double* sum) {
  norm_chunk const chunk = chunks[blockIdx.x];
  double mine = 0;
  switch (chunk.type) {
    case element_type::f16: mine = squares_in<float16>(chunk); break;
    case element_type::bf16: mine = squares_in<bfloat16>(chunk); break;
    case element_type::f64: mine = squares_in<double>(chunk); break;
    default: mine = squares_in<float>(chunk);
  }
  double const of_chunk = sum_of_block(mine);
  __shared__ bool last;
  if (threadIdx.x == 0) {
    __stcg(found + blockIdx.x, of_chunk);
    __threadfence();
    last = atomicInc(arrived, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (last) {
    __threadfence();
    double all = 0;
    for (unsigned i = threadIdx.x; i < gridDim.x; i += norm_threads) {
      all += __ldcg(found + i);
    }
    all = sum_of_block(all);
    if (threadIdx.x == 0) {
      *sum += all;
    }
  }
}

}  // namespace cuda_detail

/// One launch for any range of buckets. Reads every gradient once. Requires: the device is current in every call; calls of
/// `run` are enqueued one behind the other. Synchronizes, at construction: the host waits until the list of chunks is on the
/// device.
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
    device.stream().synchronize();
  }

  void run(cuda::stream_ref stream, plan::range buckets, double* sum) const {
    std::size_t const first = first_of(buckets.first);
    if (std::size_t const last = first_of(buckets.end()); first < last) {
      cuda_detail::add_squares<><<<static_cast<unsigned>(last - first), cuda_detail::norm_threads, 0, stream.get()>>>(
          chunks_.template as<cuda_detail::norm_chunk>() + first, found_.template as<double>(),
          arrived_.template as<unsigned>(), sum);
      check(cudaGetLastError());
    }
  }

 private:
  /// The first chunk of a bucket.
  [[nodiscard]] std::size_t first_of(std::size_t bucket) const { return firsts_[(std::min)(bucket, firsts_.size() - 1)]; }

  typename Backend::buffer chunks_;
  typename Backend::buffer found_;  // by chunk, of one launch
  typename Backend::buffer arrived_;
  std::vector<std::size_t> firsts_;  // by bucket: its first chunk; at the end, how many chunks there are
};

}  // namespace lockstep
