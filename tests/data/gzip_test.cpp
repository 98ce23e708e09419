// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <lockstep/data/gzip.hpp>
#include <lockstep/data/idx.hpp>

#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <ios>
#include <iterator>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>

namespace {

std::uint64_t test_seed() {
  char const* const given = std::getenv("LOCKSTEP_TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
}

// One gzip member.
std::string deflated(std::string const& text, int level = 6) {
  z_stream state{};
  REQUIRE(deflateInit2(&state, level, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(deflateBound(&state, static_cast<uLong>(text.size())), '\0');
  std::string in = text;
  state.next_in = reinterpret_cast<Bytef*>(in.data());
  state.avail_in = static_cast<uInt>(in.size());
  state.next_out = reinterpret_cast<Bytef*>(out.data());
  state.avail_out = static_cast<uInt>(out.size());
  REQUIRE(deflate(&state, Z_FINISH) == Z_STREAM_END);
  out.resize(state.total_out);
  deflateEnd(&state);
  return out;
}

std::string inflated(std::string const& compressed) {
  std::istringstream file{compressed};
  lockstep::gzip_istream in{file, "x.gz"};
  return {std::istreambuf_iterator<char>{in}, {}};
}

std::string repeated(std::string const& text, int times) {
  std::string all;
  while (times-- > 0) {
    all += text;
  }
  return all;
}

lockstep::table<float, int> load(std::string const& part) {
  std::string const folder = LOCKSTEP_DATA_DIR "/mnist10k/" + part;
  std::ifstream images_file{folder + "-images-idx3-ubyte.gz", std::ios::binary};
  std::ifstream labels_file{folder + "-labels-idx1-ubyte.gz", std::ios::binary};
  lockstep::gzip_istream images{images_file, "images"};
  lockstep::gzip_istream labels{labels_file, "labels"};
  return lockstep::read_labelled_idx(images, "images", labels, "labels", 10);
}

}  // namespace

TEST_CASE("gzip: random text of one member or several comes back, small and larger than a block") {
  std::uint64_t const seed = test_seed();
  INFO("LOCKSTEP_TEST_SEED=" << seed);
  std::mt19937_64 random{seed};
  for (int round = 0; round < 60; ++round) {
    std::string text;
    std::string compressed;
    for (std::uint64_t members = 1 + random() % 3; members-- > 0;) {
      std::string part(random() % (round % 4 == 0 ? 300'000 : 500), '\0');
      unsigned const letters = round % 3 == 0 ? 256 : 4;
      for (char& byte : part) {
        byte = static_cast<char>(static_cast<unsigned char>(random() % letters));
      }
      text += part;
      compressed += deflated(part, static_cast<int>(random() % 3));
    }
    REQUIRE(inflated(compressed) == text);
  }
}

TEST_CASE("gzip: much output from little input, and empty members, come back") {
  std::string const zeros(3'000'000, '\0');
  CHECK(inflated(deflated(zeros, 9)) == zeros);
  CHECK(inflated(deflated("")).empty());
  CHECK(inflated(deflated("") + deflated("a") + deflated("") + deflated("b") + deflated("")) == "ab");
}

TEST_CASE("gzip: a file cut at any byte is an error, except between members") {
  std::string const first = deflated("the first member of the file");
  std::string const whole = first + deflated("and the second one");
  for (std::size_t cut = 0; cut < whole.size(); ++cut) {
    CAPTURE(cut);
    if (cut == first.size()) {
      CHECK(inflated(whole.substr(0, cut)) == "the first member of the file");
      continue;
    }
    try {
      static_cast<void>(inflated(whole.substr(0, cut)));
      FAIL("was read");
    } catch (lockstep::file_error const& error) {
      INFO(error.what());
      CHECK(error.file() == "x.gz");
      CHECK(error.offset() == cut);
      CHECK(std::string{error.what()}.find("found") != std::string::npos);
    }
  }
}

TEST_CASE("gzip: with any byte changed the text is an error or as it was") {
  std::string const text = repeated("lockstep trains replicas side by side. ", 5);
  for (int const level : {0, 9}) {
    std::string const whole = deflated(text, level);
    int errors = 0;
    for (std::size_t place = 0; place < whole.size(); ++place) {
      for (unsigned const mask : {0x01U, 0x02U, 0x04U, 0x08U, 0x10U, 0x20U, 0x40U, 0x80U, 0xFFU}) {
        std::string changed = whole;
        changed[place] = static_cast<char>(static_cast<unsigned char>(changed[place]) ^ mask);
        CAPTURE(place);
        CAPTURE(mask);
        try {
          // Where nothing hangs on it: the time in the header, the bits that fill a byte.
          std::string const read = inflated(changed);
          REQUIRE(read == text);
          REQUIRE(place < whole.size() - 8);
        } catch (lockstep::file_error const&) {
          ++errors;
        }
      }
    }
    CHECK(errors >= 9 * 8);
  }
}

TEST_CASE("gzip: an empty file, plain text and bytes after the last member are errors at their byte") {
  CHECK_THROWS_WITH_AS(static_cast<void>(inflated("")), "x.gz, byte 0: expected a gzip file; found nothing",
                       lockstep::file_error);
  CHECK_THROWS_WITH_AS(static_cast<void>(inflated("plain text")), doctest::Contains("incorrect header check"),
                       lockstep::file_error);
  std::string const member = deflated("a member");
  CHECK_THROWS_AS(static_cast<void>(inflated(member + "x")), lockstep::file_error);
  CHECK_THROWS_AS(static_cast<void>(inflated(member + '\0')), lockstep::file_error);
  std::ifstream missing{"/no/such/file.gz"};
  CHECK_THROWS_AS((lockstep::gzip_istream{missing, "file.gz"}), lockstep::file_error);
}

TEST_CASE("gzip: formatted reading throws the reason instead of hiding it, and again when read on") {
  std::string const text = repeated("12 ", 1000);
  std::string const whole = deflated(text);
  std::istringstream file{whole.substr(0, whole.size() - 3)};
  lockstep::gzip_istream in{file, "x.gz"};
  int number = 0;
  CHECK_THROWS_WITH_AS(
      [&] {
        while (in >> number) {
        }
      }(),
      doctest::Contains("expected the rest of a gzip member; found the end"), lockstep::file_error);
  in.exceptions(std::ios::goodbit);
  in.clear();
  in.exceptions(std::ios::badbit);
  CHECK_THROWS_AS(static_cast<void>(in.get()), lockstep::file_error);
}

TEST_CASE("gzip: a reader behind it reports the broken file, a wrong checksum behind all values included") {
  std::string idx{"\0\0\x08\1\0\0\0\5hello", 13};
  std::string const whole = deflated(idx);
  for (std::size_t cut = 0; cut <= whole.size(); ++cut) {
    CAPTURE(cut);
    std::istringstream file{whole.substr(0, cut)};
    lockstep::gzip_istream in{file, "x.gz"};
    if (cut == whole.size()) {
      CHECK(lockstep::read_idx(in, "x").values.size() == 5);
    } else {
      CHECK_THROWS_WITH_AS(static_cast<void>(lockstep::read_idx(in, "x")), doctest::Contains("x.gz, byte"),
                           lockstep::file_error);
    }
  }
  std::string wrong = whole;
  wrong[wrong.size() - 8] = static_cast<char>(wrong[wrong.size() - 8] ^ 1);
  std::istringstream file{wrong};
  lockstep::gzip_istream in{file, "x.gz"};
  CHECK_THROWS_WITH_AS(static_cast<void>(lockstep::read_idx(in, "x")), doctest::Contains("incorrect data check"),
                       lockstep::file_error);
}

TEST_CASE("gzip: the MNIST files of the examples load with the right counts") {
  for (auto const& [part, rows] : {std::pair{"train", std::size_t{8000}}, std::pair{"t10k", std::size_t{2000}}}) {
    auto const data = load(part);
    CHECK(data.rows() == rows);
    auto const [pixels, labels] = data.view();
    CHECK(pixels.width() == 784);
    int seen[10]{};
    float brightest = 0;
    for (std::size_t row = 0; row < rows; ++row) {
      ++seen[labels[row][0]];
    }
    for (float const pixel : data.values<0>()) {
      brightest = pixel > brightest ? pixel : brightest;
    }
    CHECK(brightest == 255);
    for (int const count : seen) {
      CHECK(count > static_cast<int>(rows) / 15);
    }
  }
}
