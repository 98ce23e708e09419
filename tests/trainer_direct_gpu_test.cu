// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Trainers over peer memory, for ranks that share one GPU: buckets that are added up, updated and brought to all in one kernel.

#include "support/gpu_trainer_cases.cuh"
#include "support/ruled_gpu_setup.cuh"

#include <lockstep/comm/direct.cuh>
#include <lockstep/lockstep.cuh>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace {

/// The kernel of a shared update, before any other waits for a peer.
template <class Optimizer>
void load_shared_update() {
  using update_type = lockstep::elementwise_update<support::one_gpu, Optimizer>;
  support::one_gpu::device device;
  auto const stream = device.stream();
  auto const memory = device.allocate(4096, lockstep::memory_use::other);
  support::one_gpu::zero(stream, memory.data(), memory.bytes());
  typename update_type::segment segment;
  segment.value = memory.data();
  segment.gradient = memory.as<float>() + 16;
  segment.slots[0] = memory.as<float>() + 48;
  segment.count = 1;
  update_type update{device, {segment}};
  Optimizer const optimizer{};
  lockstep::peer_parameter const own{segment.gradient, segment.value};
  update.set(stream, std::span{&optimizer, 1});
  update.prepare(stream, memory.as<std::uint64_t>() + 64);
  update.share(device, std::span{&own, 1}, 0, 1);
  update.run_shared(stream, {0, 1}, nullptr, memory.as<std::uint32_t>() + 200);
  stream.synchronize();
}

}  // namespace

template <>
struct lockstep::communicator_for<lockstep::direct, support::one_gpu> {
  using type = basic_direct_communicator<support::one_gpu>;
  [[nodiscard]] static std::vector<type> create(std::span<device_id const> devices, cuda::options const& options) {
    // What loads kernels of the library, and settles the pools.
    static_cast<void>(support::loads<load_shared_update<lockstep::sgd>> &&
                      support::loads<load_shared_update<ruled_cases::scheduled_sgd>>);
    static_cast<void>(communicator_for<support::shared_gpu, support::one_gpu>::create(devices, options));
    return type::create(devices, options, {.words_blocks = 4, .lines_blocks = 4, .bulk_blocks = 4, .max_blocks = 4});
  }
};

namespace {

using gpu_cases::one_gpu_setup;
using gpu_cases::one_stream_each;

using sharded = lockstep::sharded_optimizer<lockstep::direct, support::small_buckets>;
using all_reduce = lockstep::peer_all_reduce<lockstep::direct, support::small_buckets>;

static_assert(lockstep::bucket_pipeline<sharded, lockstep::sgd, support::one_gpu>::shares);
static_assert(!lockstep::bucket_pipeline<all_reduce, lockstep::sgd, support::one_gpu>::shares);
static_assert(!lockstep::bucket_pipeline<lockstep::sharded_optimizer<>, lockstep::sgd, lockstep::host>::shares);

}  // namespace

TEST_CASE("trainer over direct: 1 to 4 ranks give the gradients and losses of the formula") {
  std::uint64_t const first = tests::seed();
  for (std::uint64_t seed = first; seed < first + 12; ++seed) {
    int const ranks = static_cast<int>(tests::generator{seed ^ 0x5eedU}.whole(1, 4));
    CAPTURE(seed);
    CAPTURE(ranks);
    auto const shared = gpu_cases::train_random_case<one_gpu_setup, sharded>(seed, ranks, 0);
    CHECK(shared == gpu_cases::train_random_case<one_gpu_setup, sharded>(seed, ranks, 0));
    static_cast<void>(gpu_cases::train_random_case<one_gpu_setup, all_reduce>(seed, ranks, 0));
  }
}

TEST_CASE("trainer over direct: 1 to 4 ranks that replay their steps give the same bits as ranks that don't") {
  std::uint64_t const first = tests::seed();
  for (std::uint64_t seed = first; seed < first + 8; ++seed) {
    int const ranks = static_cast<int>(tests::generator{seed ^ 0x5eedU}.whole(1, 4));
    CAPTURE(seed);
    CAPTURE(ranks);
    auto const called = gpu_cases::train_random_case<one_gpu_setup, sharded>(seed, ranks, 0);
    one_stream_each const single;
    CHECK(called == gpu_cases::train_random_case<one_gpu_setup, sharded>(seed, ranks, 8));
  }
}

TEST_CASE("trainer over direct: weights that batches bring reach the shared update, and rules hold it") {
  std::uint64_t const first = tests::seed();
  for (std::uint64_t seed = first; seed < first + 8; ++seed) {
    int const ranks = static_cast<int>(tests::generator{seed ^ 0x5eedU}.whole(1, 4));
    CAPTURE(seed);
    CAPTURE(ranks);
    ruled_cases::train_case<support::ruled_gpu_setup<support::one_gpu, 0>, sharded, support::weighed_rows,
                            ruled_cases::measured>(seed, ranks);
    one_stream_each const single;
    ruled_cases::train_case<support::ruled_gpu_setup<support::one_gpu, 8>, sharded, support::weighed_rows,
                            ruled_cases::measured>(seed, ranks);
  }
}

TEST_CASE("trainer over direct: a rank that never arrives is named within the deadline, and a new trainer works") {
  gpu_cases::check_absence<one_gpu_setup, sharded>(3);
  gpu_cases::check_healthy<one_gpu_setup, sharded>(3);
}
