// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// The direct communicator between ranks that share one GPU.

#include <lockstep/comm/direct.cuh>

#include "../support/one_gpu.cuh"
#include "direct_cases.cuh"

#include <doctest/doctest.h>

#include <cstddef>

using support::one_gpu;

template <>
void direct_cases::prepare<one_gpu>() {
  support::settle();
}

static_assert(lockstep::transport_for<lockstep::direct, lockstep::cuda>);
static_assert(lockstep::communicator<lockstep::basic_direct_communicator<one_gpu>, one_gpu>);

TEST_CASE("direct: every collective of every element type gives the reference's bits, at any count and address") {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    direct_cases::gives_reference_results<one_gpu>(ranks);
  }
}

TEST_CASE("direct: results are right where algorithms change") {
  direct_cases::gives_reference_results_when_large<one_gpu>(2);
  direct_cases::gives_reference_results_when_large<one_gpu>(3);
}

TEST_CASE("direct: collectives of all kinds and sizes run one behind the other") {
  for (int ranks = 2; ranks <= 4; ++ranks) {
    // All of them fit into the one queue of launches that ranks of one GPU share.
    direct_cases::runs_in_a_row<one_gpu>(ranks, 600 / ranks, std::size_t{12} << 20, {});
  }
  for (auto const& each : direct_cases::tunings()) {
    CAPTURE(each.name);
    direct_cases::runs_in_a_row<one_gpu>(3, 200, 1 << 16, each.tuning);
  }
}

TEST_CASE("direct: captured collectives are replayed with other data") {
  direct_cases::can_be_replayed<one_gpu>(2, 1000, 4 << 20);
  direct_cases::can_be_replayed<one_gpu>(4, 100, 16 << 20);
}

TEST_CASE("direct: collectives on two streams, ordered by events, run one after another") {
  direct_cases::runs_on_two_streams<one_gpu>(3);
}

TEST_CASE("direct: the bytes moved are those of the formulas") {
  direct_cases::counts_bytes<one_gpu>(2);
  direct_cases::counts_bytes<one_gpu>(4);
}

TEST_CASE("direct: bad arguments are refused, and leave the group as it was") {
  direct_cases::refuses_bad_arguments<one_gpu>(2);
}

TEST_CASE("direct: memory that peers may not reach is refused where they would write to it") {
  direct_cases::refuses_memory_of_a_pool<one_gpu>(2);
}

TEST_CASE("direct: ranks that call different things are told which") { direct_cases::names_differing_calls<one_gpu>(3); }

TEST_CASE("direct: a rank that never calls is named, and a new group works") {
  for (auto const& each : direct_cases::tunings()) {
    CAPTURE(each.name);
    direct_cases::names_a_rank_that_never_calls<one_gpu>(3, each.tuning);
  }
}

TEST_CASE("direct: a rank whose device is late is named, and a new group works") {
  for (auto const& each : direct_cases::tunings()) {
    CAPTURE(each.name);
    direct_cases::names_a_rank_whose_device_is_late<one_gpu>(2, each.tuning);
  }
  direct_cases::names_a_rank_whose_device_is_late<one_gpu>(3, {});
}

TEST_CASE("direct: an abort ends ranks that wait") {
  for (auto const& each : direct_cases::tunings()) {
    CAPTURE(each.name);
    direct_cases::ends_when_aborted<one_gpu>(3, each.tuning);
  }
}

TEST_CASE("direct: groups come and go") { direct_cases::comes_and_goes<one_gpu>(3, 20); }
