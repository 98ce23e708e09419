// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/element_type.hpp>
#include <lockstep/core/host_device.hpp>
#include <lockstep/core/options.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace lockstep {

/// What an update does with a step. Lies in device memory, so that an update needs no host to wait for it.
struct alignas(8) step_decision {
  /// What gradients are multiplied by.
  float factor = 1;
  /// Not 0 where no update is made.
  std::uint32_t skipped = 0;
};

/// What a step adds up over all ranks beside gradients. Lies in device memory.
struct step_sums {
  /// What counted: samples, or what a batch or the model brings instead.
  double weight = 0;
  /// How many ranks voted to leave the step out.
  double votes = 0;
  /// The samples that were announced, once a rank; and their squares, which tell whether all ranks announced the same.
  double nominal = 0;
  double nominal_squares = 0;
  /// One a rank.
  double ranks = 0;
  /// What losses, and so gradients, were multiplied by, once a rank: the loss scale, 1 where there is none.
  double scale = 0;
  /// The largest norm that gradients may have, once a rank; 0 where there is no bound.
  double max_norm = 0;
  /// The sum of the squares of all gradients, as they were reduced; 0 where no rule asks for it.
  double squares = 0;
  /// What was announced to count over all ranks, once a rank, where updates relied on it; else 0.
  double promised = 0;
  /// The weighted losses of all samples, times the loss scale.
  double loss = 0;

  /// No update is made: a rank voted so, nothing counted, the ranks announced different numbers, or gradients overflowed.
  [[nodiscard]] LOCKSTEP_HOST_DEVICE bool skipped() const { return votes != 0 || !counts() || differ() || overflowed(); }
  /// Something counted, and a number can say how much.
  [[nodiscard]] LOCKSTEP_HOST_DEVICE bool counts() const { return weight > 0 && weight <= 1.7976931348623157e308; }
  /// Some gradient is infinite or not a number, where a rule has them looked at.
  [[nodiscard]] LOCKSTEP_HOST_DEVICE bool overflowed() const { return !(squares <= 1.7976931348623157e308); }
  /// Announced over counted samples, and over the loss scale: what makes sums of gradients the gradient of the mean loss.
  [[nodiscard]] LOCKSTEP_HOST_DEVICE double unscale() const { return nominal / (weight * scale); }
  /// The Euclidean norm of all gradients of the mean loss, before it is bounded.
  [[nodiscard]] LOCKSTEP_HOST_DEVICE double gradient_norm() const { return counts() ? std::sqrt(squares) * unscale() : 0; }
  /// What gradients are multiplied by in the update.
  [[nodiscard]] LOCKSTEP_HOST_DEVICE float factor() const {
    double const f = unscale();
    if (max_norm > 0) {
      double const norm = std::sqrt(squares) * f;
      double const bound = max_norm / ranks;
      return static_cast<float>(norm > bound ? f * (bound / norm) : f);
    }
    return static_cast<float>(f);
  }
  [[nodiscard]] LOCKSTEP_HOST_DEVICE step_decision decision() const { return {factor(), skipped() ? 1U : 0U}; }
  /// Whether the ranks announced different numbers: n1 = n2 = ... just where N times the sum of squares is the square of the
  /// sum. Whole numbers are exact here up to 2^26; above, nothing is said.
  [[nodiscard]] LOCKSTEP_HOST_DEVICE bool differ() const {
    return (nominal < 67108864.0 * ranks && ranks * nominal_squares != nominal * nominal) || broken();
  }
  /// Whether what counted is not what some rank was told before.
  [[nodiscard]] LOCKSTEP_HOST_DEVICE bool broken() const {
    double const off = promised - ranks * weight;
    return promised != 0 && !(off <= 1e-9 * promised && -off <= 1e-9 * promised);
  }
  /// The mean loss over what counted; 0 when nothing did.
  [[nodiscard]] LOCKSTEP_HOST_DEVICE double mean_loss() const { return counts() ? loss * unscale() : 0; }
};

/// A stretch of one parameter that this rank updates: `count` elements from each address.
template <std::size_t Slots>
struct update_segment {
  void* value = nullptr;
  void const* gradient = nullptr;
  /// The f32 value that a 16-bit `value` is rounded from; null for f32 values.
  float* master = nullptr;
  /// One address a slot. A plain array, which kernels may index; it has at least one element.
  float* slots[Slots == 0 ? 1 : Slots] = {};
  std::size_t count = 0;
  element_type value_type = element_type::f32;
  element_type gradient_type = element_type::f32;
  std::uint8_t group = 0;
  /// The distinct parameter that the stretch belongs to.
  std::size_t parameter = 0;
  /// The bucket that its gradients travel in.
  std::size_t bucket = 0;
  /// Where other ranks' memory is accessed too: it lies there as far behind an address divisible by 16 as it does here.
  bool peers_alike = true;
};

/// Where some rank keeps a parameter, for those that reach its memory.
struct peer_parameter {
  void const* gradient = nullptr;
  void* value = nullptr;
};

/// What `prepare` is told: the rate is the optimizer's own member where it has one.
template <class Optimizer>
[[nodiscard]] LOCKSTEP_HOST_DEVICE update_info info_for(Optimizer const& optimizer, std::uint64_t step, std::uint8_t group) {
  update_info info{.step = step, .learning_rate = 1, .group = group};
  if constexpr (requires { info.learning_rate = optimizer.learning_rate; }) {
    info.learning_rate = optimizer.learning_rate;
  }
  return info;
}

/// Runs an elementwise optimizer over segments. Specialised by each backend, with
/// - `elementwise_update(typename Backend::device&, std::vector<segment>)`,
/// - `load_masters(stream)`, which makes the f32 masters equal to the 16-bit values,
/// - `set(stream, std::span<Optimizer const> one or one a group)`: the hyperparameters of the updates that follow,
/// - `prepare(stream, std::uint64_t const* applied)`: what all elements share, for the update after `*applied` others, and
/// - `run(stream, plan::range buckets, step_decision const* decision, double const* uses)`, which updates the segments of these
///   buckets. Where `decision` is null, the gradient factor is 1 and nothing is left out; where `uses` is null every parameter
///   takes part, else those with a use count other than 0.
/// One whose ranks may reach each other's memory also has `share(device, peers, rank, size)`, and `run_shared(stream, buckets,
/// decision, stopped)`, which adds up the gradients of all ranks, updates, and writes the values to all, in one pass. All
/// pointers are to device memory; all of it may be recorded in a graph, but for `set`, which comes before the graph runs.
template <class Backend, class Optimizer>
class elementwise_update;

/// A stretch of gradients, and the bucket that they travel in.
struct gradient_stretch {
  typed_span gradients;
  std::size_t bucket = 0;
};

/// Adds up squares of gradients. Specialised by each backend, with
/// - `squared_norm(typename Backend::device&, std::vector<gradient_stretch>)`, of any types that gradients may have, and
/// - `run(stream, plan::range buckets, double* sum)`, which adds the squares of all elements in these buckets to
/// `*sum`, in
///   f64, in an order that depends on the list only. Infinities and what is not a number come out as such.
/// `sum` is device memory; `run` may be recorded in a graph.
template <class Backend>
class squared_norm;

}  // namespace lockstep
