// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/concepts.hpp>
#include <lockstep/core/element_type.hpp>
#include <lockstep/core/error.hpp>
#include <lockstep/core/float16.hpp>
#include <lockstep/core/options.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

/// How an elementwise optimizer is called on the host, and what every backend's update shares. Kernels have calls of their own:
/// through a host-device template, a forgotten LOCKSTEP_HOST_DEVICE would be a warning only, and the call would do nothing.
namespace lockstep::elementwise {

/// What `prepare` returns; once a step and group.
template <class Optimizer>
[[nodiscard]] prepared_type<Optimizer> prepare(Optimizer const& optimizer, update_info const& info) {
  if constexpr (prepares<Optimizer>) {
    return optimizer.prepare(info);
  } else {
    return {};
  }
}

/// The new value of one element.
template <class Optimizer, class... Slot>
[[nodiscard]] float call(Optimizer const& optimizer, prepared_type<Optimizer> const& prepared, float value, float gradient,
                         Slot&... slot) {
  if constexpr (prepares<Optimizer>) {
    return optimizer(value, gradient, slot..., prepared);
  } else {
    static_cast<void>(prepared);
    return optimizer(value, gradient, slot...);
  }
}

/// Calls `f(std::type_identity<T>{})` with the type of values or gradients that can be updated: f32, f16 or bf16.
template <class F>
void visit(element_type type, F&& f) {
  switch (type) {
    case element_type::f16: return f(std::type_identity<float16>{});
    case element_type::bf16: return f(std::type_identity<bfloat16>{});
    default: return f(std::type_identity<float>{});
  }
}

/// The hyperparameters that were last set: one optimizer a group, in host memory. None at first.
template <class Optimizer>
class hyperparameters {
 public:
  /// Groups 0, 1, ... of the segments' parameters, as many as there are; at least one.
  template <class Segment>
  explicit hyperparameters(std::vector<Segment> const& segments) {
    for (Segment const& s : segments) {
      groups_ = (std::max)(groups_, std::size_t{s.group} + 1);
    }
  }

  /// Takes one optimizer for all groups, or one a group. Whether any byte differs from what was set before. Throws usage_error
  /// when there are too few.
  [[nodiscard]] bool set(std::span<Optimizer const> optimizers) {
    expects(optimizers.size() == 1 || optimizers.size() >= groups_, "give one optimizer, or one for each parameter group");
    auto const of_group = [&](std::size_t group) { return &optimizers[optimizers.size() == 1 ? 0 : group]; };
    bool same = !all_.empty();
    for (std::size_t group = 0; same && group < groups_; ++group) {
      same = std::memcmp(&all_[group], of_group(group), sizeof(Optimizer)) == 0;
    }
    if (!same) {
      all_.clear();
      for (std::size_t group = 0; group < groups_; ++group) {
        all_.push_back(*of_group(group));
      }
    }
    return !same;
  }
  /// Throws usage_error before `set`.
  [[nodiscard]] std::vector<Optimizer> const& all() const {
    expects(!all_.empty(), "an update was prepared before its optimizers were set");
    return all_;
  }
  [[nodiscard]] std::size_t groups() const noexcept { return groups_; }

 private:
  std::size_t groups_ = 1;
  std::vector<Optimizer> all_;
};

}  // namespace lockstep::elementwise
