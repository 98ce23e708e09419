// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#include <lockstep/core/devices.hpp>

#include <doctest/doctest.h>

#include <vector>

using lockstep::device_id;
using lockstep::devices;

TEST_CASE("devices: the listed devices and no others, in the listed order") {
  // {3, 2} must not bring in device 0, whatever the machine offers.
  for (int const available : {0, 1, 4, 16}) {
    CHECK(devices{3, 2}.resolve(available) == std::vector{device_id{3}, device_id{2}});
  }
  CHECK(devices{std::vector{5}}.resolve(8) == std::vector{device_id{5}});
}

TEST_CASE("devices: a device listed twice is refused, naming both ranks") {
  CHECK_THROWS_WITH_AS((devices{4, 7, 1, 7}), doctest::Contains("ranks 1 and 3 are both on device 7"), lockstep::usage_error);
  CHECK_THROWS_AS((devices{0, 0}), lockstep::usage_error);
}

TEST_CASE("devices: a negative number is refused, naming its rank") {
  CHECK_THROWS_WITH_AS((devices{0, -2}), doctest::Contains("device -2 at rank 1"), lockstep::usage_error);
}

TEST_CASE("devices: an empty or endless list is refused") {
  CHECK_THROWS_AS(devices{std::vector<int>{}}, lockstep::usage_error);
  std::vector<int> many;
  for (int id = 0; id <= devices::max_count; ++id) {
    many.push_back(id);
  }
  CHECK_THROWS_AS(devices{many}, lockstep::usage_error);
  many.pop_back();
  CHECK(devices{many}.resolve(1).size() == 1024);
}

TEST_CASE("devices: first(n) is 0 to n - 1") {
  CHECK(devices::first(3).resolve(1) == std::vector{device_id{0}, device_id{1}, device_id{2}});
  CHECK(devices::first(devices::max_count).resolve(1).size() == 1024);
  CHECK_THROWS_WITH_AS(static_cast<void>(devices::first(0)), doctest::Contains("devices::first(0)"), lockstep::usage_error);
  CHECK_THROWS_AS(static_cast<void>(devices::first(-1)), lockstep::usage_error);
  CHECK_THROWS_AS(static_cast<void>(devices::first(devices::max_count + 1)), lockstep::usage_error);
}

TEST_CASE("devices: all() is what the backend offers, and an error where it offers nothing") {
  CHECK(devices::all().resolve(2) == std::vector{device_id{0}, device_id{1}});
  CHECK(devices::all().resolve(5000).size() == 1024);
  CHECK_THROWS_AS(static_cast<void>(devices::all().resolve(0)), lockstep::usage_error);
}
