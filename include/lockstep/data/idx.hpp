// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/error.hpp>
#include <lockstep/data/detail/byte_reader.hpp>
#include <lockstep/data/table.hpp>

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <istream>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

/// The code by which an IDX file names its element type: its third byte.
template <class T>
inline constexpr unsigned char idx_code = 0;
template <>
inline constexpr unsigned char idx_code<std::uint8_t> = 0x08;
template <>
inline constexpr unsigned char idx_code<std::int8_t> = 0x09;
template <>
inline constexpr unsigned char idx_code<std::int16_t> = 0x0B;
template <>
inline constexpr unsigned char idx_code<std::int32_t> = 0x0C;
template <>
inline constexpr unsigned char idx_code<float> = 0x0D;
template <>
inline constexpr unsigned char idx_code<double> = 0x0E;

template <class T>
concept idx_element = (idx_code<T> != 0);

/// The contents of an IDX file: as many values as the product of `shape`, the last extent innermost.
template <idx_element T>
struct idx_array {
  std::vector<T> values;
  std::vector<std::size_t> shape;
};

namespace data_detail {

[[nodiscard]] inline std::string hex(unsigned char byte) {
  constexpr char digits[] = "0123456789abcdef";
  return {'0', 'x', digits[byte >> 4U], digits[byte & 15U]};
}

/// Reads magic and extents of a file of T. The product of all extents, and of any of them, is checked to be addressable.
template <class T>
std::vector<std::size_t> read_idx_shape(byte_reader& bytes) {
  unsigned char magic[4]{};
  bytes.read_all(magic, sizeof magic, "an IDX file's magic number");
  if (magic[0] != 0 || magic[1] != 0) {
    bytes.fail(
        0, std::string("expected an IDX file, which starts with two zero bytes; found ") + hex(magic[0]) + " " + hex(magic[1]));
  }
  if (magic[2] != idx_code<T>) {
    bytes.fail(2, std::string("expected element type ") + hex(idx_code<T>) + "; found " + hex(magic[2]));
  }
  if (magic[3] < 1 || magic[3] > 8) {
    bytes.fail(3, std::string("expected 1 to 8 dimensions; found ") + std::to_string(magic[3]));
  }
  std::vector<std::size_t> shape(magic[3]);
  std::size_t room = static_cast<std::size_t>(PTRDIFF_MAX) / sizeof(T);
  for (std::size_t& extent : shape) {
    unsigned char big[4]{};
    std::uint64_t const at = bytes.offset();
    bytes.read_all(big, sizeof big, "an extent");
    extent = std::size_t{big[0]} << 24U | std::size_t{big[1]} << 16U | std::size_t{big[2]} << 8U | std::size_t{big[3]};
    if (extent > room) {
      bytes.fail(at, std::string("expected extents whose product can be addressed; this one is ") + std::to_string(extent));
    }
    room /= extent != 0 ? extent : 1;
  }
  return shape;
}

/// Reads `count` big-endian values. Memory grows with what was read, so an extent that lies costs nothing.
template <class T>
std::vector<T> read_big_endian(byte_reader& bytes, std::size_t count) {
  constexpr std::size_t first_step = std::size_t{1} << 16U;
  std::vector<T> values;
  while (values.size() < count) {
    std::size_t const have = values.size();
    std::size_t const step = have < first_step ? first_step : have;
    std::size_t const now = count - have < step ? count - have : step;
    values.resize(have + now);
    std::size_t const got = bytes.read(values.data() + have, now * sizeof(T));
    if (got != now * sizeof(T)) {
      bytes.fail(std::string("expected ") + std::to_string(count) + " values; found the end after " +
                 std::to_string(have + got / sizeof(T)));
    }
  }
  if constexpr (sizeof(T) > 1 && std::endian::native == std::endian::little) {
    for (T& value : values) {
      auto* const raw = reinterpret_cast<unsigned char*>(&value);
      std::reverse(raw, raw + sizeof(T));
    }
  }
  return values;
}

[[nodiscard]] inline std::size_t product(std::vector<std::size_t> const& shape, std::size_t first) noexcept {
  std::size_t all = 1;
  for (std::size_t dimension = first; dimension < shape.size(); ++dimension) {
    all *= shape[dimension];
  }
  return all;
}

}  // namespace data_detail

/// Reads an IDX file whose elements are of type T. Reads to the end; `name` stands for the file in messages. Throws file_error
/// with the byte at fault: wrong magic, other element type, dimensions outside 1 to 8, extents whose product overflows, a file
/// cut short, bytes left over.
template <idx_element T = std::uint8_t>
[[nodiscard]] idx_array<T> read_idx(std::istream& in, std::string const& name) {
  data_detail::byte_reader bytes{in, name};
  idx_array<T> all;
  all.shape = data_detail::read_idx_shape<T>(bytes);
  all.values = data_detail::read_big_endian<T>(bytes, data_detail::product(all.shape, 0));
  bytes.expect_end("the last value");
  return all;
}

/// Reads the pair of files that MNIST and its like consist of: images of bytes, converted to T but not scaled, one row of the
/// table each; and their labels, one byte each. Throws file_error as read_idx does, and for labels outside [0, classes), not in
/// one dimension, or not as many as images; usage_error unless 1 <= classes <= 256.
template <column_element T = float>
requires std::convertible_to<std::uint8_t, T>
[[nodiscard]] table<T, int> read_labelled_idx(std::istream& images, std::string const& images_name, std::istream& labels,
                                              std::string const& labels_name, int classes) {
  expects(classes >= 1 && classes <= 256, "labels of one byte need 1 to 256 classes");
  idx_array<std::uint8_t> const pixels = read_idx(images, images_name);
  std::size_t const rows = pixels.shape[0];
  column<T> values{{}, data_detail::product(pixels.shape, 1)};
  if (values.width == 0) {
    throw file_error(images_name, 8, "expected images of at least one pixel; found an extent of 0");
  }
  idx_array<std::uint8_t> const numbers = read_idx(labels, labels_name);
  if (numbers.shape.size() != 1) {
    throw file_error(labels_name, 3,
                     std::string("expected labels in 1 dimension; found ") + std::to_string(numbers.shape.size()));
  }
  if (numbers.shape[0] != rows) {
    throw file_error(labels_name, 4,
                     std::string("expected ") + std::to_string(rows) + " labels, one for each image of " + images_name +
                         "; found " + std::to_string(numbers.shape[0]));
  }
  column<int> classes_of{std::vector<int>(numbers.values.begin(), numbers.values.end())};
  for (std::size_t row = 0; row < rows; ++row) {
    if (classes_of.values[row] >= classes) {
      throw file_error(labels_name, 8 + row,
                       std::string("expected a label from 0 to ") + std::to_string(classes - 1) + "; found " +
                           std::to_string(classes_of.values[row]));
    }
  }
  values.values.assign(pixels.values.begin(), pixels.values.end());
  return table<T, int>{std::move(values), std::move(classes_of)};
}

}  // namespace lockstep
