// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/concepts.hpp>
#include <lockstep/core/context.hpp>
#include <lockstep/core/memory.hpp>
#include <lockstep/core/parameter_list.hpp>
#include <lockstep/core/step_result.hpp>
#include <lockstep/optim/gradient_rules.hpp>
#include <lockstep/plan/order.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

/// Which models, optimizers and policies make a trainer or a replica, and the sentence for each way in which they don't.
namespace lockstep {

template <class Model, class Optimizer, class Policy>
class trainer;

template <class T>
inline constexpr bool is_trainer = false;
template <class M, class O, class P>
inline constexpr bool is_trainer<trainer<M, O, P>> = true;

// Formatters of several versions disagree about requires-expressions.
// clang-format off

/// Makes the communicators of all its devices; a trainer needs it, a replica is given one.
template <class Transport, class Backend>
concept creates_communicators = requires(std::vector<device_id> const& devices, typename Backend::options const& options) {
  {
    communicator_for<Transport, Backend>::create(devices, options)
    } -> std::same_as<std::vector<typename communicator_for<Transport, Backend>::type>>;
};

template <class Policy, class Optimizer, class Backend>
concept composes_replica = backend<Backend> && optimizer<Optimizer, Backend> && policy<Policy, Backend> &&
    (elementwise_optimizer<Optimizer> || !splits_updates<Policy>);

template <class Model, class Optimizer, class Policy>
concept composes = model<Model> && composes_replica<Policy, Optimizer, typename Model::backend> &&
    creates_communicators<typename Policy::transport, typename Model::backend>;

// clang-format on

/// What stands where a trainer or replica can't be. The reports fail to compile with the sentence of the first atom that is
/// not met; each atom stands behind those it depends on, so that the first error is the cause. Good types never come here.
namespace unmet {

template <class Batch>
consteval bool report_batch() {
  if constexpr (!std::copyable<Batch>) {
    static_assert(std::copyable<Batch>, "lockstep: Model::batch must be copyable; see docs/concepts.md#batch-copyable");
  } else if constexpr (!tuple_of_views<Batch>) {
    static_assert(tuple_of_views<Batch>,
                  "lockstep: Model::batch must hold views of samples only, anything else wrapped as lockstep::replicated; see "
                  "docs/concepts.md#batch-replicated");
  } else if constexpr (!countable_batch<Batch>) {
    static_assert(countable_batch<Batch>,
                  "lockstep: Model::batch must have a free function sample_count(batch); see docs/concepts.md#batch-count");
  } else if constexpr (!batch_detail::has_slice<Batch> && !batch_detail::is_tuple<Batch>::value) {
    static_assert(
        sliceable_batch<Batch>,
        "lockstep: Model::batch must have a free function slice(batch, first, count); see docs/concepts.md#batch-slice");
  } else {
    static_assert(
        sliceable_batch<Batch>,
        "lockstep: Model::batch must be what its slice(batch, first, count) returns; see docs/concepts.md#batch-slice-type");
  }
  return true;
}

template <class Model>
consteval bool report_model() {
  if constexpr (is_trainer<Model>) {
    static_assert(!is_trainer<Model>, "lockstep: Model must be a model, not a trainer; see docs/concepts.md#nested-trainer");
  } else if constexpr (!names_backend<Model>) {
    static_assert(
        names_backend<Model>,
        "lockstep: Model must have a public type named backend, such as lockstep::host; see docs/concepts.md#model-backend");
  } else if constexpr (!backend<typename Model::backend>) {
    static_assert(backend<typename Model::backend>,
                  "lockstep: Model::backend must be a backend, such as lockstep::host; see docs/concepts.md#backend");
  } else if constexpr (!names_batch<Model>) {
    static_assert(names_batch<Model>, "lockstep: Model must have a public type named batch; see docs/concepts.md#model-batch");
  } else if constexpr (!batch<typename Model::batch>) {
    return report_batch<typename Model::batch>();
  } else if constexpr (!has_parameters<Model>) {
    static_assert(has_parameters<Model>,
                  "lockstep: Model must have a public parameters(); see docs/concepts.md#model-parameters");
  } else if constexpr (!lists_parameters<Model>) {
    static_assert(
        lists_parameters<Model>,
        "lockstep: Model::parameters must return a range of lockstep::parameter; see docs/concepts.md#model-parameters-range");
  } else if constexpr (!calls_train<Model> && !has_train<Model>) {
    static_assert(has_train<Model>, "lockstep: Model must have a public train; see docs/concepts.md#model-train");
  } else if constexpr (!calls_train<Model>) {
    static_assert(calls_train<Model>,
                  "lockstep: Model::train must take a lockstep::train_context<backend>& and a batch const&; see "
                  "docs/concepts.md#model-train-call");
  } else if constexpr (!trains<Model>) {
    static_assert(trains<Model>, "lockstep: Model::train must return void; see docs/concepts.md#model-train-void");
  } else if constexpr (!well_formed_promises<Model>) {
    static_assert(well_formed_promises<Model>,
                  "lockstep: Model::promises must be a public static constexpr lockstep::model_promises; see "
                  "docs/concepts.md#model-promises");
  } else if constexpr (!names_output<Model>) {
    static_assert(
        names_output<Model>,
        "lockstep: Model must have a public type named output, a batch too, for its infer; see docs/concepts.md#model-output");
  } else {
    static_assert(well_formed_infer<Model>,
                  "lockstep: Model::infer must be a public void infer(lockstep::infer_context<backend>&, batch const&, output "
                  "const&); see docs/concepts.md#model-infer");
  }
  return true;
}

struct any_prepared {
  template <class T>
  operator T() const;  // NOLINT(google-explicit-constructor): stands for a value of any type
};
template <class O>
inline constexpr bool called_with_other_slots = []<std::size_t... Count>(std::index_sequence<Count...>) {
  return (concepts_detail::called_with_slots<O const&, Count> || ...);
}
(std::make_index_sequence<9>{});
template <class O>
inline constexpr bool called_with_other_prepared =
    prepares<O> && (concepts_detail::called_with<O const&, std::make_index_sequence<slot_count<O>>> ||
                    concepts_detail::called_with<O const&, std::make_index_sequence<slot_count<O>>, any_prepared>);

template <class Optimizer>
consteval bool report_elementwise() {
  if constexpr (!std::is_trivially_copyable_v<Optimizer>) {
    static_assert(std::is_trivially_copyable_v<Optimizer>,
                  "lockstep: Optimizer must be trivially copyable to be elementwise; see docs/concepts.md#optimizer-trivial");
  } else if constexpr (!well_formed_slots<Optimizer>) {
    static_assert(well_formed_slots<Optimizer>,
                  "lockstep: Optimizer::slots must be a public static constexpr std::array of names; see "
                  "docs/concepts.md#optimizer-slots");
  } else if constexpr (!well_formed_prepare<Optimizer>) {
    static_assert(well_formed_prepare<Optimizer>,
                  "lockstep: Optimizer::prepare must be const, take a lockstep::update_info const& and return what is "
                  "trivially copyable; see docs/concepts.md#optimizer-prepare");
  } else if constexpr (concepts_detail::called_with_slots<Optimizer&, slot_count<Optimizer>>) {
    static_assert(updates_element<Optimizer>,
                  "lockstep: Optimizer must be callable while const; see docs/concepts.md#optimizer-const");
  } else if constexpr (called_with_other_slots<Optimizer>) {
    static_assert(
        updates_element<Optimizer>,
        "lockstep: Optimizer must take one float& for each name in its slots; see docs/concepts.md#optimizer-slot-count");
  } else if constexpr (called_with_other_prepared<Optimizer>) {
    static_assert(updates_element<Optimizer>,
                  "lockstep: Optimizer must take what its prepare returns as the last argument of its call; see "
                  "docs/concepts.md#optimizer-prepared");
  } else {
    static_assert(updates_element<Optimizer>,
                  "lockstep: Optimizer must be callable as float(float value, float gradient, float& slots..., prepared); see "
                  "docs/concepts.md#optimizer-call");
  }
  return true;
}

template <class Optimizer, class Backend>
consteval bool report_optimizer() {
  if constexpr (!concepts_detail::mentions_call<Optimizer> && !concepts_detail::mentions_step<Optimizer>) {
    static_assert(optimizer<Optimizer, Backend>,
                  "lockstep: Optimizer must be callable for one element, or have a step for all parameters; see "
                  "docs/concepts.md#optimizer");
  } else if constexpr (!std::copyable<Optimizer>) {
    static_assert(std::copyable<Optimizer>,
                  "lockstep: Optimizer must be copyable and assignable, which a lambda with captures is not; see "
                  "docs/concepts.md#optimizer-copyable");
  } else if constexpr (concepts_detail::mentions_step<Optimizer>) {
    static_assert(whole_optimizer<Optimizer, Backend>,
                  "lockstep: Optimizer::step must be a public void step(lockstep::update_context<backend>&, "
                  "std::span<lockstep::parameter const>); see docs/concepts.md#optimizer-step");
  } else {
    return report_elementwise<Optimizer>();
  }
  return true;
}

template <class Policy, class Backend>
consteval bool report_policy_functions() {
  using communicator_type = typename communicator_for<typename Policy::transport, Backend>::type;
  using stream_ref = typename Backend::stream_ref;
  if constexpr (!communicator<communicator_type, Backend>) {
    static_assert(
        communicator<communicator_type, Backend>,
        "lockstep: communicator_for<transport, backend>::type must be a communicator; see docs/concepts.md#communicator");
  } else if constexpr (!reduces<Policy, communicator_type, stream_ref>) {
    static_assert(reduces<Policy, communicator_type, stream_ref>,
                  "lockstep: Policy must have a public static reduce(communicator, gradients, stream); see "
                  "docs/concepts.md#policy-reduce");
  } else if constexpr (!assigns_owners<Policy>) {
    static_assert(
        assigns_owners<Policy>,
        "lockstep: Policy must have a public static plan::range owned(count, rank, size); see docs/concepts.md#policy-owned");
  } else if constexpr (!well_formed_publish<Policy, communicator_type, stream_ref>) {
    static_assert(well_formed_publish<Policy, communicator_type, stream_ref>,
                  "lockstep: Policy::publish must be a public static publish(communicator, values, stream); see "
                  "docs/concepts.md#policy-publish");
  } else {
    static_assert(creates_communicators<typename Policy::transport, Backend>,
                  "lockstep: communicator_for<transport, backend> must have a create(devices, options) that returns a "
                  "std::vector of its type; see docs/concepts.md#communicator-create");
  }
  return true;
}

template <class Policy, class Backend>
consteval bool report_policy() {
  if constexpr (!names_transport<Policy>) {
    static_assert(names_transport<Policy>,
                  "lockstep: Policy must be a policy, such as lockstep::peer_all_reduce<>; see docs/concepts.md#policy");
  } else if constexpr (names_transport<typename Policy::transport>) {
    static_assert(!names_transport<typename Policy::transport>,
                  "lockstep: Policy must hold a transport, not another policy; see docs/concepts.md#nested-policy");
  } else if constexpr (!has_tuning<Policy>) {
    static_assert(has_tuning<Policy>,
                  "lockstep: Policy must have a public static constexpr lockstep::tuning tuning_values; see "
                  "docs/concepts.md#policy-tuning");
  } else if constexpr (!tuning_in_range<Policy>) {
    static_assert(tuning_in_range<Policy>,
                  "lockstep: Policy's tuning must have bucket_bytes >= 1024 and stage_below_bytes <= bucket_bytes; see "
                  "docs/concepts.md#tuning");
  } else if constexpr (!has_communicator<typename Policy::transport, Backend>) {
    static_assert(has_communicator<typename Policy::transport, Backend>,
                  "lockstep: Policy's transport must have a communicator on this backend; see docs/concepts.md#transport");
  } else {
    return report_policy_functions<Policy, Backend>();
  }
  return true;
}

template <class Policy, class Optimizer, class Backend>
consteval bool report_replica() {
  if constexpr (!backend<Backend>) {
    static_assert(backend<Backend>,
                  "lockstep: Backend must be a backend, such as lockstep::host; see docs/concepts.md#backend");
  } else if constexpr (!optimizer<Optimizer, Backend>) {
    return report_optimizer<Optimizer, Backend>();
  } else if constexpr (!policy<Policy, Backend> || elementwise_optimizer<Optimizer> || !splits_updates<Policy>) {
    return report_policy<Policy, Backend>();
  } else {
    static_assert(elementwise_optimizer<Optimizer>,
                  "lockstep: Optimizer must be callable for one element under a policy that splits updates between ranks; see "
                  "docs/concepts.md#optimizer-split");
  }
  return true;
}

template <class Model, class Optimizer, class Policy>
consteval bool report_trainer() {
  if constexpr (!model<Model>) {
    return report_model<Model>();
  } else {
    return report_replica<Policy, Optimizer, typename Model::backend>();
  }
}

/// Converts from whatever an argument may be.
struct anything {
  template <class T>
  constexpr anything(T&&) noexcept {}  // NOLINT(google-explicit-constructor): that is its purpose
  template <class T>
  constexpr anything(std::initializer_list<T>) noexcept {}  // NOLINT(google-explicit-constructor)
  template <class... T>
  constexpr anything(T&&...) noexcept {}  // NOLINT(google-explicit-constructor)
};
/// Designated initializers need the aggregate that they name the members of.
template <class T>
using aggregate = std::conditional_t<std::is_aggregate_v<T>, T, anything*>;
template <class M>
struct options_of {
  using type = anything*;
};
template <names_backend M>
requires backend<typename M::backend>
struct options_of<M> {
  using type = aggregate<typename M::backend::options>;
};

/// Its constructors and members take anything, so that uses of a trainer that can't be add no errors.
template <class Model, class Optimizer, class Policy>
class trainer_body {
  static_assert(report_trainer<Model, Optimizer, Policy>());
  using options = typename options_of<Model>::type;

 public:
  // The template takes what the others don't: some compilers let designated initializers make an anything too.
  template <class = void>
  trainer_body(anything, anything, anything, anything = 0) noexcept {}
  trainer_body(anything, anything, aggregate<Optimizer>) noexcept {}
  trainer_body(anything, anything, aggregate<Optimizer>, options) noexcept {}
  trainer_body(anything, anything, std::vector<aggregate<Optimizer>>, options) noexcept {}
  trainer_body(anything, anything, aggregate<Optimizer>, gradient_rules, options) noexcept {}
  trainer_body(anything, anything, std::vector<aggregate<Optimizer>>, gradient_rules, options) noexcept {}

  step_result step(anything, step_options = {}) { return {}; }
  step_result step_shards(anything, step_options = {}) { return {}; }
  void predict(anything, anything) {}
  void synchronize() const noexcept {}
  int size() const noexcept { return 0; }
  std::add_lvalue_reference_t<Model> model(rank_id = rank_id{0});
  std::add_lvalue_reference_t<Optimizer> optimizer(std::size_t = 0, rank_id = rank_id{0});
  gradient_rules& rules() noexcept;
  memory_usage memory(rank_id) { return {}; }
  double busy_seconds(rank_id) { return 0; }
  bool failed() const noexcept { return false; }
  std::uint64_t bytes_moved() const noexcept { return 0; }
};

/// Its constructors and members take anything, so that uses of a replica that can't be add no errors.
template <class Policy, class Optimizer, class Backend>
class replica_body {
  static_assert(report_replica<Policy, Optimizer, Backend>());

 public:
  class step {
   public:
    train_context<Backend> micro_batch(std::size_t);
    void reduce() {}
    void update() {}
    void publish() {}
    template <class Work>
    void attempt(anything, Work&&) {}
    std::span<plan::mark const> owned() const noexcept { return {}; }
    step_result skip() { return {}; }
    step_result done() { return {}; }
    step_result finish() { return {}; }
  };

  template <class = void>
  replica_body(anything, anything, anything, anything, model_promises = {}, gradient_rules const& = {}) {}
  replica_body(anything, anything, anything, aggregate<Optimizer>, model_promises = {}, gradient_rules const& = {}) {}

  step begin(step_info) { return {}; }
  rank_id rank() const noexcept { return rank_id{0}; }
  int size() const noexcept { return 0; }
  std::span<Optimizer> optimizers() noexcept { return {}; }
  gradient_rules& rules() noexcept;
  std::uint64_t longest(std::uint64_t) { return 0; }
  parameter_list const& parameters() const noexcept;
  std::uint64_t applied_steps() { return 0; }
  double busy_seconds() { return 0; }
  void synchronize() {}
  bool failed() const noexcept { return false; }
};

}  // namespace unmet

}  // namespace lockstep
