// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/element_type.hpp>
#include <lockstep/core/error.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <utility>

namespace lockstep {

/// The extents of a tensor, slowest first: at most 8. `{}` is a scalar (one element).
class shape {
 public:
  static constexpr std::size_t max_dimensions = 8;

  shape() noexcept = default;
  /// Throws usage_error for more than 8 extents, or when their product does not fit std::size_t.
  shape(std::initializer_list<std::size_t> extents)  // NOLINT(google-explicit-constructor): {28, 28} is a shape
      : shape(std::span<std::size_t const>{extents.begin(), extents.size()}) {}
  explicit shape(std::span<std::size_t const> extents) {
    expects(extents.size() <= max_dimensions, "a shape has at most 8 dimensions");
    bool const empty = [&] {
      for (std::size_t const extent : extents) {
        if (extent == 0) {
          return true;
        }
      }
      return false;
    }();
    for (std::size_t const extent : extents) {
      extents_[dimensions_++] = extent;
      expects(empty || count_ <= (std::numeric_limits<std::size_t>::max)() / extent, "a shape's element count overflows");
      count_ = empty ? 0 : count_ * extent;
    }
  }

  /// The product of the extents.
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  [[nodiscard]] std::span<std::size_t const> extents() const noexcept { return {extents_.data(), dimensions_}; }

  friend bool operator==(shape const&, shape const&) noexcept = default;

 private:
  std::array<std::size_t, max_dimensions> extents_{};
  std::size_t dimensions_ = 0;
  std::size_t count_ = 1;
};

/// "{784, 128}"
[[nodiscard]] inline std::string to_string(shape const& s) {
  std::string text = "{";
  for (std::size_t const extent : s.extents()) {
    text += std::string(text.size() > 1 ? ", " : "") + std::to_string(extent);
  }
  return text + "}";
}

/// `trainable` parameters have a gradient and are updated; `buffer`s (running statistics, say) are kept equal on all ranks.
enum class parameter_role : std::uint8_t { trainable, buffer };

/// What may be said of a parameter beyond its memory.
struct parameter_options {
  /// The parameter group: which of the trainer's optimizers updates it (no weight decay for biases, say).
  std::uint8_t group = 0;
};

/// What a buffer holds on every rank after a step, of what the ranks left in it.
enum class buffer_sync : std::uint8_t {
  root,  ///< rank 0's
  mean,  ///< the mean over all ranks, those without samples too. Of floating-point elements only
};

struct buffer_options {
  buffer_sync sync = buffer_sync::root;
};

/// Describes one tensor of a model: where value and gradient lie, and what they are. Owns nothing; the memory is the model's.
/// `count` elements of value and of gradient are contiguous. Value and gradient may differ in type.
struct parameter {
  std::string name;
  void* value = nullptr;
  void* gradient = nullptr;
  element_type value_type = element_type::f32;
  element_type gradient_type = element_type::f32;
  parameter_role role = parameter_role::trainable;
  std::uint8_t group = 0;
  /// Of buffers.
  buffer_sync sync = buffer_sync::root;
  lockstep::shape shape;

  parameter() = default;
  template <element V, element G>
  parameter(std::string tensor_name, V* value_memory, G* gradient_memory, lockstep::shape extents,
            parameter_options options = {})
      : name(std::move(tensor_name)),
        value(value_memory),
        gradient(gradient_memory),
        value_type(element_type_of<V>::value),
        gradient_type(element_type_of<G>::value),
        group(options.group),
        shape(extents) {}

  [[nodiscard]] std::size_t count() const noexcept { return shape.count(); }
  [[nodiscard]] bool trainable() const noexcept { return role == parameter_role::trainable; }
  [[nodiscard]] typed_span values() const noexcept { return {value, count(), value_type}; }
  [[nodiscard]] typed_span gradients() const noexcept { return {gradient, count(), gradient_type}; }
};

/// Describes a tensor that has no gradient: running statistics, a count, a mask. After each step, a skipped one too, it holds
/// the same on every rank: rank 0's unless `options` say otherwise. Where models communicate, all hold the same already.
template <element V>
[[nodiscard]] parameter buffer(std::string name, V* value, shape extents, buffer_options options = {}) {
  parameter described{std::move(name), value, static_cast<V*>(nullptr), extents};
  described.role = parameter_role::buffer;
  described.sync = options.sync;
  return described;
}

}  // namespace lockstep
