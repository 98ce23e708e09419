// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/context.hpp>
#include <lockstep/core/error.hpp>
#include <lockstep/core/parameter.hpp>
#include <lockstep/plan/arena.hpp>

#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

/// One tensor of an arena.
struct arena_tensor {
  std::string name;
  shape extents;
  parameter_options options = {};
};

/// A model's parameters in two stretches of device memory, one of values and one of gradients, both zero at first. Tensors lie
/// one after another in the order given, so their gradients travel without a copy.
template <class Backend, element Value = float, element Gradient = Value>
class arena {
 public:
  /// Throws out_of_memory.
  arena(device_context<Backend> const& device, std::vector<arena_tensor> const& tensors) {
    std::vector<std::size_t> counts;
    for (arena_tensor const& tensor : tensors) {
      counts.push_back(tensor.extents.count());
    }
    plan::arena_layout const layout = plan::lay_out(counts);
    expects(layout.count <= (std::numeric_limits<std::ptrdiff_t>::max)() / sizeof(double),
            "the arena's tensors have more elements than memory holds");
    values_ = device.allocate(layout.count * sizeof(Value), memory_use::parameters);
    gradients_ = device.allocate(layout.count * sizeof(Gradient), memory_use::gradients);
    Backend::zero(device.stream(), values_.data(), values_.bytes());
    Backend::zero(device.stream(), gradients_.data(), gradients_.bytes());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      parameters_.emplace_back(tensors[i].name, static_cast<Value*>(values_.data()) + layout.offsets[i],
                               static_cast<Gradient*>(gradients_.data()) + layout.offsets[i], tensors[i].extents,
                               tensors[i].options);
    }
  }

  /// What a model's `parameters()` returns.
  [[nodiscard]] std::span<parameter const> parameters() const noexcept { return parameters_; }
  /// The values, or the gradient, of tensor `index`, in device memory.
  [[nodiscard]] Value* value(std::size_t index) const noexcept { return static_cast<Value*>(parameters_[index].value); }
  [[nodiscard]] Gradient* gradient(std::size_t index) const noexcept {
    return static_cast<Gradient*>(parameters_[index].gradient);
  }

 private:
  typename Backend::buffer values_;
  typename Backend::buffer gradients_;
  std::vector<parameter> parameters_;
};

}  // namespace lockstep
