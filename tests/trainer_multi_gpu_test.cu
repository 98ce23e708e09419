// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Trainers on several GPUs, and what must not happen on those that are not listed.

#include "support/gpu_trainer_cases.cuh"

#include <lockstep/lockstep.cuh>

#if __has_include(<nccl.h>) && __has_include(<lockstep/comm/nccl.cuh>)
#include <lockstep/comm/nccl.cuh>
#define LOCKSTEP_TEST_NCCL 1
#else
#define LOCKSTEP_TEST_NCCL 0
#endif

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

using gpu_cases::contains;
using gpu_cases::fed_batch;
using gpu_cases::thrown;
using lockstep::rank_id;
using lockstep::single_device;
using support::gpu_pull_model;
using support::marking;
using support::pull_plan;
using support::pull_reference;
using support::pull_samples;

namespace {

/// Whether a GPU has a context.
bool is_open(int gpu) {
  CUresult (*state_of)(CUdevice, unsigned*, int*) = nullptr;
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found{};
  lockstep::check(cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &address, 12000, cudaEnableDefault, &found));
  state_of = reinterpret_cast<decltype(state_of)>(address);
  unsigned flags = 0;
  int active = 0;
  CHECK(state_of(gpu, &flags, &active) == CUDA_SUCCESS);
  return active != 0;
}

/// Those of all GPUs, in order.
std::vector<int> open_gpus() {
  std::vector<int> open;
  for (int gpu = 0; gpu < lockstep::cuda::device_count(); ++gpu) {
    if (is_open(gpu)) {
      open.push_back(gpu);
    }
  }
  return open;
}

/// Runs this program again, for one test case that needs a process of its own.
void check_alone(std::string const& test_case) {
  std::string const program = std::filesystem::read_symlink("/proc/self/exe").string();
  std::string const command = "'" + program + "' --no-skip=true --no-colors=true --test-case='" + test_case + "' 2>&1";
  std::unique_ptr<FILE, int (*)(FILE*)> const output{popen(command.c_str(), "r"), pclose};
  REQUIRE(output != nullptr);
  std::string said;
  for (int c = std::fgetc(output.get()); c != EOF; c = std::fgetc(output.get())) {
    said += static_cast<char>(c);
  }
  CHECK_MESSAGE(contains(said, " 1 passed | 0 failed"), said);
  CHECK_MESSAGE(contains(said, "Status: SUCCESS"), said);
}

}  // namespace

TEST_CASE("alone: a trainer on GPU 1 opens no other" * doctest::skip()) {
  CHECK(open_gpus().empty());
  {
    pull_plan const plan{.counts = {40, 300, 7}};
    tests::generator random{1};
    pull_samples const samples{random, 12, 3};
    gpu_cases::pull_trainer<gpu_cases::single_setup, single_device> trainer{
        lockstep::devices{1},
        [&](auto& device) {
          return gpu_pull_model<lockstep::cuda>{device, plan};
        },
        lockstep::sgd{.learning_rate = 0.125F, .momentum = 0.5F}};
    pull_reference truth{plan};
    for (int k = 0; k < 8; ++k) {
      CHECK(trainer.step(samples.view()).loss() == doctest::Approx(truth.step(samples, 0.125)).epsilon(1e-5));
    }
    trainer.synchronize();
    CHECK(open_gpus() == std::vector<int>{1});
    lockstep::cuda::device_guard const current{lockstep::device_id{1}};  // of those who read the values
    gpu_cases::check_values(trainer, truth, 1e-5);
  }
  CHECK(open_gpus() == std::vector<int>{1});  // nor when it ends
}

TEST_CASE("trainer on several GPUs: only the listed devices are touched") {
  check_alone("alone: a trainer on GPU 1 opens no other");
#if LOCKSTEP_TEST_NCCL
  if (lockstep::cuda::device_count() > 2) {
    check_alone("alone: ranks on GPUs 2 and 1 open no other");
  }
#endif
}

TEST_CASE("trainer on several GPUs: a parameter on another GPU is refused, and named") {
  void* memory = nullptr;
  {
    lockstep::cuda::device_guard const current{lockstep::device_id{1}};
    lockstep::check(cudaMalloc(&memory, 64));
  }
  std::unique_ptr<void, lockstep::cuda::give_back> const owned{memory};
  struct outsider : gpu_pull_model<lockstep::cuda> {
    outsider(lockstep::device_context<lockstep::cuda> const& device, void* elsewhere)
        : gpu_pull_model<lockstep::cuda>(device, {}) {
      listed_[1].gradient = elsewhere;
    }
  };
  std::string const said = thrown<lockstep::usage_error>([&] {
    lockstep::trainer<outsider, lockstep::sgd, single_device> const trainer{lockstep::devices{0},
                                                                            [&](auto& device) {
                                                                              return outsider{device, memory};
                                                                            },
                                                                            lockstep::sgd{}};
  });
  CHECK_MESSAGE(contains(said, "rank 0 (device 0"), said);
  CHECK_MESSAGE(contains(said, "parameter 'p1': its gradient lies on GPU 1, not on device 0"), said);
}

#if LOCKSTEP_TEST_NCCL

namespace {

struct nccl_setup {
  using backend = lockstep::cuda;
  using all_reduce = lockstep::peer_all_reduce<lockstep::nccl, support::small_buckets>;
  using gather = lockstep::replicate_and_gather<lockstep::nccl, support::small_buckets>;
  static int ranks() { return (std::min)(lockstep::cuda::device_count(), 8); }
  static int gpu(int rank) { return rank; }
  static constexpr double deadline = 10;
  static bool all_given_back() { return true; }
};

using all_reduce = nccl_setup::all_reduce;
using gather = nccl_setup::gather;

/// Where every rank fails in turn.
int few() { return (std::min)(nccl_setup::ranks(), 4); }

gpu_cases::outcome train_under(bool gathers, std::uint64_t seed, int ranks, std::size_t graphs) {
  return gathers ? gpu_cases::train_random_case<nccl_setup, gather, gpu_cases::accumulates>(seed, ranks, graphs)
                 : gpu_cases::train_random_case<nccl_setup, all_reduce>(seed, ranks, graphs);
}

}  // namespace

TEST_CASE("alone: ranks on GPUs 2 and 1 open no other" * doctest::skip()) {
  CHECK(open_gpus().empty());
  {
    tests::generator random{1};
    pull_samples const samples{random, 12, 3};
    gpu_cases::pull_trainer<nccl_setup, all_reduce> trainer{lockstep::devices{2, 1},
                                                            [](auto& device) {
                                                              return gpu_pull_model<lockstep::cuda>{device, {}};
                                                            },
                                                            lockstep::sgd{}};
    for (int k = 0; k < 8; ++k) {
      CHECK(trainer.step(samples.view()).samples() == 12);
    }
    trainer.synchronize();
    CHECK(open_gpus() == std::vector<int>{1, 2});
  }
  CHECK(open_gpus() == std::vector<int>{1, 2});
}

TEST_CASE("trainer on several GPUs: every policy gives the gradients and losses of the formula, by calls and replayed") {
  std::uint64_t const first = tests::seed();
  for (std::uint64_t seed = first; seed < first + 10; ++seed) {
    auto const most = static_cast<std::size_t>(nccl_setup::ranks());
    int const ranks = static_cast<int>(tests::generator{seed ^ 0x5eedU}.whole(seed % 2 == 0 ? most : 1, most));
    for (bool const gathers : {false, true}) {
      CAPTURE(seed);
      CAPTURE(ranks);
      CAPTURE(gathers);
      auto const called = train_under(gathers, seed, ranks, 0);
      auto const replayed = train_under(gathers, seed, ranks, 8);
      if (ranks <= 2) {  // with more, NCCL's order of additions may depend on whether it is recorded
        CHECK(called == replayed);
      }
    }
  }
}

TEST_CASE("trainer on several GPUs: graphs are bounded, and tell steps apart") {
  gpu_cases::check_bounded<nccl_setup, all_reduce>(2);
  gpu_cases::check_not_captured<nccl_setup, all_reduce>(2);
}

TEST_CASE("trainer on several GPUs: host batches may be written over when step returns, pageable or pinned") {
  for (auto const kind : {gpu_cases::host_memory::pageable, gpu_cases::host_memory::pinned}) {
    gpu_cases::check_host_batches<nccl_setup, all_reduce>(nccl_setup::ranks(), kind);
  }
}

TEST_CASE("trainer on several GPUs: a batch that lies on one of them is brought to the others") {
  int const ranks = nccl_setup::ranks();
  pull_plan const plan{.counts = {40, 300, 7}, .marks = marking::in_order};
  gpu_cases::pull_trainer<nccl_setup, all_reduce> trainer{lockstep::devices::first(ranks),
                                                          [&](auto& device) {
                                                            return gpu_pull_model<lockstep::cuda>{device, plan};
                                                          },
                                                          lockstep::sgd{.learning_rate = 0.125F, .momentum = 0.5F}};
  pull_reference truth{plan};
  tests::generator random{tests::seed()};
  pull_samples const samples{random, 40, 3};
  gpu_cases::resident_batch<nccl_setup> const on_first{samples, {40}};
  for (int k = 0; k < 10; ++k) {
    trainer.step(on_first.shards()[0]);
    truth.step(samples, 0.125);
  }
  gpu_cases::check_values(trainer, truth, 1e-5);
}

TEST_CASE("trainer on several GPUs: kernels that one rank loads late keep nobody waiting") {
  // In a step that is of a new size to one rank only, the others send their buckets while backward goes on.
  int const ranks = nccl_setup::ranks();
  pull_plan const plan{.counts = std::vector<std::size_t>(12, 300), .marks = marking::in_order};
  gpu_cases::pull_trainer<nccl_setup, all_reduce> trainer{lockstep::devices::first(ranks),
                                                          [&](auto& device) {
                                                            return gpu_pull_model<lockstep::cuda>{device, plan};
                                                          },
                                                          lockstep::sgd{.learning_rate = 0.125F, .momentum = 0.5F}};
  for (int rank = 0; rank < ranks; ++rank) {
    trainer.model(rank_id{rank}).new_kernels = true;
  }
  pull_reference truth{plan};
  tests::generator random{tests::seed()};
  auto const step = [&](int odd, std::size_t count) {
    std::vector<std::size_t> sizes(static_cast<std::size_t>(ranks), 8);
    sizes[static_cast<std::size_t>(odd)] = count;
    pull_samples const samples{random, 8 * sizes.size() - 8 + count, 3};
    gpu_cases::resident_batch<nccl_setup> const fed{samples, sizes};
    CHECK(trainer.step_shards(fed.shards()).loss() == doctest::Approx(truth.step(samples, 0.125)).epsilon(1e-5));
  };
  for (int k = 0; k < 4; ++k) {
    step(0, 8);
  }
  for (int rank = 0; rank < ranks; ++rank) {
    for (std::size_t const count : {9, 10, 11}) {
      step(rank, count);
    }
  }
  gpu_cases::check_values(trainer, truth, 1e-5);
}

TEST_CASE("trainer on several GPUs: an exception in one rank's train comes out with its place, and the others end") {
  gpu_cases::check_exception<nccl_setup, all_reduce>(few());
}

TEST_CASE("trainer on several GPUs: a rank that never arrives is named within the deadline") {
  gpu_cases::check_absence<nccl_setup, all_reduce>(few());
  gpu_cases::check_absence_in_own_loop<nccl_setup, all_reduce>(few());
}

TEST_CASE("trainer on several GPUs: out of memory on one device unwinds all, and says which device and how much") {
  gpu_cases::check_out_of_memory<nccl_setup, all_reduce>(few());
}

TEST_CASE("trainer on several GPUs: thirty trainers in a row, every second of which fails while its step is recorded") {
  gpu_cases::check_thirty<nccl_setup, all_reduce>(2);
}

#endif
