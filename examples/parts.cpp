// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Communicator, bucket planner and sampler, each by itself: no trainer, no replica, no model.

#include <lockstep/comm/shared_memory.hpp>
#include <lockstep/data/sampler.hpp>
#include <lockstep/plan/buckets.hpp>

#include <cstddef>
#include <cstdio>
#include <numeric>
#include <span>
#include <thread>
#include <vector>

namespace {

/// Three threads add their numbers: every one ends with the sum.
bool add_over_threads() {
  constexpr int size = 3;
  std::vector<lockstep::device_id> devices;
  for (int r = 0; r < size; ++r) {
    devices.push_back(lockstep::device_id{r});
  }
  auto communicators = lockstep::shared_memory_communicator::create(devices, {.timeout_seconds = 10});
  std::vector<std::vector<float>> numbers(size, std::vector<float>(1000));
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      std::iota(numbers[r].begin(), numbers[r].end(), static_cast<float>(r));
      communicators[r].all_reduce(std::span{numbers[r]}, lockstep::reduction::sum, {});
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  std::printf("all-reduce over %d threads: element 10 is %g\n", size, static_cast<double>(numbers[1][10]));
  return numbers[0] == numbers[2] && numbers[1][10] == 33.0F;  // 10 + 11 + 12
}

/// Plans buckets for five gradients that become ready last to first; the first three lie next to each other in memory.
bool plan_buckets() {
  using lockstep::plan::none;
  std::vector<lockstep::plan::piece> pieces;
  std::size_t const counts[] = {64, 4096, 64, 4096, 64};
  for (std::size_t ready = 0; ready < 5; ++ready) {
    std::size_t const parameter = 4 - ready;
    // A neighbour in memory is the next parameter: the piece before, in order of readiness.
    pieces.push_back(
        {.parameter = parameter, .first = 0, .count = counts[parameter], .next = parameter < 2 ? ready - 1 : none});
  }
  auto const buckets = lockstep::plan::plan_buckets(pieces, 20000, 1024);
  for (auto const& bucket : buckets) {
    std::printf("bucket of %zu elements: %zu stretches, %zu elements staged\n", bucket.count, bucket.stretches.size(),
                bucket.staged_count);
  }
  std::size_t const total = std::accumulate(buckets.begin(), buckets.end(), std::size_t{0},
                                            [](std::size_t sum, auto const& bucket) { return sum + bucket.count; });
  return total == 64 + 4096 + 64 + 4096 + 64;
}

/// Two ranks share ten samples, in an order that the epoch decides.
bool share_samples() {
  std::vector<int> drawn(10, 0);
  for (int rank = 0; rank < 2; ++rank) {
    lockstep::sampler const sampler{10, 2, lockstep::rank_id{rank}, {.seed = 1}};
    std::printf("epoch 3, rank %d:", rank);
    for (std::size_t const sample : sampler.epoch(3)) {
      std::printf(" %zu", sample);
      ++drawn[sample];
    }
    std::printf("\n");
  }
  return drawn == std::vector<int>(10, 1);
}

}  // namespace

int main() { return add_over_threads() && plan_buckets() && share_samples() ? 0 : 1; }
