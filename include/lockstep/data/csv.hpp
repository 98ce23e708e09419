// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/error.hpp>
#include <lockstep/data/detail/byte_reader.hpp>
#include <lockstep/data/table.hpp>

#include <charconv>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <istream>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep {

/// What a field of a CSV file may be read as.
template <class T>
concept csv_number = std::is_arithmetic_v<T> && column_element<T>;

struct csv_options {
  /// One that neither numbers nor line ends contain; usage_error otherwise.
  char delimiter = ',';
  /// How many lines to skip before the first row.
  std::size_t header_lines = 0;
  /// How many columns a row must have, a label included; 0: as many as the first row has.
  std::size_t columns = 0;
  /// How many rows there must be; 0: any number but none. Give it where it is known: a file cut at the end of a row looks
  /// whole otherwise.
  std::size_t rows = 0;
};

namespace data_detail {

/// `text` as a message shows it: quoted, short, without bytes that a terminal would act on.
[[nodiscard]] inline std::string quoted(std::string_view text) {
  constexpr std::size_t longest = 24;
  std::string shown = "\"";
  for (char const byte : text.substr(0, longest)) {
    shown += byte >= ' ' && byte <= '~' ? byte : '?';
  }
  return shown + (text.size() > longest ? "...\"" : "\"");
}

/// Walks the rows and fields of a CSV stream, and knows where it is.
class csv_reader {
 public:
  csv_reader(std::istream& in, std::string name, csv_options const& options)
      : bytes_(in, std::move(name)), options_(options), columns_(options.columns) {
    expects(std::string_view{"0123456789.+-eEinfatyINFATY\r\n"}.find(options.delimiter) == std::string_view::npos,
            "a CSV delimiter must not be a character that numbers or line ends are made of");
    for (std::size_t line = 0; line < options.header_lines; ++line) {
      if (!bytes_.line(line_)) {
        bytes_.fail(std::string("expected header line ") + std::to_string(line + 1) + "; found the end");
      }
    }
  }

  /// Moves to the next row and splits it. False at the end of a file that has the rows it should.
  bool next_row() {
    line_offset_ = bytes_.offset();
    if (!bytes_.line(line_)) {
      if (row_ == 0 || row_ < options_.rows) {
        bytes_.fail(std::string("expected row ") + std::to_string(row_ + 1) +
                    (options_.rows != 0 ? std::string(" of ") + std::to_string(options_.rows) : "") + "; found the end");
      }
      return false;
    }
    ++row_;
    if (options_.rows != 0 && row_ > options_.rows) {
      bytes_.fail(line_offset_,
                  std::string("expected the end after ") + std::to_string(options_.rows) + " rows; found another");
    }
    fields_.clear();
    std::string_view rest = line_;
    for (std::size_t cut = rest.find(options_.delimiter); cut != std::string_view::npos; cut = rest.find(options_.delimiter)) {
      fields_.push_back(rest.substr(0, cut));
      rest.remove_prefix(cut + 1);
    }
    fields_.push_back(rest);
    if (columns_ == 0) {
      columns_ = fields_.size();
    }
    if (fields_.size() != columns_) {
      bytes_.fail(line_offset_, std::string("expected ") + std::to_string(columns_) + " columns in row " +
                                    std::to_string(row_) + "; found " + std::to_string(fields_.size()));
    }
    return true;
  }

  [[nodiscard]] std::size_t columns() const noexcept { return columns_; }

  /// Field `index` of the row. Throws file_error unless the whole field is one finite number that T holds.
  template <class T>
  [[nodiscard]] T number_at(std::size_t index) const {
    std::string_view const field = fields_[index];
    T value{};
    char const* const end = field.data() + field.size();
    auto const [stopped, code] = std::from_chars(field.data(), end, value);
    bool finite = true;
    if constexpr (std::floating_point<T>) {
      finite = std::isfinite(value);
    }
    if (code != std::errc{} || stopped != end || !finite) {
      fail_at(index, std::string{code == std::errc::result_out_of_range ? "a number that its type holds"
                                 : std::integral<T>                     ? "a whole number"
                                                                        : "a finite number"});
    }
    return value;
  }

  [[noreturn]] void fail_at(std::size_t index, std::string const& expected) const {
    std::string_view const field = fields_[index];
    auto const within = static_cast<std::uint64_t>(field.data() - line_.data());
    bytes_.fail(line_offset_ + within, std::string("expected ") + expected + " in row " + std::to_string(row_) + ", column " +
                                           std::to_string(index + 1) + "; found " +
                                           (field.empty() ? std::string{"nothing"} : quoted(field)));
  }

 private:
  byte_reader bytes_;
  csv_options options_;
  std::size_t columns_;
  std::size_t row_ = 0;  // counts from 1
  std::uint64_t line_offset_ = 0;
  std::string line_;
  std::vector<std::string_view> fields_;  // of line_
};

}  // namespace data_detail

/// Reads numbers, a row a line, all rows equally long: returns a column whose width is the number of fields in a row. Reads to
/// the end; `name` stands for the file in messages.
///
/// Strict: no blanks, quotes, empty fields or empty lines; integers without a point; floating values finite, with a point
/// whatever the locale. Lines end in LF or CRLF, the last one may go without. Throws file_error with the byte at fault.
template <csv_number T = float>
[[nodiscard]] column<T> read_csv(std::istream& in, std::string const& name, csv_options const& options = {}) {
  data_detail::csv_reader reader{in, name, options};
  column<T> all;
  while (reader.next_row()) {
    for (std::size_t index = 0; index < reader.columns(); ++index) {
      all.values.push_back(reader.number_at<T>(index));
    }
  }
  all.width = reader.columns();
  return all;
}

/// The same for rows whose last field is a label, a whole number in [0, classes): returns values and labels. Throws file_error
/// for a label out of range as well, and usage_error unless classes >= 1.
template <csv_number T = float>
[[nodiscard]] table<T, int> read_labelled_csv(std::istream& in, std::string const& name, int classes,
                                              csv_options const& options = {}) {
  expects(classes >= 1, "labels need at least one class");
  data_detail::csv_reader reader{in, name, options};
  column<T> values;
  column<int> labels;
  while (reader.next_row()) {
    std::size_t const last = reader.columns() - 1;
    if (last == 0) {
      reader.fail_at(0, "values and a label");
    }
    for (std::size_t index = 0; index < last; ++index) {
      values.values.push_back(reader.number_at<T>(index));
    }
    int const label = reader.number_at<int>(last);
    if (label < 0 || label >= classes) {
      reader.fail_at(last, std::string("a label from 0 to ") + std::to_string(classes - 1));
    }
    labels.values.push_back(label);
  }
  values.width = reader.columns() - 1;
  return table<T, int>{std::move(values), std::move(labels)};
}

}  // namespace lockstep
