// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <lockstep/data/csv.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <ios>
#include <limits>
#include <random>
#include <sstream>
#include <stdexcept>
#include <streambuf>
#include <string>
#include <tuple>
#include <vector>

namespace {

using lockstep::csv_options;
using lockstep::read_csv;
using lockstep::read_labelled_csv;

template <class T = float>
lockstep::column<T> parse(std::string const& text, csv_options const& options = {}) {
  std::istringstream in{text};
  return read_csv<T>(in, "x.csv", options);
}

template <class T = float>
void fails(std::string const& text, std::uint64_t offset, char const* expected, csv_options const& options = {}) {
  CAPTURE(text);
  try {
    static_cast<void>(parse<T>(text, options));
    FAIL("was read");
  } catch (lockstep::file_error const& error) {
    CHECK(error.file() == "x.csv");
    CHECK(error.offset() == offset);
    CHECK(std::string{error.what()}.find(expected) != std::string::npos);
    INFO(error.what());
    CHECK(std::string{error.what()}.rfind("x.csv, byte " + std::to_string(offset) + ": expected", 0) == 0);
  }
}

// Gives some bytes, then throws.
class failing_buffer : public std::streambuf {
 public:
  explicit failing_buffer(std::string text) : text_(std::move(text)) {
    setg(text_.data(), text_.data(), text_.data() + text_.size());
  }

 protected:
  int_type underflow() override { throw std::runtime_error("the cable was pulled"); }

 private:
  std::string text_;
};

std::uint64_t test_seed() {
  char const* const given = std::getenv("LOCKSTEP_TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
}

}  // namespace

TEST_CASE("csv: rows of numbers become a column as wide as a row") {
  auto const read = parse("1,2.5,-3e2\n4,5,6\n");
  CHECK(read.width == 3);
  CHECK(read.values == std::vector<float>{1, 2.5F, -300, 4, 5, 6});
  CHECK(parse<std::int64_t>("-9223372036854775808").values[0] == std::numeric_limits<std::int64_t>::min());
}

TEST_CASE("csv: CRLF, a missing last line end, another delimiter and a header are read") {
  auto const expected = std::vector<float>{1, 2, 3, 4};
  CHECK(parse("1,2\r\n3,4\r\n").values == expected);
  CHECK(parse("1,2\r\n3,4").values == expected);
  CHECK(parse("1,2\n3,4").values == expected);
  CHECK(parse("1;2\n3;4", {.delimiter = ';'}).values == expected);
  CHECK(parse("a,b,c\nwhat,else\n1,2\n3,4\n", {.header_lines = 2, .columns = 2, .rows = 2}).values == expected);
}

TEST_CASE("csv: a delimiter that belongs to numbers or line ends is refused") {
  for (char const delimiter : {'0', '.', '-', 'e', '\n', '\r'}) {
    CHECK_THROWS_AS(static_cast<void>(parse("1,2\n", {.delimiter = delimiter})), lockstep::usage_error);
  }
}

TEST_CASE("csv: what is written is what is read, for random numbers") {
  std::uint64_t const seed = test_seed();
  INFO("LOCKSTEP_TEST_SEED=" << seed);
  std::mt19937_64 random{seed};
  for (int round = 0; round < 500; ++round) {
    std::size_t const rows = 1 + random() % 6;
    std::size_t const columns = 1 + random() % 6;
    std::vector<double> values(rows * columns);
    std::string text;
    std::array<char, 64> number{};
    for (std::size_t index = 0; index < values.size(); ++index) {
      values[index] = (static_cast<double>(random()) - 9e18) * (random() % 2 == 0 ? 1e-18 : 1e200);
      auto const end = std::to_chars(number.data(), number.data() + number.size(), values[index]).ptr;
      text.append(number.data(), end);
      text += index % columns + 1 < columns ? "," : random() % 2 == 0 ? "\n" : "\r\n";
    }
    auto const read = parse<double>(text);
    REQUIRE(read.width == columns);
    REQUIRE(read.values == values);
  }
}

TEST_CASE("csv: each kind of bad field is an error at its byte") {
  fails("1,2\n3,x\n", 6, "expected a finite number in row 2, column 2; found \"x\"");
  fails("1,2\n,4\n", 4, "row 2, column 1; found nothing");
  fails("1,\n", 2, "row 1, column 2; found nothing");
  fails("1,2 \n", 2, "found \"2 \"");
  fails(" 1,2\n", 0, "found \" 1\"");
  fails("1,2garbage\n", 2, "found \"2garbage\"");
  fails("1,nan\n", 2, "a finite number");
  fails("1,inf\n", 2, "a finite number");
  fails("1,1e999\n", 2, "a number that its type holds");
  fails("1,+2\n", 2, "found \"+2\"");
  fails("\"1\",2\n", 0, "row 1, column 1");
  fails(std::string{"1,\x1b[31m\0", 8}, 2, "found \"?[31m?\"");
  fails("1," + std::string(1000, 'y'), 2, "yyy...\"");
  fails(
      "\xef\xbb\xbf"
      "1,2\n",
      0, "found \"???1\"");
  fails<int>("1,2.0\n", 2, "a whole number");
  fails<int>("1,2147483648\n", 2, "a number that its type holds");
  fails<std::uint8_t>("-1\n", 0, "a whole number");
  fails<std::uint8_t>("256\n", 0, "a number that its type holds");
}

TEST_CASE("csv: rows that are not alike, too few or too many are errors") {
  fails("1,2\n3\n", 4, "expected 2 columns in row 2; found 1");
  fails("1,2\n3,4,5\n", 4, "expected 2 columns in row 2; found 3");
  fails("1,2\n\n3,4\n", 4, "expected 2 columns in row 2; found 1");
  fails("1,2\n3,4\n\n", 8, "expected 2 columns in row 3; found 1");
  fails("1\n\n", 2, "row 2, column 1; found nothing");
  fails("1,2\n", 0, "expected 3 columns in row 1; found 2", {.columns = 3});
  fails("", 0, "expected row 1; found the end");
  fails("", 0, "expected header line 1", {.header_lines = 1});
  fails("a,b\n", 4, "expected row 1; found the end", {.header_lines = 1});
  fails("1\n2\n", 4, "expected row 3 of 3; found the end", {.rows = 3});
  fails("1\n2\n3\n", 4, "expected the end after 2 rows; found another", {.rows = 2});
}

TEST_CASE("csv: a file of known rows that is cut at any byte is an error, its last line end apart") {
  std::string const whole = "0,12,3\n4.5,6,1\n7,80,2\n";
  for (std::size_t cut = 0; cut < whole.size(); ++cut) {
    CAPTURE(cut);
    std::istringstream in{whole.substr(0, cut)};
    if (cut == whole.size() - 1) {
      CHECK(read_labelled_csv(in, "x.csv", 4, {.rows = 3}).rows() == 3);
    } else {
      CHECK_THROWS_AS(static_cast<void>(read_labelled_csv(in, "x.csv", 4, {.rows = 3})), lockstep::file_error);
    }
  }
}

TEST_CASE("csv: the last column splits off as labels, which must lie in range") {
  std::istringstream good{"0.5,1,0\n2,3,9\n"};
  auto const data = read_labelled_csv(good, "x.csv", 10);
  CHECK(data.rows() == 2);
  auto const [values, labels] = data.view();
  CHECK(values.width() == 2);
  CHECK(values[1][1] == 3);
  CHECK(labels[1][0] == 9);

  auto const refused = [](std::string const& text, char const* expected) {
    std::istringstream in{text};
    CHECK_THROWS_WITH_AS(static_cast<void>(read_labelled_csv(in, "x.csv", 10)), expected, lockstep::file_error);
  };
  refused("1,2,0\n1,2,10\n", "x.csv, byte 10: expected a label from 0 to 9 in row 2, column 3; found \"10\"");
  refused("1,2,-1\n", "x.csv, byte 4: expected a label from 0 to 9 in row 1, column 3; found \"-1\"");
  refused("1,2,3.0\n", "x.csv, byte 4: expected a whole number in row 1, column 3; found \"3.0\"");
  refused("1\n", "x.csv, byte 0: expected values and a label in row 1, column 1; found \"1\"");
  CHECK_THROWS_AS(static_cast<void>(read_labelled_csv(good, "x.csv", 0)), lockstep::usage_error);
}

TEST_CASE("csv: a stream that failed before or fails on the way is an error with its reason") {
  std::ifstream missing{"/no/such/file.csv"};
  CHECK_THROWS_WITH_AS(static_cast<void>(read_csv(missing, "file.csv")),
                       doctest::Contains("file.csv, byte 0: expected a stream"), lockstep::file_error);
  failing_buffer buffer{"1,2\n3,"};
  std::istream in{&buffer};
  CHECK_THROWS_WITH_AS(static_cast<void>(read_csv(in, "x.csv")),
                       "x.csv, byte 6: expected more bytes; reading failed: the cable was pulled", lockstep::file_error);
  std::ifstream folder{LOCKSTEP_DATA_DIR};
  CHECK_THROWS_AS(static_cast<void>(read_csv(folder, "folder")), lockstep::file_error);
}

TEST_CASE("csv: random bytes are read or refused, never more") {
  std::uint64_t const seed = test_seed();
  INFO("LOCKSTEP_TEST_SEED=" << seed);
  std::mt19937_64 random{seed};
  std::string const alphabet = "0123456789.,,,,\n\n\r-e+ x\0";
  for (int round = 0; round < 5000; ++round) {
    std::string text(random() % 24, ' ');
    for (char& byte : text) {
      byte = alphabet[random() % alphabet.size()];
    }
    try {
      auto const read = parse(text);
      REQUIRE(read.width > 0);
      REQUIRE(read.values.size() % read.width == 0);
      REQUIRE_FALSE(read.values.empty());
    } catch (lockstep::file_error const& error) {
      REQUIRE(error.offset() <= text.size());
    }
  }
}

TEST_CASE("csv: the digits of the examples load with the right counts") {
  std::ifstream in{LOCKSTEP_DATA_DIR "/digits/digits.csv", std::ios::binary};
  auto const data = read_labelled_csv(in, "digits.csv", 10, {.columns = 65, .rows = 1797});
  CHECK(data.rows() == 1797);
  auto const [pixels, labels] = data.view();
  CHECK(pixels.width() == 64);
  std::array<int, 10> seen{};
  bool in_range = true;
  for (std::size_t row = 0; row < data.rows(); ++row) {
    ++seen[static_cast<std::size_t>(labels[row][0])];
    for (float const pixel : pixels[row]) {
      in_range = in_range && pixel >= 0 && pixel <= 16;
    }
  }
  CHECK(in_range);
  CHECK(seen == std::array{178, 182, 177, 183, 181, 182, 181, 179, 174, 180});
}
