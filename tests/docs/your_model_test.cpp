// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// What docs/your_model.md quotes: a training loop as one has it, the same as a model, and whether every stage on the way gives
// the loop's numbers. The mistakes of that page are made here too, and must show as the page says.

#include "../support/policies.hpp"

#include <lockstep/lockstep.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

// ---- the plain loop -----------------------------------------------------------------------------------------------------

// y = w2 . tanh(W1 x + b1) + b2
constexpr std::size_t inputs = 2;
constexpr std::size_t hidden = 128;

void start(std::span<float> w1, std::span<float> w2) {
  for (std::size_t i = 0; i < w1.size(); ++i) {
    w1[i] = std::sin(static_cast<float>(i + 1));
  }
  for (std::size_t j = 0; j < w2.size(); ++j) {
    w2[j] = 0.1F * std::cos(static_cast<float>(j));
  }
}

void descend(std::vector<float>& value, std::vector<float> const& gradient, float rate) {
  for (std::size_t e = 0; e < value.size(); ++e) {
    value[e] -= rate * gradient[e];
  }
}

struct trained {
  std::vector<float> losses;  // one a step, before its update
  std::vector<float> w1, b1, w2, b2;
};

trained plain_loop(std::vector<float> const& x, std::vector<float> const& y, int steps, float rate) {
  std::size_t const n = y.size();
  std::vector<float> w1(hidden * inputs), b1(hidden), w2(hidden), b2(1), losses;
  std::vector<float> dw1(hidden * inputs), db1(hidden), dw2(hidden), db2(1), h(hidden);
  start(w1, w2);
  for (int step = 0; step < steps; ++step) {
    float loss = 0;
    for (auto* gradient : {&dw1, &db1, &dw2, &db2}) {
      std::fill(gradient->begin(), gradient->end(), 0.0F);
    }
    for (std::size_t i = 0; i < n; ++i) {
      float const* const xi = x.data() + i * inputs;
      float yi = b2[0];  // forward
      for (std::size_t j = 0; j < hidden; ++j) {
        h[j] = std::tanh(w1[2 * j] * xi[0] + w1[2 * j + 1] * xi[1] + b1[j]);
        yi += w2[j] * h[j];
      }
      float const error = yi - y[i];
      loss += error * error / 2 / static_cast<float>(n);  // mean squared error
      float const delta = error / static_cast<float>(n);  // backward
      db2[0] += delta;
      for (std::size_t j = 0; j < hidden; ++j) {
        dw2[j] += delta * h[j];
        float const below = delta * w2[j] * (1 - h[j] * h[j]);
        db1[j] += below;
        dw1[2 * j] += below * xi[0];
        dw1[2 * j + 1] += below * xi[1];
      }
    }
    losses.push_back(loss);
    descend(w1, dw1, rate);  // SGD
    descend(b1, db1, rate);
    descend(w2, dw2, rate);
    descend(b2, db2, rate);
  }
  return {losses, w1, b1, w2, b2};
}

// ---- the same as a model ------------------------------------------------------------------------------------------------

struct perceptron {
  using backend = lockstep::host;
  using batch = std::tuple<lockstep::sample_view<float const>, std::span<float const>>;  // x, y

  std::vector<float> w1, b1, w2, b2, dw1, db1, dw2, db2, h;

  perceptron()
      : w1(hidden * inputs), b1(hidden), w2(hidden), b2(1), dw1(hidden * inputs), db1(hidden), dw2(hidden), db2(1), h(hidden) {
    start(w1, w2);
  }

  std::vector<lockstep::parameter> parameters() {
    return {{"hidden.weight", w1.data(), dw1.data(), {hidden, inputs}},
            {"hidden.bias", b1.data(), db1.data(), {hidden}},
            {"out.weight", w2.data(), dw2.data(), {1, hidden}},
            {"out.bias", b2.data(), db2.data(), {1}}};
  }

  void train(lockstep::train_context<backend>& ctx, batch const& shard) {
    auto const& [x, y] = shard;
    float const weight = ctx.sample_weight();
    for (std::size_t i = 0; i < y.size(); ++i) {
      std::span<float const> const xi = x[i];
      float yi = b2[0];  // forward
      for (std::size_t j = 0; j < hidden; ++j) {
        h[j] = std::tanh(w1[2 * j] * xi[0] + w1[2 * j + 1] * xi[1] + b1[j]);
        yi += w2[j] * h[j];
      }
      float const error = yi - y[i];
      *ctx.loss() += weight * error * error / 2;  // weight in place of 1 / n ...
      float const delta = weight * error;         // ... and here
      db2[0] += delta;
      for (std::size_t j = 0; j < hidden; ++j) {
        dw2[j] += delta * h[j];
        float const below = delta * w2[j] * (1 - h[j] * h[j]);
        db1[j] += below;
        dw1[2 * j] += below * xi[0];
        dw1[2 * j + 1] += below * xi[1];
      }
    }
  }
};

struct data {
  std::vector<float> x, y;

  explicit data(std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) {
      auto const t = static_cast<float>(i) / static_cast<float>(n);
      x.insert(x.end(), {std::sin(7 * t), 2 * t - 1});
      y.push_back(x[2 * i] * x[2 * i + 1]);
    }
  }
  [[nodiscard]] perceptron::batch view() const {
    return {lockstep::sample_view<float const>{x.data(), y.size(), inputs}, std::span<float const>{y}};
  }
};

constexpr int steps = 12;
constexpr float rate = 0.02F;

bool close(float a, float b) { return std::abs(a - b) <= 1e-5F + 1e-4F * std::abs(b); }

bool close(std::span<float const> a, std::span<float const> b) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [](float left, float right) { return close(left, right); });
}

/// The values of a model that lists what the plain loop has.
std::vector<float> values_of(auto& model) {
  std::vector<float> all;
  for (lockstep::parameter const& p : model.parameters()) {
    if (p.trainable()) {
      auto const* const values = static_cast<float const*>(p.value);
      all.insert(all.end(), values, values + p.count());
    }
  }
  return all;
}

std::vector<float> values_of(trained const& plain) {
  std::vector<float> all = plain.w1;
  for (auto const* more : {&plain.b1, &plain.w2, &plain.b2}) {
    all.insert(all.end(), more->begin(), more->end());
  }
  return all;
}

/// Trains as the plain loop does, and says whether the numbers are the same.
template <class Model, class Policy, class Optimizer, class Factory>
bool as_plain(int devices, Factory const& factory, Optimizer const& optimizer, lockstep::step_options options = {},
              lockstep::host::options const& checked = {}) {
  data const samples{50};
  trained const plain = plain_loop(samples.x, samples.y, steps, rate);
  lockstep::trainer<Model, Optimizer, Policy> trainer{lockstep::devices::first(devices), factory, optimizer, checked};
  bool same = true;
  for (int step = 0; step < steps; ++step) {
    auto const loss = static_cast<float>(trainer.step(samples.view(), options).loss());
    same = same && close(loss, plain.losses[static_cast<std::size_t>(step)]);
  }
  for (int r = 0; r < devices; ++r) {
    same = same && close(values_of(trainer.model(lockstep::rank_id{r})), values_of(plain));
  }
  return same;
}

template <class Model>
Model make(lockstep::device_context<lockstep::host>& device) {
  if constexpr (std::is_constructible_v<Model, lockstep::device_context<lockstep::host>&>) {
    return Model{device};
  } else {
    static_cast<void>(device);
    return Model{};
  }
}

/// The same under every policy, with several numbers of devices and micro-batches.
template <class Model, class Optimizer = lockstep::sgd>
void check_everywhere(Optimizer const& optimizer = {.learning_rate = rate}) {
  auto const factory = make<Model>;
  CHECK(as_plain<Model, lockstep::single_device>(1, factory, optimizer));
  CHECK(as_plain<Model, lockstep::single_device>(1, factory, optimizer, {.micro_batches = 7}));
  support::for_each_parallel_policy([&]<class Policy>(std::type_identity<Policy>, std::string const& name) {
    CAPTURE(name);
    for (int devices = 2; devices <= 4; ++devices) {
      CAPTURE(devices);
      CHECK(as_plain<Model, Policy>(devices, factory, optimizer));
      CHECK(as_plain<Model, Policy>(devices, factory, optimizer, {.micro_batches = 3}));
    }
    CHECK(as_plain<Model, Policy>(3, factory, optimizer, {}, {.checking = lockstep::checking::marks}));
  });
  auto const report = lockstep::gradient_check<Model, lockstep::peer_all_reduce<>>(
      lockstep::devices::first(3), factory, data{9}.view(), {.elements_per_parameter = 4, .micro_batches = 2});
  CHECK_MESSAGE(report.within(), to_string(report));
}

// ---- stages further on --------------------------------------------------------------------------------------------------

/// Layer after layer instead of sample after sample, so that a layer is complete before backward ends.
struct layered : perceptron {
  std::vector<float> delta;

  void train(lockstep::train_context<backend>& ctx, batch const& shard) {
    auto const& [x, y] = shard;
    h.resize(y.size() * hidden);
    delta.resize(y.size());
    for (std::size_t i = 0; i < y.size(); ++i) {
      float yi = b2[0];
      for (std::size_t j = 0; j < hidden; ++j) {
        h[i * hidden + j] = std::tanh(w1[2 * j] * x[i][0] + w1[2 * j + 1] * x[i][1] + b1[j]);
        yi += w2[j] * h[i * hidden + j];
      }
      float const error = yi - y[i];
      *ctx.loss() += ctx.sample_weight() * error * error / 2;
      delta[i] = ctx.sample_weight() * error;
    }
    for (std::size_t i = 0; i < y.size(); ++i) {
      db2[0] += delta[i];
      for (std::size_t j = 0; j < hidden; ++j) {
        float& hij = h[i * hidden + j];
        dw2[j] += delta[i] * hij;
        hij = delta[i] * w2[j] * (1 - hij * hij);  // from here on what the layer below is given
      }
    }
    ctx.gradient_ready(2, 2);  // out.weight, out.bias: written, and w2 was read for the last time
    for (std::size_t i = 0; i < y.size(); ++i) {
      for (std::size_t j = 0; j < hidden; ++j) {
        float const below = h[i * hidden + j];
        db1[j] += below;
        dw1[2 * j] += below * x[i][0];
        dw1[2 * j + 1] += below * x[i][1];
      }
    }
    ctx.gradient_ready(0, 2);  // hidden.weight, hidden.bias
  }
};

/// Memory from an arena; overwrites gradients where it may.
class in_arena {
 public:
  using backend = lockstep::host;
  using batch = perceptron::batch;
  static constexpr lockstep::model_promises promises{.honours_accumulate = true};

  explicit in_arena(lockstep::device_context<backend> const& device)
      : arena_(device, {{"hidden.weight", {hidden, inputs}, {.group = 0}},
                        {"hidden.bias", {hidden}, {.group = 1}},
                        {"out.weight", {1, hidden}, {.group = 0}},
                        {"out.bias", {1}, {.group = 1}}}) {
    start({arena_.value(0), hidden * inputs}, {arena_.value(2), hidden});
  }

  std::span<lockstep::parameter const> parameters() const { return arena_.parameters(); }

  void train(lockstep::train_context<backend>& ctx, batch const& shard) {
    if (!ctx.accumulate()) {  // gradients hold the last step's
      for (lockstep::parameter const& p : arena_.parameters()) {
        std::fill_n(static_cast<float*>(p.gradient), p.count(), 0.0F);
      }
    }
    add_gradients(ctx, shard);
  }

 private:
  void add_gradients(lockstep::train_context<backend>& ctx, batch const& shard) {
    auto const& [x, y] = shard;
    float const *const w1 = arena_.value(0), *const b1 = arena_.value(1), *const w2 = arena_.value(2),
                       *const b2 = arena_.value(3);
    float *const dw1 = arena_.gradient(0), *const db1 = arena_.gradient(1), *const dw2 = arena_.gradient(2),
                 *const db2 = arena_.gradient(3);
    std::array<float, hidden> h{};
    for (std::size_t i = 0; i < y.size(); ++i) {
      float error = *b2 - y[i];
      for (std::size_t j = 0; j < hidden; ++j) {
        h[j] = std::tanh(w1[2 * j] * x[i][0] + w1[2 * j + 1] * x[i][1] + b1[j]);
        error += w2[j] * h[j];
      }
      *ctx.loss() += ctx.sample_weight() * error * error / 2;
      float const delta = ctx.sample_weight() * error;
      *db2 += delta;
      for (std::size_t j = 0; j < hidden; ++j) {
        dw2[j] += delta * h[j];
        float const below = delta * w2[j] * (1 - h[j] * h[j]);
        db1[j] += below;
        dw1[2 * j] += below * x[i][0];
        dw1[2 * j + 1] += below * x[i][1];
      }
    }
  }

  lockstep::arena<backend> arena_;
};

/// A routine as one may have it: writes the mean gradient over its samples, and returns the mean loss.
float mean_gradient(perceptron& of, perceptron::batch const& samples, std::array<std::vector<float>, 4>& gradient) {
  auto const& [x, y] = samples;
  auto& [dw1, db1, dw2, db2] = gradient;
  dw1.assign(hidden * inputs, 0);
  db1.assign(hidden, 0);
  dw2.assign(hidden, 0);
  db2.assign(1, 0);
  auto const n = static_cast<float>(y.size());
  float loss = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    float error = of.b2[0] - y[i];
    for (std::size_t j = 0; j < hidden; ++j) {
      of.h[j] = std::tanh(of.w1[2 * j] * x[i][0] + of.w1[2 * j + 1] * x[i][1] + of.b1[j]);
      error += of.w2[j] * of.h[j];
    }
    loss += error * error / 2 / n;
    db2[0] += error / n;
    for (std::size_t j = 0; j < hidden; ++j) {
      dw2[j] += error * of.h[j] / n;
      float const below = error * of.w2[j] * (1 - of.h[j] * of.h[j]) / n;
      db1[j] += below;
      dw1[2 * j] += below * x[i][0];
      dw1[2 * j + 1] += below * x[i][1];
    }
  }
  return loss;
}

struct of_means : perceptron {
  std::array<std::vector<float>, 4> mean;  // what the routine writes

  void train(lockstep::train_context<backend>& ctx, batch const& shard) {
    float const loss = mean_gradient(*this, shard, mean);  // means over this shard
    *ctx.loss() += ctx.shard_weight() * loss;
    std::size_t p = 0;
    for (auto* gradient : {&dw1, &db1, &dw2, &db2}) {
      for (std::size_t e = 0; e < gradient->size(); ++e) {
        (*gradient)[e] += ctx.shard_weight() * mean[p][e];
      }
      ++p;
    }
  }
};

struct predicting : perceptron {
  using output = std::span<float>;  // one value a sample

  void infer(lockstep::infer_context<backend>&, batch const& shard, output const& y) {
    auto const& x = std::get<0>(shard);
    for (std::size_t i = 0; i < y.size(); ++i) {
      y[i] = b2[0];
      for (std::size_t j = 0; j < hidden; ++j) {
        y[i] += w2[j] * std::tanh(w1[2 * j] * x[i][0] + w1[2 * j + 1] * x[i][1] + b1[j]);
      }
    }
  }
};

/// A batch type of one's own, with its two functions beside it.
struct rows {
  std::span<float const> x;  // two a sample
  std::span<float const> y;
};
std::size_t sample_count(rows const& all) { return all.y.size(); }
rows slice(rows const& all, std::size_t first, std::size_t count) {
  return {all.x.subspan(first * inputs, count * inputs), all.y.subspan(first, count)};
}

struct of_rows : perceptron {
  using batch = rows;
  void train(lockstep::train_context<backend>& ctx, batch const& shard) {
    perceptron::train(ctx, {{shard.x.data(), shard.y.size(), inputs}, shard.y});
  }
};

// ---- optimizers ---------------------------------------------------------------------------------------------------------

struct fading_sgd {
  float learning_rate = 0.1F;
  float fade = 0;  // the rate is learning_rate / (1 + fade * updates before)
  float momentum = 0;

  static constexpr std::array<std::string_view, 1> slots{"velocity"};

  // Once a step: what is the same for all elements.
  LOCKSTEP_HOST_DEVICE float prepare(lockstep::update_info const& info) const {
    return info.learning_rate / (1 + fade * static_cast<float>(info.step - 1));
  }
  // Once for each element: the new value.
  LOCKSTEP_HOST_DEVICE float operator()(float value, float gradient, float& velocity, float now) const {
    velocity = momentum * velocity + gradient;
    return value - now * velocity;
  }
};

struct clipped_sgd {
  float learning_rate = 0.1F;
  float longest = 1;  // gradients longer than this, all together, are shortened

  void step(lockstep::update_context<lockstep::host>& ctx, std::span<lockstep::parameter const> parameters) {
    double square = 0;
    for (lockstep::parameter const& p : parameters) {
      for (float const g : std::span{static_cast<float const*>(p.gradient), p.count()}) {
        square += static_cast<double>(g) * static_cast<double>(g);
      }
    }
    float const length = ctx.gradient_factor() * static_cast<float>(std::sqrt(square));
    float const scale = length > longest ? longest / length : 1;
    for (lockstep::parameter const& p : parameters) {
      for (std::size_t e = 0; e < p.count(); ++e) {
        static_cast<float*>(p.value)[e] -=
            learning_rate * scale * ctx.gradient_factor() * static_cast<float const*>(p.gradient)[e];
      }
    }
  }
};

// ---- parameters of other kinds --------------------------------------------------------------------------------------------

/// y = a x + b_k, where the batch says which head k is used; and it counts the samples that it has seen.
struct heads {
  using backend = lockstep::host;
  using batch = std::tuple<std::span<float const>, std::span<float const>, lockstep::replicated<std::size_t>>;
  static constexpr lockstep::model_promises promises{.reports_unused = true};

  float a = 0, b[2] = {0, 0}, da = 0, db[2] = {0, 0};
  float seen = 0;

  std::vector<lockstep::parameter> parameters() {
    return {{"a", &a, &da, {1}},
            {"head0", &b[0], &db[0], {1}},
            {"head1", &b[1], &db[1], {1}},
            lockstep::buffer("seen", &seen, {1})};
  }

  void train(lockstep::train_context<backend>& ctx, batch const& shard) {
    auto const& [x, y, head] = shard;
    std::size_t const k = head.value;
    for (std::size_t i = 0; i < x.size(); ++i) {
      float const error = a * x[i] + b[k] - y[i];
      *ctx.loss() += ctx.sample_weight() * error * error / 2;
      da += ctx.sample_weight() * error * x[i];
      db[k] += ctx.sample_weight() * error;
    }
    seen += static_cast<float>(x.size());
    ctx.unused(1 + (1 - k));  // the other head took no part
  }
};

/// y = w w x: two layers that share a weight.
struct tied {
  using backend = lockstep::host;
  using batch = std::tuple<std::span<float const>, std::span<float const>>;

  float w = 0.5F, dw = 0;

  std::vector<lockstep::parameter> parameters() {
    return {{"below", &w, &dw, {1}}, {"above", &w, &dw, {1}}};  // the same memory twice
  }

  void train(lockstep::train_context<backend>& ctx, batch const& shard) {
    auto const& [x, y] = shard;
    for (std::size_t i = 0; i < x.size(); ++i) {
      float const error = w * w * x[i] - y[i];
      *ctx.loss() += ctx.sample_weight() * error * error / 2;
      dw += ctx.sample_weight() * error * w * x[i];  // as the layer above
      dw += ctx.sample_weight() * error * w * x[i];  // as the layer below
    }
    ctx.gradient_ready(0, 2);
  }
};

// ---- mistakes -------------------------------------------------------------------------------------------------------------

/// Does something before and after the right `train`.
template <bool HonoursAccumulate = false>
struct spoilt : perceptron {
  static constexpr lockstep::model_promises promises{.honours_accumulate = HonoursAccumulate};
  using call = std::function<void(spoilt&, lockstep::train_context<backend>&, batch const&)>;
  call how;
  std::vector<std::vector<float>> spare;

  explicit spoilt(call mistake) : how(std::move(mistake)) {}
  void right(lockstep::train_context<backend>& ctx, batch const& shard) { perceptron::train(ctx, shard); }
  void train(lockstep::train_context<backend>& ctx, batch const& shard) { how(*this, ctx, shard); }
  void clear() {
    for (auto* gradient : {&dw1, &db1, &dw2, &db2}) {
      std::fill(gradient->begin(), gradient->end(), 0.0F);
    }
  }
};

using pair_policy = lockstep::peer_all_reduce<lockstep::automatic, support::small_buckets>;

template <bool HonoursAccumulate>
auto make_spoilt(typename spoilt<HonoursAccumulate>::call const& how) {
  return [how](auto&) { return spoilt<HonoursAccumulate>{how}; };
}

template <bool HonoursAccumulate = false>
lockstep::gradient_report check_spoilt(int devices, typename spoilt<HonoursAccumulate>::call const& how,
                                       std::size_t micro_batches = 1) {
  return lockstep::gradient_check<spoilt<HonoursAccumulate>, pair_policy>(
      lockstep::devices::first(devices), make_spoilt<HonoursAccumulate>(how), data{10}.view(),
      {.elements_per_parameter = 4, .micro_batches = micro_batches});
}

std::string complaint_of(perceptron::batch const& batch, typename spoilt<>::call const& how,
                         lockstep::host::options const& options = {}) {
  lockstep::trainer<spoilt<>, lockstep::sgd, pair_policy> trainer{lockstep::devices::first(2), make_spoilt<false>(how),
                                                                  lockstep::sgd{.learning_rate = rate}, options};
  try {
    trainer.step(batch);
    trainer.step(batch);
  } catch (lockstep::error const& e) {
    return e.what();
  }
  return {};
}

using context = lockstep::train_context<lockstep::host>;

}  // namespace

TEST_CASE("your_model: the plain loop learns") {
  data const samples{50};
  trained const plain = plain_loop(samples.x, samples.y, 200, rate);
  CHECK(plain.losses.back() < plain.losses.front() / 2);
}

TEST_CASE("your_model: the first model gives the plain loop's numbers on one device") {
  data const samples{50};
  std::vector<float> const &x = samples.x, &y = samples.y;
  trained const plain = plain_loop(x, y, steps, rate);

  perceptron::batch const batch{{x.data(), y.size(), inputs}, y};
  lockstep::trainer<perceptron, lockstep::sgd, lockstep::single_device> trainer{
      lockstep::devices::first(1), [](auto&) { return perceptron{}; }, lockstep::sgd{.learning_rate = rate}};
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    losses.push_back(trainer.step(batch).loss());
  }
  REQUIRE(losses.size() == plain.losses.size());
  for (std::size_t step = 0; step < losses.size(); ++step) {
    CHECK(losses[step] == doctest::Approx(plain.losses[step]).epsilon(1e-4));
  }
  CHECK(close(trainer.model().w1, plain.w1));
}

TEST_CASE("your_model: every stage gives the plain loop's numbers, on any number of devices") {
  check_everywhere<perceptron>();
}
TEST_CASE("your_model: the stage that marks layers gives the plain loop's numbers") { check_everywhere<layered>(); }
TEST_CASE("your_model: the stage with an arena gives the plain loop's numbers") { check_everywhere<in_arena>(); }
TEST_CASE("your_model: the stage that takes means gives the plain loop's numbers") { check_everywhere<of_means>(); }
TEST_CASE("your_model: optimizers of one's own give the plain loop's numbers") {
  check_everywhere<layered>(fading_sgd{.learning_rate = rate});
  check_everywhere<layered>(clipped_sgd{.learning_rate = rate, .longest = 1e6F});
}

TEST_CASE("your_model: a gradient check, as the page writes it") {
  data const samples{50};
  std::vector<float> const &x = samples.x, &y = samples.y;
  perceptron::batch const batch{{x.data(), y.size(), inputs}, y};
  auto const report = lockstep::gradient_check<perceptron, lockstep::peer_all_reduce<>>(
      lockstep::devices::first(3), [](auto&) { return perceptron{}; }, batch, {.micro_batches = 2});
  if (!report.within()) {
    std::puts(to_string(report).c_str());
  }
  CHECK(report.within());
  CHECK(report.checked == 16 + 16 + 16 + 1);
}

TEST_CASE("your_model: one line makes it several devices, and says what came out") {
  data const samples{50};
  trained const plain = plain_loop(samples.x, samples.y, steps, rate);
  auto const batch = samples.view();
  std::ostringstream log;
  lockstep::trainer<layered, lockstep::sgd, lockstep::peer_all_reduce<>> trainer{
      lockstep::devices::first(4), [](auto&) { return layered{}; }, lockstep::sgd{.learning_rate = rate}};
  std::vector<lockstep::step_result> results;
  {
    lockstep::progress progress{steps, {.out = log}};
    for (int step = 0; step < steps; ++step) {
      results.push_back(trainer.step(batch, {.micro_batches = 2}));
      progress.update(results.back());
    }
  }
  for (std::size_t step = 0; step < results.size(); ++step) {
    CHECK(close(static_cast<float>(results[step].loss()), plain.losses[step]));
    CHECK(results[step].samples() == 50);
    CHECK(results[step].step() == step + 1);
    CHECK_FALSE(results[step].skipped());
  }
  CHECK(log.str().find("step 12/12  100%  loss ") != std::string::npos);
}

TEST_CASE("your_model: marks are checked where the fourth argument asks for it") {
  data const samples{50};
  lockstep::trainer<layered, lockstep::sgd, lockstep::peer_all_reduce<>> trainer{
      lockstep::devices::first(2), [](auto&) { return layered{}; }, lockstep::sgd{.learning_rate = rate},
      lockstep::host::options{.checking = lockstep::checking::marks}};
  CHECK(trainer.step(samples.view()).step() == 1);
}

TEST_CASE("your_model: a group of parameters has an optimizer of its own") {
  auto const factory = [](auto& device) { return in_arena{device}; };
  lockstep::trainer<in_arena, lockstep::sgd, lockstep::peer_all_reduce<>> trainer{
      lockstep::devices::first(2),
      factory,
      {lockstep::sgd{.learning_rate = rate, .weight_decay = 0.1F},  // group 0: weights
       lockstep::sgd{.learning_rate = 0}}};                         // group 1: biases
  data const samples{50};
  std::vector<float> const before = values_of(trainer.model());
  trainer.step(samples.view());
  std::vector<float> const after = values_of(trainer.model());
  std::size_t const weights = hidden * inputs;
  CHECK_FALSE(std::equal(before.begin(), before.begin() + weights, after.begin()));
  CHECK(std::equal(before.begin() + weights, before.begin() + weights + hidden, after.begin() + weights));
}

TEST_CASE("your_model: the fading optimizer is sgd with a rate that the program changes") {
  data const samples{50};
  auto const batch = samples.view();
  auto const build = [](auto&) { return perceptron{}; };
  lockstep::trainer<perceptron, fading_sgd, lockstep::peer_all_reduce<>> own{
      lockstep::devices::first(3), build, fading_sgd{.learning_rate = rate, .fade = 0.5F, .momentum = 0.5F}};
  lockstep::trainer<perceptron, lockstep::sgd, lockstep::peer_all_reduce<>> trainer{lockstep::devices::first(3), build,
                                                                                    lockstep::sgd{.momentum = 0.5F}};
  for (int step = 0; step < steps; ++step) {
    trainer.optimizer().learning_rate = rate / (1 + 0.5F * static_cast<float>(step));
    CHECK(close(static_cast<float>(own.step(batch).loss()), static_cast<float>(trainer.step(batch).loss())));
  }
  CHECK(close(values_of(own.model()), values_of(trainer.model())));
}

TEST_CASE("your_model: the clipping optimizer goes no further than it may, alike on every rank") {
  data const samples{50};
  lockstep::trainer<perceptron, clipped_sgd, lockstep::peer_all_reduce<>> trainer{
      lockstep::devices::first(3), [](auto&) { return perceptron{}; }, clipped_sgd{.learning_rate = 1, .longest = 0.01F}};
  std::vector<float> const before = values_of(trainer.model());
  trainer.step(samples.view());
  std::vector<float> const after = values_of(trainer.model());
  double square = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    square += std::pow(static_cast<double>(after[i]) - static_cast<double>(before[i]), 2.0);
  }
  CHECK(std::sqrt(square) == doctest::Approx(0.01).epsilon(1e-3));
  CHECK(values_of(trainer.model(lockstep::rank_id{2})) == after);
}

TEST_CASE("your_model: predict gives what the loss was made of") {
  data const samples{50};
  auto const batch = samples.view();
  std::vector<float> const& y = samples.y;
  lockstep::trainer<predicting, lockstep::sgd, lockstep::peer_all_reduce<>> trainer{
      lockstep::devices::first(3), [](auto&) { return predicting{}; }, lockstep::sgd{.learning_rate = rate}};
  trainer.step(batch);
  std::vector<float> predicted(y.size());
  trainer.predict(batch, std::span<float>{predicted});
  double loss = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    loss += std::pow(static_cast<double>(predicted[i]) - static_cast<double>(y[i]), 2.0) / 2 / static_cast<double>(y.size());
  }
  CHECK(loss == doctest::Approx(trainer.step(batch).loss()).epsilon(1e-4));
}

TEST_CASE("your_model: a batch type of one's own does what a tuple of views does") {
  data const samples{50};
  trained const plain = plain_loop(samples.x, samples.y, steps, rate);
  lockstep::trainer<of_rows, lockstep::sgd, lockstep::peer_all_reduce<>> trainer{
      lockstep::devices::first(3), [](auto&) { return of_rows{}; }, lockstep::sgd{.learning_rate = rate}};
  for (int step = 0; step < steps; ++step) {
    trainer.step({samples.x, samples.y}, {.micro_batches = 2});
  }
  CHECK(close(values_of(trainer.model()), values_of(plain)));
}

TEST_CASE("your_model: an unused head stays as it is; a buffer is rank 0's") {
  std::vector<float> const x{1, 2, 3, 4, 5}, y{2, 3, 4, 5, 6};
  lockstep::trainer<heads, lockstep::sgd, lockstep::peer_all_reduce<>> trainer{
      lockstep::devices::first(2), [](auto&) { return heads{}; },
      lockstep::sgd{.learning_rate = 0.05F, .momentum = 0.5F, .weight_decay = 0.1F}};
  trainer.step({x, y, {1}});
  trainer.step({x, y, {0}});
  float const head1 = trainer.model().b[1];
  CHECK(head1 != 0);
  trainer.step({x, y, {0}});
  CHECK(trainer.model().b[1] == head1);  // neither momentum nor decay
  for (int r = 0; r < 2; ++r) {
    CHECK(trainer.model(lockstep::rank_id{r}).seen == 9);  // rank 0 had 3 of 5 samples, three times
  }
}

TEST_CASE("your_model: a tied weight is one parameter") {
  std::vector<float> const x{1, 2, 3}, y{2, 4, 6};
  auto const build = [](auto&) { return tied{}; };
  auto const report = lockstep::gradient_check<tied, lockstep::peer_all_reduce<>>(lockstep::devices::first(2), build, {x, y});
  CHECK_MESSAGE(report.within(), to_string(report));
  lockstep::trainer<tied, lockstep::sgd, lockstep::peer_all_reduce<>> trainer{
      lockstep::devices::first(2), build, lockstep::sgd{.learning_rate = 0.05F},
      lockstep::host::options{.checking = lockstep::checking::marks}};
  for (int step = 0; step < 100; ++step) {
    trainer.step({x, y});
  }
  CHECK(trainer.model().w == doctest::Approx(std::sqrt(2.0)).epsilon(1e-4));
}

TEST_CASE("your_model, mistakes: means of shards instead of weights are right on one device, N times too large on N") {
  auto const mistake = [](spoilt<>& self, context& ctx, perceptron::batch const& shard) {
    // As if the model divided by the samples of its own shard.
    std::size_t const n = std::get<1>(shard).size();
    context own{{.sample_weight = 1.0F / static_cast<float>(n), .loss = ctx.loss()}};
    self.right(own, shard);
  };
  data const samples{12};
  double const right = static_cast<double>(plain_loop(samples.x, samples.y, 1, rate).losses[0]);
  for (int devices = 1; devices <= 4; ++devices) {
    lockstep::trainer<spoilt<>, lockstep::sgd, pair_policy> trainer{
        lockstep::devices::first(devices), make_spoilt<false>(mistake), lockstep::sgd{.learning_rate = rate}};
    CHECK(trainer.step(samples.view()).loss() == doctest::Approx(devices * right).epsilon(1e-4));
    CHECK(check_spoilt(devices, mistake).within());  // loss and gradient are wrong alike
  }
}

TEST_CASE("your_model, mistakes: a forgotten loss is 0, and the gradient check sees it") {
  auto const mistake = [](spoilt<>& self, context& ctx, perceptron::batch const& shard) {
    float nowhere = 0;
    context own{{.sample_weight = ctx.sample_weight(), .loss = &nowhere}};
    self.right(own, shard);
  };
  lockstep::trainer<spoilt<>, lockstep::sgd, pair_policy> trainer{lockstep::devices::first(2), make_spoilt<false>(mistake),
                                                                  lockstep::sgd{}};
  CHECK(trainer.step(data{10}.view()).loss() == 0);
  auto const report = check_spoilt(1, mistake);
  CHECK_FALSE(report.within());
  CHECK(to_string(report).find("but its loss says 0") != std::string::npos);
}

TEST_CASE("your_model, mistakes: gradients that are set instead of added lose all micro-batches but the last") {
  auto const mistake = [](spoilt<>& self, context& ctx, perceptron::batch const& shard) {
    self.clear();
    self.right(ctx, shard);
  };
  CHECK(check_spoilt(2, mistake).within());
  CHECK_FALSE(check_spoilt(2, mistake, 2).within());
}

TEST_CASE("your_model, mistakes: a promise to overwrite that isn't kept piles gradients up") {
  auto const mistake = [](spoilt<true>& self, context& ctx, perceptron::batch const& shard) { self.right(ctx, shard); };
  CHECK_FALSE(check_spoilt<true>(1, mistake).within());
  CHECK_FALSE(check_spoilt<true>(2, mistake).within());
}

TEST_CASE("your_model, mistakes: memory that moves is named") {
  std::string const said = complaint_of(data{10}.view(), [](spoilt<>& self, context& ctx, perceptron::batch const& shard) {
    self.right(ctx, shard);
    if (ctx.rank() == lockstep::rank_id{0} && ctx.step() == 1) {
      self.spare.push_back(std::exchange(self.w1, std::vector<float>(self.w1)));
    }
  });
  CHECK_MESSAGE(said ==
                    "lockstep: parameter 'hidden.weight' has changed its value's address since the first step; it must stay as "
                    "it was",
                said);
}

TEST_CASE("your_model, mistakes: marks that come too early are named") {
  lockstep::host::options const checked{.checking = lockstep::checking::marks};
  std::string const written = complaint_of(
      data{10}.view(),
      [](spoilt<>& self, context& ctx, perceptron::batch const& shard) {
        ctx.gradient_ready(2, 2);
        self.right(ctx, shard);
      },
      checked);
  CHECK_MESSAGE(written.find("gradient_ready was called too early for parameter 'out.weight': its gradient was written "
                             "afterwards") != std::string::npos,
                written);
  std::string const read = complaint_of(
      data{10}.view(),
      [](spoilt<>& self, context& ctx, perceptron::batch const& shard) {
        self.right(ctx, shard);
        ctx.gradient_ready(2, 2);
        self.dw1[0] += 0 * self.w2[0];  // its value, too late
      },
      checked);
  CHECK_MESSAGE(
      read.find("gradient_ready was called too early for parameter 'out.weight': its value was read afterwards, for the "
                "gradient of 'hidden.weight'") != std::string::npos,
      read);
}
