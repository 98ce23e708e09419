// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

#include "../support/thrown.hpp"

#include <lockstep/core/parameter_list.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

using lockstep::parameter;
using lockstep::parameter_list;

using support::contains;

namespace {

std::string refused(std::vector<parameter> const& parameters) {
  try {
    parameter_list const list{parameters};
  } catch (lockstep::usage_error const& e) {
    return e.what();
  }
  return {};
}

}  // namespace

TEST_CASE("parameter_list: listings of the same memory are one distinct parameter") {
  float v[12];
  float g[12];
  parameter_list const list{std::vector<parameter>{{"a", v, g, {4}},
                                                   {"b", v + 4, g + 4, {2, 3}},
                                                   {"a.again", v, g, {2, 2}},
                                                   lockstep::buffer("c", v + 10, {2}),
                                                   {"a.once.more", v, g, {4}}}};
  CHECK(list.listings().size() == 5);
  CHECK(list.distinct_count() == 3);
  CHECK(std::vector<std::size_t>(list.distinct_of_listing().begin(), list.distinct_of_listing().end()) ==
        std::vector<std::size_t>{0, 1, 0, 2, 0});
  CHECK(list.distinct(2).name == "c");
}

TEST_CASE("parameter_list: gradients are found by address, in part and across parameters") {
  float v[12];
  float g[12];
  parameter_list const list{std::vector<parameter>{{"a", v, g + 6, {4}}, {"b", v + 4, g, {6}}}};
  std::vector<std::tuple<std::size_t, std::size_t, std::size_t>> found;
  auto const find = [&](float const* first, std::size_t count) {
    found.clear();
    list.find_gradients(first, count * sizeof(float),
                        [&](std::size_t p, std::size_t begin, std::size_t n) { found.emplace_back(p, begin, n); });
    return found;
  };
  using all = std::vector<std::tuple<std::size_t, std::size_t, std::size_t>>;
  CHECK(find(g, 12) == all{{1, 0, 6}, {0, 0, 4}});
  CHECK(find(g + 5, 2) == all{{1, 5, 1}, {0, 0, 1}});
  CHECK(find(g + 8, 1) == all{{0, 2, 1}});
  CHECK(find(g + 8, 0).empty());
  CHECK_THROWS_AS(find(g + 10, 2), lockstep::usage_error);  // nobody's
  auto const* const bytes = reinterpret_cast<std::byte const*>(g);
  CHECK_THROWS_AS(list.find_gradients(bytes + 2, 4, [](std::size_t, std::size_t, std::size_t) {}), lockstep::usage_error);
}

TEST_CASE("parameter_list: what can't be trained is refused by name") {
  float v[12];
  float g[12];
  double wide[4];
  std::int32_t whole[4];
  parameter const a{"a", v, g, {4}};
  CHECK(refused({a, {"b", v + 4, g + 4, {4}}}).empty());
  CHECK(refused({a, {"empty", static_cast<float*>(nullptr), static_cast<float*>(nullptr), {0}}}).empty());
  CHECK(contains(refused({}), "no trainable parameter"));
  CHECK(contains(refused({lockstep::buffer("b", v, {3})}), "no trainable parameter"));
  CHECK(contains(refused({a, {"b", v + 3, g + 4, {2}}}), "'a' and 'b' share memory in part"));  // values overlap
  CHECK(contains(refused({a, {"b", v + 4, g + 3, {2}}}), "'a' and 'b' share memory in part"));  // gradients overlap
  CHECK(contains(refused({a, {"b", v, g + 4, {4}}}), "'a' and 'b' share memory in part"));      // one value, two gradients
  CHECK(contains(refused({a, {"b", v + 4, g, {4}}}), "'a' and 'b' share memory in part"));      // one gradient, two values
  CHECK(contains(refused({a, {"b", g, v + 4, {4}}}), "share memory in part"));                  // a value is a gradient
  CHECK(contains(refused({a, {"long", v, g, {5}}}), "share memory in part"));                   // same start, other length
  CHECK(contains(refused({{"wide", v, g, {10}}, {"b", v + 2, g + 10, {1}}, {"c", v + 4, g + 11, {1}}}), "share memory"));
  CHECK(contains(refused({a, {"b", v, g, {4}, {.group = 1}}}), "tied but in different groups"));
  CHECK(contains(refused({a, {"a", v + 4, g + 4, {4}}}), "two parameters are named 'a'"));
  CHECK(contains(refused({a, {"b", whole, g + 4, {4}}}), "'b' is trainable, so value and gradient must be"));
  CHECK(contains(refused({a, {"b", static_cast<float*>(nullptr), g + 4, {4}}}), "'b' has no memory for its value"));
  CHECK(contains(refused({a, {"b", v + 4, static_cast<float*>(nullptr), {4}}}), "'b' has no memory for its gradient"));
  CHECK(contains(refused({a, {"vast", v + 4, g + 4, {std::size_t{1} << 62U}}}), "'vast' has 4611686018427387904 elements"));
  auto* const crooked = reinterpret_cast<double*>(reinterpret_cast<std::byte*>(wide) + 4);
  parameter odd = a;
  odd.name = "odd";
  odd.value = crooked;
  odd.value_type = lockstep::element_type::f64;
  odd.gradient = g + 4;
  odd.shape = {1};
  CHECK(contains(refused({a, odd}), "'odd': the address of its value is not aligned"));
}
