// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/comm/detail/direct_plan.hpp>
#include <lockstep/core/clock.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

/// What kernels that talk to peers share: the view of a group, and the few instructions that order memory between GPUs.
namespace lockstep::comm_detail {

/// In host memory that every GPU of the group reads and writes.
struct direct_signals {
  /// What a rank says when it gives up. `code` is written last.
  struct alignas(64) record {
    std::uint32_t code;     // 0: nothing
    std::int32_t missing;   // whose sign did not come
    std::uint32_t channel;  // where
    std::uint64_t epoch;    // the collective of that channel, from 1
  };
  /// What a rank says of a peer at the checked start.
  struct probed {
    std::uint32_t verdict;      // 0: nothing, 1: right, 2: no sign in time, 3: wrong data
    std::uint64_t nanoseconds;  // that sending to the peer took
  };

  std::uint32_t abort;  // written by the host
  record gave_up[most_peers];
  probed probes[most_peers][most_peers];  // [rank][peer]
};

/// A rank's view of its group: a kernel argument.
struct direct_world {
  int rank = 0;
  int size = 0;  // 0: the kernel returns at once
  direct_layout layout;
  std::byte* windows[most_peers] = {};
  direct_signals* signals = nullptr;
  bool rereads_lines = false;  // where a line may be seen before all of it has come
  std::uint64_t timeout_ns = 0;
};

/// In front of a window.
struct direct_header {
  std::uint32_t stopped;  // a kernel of this rank gave up: all that follow do nothing
};

/// Of one channel.
struct direct_record {
  std::uint64_t epoch;   // collectives done
  std::uint64_t chunks;  // of all of them
};

// ---- instructions --------------------------------------------------------------------------------------------------------

__device__ inline std::uint64_t load_relaxed(std::uint64_t const* from) {
  std::uint64_t value = 0;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}
__device__ inline std::uint64_t load_acquire(std::uint64_t const* from) {
  std::uint64_t value = 0;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}
__device__ inline std::uint32_t load_relaxed(std::uint32_t const* from) {
  std::uint32_t value = 0;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
__device__ inline void store_relaxed(std::uint64_t* to, std::uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}
__device__ inline void store_relaxed(std::uint32_t* to, std::uint32_t value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
__device__ inline void store_release(std::uint64_t* to, std::uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}
/// Orders what this thread has seen and done before what it does next, for every GPU.
__device__ inline void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

/// Lets the next kernel of the stream come to the device, and waits for those before. Without programmatic launches, neither.
__device__ inline void begin_dependent_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// 16 bytes, as peers last wrote them.
__device__ inline uint4 load_fresh(void const* from) {
  uint4 v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}

/// 16 bytes, to this or another GPU.
__device__ inline void store_vector(void* to, uint4 const& v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

// Counters of a block, in shared memory.
__device__ inline std::uint32_t shared_acquire(std::uint32_t const* from) {
  std::uint32_t value = 0;
  asm volatile("ld.acquire.cta.shared.u32 %0, [%1];"
               : "=r"(value)
               : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(from)))
               : "memory");
  return value;
}
__device__ inline void shared_release(std::uint32_t* to, std::uint32_t value) {
  asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(to))), "r"(value)
               : "memory");
}
__device__ inline void shared_count(std::uint32_t* at) {
  asm volatile("red.release.cta.shared.add.u32 [%0], 1;" ::"r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(at)))
               : "memory");
}

// ---- words: eight bytes of data, in 16 bytes that are sent at once ---------------------------------------------------------

__device__ inline void push_word(void* to, std::uint64_t word, std::uint32_t flag) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(to), "r"(static_cast<std::uint32_t>(word)),
               "r"(flag), "r"(static_cast<std::uint32_t>(word >> 32U))
               : "memory");
}
__device__ inline uint4 peek_word(void const* from) { return load_fresh(from); }
__device__ inline bool has_word(uint4 const& seen, std::uint32_t flag) { return seen.y == flag && seen.w == flag; }
__device__ inline std::uint64_t word_of(uint4 const& seen) { return seen.x | std::uint64_t{seen.z} << 32U; }

// ---- a rank's own window -------------------------------------------------------------------------------------------------

__device__ inline std::byte* own_window(direct_world const& world) { return world.windows[world.rank]; }
__device__ inline direct_header* header_of(direct_world const& world) {
  return reinterpret_cast<direct_header*>(own_window(world));
}
__device__ inline direct_record* record_of(direct_world const& world, std::uint32_t channel) {
  return reinterpret_cast<direct_record*>(own_window(world) + world.layout.record(channel));
}

/// What a thread that polls asks from time to time: whether to go on. A thread that has polled for the group's timeout says who
/// is missing, once a rank; it and all kernels of the rank that follow end.
class direct_patience {
 public:
  /// `missing` is the rank whose sign is awaited.
  __device__ bool go_on(direct_world const& world, std::uint32_t channel, std::uint64_t epoch, int missing) {
    constexpr unsigned polls_a_look = 256;
    if (++polls_ % polls_a_look != 0) {
      return true;
    }
    begin_ = look(world, channel, epoch, missing, begin_);
    return begin_ != 0;
  }

 private:
  /// Returns when the polling began; 0 to end it.
  __device__ __noinline__ static std::uint64_t look(direct_world const& world, std::uint32_t channel, std::uint64_t epoch,
                                                    int missing, std::uint64_t begin) {
    std::uint32_t* const stopped = &header_of(world)->stopped;
    if (load_relaxed(stopped) != 0) {
      return 0;
    }
    if (load_relaxed(&world.signals->abort) != 0) {
      store_relaxed(stopped, 1);
      return 0;
    }
    std::uint64_t const now = clock_ns();
    if (begin == 0) {
      return now;
    }
    if (now - begin < world.timeout_ns) {
      return begin;
    }
    if (atomicCAS(stopped, 0U, 1U) == 0) {
      direct_signals::record& said = world.signals->gave_up[world.rank];
      *static_cast<std::int32_t volatile*>(&said.missing) = missing;
      *static_cast<std::uint32_t volatile*>(&said.channel) = channel;
      *static_cast<std::uint64_t volatile*>(&said.epoch) = epoch;
      fence_system();
      store_relaxed(&said.code, 1);
    }
    return 0;
  }

  unsigned polls_ = 0;
  std::uint64_t begin_ = 0;
};

}  // namespace lockstep::comm_detail
