// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

#include <lockstep/lockstep.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

// What composes and what does not, each atom beside its near miss. The sentences of those that don't: tests/fail.

namespace {

using lockstep::parameter;
using host = lockstep::host;
using context = lockstep::train_context<host>;
using pairs = std::tuple<std::span<float const>, std::span<float const>>;

template <class Model, class Optimizer = lockstep::sgd, class Policy = lockstep::peer_all_reduce<>>
inline constexpr bool trains_with = lockstep::composes<Model, Optimizer, Policy>;

struct tensors {
  float value[2]{};
  float gradient[2]{};
  std::array<parameter, 2> parameters() { return {{{"a", &value[0], &gradient[0], {1}}, {"b", &value[1], &gradient[1], {1}}}}; }
};
struct line : tensors {
  using backend = host;
  using batch = pairs;
  void train(context&, batch const&) {}
};

// ---- names: there or not, whatever else they are -------------------------------------------------------------------------

namespace names {

struct none {};
struct plain {
  int train = 0;
};
struct overloaded {
  void train() {}
  void train(int) {}
};
struct templated {
  template <class T>
  void train(T) {}
};
class hidden {
  [[maybe_unused]] void train() {}
};
struct inherited : overloaded {};
struct privately : private overloaded {};
struct last final {
  void train() {}
};
struct last_without final {};
union either {
  int train;
  float other;
};
struct base {
  virtual ~base() = default;
  virtual void train() = 0;
};

template <class T>
inline constexpr bool seen = lockstep::concepts_detail::mentions_train<T>;
static_assert(seen<plain> && seen<overloaded> && seen<templated> && seen<hidden> && seen<inherited> && seen<privately>);
static_assert(seen<last> && seen<either> && seen<base>);
static_assert(!seen<none> && !seen<last_without> && !seen<int> && !seen<void>);

}  // namespace names

// ---- backend --------------------------------------------------------------------------------------------------------------

struct other_backend : host {};
struct no_backend {
  using weight = float;
};
static_assert(lockstep::backend<host> && lockstep::backend<other_backend>);
static_assert(!lockstep::backend<no_backend> && !lockstep::backend<int> && !lockstep::backend<void>);

// ---- batch ----------------------------------------------------------------------------------------------------------------

struct countable {
  std::span<float const> x;
};
[[maybe_unused]] std::size_t sample_count(countable const& batch) { return batch.x.size(); }
struct sliced_to_span : countable {};
[[maybe_unused]] std::span<float const> slice(sliced_to_span const& batch, std::size_t first, std::size_t count) {
  return batch.x.subspan(first, count);
}
struct sliceable : countable {};
[[maybe_unused]] sliceable slice(sliceable const& batch, std::size_t first, std::size_t count) {
  return {{batch.x.subspan(first, count)}};
}
struct member_functions {
  [[maybe_unused]] std::size_t sample_count() const { return 0; }
  [[maybe_unused]] member_functions slice(std::size_t, std::size_t) const { return *this; }
};

static_assert(lockstep::batch<std::span<float const>> && lockstep::batch<std::span<int>> && lockstep::batch<pairs>);
static_assert(lockstep::batch<lockstep::sample_view<float const>> && lockstep::batch<sliceable>);
static_assert(lockstep::batch<std::tuple<sliceable, pairs, lockstep::replicated<float>>>);
static_assert(!lockstep::tuple_of_views<std::tuple<std::span<float>, float>>);
static_assert(!lockstep::tuple_of_views<std::tuple<std::tuple<float>, std::span<float>>>);
static_assert(!lockstep::batch<std::tuple<std::span<float>, float>>);
static_assert(!lockstep::countable_batch<std::tuple<lockstep::replicated<float>>>);
static_assert(!lockstep::countable_batch<std::vector<float>> && !lockstep::countable_batch<member_functions>);
static_assert(!lockstep::countable_batch<int> && !lockstep::batch<void>);
static_assert(lockstep::countable_batch<countable> && !lockstep::sliceable_batch<countable>);
static_assert(lockstep::countable_batch<sliced_to_span> && !lockstep::sliceable_batch<sliced_to_span>);
static_assert(!lockstep::sliceable_batch<std::tuple<countable>>);
static_assert(!lockstep::batch<std::unique_ptr<float[]>> && !lockstep::batch<pairs&> && !lockstep::batch<pairs const>);

// ---- model ----------------------------------------------------------------------------------------------------------------

// parameters(), in every form.
template <class Result>
struct lists {
  Result parameters();
};
template <class Result>
struct lists_const {
  Result parameters() const;
};
template <class Result>
inline constexpr bool listed = lockstep::lists_parameters<lists<Result>>;
static_assert(listed<std::vector<parameter>> && listed<std::vector<parameter>&> && listed<std::vector<parameter> const&>);
static_assert(listed<std::array<parameter, 2>> && listed<std::array<parameter, 2> const> && listed<parameter (&)[2]>);
static_assert(listed<std::span<parameter>> && listed<std::span<parameter const>> && listed<std::initializer_list<parameter>>);
static_assert(listed<std::vector<std::reference_wrapper<parameter>>>);
static_assert(lockstep::lists_parameters<lists_const<std::span<parameter const>>>);
static_assert(lockstep::lists_parameters<lists_const<std::vector<parameter> const&>>);
static_assert(!listed<void> && !listed<parameter> && !listed<parameter*> && !listed<std::vector<parameter*>>);
static_assert(!listed<std::span<float>> && !listed<std::map<std::string, parameter>> && !listed<std::string>);
static_assert(lockstep::has_parameters<lists<void>> && !lockstep::has_parameters<names::none>);
struct parameters_with_default : line {
  std::vector<parameter> parameters(int = 0) { return {}; }
};
struct parameters_with_argument : line {
  std::vector<parameter> parameters(int) { return {}; }
};
struct privately_listed : private tensors {
  using backend = host;
  using batch = pairs;
  void train(context&, batch const&) {}
};
static_assert(trains_with<line> && trains_with<parameters_with_default>);
static_assert(!lockstep::has_parameters<parameters_with_argument> && !lockstep::has_parameters<privately_listed>);

// train, in every form.
struct overloaded_train : line {
  void train(int) {}
  void train(context&, batch const&) {}
};
struct templated_train : line {
  template <class Context, class Batch>
  void train(Context&, Batch const&) {}
};
struct auto_train : line {
  auto train(auto& ctx, auto const&) { ctx.gradient_ready(0); }
};
struct const_train : line {
  void train(context&, batch const&) const {}
};
struct batch_by_value : line {
  void train(context&, batch) {}
};
struct stored_train : line {
  std::function<void(context&, batch const&)> train;
};
struct last_model final : tensors {
  using backend = host;
  using batch = pairs;
  void train(context&, batch const&) {}
};
struct rooted_model : line {  // neither copied nor moved
  rooted_model() = default;
  rooted_model(rooted_model const&) = delete;
  rooted_model& operator=(rooted_model const&) = delete;
};
struct virtual_model : line {
  virtual ~virtual_model() = default;
};
static_assert(trains_with<overloaded_train> && trains_with<templated_train> && trains_with<auto_train>);
static_assert(trains_with<const_train> && trains_with<batch_by_value> && trains_with<stored_train>);
static_assert(trains_with<last_model> && trains_with<rooted_model> && trains_with<virtual_model>);

struct train_by_value : line {
  void train(context, batch const&) {}
};
struct train_of_mutable_batch : line {
  void train(context&, batch&) {}
};
struct train_for_another : line {
  void train(lockstep::train_context<other_backend>&, batch const&) {}
};
struct train_with_result : line {
  bool train(context&, batch const&) { return true; }
};
static_assert(!lockstep::calls_train<train_by_value> && !lockstep::calls_train<train_of_mutable_batch>);
static_assert(!lockstep::calls_train<train_for_another> && lockstep::has_train<train_for_another>);
static_assert(lockstep::calls_train<train_with_result> && !lockstep::trains<train_with_result>);
static_assert(!trains_with<train_by_value> && !trains_with<train_with_result> && !trains_with<tensors> && !trains_with<int>);

// promises
struct promising : line {
  static constexpr lockstep::model_promises promises{.honours_accumulate = true};
};
struct promising_by_auto : line {
  static constexpr auto promises = lockstep::model_promises{.reports_unused = true};
};
struct promising_by_inheritance : promising {};
[[maybe_unused]] bool decided_late() { return true; }
struct promising_by_const : line {
  static inline lockstep::model_promises const promises{.honours_accumulate = decided_late()};
};
struct promising_by_member : line {
  lockstep::model_promises promises{};
};
struct promising_by_call : line {
  static constexpr lockstep::model_promises promises() { return {}; }
};
class promising_in_private : public line {
  [[maybe_unused]] static constexpr lockstep::model_promises promises{};
};
struct promising_in_private_base : private promising {
  using promising::backend;
  using promising::batch;
  using promising::parameters;
  using promising::train;
};
static_assert(lockstep::promises_of<promising>().honours_accumulate &&
              lockstep::promises_of<promising_by_auto>().reports_unused);
static_assert(lockstep::promises_of<promising_by_inheritance>().honours_accumulate);
static_assert(!lockstep::promises_of<line>().honours_accumulate && trains_with<promising_by_inheritance>);
static_assert(!lockstep::well_formed_promises<promising_by_const> && !lockstep::well_formed_promises<promising_by_member>);
static_assert(!lockstep::well_formed_promises<promising_by_call> && !lockstep::well_formed_promises<promising_in_private>);
static_assert(!lockstep::well_formed_promises<promising_in_private_base> && !trains_with<promising_in_private_base>);

// infer
struct inferring : line {
  using output = std::span<float>;
  void infer(lockstep::infer_context<backend>&, batch const&, output const&) const {}
};
struct inferring_by_template : line {
  using output = std::span<float>;
  void infer(auto&, auto const&, auto const&) {}
};
struct inferring_without_output : line {
  void infer(lockstep::infer_context<backend>&, batch const&, std::span<float> const&) {}
};
struct inferring_to_vector : line {
  using output = std::vector<float>;
  void infer(lockstep::infer_context<backend>&, batch const&, output const&) {}
};
struct inferring_by_return : line {
  using output = std::span<float>;
  output infer(lockstep::infer_context<backend>&, batch const&) { return {}; }
  output infer(batch const&) { return {}; }
};
static_assert(lockstep::infers<inferring> && lockstep::infers<inferring_by_template> && !lockstep::infers<line>);
static_assert(trains_with<inferring> && trains_with<line>);
static_assert(!lockstep::names_output<inferring_without_output> && !lockstep::names_output<inferring_to_vector>);
static_assert(!lockstep::well_formed_infer<inferring_without_output> && !lockstep::well_formed_infer<inferring_by_return>);

// ---- optimizer --------------------------------------------------------------------------------------------------------------

struct descend {
  float rate = 0.1F;
  float operator()(float value, float gradient) const { return value - rate * gradient; }
};
auto const lambda = [](float value, float gradient) { return value - gradient; };
auto const generic = [](auto value, auto gradient) { return value - gradient; };
using capturing = decltype([rate = 0.1F](float value, float gradient) { return value - rate * gradient; });
struct templated_call {
  static constexpr std::array slots{"m", "v"};  // char const*: names too
  template <class... Slot>
  float operator()(float value, float gradient, Slot&... slot) const {
    return value - (gradient + ... + slot);
  }
};
struct derived : lockstep::adamw {
  float more = 0;
};
struct last_optimizer final {
  float operator()(float value, float gradient) const { return value - gradient; }
};
struct in_double {
  double operator()(double value, double gradient) const { return value - gradient; }
};
struct prepared_by_value {
  static constexpr std::array<std::string_view, 0> slots{};
  float prepare(lockstep::update_info info) const { return info.learning_rate; }
  float operator()(float value, float gradient, float rate) const { return value - rate * gradient; }
};
static_assert(lockstep::elementwise_optimizer<descend> && lockstep::elementwise_optimizer<derived>);
static_assert(lockstep::elementwise_optimizer<std::remove_const_t<decltype(lambda)>>);
static_assert(lockstep::elementwise_optimizer<std::remove_const_t<decltype(generic)>>);
static_assert(lockstep::optimizer<std::remove_const_t<decltype(generic)>, host>);
static_assert(!lockstep::optimizer<capturing, host>);
static_assert(lockstep::elementwise_optimizer<templated_call> && lockstep::slot_names<templated_call>()[1] == "v");
static_assert(lockstep::elementwise_optimizer<last_optimizer> && lockstep::elementwise_optimizer<in_double>);
static_assert(lockstep::elementwise_optimizer<prepared_by_value> && lockstep::slot_count<prepared_by_value> == 0);
static_assert(lockstep::slot_count<derived> == 2 && lockstep::slot_count<descend> == 0);

struct mutable_call {
  float operator()(float value, float) { return value; }
};
struct named {
  std::string name;
  float operator()(float value, float) const { return value; }
};
struct no_result {
  void operator()(float, float) const {}
};
struct one_slot_too_many {
  static constexpr std::array<std::string_view, 2> slots{"m", "v"};
  float operator()(float value, float, float&) const { return value; }
};
struct slots_at_run_time {
  static inline std::vector<std::string> const slots{"m"};
  float operator()(float value, float, float&) const { return value; }
};
class slots_in_private {
  [[maybe_unused]] static constexpr std::array<std::string_view, 1> slots{"m"};

 public:
  float operator()(float value, float) const { return value; }
};
struct slots_of_numbers {
  static constexpr std::array<int, 1> slots{1};
  float operator()(float value, float, float&) const { return value; }
};
struct prepares_mutably {
  float prepare(lockstep::update_info const&) { return 0; }
  float operator()(float value, float) const { return value; }
};
struct prepares_nothing {
  void prepare(lockstep::update_info const&) const {}
  float operator()(float value, float) const { return value; }
};
struct prepares_a_vector {
  std::vector<float> prepare(lockstep::update_info const&) const { return {}; }
  float operator()(float value, float, std::vector<float> const&) const { return value; }
};
struct ignores_prepared {
  float prepare(lockstep::update_info const&) const { return 0; }
  float operator()(float value, float) const { return value; }
};
static_assert(!lockstep::updates_element<mutable_call> && !lockstep::updates_element<no_result>);
static_assert(!lockstep::updates_element<one_slot_too_many> && !lockstep::updates_element<ignores_prepared>);
static_assert(lockstep::updates_element<named> && !lockstep::elementwise_optimizer<named>);
static_assert(!lockstep::well_formed_slots<slots_at_run_time> && !lockstep::well_formed_slots<slots_in_private>);
static_assert(!lockstep::well_formed_slots<slots_of_numbers> && !lockstep::elementwise_optimizer<slots_in_private>);
static_assert(!lockstep::well_formed_prepare<prepares_mutably> && !lockstep::well_formed_prepare<prepares_nothing>);
static_assert(!lockstep::well_formed_prepare<prepares_a_vector> && !lockstep::elementwise_optimizer<prepares_mutably>);

struct whole {
  std::vector<float> state;
  void step(lockstep::update_context<host>&, std::span<parameter const>) {}
};
struct whole_by_template {
  void step(auto&, auto const&) {}
};
struct whole_of_vector {
  void step(lockstep::update_context<host>&, std::vector<parameter> const&) {}
};
struct whole_for_another {
  void step(lockstep::update_context<other_backend>&, std::span<parameter const>) {}
};
struct whole_not_copyable : whole {
  std::unique_ptr<int> only;
};
static_assert(lockstep::optimizer<whole, host> && lockstep::optimizer<whole_by_template, host>);
static_assert(!lockstep::whole_optimizer<whole_of_vector, host> && !lockstep::whole_optimizer<whole_for_another, host>);
static_assert(lockstep::whole_optimizer<whole_not_copyable, host> && !lockstep::optimizer<whole_not_copyable, host>);
static_assert(!lockstep::optimizer<int, host> && !lockstep::optimizer<names::none, host>);
static_assert(trains_with<line, whole> && trains_with<line, descend> && trains_with<line, derived>);

// ---- policy -----------------------------------------------------------------------------------------------------------------

template <class Policy>
inline constexpr bool leads = lockstep::policy<Policy, host>;
inline constexpr lockstep::tuning tiny{.bucket_bytes = 1023, .stage_below_bytes = 0};
inline constexpr lockstep::tuning smallest{.bucket_bytes = 1024, .stage_below_bytes = 1024};
inline constexpr lockstep::tuning stages_too_much{.bucket_bytes = 1024, .stage_below_bytes = 1025};

static_assert(leads<lockstep::single_device> && leads<lockstep::peer_all_reduce<>> && leads<lockstep::replicate_and_gather<>>);
static_assert(leads<lockstep::peer_all_reduce<lockstep::local>>);  // one device, which its communicator checks
static_assert(leads<lockstep::peer_all_reduce<lockstep::automatic, smallest>>);
static_assert(!leads<lockstep::peer_all_reduce<lockstep::automatic, tiny>>);
static_assert(!leads<lockstep::peer_all_reduce<lockstep::automatic, stages_too_much>>);
static_assert(!leads<lockstep::peer_all_reduce<int>> && !leads<lockstep::shared_memory> && !leads<int>);
static_assert(!leads<lockstep::peer_all_reduce<lockstep::peer_all_reduce<>>>);
static_assert(!lockstep::policy<lockstep::peer_all_reduce<>, other_backend>);
static_assert(!trains_with<line, lockstep::sgd, lockstep::shared_memory> && !trains_with<line, lockstep::peer_all_reduce<>>);

struct derived_policy : lockstep::replicate_and_gather<> {};
struct tuned_at_run_time : lockstep::peer_all_reduce<> {
  static inline lockstep::tuning tuning_values{};
};
struct reduces_something_else : lockstep::peer_all_reduce<> {
  static void reduce(int) {}
};
struct owned_by_count : lockstep::peer_all_reduce<> {
  static std::size_t owned(std::size_t count, lockstep::rank_id, int) { return count; }
};
struct publishes_by_member : lockstep::peer_all_reduce<> {
  void publish(auto&, lockstep::typed_span, host::stream_ref) {}
};
struct publishes_in_private_base : private lockstep::replicate_and_gather<> {
  using replicate_and_gather::owned;
  using replicate_and_gather::reduce;
  using replicate_and_gather::transport;
  using replicate_and_gather::tuning_values;
};
static_assert(leads<derived_policy> && !lockstep::has_tuning<tuned_at_run_time> && !leads<tuned_at_run_time>);
static_assert(!leads<reduces_something_else> && !lockstep::assigns_owners<owned_by_count> && !leads<owned_by_count>);
static_assert(!leads<publishes_by_member> && !leads<publishes_in_private_base>);

struct given_by_caller {};  // communicators that a replica is given and a trainer can't make

}  // namespace

template <>
struct lockstep::communicator_for<given_by_caller, lockstep::host> {
  using type = lockstep::shared_memory_communicator;
};

namespace {

static_assert(lockstep::composes_replica<lockstep::peer_all_reduce<given_by_caller>, lockstep::sgd, host>);
static_assert(!trains_with<line, lockstep::sgd, lockstep::peer_all_reduce<given_by_caller>>);
static_assert(!trains_with<lockstep::trainer<line, lockstep::sgd, lockstep::peer_all_reduce<>>>);

/// A step of every kind of optimizer, so that what the concepts let through compiles to its end.
template <class Model, class Optimizer>
double loss_after_a_step(Optimizer optimizer) {
  std::vector<float> const x(4);
  lockstep::trainer<Model, Optimizer, lockstep::peer_all_reduce<>> trainer{lockstep::devices::first(2),
                                                                           [](auto&) { return Model{}; }, optimizer};
  return trainer.step({x, x}).loss();
}

}  // namespace

TEST_CASE("composes: what the concepts let through trains") {
  CHECK(loss_after_a_step<overloaded_train>(lambda) == 0);
  CHECK(loss_after_a_step<templated_train>(generic) == 0);
  CHECK(loss_after_a_step<auto_train>(templated_call{}) == 0);
  CHECK(loss_after_a_step<last_model>(last_optimizer{}) == 0);
  CHECK(loss_after_a_step<promising_by_inheritance>(derived{}) == 0);
  CHECK(loss_after_a_step<virtual_model>(prepared_by_value{}) == 0);
  CHECK(loss_after_a_step<const_train>(whole_by_template{}) == 0);
  CHECK(loss_after_a_step<inferring>(whole{}) == 0);
}
