// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/error.hpp>
#include <lockstep/core/float16.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

namespace lockstep {

/// What the elements of an array are. The order is part of what ranks compare, so new types go last.
enum class element_type : std::uint8_t { f32, f64, f16, bf16, i8, u8, i32, u32, i64, u64 };

/// The element_type of a C++ type. Specialise it for a layout-compatible type of your own; bytes and booleans travel as u8.
template <class T>
struct element_type_of;

template <class T>
concept element = requires {
  { element_type_of<std::remove_cv_t<T>>::value } -> std::convertible_to<element_type>;
};

template <element_type Type>
struct element_type_constant {
  static constexpr element_type value = Type;
};
template <>
struct element_type_of<float> : element_type_constant<element_type::f32> {};
template <>
struct element_type_of<double> : element_type_constant<element_type::f64> {};
template <>
struct element_type_of<float16> : element_type_constant<element_type::f16> {};
template <>
struct element_type_of<bfloat16> : element_type_constant<element_type::bf16> {};
template <>
struct element_type_of<std::int8_t> : element_type_constant<element_type::i8> {};
template <>
struct element_type_of<std::uint8_t> : element_type_constant<element_type::u8> {};
template <>
struct element_type_of<std::byte> : element_type_constant<element_type::u8> {};
template <>
struct element_type_of<bool> : element_type_constant<element_type::u8> {};
template <>
struct element_type_of<std::int32_t> : element_type_constant<element_type::i32> {};
template <>
struct element_type_of<std::uint32_t> : element_type_constant<element_type::u32> {};
template <>
struct element_type_of<std::int64_t> : element_type_constant<element_type::i64> {};
template <>
struct element_type_of<std::uint64_t> : element_type_constant<element_type::u64> {};

/// Bytes of one element.
[[nodiscard]] constexpr std::size_t size_of(element_type type) noexcept {
  switch (type) {
    case element_type::f64:
    case element_type::i64:
    case element_type::u64: return 8;
    case element_type::f32:
    case element_type::i32:
    case element_type::u32: return 4;
    case element_type::f16:
    case element_type::bf16: return 2;
    case element_type::i8:
    case element_type::u8: break;
  }
  return 1;
}

/// The name that messages use: "f32", "bf16".
[[nodiscard]] constexpr std::string_view name_of(element_type type) noexcept {
  constexpr std::string_view names[] = {"f32", "f64", "f16", "bf16", "i8", "u8", "i32", "u32", "i64", "u64"};
  return names[static_cast<std::size_t>(type)];
}

/// Whether an optimizer can update elements of this type.
[[nodiscard]] constexpr bool is_floating(element_type type) noexcept { return type <= element_type::bf16; }

/// Calls `f(std::type_identity<T>{})` with the C++ type that stands for `type`.
template <class F>
decltype(auto) visit(element_type type, F&& f) {
  switch (type) {
    case element_type::f32: return f(std::type_identity<float>{});
    case element_type::f64: return f(std::type_identity<double>{});
    case element_type::f16: return f(std::type_identity<float16>{});
    case element_type::bf16: return f(std::type_identity<bfloat16>{});
    case element_type::i8: return f(std::type_identity<std::int8_t>{});
    case element_type::u8: return f(std::type_identity<std::uint8_t>{});
    case element_type::i32: return f(std::type_identity<std::int32_t>{});
    case element_type::u32: return f(std::type_identity<std::uint32_t>{});
    case element_type::i64: return f(std::type_identity<std::int64_t>{});
    case element_type::u64: return f(std::type_identity<std::uint64_t>{});
  }
  refuse("an element_type outside its enumeration");
}

/// A span whose element type is known at run time only; what communicators take. Converts from a span of any element type.
/// Shape: `count` elements, contiguous from `data`. Owns nothing.
struct typed_span {
  void* data = nullptr;
  std::size_t count = 0;
  element_type type = element_type::u8;

  constexpr typed_span() noexcept = default;
  constexpr typed_span(void* first, std::size_t elements, element_type element) noexcept
      : data(first), count(elements), type(element) {}
  template <element T, std::size_t Extent>
  requires(!std::is_const_v<T>) constexpr typed_span(
      std::span<T, Extent> elements) noexcept  // NOLINT(google-explicit-constructor): a view of the same thing
      : data(elements.data()), count(elements.size()), type(element_type_of<T>::value) {}

  [[nodiscard]] constexpr std::size_t bytes() const noexcept { return count * size_of(type); }

  /// Elements [first, first + length). Requires: they lie within this span.
  [[nodiscard]] typed_span part(std::size_t first, std::size_t length) const noexcept {
    return {static_cast<std::byte*>(data) + first * size_of(type), length, type};
  }
};

}  // namespace lockstep
