// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/batch.hpp>
#include <lockstep/core/error.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep {

/// What a column may hold: plain values. Not bool, whose vector has no memory to view; take std::uint8_t.
template <class T>
concept column_element = std::is_trivially_copyable_v<T> && std::default_initializable<T> && !std::same_as<T, bool>;

/// One property of all samples: `width` values a sample, one sample after another. Shape {values.size() / width, width}.
template <column_element T>
struct column {
  std::vector<T> values;
  std::size_t width = 1;
};
template <class T>
column(std::vector<T>) -> column<T>;
template <class T>
column(std::vector<T>, std::size_t) -> column<T>;

/// A data set in memory, a row a sample: `table<float, int>` owns a column of floats and a column of ints, of equally many
/// rows. Thread safety: const calls may run beside each other.
template <column_element... T>
class table {
  static_assert(sizeof...(T) > 0, "lockstep: a table must have at least one column");

 public:
  /// Always a view a column, width 1 included: label i of column 1 is `std::get<1>(batch)[i][0]`, or `.data()[i]`.
  using batch = std::tuple<sample_view<T const>...>;
  /// Where gathered rows are kept.
  using storage = std::tuple<std::vector<T>...>;

  /// Throws usage_error naming the column whose width is 0, whose values are no whole number of rows, or whose rows are not as
  /// many as those of the first.
  explicit table(column<T>... columns) : columns_(std::move(columns)...) {
    std::size_t index = 0;
    std::apply([&](column<T> const&... each) { (check(each, index++), ...); }, columns_);
  }

  /// How many samples there are.
  [[nodiscard]] std::size_t rows() const noexcept {
    auto const& first = std::get<0>(columns_);
    return first.values.size() / first.width;
  }

  /// The values of column `Column`, row after row. They may be changed in place (scaled, say) while nothing else reads them.
  template <std::size_t Column>
  [[nodiscard]] auto values() noexcept {
    return std::span{std::get<Column>(columns_).values};
  }
  template <std::size_t Column>
  [[nodiscard]] auto values() const noexcept {
    return std::span{std::get<Column>(columns_).values};
  }

  /// All samples as one batch, which views this table.
  [[nodiscard]] batch view() const noexcept {
    return std::apply(
        [&](column<T> const&... each) {
          return batch{sample_view<T const>{each.values.data(), rows(), each.width}...};
        },
        columns_);
  }

  /// Copies `rows` into `into`, reusing its memory, and returns the batch that views the copy. Rows may repeat. Throws
  /// usage_error for a row that doesn't exist, before anything is copied.
  batch gather(std::span<std::size_t const> rows, storage& into) const {
    for (std::size_t const row : rows) {
      if (row >= this->rows()) {
        refuse(std::string("row ") + std::to_string(row) + " of a table that has " + std::to_string(this->rows()));
      }
    }
    return gather_columns(rows, into, std::index_sequence_for<T...>{});
  }

  /// A table of its own that holds copies of `rows`, to split a set into one to train and one to test with. Throws like gather.
  [[nodiscard]] table select(std::span<std::size_t const> rows) const {
    storage copies;
    static_cast<void>(gather(rows, copies));
    return take(std::move(copies), std::index_sequence_for<T...>{});
  }

 private:
  template <class U>
  void check(column<U> const& each, std::size_t index) {
    std::string const name = std::string("column ") + std::to_string(index) + " of a table";
    if (each.width == 0) {
      refuse(name + " has width 0: a row holds at least one value");
    }
    if (each.values.size() % each.width != 0) {
      refuse(name + " has " + std::to_string(each.values.size()) + " values, which is no whole number of rows of width " +
             std::to_string(each.width));
    }
    std::size_t const here = each.values.size() / each.width;
    if (here != rows()) {
      refuse(name + " has " + std::to_string(here) + " rows, column 0 has " + std::to_string(rows()));
    }
  }

  template <class U>
  static sample_view<U const> gather_column(column<U> const& from, std::span<std::size_t const> rows, std::vector<U>& into) {
    into.resize(rows.size() * from.width);
    U* to = into.data();
    for (std::size_t const row : rows) {
      to = std::copy_n(from.values.data() + row * from.width, from.width, to);
    }
    return {into.data(), rows.size(), from.width};
  }

  template <std::size_t... Column>
  batch gather_columns(std::span<std::size_t const> rows, storage& into, std::index_sequence<Column...>) const {
    return batch{gather_column(std::get<Column>(columns_), rows, std::get<Column>(into))...};
  }

  template <std::size_t... Column>
  table take(storage&& copies, std::index_sequence<Column...>) const {
    return table{column<T>{std::move(std::get<Column>(copies)), std::get<Column>(columns_).width}...};
  }

  std::tuple<column<T>...> columns_;
};

}  // namespace lockstep
