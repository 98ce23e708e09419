// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#include <lockstep/core/batch.hpp>

#include <doctest/doctest.h>

#include <array>
#include <concepts>
#include <cstddef>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

namespace foreign {

struct sentences {  // tokens of variable length, by offsets: what the library can't know
  std::vector<int> const* offsets;
  std::size_t first;
  std::size_t count;
};
inline std::size_t sample_count(sentences const& batch) { return batch.count; }
inline sentences slice(sentences const& batch, std::size_t first, std::size_t count) {
  return {batch.offsets, batch.first + first, count};
}

struct unknown {};

}  // namespace foreign

namespace {

using lockstep::replicated;
using lockstep::sample_view;

template <class T>
concept countable = requires(T const& batch) {
  lockstep::sample_count(batch);
};
static_assert(countable<std::span<float const>> && countable<foreign::sentences>);
static_assert(countable<std::tuple<std::span<int>, foreign::sentences, replicated<float>>>);
static_assert(!countable<foreign::unknown> && !countable<std::tuple<foreign::unknown>> && !countable<std::tuple<>>);
static_assert(!countable<std::vector<float>>, "a container is no view: slicing it would copy");
static_assert(!countable<std::tuple<replicated<float>>>, "nothing there has samples");
static_assert(std::convertible_to<sample_view<float>, sample_view<float const>> &&
              !std::convertible_to<sample_view<float const>, sample_view<float>>);

}  // namespace

TEST_CASE("batch: a span is sliced by elements and shares its memory") {
  std::array<float, 10> numbers{};
  std::span<float const> const batch = numbers;
  CHECK(lockstep::sample_count(batch) == 10);
  auto const part = lockstep::slice(batch, 3, 4);
  CHECK(part.data() == &numbers[3]);
  CHECK(part.size() == 4);
  CHECK(lockstep::slice(batch, 10, 0).empty());
}

TEST_CASE("batch: a sample_view is sliced by samples of its width") {
  std::vector<int> numbers(12);
  sample_view<int> const batch{numbers.data(), 4, 3};
  CHECK(lockstep::sample_count(batch) == 4);
  CHECK(batch[2].data() == &numbers[6]);
  CHECK(batch[2].size() == 3);
  auto const part = lockstep::slice(batch, 1, 2);
  CHECK(part.data() == &numbers[3]);
  CHECK(part.count() == 2);
  CHECK(part.width() == 3);
  sample_view<int const> const constant = batch;
  CHECK(constant.data() == numbers.data());
  CHECK(lockstep::sample_count(sample_view<int>{}) == 0);
}

TEST_CASE("batch: a tuple slices its views together and passes replicated arguments on whole") {
  std::vector<float> images(20);
  std::vector<int> labels(5);
  std::tuple const batch{sample_view<float const>{images.data(), 5, 4}, replicated{0.5F}, std::span<int const>{labels}};
  CHECK(lockstep::sample_count(batch) == 5);
  auto const part = lockstep::slice(batch, 2, 3);
  static_assert(std::same_as<decltype(part), std::remove_cvref_t<decltype(batch)> const>);
  CHECK(std::get<0>(part).data() == &images[8]);
  CHECK(std::get<0>(part).count() == 3);
  float const temperature = std::get<1>(part);
  CHECK(temperature == 0.5F);
  CHECK(std::get<2>(part).data() == &labels[2]);
  CHECK(std::get<2>(part).size() == 3);
}

TEST_CASE("batch: tuples nest") {
  std::vector<int> numbers(6);
  std::tuple const inner{std::span<int>{numbers}, replicated{1}};
  std::tuple const batch{inner, sample_view<int>{numbers.data(), 6, 1}};
  CHECK(lockstep::sample_count(batch) == 6);
  CHECK(std::get<0>(std::get<0>(lockstep::slice(batch, 4, 2))).data() == &numbers[4]);
}

TEST_CASE("batch: views of a tuple that disagree are named") {
  std::vector<int> numbers(6);
  std::span<int> const six{numbers};
  std::tuple const batch{six, replicated{7}, six, six.first(5)};
  CHECK_THROWS_WITH_AS(static_cast<void>(lockstep::sample_count(batch)),
                       doctest::Contains("element 3 of the batch has 5 samples, those before it 6"), lockstep::usage_error);
  std::tuple const empty_second{six, six.first(0)};
  CHECK_THROWS_AS(static_cast<void>(lockstep::sample_count(empty_second)), lockstep::usage_error);
}

TEST_CASE("batch: functions in the namespace of a user's type are found, in a tuple too") {
  std::vector<int> const offsets{0, 4, 9, 11};
  foreign::sentences const batch{&offsets, 0, 3};
  CHECK(lockstep::sample_count(batch) == 3);
  CHECK(lockstep::slice(batch, 1, 2).first == 1);
  std::vector<int> labels(3);
  std::tuple const both{batch, std::span<int>{labels}};
  CHECK(lockstep::sample_count(both) == 3);
  CHECK(std::get<0>(lockstep::slice(both, 2, 1)).first == 2);
}
