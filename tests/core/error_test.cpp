// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#include <lockstep/core/error.hpp>

#include <doctest/doctest.h>

#include <string>
#include <type_traits>

using namespace lockstep;

TEST_CASE("error: expects lets a true condition pass and throws its sentence for a false one") {
  CHECK_NOTHROW(expects(true, "never said"));
  CHECK_THROWS_WITH_AS(expects(false, "a step needs a batch"), "lockstep: a step needs a batch", usage_error);
  CHECK_THROWS_WITH_AS(refuse("rank 3 is not there"), "lockstep: rank 3 is not there", usage_error);
}

TEST_CASE("error: a file error names the file, the byte and what should have stood there") {
  file_error const e("train.idx", 16, "expected 784 bytes, the file ends after 10");
  CHECK(std::string(e.what()) == "train.idx, byte 16: expected 784 bytes, the file ends after 10");
  CHECK(e.file() == "train.idx");
  CHECK(e.offset() == 16);
}

TEST_CASE("error: out of memory names the device, the bytes and their use") {
  out_of_memory const e(device_id{2}, 4096, "gradients");
  CHECK(std::string(e.what()) == "device 2: out of memory allocating 4096 bytes of gradients");
  CHECK(e.device() == device_id{2});
  CHECK(e.bytes() == 4096);
}

TEST_CASE("error: a timeout keeps the rank that did not arrive") {
  timeout_error const e(rank_id{5}, "rank 5 did not arrive at all_reduce within 30 s");
  CHECK(e.missing() == rank_id{5});
  CHECK(std::string(e.what()) == "rank 5 did not arrive at all_reduce within 30 s");
}

TEST_CASE("error: every exception is caught as lockstep::error") {
  CHECK_THROWS_AS(refuse("x"), error);
  CHECK_THROWS_AS(throw file_error("f", 0, "x"), error);
  CHECK_THROWS_AS(throw out_of_memory(device_id{0}, 1, "x"), error);
  CHECK_THROWS_AS(throw timeout_error(rank_id{0}, "x"), error);
  CHECK_THROWS_AS(throw aborted_error("x"), error);
  static_assert(std::is_base_of_v<std::runtime_error, error>);
}

TEST_CASE("error: strong indices give back their number and do not mix") {
  CHECK(number(rank_id{7}) == 7);
  CHECK(number(device_id{0}) == 0);
  static_assert(!std::is_convertible_v<rank_id, int>);
  static_assert(!std::is_convertible_v<rank_id, device_id>);
}

TEST_CASE("error: the place that is put in front of a message is the nearest, however often it passes on") {
  auto const passed_on = [](int times) {
    try {
      try {
        throw lockstep::usage_error("no");
      } catch (...) {
        lockstep::rethrow_at(lockstep::rank_id{1}, "near");
      }
    } catch (lockstep::error& e) {
      for (int i = 0; i < times; ++i) {
        e.locate("far");
      }
      return std::string{e.what()};
    }
  };
  CHECK(passed_on(0) == "near: no");
  CHECK(passed_on(2) == "near: no");
}
