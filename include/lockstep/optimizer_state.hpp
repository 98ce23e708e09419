// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/concepts.hpp>
#include <lockstep/core/context.hpp>
#include <lockstep/core/parameter_list.hpp>
#include <lockstep/core/update.hpp>
#include <lockstep/plan/order.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

/// A user's optimizers, one for all parameters or one a group, checked against the parameters they will update.
template <class Optimizer>
class optimizer_groups {
 public:
  /// Throws usage_error: no optimizer, a parameter whose group has none, hyperparameters that `validate` refuses.
  optimizer_groups(parameter_list const& parameters, std::vector<Optimizer> optimizers) : optimizers_(std::move(optimizers)) {
    expects(!optimizers_.empty(), "give one optimizer, or one for each parameter group");
    for (Optimizer const& optimizer : optimizers_) {
      if constexpr (requires { optimizer.validate(); }) {
        optimizer.validate();
      }
    }
    for (parameter const& p : parameters.listings()) {
      if (optimizers_.size() > 1 && p.trainable() && p.group >= optimizers_.size()) {
        refuse(std::string("parameter '") + p.name + "' is in group " + std::to_string(p.group) + ", but there are only " +
               std::to_string(optimizers_.size()) + " optimizers");
      }
    }
  }

  [[nodiscard]] std::span<Optimizer> all() noexcept { return optimizers_; }
  [[nodiscard]] std::span<Optimizer const> all() const noexcept { return optimizers_; }

 private:
  std::vector<Optimizer> optimizers_;
};

/// What a rank keeps to update its part of the parameters. This one is for whole optimizers, which keep their own state.
template <class Optimizer, class Backend>
class optimizer_state {
 public:
  optimizer_state(typename Backend::device&, parameter_list const& parameters, std::vector<Optimizer> optimizers)
      : parameters_(&parameters), groups_(parameters, std::move(optimizers)) {}

  /// What this rank updates from now on. A whole optimizer needs whole parameters.
  void own(std::vector<plan::mark> stretches) {
    owned_ = std::move(stretches);
    owns_.assign(parameters_->distinct_count(), 0);
    for (plan::mark const& stretch : owned_) {
      owns_[stretch.parameter] = 1;
    }
  }
  [[nodiscard]] std::span<plan::mark const> owned() const noexcept { return owned_; }

  void start(typename Backend::stream_ref) noexcept {}

  /// `used` is empty, or says for each distinct parameter whether it takes part.
  void update(typename Backend::stream_ref stream, std::uint64_t step, float factor, std::span<std::uint8_t const> used) {
    std::span<Optimizer> const optimizers = groups_.all();
    for (std::size_t group = 0; group < optimizers.size(); ++group) {
      taking_part_.clear();
      for (std::size_t p = 0; p < owns_.size(); ++p) {
        parameter const& described = parameters_->distinct(p);
        bool const in_group = optimizers.size() == 1 || described.group == group;
        if (owns_[p] != 0 && in_group && (used.empty() || used[p] != 0)) {
          taking_part_.push_back(described);
        }
      }
      if (!taking_part_.empty()) {
        update_context<Backend> ctx{stream, typename Backend::weight{factor},
                                    info_for(optimizers[group], step, static_cast<std::uint8_t>(group))};
        optimizers[group].step(ctx, std::span<parameter const>{taking_part_});
      }
    }
  }

  [[nodiscard]] std::span<Optimizer> optimizers() noexcept { return groups_.all(); }
  [[nodiscard]] std::span<Optimizer const> optimizers() const noexcept { return groups_.all(); }

 private:
  parameter_list const* parameters_;
  optimizer_groups<Optimizer> groups_;
  std::vector<plan::mark> owned_;
  std::vector<std::uint8_t> owns_;
  std::vector<parameter> taking_part_;
};

/// For elementwise optimizers: one f32 array a slot over all trainable elements, and one more with the f32 masters of 16-bit
/// values; nothing on a rank that updates nothing.
template <elementwise_optimizer Optimizer, class Backend>
class optimizer_state<Optimizer, Backend> {
 public:
  static constexpr std::size_t slots = slot_count<Optimizer>;

  /// Throws usage_error for a value or gradient that an elementwise optimizer can't update: it computes in f32.
  optimizer_state(typename Backend::device& device, parameter_list const& parameters, std::vector<Optimizer> optimizers)
      : device_(device), parameters_(&parameters), groups_(parameters, std::move(optimizers)) {
    for (std::size_t p = 0; p < parameters.distinct_count(); ++p) {
      parameter const& described = parameters.distinct(p);
      slot_offset_.push_back(elements_);
      master_offset_.push_back(master_elements_);
      if (described.trainable()) {
        if (described.value_type == element_type::f64 || described.gradient_type == element_type::f64) {
          refuse(std::string("parameter '") + described.name +
                 "' is f64; elementwise optimizers compute in f32 and update f32, f16 and bf16 values");
        }
        elements_ += described.count();
        master_elements_ += described.value_type == element_type::f32 ? 0 : described.count();
      }
    }
  }

  void own(std::vector<plan::mark> stretches) {
    owned_ = std::move(stretches);
    if (!owned_.empty() && !allocated_) {
      for (auto& slot : slots_) {
        slot = device_.allocate(elements_ * sizeof(float), memory_use::optimizer_state);
        Backend::zero(device_.stream(), slot.data(), slot.bytes());
      }
      masters_ = device_.allocate(master_elements_ * sizeof(float), memory_use::optimizer_state);
      allocated_ = true;
    }
    std::vector<update_segment<slots>> segments;
    for (plan::mark const& stretch : owned_) {
      segments.push_back(segment_of(stretch));
    }
    update_.emplace(device_, std::move(segments));
  }
  [[nodiscard]] std::span<plan::mark const> owned() const noexcept { return owned_; }

  /// Once the values are those to start from: the masters become equal to them.
  void start(typename Backend::stream_ref stream) { update_->load_masters(stream); }

  void update(typename Backend::stream_ref stream, std::uint64_t step, float factor, std::span<std::uint8_t const> used) {
    update_->run(stream, std::as_const(*this).optimizers(), step, factor, used);
  }

  [[nodiscard]] std::span<Optimizer> optimizers() noexcept { return groups_.all(); }
  [[nodiscard]] std::span<Optimizer const> optimizers() const noexcept { return groups_.all(); }

 private:
  [[nodiscard]] update_segment<slots> segment_of(plan::mark const& stretch) const {
    parameter const& p = parameters_->distinct(stretch.parameter);
    update_segment<slots> segment;
    segment.value = p.values().part(stretch.first, stretch.count).data;
    segment.gradient = p.gradients().part(stretch.first, stretch.count).data;
    if (p.value_type != element_type::f32) {
      segment.master = static_cast<float*>(masters_.data()) + master_offset_[stretch.parameter] + stretch.first;
    }
    for (std::size_t slot = 0; slot != slots; ++slot) {
      segment.slots[slot] = static_cast<float*>(slots_[slot].data()) + slot_offset_[stretch.parameter] + stretch.first;
    }
    segment.count = stretch.count;
    segment.value_type = p.value_type;
    segment.gradient_type = p.gradient_type;
    segment.group = p.group;
    segment.parameter = stretch.parameter;
    return segment;
  }

  typename Backend::device& device_;
  parameter_list const* parameters_;
  optimizer_groups<Optimizer> groups_;
  std::vector<std::size_t> slot_offset_;    // by distinct parameter
  std::vector<std::size_t> master_offset_;  // by distinct parameter
  std::size_t elements_ = 0;
  std::size_t master_elements_ = 0;
  bool allocated_ = false;
  std::array<typename Backend::buffer, slots> slots_{};
  typename Backend::buffer masters_{};
  std::vector<plan::mark> owned_;
  std::optional<elementwise_update<Backend, Optimizer>> update_;
};

}  // namespace lockstep
