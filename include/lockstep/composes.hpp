// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/concepts.hpp>
#include <lockstep/core/step_result.hpp>

#include <cstddef>
#include <initializer_list>
#include <type_traits>

/// Which models, optimizers and policies make a trainer, and the sentence for each way in which they don't.
namespace lockstep {

template <class Model, class Optimizer, class Policy>
class trainer;

template <class T>
inline constexpr bool is_trainer = false;
template <class M, class O, class P>
inline constexpr bool is_trainer<trainer<M, O, P>> = true;

// clang-format off: formatters of several versions disagree about requires-expressions

/// Looks like a policy, whatever the backend.
template <class P>
concept names_transport = requires {
  typename P::transport;
  P::tuning_values;
};

template <class O>
concept has_element_call = requires {
  &O::operator();
}
&&!requires { &O::step; };

template <class Policy>
concept tuning_in_range = in_range(Policy::tuning_values);

template <class Model, class Optimizer, class Policy>
concept composes =
    !is_trainer<Model> && model<Model> && optimizer<Optimizer, typename Model::backend> && names_transport<Policy> &&
    !names_transport<typename Policy::transport> && tuning_in_range<Policy> && policy<Policy, typename Model::backend>;

// clang-format on

/// Fails to compile with the sentence of the first atom that is not met. Each stands behind those it depends on, so that the
/// first error is the cause.
template <class Model, class Optimizer, class Policy>
consteval bool report_unmet() {
  if constexpr (is_trainer<Model>) {
    static_assert(!is_trainer<Model>, "lockstep: Model must be a model, not a trainer; see docs/concepts.md#nesting");
  } else if constexpr (!names_backend<Model>) {
    static_assert(names_backend<Model>,
                  "lockstep: Model must name its backend, as `using backend = lockstep::host;`; see "
                  "docs/concepts.md#model-backend");
  } else if constexpr (!names_batch<Model>) {
    static_assert(names_batch<Model>,
                  "lockstep: Model must name the batch it trains on, as `using batch = ...;`; see "
                  "docs/concepts.md#model-batch");
  } else if constexpr (!countable_batch<typename Model::batch>) {
    static_assert(countable_batch<typename Model::batch>,
                  "lockstep: Model::batch must have a `sample_count(batch)`; see docs/concepts.md#batch-count");
  } else if constexpr (!batch<typename Model::batch>) {
    static_assert(batch<typename Model::batch>,
                  "lockstep: Model::batch must be copyable and have a `slice(batch, first, count)` that returns a batch; "
                  "see docs/concepts.md#batch-slice");
  } else if constexpr (!lists_parameters<Model>) {
    static_assert(lists_parameters<Model>,
                  "lockstep: Model must list its parameters, as `parameters()` that returns a range of "
                  "lockstep::parameter; see docs/concepts.md#model-parameters");
  } else if constexpr (!has_train<Model>) {
    static_assert(has_train<Model>,
                  "lockstep: Model must have `void train(lockstep::train_context<backend>&, batch const&)`; see "
                  "docs/concepts.md#model-train");
  } else if constexpr (!trains<Model>) {
    static_assert(trains<Model>,
                  "lockstep: Model::train must be callable as `void train(lockstep::train_context<backend>&, batch "
                  "const&)`; see docs/concepts.md#model-train");
  } else if constexpr (!well_formed_promises<Model>) {
    static_assert(well_formed_promises<Model>,
                  "lockstep: Model::promises must be a `static constexpr lockstep::model_promises`; see "
                  "docs/concepts.md#model-promises");
  } else if constexpr (!well_formed_infer<Model>) {
    static_assert(well_formed_infer<Model>,
                  "lockstep: Model::infer must be callable as `void infer(lockstep::infer_context<backend>&, batch "
                  "const&, output const&)` with a sliceable `output`; see docs/concepts.md#model-infer");
  } else if constexpr (!optimizer<Optimizer, typename Model::backend>) {
    if constexpr (!has_element_call<Optimizer>) {
      static_assert(optimizer<Optimizer, typename Model::backend>,
                    "lockstep: Optimizer must be elementwise or have `void step(lockstep::update_context<backend>&, "
                    "std::span<lockstep::parameter const>)`; see docs/concepts.md#optimizer");
    } else if constexpr (!std::is_trivially_copyable_v<Optimizer>) {
      static_assert(std::is_trivially_copyable_v<Optimizer>,
                    "lockstep: Optimizer must be trivially copyable to be elementwise; see "
                    "docs/concepts.md#optimizer-copyable");
    } else {
      static_assert(elementwise_optimizer<Optimizer>,
                    "lockstep: Optimizer must be callable as `float(float value, float gradient, float& slots..., "
                    "prepared)` with one `float&` for each name in `slots`; see docs/concepts.md#optimizer-slots");
    }
  } else if constexpr (!names_transport<Policy>) {
    static_assert(names_transport<Policy>,
                  "lockstep: Policy must be a policy, such as lockstep::peer_all_reduce<>; see "
                  "docs/concepts.md#policy");
  } else if constexpr (names_transport<typename Policy::transport>) {
    static_assert(!names_transport<typename Policy::transport>,
                  "lockstep: Policy must not hold another policy; its first argument is a transport; see "
                  "docs/concepts.md#nesting");
  } else if constexpr (!tuning_in_range<Policy>) {
    static_assert(tuning_in_range<Policy>,
                  "lockstep: Policy's tuning must have bucket_bytes >= 1024 and stage_below_bytes <= bucket_bytes; see "
                  "docs/concepts.md#tuning");
  } else if constexpr (!transport_for<typename Policy::transport, typename Model::backend>) {
    static_assert(transport_for<typename Policy::transport, typename Model::backend>,
                  "lockstep: Policy's transport must work on Model's backend; see docs/concepts.md#transport");
  } else {
    static_assert(policy<Policy, typename Model::backend>,
                  "lockstep: Policy must have static `reduce(communicator, gradients, stream)` and `owned(count, rank, "
                  "size)`; see docs/concepts.md#policy");
  }
  return true;
}
/// Takes the place of a trainer that can't be. Its constructors and members take anything, so that uses of it add no errors.
template <class Model, class Optimizer, class Policy>
class unmet_trainer {
  static_assert(report_unmet<Model, Optimizer, Policy>());

  struct anything {
    template <class T>
    constexpr anything(T&&) noexcept {}  // NOLINT(google-explicit-constructor): that is its purpose
    template <class T>
    constexpr anything(std::initializer_list<T>) noexcept {}  // NOLINT(google-explicit-constructor)
    template <class... T>
    constexpr anything(T&&...) noexcept {}  // NOLINT(google-explicit-constructor)
  };

 public:
  unmet_trainer(anything, anything, anything, anything = 0) noexcept {}

  step_result step(anything, step_options = {}) { return {}; }
  step_result step_shards(anything, step_options = {}) { return {}; }
  void predict(anything, anything) {}
  Model& model(rank_id = rank_id{0});
  Optimizer& optimizer(std::size_t = 0, rank_id = rank_id{0});
  int size() const { return 0; }
};

}  // namespace lockstep
