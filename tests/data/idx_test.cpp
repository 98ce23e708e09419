// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <lockstep/data/idx.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <sstream>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

namespace {

using lockstep::read_idx;
using lockstep::read_labelled_idx;

std::uint64_t test_seed() {
  char const* const given = std::getenv("LOCKSTEP_TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
}

template <class Word>
void put(std::string& text, Word word) {
  for (std::size_t byte = sizeof(Word); byte-- > 0;) {
    text += static_cast<char>(static_cast<unsigned char>(word >> 8U * byte));
  }
}

std::string header(unsigned char code, std::vector<std::uint32_t> const& shape) {
  std::string text{'\0', '\0', static_cast<char>(code), static_cast<char>(shape.size())};
  for (std::uint32_t const extent : shape) {
    put(text, extent);
  }
  return text;
}

std::string bytes_file(std::vector<std::uint32_t> const& shape, std::vector<std::uint8_t> const& values) {
  return header(0x08, shape) + std::string{values.begin(), values.end()};
}

template <class T = std::uint8_t>
lockstep::idx_array<T> parse(std::string const& text) {
  std::istringstream in{text};
  return read_idx<T>(in, "x.idx");
}

template <class T = std::uint8_t>
void fails(std::string const& text, std::uint64_t offset, char const* expected) {
  CAPTURE(expected);
  try {
    static_cast<void>(parse<T>(text));
    FAIL("was read");
  } catch (lockstep::file_error const& error) {
    INFO(error.what());
    CHECK(error.file() == "x.idx");
    CHECK(error.offset() == offset);
    CHECK(std::string{error.what()}.find(expected) != std::string::npos);
  }
}

template <class T, class Word>
void round_trips(std::uint64_t seed) {
  std::mt19937_64 random{seed};
  for (int round = 0; round < 200; ++round) {
    std::vector<std::uint32_t> shape(1 + random() % 8);
    std::size_t count = 1;
    for (std::uint32_t& extent : shape) {
      extent = static_cast<std::uint32_t>(random() % 4 + (random() % 8 != 0 ? 1 : 0));
      count *= extent;
    }
    std::string text = header(lockstep::idx_code<T>, shape);
    std::vector<Word> words(count);
    for (Word& word : words) {
      word = static_cast<Word>(random());
      put(text, word);
    }
    auto const read = parse<T>(text);
    REQUIRE(read.shape == std::vector<std::size_t>(shape.begin(), shape.end()));
    REQUIRE(read.values.size() == count);
    REQUIRE((count == 0 || std::memcmp(read.values.data(), words.data(), count * sizeof(T)) == 0));
  }
}

lockstep::table<float, int> parse_pair(std::string const& images, std::string const& labels, int classes = 10) {
  std::istringstream first{images};
  std::istringstream second{labels};
  return read_labelled_idx(first, "images", second, "labels", classes);
}

}  // namespace

TEST_CASE("idx: values of every element type come back, whatever the shape") {
  std::uint64_t const seed = test_seed();
  INFO("LOCKSTEP_TEST_SEED=" << seed);
  round_trips<std::uint8_t, std::uint8_t>(seed);
  round_trips<std::int8_t, std::uint8_t>(seed);
  round_trips<std::int16_t, std::uint16_t>(seed);
  round_trips<std::int32_t, std::uint32_t>(seed);
  round_trips<float, std::uint32_t>(seed);
  round_trips<double, std::uint64_t>(seed);
}

TEST_CASE("idx: values are big-endian") {
  CHECK(parse<std::int16_t>(header(0x0B, {2}) + std::string{"\x01\x02\xff\xfe", 4}).values ==
        std::vector<std::int16_t>{258, -2});
  CHECK(parse<float>(header(0x0D, {1}) + std::string{"\x3f\xc0\x00\x00", 4}).values == std::vector<float>{1.5F});
}

TEST_CASE("idx: more values than one step of reading holds come back") {
  std::vector<std::uint8_t> values(300'000);
  for (std::size_t index = 0; index < values.size(); ++index) {
    values[index] = static_cast<std::uint8_t>(index * 7919U >> 5U);
  }
  CHECK(parse(bytes_file({300, 1000}, values)).values == values);
}

TEST_CASE("idx: a file cut at any byte is an error, and so is one byte more") {
  std::string const whole = bytes_file({2, 3}, {1, 2, 3, 4, 5, 6});
  CHECK(parse(whole).values.size() == 6);
  for (std::size_t cut = 0; cut < whole.size(); ++cut) {
    fails(whole.substr(0, cut), cut, "found the end");
  }
  fails(whole + 'x', whole.size(), "expected the end after the last value; found more bytes");
}

TEST_CASE("idx: a wrong magic, element type or number of dimensions is an error at its byte") {
  fails("\x1f\x8b\x08\x08", 0, "two zero bytes; found 0x1f 0x8b");
  fails(std::string{"\0\1\x08\1\0\0\0\0", 8}, 0, "two zero bytes; found 0x00 0x01");
  fails(header(0x0D, {1}), 2, "expected element type 0x08; found 0x0d");
  fails<double>(header(0x0D, {1}), 2, "expected element type 0x0e; found 0x0d");
  fails(std::string{"\0\0\x08\0", 4}, 3, "expected 1 to 8 dimensions; found 0");
  fails(header(0x08, std::vector<std::uint32_t>(9, 1)) + 'x', 3, "expected 1 to 8 dimensions; found 9");
}

TEST_CASE("idx: extents that overflow, or promise more than the file has, cost no memory") {
  std::uint32_t const most = 0xFFFFFFFF;
  fails(header(0x08, {most, most}), 8, "product can be addressed");
  fails(header(0x08, {0, most, most, most}), 12, "product can be addressed");
  fails<double>(header(0x0E, {0x80000000, 0x20000000}), 8, "product can be addressed");
  fails(header(0x08, {most, 0x7FFFFFFF}) + "abc", 15, "found the end after 3");  // eight exabytes, all but three bytes missing
  fails<float>(header(0x0D, {most}) + "abcde", 13, "found the end after 1");
}

TEST_CASE("idx: an extent of 0 is an empty array") {
  auto const none = parse(header(0x08, {0, 28, 28}));
  CHECK(none.values.empty());
  CHECK(none.shape == std::vector<std::size_t>{0, 28, 28});
}

TEST_CASE("idx: a flipped bit in the header is never read as something else of the same size") {
  std::string const whole = bytes_file({2, 3}, {1, 2, 3, 4, 5, 6});
  for (std::size_t bit = 0; bit < 12 * 8; ++bit) {
    CAPTURE(bit);
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(static_cast<unsigned char>(flipped[bit / 8]) ^ 1U << bit % 8);
    CHECK_THROWS_AS(static_cast<void>(parse(flipped)), lockstep::file_error);
  }
}

TEST_CASE("idx: images and labels become a table of rows") {
  auto const data = parse_pair(bytes_file({3, 1, 2}, {0, 255, 1, 2, 3, 4}), bytes_file({3}, {9, 0, 5}));
  CHECK(data.rows() == 3);
  auto const [pixels, labels] = data.view();
  CHECK(pixels.width() == 2);
  CHECK(pixels[0][1] == 255);
  CHECK(pixels[2][0] == 3);
  CHECK(labels[0][0] == 9);
  CHECK(parse_pair(header(0x08, {0, 28, 28}), header(0x08, {0})).rows() == 0);
}

TEST_CASE("idx: images and labels that disagree, and labels out of range, are errors at their byte") {
  std::string const images = bytes_file({2, 2}, {1, 2, 3, 4});
  auto const refused = [](std::string const& first, std::string const& second, char const* expected) {
    CHECK_THROWS_WITH_AS(static_cast<void>(parse_pair(first, second)), expected, lockstep::file_error);
  };
  refused(images, bytes_file({3}, {1, 2, 3}), "labels, byte 4: expected 2 labels, one for each image of images; found 3");
  refused(images, bytes_file({2, 1}, {1, 2}), "labels, byte 3: expected labels in 1 dimension; found 2");
  refused(images, bytes_file({2}, {9, 10}), "labels, byte 9: expected a label from 0 to 9; found 10");
  refused(header(0x08, {2, 0}), bytes_file({2}, {1, 2}),
          "images, byte 8: expected images of at least one pixel; found an extent of 0");
  refused(images, images.substr(0, 9), "labels, byte 9: expected an extent, 3 bytes more; found the end");
  CHECK_THROWS_AS(static_cast<void>(parse_pair(images, bytes_file({2}, {0, 0}), 0)), lockstep::usage_error);
  CHECK_THROWS_AS(static_cast<void>(parse_pair(images, bytes_file({2}, {0, 0}), 257)), lockstep::usage_error);
}
