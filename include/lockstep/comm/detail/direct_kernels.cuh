// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/comm/detail/direct_arithmetic.cuh>
#include <lockstep/comm/detail/direct_device.cuh>
#include <lockstep/comm/detail/direct_plan.hpp>
#include <lockstep/comm/detail/direct_protocol.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

/// The kernels of the collectives over peer memory: direct_protocol.hpp with pointers.
namespace lockstep::comm_detail {

inline constexpr unsigned whole_warp = 0xffffffffU;
inline constexpr unsigned most_packet_threads = 512;
inline constexpr unsigned most_movers = 16;  // warps of a block that move chunks
inline constexpr unsigned most_bulk_threads = 32 * (most_movers + 2);
inline constexpr int bulk_blocks_at_once =
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    1;  // those before hold 1,024 threads
#else
    2;
#endif

// ---- memory of any alignment ---------------------------------------------------------------------------------------------

/// Bytes of an element, as a word.
__device__ inline std::uint64_t load_element(std::byte const* from, unsigned element_bytes) {
  switch (element_bytes) {
    case 8: return *reinterpret_cast<std::uint64_t const*>(from);
    case 4: return *reinterpret_cast<std::uint32_t const*>(from);
    case 2: return *reinterpret_cast<std::uint16_t const*>(from);
    default: return *reinterpret_cast<std::uint8_t const*>(from);
  }
}
__device__ inline void store_element(std::byte* to, std::uint64_t bits, unsigned element_bytes) {
  switch (element_bytes) {
    case 8: *reinterpret_cast<std::uint64_t*>(to) = bits; break;
    case 4: *reinterpret_cast<std::uint32_t*>(to) = static_cast<std::uint32_t>(bits); break;
    case 2: *reinterpret_cast<std::uint16_t*>(to) = static_cast<std::uint16_t>(bits); break;
    default: *reinterpret_cast<std::uint8_t*>(to) = static_cast<std::uint8_t>(bits);
  }
}
/// Up to eight bytes, element by element; the rest of the word is 0.
__device__ __noinline__ inline std::uint64_t load_elements(std::byte const* from, unsigned bytes, unsigned element_bytes) {
  std::uint64_t word = 0;
  for (unsigned at = 0; at < bytes; at += element_bytes) {
    word |= load_element(from + at, element_bytes) << (8 * at);
  }
  return word;
}
__device__ __noinline__ inline void store_elements(std::byte* to, std::uint64_t word, unsigned bytes, unsigned element_bytes) {
  for (unsigned at = 0; at < bytes; at += element_bytes) {
    store_element(to + at, word >> (8 * at), element_bytes);
  }
}
[[nodiscard]] __device__ inline unsigned misalignment(void const* pointer, unsigned of) {
  return static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(pointer)) & (of - 1);
}

// ---- packets -------------------------------------------------------------------------------------------------------------

/// A warp's packet is 512 bytes in an inbox: 16 a lane, of which eight are data, and a flag stands beside each half of them.
struct words_format {
  static constexpr std::uint32_t payload = words_payload;
  static constexpr int words = 1;

  __device__ static std::uint64_t inbox(direct_layout const& layout, int owner, std::uint32_t channel, unsigned parity,
                                        int of) {
    return layout.words(owner, channel, parity, of);
  }
  __device__ static unsigned offset(unsigned lane) { return 8 * lane; }
  __device__ static unsigned bytes(unsigned) { return 8; }
  __device__ static void push(void* to, std::uint64_t const (&data)[1], std::uint64_t epoch, unsigned) {
    push_word(to, data[0], word_flag(epoch));
  }
  using entry = uint4;
  __device__ static entry peek(void const* from) { return peek_word(from); }
  __device__ static bool is_complete(entry const& seen, std::uint64_t epoch, unsigned) {
    return has_word(seen, word_flag(epoch));
  }
  __device__ static void open(entry const& seen, std::uint64_t (&data)[1]) { data[0] = word_of(seen); }
  __device__ static bool agree(bool complete) { return complete; }
  static constexpr bool may_come_in_parts = false;
};

/// A warp's packet is 512 bytes in an inbox, four lines of 128, each written and read by eight lanes at once; the last eight
/// bytes of a line are its flag. NVLink brings a line that one instruction wrote as a whole; so a warp comes together before it
/// writes or reads one. Lanes without a flag hold 16 bytes each, the first 448 of the packet's data in their order, and those
/// with one the last 32.
struct lines_format {
  static constexpr std::uint32_t payload = lines_payload;
  static constexpr int words = 2;

  __device__ static std::uint64_t inbox(direct_layout const& layout, int owner, std::uint32_t channel, unsigned parity,
                                        int of) {
    return layout.lines(owner, channel, parity, of);
  }
  __device__ static bool has_flag(unsigned lane) { return lane % 8 == 7; }
  __device__ static unsigned offset(unsigned lane) { return has_flag(lane) ? 448 + lane / 8 * 8 : 16 * (lane - lane / 8); }
  __device__ static unsigned bytes(unsigned lane) { return has_flag(lane) ? 8 : 16; }
  __device__ static void push(void* to, std::uint64_t const (&data)[2], std::uint64_t epoch, unsigned lane) {
    __syncwarp();
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(data[0]), "l"(has_flag(lane) ? epoch : data[1])
                 : "memory");
  }
  struct entry {
    std::uint64_t words[2];
  };
  __device__ static entry peek(void const* from) {
    entry seen;
    __syncwarp();
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(seen.words[0]), "=l"(seen.words[1])
                 : "l"(from)
                 : "memory");
    return seen;
  }
  __device__ static bool is_complete(entry const& seen, std::uint64_t epoch, unsigned lane) {
    return !has_flag(lane) || seen.words[1] == epoch;
  }
  __device__ static void open(entry const& seen, std::uint64_t (&data)[2]) {
    data[0] = seen.words[0];
    data[1] = seen.words[1];
  }
  __device__ static bool agree(bool complete) { return __all_sync(whole_warp, complete) != 0; }
  static constexpr bool may_come_in_parts = true;
};

/// Waits for a word that comes by itself.
[[nodiscard]] __device__ inline bool await_word(direct_world const& world, std::uint64_t at, std::uint64_t epoch, int source,
                                                std::uint64_t& word) {
  direct_patience patience;
  for (;;) {
    uint4 const seen = peek_word(own_window(world) + at);
    if (has_word(seen, word_flag(epoch))) {
      word = word_of(seen);
      return true;
    }
    if (!patience.go_on(world, blockIdx.x, epoch, source)) {
      return false;
    }
  }
}

/// What direct_protocol.hpp calls a lane.
template <class Format>
class packet_lane {
 public:
  static constexpr std::uint32_t payload = Format::payload;
  static constexpr int piece_words = Format::words;
  struct piece {
    std::uint64_t words[piece_words];
  };
  using entry = typename Format::entry;

  __device__ packet_lane(direct_world const& world, direct_call const& call)
      : world_(world), call_(call), lane_(threadIdx.x % 32), warp_(threadIdx.x / 32) {}

  /// The loads before it are under way when this one is.
  __device__ void begin() { epoch_ = load_relaxed(&record_of(world_, blockIdx.x)->epoch) + 1; }

  __device__ int rank() const { return world_.rank; }
  __device__ int size() const { return world_.size; }
  __device__ std::uint64_t epoch() const { return epoch_; }
  __device__ std::uint32_t packet(std::uint32_t round) const {
    return (round * call_.blocks + blockIdx.x) * call_.warps + warp_;
  }

  /// The lane's piece of the packet that begins `at` bytes into a share; 0 beyond its end.
  __device__ piece load(std::uint64_t first, std::uint64_t at, std::uint64_t count) const {
    piece loaded{};
    at += Format::offset(lane_);
    std::byte const* const from = call_.data + first + at;
    unsigned const most = Format::bytes(lane_);
    if (at + most <= count && misalignment(from, 16) == 0 && most == 16) {
      uint4 const v = *reinterpret_cast<uint4 const*>(from);
      loaded.words[0] = v.x | std::uint64_t{v.y} << 32U;
      loaded.words[piece_words - 1] = v.z | std::uint64_t{v.w} << 32U;
    } else if (at + most <= count && misalignment(from, 8) == 0) {
      loaded.words[0] = *reinterpret_cast<std::uint64_t const*>(from);
      if (most == 16) {
        loaded.words[piece_words - 1] = *reinterpret_cast<std::uint64_t const*>(from + 8);
      }
    } else if (at < count) {
      unsigned const there = bytes_there(at, count);
      loaded.words[0] = load_elements(from, (min)(there, 8U), call_.element_bytes);
      if (there > 8) {
        loaded.words[piece_words - 1] = load_elements(from + 8, there - 8, call_.element_bytes);
      }
    }
    return loaded;
  }
  __device__ void store(std::uint64_t first, std::uint64_t at, std::uint64_t count, piece const& stored) const {
    at += Format::offset(lane_);
    std::byte* const to = call_.data + first + at;
    unsigned const most = Format::bytes(lane_);
    if (at + most <= count && misalignment(to, 16) == 0 && most == 16) {
      std::uint64_t const high = stored.words[piece_words - 1];
      *reinterpret_cast<uint4*>(to) =
          make_uint4(static_cast<std::uint32_t>(stored.words[0]), static_cast<std::uint32_t>(stored.words[0] >> 32U),
                     static_cast<std::uint32_t>(high), static_cast<std::uint32_t>(high >> 32U));
    } else if (at + most <= count && misalignment(to, 8) == 0) {
      *reinterpret_cast<std::uint64_t*>(to) = stored.words[0];
      if (most == 16) {
        *reinterpret_cast<std::uint64_t*>(to + 8) = stored.words[piece_words - 1];
      }
    } else if (at < count) {
      unsigned const there = bytes_there(at, count);
      store_elements(to, stored.words[0], (min)(there, 8U), call_.element_bytes);
      if (there > 8) {
        store_elements(to + 8, stored.words[piece_words - 1], there - 8, call_.element_bytes);
      }
    }
  }

  __device__ void push(int peer, std::uint32_t round, piece const& sent) const {
    Format::push(world_.windows[peer] + inbox(peer, world_.rank, round), sent.words, epoch_, lane_);
  }
  __device__ entry peek(int source, std::uint32_t round) const {
    return Format::peek(own_window(world_) + inbox(world_.rank, source, round));
  }
  __device__ bool is_complete(entry const& seen) const { return Format::is_complete(seen, epoch_, lane_); }
  __device__ bool agree(bool complete) const { return Format::agree(complete); }
  /// What a complete entry holds.
  __device__ piece open(entry const& seen, int source, std::uint32_t round) const {
    piece opened;
    if (Format::may_come_in_parts && world_.rereads_lines) {
      Format::open(peek(source, round), opened.words);
    } else {
      Format::open(seen, opened.words);
    }
    return opened;
  }
  /// Where ranks may get no data from each other, a thread a peer sees to it that they have begun.
  __device__ void send_arrivals() const {
    if (meets()) {
      push_word(world_.windows[threadIdx.x] + world_.layout.arrival(blockIdx.x, epoch_ % 2, world_.rank), 0, word_flag(epoch_));
    }
  }
  __device__ bool await_arrivals() const {
    std::uint64_t word = 0;
    return !meets() || await_word(world_, world_.layout.arrival(blockIdx.x, epoch_ % 2, static_cast<int>(threadIdx.x)), epoch_,
                                  static_cast<int>(threadIdx.x), word);
  }
  /// `seen` are those of the ranks from `first` on.
  template <int Count>
  __device__ bool go_on(entry const (&seen)[Count], int first) {
    int missing = -1;
    for (int i = Count - 1; i >= 0; --i) {
      if (first + i < world_.size && first + i != world_.rank && !is_complete(seen[i])) {
        missing = first + i;
      }
    }
    // Where lanes wait together, one that has its own pieces leaves it to others to say who is missing.
    return Format::agree(missing < 0 || patience_.go_on(world_, blockIdx.x, epoch_, missing));
  }

 private:
  __device__ bool meets() const {
    return call_.meets && static_cast<int>(threadIdx.x) < world_.size && static_cast<int>(threadIdx.x) != world_.rank;
  }
  __device__ unsigned bytes_there(std::uint64_t at, std::uint64_t count) const {
    std::uint64_t const left = count - at;
    unsigned const most = Format::bytes(lane_);
    return left < most ? static_cast<unsigned>(left) : most;
  }
  __device__ std::uint64_t inbox(int owner, int of, std::uint32_t round) const {
    return Format::inbox(world_.layout, owner, blockIdx.x, epoch_ % 2, of) + 512 * (round * call_.warps + warp_) + 16 * lane_;
  }

  direct_world const& world_;
  direct_call const& call_;
  unsigned lane_;
  unsigned warp_;
  std::uint64_t epoch_ = 0;
  direct_patience patience_;
};

/// A collective in packets: `exchange(lane)` does it.
template <class Format, class Exchange>
__device__ void run_packets(direct_world const& world, direct_call const& call, Exchange const& exchange) {
  if (world.size < 2) {
    return;
  }
  begin_dependent_launch();
  packet_lane<Format> lane{world, call};
  bool const done = exchange(lane);
  if (__syncthreads_and(done ? 1 : 0) != 0 && threadIdx.x == 0) {
    record_of(world, blockIdx.x)->epoch = lane.epoch();
  }
}

template <class Format, class T>
__global__ void __launch_bounds__(most_packet_threads, 2)
    sum_packets(direct_world const __grid_constant__ world, direct_call const __grid_constant__ call) {
  run_packets<Format>(world, call, [&](auto& lane) { return reduce_packets(lane, call, sum_in_words<T>{}); });
}

template <class Format>
__global__ void __launch_bounds__(most_packet_threads, 2)
    reduce_any_packets(direct_world const __grid_constant__ world, direct_call const __grid_constant__ call) {
  run_packets<Format>(world, call, [&](auto& lane) { return reduce_packets(lane, call, any_in_words{call.type, call.how}); });
}

template <class Format>
__global__ void __launch_bounds__(most_packet_threads, 2)
    copy_all_packets(direct_world const __grid_constant__ world, direct_call const __grid_constant__ call) {
  run_packets<Format>(world, call, [&](auto& lane) { return copy_packets(lane, call); });
}

// ---- chunks --------------------------------------------------------------------------------------------------------------

/// What the warps of a block tell each other.
struct bulk_shared {
  std::uint32_t ready;                // 1: all arrived; k + 2: chunk k of this collective is there
  std::uint32_t pushed[most_movers];  // chunks of which a warp has sent its part: one may be ahead of another
  std::uint32_t finished;             // warps that have done everything
  std::uint32_t stopped;
  std::uint32_t alike;  // the data of all ranks begins at the same place within 16 bytes
  direct_record record;
  std::byte* data[most_peers];
};

/// A chunk lies in an inbox as it lies in the sender's data, relative to addresses divisible by 16: so both ends move whole
/// 16-byte vectors, but for a few elements at the ends.
struct bulk_grid {
  std::uint32_t bytes;
  std::uint32_t shift;  // of the first byte behind an address divisible by 16
  std::uint32_t first;  // whole vectors
  std::uint32_t last;

  __device__ bulk_grid(std::byte const* begin, std::uint32_t length)
      : bytes(length), shift(misalignment(begin, 16)), first(shift != 0 ? 1 : 0), last((shift + length) / 16) {
    last = last < first ? first : last;
  }
  __device__ bool ragged() const { return shift != 0 || bytes % 16 != 0; }
  /// Bytes in front of the whole vectors.
  __device__ std::uint32_t head() const { return shift == 0 ? 0 : (min)(16 - shift, bytes); }
  /// Where those behind them begin.
  __device__ std::uint32_t tail() const { return (max)(head(), (min)(16 * last - shift, bytes)); }
};

/// The whole vectors of a chunk that one lane moves at a time: `Count` of them, 512 bytes apart, so that a warp's are together.
inline constexpr std::uint32_t vector_stride = 32 * sizeof(uint4);
template <unsigned Count>
class vector_batch {
 public:
  __device__ vector_batch(bulk_grid const& grid, std::uint32_t warps)
      : at_(16 * grid.first + vector_stride * Count * (threadIdx.x / 32) + 16 * (threadIdx.x % 32)),
        end_(16 * grid.last),
        step_(vector_stride * Count * warps) {}

  __device__ bool goes_on() const { return at_ < end_; }
  __device__ void next() { at_ += step_; }
  /// Bytes behind the grid's begin.
  __device__ std::uint32_t at() const { return at_; }
  __device__ bool has(unsigned index) const { return at_ + vector_stride * index < end_; }

 private:
  std::uint32_t at_;
  std::uint32_t end_;
  std::uint32_t step_;
};

/// What direct_protocol.hpp calls a block. `Copy`: nothing is combined, and data goes straight to where it belongs.
template <bool Copy, class Arithmetic>
class bulk_block {
 public:
  __device__ bulk_block(direct_world const& world, direct_call const& call, bulk_shared& shared, Arithmetic arithmetic)
      : world_(world), call_(call), shared_(shared), arithmetic_(arithmetic) {}

  __device__ std::uint32_t steps() const { return call_.steps(blockIdx.x); }
  __device__ std::uint32_t lag() const { return world_.layout.depth / 2 - 1; }
  /// Whether this rank sends something to the owners.
  __device__ bool contributes() const { return has_rank(call_.contributors, world_.rank); }
  __device__ bool sends_into_data() const { return Copy; }
  __device__ bool has_targets() const { return (call_.targets & ~(1U << static_cast<unsigned>(world_.rank))) != 0; }

  // ---- data ----

  __device__ void push(std::uint32_t step) const {
    std::uint64_t const at = chunk_at(step);
    for (int i = 1; i < world_.size; ++i) {
      int const peer = world_.rank + i < world_.size ? world_.rank + i : world_.rank + i - world_.size;
      direct_call::range const share = call_.share(peer, world_.size);
      if (at < share.count) {
        std::byte const* const from = call_.data + share.first + at;
        bulk_grid const grid{from, length(share.count - at)};
        if constexpr (Copy) {
          copy(shared_.data[peer] + share.first + at, from, grid);
        } else {
          copy(inbox(peer, step, world_.rank) + grid.shift, from, grid);
        }
      }
    }
  }
  __device__ void combine(std::uint32_t step) const {
    std::uint64_t const at = chunk_at(step);
    direct_call::range const share = call_.share(world_.rank, world_.size);
    if (at >= share.count) {
      return;
    }
    std::uint64_t const first = share.first + at;
    bulk_grid const grid{call_.data + first, length(share.count - at)};
    if constexpr (Copy) {
      for (int i = 1; i < world_.size; ++i) {
        int const peer = world_.rank + i < world_.size ? world_.rank + i : world_.rank + i - world_.size;
        if (has_rank(call_.targets, peer)) {
          copy(shared_.data[peer] + first, call_.data + first, grid);
        }
      }
    } else if (shared_.alike != 0) {
      combine_vectors(step, first, grid);
      if (grid.ragged()) {
        combine_elements(*this, step, first, 0, grid.head());
        combine_elements(*this, step, first, grid.tail(), grid.bytes);
      }
    } else {
      combine_elements(*this, step, first, 0, grid.bytes);
    }
  }
  __device__ void mark_pushed(std::uint32_t chunks) const {
    __syncwarp();
    if (lane() == 0) {
      shared_release(&shared_.pushed[threadIdx.x / 32], chunks);
    }
  }
  __device__ void mark_finished() const {
    __syncwarp();
    if (lane() == 0) {
      shared_count(&shared_.finished);
    }
  }
  __device__ bool wait_ready(std::uint32_t value) const { return wait(&shared_.ready, value); }

  // ---- telling ----

  __device__ void send_arrivals() const {
    int const peer = lane();
    if (is_peer(peer)) {
      fence_system();
      push_word(world_.windows[peer] + world_.layout.arrival(blockIdx.x, epoch() % 2, world_.rank),
                reinterpret_cast<std::uintptr_t>(call_.data), word_flag(epoch()));
    }
  }
  /// A lane looks at a warp.
  __device__ bool wait_pushed(std::uint32_t chunks) const {
    bool const concerned = lane() < static_cast<int>(call_.warps);
    bool const goes_on = !concerned || wait(&shared_.pushed[lane()], chunks);
    __syncwarp();
    return __all_sync(whole_warp, goes_on) != 0;
  }
  __device__ bool wait_finished() const { return wait(&shared_.finished, call_.warps); }
  __device__ void send_chunk_flags(std::uint32_t chunks) const {
    int const peer = lane();
    fence_system();
    if (is_peer(peer)) {
      store_relaxed(flag(peer, world_.layout.chunk_flag(blockIdx.x, world_.rank)), shared_.record.chunks + chunks);
    }
  }
  __device__ void send_exit_flags() const {
    int const peer = lane();
    fence_system();
    if (is_peer(peer) && has_rank(call_.targets, peer)) {
      store_relaxed(flag(peer, world_.layout.exit_flag(blockIdx.x, world_.rank)), epoch());
    }
  }

  // ---- hearing ----

  __device__ bool await_arrivals() const {
    int const peer = lane();
    std::uint64_t word = reinterpret_cast<std::uintptr_t>(call_.data);
    bool const heard = await(is_peer(peer), [&] {
      uint4 const seen = peek_word(own_window(world_) + world_.layout.arrival(blockIdx.x, epoch() % 2, peer));
      if (!has_word(seen, word_flag(epoch()))) {
        return false;
      }
      word = word_of(seen);
      return true;
    });
    if (!heard) {
      return false;
    }
    fence_system();
    if (peer < world_.size) {
      shared_.data[peer] = reinterpret_cast<std::byte*>(word);
    }
    bool const alike = (word & 15U) == misalignment(call_.data, 16);
    shared_.alike = __all_sync(whole_warp, alike) != 0 ? 1 : 0;
    return true;
  }
  __device__ bool await_chunk_flags(std::uint32_t chunks) const {
    int const peer = lane();
    return await_at_least(is_peer(peer) && has_rank(call_.contributors, peer), world_.layout.chunk_flag(blockIdx.x, peer),
                          shared_.record.chunks + chunks);
  }
  __device__ bool await_exit_flags() const {
    int const peer = lane();
    return await_at_least(is_peer(peer) && has_rank(call_.targets, world_.rank), world_.layout.exit_flag(blockIdx.x, peer),
                          epoch());
  }
  __device__ void publish_ready(std::uint32_t value) const {
    __syncwarp();
    if (lane() == 0) {
      shared_release(&shared_.ready, value);
    }
  }
  __device__ void publish_stop() const {
    if (lane() == 0) {
      shared_release(&shared_.stopped, 1);
    }
  }

 private:
  __device__ static int lane() { return static_cast<int>(threadIdx.x % 32); }
  __device__ std::uint64_t epoch() const { return shared_.record.epoch + 1; }
  __device__ bool is_peer(int rank) const { return rank < world_.size && rank != world_.rank; }
  __device__ bool gets_results(int rank) const {
    return has_rank(call_.targets, rank) || (rank == world_.rank && call_.which != collective::reduce);
  }

  __device__ std::uint64_t chunk_at(std::uint32_t step) const {
    return (std::uint64_t{step} * call_.blocks + blockIdx.x) * call_.chunk_bytes;
  }
  __device__ std::uint32_t length(std::uint64_t left) const {
    return left < call_.chunk_bytes ? static_cast<std::uint32_t>(left) : call_.chunk_bytes;
  }
  __device__ std::byte* inbox(int owner, std::uint32_t step, int of) const {
    return world_.windows[owner] + world_.layout.slot(owner, blockIdx.x, shared_.record.chunks + step, of);
  }
  __device__ std::uint64_t* flag(int owner, std::uint64_t at) const {
    return reinterpret_cast<std::uint64_t*>(world_.windows[owner] + at);
  }
  __device__ unsigned movers() const { return 32 * call_.warps; }

  __device__ bool wait(std::uint32_t const* counter, std::uint32_t value) const {
    while (shared_acquire(counter) < value) {
      if (shared_acquire(&shared_.stopped) != 0) {
        return false;
      }
    }
    return true;
  }
  /// All lanes wait until each that is `concerned` sees its sign.
  template <class Sign>
  __device__ bool await(bool concerned, Sign const& sign) const {
    direct_patience patience;
    bool seen = !concerned;
    for (;;) {
      seen = seen || sign();
      if (__all_sync(whole_warp, seen) != 0) {
        return true;
      }
      bool const goes_on = seen || patience.go_on(world_, blockIdx.x, epoch(), lane());
      if (__all_sync(whole_warp, goes_on) == 0) {
        return false;
      }
    }
  }
  __device__ bool await_at_least(bool concerned, std::uint64_t at, std::uint64_t value) const {
    std::uint64_t const* const counter = flag(world_.rank, at);
    bool const heard = await(concerned, [&] { return load_relaxed(counter) >= value; });
    if (heard && concerned) {
      static_cast<void>(load_acquire(counter));
    }
    return heard;
  }

  /// From this rank's data to a peer's memory.
  __device__ void copy(std::byte* to, std::byte const* from, bulk_grid const& grid) const {
    if (misalignment(to, 16) != grid.shift) {
      copy_elements(call_, to, from, 0, grid.bytes);
      return;
    }
    constexpr unsigned unroll = 4;
    for (vector_batch<unroll> batch{grid, call_.warps}; batch.goes_on(); batch.next()) {
      std::byte const* const source = from - grid.shift + batch.at();
      std::byte* const target = to - grid.shift + batch.at();
      uint4 vectors[unroll];
      for (unsigned u = 0; u < unroll; ++u) {
        if (batch.has(u)) {
          vectors[u] = load_fresh(source + vector_stride * u);
        }
      }
      for (unsigned u = 0; u < unroll; ++u) {
        if (batch.has(u)) {
          store_vector(target + vector_stride * u, vectors[u]);
        }
      }
    }
    if (grid.ragged()) {
      copy_elements(call_, to, from, 0, grid.head());
      copy_elements(call_, to, from, grid.tail(), grid.bytes);
    }
  }
  /// Bytes [first, last), element by element.
  __device__ __noinline__ static void copy_elements(direct_call const& call, std::byte* to, std::byte const* from,
                                                    std::uint32_t first, std::uint32_t last) {
    unsigned const element = call.element_bytes;
    for (std::uint32_t at = first + threadIdx.x * element; at < last; at += 32 * call.warps * element) {
      store_element(to + at, load_element(from + at, element), element);
    }
  }

  /// The whole vectors of a chunk that begins at byte `first` of the data.
  __device__ void combine_vectors(std::uint32_t step, std::uint64_t first, bulk_grid const& grid) const {
    constexpr unsigned unroll = Arithmetic::unroll;
    std::byte const* const own = call_.data + first - grid.shift;
    std::byte const* const inboxes = inbox(world_.rank, step, world_.rank == 0 ? 1 : 0);
    for (vector_batch<unroll> batch{grid, call_.warps}; batch.goes_on(); batch.next()) {
      typename Arithmetic::template wide<2> sums[unroll];
      std::byte const* next = inboxes + batch.at();
      for (int source = 0; source < world_.size; ++source) {
        std::byte const* const from = source == world_.rank ? own + batch.at() : next;
        next += source == world_.rank ? 0 : world_.layout.slots_between;
        uint4 vectors[unroll];
        for (unsigned u = 0; u < unroll; ++u) {
          if (batch.has(u)) {
            vectors[u] = load_fresh(from + vector_stride * u);
          }
        }
        for (unsigned u = 0; u < unroll; ++u) {
          std::uint64_t const words[2] = {vectors[u].x | std::uint64_t{vectors[u].y} << 32U,
                                          vectors[u].z | std::uint64_t{vectors[u].w} << 32U};
          if (source == 0) {
            arithmetic_.begin(sums[u], words);
          } else {
            arithmetic_.add(sums[u], words);
          }
        }
      }
      uint4 results[unroll];
      for (unsigned u = 0; u < unroll; ++u) {
        std::uint64_t words[2];
        arithmetic_.end(sums[u], words);
        results[u] = make_uint4(static_cast<std::uint32_t>(words[0]), static_cast<std::uint32_t>(words[0] >> 32U),
                                static_cast<std::uint32_t>(words[1]), static_cast<std::uint32_t>(words[1] >> 32U));
      }
      for (int target = 0; target < world_.size; ++target) {
        if (!gets_results(target)) {
          continue;
        }
        std::byte* const to = shared_.data[target] + first - grid.shift + batch.at();
        for (unsigned u = 0; u < unroll; ++u) {
          if (batch.has(u)) {
            store_vector(to + vector_stride * u, results[u]);
          }
        }
      }
    }
  }
  /// Bytes [from, to) of it, element by element. The data of the ranks may begin anywhere.
  __device__ __noinline__ static void combine_elements(bulk_block const block, std::uint32_t step, std::uint64_t first,
                                                       std::uint32_t from, std::uint32_t to) {
    direct_world const& world = block.world_;
    direct_call const& call = block.call_;
    unsigned const element = call.element_bytes;
    for (std::uint32_t at = from + threadIdx.x * element; at < to; at += block.movers() * element) {
      typename Arithmetic::template wide<1> sum;
      for (int source = 0; source < world.size; ++source) {
        std::byte const* const there = source == world.rank ? call.data + first + at
                                                            : block.inbox(world.rank, step, source) +
                                                                  misalignment(block.shared_.data[source] + first, 16) + at;
        std::uint64_t const words[1] = {load_element(there, element)};
        if (source == 0) {
          block.arithmetic_.begin(sum, words);
        } else {
          block.arithmetic_.add(sum, words);
        }
      }
      std::uint64_t words[1];
      block.arithmetic_.end(sum, words);
      for (int target = 0; target < world.size; ++target) {
        if (block.gets_results(target)) {
          store_element(block.shared_.data[target] + first + at, words[0], element);
        }
      }
    }
  }

  direct_world const& world_;
  direct_call const& call_;
  bulk_shared& shared_;
  Arithmetic arithmetic_;
};

/// A collective in chunks.
template <bool Copy, class Arithmetic>
__device__ void run_bulk(direct_world const& world, direct_call const& call, Arithmetic const& arithmetic) {
  __shared__ bulk_shared shared;
  if (world.size < 2) {
    return;
  }
  if (threadIdx.x < most_movers) {
    shared.pushed[threadIdx.x] = 0;
  }
  if (threadIdx.x == 0) {
    shared.ready = 0;
    shared.finished = 0;
    shared.stopped = 0;
    shared.record = *record_of(world, blockIdx.x);
  }
  __syncthreads();
  bulk_block<Copy, Arithmetic> block{world, call, shared, arithmetic};
  unsigned const warp = threadIdx.x / 32;
  if (warp < call.warps) {
    move_data(block);
  } else if (warp == call.warps) {
    tell_peers(block);
  } else if (hear_peers(block)) {
    if (threadIdx.x % 32 == 0) {
      *record_of(world, blockIdx.x) = {shared.record.epoch + 1, shared.record.chunks + block.steps()};
    }
  } else {
    block.publish_stop();
  }
}

template <class T>
__global__ void __launch_bounds__(most_bulk_threads, bulk_blocks_at_once)
    sum_bulk(direct_world const __grid_constant__ world, direct_call const __grid_constant__ call) {
  run_bulk<false>(world, call, sum_in_words<T>{});
}

template <class = void>
__global__ void __launch_bounds__(most_bulk_threads, bulk_blocks_at_once)
    reduce_any_bulk(direct_world const __grid_constant__ world, direct_call const __grid_constant__ call) {
  run_bulk<false>(world, call, any_in_words{call.type, call.how});
}

template <class = void>
__global__ void __launch_bounds__(most_bulk_threads, bulk_blocks_at_once)
    copy_all_bulk(direct_world const __grid_constant__ world, direct_call const __grid_constant__ call) {
  run_bulk<true>(world, call, sum_in_words<float>{});
}

// ---- all of them ---------------------------------------------------------------------------------------------------------

using direct_kernel = void (*)(direct_world const, direct_call const);

/// The kernel of a call.
[[nodiscard]] inline direct_kernel kernel_of(direct_call const& call) {
  auto const in_packets = [&]<class Format>(Format) -> direct_kernel {
    if (is_copy(call.which)) {
      return copy_all_packets<Format>;
    }
    if (call.how == reduction::sum) {
      switch (call.type) {
        case element_type::f32: return sum_packets<Format, float>;
        case element_type::f16: return sum_packets<Format, float16>;
        case element_type::bf16: return sum_packets<Format, bfloat16>;
        default: break;
      }
    }
    return reduce_any_packets<Format>;
  };
  switch (call.algorithm) {
    case direct_algorithm::words: return in_packets(words_format{});
    case direct_algorithm::lines: return in_packets(lines_format{});
    case direct_algorithm::bulk: break;
  }
  if (is_copy(call.which)) {
    return copy_all_bulk<>;
  }
  if (call.how == reduction::sum) {
    switch (call.type) {
      case element_type::f32: return sum_bulk<float>;
      case element_type::f16: return sum_bulk<float16>;
      case element_type::bf16: return sum_bulk<bfloat16>;
      default: break;
    }
  }
  return reduce_any_bulk<>;
}

/// One call for every kernel that there is.
template <class F>
void for_each_kernel(F const& f) {
  for (auto const algorithm : {direct_algorithm::words, direct_algorithm::lines, direct_algorithm::bulk}) {
    direct_call call;
    call.algorithm = algorithm;
    for (auto const type : {element_type::f32, element_type::f16, element_type::bf16, element_type::u8}) {
      call.type = type;
      f(kernel_of(call), algorithm);
    }
    call.which = collective::broadcast;
    f(kernel_of(call), algorithm);
  }
}

[[nodiscard]] constexpr unsigned threads_of(direct_call const& call) noexcept {
  return 32 * (call.warps + (call.algorithm == direct_algorithm::bulk ? 2 : 0));
}

}  // namespace lockstep::comm_detail
