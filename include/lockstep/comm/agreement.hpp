// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/concepts.hpp>
#include <lockstep/core/fnv1a.hpp>
#include <lockstep/core/memory.hpp>
#include <lockstep/core/parameter_list.hpp>
#include <lockstep/plan/buckets.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

/// What ranks settle among themselves when they meet, before the first step. Everything here is collective: every rank calls
/// it, in the same order, with a communicator of more than one rank or of one.
namespace lockstep {

/// Small host-side messages over a communicator, whose own collectives work on device memory.
template <class Backend, class Communicator>
class agreement {
 public:
  /// `scratch` is memory for messages, which grows when it must and is never given back here: that may have to wait for work of
  /// other ranks, which waits for this one.
  agreement(typename Backend::device& device, Communicator& communicator,
            std::vector<typename Backend::buffer>& scratch) noexcept
      : device_(device), communicator_(communicator), scratch_(scratch) {}

  /// Every rank's words, rank after rank. Requires: as many on every rank.
  [[nodiscard]] std::vector<std::uint64_t> all_gather(std::span<std::uint64_t const> mine) const {
    auto const ranks = static_cast<std::size_t>(communicator_.size());
    std::size_t const row = (mine.size() + 15) / 16 * 16;  // so that plan::part gives every rank one row
    std::vector<std::uint64_t> rows(row * ranks);
    std::copy(mine.begin(), mine.end(), rows.begin() + static_cast<std::ptrdiff_t>(row * index()));
    on_device(rows, [&](typed_span words) { communicator_.all_gather(words, device_.stream()); });
    std::vector<std::uint64_t> all;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      auto const begin = rows.begin() + static_cast<std::ptrdiff_t>(row * rank);
      all.insert(all.end(), begin, begin + static_cast<std::ptrdiff_t>(mine.size()));
    }
    return all;
  }

  /// Rank 0's words, on every rank, whatever their number.
  [[nodiscard]] std::vector<std::uint64_t> from_root(std::vector<std::uint64_t> words) const {
    std::vector<std::uint64_t> count{words.size()};
    on_device(count, [&](typed_span one) { communicator_.broadcast(one, rank_id{0}, device_.stream()); });
    words.resize(count[0]);
    on_device(words, [&](typed_span all) { communicator_.broadcast(all, rank_id{0}, device_.stream()); });
    return words;
  }

  /// The smallest of every rank's words, one by one. Requires: as many on every rank.
  [[nodiscard]] std::vector<std::uint64_t> smallest(std::vector<std::uint64_t> words) const {
    on_device(words, [&](typed_span all) { communicator_.all_reduce(all, reduction::min, device_.stream()); });
    return words;
  }

  /// Throws usage_error on every rank, with the same sentence, when `settings` or the parameters differ between ranks; the
  /// sentence names the first difference and two ranks that differ.
  void expect_same(std::string const& settings, parameter_list const& parameters) const {
    std::vector<std::string> lines{settings};
    for (std::size_t i = 0; i < parameters.listings().size(); ++i) {
      lines.push_back(describe(parameters, i));
    }
    std::string whole;
    for (std::string const& line : lines) {
      whole += line + '\n';
    }
    std::uint64_t const mine[] = {lines.size(), fnv1a(whole)};
    std::vector<std::uint64_t> const all = all_gather(mine);
    std::size_t longest = 0;
    bool same = true;
    for (std::size_t rank = 0; 2 * rank < all.size(); ++rank) {
      longest = (std::max<std::size_t>)(longest, all[2 * rank]);
      same = same && all[2 * rank] == all[0] && all[2 * rank + 1] == all[1];
    }
    if (same) {
      return;
    }
    refuse(first_difference(lines, longest));
  }

  /// Fills `next` of every piece: the piece whose value and gradient begin where its own end, where that is so on every rank.
  void find_neighbours(std::vector<plan::piece>& pieces, parameter_list const& parameters) const {
    std::vector<std::uint64_t> const proposed = from_root(neighbours(pieces, parameters));
    std::vector<std::uint64_t> const mine = neighbours(pieces, parameters);
    std::vector<std::uint64_t> agreed(pieces.size());
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      agreed[i] = i < proposed.size() && proposed[i] == mine[i] ? 1 : 0;
    }
    agreed = smallest(std::move(agreed));
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      pieces[i].next = agreed[i] != 0 ? static_cast<std::size_t>(mine[i]) : plan::none;
    }
  }

 private:
  static constexpr std::size_t least_scratch = Backend::asynchronous ? 65536 : 0;
  static constexpr std::size_t text_words = 64;  // 512 bytes of each rank's description

  [[nodiscard]] std::size_t index() const { return static_cast<std::size_t>(number(communicator_.rank())); }

  template <class Collective>
  void on_device(std::vector<std::uint64_t>& words, Collective&& collective) const {
    std::size_t const bytes = words.size() * sizeof(std::uint64_t);
    if (scratch_.empty() || scratch_.back().bytes() < bytes) {
      scratch_.push_back(
          device_.allocate(communicator_.size() > 1 ? (std::max)(bytes, least_scratch) : bytes, memory_use::other));
    }
    typename Backend::buffer const& memory = scratch_.back();
    Backend::copy(device_.stream(), memory.data(), words.data(), bytes);
    collective(typed_span{memory.data(), words.size(), element_type::u64});
    communicator_.wait(device_.stream());  // with a deadline, which a copy to the host has not
    Backend::copy(device_.stream(), words.data(), memory.data(), bytes);
    device_.stream().synchronize();
  }

  static std::string describe(parameter_list const& parameters, std::size_t index) {
    parameter const& p = parameters.listings()[index];
    std::string text = std::string("'") + p.name + "' " + to_string(p.shape) + " " + std::string(name_of(p.value_type));
    text += p.trainable()
                ? std::string(", gradient ") + std::string(name_of(p.gradient_type)) + ", group " + std::to_string(p.group)
                : std::string(", a buffer") + (p.sync == buffer_sync::mean ? " that is averaged" : "");
    std::size_t const distinct = parameters.distinct_of_listing()[index];
    parameter const& leader = parameters.distinct(distinct);
    return &leader == &p ? text : text + ", tied to '" + leader.name + "'";
  }

  std::string first_difference(std::vector<std::string> const& lines, std::size_t longest) const {
    std::vector<std::uint64_t> hashes(longest, 0);
    for (std::size_t i = 0; i < lines.size(); ++i) {
      hashes[i] = fnv1a(lines[i]);
    }
    std::vector<std::uint64_t> const all = all_gather(hashes);
    std::size_t const ranks = all.size() / longest;
    for (std::size_t line = 0; line < longest; ++line) {
      for (std::size_t rank = 1; rank < ranks; ++rank) {
        if (all[rank * longest + line] != all[line]) {
          std::vector<std::uint64_t> text(text_words, 0);
          std::string const mine = line < lines.size() ? lines[line] : "no parameter";
          std::memcpy(text.data(), mine.data(), (std::min)(mine.size(), text_words * sizeof(std::uint64_t) - 1));
          std::vector<std::uint64_t> const texts = all_gather(text);
          auto const said = [&](std::size_t r) { return reinterpret_cast<char const*>(texts.data() + r * text_words); };
          return std::string("the ranks must agree before they train together; ") +
                 (line == 0 ? "settings" : std::string("parameter ") + std::to_string(line - 1)) +
                 " is the first difference: rank 0 has " + said(0) + ", rank " + std::to_string(rank) + " has " + said(rank);
        }
      }
    }
    return "the ranks must agree before they train together, and their descriptions differ";
  }

  /// For each piece, the piece that begins where it ends in this rank's memory, or plan::none.
  static std::vector<std::uint64_t> neighbours(std::vector<plan::piece> const& pieces, parameter_list const& parameters) {
    struct stretch {
      std::byte const* value;
      std::byte const* gradient;
    };
    auto const at = [&](plan::piece const& piece, std::size_t element) {
      parameter const& p = parameters.distinct(piece.parameter);
      return stretch{static_cast<std::byte const*>(p.value) + element * size_of(p.value_type),
                     static_cast<std::byte const*>(p.gradient) + (p.trainable() ? element * size_of(p.gradient_type) : 0)};
    };
    std::vector<std::pair<std::byte const*, std::size_t>> begins;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (pieces[i].count != 0) {
        begins.emplace_back(at(pieces[i], pieces[i].first).value, i);
      }
    }
    std::sort(begins.begin(), begins.end());
    std::vector<std::uint64_t> next(pieces.size(), plan::none);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      stretch const end = at(pieces[i], pieces[i].first + pieces[i].count);
      auto const found = std::lower_bound(begins.begin(), begins.end(), std::pair{end.value, std::size_t{0}});
      if (pieces[i].count == 0 || found == begins.end() || found->first != end.value) {
        continue;
      }
      plan::piece const& after = pieces[found->second];
      if (after.kind == pieces[i].kind && at(after, after.first).gradient == end.gradient) {
        next[i] = found->second;
      }
    }
    return next;
  }

  typename Backend::device& device_;
  Communicator& communicator_;
  std::vector<typename Backend::buffer>& scratch_;
};

}  // namespace lockstep
