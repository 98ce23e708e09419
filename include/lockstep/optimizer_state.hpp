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

/// Throws what the `validate` of an optimizer throws, where it has one: hyperparameters out of range.
template <class Optimizer>
void validate(std::span<Optimizer const> optimizers) {
  for (Optimizer const& optimizer : optimizers) {
    if constexpr (requires { optimizer.validate(); }) {
      optimizer.validate();
    }
  }
}

/// A user's optimizers, one for all parameters or one a group, checked against the parameters they will update.
template <class Optimizer>
class optimizer_groups {
 public:
  /// Throws usage_error: no optimizer, a parameter whose group has none, hyperparameters that `validate` refuses.
  optimizer_groups(parameter_list const& parameters, std::vector<Optimizer> optimizers) : optimizers_(std::move(optimizers)) {
    expects(!optimizers_.empty(), "give one optimizer, or one for each parameter group");
    validate(std::span<Optimizer const>{optimizers_});
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

  /// What this rank updates from now on. Throws usage_error for a part of a parameter: a whole optimizer needs it whole.
  void own(plan::owned_stretches mine, typename Backend::stream_ref) {
    owned_ = std::move(mine.stretches);
    std::vector<std::size_t> elements(parameters_->distinct_count(), 0);
    for (plan::mark const& stretch : owned_) {
      elements[stretch.parameter] += stretch.count;
    }
    owns_.assign(elements.size(), 0);
    for (std::size_t p = 0; p < elements.size(); ++p) {
      if (elements[p] != 0 && elements[p] != parameters_->distinct(p).count()) {
        refuse(std::string("the policy cuts '") + parameters_->distinct(p).name +
               "' between ranks, which an optimizer for whole parameters can't update; use an elementwise one");
      }
      owns_[p] = elements[p] != 0 ? 1 : 0;
    }
    gather_all({});
  }
  [[nodiscard]] std::span<plan::mark const> owned() const noexcept { return owned_; }

  /// Makes update number `step`. `uses` is empty, or says for each distinct parameter in how many micro-batches it was used.
  void update(typename Backend::stream_ref stream, std::uint64_t step, float factor, std::span<double const> uses) {
    if (!uses.empty()) {
      gather_all(uses);
    }
    std::span<Optimizer> const optimizers = groups_.all();
    for (std::size_t group = 0; group < optimizers.size(); ++group) {
      if (!taking_part_[group].empty()) {
        update_context<Backend> ctx{stream, typename Backend::weight{factor},
                                    info_for(optimizers[group], step, static_cast<std::uint8_t>(group))};
        optimizers[group].step(ctx, std::span<parameter const>{taking_part_[group]});
      }
    }
  }

  [[nodiscard]] std::span<Optimizer> optimizers() noexcept { return groups_.all(); }
  [[nodiscard]] std::span<Optimizer const> optimizers() const noexcept { return groups_.all(); }

 private:
  /// What each group's optimizer is given.
  void gather_all(std::span<double const> uses) {
    taking_part_.assign(groups_.all().size(), {});
    for (std::size_t p = 0; p < owns_.size(); ++p) {
      if (owns_[p] != 0 && (uses.empty() || uses[p] != 0)) {
        parameter const& described = parameters_->distinct(p);
        taking_part_[taking_part_.size() == 1 ? 0 : described.group].push_back(described);
      }
    }
  }

  parameter_list const* parameters_;
  optimizer_groups<Optimizer> groups_;
  std::vector<plan::mark> owned_;
  std::vector<std::uint8_t> owns_;                   // by distinct parameter
  std::vector<std::vector<parameter>> taking_part_;  // by group
};

/// For elementwise optimizers: one f32 array a slot over the elements that this rank updates, and one more with the f32 masters
/// of those whose values have 16 bits.
template <elementwise_optimizer Optimizer, class Backend>
class optimizer_state<Optimizer, Backend> {
 public:
  static constexpr std::size_t slots = slot_count<Optimizer>;

  /// Throws usage_error for a value or gradient that an elementwise optimizer can't update: it computes in f32.
  optimizer_state(typename Backend::device& device, parameter_list const& parameters, std::vector<Optimizer> optimizers)
      : device_(device), parameters_(&parameters), groups_(parameters, std::move(optimizers)) {
    for (std::size_t p = 0; p < parameters.distinct_count(); ++p) {
      parameter const& described = parameters.distinct(p);
      if (described.trainable() &&
          (described.value_type == element_type::f64 || described.gradient_type == element_type::f64)) {
        refuse(std::string("parameter '") + described.name +
               "' is f64; elementwise optimizers compute in f32 and update f32, f16 and bf16 values");
      }
    }
  }

  /// What this rank updates from now on. Before the first update: slots become zero, and masters equal to the values, which are
  /// those to start from.
  void own(plan::owned_stretches mine, typename Backend::stream_ref stream) {
    owned_ = std::move(mine.stretches);
    std::vector<std::size_t> slots_at;
    std::vector<std::size_t> masters_at;
    std::size_t elements = 0;
    std::size_t master_elements = 0;
    for (plan::mark const& stretch : owned_) {
      slots_at.push_back(aligned_like(elements, stretch));
      elements = slots_at.back() + stretch.count;
      bool const narrow = parameters_->distinct(stretch.parameter).value_type != element_type::f32;
      masters_at.push_back(narrow ? aligned_like(master_elements, stretch) : master_elements);
      master_elements = masters_at.back() + (narrow ? stretch.count : 0);
    }
    for (auto& slot : slots_) {
      resize(slot, elements);
      Backend::zero(stream, slot.data(), slot.bytes());
    }
    resize(masters_, master_elements);
    std::vector<update_segment<slots>> segments;
    for (std::size_t i = 0; i < owned_.size(); ++i) {
      segments.push_back(segment_of(owned_[i], slots_at[i], masters_at[i]));
      segments.back().bucket = mine.buckets[i];
      segments.back().peers_alike = peers_alike(owned_[i].parameter);
    }
    update_.emplace(device_, std::move(segments));
    if constexpr (shares) {
      if (!peers_.empty()) {
        update_->share(device_, peers_, rank_, static_cast<int>(peers_.size() / parameters_->distinct_count()));
      }
    }
    update_->load_masters(stream);
  }
  [[nodiscard]] std::span<plan::mark const> owned() const noexcept { return owned_; }

  /// Whether updates can reach into the memory of other ranks on this backend.
  static constexpr bool shares = requires(elementwise_update<Backend, Optimizer> & u, typename Backend::stream_ref stream) {
    u.run_shared(stream, plan::range{}, nullptr, nullptr);
  };
  /// Before `own`, where ranks reach each other's memory: the distinct parameters of every rank, rank after rank.
  void share(std::vector<peer_parameter> peers, rank_id rank) {
    peers_ = std::move(peers);
    rank_ = number(rank);
  }
  /// What this rank keeps of its parameters, as `share` takes it.
  [[nodiscard]] std::vector<peer_parameter> own_addresses() const {
    std::vector<peer_parameter> own;
    for (std::size_t p = 0; p < parameters_->distinct_count(); ++p) {
      own.push_back({parameters_->distinct(p).gradient, parameters_->distinct(p).value});
    }
    return own;
  }

  /// The optimizers' hyperparameters, as they are now, hold for the updates that follow.
  /// Nothing before `own`, after which it is called again.
  void set(typename Backend::stream_ref stream) {
    if (update_) {
      update_->set(stream, std::as_const(*this).optimizers());
    }
  }
  /// What the next update needs of the number of updates before it. Like `set`.
  void prepare(typename Backend::stream_ref stream, std::uint64_t const* applied) {
    if (update_) {
      update_->prepare(stream, applied);
    }
  }
  /// Adds up what travels in these buckets, updates it, and brings it to all ranks; see elementwise_update.
  void update_shared(typename Backend::stream_ref stream, plan::range buckets, step_decision const* decision,
                     std::uint32_t const* stopped) {
    update_->run_shared(stream, buckets, decision, stopped);
  }
  /// Updates what travels in these buckets; see elementwise_update.
  void update(typename Backend::stream_ref stream, plan::range buckets, step_decision const* decision, double const* uses) {
    update_->run(stream, buckets, decision, uses);
  }

  [[nodiscard]] std::span<Optimizer> optimizers() noexcept { return groups_.all(); }
  [[nodiscard]] std::span<Optimizer const> optimizers() const noexcept { return groups_.all(); }

 private:
  [[nodiscard]] bool peers_alike(std::size_t p) const {
    parameter const& mine = parameters_->distinct(p);
    auto const like = [](void const* a, void const* b, element_type type) {
      auto const place = [&](void const* at) { return reinterpret_cast<std::uintptr_t>(at) / size_of(type) % 4; };
      return place(a) == place(b);
    };
    for (std::size_t at = p; at < peers_.size(); at += parameters_->distinct_count()) {
      if (!like(peers_[at].value, mine.value, mine.value_type) ||
          !like(peers_[at].gradient, mine.gradient, mine.gradient_type)) {
        return false;
      }
    }
    return true;
  }

  void resize(typename Backend::buffer& array, std::size_t elements) {
    if (array.bytes() != elements * sizeof(float)) {
      array = {};  // its memory is free for the next
      array = device_.allocate(elements * sizeof(float), memory_use::optimizer_state);
    }
  }

  /// The first place from `at` on that lies in an aligned group of four where the stretch's value lies in one, so that four
  /// elements of every array can be read at once.
  [[nodiscard]] std::size_t aligned_like(std::size_t at, plan::mark const& stretch) const {
    if (stretch.count < 64) {
      return at;  // nothing to gain
    }
    typed_span const values = parameters_->distinct(stretch.parameter).values().part(stretch.first, stretch.count);
    std::size_t const wanted = reinterpret_cast<std::uintptr_t>(values.data) / size_of(values.type) % 4;
    return at + (wanted + 4 - at % 4) % 4;
  }

  [[nodiscard]] update_segment<slots> segment_of(plan::mark const& stretch, std::size_t slot_at, std::size_t master_at) const {
    parameter const& p = parameters_->distinct(stretch.parameter);
    update_segment<slots> segment;
    segment.value = p.values().part(stretch.first, stretch.count).data;
    segment.gradient = p.gradients().part(stretch.first, stretch.count).data;
    if (p.value_type != element_type::f32) {
      segment.master = static_cast<float*>(masters_.data()) + master_at;
    }
    for (std::size_t slot = 0; slot != slots; ++slot) {
      segment.slots[slot] = static_cast<float*>(slots_[slot].data()) + slot_at;
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
  std::array<typename Backend::buffer, slots> slots_{};
  typename Backend::buffer masters_{};
  std::vector<plan::mark> owned_;
  std::vector<peer_parameter> peers_;  // by rank and distinct parameter, where ranks reach each other's memory
  int rank_ = 0;
  std::optional<elementwise_update<Backend, Optimizer>> update_;
};

}  // namespace lockstep
