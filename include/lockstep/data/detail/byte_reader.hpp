// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/error.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <istream>
#include <new>
#include <streambuf>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep::data_detail {

/// Reads a stream and counts its bytes. Goes to the stream's buffer, because an istream hides what its buffer throws.
class byte_reader {
 public:
  /// Throws file_error when the stream has failed already: a file that didn't open, say.
  byte_reader(std::istream& in, std::string name) : in_(in), name_(std::move(name)) {
    if (!in.good() || in.rdbuf() == nullptr) {
      fail("expected a stream that can be read; this one has failed already (was the file opened?)");
    }
  }

  [[nodiscard]] std::string const& name() const noexcept { return name_; }
  /// Bytes read so far.
  [[nodiscard]] std::uint64_t offset() const noexcept { return offset_; }

  [[noreturn]] void fail(std::string const& expected) const { fail(offset_, expected); }
  [[noreturn]] void fail(std::uint64_t offset, std::string const& expected) const { throw file_error(name_, offset, expected); }

  /// Reads up to `bytes` bytes; fewer at the end of the stream only.
  std::size_t read(void* to, std::size_t bytes) {
    return guarded([&] {
      std::streamsize const got = in_.rdbuf()->sgetn(static_cast<char*>(to), static_cast<std::streamsize>(bytes));
      offset_ += static_cast<std::uint64_t>(got);
      return static_cast<std::size_t>(got);
    });
  }

  /// Reads `bytes` bytes of `what`; throws file_error where they end.
  void read_all(void* to, std::size_t bytes, std::string_view what) {
    std::size_t const got = read(to, bytes);
    if (got != bytes) {
      fail(std::string("expected ") + std::string{what} + ", " + std::to_string(bytes - got) + " bytes more; found the end");
    }
  }

  /// Throws file_error unless all was read.
  void expect_end(std::string_view after) {
    char extra = 0;
    std::uint64_t const end = offset_;
    if (read(&extra, 1) != 0) {
      fail(end, std::string("expected the end after ") + std::string{after} + "; found more bytes");
    }
  }

  /// Reads the next line without its end (LF or CRLF; the last line may go without). False when there is none.
  bool line(std::string& text) {
    return guarded([&] {
      using traits = std::char_traits<char>;
      text.clear();
      auto next = in_.rdbuf()->sbumpc();
      if (traits::eq_int_type(next, traits::eof())) {
        return false;
      }
      for (; !traits::eq_int_type(next, traits::eof()); next = in_.rdbuf()->sbumpc()) {
        ++offset_;
        char const byte = traits::to_char_type(next);
        if (byte == '\n') {
          break;
        }
        text.push_back(byte);
      }
      if (!text.empty() && text.back() == '\r') {
        text.pop_back();
      }
      return true;
    });
  }

 private:
  // Names file and place for an exception of the stream's buffer, unless it does so itself.
  template <class Read>
  auto guarded(Read read) -> decltype(read()) {
    try {
      return read();
    } catch (error const&) {
      throw;
    } catch (std::bad_alloc const&) {
      throw;
    } catch (std::exception const& reason) {
      fail(std::string{"expected more bytes; reading failed: "} + reason.what());
    }
  }

  std::istream& in_;
  std::string name_;
  std::uint64_t offset_ = 0;
};

}  // namespace lockstep::data_detail
