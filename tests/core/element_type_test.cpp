// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#include <lockstep/core/element_type.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

namespace foreign {
struct half {  // a layout-compatible type of another library
  std::uint16_t bits;
};
}  // namespace foreign
template <>
struct lockstep::element_type_of<foreign::half> : lockstep::element_type_constant<lockstep::element_type::f16> {};

namespace {

using lockstep::element_type;
using lockstep::typed_span;

constexpr std::array all_types{element_type::f32, element_type::f64, element_type::f16, element_type::bf16, element_type::i8,
                               element_type::u8,  element_type::i32, element_type::u32, element_type::i64,  element_type::u64};

static_assert(lockstep::element<float const> && lockstep::element<foreign::half> && !lockstep::element<char*>);
static_assert(!std::is_constructible_v<typed_span, std::span<float const>>, "what collectives write must not be const");

}  // namespace

TEST_CASE("element_type: size, C++ type and name of every type belong together") {
  std::set<std::string_view> names;
  for (element_type const type : all_types) {
    CAPTURE(name_of(type));
    lockstep::visit(type, [&]<class T>(std::type_identity<T>) {
      CHECK(lockstep::element_type_of<T>::value == type);
      CHECK(size_of(type) == sizeof(T));
      bool const is_float =
          std::is_floating_point_v<T> || std::is_same_v<T, lockstep::float16> || std::is_same_v<T, lockstep::bfloat16>;
      CHECK(is_floating(type) == is_float);
    });
    names.insert(name_of(type));
  }
  CHECK(names.size() == all_types.size());
  CHECK(name_of(element_type::bf16) == "bf16");
  CHECK(name_of(element_type::u64) == "u64");
}

TEST_CASE("element_type: a value outside the enumeration is refused") {
  CHECK_THROWS_AS(lockstep::visit(static_cast<element_type>(10), [](auto) {}), lockstep::usage_error);
}

TEST_CASE("typed_span: a span of any element type converts, and parts of it point at its elements") {
  std::vector<double> numbers(10);
  typed_span const whole = std::span{numbers};
  CHECK(whole.data == numbers.data());
  CHECK(whole.count == 10);
  CHECK(whole.type == element_type::f64);
  CHECK(whole.bytes() == 80);
  typed_span const part = whole.part(3, 4);
  CHECK(part.data == &numbers[3]);
  CHECK(part.count == 4);
  CHECK(part.type == element_type::f64);

  std::array<foreign::half, 3> halves{};
  CHECK(typed_span{std::span{halves}}.type == element_type::f16);
  bool flags[2] = {};
  CHECK(typed_span{std::span{flags}}.type == element_type::u8);
  CHECK(typed_span{}.bytes() == 0);
}
