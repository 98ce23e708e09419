// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/error.hpp>

#include <concepts>
#include <cstddef>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

namespace lockstep {

/// A view of samples of `width` elements each, one after another: shape {count, width}. Owns nothing.
template <class T>
class sample_view {
 public:
  using element_type = T;

  constexpr sample_view() noexcept = default;
  /// Requires: `data` points at count * width elements.
  constexpr sample_view(T* data, std::size_t count, std::size_t width) noexcept : data_(data), count_(count), width_(width) {}
  template <class U>
  requires std::convertible_to<U (*)[], T (*)[]>
  constexpr sample_view(sample_view<U> other) noexcept  // NOLINT(google-explicit-constructor): adds const
      : data_(other.data()), count_(other.count()), width_(other.width()) {}

  [[nodiscard]] constexpr T* data() const noexcept { return data_; }
  [[nodiscard]] constexpr std::size_t count() const noexcept { return count_; }
  [[nodiscard]] constexpr std::size_t width() const noexcept { return width_; }
  /// The elements of sample `index`.
  [[nodiscard]] constexpr std::span<T> operator[](std::size_t index) const noexcept { return {data_ + index * width_, width_}; }

 private:
  T* data_ = nullptr;
  std::size_t count_ = 0;
  std::size_t width_ = 0;
};

/// An argument that goes whole to every device that has samples, instead of being sliced: a temperature, a mask, a table.
template <class T>
struct replicated {
  T value;

  constexpr operator T const&() const noexcept { return value; }  // NOLINT(google-explicit-constructor): it is the value
};
template <class T>
replicated(T) -> replicated<T>;

// How the library counts and slices what it knows. Found by overload, like those of a user's batch type.
namespace batch_detail {

template <class T, std::size_t Extent>
constexpr std::size_t sample_count(std::span<T, Extent> batch) noexcept {
  return batch.size();
}
template <class T, std::size_t Extent>
constexpr std::span<T> slice(std::span<T, Extent> batch, std::size_t first, std::size_t count) noexcept {
  return std::span<T>{batch}.subspan(first, count);
}
template <class T>
constexpr std::size_t sample_count(sample_view<T> batch) noexcept {
  return batch.count();
}
template <class T>
constexpr sample_view<T> slice(sample_view<T> batch, std::size_t first, std::size_t count) noexcept {
  return {batch.data() + first * batch.width(), count, batch.width()};
}
template <class T>
constexpr replicated<T> slice(replicated<T> const& whole, std::size_t, std::size_t) {
  return whole;
}

template <class T>
struct is_replicated : std::false_type {};
template <class T>
struct is_replicated<replicated<T>> : std::true_type {};
template <class T>
struct is_tuple : std::false_type {};
template <class... Views>
struct is_tuple<std::tuple<Views...>> : std::true_type {};

template <class T>
concept counted = requires(T const& batch) {
  { sample_count(batch) } -> std::convertible_to<std::size_t>;
};
template <class T>
concept has_slice = requires(T const& batch, std::size_t n) {
  slice(batch, n, n);
};
template <class T>
concept sliced = requires(T const& batch, std::size_t n) {
  { slice(batch, n, n) } -> std::convertible_to<T>;
};

void batch_weight() = delete;  // found in the batch's own namespace only
template <class T>
concept weighted = requires(T const& batch) {
  { batch_weight(batch) } -> std::convertible_to<double>;
};

// Each constraint is evaluated where its function object is first called, so overloads of the user's namespace are found.
struct batch_weight_fn {
  template <weighted T>
  constexpr double operator()(T const& batch) const {
    return static_cast<double>(batch_weight(batch));
  }
};

struct sample_count_fn {
  template <class T>
  requires(counted<T> && !is_tuple<T>::value) constexpr std::size_t operator()(T const& batch) const {
    return sample_count(batch);
  }

  /// The views of a tuple must agree; throws usage_error naming the first that does not.
  template <class... Views>
  requires(sizeof...(Views) > 0 && !(is_replicated<Views>::value && ...) &&
           ((is_replicated<Views>::value || std::invocable<sample_count_fn const&, Views const&>)&&...)) constexpr std::size_t
  operator()(std::tuple<Views...> const& batch) const {
    std::size_t count = 0;
    std::size_t position = 0;
    bool known = false;
    auto const visit_one = [&]<class View>(View const& view) {
      if constexpr (!is_replicated<View>::value) {
        std::size_t const here = (*this)(view);
        if (known && here != count) {
          refuse(std::string("element ") + std::to_string(position) + " of the batch has " + std::to_string(here) +
                 " samples, those before it " + std::to_string(count));
        }
        count = here;
        known = true;
      }
      ++position;
    };
    std::apply([&](Views const&... views) { (visit_one(views), ...); }, batch);
    return count;
  }
};

struct slice_fn {
  template <class T>
  requires(sliced<T> && !is_tuple<T>::value) constexpr T operator()(T const& batch, std::size_t first,
                                                                    std::size_t count) const {
    return slice(batch, first, count);
  }
  template <class... Views>
  requires(std::invocable<slice_fn const&, Views const&, std::size_t, std::size_t>&&...) constexpr std::tuple<Views...>
  operator()(std::tuple<Views...> const& batch, std::size_t first, std::size_t count) const {
    return std::apply([&](Views const&... views) { return std::tuple<Views...>{(*this)(views, first, count)...}; }, batch);
  }
};

template <class T>
inline constexpr bool elements_are_views = true;
template <class... Views>
inline constexpr bool elements_are_views<std::tuple<Views...>> = ((is_replicated<Views>::value ||
                                                                   std::invocable<sample_count_fn const&, Views const&>)&&...);

// Whether two batches are views of the same memory; without samples, it does not matter which. One that can't be compared is
// the same as none.
template <class T>
constexpr bool same(T const& a, T const& b) {
  if constexpr (requires {
                  { a == b } -> std::convertible_to<bool>;
                }) {
    return a == b;
  } else {
    return false;
  }
}
template <class T, std::size_t Extent>
constexpr bool same(std::span<T, Extent> a, std::span<T, Extent> b) {
  return a.size() == b.size() && (a.empty() || a.data() == b.data());
}
template <class T>
constexpr bool same(sample_view<T> a, sample_view<T> b) {
  return a.count() == b.count() && (a.count() == 0 || (a.data() == b.data() && a.width() == b.width()));
}
template <class T>
constexpr bool same(replicated<T> const& a, replicated<T> const& b) {
  return same(a.value, b.value);
}
template <class... Views>
constexpr bool same(std::tuple<Views...> const& a, std::tuple<Views...> const& b) {
  return [&]<std::size_t... At>(std::index_sequence<At...>) { return (same(std::get<At>(a), std::get<At>(b)) && ...); }
  (std::index_sequence_for<Views...>{});
}

}  // namespace batch_detail

inline namespace customization {

/// `sample_count(batch)`: how many samples a batch holds. Knows spans (an element is a sample), `sample_view`, and tuples of
/// these; finds a function `sample_count` in the namespace of any other batch type.
inline constexpr batch_detail::sample_count_fn sample_count{};

/// `batch_weight(batch)`: what the samples of a batch count for together, where that is not one each: their tokens, say. A
/// function of this name in the namespace of a batch type; not negative, 0 for an empty batch, and the sum over its slices for
/// the whole. Loss and gradients of a step are divided by the sum of its weights.
inline constexpr batch_detail::batch_weight_fn batch_weight{};
template <class T>
concept weighted_batch = batch_detail::weighted<T>;

/// `slice(batch, first, count)`: a view of samples [first, first + count). Copies nothing. Knows the same types as
/// `sample_count`, and passes `replicated` arguments on whole.
inline constexpr batch_detail::slice_fn slice{};

}  // namespace customization

}  // namespace lockstep
