// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/concepts.hpp>
#include <lockstep/core/element_type.hpp>
#include <lockstep/core/error.hpp>

#include <cstdint>
#include <string>
#include <string_view>

/// What the communicators of this folder share: a collective as one rank asks for it.
namespace lockstep::comm_detail {

enum class collective : std::uint8_t { all_reduce, reduce, broadcast, reduce_scatter, all_gather };

[[nodiscard]] constexpr std::string_view name_of(collective which) noexcept {
  constexpr std::string_view names[] = {"all_reduce", "reduce", "broadcast", "reduce_scatter", "all_gather"};
  return names[static_cast<std::size_t>(which)];
}

/// `how` stays `sum` and `root` 0 where the collective has no such argument.
struct request {
  collective which = collective::all_reduce;
  typed_span data{};
  reduction how = reduction::sum;
  rank_id root{0};

  /// Whether two ranks ask for the same thing; each has its own memory.
  [[nodiscard]] friend constexpr bool agree(request const& a, request const& b) noexcept {
    return a.which == b.which && a.data.count == b.data.count && a.data.type == b.data.type && a.how == b.how &&
           a.root == b.root;
  }
};

/// "all_reduce of 10 f32", "reduce of 10 f32 by max to rank 2"
[[nodiscard]] inline std::string to_string(request const& wanted) {
  std::string text{name_of(wanted.which)};
  text += std::string(" of ") + std::to_string(wanted.data.count) + " ";
  text += lockstep::name_of(wanted.data.type);
  if (wanted.how != reduction::sum) {
    text += wanted.how == reduction::min ? " by min" : " by max";
  }
  if (wanted.which == collective::reduce) {
    text += std::string(" to rank ") + std::to_string(number(wanted.root));
  } else if (wanted.which == collective::broadcast) {
    text += std::string(" from rank ") + std::to_string(number(wanted.root));
  }
  return text;
}

/// Throws usage_error for a root outside the group, or elements without memory.
inline void check(request const& wanted, int size) {
  if (wanted.data.type > element_type::u64 || wanted.how > reduction::max) {
    refuse("a collective of an element type or reduction outside its enumeration");
  }
  if (number(wanted.root) < 0 || number(wanted.root) >= size) {
    refuse(to_string(wanted) + ": the root must be one of this group's " + std::to_string(size) + " ranks");
  }
  if (wanted.data.data == nullptr && wanted.data.count != 0) {
    refuse(to_string(wanted) + ": the elements have no memory");
  }
}

/// The error of a healthy rank that another's failure stopped in what it was doing: a collective, say.
[[nodiscard]] inline aborted_error stopped(std::string const& doing, rank_id rank, std::string const& reason) {
  return aborted_error(doing + " on rank " + std::to_string(number(rank)) + " was stopped: " + reason);
}
[[nodiscard]] inline aborted_error stopped(request const& wanted, rank_id rank, std::string const& reason) {
  return stopped(to_string(wanted), rank, reason);
}

}  // namespace lockstep::comm_detail
