// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <lockstep/concepts.hpp>
#include <lockstep/data/table.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <vector>

namespace {

using lockstep::column;
using lockstep::table;

table<float, int> four_rows() {
  return table{column{std::vector<float>{0, 1, 10, 11, 20, 21, 30, 31}, 2}, column{std::vector<int>{0, 1, 2, 3}}};
}

}  // namespace

static_assert(lockstep::batch<table<float, int>::batch>);
static_assert(lockstep::column_element<std::uint8_t>);
static_assert(!lockstep::column_element<bool>);
static_assert(!lockstep::column_element<std::vector<int>>);

TEST_CASE("table: gathers rows in the order asked for, repeated ones too, as views of the storage") {
  auto const data = four_rows();
  CHECK(data.rows() == 4);
  table<float, int>::storage storage;
  std::array<std::size_t, 3> const rows{3, 0, 3};
  auto const batch = data.gather(rows, storage);
  CHECK(lockstep::sample_count(batch) == 3);
  auto const& [values, labels] = batch;
  CHECK(std::get<0>(storage) == std::vector<float>{30, 31, 0, 1, 30, 31});
  CHECK(std::get<1>(storage) == std::vector<int>{3, 0, 3});
  CHECK(values.data() == std::get<0>(storage).data());
  CHECK(values.width() == 2);
  CHECK(labels.width() == 1);
  CHECK(values[1][1] == 1);
  CHECK(labels[2][0] == 3);
  CHECK(lockstep::sample_count(data.gather({}, storage)) == 0);
}

TEST_CASE("table: a row that does not exist is refused and nothing is copied") {
  auto const data = four_rows();
  table<float, int>::storage storage;
  std::array<std::size_t, 2> const rows{0, 4};
  CHECK_THROWS_WITH_AS(data.gather(rows, storage), "lockstep: row 4 of a table that has 4", lockstep::usage_error);
  CHECK(std::get<0>(storage).empty());
  CHECK_THROWS_AS(static_cast<void>(data.select(rows)), lockstep::usage_error);
}

TEST_CASE("table: select makes a table that stands alone, and values may be scaled in place") {
  auto data = four_rows();
  std::array<std::size_t, 2> const rows{1, 2};
  auto part = data.select(rows);
  for (float& value : part.values<0>()) {
    value *= 2;
  }
  CHECK(part.rows() == 2);
  CHECK(std::get<0>(part.view())[1][0] == 40);
  CHECK(std::get<1>(part.view())[0][0] == 1);
  CHECK(std::get<0>(data.view())[2][0] == 20);
  CHECK(lockstep::sample_count(data.select({}).view()) == 0);
}

TEST_CASE("table: columns that make no whole rows, or not equally many, are refused by name") {
  CHECK_THROWS_WITH_AS((table{column{std::vector<float>(5), 2}}), doctest::Contains("column 0 of a table has 5 values"),
                       lockstep::usage_error);
  CHECK_THROWS_WITH_AS((table{column{std::vector<float>(4), 2}, column{std::vector<int>(3)}}),
                       "lockstep: column 1 of a table has 3 rows, column 0 has 2", lockstep::usage_error);
  CHECK_THROWS_WITH_AS((table{column{std::vector<int>(1)}, column{std::vector<float>{}, 0}}),
                       doctest::Contains("column 1 of a table has width 0"), lockstep::usage_error);
  CHECK((table{column<float>{{}, 3}, column<int>{}}).rows() == 0);
}
