// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// The transport that the library chooses, over all GPUs that are there, up to eight.

#include <lockstep/comm/automatic.cuh>

#include "nccl_support.cuh"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace {

using gpu = lockstep::cuda;  // CCCL has a namespace of that name
using conformance::on_ranks;
using lockstep::device_id;
using lockstep::rank_id;
using lockstep::reduction;

static_assert(lockstep::transport_for<lockstep::automatic, gpu>);

/// Whether every pair reaches each other's memory, as far as CUDA says.
bool all_reach(int gpus) {
  for (int a = 0; a < gpus; ++a) {
    for (int b = 0; b < gpus; ++b) {
      int can = 1;
      if (a != b) {
        lockstep::check(cudaDeviceCanAccessPeer(&can, a, b));
      }
      if (can == 0) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace

TEST_CASE("automatic, several GPUs: direct where they reach each other, NCCL otherwise, and the same sums") {
  int const gpus = (std::min)(gpu::device_count(), 8);
  std::vector<gpu::stream> streams;
  std::vector<nccl_support::device_array<int>> arrays;
  for (int rank = 0; rank < gpus; ++rank) {
    streams.emplace_back(device_id{rank});
    arrays.emplace_back(device_id{rank}, 3);
  }
  auto ranks = lockstep::communicator_for<lockstep::automatic, gpu>::create(conformance::first_devices(gpus), {});
  REQUIRE(ranks.size() == static_cast<std::size_t>(gpus));
  std::vector<std::vector<int>> results(ranks.size());
  std::vector<std::string> wrong(ranks.size());
  conformance::check_no_failure(on_ranks(gpus, [&](int rank) {
    auto const index = static_cast<std::size_t>(rank);
    gpu::device_guard const current{device_id{rank}};
    lockstep::automatic_communicator one = std::move(ranks[index]);
    gpu::stream_ref const stream = streams[index].ref();
    if (one.rank() != rank_id{rank} || one.size() != gpus) {
      wrong[index] = "rank or size";
    }
    arrays[index].put({rank, 1, 10 * rank}, stream);
    one.together([&] {
      one.all_reduce(arrays[index].span(), reduction::sum, stream);
      one.broadcast(arrays[index].span(), rank_id{0}, stream);
    });
    one.wait(stream);
    results[index] = arrays[index].get(stream);
    if (one.is_direct() && (one.inbox_bytes() == 0 || !all_reach(gpus))) {
      wrong[index] = "direct without memory, or where GPUs don't reach each other";
    }
    if (one.bytes_moved() == 0 || one.aborted()) {
      wrong[index] = "bytes or abort";
    }
    ranks[index] = std::move(one);
  }));
  int const sum = gpus * (gpus - 1) / 2;
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    CHECK(results[rank] == std::vector<int>{sum, gpus, 10 * sum});
    CHECK(wrong[rank] == "");
  }
  ranks.back().abort("enough");
  for (auto& one : ranks) {
    CHECK(one.aborted());
    CHECK(one.abort_reason() == "enough");
    CHECK_THROWS_AS(one.all_reduce(arrays.front().span(), reduction::sum, streams.front().ref()), lockstep::aborted_error);
  }
}

TEST_CASE("automatic: one rank needs neither") {
  auto ranks = lockstep::automatic_communicator::create(conformance::first_devices(1), {});
  REQUIRE(ranks.size() == 1);
  CHECK(ranks.front().is_direct());
  CHECK(ranks.front().inbox_bytes() == 0);
  gpu::stream const stream{device_id{0}};
  nccl_support::device_array<int> const array{device_id{0}, 3};
  ranks.front().all_reduce(array.span(), reduction::sum, stream);
  ranks.front().wait(stream.ref());
  CHECK(array.get(stream.ref()) == std::vector<int>{0, 0, 0});
}
