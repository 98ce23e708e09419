// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/error.hpp>
#include <lockstep/core/parameter.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {

/// A model's parameters, checked once, with tied listings resolved: listings that name the same memory are one distinct
/// parameter, which is reduced and updated once. Owns the descriptions, not the memory.
class parameter_list {
 public:
  parameter_list() = default;

  /// Throws usage_error, naming the parameter, for: no trainable parameter; a null or misaligned address; a value or gradient
  /// of a type that no optimizer updates; one name for two tensors; memory that two parameters share in part; a value listed
  /// with two gradients, or a gradient with two values.
  template <class Range>
  explicit parameter_list(Range&& parameters) : listings_(std::begin(parameters), std::end(parameters)) {
    check_each();
    resolve_ties();
    bool const any = std::any_of(listings_.begin(), listings_.end(), [](parameter const& p) { return p.trainable(); });
    expects(any, "the model has no trainable parameter: nothing to train");
  }

  /// As the model listed them.
  [[nodiscard]] std::span<parameter const> listings() const noexcept { return listings_; }
  /// How many parameters are distinct.
  [[nodiscard]] std::size_t distinct_count() const noexcept { return first_listing_.size(); }
  /// The first listing of a distinct parameter.
  [[nodiscard]] parameter const& distinct(std::size_t index) const noexcept { return listings_[first_listing_[index]]; }
  /// For each listing, the distinct parameter it names.
  [[nodiscard]] std::span<std::size_t const> distinct_of_listing() const noexcept { return distinct_of_; }

  /// Throws usage_error, naming the parameter, when `parameters` no longer lists the same memory.
  template <class Range>
  void expect_unchanged(Range&& parameters) const {
    std::size_t index = 0;
    for (parameter const& now : parameters) {
      if (index == listings_.size()) {
        refuse(std::string("the model listed ") + std::to_string(listings_.size()) +
               " parameters at first and now lists more, with '" + now.name + "' first; the list must stay as it was");
      }
      parameter const& then = listings_[index];
      if (now.value != then.value || now.gradient != then.gradient || now.count() != then.count()) {
        refuse(std::string("parameter '") + then.name + "' has changed its " +
               (now.value != then.value         ? "value's address"
                : now.gradient != then.gradient ? "gradient's address"
                                                : "element count") +
               " since the first step; it must stay as it was");
      }
      ++index;
    }
    if (index != listings_.size()) {
      refuse(std::string("the model listed ") + std::to_string(listings_.size()) + " parameters at first and now lists " +
             std::to_string(index) + "; the list must stay as it was");
    }
  }

  /// Calls `found(distinct parameter, first element, count)` for every part of a trainable gradient within the `bytes` bytes
  /// from `first`. Throws usage_error when there is none in them, or when an element is cut in two.
  template <class Found>
  void find_gradients(void const* first, std::size_t bytes, Found&& found) const {
    if (bytes == 0) {
      return;
    }
    auto const begin = reinterpret_cast<std::uintptr_t>(first);
    std::uintptr_t const end = begin + bytes;
    auto at = std::upper_bound(by_gradient_.begin(), by_gradient_.end(), begin,
                               [](std::uintptr_t address, place const& p) { return address < p.end; });
    bool any = false;
    for (; at != by_gradient_.end() && at->begin < end; ++at) {
      std::size_t const size = size_of(distinct(at->distinct).gradient_type);
      std::size_t const low = (std::max)(begin, at->begin) - at->begin;
      std::size_t const high = (std::min)(end, at->end) - at->begin;
      if (low % size != 0 || high % size != 0) {
        refuse(std::string("gradient_ready: the memory marked cuts an element of '") + distinct(at->distinct).name +
               "' in two");
      }
      found(at->distinct, low / size, (high - low) / size);
      any = true;
    }
    expects(any, "gradient_ready: the memory marked holds no gradient of a listed parameter");
  }

 private:
  struct place {
    std::uintptr_t begin;
    std::uintptr_t end;
    std::size_t distinct;
  };
  struct tenant {
    std::uintptr_t begin;
    std::uintptr_t end;
    std::size_t listing;
    bool gradient;
  };

  void check_each() const {
    for (parameter const& p : listings_) {
      if (p.count() > (std::numeric_limits<std::ptrdiff_t>::max)() / sizeof(double)) {
        refuse(std::string("parameter '") + p.name + "' has " + std::to_string(p.count()) +
               " elements, more than memory holds");
      }
      auto const check_address = [&](void const* address, element_type type, char const* what) {
        if (p.count() != 0 && address == nullptr) {
          refuse(std::string("parameter '") + p.name + "' has no memory for its " + what + ": the address is null");
        }
        if (reinterpret_cast<std::uintptr_t>(address) % size_of(type) != 0) {
          refuse(std::string("parameter '") + p.name + "': the address of its " + what +
                 " is not aligned to its element type, " + std::string(name_of(type)));
        }
      };
      check_address(p.value, p.value_type, "value");
      if (p.trainable()) {
        check_address(p.gradient, p.gradient_type, "gradient");
        if (!is_floating(p.value_type) || !is_floating(p.gradient_type)) {
          refuse(std::string("parameter '") + p.name +
                 "' is trainable, so value and gradient must be f16, bf16, f32 or f64; they are " +
                 std::string(name_of(p.value_type)) + " and " + std::string(name_of(p.gradient_type)));
        }
      } else if (p.sync == buffer_sync::mean && !is_floating(p.value_type)) {
        refuse(std::string("buffer '") + p.name + "' is " + std::string(name_of(p.value_type)) +
               ", and only floating-point buffers can be averaged over the ranks");
      }
    }
  }

  void resolve_ties() {
    std::vector<tenant> tenants;
    for (std::size_t i = 0; i < listings_.size(); ++i) {
      parameter const& p = listings_[i];
      if (p.count() == 0) {
        continue;  // occupies nothing, so it shares nothing
      }
      auto const value = reinterpret_cast<std::uintptr_t>(p.value);
      tenants.push_back({value, value + p.values().bytes(), i, false});
      if (p.trainable()) {
        auto const gradient = reinterpret_cast<std::uintptr_t>(p.gradient);
        tenants.push_back({gradient, gradient + p.gradients().bytes(), i, true});
      }
    }
    std::sort(tenants.begin(), tenants.end(), [](tenant const& a, tenant const& b) {
      return std::pair{a.begin, a.listing} < std::pair{b.begin, b.listing};
    });

    std::vector<std::size_t> leader(listings_.size());  // the first listing of the same memory
    for (std::size_t i = 0; i < leader.size(); ++i) {
      leader[i] = i;
    }
    for (std::size_t i = 1, widest = 0; i < tenants.size(); ++i) {
      tenant const& here = tenants[i];
      tenant const& before = tenants[widest];
      if (here.begin >= before.end) {
        widest = i;
        continue;
      }
      parameter const& a = listings_[before.listing];
      parameter const& b = listings_[here.listing];
      bool const tied = a.value == b.value && a.gradient == b.gradient && a.count() == b.count() && a.role == b.role &&
                        a.value_type == b.value_type && a.gradient_type == b.gradient_type && before.gradient == here.gradient;
      if (!tied) {
        refuse(std::string("parameters '") + a.name + "' and '" + b.name +
               "' share memory in part; tied parameters must have the same value, gradient, type and count");
      }
      if (a.sync != b.sync) {
        refuse(std::string("buffers '") + a.name + "' and '" + b.name + "' are tied but synchronised differently");
      }
      if (a.group != b.group) {
        refuse(std::string("parameters '") + a.name + "' and '" + b.name + "' are tied but in different groups");
      }
      leader[here.listing] = leader[before.listing];
    }

    distinct_of_.resize(listings_.size());
    std::map<std::string_view, std::size_t> by_name;
    for (std::size_t i = 0; i < listings_.size(); ++i) {
      if (leader[i] == i) {
        distinct_of_[i] = first_listing_.size();
        first_listing_.push_back(i);
      } else {
        distinct_of_[i] = distinct_of_[leader[i]];
      }
      auto const [same, inserted] = by_name.try_emplace(listings_[i].name, distinct_of_[i]);
      if (!inserted && same->second != distinct_of_[i]) {
        refuse(std::string("two parameters are named '") + listings_[i].name + "'; names must differ");
      }
    }
    for (tenant const& t : tenants) {
      if (t.gradient && leader[t.listing] == t.listing) {
        by_gradient_.push_back({t.begin, t.end, distinct_of_[t.listing]});
      }
    }
  }

  std::vector<parameter> listings_;
  std::vector<std::size_t> first_listing_;
  std::vector<std::size_t> distinct_of_;
  std::vector<place> by_gradient_;  // sorted by address; disjoint
};

}  // namespace lockstep
