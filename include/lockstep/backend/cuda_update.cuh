// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/backend/cuda.cuh>
#include <lockstep/backend/elementwise.hpp>
#include <lockstep/concepts.hpp>
#include <lockstep/core/element_type.hpp>
#include <lockstep/core/float16.hpp>
#include <lockstep/core/memory.hpp>
#include <lockstep/core/update.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep {

namespace cuda_detail {

inline constexpr unsigned update_threads = 256;
inline constexpr unsigned update_elements = 4 * update_threads;  // of a block, at most: four a thread

/// Blocks that a multiprocessor is to hold at once: as many as registers allow without spilling.
template <std::size_t Slots>
inline constexpr int update_blocks =
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    4;  // those before hold 1,024 threads
#else
    Slots <= 2 ? 5 : 4;
#endif

/// What one block updates: a stretch of one segment.
template <std::size_t Slots>
struct alignas(16) update_chunk {
  float* weights;  // f32 values, or the masters of 16-bit ones
  void const* gradient;
  void* values;  // of 16 bits; null for f32
  float* slots[Slots == 0 ? 1 : Slots];
  int count;  // with `lead`, at most update_elements
  std::uint32_t parameter;
  element_type value_type;
  element_type gradient_type;
  std::uint8_t group;
  std::uint8_t lead;  // the chunk begins that many elements behind an aligned four, alike in all arrays; 4 where not alike
};

/// Four elements of a chunk in a thread's registers: neighbours, or a warp's width apart.
template <std::size_t Slots>
struct update_four {
  int first;   // index of the first; may be below 0 or beyond the chunk
  int stride;  // from one to the next
  bool whole;  // neighbours, aligned, and all within the chunk
  float weights[4];
  std::uint32_t gradient[4];  // as stored: four f32, or two pairs of 16 bits
  float slots[Slots == 0 ? 1 : Slots][4];

  /// Those that this thread updates. Elements of unlike alignment are accessed one by one; then the neighbours
  /// of a thread's elements are those of its neighbours.
  __device__ update_four(update_chunk<Slots> const& chunk) {
    bool const alike = chunk.lead < 4;
    unsigned const lane = threadIdx.x % 32;
    first = static_cast<int>(alike ? 4 * threadIdx.x - chunk.lead : 4 * (threadIdx.x - lane) + lane);
    stride = alike ? 1 : 32;
    whole = alike && first >= 0 && first + 4 <= chunk.count;
  }

  [[nodiscard]] __device__ bool beyond(update_chunk<Slots> const& chunk) const { return first >= chunk.count; }

  /// Calls f(j, index in the chunk) for each element that lies within it.
  template <class F>
  __device__ void for_each(update_chunk<Slots> const& chunk, F f) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      int const i = first + j * stride;
      if (i >= 0 && i < chunk.count) {
        f(j, i);
      }
    }
  }

  __device__ void clear() {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      weights[j] = 0;
#pragma unroll
      for (std::size_t s = 0; s != Slots; ++s) {
        slots[s][j] = 0;
      }
    }
  }
  static __device__ void assign(float (&to)[4], float4 const& from) {
    to[0] = from.x;
    to[1] = from.y;
    to[2] = from.z;
    to[3] = from.w;
  }

  /// Reads weights, slots and gradients of the four; 0 stands for those that lie beyond the chunk. All reads of aligned
  /// neighbours stand in one branch, so that they are on their way together.
  __device__ void load(update_chunk<Slots> const& chunk) {
    if (whole) {
      load_whole_state(chunk);
      load_whole_gradient(chunk, chunk.gradient);
    } else if (!beyond(chunk)) {
      load_each_state(chunk);
      load_each_gradient(chunk, chunk.gradient);
    }
  }
  /// The same for weights and slots alone, and for the gradients of some rank: `from` is where those of the chunk begin there.
  __device__ void load_state(update_chunk<Slots> const& chunk) { whole ? load_whole_state(chunk) : load_each_state(chunk); }
  __device__ void load_gradient(update_chunk<Slots> const& chunk, void const* from) {
    whole ? load_whole_gradient(chunk, from) : load_each_gradient(chunk, from);
  }

  /// The gradients as f32. T is what they are stored as.
  template <class T>
  __device__ void widen(float (&to)[4]) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (std::is_same_v<T, float>) {
        to[j] = __uint_as_float(gradient[j]);
      } else {
        T narrow;
        narrow.bits = static_cast<std::uint16_t>(gradient[j / 2] >> (16 * (j % 2)));
        to[j] = narrow;
      }
    }
  }

  __device__ void widen(element_type gradient_type, float (&to)[4]) const {
    switch (gradient_type) {
      case element_type::f16: return widen<float16>(to);
      case element_type::bf16: return widen<bfloat16>(to);
      default: widen<float>(to);
    }
  }

  /// One call of the optimizer for each. Each gradient is rounded behind its factor, so that all uses of it see one number.
  template <class Optimizer, std::size_t... S>
  __device__ void advance(float const (&gradients)[4], float factor, Optimizer const& optimizer,
                          prepared_type<Optimizer> const& prepared, std::index_sequence<S...>) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float const g = __fmul_rn(gradients[j], factor);
      if constexpr (prepares<Optimizer>) {
        weights[j] = optimizer(weights[j], g, slots[S][j]..., prepared);
      } else {
        weights[j] = optimizer(weights[j], g, slots[S][j]...);
      }
    }
  }

  /// The weight of element j, rounded to 16 bits.
  [[nodiscard]] __device__ std::uint16_t narrowed(int j, element_type type) const {
    return type == element_type::bf16 ? bfloat16(weights[j]).bits : float16(weights[j]).bits;
  }

  /// Writes weights, slots and 16-bit values of those that lie within the chunk.
  __device__ void store(update_chunk<Slots> const& chunk) const {
    if (whole) {
      store_whole_weights(chunk.weights);
#pragma unroll
      for (std::size_t s = 0; s != Slots; ++s) {
        __stcg(reinterpret_cast<float4*>(chunk.slots[s] + first), float4{slots[s][0], slots[s][1], slots[s][2], slots[s][3]});
      }
      if (chunk.values != nullptr) {
        store_whole_narrowed(chunk, chunk.values);
      }
      return;
    }
    for_each(chunk, [&](int j, int i) {
      __stcg(chunk.weights + i, weights[j]);
#pragma unroll
      for (std::size_t s = 0; s != Slots; ++s) {
        __stcg(chunk.slots[s] + i, slots[s][j]);
      }
      if (chunk.values != nullptr) {
        __stcg(static_cast<std::uint16_t*>(chunk.values) + i, narrowed(j, chunk.value_type));
      }
    });
  }
  /// Writes the values, of the parameter's own type, to where those of the chunk begin on some rank.
  __device__ void store_values(update_chunk<Slots> const& chunk, void* to) const {
    bool const narrow = chunk.values != nullptr;
    if (whole) {
      narrow ? store_whole_narrowed(chunk, to) : store_whole_weights(static_cast<float*>(to));
      return;
    }
    for_each(chunk, [&](int j, int i) {
      if (narrow) {
        __stcg(static_cast<std::uint16_t*>(to) + i, narrowed(j, chunk.value_type));
      } else {
        __stcg(static_cast<float*>(to) + i, weights[j]);
      }
    });
  }

 private:
  __device__ void load_whole_state(update_chunk<Slots> const& chunk) {
    assign(weights, __ldcg(reinterpret_cast<float4 const*>(chunk.weights + first)));
#pragma unroll
    for (std::size_t s = 0; s != Slots; ++s) {
      assign(slots[s], __ldcg(reinterpret_cast<float4 const*>(chunk.slots[s] + first)));
    }
  }
  __device__ void load_whole_gradient(update_chunk<Slots> const& chunk, void const* from) {
    if (chunk.gradient_type == element_type::f32) {
      uint4 const read = __ldcg(reinterpret_cast<uint4 const*>(static_cast<float const*>(from) + first));
      gradient[0] = read.x;
      gradient[1] = read.y;
      gradient[2] = read.z;
      gradient[3] = read.w;
    } else {
      uint2 const read = __ldcg(reinterpret_cast<uint2 const*>(static_cast<std::uint16_t const*>(from) + first));
      gradient[0] = read.x;
      gradient[1] = read.y;
    }
  }
  __device__ void load_each_state(update_chunk<Slots> const& chunk) {
    clear();
    for_each(chunk, [&](int j, int i) {
      weights[j] = __ldcg(chunk.weights + i);
#pragma unroll
      for (std::size_t s = 0; s != Slots; ++s) {
        slots[s][j] = __ldcg(chunk.slots[s] + i);
      }
    });
  }
  __device__ void load_each_gradient(update_chunk<Slots> const& chunk, void const* from) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      gradient[j] = 0;
    }
    if (chunk.gradient_type == element_type::f32) {
      for_each(chunk, [&](int j, int i) { gradient[j] = __ldcg(static_cast<std::uint32_t const*>(from) + i); });
    } else {
      for_each(chunk, [&](int j, int i) {
        std::uint32_t const half = __ldcg(static_cast<std::uint16_t const*>(from) + i);
        gradient[j / 2] |= half << (16 * (j % 2));
      });
    }
  }
  __device__ void store_whole_weights(float* to) const {
    __stcg(reinterpret_cast<float4*>(to + first), float4{weights[0], weights[1], weights[2], weights[3]});
  }
  __device__ void store_whole_narrowed(update_chunk<Slots> const& chunk, void* to) const {
    __stcg(reinterpret_cast<ushort4*>(static_cast<std::uint16_t*>(to) + first),
           ushort4{narrowed(0, chunk.value_type), narrowed(1, chunk.value_type), narrowed(2, chunk.value_type),
                   narrowed(3, chunk.value_type)});
  }
};

/// `*from`, read at once: left alone, the compiler waits for what is needed first before it reads the rest.
template <std::size_t Slots>
__device__ update_chunk<Slots> read_chunk(update_chunk<Slots> const* from) {
  struct {
    uint4 words[sizeof(update_chunk<Slots>) / sizeof(uint4)];
  } bits;
#pragma unroll
  for (std::size_t i = 0; i < sizeof bits / sizeof(uint4); ++i) {
    bits.words[i] = __ldca(reinterpret_cast<uint4 const*>(from) + i);
  }
  return __builtin_bit_cast(update_chunk<Slots>, bits);
}

/// The same; without any, one that changes nothing.
__device__ inline step_decision read_decision(step_decision const* from) {
  step_decision decision{};
  if (from != nullptr) {
    uint2 const bits = __ldca(reinterpret_cast<uint2 const*>(from));
    decision = {__uint_as_float(bits.x), bits.y};
  }
  return decision;
}

/// One block a chunk; so many blocks are resident that they hide each other's memory and arithmetic. The arithmetic stands here
/// once, for every type and alignment, so that equal numbers get equal updates wherever they lie.
template <class Optimizer>
__global__ void __launch_bounds__(update_threads, update_blocks<slot_count<Optimizer>>)
    update(update_chunk<slot_count<Optimizer>> const* chunks, Optimizer const* optimizers,
           prepared_type<Optimizer> const* prepared, step_decision const* decision, double const* uses) {
  update_chunk<slot_count<Optimizer>> const chunk = read_chunk(chunks + blockIdx.x);
  update_four<slot_count<Optimizer>> mine{chunk};
  mine.load(chunk);  // before the rest is looked at, which seldom says that it was in vain
  step_decision const step = read_decision(decision);
  if (step.skipped != 0 || (uses != nullptr && uses[chunk.parameter] == 0) || mine.beyond(chunk)) {
    return;
  }
  Optimizer const optimizer = optimizers[chunk.group];
  prepared_type<Optimizer> const ready = prepared[chunk.group];
  float gradients[4];
  mine.widen(chunk.gradient_type, gradients);
  mine.advance(gradients, step.factor, optimizer, ready, std::make_index_sequence<slot_count<Optimizer>>{});
  mine.store(chunk);
}

/// The parameters of every rank as each other rank reaches them: `of(rank, p)`.
struct update_peers {
  peer_parameter const* all;
  std::uint32_t parameters;
  int rank;
  int size;
  std::uint32_t const* stopped;  // nothing is done where it is not 0

  [[nodiscard]] __device__ peer_parameter of(int peer, std::uint32_t parameter) const {
    return all[static_cast<std::size_t>(peer) * parameters + parameter];
  }
};

/// The same as `update`, from the sum of the gradients of all ranks, rank 0's first, and with the new values written to all.
/// Every rank has met the others since its gradients were written; after all have met again, the values may be read.
template <class Optimizer>
__global__ void __launch_bounds__(update_threads)
    update_shared(update_chunk<slot_count<Optimizer>> const* chunks, Optimizer const* optimizers,
                  prepared_type<Optimizer> const* prepared, step_decision const* decision, update_peers const peers) {
  constexpr int at_once = 3;  // peers whose gradients are on their way together
  update_chunk<slot_count<Optimizer>> const chunk = read_chunk(chunks + blockIdx.x);
  update_four<slot_count<Optimizer>> mine{chunk};
  step_decision const step = read_decision(decision);
  if (mine.beyond(chunk) || *peers.stopped != 0 || step.skipped != 0) {
    return;
  }
  peer_parameter const own = peers.of(peers.rank, chunk.parameter);
  auto const gradient_at = static_cast<std::byte const*>(chunk.gradient) - static_cast<std::byte const*>(own.gradient);
  void* const value = chunk.values != nullptr ? chunk.values : chunk.weights;
  auto const value_at = static_cast<std::byte*>(value) - static_cast<std::byte*>(own.value);
  float sum[4] = {};
  update_four<slot_count<Optimizer>> theirs[at_once] = {mine, mine, mine};
  for (int first = 0; first < peers.size; first += at_once) {
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      if (first + i < peers.size) {
        auto const* const begin = static_cast<std::byte const*>(peers.of(first + i, chunk.parameter).gradient);
        theirs[i].load_gradient(chunk, begin + gradient_at);
      }
    }
    if (first == 0) {
      mine.load_state(chunk);
    }
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      if (first + i < peers.size) {
        float gradients[4];
        theirs[i].widen(chunk.gradient_type, gradients);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          sum[j] = first + i == 0 ? gradients[j] : sum[j] + gradients[j];
        }
      }
    }
  }
  Optimizer const optimizer = optimizers[chunk.group];
  prepared_type<Optimizer> const ready = prepared[chunk.group];
  mine.advance(sum, step.factor, optimizer, ready, std::make_index_sequence<slot_count<Optimizer>>{});
  mine.store(chunk);
  for (int peer = 0; peer < peers.size; ++peer) {
    if (peer != peers.rank) {
      mine.store_values(chunk, static_cast<std::byte*>(peers.of(peer, chunk.parameter).value) + value_at);
    }
  }
}

/// One block a chunk.
template <std::size_t Slots>
__global__ void load_masters(update_chunk<Slots> const* chunks) {
  update_chunk<Slots> const chunk = chunks[blockIdx.x];
  for (unsigned i = threadIdx.x; chunk.values != nullptr && i < static_cast<unsigned>(chunk.count); i += blockDim.x) {
    chunk.weights[i] = chunk.value_type == element_type::bf16 ? float{static_cast<bfloat16 const*>(chunk.values)[i]}
                                                              : float{static_cast<float16 const*>(chunk.values)[i]};
  }
}

/// One thread a group.
template <class Optimizer>
__global__ void prepare_update(Optimizer const* optimizers, prepared_type<Optimizer>* prepared, std::uint64_t const* applied) {
  auto const group = static_cast<std::uint8_t>(threadIdx.x);
  Optimizer const optimizer = optimizers[group];
  ::new (prepared + group) prepared_type<Optimizer>(optimizer.prepare(info_for(optimizer, *applied + 1, group)));
}

/// Bytes that travel as a kernel's argument: no memory of the host's has to outlive the call.
struct argument_bytes {
  unsigned char bytes[3072];  // of the 4 KiB that every GPU takes
};

template <class = void>
__global__ void store_argument(argument_bytes const from, unsigned char* to, unsigned bytes) {
  for (unsigned i = threadIdx.x; i < bytes; i += blockDim.x) {
    to[i] = from.bytes[i];
  }
}

}  // namespace cuda_detail

/// One launch for any range of buckets, whatever the types, groups and alignment of what it updates. Four elements of an array
/// are accessed at once where all arrays of a segment begin equally many elements behind an address aligned for that; elsewhere
/// they are accessed one by one, which is slower. Arithmetic is IEEE's, square roots and divisions included, but for products
/// and sums of an optimizer that the compiler fuses, rounding once (nvcc's default): equal to the host's results up to
/// rounding. Serves every backend that derives from cuda, with devices or memory of its own. Requires: the device is current in
/// every call.
template <std::derived_from<cuda> Backend, elementwise_optimizer Optimizer>
class elementwise_update<Backend, Optimizer> {
 public:
  static constexpr std::size_t slots = slot_count<Optimizer>;
  using segment = update_segment<slots>;

  /// Synchronizes: the host waits until the list of chunks is on the device.
  elementwise_update(typename Backend::device& device, std::vector<segment> segments) : set_(segments) {
    std::stable_sort(segments.begin(), segments.end(), [](segment const& a, segment const& b) { return a.bucket < b.bucket; });
    std::vector<chunk> chunks;
    for (segment const& s : segments) {
      firsts_.resize((std::max)(firsts_.size(), s.bucket + 1), chunks.size());
      cut(s, chunks);
      narrow_ = narrow_ || s.master != nullptr;
    }
    firsts_.push_back(chunks.size());
    chunks_ = device.allocate(chunks.size() * sizeof(chunk), memory_use::staging);
    optimizers_ = device.allocate(set_.groups() * sizeof(Optimizer), memory_use::staging);
    prepared_ = device.allocate(set_.groups() * sizeof(prepared_type<Optimizer>), memory_use::staging);
    Backend::copy(device.stream(), chunks_.data(), chunks.data(), chunks.size() * sizeof(chunk));
    cuda_detail::load(cuda_detail::load_masters<slots>);
    cuda_detail::load(cuda_detail::store_argument<>);
    cuda_detail::load(cuda_detail::update<Optimizer>);
    if constexpr (prepares<Optimizer>) {
      cuda_detail::load(cuda_detail::prepare_update<Optimizer>);
    }
    device.stream().synchronize();
  }

  /// Makes every f32 master equal to the 16-bit value it stands for.
  void load_masters(cuda::stream_ref stream) const {
    if (narrow_ && firsts_.back() != 0) {
      cuda_detail::load_masters<slots><<<static_cast<unsigned>(firsts_.back()), cuda_detail::update_threads, 0, stream.get()>>>(
          chunks_.template as<chunk>());
      check(cudaGetLastError());
    }
  }

  /// `optimizers`, one or one a group, are those of later calls. Enqueues nothing when no byte of them changed. Throws
  /// usage_error when there are too few.
  void set(cuda::stream_ref stream, std::span<Optimizer const> optimizers) {
    if (!set_.set(optimizers)) {
      return;
    }
    std::size_t const bytes = set_.groups() * sizeof(Optimizer);
    cuda_detail::argument_bytes part{};
    for (std::size_t done = 0; done < bytes; done += sizeof part) {
      std::size_t const now = (std::min)(bytes - done, sizeof part);
      std::memcpy(part.bytes, reinterpret_cast<unsigned char const*>(set_.all().data()) + done, now);
      cuda_detail::store_argument<><<<1, cuda_detail::update_threads, 0, stream.get()>>>(
          part, optimizers_.template as<unsigned char>() + done, static_cast<unsigned>(now));
      check(cudaGetLastError());
    }
  }

  /// Works out what all elements of a group share, for update number `*applied` + 1. Throws usage_error before `set`.
  void prepare(cuda::stream_ref stream, std::uint64_t const* applied) {
    static_cast<void>(set_.all());
    if constexpr (prepares<Optimizer>) {
      cuda_detail::prepare_update<<<1, static_cast<unsigned>(set_.groups()), 0, stream.get()>>>(
          optimizers_.template as<Optimizer>(), prepared_.template as<prepared_type<Optimizer>>(), applied);
      check(cudaGetLastError());
    }
  }

  /// Where ranks reach each other's memory: `peers` has the parameters of every rank, `parameters` each, rank after rank.
  void share(typename Backend::device& device, std::span<peer_parameter const> peers, int rank, int size) {
    peers_ = device.allocate(peers.size_bytes(), memory_use::staging);
    Backend::copy(device.stream(), peers_.data(), peers.data(), peers.size_bytes());
    cuda_detail::load(cuda_detail::update_shared<Optimizer>);
    device.stream().synchronize();
    view_ = {peers_.template as<peer_parameter>(), static_cast<std::uint32_t>(peers.size() / static_cast<std::size_t>(size)),
             rank, size, nullptr};
  }

  /// Updates the segments of these buckets from the gradients of all ranks, and writes the new values to all of them. Between
  /// two meetings of the ranks. Does nothing where `*stopped` is not 0. Requires: `share` and `prepare` came before.
  void run_shared(cuda::stream_ref stream, plan::range buckets, step_decision const* decision,
                  std::uint32_t const* stopped) const {
    std::size_t const first = first_of(buckets.first);
    if (std::size_t const last = first_of(buckets.end()); first < last) {
      cuda_detail::update_peers view = view_;
      view.stopped = stopped;
      cuda_detail::update_shared<Optimizer>
          <<<static_cast<unsigned>(last - first), cuda_detail::update_threads, 0, stream.get()>>>(
              chunks_.template as<chunk>() + first, optimizers_.template as<Optimizer>(),
              prepared_.template as<prepared_type<Optimizer>>(), decision, view);
      check(cudaGetLastError());
    }
  }

  /// Updates the segments of these buckets. Requires: `prepare` came before.
  void run(cuda::stream_ref stream, plan::range buckets, step_decision const* decision, double const* uses) const {
    std::size_t const first = first_of(buckets.first);
    if (std::size_t const last = first_of(buckets.end()); first < last) {
      cuda_detail::update<Optimizer><<<static_cast<unsigned>(last - first), cuda_detail::update_threads, 0, stream.get()>>>(
          chunks_.template as<chunk>() + first, optimizers_.template as<Optimizer>(),
          prepared_.template as<prepared_type<Optimizer>>(), decision, uses);
      check(cudaGetLastError());
    }
  }

 private:
  using chunk = cuda_detail::update_chunk<slots>;

  /// Where the chunks of a bucket begin; those of buckets beyond the last segment, at the end.
  [[nodiscard]] std::size_t first_of(std::size_t bucket) const { return firsts_[(std::min)(bucket, firsts_.size() - 1)]; }

  static std::uint8_t behind_four(void const* array, std::size_t element_bytes) {
    return static_cast<std::uint8_t>(reinterpret_cast<std::uintptr_t>(array) / element_bytes % 4);
  }

  static void cut(segment const& whole, std::vector<chunk>& chunks) {
    std::uint8_t const lead = behind_four(whole.value, size_of(whole.value_type));
    bool alike = whole.peers_alike && behind_four(whole.gradient, size_of(whole.gradient_type)) == lead;
    alike = alike && (whole.master == nullptr || behind_four(whole.master, sizeof(float)) == lead);
    for (std::size_t slot = 0; slot != slots; ++slot) {
      alike = alike && behind_four(whole.slots[slot], sizeof(float)) == lead;
    }
    for (std::size_t first = 0, count = 0; first < whole.count; first += count) {
      chunk part{};
      part.lead = static_cast<std::uint8_t>(!alike ? 4 : first == 0 ? lead : 0);
      count = (std::min)(whole.count - first, std::size_t{cuda_detail::update_elements} - part.lead % 4);
      bool const narrow = whole.value_type != element_type::f32;
      void* const value = static_cast<std::byte*>(whole.value) + first * size_of(whole.value_type);
      part.weights = narrow ? whole.master + first : static_cast<float*>(value);
      part.values = narrow ? value : nullptr;
      part.gradient = static_cast<std::byte const*>(whole.gradient) + first * size_of(whole.gradient_type);
      for (std::size_t slot = 0; slot != slots; ++slot) {
        part.slots[slot] = whole.slots[slot] + first;
      }
      part.count = static_cast<int>(count);
      part.parameter = static_cast<std::uint32_t>(whole.parameter);
      part.value_type = whole.value_type;
      part.gradient_type = whole.gradient_type;
      part.group = whole.group;
      chunks.push_back(part);
    }
  }

  elementwise::hyperparameters<Optimizer> set_;
  typename Backend::buffer chunks_;
  typename Backend::buffer optimizers_;  // one a group
  typename Backend::buffer prepared_;    // one a group
  typename Backend::buffer peers_;       // of view_
  cuda_detail::update_peers view_{};
  std::vector<std::size_t> firsts_;  // by bucket: its first chunk; at the end, how many chunks there are
  bool narrow_ = false;              // there are masters
};

}  // namespace lockstep
