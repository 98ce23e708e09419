// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// How trainers on one GPU end when something goes wrong.

#include "support/gpu_trainer_cases.cuh"

#include <lockstep/lockstep.cuh>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

using gpu_cases::contains;
using gpu_cases::one_gpu_setup;
using gpu_cases::one_stream_each;
using gpu_cases::single_setup;
using gpu_cases::thrown;
using lockstep::single_device;
using support::gpu_pull_model;
using support::one_gpu;
using support::pull_plan;

namespace {

using all_reduce = one_gpu_setup::all_reduce;

}  // namespace

TEST_CASE("trainer on one GPU: an exception in one rank's train comes out with its place, and the others end") {
  one_stream_each const one;
  gpu_cases::check_exception<single_setup, single_device>(1);
  gpu_cases::check_exception<one_gpu_setup, all_reduce>(3);
}

TEST_CASE("trainer on one GPU: a rank that never arrives is named within the deadline") {
  gpu_cases::check_absence<one_gpu_setup, all_reduce>(3);
}

TEST_CASE("trainer on one GPU: in a loop of the caller's own, a rank that never arrives is named within the deadline") {
  gpu_cases::check_absence_in_own_loop<one_gpu_setup, all_reduce>(3);
}

TEST_CASE("trainer on one GPU: out of memory on one device unwinds all, and says which device and how much") {
  one_stream_each const one;
  gpu_cases::check_out_of_memory<single_setup, single_device>(1);
  gpu_cases::check_out_of_memory<one_gpu_setup, all_reduce>(3);
}

TEST_CASE("trainer on one GPU: thirty trainers in a row, every second of which fails while its step is recorded") {
  one_stream_each const one;
  gpu_cases::check_thirty<single_setup, single_device>(1);
  gpu_cases::check_thirty<one_gpu_setup, all_reduce>(2);
}

TEST_CASE("trainer on one GPU: a model that allocates while it is recorded works, or the error says what it was") {
  gpu_cases::check_allocation_while_recorded<single_setup, single_device>(1);
}

TEST_CASE("trainer on one GPU: two trainers live in two threads at once, and record while the other allocates") {
  gpu_cases::check_healthy<single_setup, single_device>(1);
  auto const train = [](std::uint64_t seed) { return gpu_cases::train_random_case<single_setup, single_device>(seed, 1, 8); };
  std::uint64_t const first = tests::seed();
  CAPTURE(first);
  std::vector<gpu_cases::outcome> alone;
  for (std::uint64_t k = 0; k < 16; ++k) {
    alone.push_back(train(first + k));
  }
  std::vector<gpu_cases::outcome> beside(alone.size());
  std::vector<std::string> said(2);
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < 2; ++thread) {
    threads.emplace_back([&, thread] {
      try {
        for (std::size_t k = thread; k < beside.size(); k += 2) {
          beside[k] = train(first + k);
        }
      } catch (std::exception const& e) {
        said[thread] = e.what();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(said == std::vector<std::string>(2));
  for (std::size_t k = 0; k < alone.size(); ++k) {
    CAPTURE(k);
    CHECK(beside[k] == alone[k]);
  }
}

TEST_CASE("trainer on one GPU: two trainers of several ranks take steps at once") {
  // Made and ended while the other rests: ranks that share a GPU can't do that beside others that wait for each other.
  tests::generator random{1};
  gpu_cases::fed_batch<one_gpu_setup> const fed{random, 2, 24, 3};
  auto const losses_of = [&](auto& trainer) {
    std::vector<double> losses;
    for (int k = 0; k < 30; ++k) {
      losses.push_back(trainer.step_shards(fed.resident.shards()).loss());
    }
    return losses;
  };
  auto const alone = gpu_cases::make_trainer<one_gpu_setup, all_reduce>(2, {.timeout_seconds = 30, .graphs = 0});
  auto const a = gpu_cases::make_trainer<one_gpu_setup, all_reduce>(2, {.timeout_seconds = 30, .graphs = 0});
  auto const b = gpu_cases::make_trainer<one_gpu_setup, all_reduce>(2, {.timeout_seconds = 30, .graphs = 0});
  auto const expected = losses_of(*alone);
  std::vector<double> beside;
  std::thread other{[&] { beside = losses_of(*b); }};
  CHECK(losses_of(*a) == expected);
  other.join();
  CHECK(beside == expected);
}

TEST_CASE("trainer on one GPU: a parameter that does not lie on its rank's device is refused, and named") {
  std::vector<float> pageable(8);
  std::vector<std::unique_ptr<void, lockstep::cuda::give_back_pinned>> pinned(1);
  void* memory = nullptr;
  lockstep::check(cudaHostAlloc(&memory, 8 * sizeof(float), cudaHostAllocPortable));
  pinned[0].reset(memory);
  for (float* const elsewhere : {pageable.data(), static_cast<float*>(memory)}) {
    for (bool const gradient : {false, true}) {
      CAPTURE(gradient);
      std::string const said = thrown<lockstep::usage_error>([&] {
        struct outsider : gpu_pull_model<lockstep::cuda> {
          outsider(lockstep::device_context<lockstep::cuda> const& device, float* memory, bool is_gradient)
              : gpu_pull_model<lockstep::cuda>(device, {}) {
            (is_gradient ? listed_[1].gradient : listed_[1].value) = memory;
          }
        };
        lockstep::trainer<outsider, lockstep::sgd, single_device> const trainer{lockstep::devices{0},
                                                                                [&](auto& device) {
                                                                                  return outsider{device, elsewhere, gradient};
                                                                                },
                                                                                lockstep::sgd{}};
      });
      CHECK_MESSAGE(contains(said, "rank 0 (device 0"), said);
      CHECK_MESSAGE(contains(said, std::string("parameter 'p1': its ") + (gradient ? "gradient" : "value") +
                                       " lies in host memory, not on device 0"),
                    said);
    }
  }
}
