// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/error.hpp>
#include <lockstep/data/detail/byte_reader.hpp>

#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <ios>
#include <istream>
#include <new>
#include <streambuf>
#include <string>
#include <utility>
#include <vector>

// Needs zlib, so no umbrella includes this header: include it by name and link with -lz.

namespace lockstep {

/// Inflates a gzip file, of one member or several, while it is read. Whatever is wrong with the file is thrown as file_error,
/// whose offset counts compressed bytes.
class gzip_streambuf : public std::streambuf {
 public:
  /// Keeps a reference to `compressed`, which must outlive this object; `name` stands for it in messages. Throws file_error
  /// when the stream has failed already.
  gzip_streambuf(std::istream& compressed, std::string name)
      : source_(compressed, std::move(name)), input_(block_bytes), output_(block_bytes) {
    constexpr int gzip_only = 16 + MAX_WBITS;
    if (inflateInit2(&state_, gzip_only) != Z_OK) {
      throw std::bad_alloc{};
    }
  }
  gzip_streambuf(gzip_streambuf const&) = delete;  // zlib's state points back at itself
  gzip_streambuf& operator=(gzip_streambuf const&) = delete;
  ~gzip_streambuf() override { inflateEnd(&state_); }

 protected:
  int_type underflow() override {
    while (gptr() == egptr()) {
      if (state_.avail_in == 0) {
        state_.next_in = input_.data();
        state_.avail_in = static_cast<uInt>(source_.read(input_.data(), input_.size()));
        if (state_.avail_in == 0 && between_members_) {
          if (source_.offset() == 0) {
            source_.fail("expected a gzip file; found nothing");
          }
          return traits_type::eof();
        }
      }
      inflate_block();
    }
    return traits_type::to_int_type(*gptr());
  }

 private:
  static constexpr std::size_t block_bytes = std::size_t{1} << 16U;

  // Inflates what is there, up to a block. The output stays where it was on an exception, so a later call throws again.
  void inflate_block() {
    state_.next_out = output_.data();
    state_.avail_out = static_cast<uInt>(output_.size());
    int const code = inflate(&state_, Z_NO_FLUSH);
    std::uint64_t const offset = source_.offset() - state_.avail_in;
    switch (code) {
      case Z_OK: between_members_ = false; break;
      case Z_STREAM_END:  // the member's checksum and length were right
        between_members_ = true;
        inflateReset(&state_);
        break;
      case Z_BUF_ERROR: source_.fail(offset, "expected the rest of a gzip member; found the end");
      case Z_MEM_ERROR: throw std::bad_alloc{};
      default:
        source_.fail(offset, std::string{"expected gzip data that is whole; found "} +
                                 (state_.msg != nullptr ? state_.msg : "an error"));
    }
    char* const first = reinterpret_cast<char*>(output_.data());
    setg(first, first, first + (output_.size() - state_.avail_out));
  }

  data_detail::byte_reader source_;
  std::vector<unsigned char> input_;
  std::vector<unsigned char> output_;
  z_stream state_{};
  bool between_members_ = true;  // the stream may end here
};

/// An input stream of what a gzip file holds: `gzip_istream in{file, "images.gz"}; read_idx(in, "images")`. A member's checksum
/// stands behind its data, so read to the end, as the readers of this library do, before trusting the data. Its mask of
/// exceptions has badbit, so that reading throws the file_error itself.
class gzip_istream : public std::istream {
 public:
  /// As gzip_streambuf.
  gzip_istream(std::istream& compressed, std::string name) : std::istream(nullptr), buffer_(compressed, std::move(name)) {
    rdbuf(&buffer_);
    exceptions(std::ios::badbit);
  }

 private:
  gzip_streambuf buffer_;
};

}  // namespace lockstep
