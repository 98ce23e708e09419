// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <lockstep/observe/progress.hpp>

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iomanip>
#include <ios>
#include <limits>
#include <ratio>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace {

// A clock that stands still until a test moves it.
struct hand_clock {
  using duration = std::chrono::duration<long long, std::milli>;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<hand_clock>;
  [[maybe_unused]] static constexpr bool is_steady = true;

  static time_point now() { return current; }
  static void pass(long long milliseconds) { current += duration{milliseconds}; }

  static inline time_point current{};
};

using hand_progress = lockstep::basic_progress<hand_clock>;
using lockstep::progress_style;

// A result whose loss counts how often it was read.
struct result {
  double value;
  std::size_t count;
  int* reads;

  double loss() const {
    ++*reads;
    if (value < 0) {
      throw std::runtime_error("the device is gone");
    }
    return value;
  }
  std::size_t samples() const { return count; }
};

std::size_t count_of(std::string const& text, char wanted) {
  std::size_t count = 0;
  for (char const byte : text) {
    count += byte == wanted ? 1 : 0;
  }
  return count;
}

}  // namespace

static_assert(lockstep::progress_result<result>);
static_assert(!std::is_copy_constructible_v<lockstep::progress>);

TEST_CASE("progress: a line says step, percent, loss, speed and time left") {
  std::ostringstream out;
  hand_progress progress{1000, {.out = out, .style = progress_style::lines}};
  hand_clock::pass(100);
  progress.update(0.34119, 64);
  CHECK(out.str() == "step 1/1000  0%  loss 0.3412  640 samples/s  1:40 left\n");
  hand_clock::pass(4999);
  progress.update(0.3, 64);
  CHECK(count_of(out.str(), '\n') == 1);
  hand_clock::pass(1);
  out.str("");
  progress.update(0.25, 64);
  CHECK(out.str() == "step 3/1000  0%  loss 0.25  37.6 samples/s  28:15 left\n");
}

TEST_CASE("progress: a terminal line is drawn over itself, at most ten times a second, and covers a longer one") {
  std::ostringstream out;
  hand_progress progress{100, {.out = out, .style = progress_style::redraw}};
  for (int step = 0; step < 100; ++step) {
    hand_clock::pass(10);
    progress.update(step == 0 ? 0.123456 : 1, 10);
  }
  CHECK(count_of(out.str(), '\r') == 11);  // 10 ms, 110 ms, ... 910 ms, and the last step at 1,000 ms
  CHECK(count_of(out.str(), '\n') == 0);
  std::string const first = out.str().substr(0, out.str().find('\r', 1));
  std::string const second = out.str().substr(first.size(), out.str().find('\r', first.size() + 1) - first.size());
  CHECK(first == "\rstep 1/100  1%  loss 0.1235  1000 samples/s  0:01 left");
  CHECK(second == "\rstep 11/100  11%  loss 1  1000 samples/s  0:01 left   ");
  progress.finish();
  CHECK(out.str().ends_with("step 100/100  100%  loss 1  1000 samples/s         \n"));
}

TEST_CASE("progress: the loss of a result is read only when it is drawn") {
  std::ostringstream out;
  int reads = 0;
  hand_progress progress{1000, {.out = out, .style = progress_style::redraw}};
  for (int step = 0; step < 500; ++step) {
    hand_clock::pass(1);
    progress.update(result{.value = 0.5, .count = 8, .reads = &reads});
  }
  CHECK(reads == 5);
  CHECK(static_cast<std::size_t>(reads) == count_of(out.str(), '\r'));
}

TEST_CASE("progress: what reading a loss throws comes out, and the step counts all the same") {
  std::ostringstream out;
  int reads = 0;
  hand_progress progress{10, {.out = out, .style = progress_style::lines}};
  CHECK_THROWS_AS(progress.update(result{.value = -1, .count = 8, .reads = &reads}), std::runtime_error);
  progress.update(result{.value = 2, .count = 8, .reads = &reads});
  CHECK(out.str() == "step 2/10  20%  loss 2\n");
}

TEST_CASE("progress: finish shows a last step that was not drawn, once, and the destructor does as much") {
  std::ostringstream out;
  {
    hand_progress progress{10, {.out = out, .style = progress_style::redraw}};
    progress.update(4, 1);
    progress.update(3, 1);
    CHECK(count_of(out.str(), '\r') == 1);
    progress.finish();
    CHECK(out.str().ends_with("\rstep 2/10  20%  loss 4\n"));
    progress.finish();
    CHECK(count_of(out.str(), '\n') == 1);
    progress.update(1, 1);
  }
  CHECK(out.str().ends_with("\rstep 3/10  30%  loss 4\n"));
  CHECK(count_of(out.str(), '\n') == 2);
  std::ostringstream nothing;
  { hand_progress const unused{10, {.out = nothing}}; }
  CHECK(nothing.str().empty());
}

TEST_CASE("progress: an unknown total, more steps than the total, and a resumed run are shown as they are") {
  std::ostringstream out;
  hand_progress unknown{0, {.out = out, .style = progress_style::lines, .line_seconds = 0}};
  hand_clock::pass(1000);
  unknown.update(1, 5);
  CHECK(out.str() == "step 1  loss 1  5.0 samples/s\n");

  out.str("");
  hand_progress over{1, {.out = out, .style = progress_style::lines, .line_seconds = 0}};
  over.update(1, 5);
  over.update(1, 5);
  CHECK(out.str() == "step 1/1  100%  loss 1\nstep 2/1  100%  loss 1\n");

  out.str("");
  hand_progress resumed{1000, {.out = out, .style = progress_style::lines, .first_step = 899}};
  hand_clock::pass(1000);
  resumed.update(1, 5);
  CHECK(out.str() == "step 900/1000  90%  loss 1  5.0 samples/s  1:40 left\n");
}

TEST_CASE("progress: a loss that is no number, no time passed, and long times are readable") {
  std::ostringstream out;
  double const nan = std::numeric_limits<double>::quiet_NaN();
  hand_progress one{std::uint64_t{1} << 62U, {.out = out, .style = progress_style::lines, .line_seconds = 0}};
  one.update(-nan, 5);
  one.update(std::numeric_limits<double>::infinity(), 5);
  CHECK(out.str() == "step 1/4611686018427387904  0%  loss nan\nstep 2/4611686018427387904  0%  loss inf\n");
  out.str("");
  hand_clock::pass(1000);
  one.update(1e30, 5);
  CHECK(out.str() == "step 3/4611686018427387904  0%  loss 1e+30  15.0 samples/s  --:-- left\n");
  out.str("");
  hand_progress hours{3, {.out = out, .style = progress_style::lines}};
  hand_clock::pass(1'861'500);
  hours.update(1, 0);
  CHECK(out.str() == "step 1/3  33%  loss 1  0.0 samples/s  1:02:03 left\n");
}

TEST_CASE("progress: 99.9 percent is not shown as 100") {
  std::ostringstream out;
  hand_progress progress{1000, {.out = out, .style = progress_style::lines, .first_step = 998}};
  progress.update(1, 1);
  CHECK(out.str() == "step 999/1000  99%  loss 1\n");
}

TEST_CASE("progress: a stream that is no terminal gets lines, and its own format does not matter") {
  std::ostringstream out;
  out << std::hex << std::setw(200);
  hand_progress progress{100, {.out = out}};
  progress.update(1, 1);
  CHECK(out.str() == "step 1/100  1%  loss 1\n");
}

TEST_CASE("progress: the destructor keeps silent about a stream that throws") {
  std::ostringstream out;
  {
    hand_progress progress{10, {.out = out, .style = progress_style::redraw}};
    progress.update(1, 1);
    progress.update(1, 1);
    out.exceptions(std::ios::badbit | std::ios::failbit);
    CHECK_THROWS_AS(out.setstate(std::ios::badbit), std::ios::failure);
  }
  CHECK(count_of(out.str(), '\r') == 1);
}

TEST_CASE("progress: an interval below 0 or no number is refused") {
  std::ostringstream out;
  CHECK_THROWS_AS((hand_progress{1, {.out = out, .redraw_seconds = -1}}), lockstep::usage_error);
  CHECK_THROWS_AS((hand_progress{1, {.out = out, .line_seconds = std::nan("")}}), lockstep::usage_error);
}
