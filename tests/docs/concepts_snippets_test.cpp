// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// The code of docs/concepts.md, each piece in a namespace named after its anchor.

#include <lockstep/lockstep.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

namespace snippets {

using pairs = std::tuple<std::span<float const>, std::span<float const>>;

template <class Model>
inline constexpr bool trains = lockstep::composes<Model, lockstep::sgd, lockstep::peer_all_reduce<>>;

struct tensors {
  float value[2]{};
  float gradient[2]{};
  std::array<lockstep::parameter, 2> parameters() {
    return {{{"a", &value[0], &gradient[0], {1}}, {"b", &value[1], &gradient[1], {1}}}};
  }
};
struct work : tensors {
  void forward_and_backward(lockstep::train_context<lockstep::host>&, pairs const&) {}
};

struct line {  // y = a x + b, squared error
  using backend = lockstep::host;
  using batch = std::tuple<std::span<float const>, std::span<float const>>;  // x, y

  std::array<lockstep::parameter, 2> parameters() {
    return {{{"a", &value[0], &gradient[0], {1}}, {"b", &value[1], &gradient[1], {1}}}};
  }

  void train(lockstep::train_context<backend>& ctx, batch const& shard) {
    auto const& [x, y] = shard;
    for (std::size_t i = 0; i < x.size(); ++i) {
      float const error = value[0] * x[i] + value[1] - y[i];
      *ctx.loss() += ctx.sample_weight() * error * error / 2;  // the weighted loss ...
      gradient[0] += ctx.sample_weight() * error * x[i];       // ... and its derivative
      gradient[1] += ctx.sample_weight() * error;
    }
    ctx.gradient_ready(0, 2);
  }

  float value[2]{};
  float gradient[2]{};
};

namespace backend_ {

struct model : tensors {
  using backend = lockstep::host;
  using batch = pairs;
  void train(lockstep::train_context<backend>&, batch const&) {}
};
static_assert(trains<model>);

}  // namespace backend_

namespace batch_copyable_ {

struct model : tensors {
  using backend = lockstep::host;
  using batch = std::span<float const>;  // not std::unique_ptr<float[]>
  void train(lockstep::train_context<backend>&, batch const&) {}
};
static_assert(trains<model>);

}  // namespace batch_copyable_

namespace batch_replicated_ {

struct model : tensors {
  using backend = lockstep::host;
  using batch = std::tuple<std::span<float const>, lockstep::replicated<float>>;
  void train(lockstep::train_context<backend>&, batch const&) {}
};
static_assert(trains<model>);

}  // namespace batch_replicated_

namespace batch_count_ {

struct samples {
  std::span<int const> ids;
};
std::size_t sample_count(samples const& batch) { return batch.ids.size(); }
static_assert(lockstep::countable_batch<samples>);

}  // namespace batch_count_

namespace batch_slice_ {

struct samples {
  std::span<int const> ids;
};
std::size_t sample_count(samples const& batch) { return batch.ids.size(); }
samples slice(samples const& batch, std::size_t first, std::size_t count) { return {batch.ids.subspan(first, count)}; }
static_assert(lockstep::batch<samples>);

}  // namespace batch_slice_

namespace batch_slice_type_ {

struct tokens {
  std::span<int const> ids;
};
std::size_t sample_count(tokens const& batch) { return batch.ids.size(); }
tokens slice(tokens const& batch, std::size_t first, std::size_t count) {  // not std::span<int const>
  return {.ids = batch.ids.subspan(first, count)};
}
static_assert(lockstep::batch<tokens>);

}  // namespace batch_slice_type_

namespace nested_trainer_ {

struct model : tensors {
  using backend = lockstep::host;
  using batch = pairs;
  void train(lockstep::train_context<backend>&, batch const&) {}
  using trained = lockstep::trainer<line, lockstep::sgd, lockstep::peer_all_reduce<>>;
};
static_assert(trains<model>);

}  // namespace nested_trainer_

namespace model_backend_ {

struct model : tensors {
  using backend = lockstep::host;
  using batch = pairs;
  void train(lockstep::train_context<backend>&, batch const&) {}
};
static_assert(trains<model>);

}  // namespace model_backend_

namespace model_batch_ {

struct model : tensors {
  using backend = lockstep::host;
  using batch = std::tuple<std::span<float const>, std::span<int const>>;  // inputs, labels
  void train(lockstep::train_context<backend>&, batch const&) {}
};
static_assert(trains<model>);

}  // namespace model_batch_

namespace model_parameters_ {

struct model {
  using backend = lockstep::host;
  using batch = pairs;
  void train(lockstep::train_context<backend>&, batch const&) {}
  std::vector<float> weights = std::vector<float>(30);
  std::vector<float> gradients = std::vector<float>(30);
  std::vector<lockstep::parameter> parameters() { return {{"weights", weights.data(), gradients.data(), {10, 3}}}; }
};
static_assert(trains<model>);

}  // namespace model_parameters_

namespace model_parameters_range_ {

struct model {
  using backend = lockstep::host;
  using batch = pairs;
  void train(lockstep::train_context<backend>&, batch const&) {}
  std::vector<lockstep::parameter> listed;
  std::span<lockstep::parameter const> parameters() const { return listed; }
};
static_assert(trains<model>);

}  // namespace model_parameters_range_

namespace model_train_ {

struct model : work {
  using backend = lockstep::host;
  using batch = pairs;
  void train(lockstep::train_context<backend>& ctx, batch const& shard) { forward_and_backward(ctx, shard); }
};
static_assert(trains<model>);

}  // namespace model_train_

namespace model_train_call_ {

struct model : tensors {
  using backend = lockstep::host;
  using batch = pairs;
  void train(lockstep::train_context<backend>& ctx, batch const& shard) {
    ctx.gradient_ready(0);
    static_cast<void>(shard);
  }
};
static_assert(trains<model>);

}  // namespace model_train_call_

namespace model_train_void_ {

struct model : tensors {
  using backend = lockstep::host;
  using batch = pairs;
  void train(lockstep::train_context<backend>& ctx, batch const& shard) {
    auto const loss = static_cast<float>(std::get<0>(shard).size());
    *ctx.loss() += ctx.sample_weight() * loss;  // not: return loss;
  }
};
static_assert(trains<model>);

}  // namespace model_train_void_

namespace model_promises_ {

struct model : tensors {
  using backend = lockstep::host;
  using batch = pairs;
  void train(lockstep::train_context<backend>&, batch const&) {}
  static constexpr lockstep::model_promises promises{.honours_accumulate = true};
};
static_assert(trains<model>);

}  // namespace model_promises_

namespace model_output_ {

struct model : tensors {
  using backend = lockstep::host;
  using batch = pairs;
  void train(lockstep::train_context<backend>&, batch const&) {}
  using output = std::span<float>;
  void infer(lockstep::infer_context<backend>&, batch const&, output const&) {}
};
static_assert(trains<model>);
static_assert(lockstep::infers<model>);

}  // namespace model_output_

namespace model_infer_ {

struct model : tensors {
  using backend = lockstep::host;
  using batch = pairs;
  using output = std::span<float>;
  void train(lockstep::train_context<backend>&, batch const&) {}
  void infer(lockstep::infer_context<backend>&, batch const& shard, output const& out) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = value[0] * std::get<0>(shard)[i] + value[1];
    }
  }
};
static_assert(trains<model>);
static_assert(lockstep::infers<model>);

}  // namespace model_infer_

namespace model_predict_ {

struct model : tensors {
  using backend = lockstep::host;
  using batch = pairs;
  void train(lockstep::train_context<backend>&, batch const&) {}
  using output = std::span<int>;
  void infer(lockstep::infer_context<backend>& ctx, batch const& shard, output const& classes);
};
static_assert(trains<model>);
static_assert(lockstep::infers<model>);

}  // namespace model_predict_

namespace optimizer_ {

struct descend {
  float learning_rate = 0.1F;
  LOCKSTEP_HOST_DEVICE float operator()(float value, float gradient) const { return value - learning_rate * gradient; }
};
static_assert(lockstep::elementwise_optimizer<descend>);

}  // namespace optimizer_

namespace optimizer_copyable_ {

struct descend {  // not: [rate](float value, float gradient) { return value - rate * gradient; }
  float rate;
  LOCKSTEP_HOST_DEVICE float operator()(float value, float gradient) const { return value - rate * gradient; }
};
static_assert(lockstep::elementwise_optimizer<descend>);

}  // namespace optimizer_copyable_

namespace optimizer_trivial_ {

struct descend {
  float rates[2] = {0.1F, 0.01F};  // not std::vector<float>
  LOCKSTEP_HOST_DEVICE float operator()(float value, float gradient) const { return value - rates[0] * gradient; }
};
static_assert(lockstep::elementwise_optimizer<descend>);

}  // namespace optimizer_trivial_

namespace optimizer_slots_ {

struct descend {
  float rate = 0.1F;
  static constexpr std::array<std::string_view, 1> slots{"momentum"};
  LOCKSTEP_HOST_DEVICE float operator()(float value, float gradient, float& momentum) const {
    momentum += gradient;
    return value - rate * momentum;
  }
};
static_assert(lockstep::elementwise_optimizer<descend>);

}  // namespace optimizer_slots_

namespace optimizer_prepare_ {

struct factors {
  float rate;
};
struct descend {
  LOCKSTEP_HOST_DEVICE factors prepare(lockstep::update_info const& info) const { return {info.learning_rate}; }
  LOCKSTEP_HOST_DEVICE float operator()(float value, float gradient, factors const& p) const {
    return value - p.rate * gradient;
  }
};
static_assert(lockstep::elementwise_optimizer<descend>);

}  // namespace optimizer_prepare_

namespace optimizer_slot_count_ {

struct descend {
  float rate = 0.1F;
  static constexpr std::array<std::string_view, 2> slots{"first", "second"};
  LOCKSTEP_HOST_DEVICE float operator()(float value, float gradient, float& first, float& second) const {
    first += gradient;
    second += gradient * gradient;
    return value - rate * first;
  }
};
static_assert(lockstep::elementwise_optimizer<descend>);

}  // namespace optimizer_slot_count_

namespace optimizer_prepared_ {

struct descend {
  float rate = 0.1F;
  LOCKSTEP_HOST_DEVICE float prepare(lockstep::update_info const& info) const { return rate / float(info.step); }
  LOCKSTEP_HOST_DEVICE float operator()(float value, float gradient, float now) const { return value - now * gradient; }
};
static_assert(lockstep::elementwise_optimizer<descend>);

}  // namespace optimizer_prepared_

namespace optimizer_const_ {

struct descend {
  float rate = 0.1F;
  LOCKSTEP_HOST_DEVICE float operator()(float value, float gradient) const { return value - rate * gradient; }
};
static_assert(lockstep::elementwise_optimizer<descend>);

}  // namespace optimizer_const_

namespace optimizer_call_ {

struct descend {
  float rate = 0.1F;
  LOCKSTEP_HOST_DEVICE float operator()(float value, float gradient) const { return value - rate * gradient; }  // not void
};
static_assert(lockstep::elementwise_optimizer<descend>);

}  // namespace optimizer_call_

namespace optimizer_step_ {

struct whole {
  void step(lockstep::update_context<lockstep::host>& ctx, std::span<lockstep::parameter const> parameters);
};
static_assert(lockstep::whole_optimizer<whole, lockstep::host>);

}  // namespace optimizer_step_

namespace schedule_ {

struct inverse_root {
  LOCKSTEP_HOST_DEVICE float operator()(std::uint64_t step) const { return 1 / std::sqrt(static_cast<float>(step)); }
};
static_assert(lockstep::elementwise_optimizer<lockstep::scheduled<lockstep::sgd, inverse_root>>);

}  // namespace schedule_

namespace optimizer_scheduled_ {

struct descend {
  float learning_rate = 0.1F;
  LOCKSTEP_HOST_DEVICE float prepare(lockstep::update_info const& info) const { return info.learning_rate; }
  LOCKSTEP_HOST_DEVICE float operator()(float value, float gradient, float rate) const { return value - rate * gradient; }
};
static_assert(lockstep::elementwise_optimizer<lockstep::scheduled<descend, lockstep::cosine>>);

}  // namespace optimizer_scheduled_

namespace optimizer_clipped_ {

using clipped = lockstep::clipped_by_value<lockstep::adamw>;
static_assert(lockstep::elementwise_optimizer<clipped>);

}  // namespace optimizer_clipped_

struct wire {};

}  // namespace snippets

using snippets::wire;

template <class Backend>
struct lockstep::communicator_for<wire, Backend> {
  using type = lockstep::local_communicator<Backend>;
  static std::vector<type> create(std::span<lockstep::device_id const> devices, typename Backend::options const& options) {
    return type::create(devices, options);
  }
};

namespace snippets {

static_assert(lockstep::composes<line, lockstep::sgd, lockstep::peer_all_reduce<wire>>);

namespace policy_ {

using chosen = lockstep::peer_all_reduce<lockstep::shared_memory>;  // not lockstep::shared_memory
static_assert(lockstep::policy<chosen, lockstep::host>);

}  // namespace policy_

namespace nested_policy_ {

using chosen = lockstep::peer_all_reduce<lockstep::automatic>;  // not peer_all_reduce<replicate_and_gather<>>
static_assert(lockstep::policy<chosen, lockstep::host>);

}  // namespace nested_policy_

namespace policy_tuning_ {

struct chosen : lockstep::peer_all_reduce<> {
  static constexpr lockstep::tuning tuning_values{};
};
static_assert(lockstep::policy<chosen, lockstep::host>);

}  // namespace policy_tuning_

namespace tuning_ {

constexpr lockstep::tuning small_buckets{.bucket_bytes = 4096, .stage_below_bytes = 1024};
using chosen = lockstep::peer_all_reduce<lockstep::automatic, small_buckets>;
static_assert(lockstep::policy<chosen, lockstep::host>);

}  // namespace tuning_

namespace transport_ {

using chosen = lockstep::peer_all_reduce<lockstep::automatic>;
static_assert(lockstep::policy<chosen, lockstep::host>);

}  // namespace transport_

namespace policy_reduce_ {

struct chosen : lockstep::peer_all_reduce<> {
  template <class Communicator, class Stream>
  static void reduce(Communicator& communicator, lockstep::typed_span gradients, Stream stream) {
    communicator.all_reduce(gradients, lockstep::reduction::sum, stream);
  }
};
static_assert(lockstep::policy<chosen, lockstep::host>);

}  // namespace policy_reduce_

namespace policy_owned_ {

struct chosen : lockstep::peer_all_reduce<> {
  static lockstep::plan::range owned(std::size_t count, lockstep::rank_id, int) { return {0, count}; }
};
static_assert(lockstep::policy<chosen, lockstep::host>);

}  // namespace policy_owned_

namespace policy_publish_ {

struct chosen : lockstep::peer_all_reduce<> {
  template <class Communicator, class Stream>
  static void publish(Communicator& communicator, lockstep::typed_span values, Stream stream) {
    communicator.broadcast(values, lockstep::rank_id{0}, stream);
  }
};
static_assert(lockstep::policy<chosen, lockstep::host>);

}  // namespace policy_publish_

}  // namespace snippets

TEST_CASE("concepts: the smallest model of the page finds its line") {
  std::vector<float> x;
  std::vector<float> y;
  for (int i = 0; i < 101; ++i) {
    x.push_back(0.01F * static_cast<float>(i));
    y.push_back(3 * x.back() - 1);
  }
  lockstep::trainer<snippets::line, lockstep::sgd, lockstep::peer_all_reduce<>> trainer{
      lockstep::devices::first(4), [](auto&) { return snippets::line{}; },
      lockstep::sgd{.learning_rate = 0.5F, .momentum = 0.9F}};
  for (int k = 0; k < 200; ++k) {
    trainer.step({x, y});
  }
  CHECK(trainer.model().value[0] == doctest::Approx(3).epsilon(1e-3));
  CHECK(trainer.model().value[1] == doctest::Approx(-1).epsilon(1e-3));
}
