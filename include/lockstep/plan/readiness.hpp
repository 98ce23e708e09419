// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/plan/buckets.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <tuple>
#include <vector>

namespace lockstep::plan {

/// Tells from marks which buckets of a plan may launch, in strict plan order. Allocates in its constructor only.
/// Thread safety: none; one object a rank.
class readiness {
 public:
  /// Of a plan without buckets.
  readiness() = default;

  /// `listing_parameter[i]` is the distinct parameter that listing i names: tied listings name the same one, and `none` stands
  /// for a listing without gradient, whose marks are ignored. `buckets` are indices into `pieces`, as plan_buckets returns
  /// them; pieces of one parameter don't overlap. Throws std::out_of_range for a bucket that names a piece outside the list.
  readiness(std::span<std::size_t const> listing_parameter, std::span<piece const> pieces, std::span<bucket const> buckets)
      : bucket_total_(buckets.size(), 0) {
    std::vector<std::size_t> bucket_of(pieces.size(), none);
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      for (std::size_t const i : buckets[b].pieces) {
        bucket_of.at(i) = b;
      }
    }
    std::size_t parameters = 0;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (pieces[i].count != 0 && bucket_of[i] != none) {
        awaited_.push_back({pieces[i].parameter, pieces[i].first, pieces[i].count, bucket_of[i], false});
        ++bucket_total_[bucket_of[i]];
        parameters = parameters > pieces[i].parameter ? parameters : pieces[i].parameter + 1;
      }
    }
    std::sort(awaited_.begin(), awaited_.end(), [](awaited const& a, awaited const& b) {
      return std::tie(a.parameter, a.first) < std::tie(b.parameter, b.first);
    });
    parameter_begin_.resize(parameters + 1, 0);
    for (awaited const& a : awaited_) {
      ++parameter_begin_[a.parameter + 1];
    }
    for (std::size_t p = 0; p < parameters; ++p) {
      parameter_begin_[p + 1] += parameter_begin_[p];
    }
    parameter_total_.resize(parameters, 0);
    for (std::size_t const parameter : listing_parameter) {
      listings_.push_back({parameter < parameters ? parameter : none, false});
      if (parameter < parameters) {
        ++parameter_total_[parameter];
      }
    }
    bucket_missing_ = bucket_total_;
    parameter_missing_ = parameter_total_;
    advance();
  }

  /// A new step: nothing is ready but what has no elements. Complexity: O(listings + pieces + buckets).
  void reset() noexcept {
    for (listing& l : listings_) {
      l.marked = false;
    }
    for (awaited& a : awaited_) {
      a.ready = false;
    }
    std::copy(bucket_total_.begin(), bucket_total_.end(), bucket_missing_.begin());
    std::copy(parameter_total_.begin(), parameter_total_.end(), parameter_missing_.begin());
    launchable_ = 0;
    advance();
  }

  /// Marks one listing. Twice counts once; a parameter is ready when all of its listings were marked. A listing outside the
  /// list is ignored. Returns whether this was the mark that its parameter waited for.
  bool mark(std::size_t index) noexcept {
    if (index >= listings_.size() || listings_[index].marked) {
      return false;
    }
    listings_[index].marked = true;
    std::size_t const parameter = listings_[index].parameter;
    if (parameter == none || --parameter_missing_[parameter] != 0) {
      return false;
    }
    for (std::size_t i = parameter_begin_[parameter]; i < parameter_begin_[parameter + 1]; ++i) {
      complete(awaited_[i]);
    }
    return parameter_begin_[parameter] != parameter_begin_[parameter + 1];
  }

  /// Marks by memory: every piece that lies wholly within elements [first, first + count) of a distinct parameter is ready,
  /// whatever its listings say. What lies outside the parameter is ignored; marks that cover a piece only together don't count.
  void mark_range(std::size_t parameter, std::size_t first, std::size_t count) noexcept {
    if (parameter >= parameter_total_.size()) {
      return;
    }
    std::size_t low = parameter_begin_[parameter];
    for (std::size_t high = parameter_begin_[parameter + 1]; low != high;) {
      std::size_t const middle = low + (high - low) / 2;
      if (awaited_[middle].first < first) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    for (std::size_t i = low; i < parameter_begin_[parameter + 1] && awaited_[i].first - first < count; ++i) {
      if (awaited_[i].count <= count - (awaited_[i].first - first)) {
        complete(awaited_[i]);
      }
    }
  }

  /// Whether a listing was marked in this step, or any part of its parameter by memory.
  [[nodiscard]] bool touched(std::size_t index) const noexcept {
    if (index >= listings_.size() || listings_[index].marked) {
      return index < listings_.size();
    }
    std::size_t const parameter = listings_[index].parameter;
    if (parameter != none) {
      for (std::size_t i = parameter_begin_[parameter]; i < parameter_begin_[parameter + 1]; ++i) {
        if (awaited_[i].ready) {
          return true;
        }
      }
    }
    return false;
  }

  /// How many buckets, counted from the front, are complete: these may launch. A complete bucket waits for the ones before it.
  /// Complexity: O(1).
  [[nodiscard]] std::size_t launchable() const noexcept { return launchable_; }

 private:
  struct listing {
    std::size_t parameter;  // none: has no piece to wait for
    bool marked;
  };
  /// A piece with elements.
  struct awaited {
    std::size_t parameter;
    std::size_t first;
    std::size_t count;
    std::size_t bucket;
    bool ready;
  };

  void complete(awaited& a) noexcept {
    if (!a.ready) {
      a.ready = true;
      --bucket_missing_[a.bucket];
      advance();
    }
  }

  void advance() noexcept {
    while (launchable_ < bucket_missing_.size() && bucket_missing_[launchable_] == 0) {
      ++launchable_;
    }
  }

  std::vector<listing> listings_;
  std::vector<awaited> awaited_;                // by parameter, then by first element
  std::vector<std::size_t> parameter_begin_;    // where each parameter's pieces begin in awaited_, and the end
  std::vector<std::size_t> parameter_total_;    // listings of each parameter
  std::vector<std::size_t> parameter_missing_;  // those not marked in this step
  std::vector<std::size_t> bucket_total_;       // pieces with elements of each bucket
  std::vector<std::size_t> bucket_missing_;     // those not ready in this step
  std::size_t launchable_ = 0;
};

}  // namespace lockstep::plan
