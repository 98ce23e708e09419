// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/element_type.hpp>
#include <lockstep/core/options.hpp>

#include <cstddef>
#include <cstdint>

namespace lockstep {

/// A stretch of one parameter that this rank updates: `count` elements from each address.
template <std::size_t Slots>
struct update_segment {
  void* value = nullptr;
  void const* gradient = nullptr;
  /// The f32 value that a 16-bit `value` is rounded from; null for f32 values.
  float* master = nullptr;
  /// One address a slot. A plain array, which kernels may index; it has at least one element.
  float* slots[Slots == 0 ? 1 : Slots] = {};
  std::size_t count = 0;
  element_type value_type = element_type::f32;
  element_type gradient_type = element_type::f32;
  std::uint8_t group = 0;
  /// The distinct parameter that the stretch belongs to.
  std::size_t parameter = 0;
};

/// What `prepare` is told: the rate is the optimizer's own member where it has one.
template <class Optimizer>
[[nodiscard]] update_info info_for(Optimizer const& optimizer, std::uint64_t step, std::uint8_t group) {
  update_info info{.step = step, .learning_rate = 1, .group = group};
  if constexpr (requires { info.learning_rate = optimizer.learning_rate; }) {
    info.learning_rate = optimizer.learning_rate;
  }
  return info;
}

/// Runs an elementwise optimizer over segments. Specialised by each backend, with
/// - `elementwise_update(typename Backend::device&, std::vector<segment>)`,
/// - `load_masters(stream)`, which makes the f32 masters equal to the 16-bit values, and
/// - `run(stream, std::span<Optimizer const> one or one a group, applied step, gradient factor, used)`, where `used` is empty
///   or says for each distinct parameter whether it takes part.
template <class Backend, class Optimizer>
class elementwise_update;

}  // namespace lockstep
