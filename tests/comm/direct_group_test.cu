// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// The direct communicator over all GPUs that are there, up to eight: a thread a GPU.

#include <lockstep/comm/direct.cuh>

#include "direct_cases.cuh"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>

namespace {

using gpu = lockstep::cuda;  // CCCL has a namespace of that name

int gpus() { return (std::min)(gpu::device_count(), 8); }

}  // namespace

TEST_CASE("direct, several GPUs: every collective of every element type gives the reference's bits, at any count and address") {
  for (int ranks = 2; ranks <= gpus(); ++ranks) {
    direct_cases::gives_reference_results<gpu>(ranks);
  }
}

TEST_CASE("direct, several GPUs: results are right where algorithms change") {
  direct_cases::gives_reference_results_when_large<gpu>(gpus());
}

TEST_CASE("direct, several GPUs: collectives of all kinds and sizes run one behind the other, whoever is late") {
  direct_cases::runs_in_a_row<gpu>(gpus(), 10'000, std::size_t{24} << 20, {});
  for (auto const& each : direct_cases::tunings()) {
    CAPTURE(each.name);
    direct_cases::runs_in_a_row<gpu>(gpus(), 1000, 1 << 17, each.tuning);
  }
}

TEST_CASE("direct, several GPUs: captured collectives are replayed with other data") {
  direct_cases::can_be_replayed<gpu>(gpus(), 1000, 32 << 20);
}

TEST_CASE("direct, several GPUs: collectives on two streams, ordered by events, run one after another") {
  direct_cases::runs_on_two_streams<gpu>(gpus());
}

TEST_CASE("direct, several GPUs: the bytes moved are those of the formulas") { direct_cases::counts_bytes<gpu>(gpus()); }

TEST_CASE("direct, several GPUs: bad arguments are refused, and leave the group as it was") {
  direct_cases::refuses_bad_arguments<gpu>(gpus());
}

TEST_CASE("direct, several GPUs: memory that peers may not reach is refused where they would write to it") {
  direct_cases::refuses_memory_of_a_pool<gpu>(gpus());
}

TEST_CASE("direct, several GPUs: ranks that call different things are told which") {
  direct_cases::names_differing_calls<gpu>(gpus());
}

TEST_CASE("direct, several GPUs: a rank that never calls is named, and a new group works") {
  for (auto const& each : direct_cases::tunings()) {
    CAPTURE(each.name);
    direct_cases::names_a_rank_that_never_calls<gpu>(gpus(), each.tuning);
  }
}

TEST_CASE("direct, several GPUs: a rank whose device is late is named, and a new group works") {
  for (auto const& each : direct_cases::tunings()) {
    CAPTURE(each.name);
    direct_cases::names_a_rank_whose_device_is_late<gpu>(gpus(), each.tuning);
  }
}

TEST_CASE("direct, several GPUs: an abort ends ranks that wait") {
  for (auto const& each : direct_cases::tunings()) {
    CAPTURE(each.name);
    direct_cases::ends_when_aborted<gpu>(gpus(), each.tuning);
  }
}

TEST_CASE("direct, several GPUs: groups come and go") { direct_cases::comes_and_goes<gpu>(gpus(), 20); }
