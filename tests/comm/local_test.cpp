// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#include <lockstep/comm/local.hpp>

#include "conformance.hpp"

#include <doctest/doctest.h>

#include <span>
#include <vector>

namespace {

using lockstep::host;
using group = lockstep::communicator_for<lockstep::local, host>;

static_assert(lockstep::communicator<group::type, host>);
static_assert(lockstep::transport_for<lockstep::local, host>);

auto create(int ranks) { return group::create(conformance::first_devices(ranks), {}); }

}  // namespace

TEST_CASE("local: every collective of every element type gives the data itself") {
  conformance::gives_reference_results(create, 1);
}

TEST_CASE("local: bad arguments are refused") { conformance::refuses_bad_arguments(create, 1); }

TEST_CASE("local: after an abort every collective throws the first reason") { conformance::stays_aborted(create, 1); }

TEST_CASE("local: any number of devices but one is refused, and the number is named") {
  CHECK_THROWS_WITH_AS(create(3), doctest::Contains("exactly one device, not 3"), lockstep::usage_error);
  CHECK_THROWS_AS(create(0), lockstep::usage_error);
}

TEST_CASE("local: nothing travels") {
  auto communicators = create(1);
  std::vector<float> elements(1000);
  communicators.front().all_reduce(std::span{elements}, lockstep::reduction::sum, {});
  communicators.front().all_gather(std::span{elements}, {});
  CHECK(communicators.front().bytes_moved() == 0);
}
