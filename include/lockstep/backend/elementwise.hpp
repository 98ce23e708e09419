// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/concepts.hpp>
#include <lockstep/core/element_type.hpp>
#include <lockstep/core/float16.hpp>
#include <lockstep/core/host_device.hpp>
#include <lockstep/core/options.hpp>

#include <type_traits>

/// How an elementwise optimizer is called, whatever the backend.
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
[[nodiscard]] LOCKSTEP_HOST_DEVICE float call(Optimizer const& optimizer, prepared_type<Optimizer> const& prepared, float value,
                                              float gradient, Slot&... slot) {
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

}  // namespace lockstep::elementwise
