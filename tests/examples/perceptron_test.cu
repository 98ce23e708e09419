// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// The examples' perceptron on a GPU, beside the same in double precision on the host.

#include "../../examples/models/mlp.hpp"
#include "../../examples/models/perceptron.cuh"
#include "../seed.hpp"

#include <lockstep/lockstep.cuh>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using lockstep::bfloat16;
using lockstep::float16;
using widths_type = std::vector<std::size_t>;

/// The device and its memory, for one test.
class bench {
 public:
  template <class T>
  T* put(std::vector<T> const& values) {
    buffers_.push_back(device.allocate(values.size() * sizeof(T), lockstep::memory_use::other));
    lockstep::cuda::copy(device.stream(), buffers_.back().data(), values.data(), values.size() * sizeof(T));
    device.stream().synchronize();
    return buffers_.back().as<T>();
  }
  template <class T>
  std::vector<T> get(T const* from, std::size_t count) {
    std::vector<T> values(count);
    lockstep::cuda::copy(device.stream(), values.data(), from, count * sizeof(T));
    device.stream().synchronize();
    return values;
  }
  std::vector<float> get(void const* from, std::size_t count, lockstep::element_type type) {
    if (type == lockstep::element_type::f32) {
      return get(static_cast<float const*>(from), count);
    }
    if (type == lockstep::element_type::f16) {
      std::vector<float16> const raw = get(static_cast<float16 const*>(from), count);
      return {raw.begin(), raw.end()};
    }
    std::vector<bfloat16> const raw = get(static_cast<bfloat16 const*>(from), count);
    return {raw.begin(), raw.end()};
  }

  lockstep::cuda::device device;
  lockstep::device_context<lockstep::cuda> context{device, lockstep::rank_id{0}, 1};

 private:
  std::vector<lockstep::cuda::buffer> buffers_;
};

/// The network in double precision.
struct reference {
  widths_type widths;
  std::vector<std::vector<double>> values;  // weight, bias, weight, bias, ...
  std::vector<std::vector<double>> gradients;
  double loss = 0;

  /// The outputs of each layer for one sample, the last ones before the softmax, and the smallest distance of a hidden unit
  /// from the corner of its ReLU.
  std::pair<std::vector<std::vector<double>>, double> forward(std::span<float const> input) const {
    std::vector<std::vector<double>> outputs;
    std::vector<double> x(input.begin(), input.end());
    double clear = HUGE_VAL;
    for (std::size_t l = 0; l + 1 < widths.size(); ++l) {
      std::vector<double> y = values[2 * l + 1];
      for (std::size_t o = 0; o < y.size(); ++o) {
        for (std::size_t i = 0; i < x.size(); ++i) {
          y[o] += values[2 * l][o * x.size() + i] * x[i];
        }
        if (l + 2 < widths.size()) {
          clear = (std::min)(clear, std::abs(y[o]));
          y[o] = (std::max)(y[o], 0.0);
        }
      }
      outputs.push_back(y);
      x = std::move(y);
    }
    return {std::move(outputs), clear};
  }

  static std::vector<double> softmax(std::vector<double> logits) {
    double const largest = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (double& x : logits) {
      x = std::exp(x - largest);
      sum += x;
    }
    for (double& x : logits) {
      x /= sum;
    }
    return logits;
  }

  void train(std::span<float const> input, std::size_t label, double weight) {
    auto const outputs = forward(input).first;
    std::vector<double> delta = softmax(outputs.back());
    loss -= weight * std::log(delta[label]);
    delta[label] -= 1;
    for (double& d : delta) {
      d *= weight;
    }
    for (std::size_t l = widths.size() - 1; l-- > 0;) {
      std::vector<double> below(widths[l], 0.0);
      for (std::size_t o = 0; o < delta.size(); ++o) {
        gradients[2 * l + 1][o] += delta[o];
        for (std::size_t i = 0; i < below.size(); ++i) {
          double const x = l == 0 ? static_cast<double>(input[i]) : outputs[l - 1][i];
          gradients[2 * l][o * below.size() + i] += delta[o] * x;
          below[i] += values[2 * l][o * below.size() + i] * delta[o];
        }
      }
      for (std::size_t i = 0; l != 0 && i < below.size(); ++i) {
        below[i] = outputs[l - 1][i] > 0 ? below[i] : 0;
      }
      delta = std::move(below);
    }
  }
};

/// Sets each value of the model to a random one, biases too, and returns the same network in double precision.
template <class Model>
reference randomise(bench& b, Model& model, widths_type const& widths, tests::generator& random) {
  reference r{widths, {}, {}};
  for (lockstep::parameter const& p : model.parameters()) {
    bool const weight = p.shape.extents().size() == 2;
    float const most = weight ? std::sqrt(6.0F / static_cast<float>(p.shape.extents()[1])) : 0.3F;
    std::vector<typename Model::value_type> values;
    for (std::size_t i = 0; i < p.count(); ++i) {
      values.push_back(static_cast<typename Model::value_type>(random.real(-most, most)));
    }
    lockstep::cuda::copy(b.device.stream(), p.value, values.data(), values.size() * sizeof(values[0]));
    b.device.stream().synchronize();
    r.values.emplace_back(values.begin(), values.end());
    r.gradients.emplace_back(p.count(), 0.0);
  }
  return r;
}

/// Samples whose hidden units all stay away from the corner of their ReLU by `margin`: on which side of it a unit lies must
/// not depend on rounding. Inputs are what bf16 holds exactly.
struct samples {
  std::vector<float> inputs;
  std::vector<std::int32_t> labels;
};
samples draw(reference const& r, std::size_t count, double margin, tests::generator& random) {
  samples drawn;
  std::vector<float> one(r.widths.front());
  while (drawn.labels.size() < count) {
    for (float& x : one) {
      x = bfloat16(random.real(-1, 1));
    }
    if (r.forward(one).second > margin) {
      drawn.inputs.insert(drawn.inputs.end(), one.begin(), one.end());
      drawn.labels.push_back(static_cast<std::int32_t>(random.whole(0, r.widths.back() - 1)));
    }
  }
  return drawn;
}

template <class Model>
typename Model::batch place(bench& b, samples const& s, std::size_t width) {
  using input = std::remove_const_t<typename std::tuple_element_t<0, typename Model::batch>::element_type>;
  std::vector<input> inputs;
  for (float const x : s.inputs) {
    inputs.push_back(static_cast<input>(x));
  }
  return {{b.put(inputs), s.labels.size(), width}, {b.put(s.labels), s.labels.size(), 1}};
}

/// |found - wanted| / |wanted|, both as vectors; 0 where both are 0.
double relative_error(std::vector<float> const& found, std::vector<double> const& wanted, double factor) {
  double off = 0;
  double size = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    off += std::pow(static_cast<double>(found[i]) - factor * wanted[i], 2);
    size += std::pow(factor * wanted[i], 2);
  }
  return off == 0 ? 0 : std::sqrt(off / size);
}

/// What one call of `train` is told, and what it said.
struct call {
  /// `scale` is that of the loss, and lies on the device: a model that asked for the weight on the host would be refused.
  explicit call(bench& b, float scale = 1)
      : loss(b.put(std::vector<float>{0})),
        correct(b.put(std::vector<float>{0})),
        loss_scale(b.put(std::vector<float>{scale})),
        stream(b.device.stream()) {}

  template <class Model>
  void train(Model& model, typename Model::batch const& batch, float weight, bool accumulate) {
    ready.clear();
    lockstep::train_arguments<lockstep::cuda> arguments;
    arguments.stream = stream;
    arguments.sample_weight = lockstep::cuda::weight{weight, loss_scale};
    arguments.loss = loss;
    arguments.metrics = correct;
    arguments.metric_count = 1;
    arguments.accumulate = accumulate;
    arguments.listener.self = this;
    arguments.listener.ready = [](void* self, std::size_t first, std::size_t count) {
      static_cast<call*>(self)->ready.emplace_back(first, count);
    };
    lockstep::train_context<lockstep::cuda> ctx{arguments};
    model.train(ctx, batch);
  }

  float* loss;
  float* correct;
  float const* loss_scale;
  lockstep::cuda::stream_ref stream;
  std::vector<std::pair<std::size_t, std::size_t>> ready;
};

template <class Model>
void compare_with_reference(double tolerance, double margin) {
  std::uint64_t const seed = tests::seed();
  CAPTURE(seed);
  tests::generator random{seed};
  for (widths_type const& widths : {widths_type{7, 130, 10}, widths_type{130, 10, 7}, widths_type{16, 64, 48, 32}}) {
    bench b;
    Model model{b.context, widths, 1};
    reference const initial = randomise(b, model, widths, random);
    for (std::size_t const count : {std::size_t{64}, std::size_t{65}, std::size_t{1}, std::size_t{3}, std::size_t{33}}) {
      CAPTURE(widths[1]);
      CAPTURE(count);
      reference r = initial;
      samples const s = draw(r, count, margin, random);
      float const weight = 1.0F / 64;
      for (std::size_t i = 0; i < count; ++i) {
        r.train(std::span{s.inputs}.subspan(i * widths[0], widths[0]), static_cast<std::size_t>(s.labels[i]),
                static_cast<double>(weight));
      }
      typename Model::batch const batch = place<Model>(b, s, widths[0]);
      for (lockstep::parameter const& p : model.parameters()) {  // what overwriting must not read
        lockstep::check(cudaMemsetAsync(p.gradient, 0xff, p.gradients().bytes(), b.device.stream().get()));
      }
      call c{b};
      for (int times = 1; times <= 2; ++times) {  // overwrites, then adds the same
        c.train(model, batch, weight, times == 2);
        CHECK(b.get(c.loss, 1)[0] == doctest::Approx(times * r.loss).epsilon(tolerance));
        std::size_t index = 0;
        for (lockstep::parameter const& p : model.parameters()) {
          CAPTURE(p.name);
          CAPTURE(times);
          CHECK(relative_error(b.get(p.gradient, p.count(), p.gradient_type), r.gradients[index++], times) < tolerance);
        }
      }
      std::vector<std::pair<std::size_t, std::size_t>> wanted;
      for (std::size_t layer = widths.size() - 1; layer-- > 0;) {
        wanted.emplace_back(2 * layer, 2);
      }
      CHECK(c.ready == wanted);

      std::vector<float> probabilities(count * widths.back(), -1.0F);
      float* const out = b.put(probabilities);
      lockstep::infer_context<lockstep::cuda> ctx{b.device.stream(), lockstep::rank_id{0}};
      model.infer(ctx, batch, {out, count, widths.back()});
      probabilities = b.get(out, probabilities.size());
      std::vector<double> right;
      for (std::size_t i = 0; i < count; ++i) {
        std::vector<double> const one =
            reference::softmax(r.forward(std::span{s.inputs}.subspan(i * widths[0], widths[0])).first.back());
        right.insert(right.end(), one.begin(), one.end());
      }
      CHECK(relative_error(probabilities, right, 1) < tolerance);
    }
  }
}

using f32 = examples::perceptron<examples::compute::f32>;
using tf32 = examples::perceptron<examples::compute::tf32>;
using bf16 = examples::perceptron<examples::compute::bf16>;
using bf16_gradients = examples::perceptron<examples::compute::bf16, bfloat16>;
using bf16_throughout = examples::perceptron<examples::compute::bf16, bfloat16, bfloat16>;
using f16 = examples::perceptron<examples::compute::f16>;
using f16_gradients = examples::perceptron<examples::compute::f16, float16>;
using f16_throughout = examples::perceptron<examples::compute::f16, float16, float16>;

std::vector<std::vector<float>> gradients_of(bench& b, std::span<lockstep::parameter const> parameters) {
  std::vector<std::vector<float>> all;
  for (lockstep::parameter const& p : parameters) {
    all.push_back(b.get(p.gradient, p.count(), p.gradient_type));
  }
  return all;
}

template <class Model>
void compare_first_values() {
  bench b;
  widths_type const widths{64, 33, 10};
  Model const model{b.context, widths, 17};
  lockstep::host::device host{lockstep::device_id{0}};
  examples::mlp const other{{host, lockstep::rank_id{0}, 1}, widths, 17};
  REQUIRE(model.parameters().size() == other.parameters().size());
  for (std::size_t i = 0; i < model.parameters().size(); ++i) {
    lockstep::parameter const& here = model.parameters()[i];
    lockstep::parameter const& there = other.parameters()[i];
    CHECK(here.name == there.name);
    CHECK(here.shape == there.shape);
    CHECK(here.group == there.group);
    std::vector<float> const found = b.get(here.value, here.count(), here.value_type);
    auto const* const drawn = static_cast<float const*>(there.value);
    bool same = true;
    for (std::size_t e = 0; e < found.size(); ++e) {
      same = same && found[e] == static_cast<float>(static_cast<typename Model::value_type>(drawn[e]));
    }
    CHECK(same);
  }
}

/// Gradients at a loss scale of 64, beside those without one. A power of two moves exponents only, as long as nothing of either
/// is too small or too large for 16 bits: the weight is chosen so, far above what a step would have.
template <class Model>
void compare_scaled() {
  constexpr float weight = 64;
  constexpr float scale = 64;
  bench b;
  widths_type const widths{24, 40, 16};
  Model model{b.context, widths, 3};
  tests::generator random{23};
  reference const r = randomise(b, model, widths, random);
  auto const batch = place<Model>(b, draw(r, 3, 0, random), widths[0]);
  call plain{b};
  plain.train(model, batch, weight, false);
  auto const wanted = gradients_of(b, model.parameters());
  call scaled{b, scale};
  scaled.train(model, batch, weight, false);
  auto const found = gradients_of(b, model.parameters());
  CHECK(b.get(scaled.loss, 1)[0] == scale * b.get(plain.loss, 1)[0]);
  CHECK(b.get(scaled.correct, 1) == b.get(plain.correct, 1));
  for (std::size_t p = 0; p < wanted.size(); ++p) {
    CAPTURE(model.parameters()[p].name);
    std::vector<float> product = wanted[p];
    for (float& x : product) {
      x *= scale;
    }
    CHECK(found[p] == product);
    CHECK(std::any_of(product.begin(), product.end(), [](float x) { return x != 0; }));
    CHECK(std::all_of(product.begin(), product.end(), [](float x) { return std::isfinite(x); }));
  }
}

/// Trains on labels that the model finds most probable, for some samples, and least probable for the others.
template <class Model>
void count_right_answers() {
  bench b;
  widths_type const widths{24, 40, 16};
  Model model{b.context, widths, 3};
  tests::generator random{29};
  reference const r = randomise(b, model, widths, random);
  samples s = draw(r, 300, 0, random);  // more than one block's threads
  std::vector<float> probabilities(s.labels.size() * widths.back());
  float* const out = b.put(probabilities);
  lockstep::infer_context<lockstep::cuda> ctx{b.device.stream(), lockstep::rank_id{0}};
  model.infer(ctx, place<Model>(b, s, widths[0]), {out, s.labels.size(), widths.back()});
  probabilities = b.get(out, probabilities.size());
  float right = 0;
  for (std::size_t i = 0; i < s.labels.size(); ++i) {
    auto const first = probabilities.begin() + static_cast<std::ptrdiff_t>(i * widths.back());
    auto const last = first + static_cast<std::ptrdiff_t>(widths.back());
    bool const chosen = i % 3 == 0;
    s.labels[i] = static_cast<std::int32_t>((chosen ? std::max_element(first, last) : std::min_element(first, last)) - first);
    right += chosen ? 1 : 0;
  }
  call c{b};
  auto const batch = place<Model>(b, s, widths[0]);
  for (float times = 1; times <= 2; ++times) {
    c.train(model, batch, 1.0F / 1024, times == 2);
    CHECK(b.get(c.correct, 1)[0] == times * right);
  }
}

}  // namespace

TEST_CASE("perceptron: loss, gradients and probabilities are right, f32") { compare_with_reference<f32>(1e-5, 1e-4); }

TEST_CASE("perceptron: loss, gradients and probabilities are right, TF32") { compare_with_reference<tf32>(2e-3, 5e-3); }

TEST_CASE("perceptron: loss, gradients and probabilities are right, bf16 with f32 gradients") {
  compare_with_reference<bf16>(3e-2, 1.5e-2);
}

TEST_CASE("perceptron: loss, gradients and probabilities are right, bf16 with bf16 gradients") {
  compare_with_reference<bf16_gradients>(3e-2, 1.5e-2);
}

TEST_CASE("perceptron: loss, gradients and probabilities are right, bf16 with bf16 inputs") {
  compare_with_reference<bf16_throughout>(3e-2, 1.5e-2);
}

TEST_CASE("perceptron: loss, gradients and probabilities are right, f16 with f32 gradients") {
  compare_with_reference<f16>(4e-3, 4e-3);
}

TEST_CASE("perceptron: loss, gradients and probabilities are right, f16 with f16 gradients") {
  compare_with_reference<f16_gradients>(4e-3, 4e-3);
}

TEST_CASE("perceptron: loss, gradients and probabilities are right, f16 with f16 inputs") {
  compare_with_reference<f16_throughout>(4e-3, 4e-3);
}

TEST_CASE("perceptron: a loss scale on the device scales loss and gradients exactly") {
  compare_scaled<f32>();
  compare_scaled<bf16>();
  compare_scaled<f16>();
  compare_scaled<f16_gradients>();
}

TEST_CASE("perceptron: right answers are counted, over calls too") {
  count_right_answers<f32>();
  count_right_answers<bf16>();
  count_right_answers<f16>();
}

TEST_CASE("perceptron: first values are those of the host's") {
  compare_first_values<f32>();
  compare_first_values<bf16>();
  compare_first_values<f16>();
}

TEST_CASE("perceptron: a recorded call gives the same bits, also after a larger batch has come") {
  bench b;
  widths_type const widths{24, 40, 16};
  f32 model{b.context, widths, 3};
  tests::generator random{11};
  reference const r = randomise(b, model, widths, random);
  auto const batch = place<f32>(b, draw(r, 64, 0, random), widths[0]);
  auto const larger = place<f32>(b, draw(r, 4097, 0, random), widths[0]);
  float* const none = b.put(std::vector<float>{0});

  call first{b};
  first.train(model, batch, 0.5F, false);
  float const loss = b.get(first.loss, 1)[0];
  auto const gradients = gradients_of(b, model.parameters());

  call recorded{b};
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replayed = nullptr;
  lockstep::check(cudaStreamBeginCapture(b.device.stream().get(), cudaStreamCaptureModeThreadLocal));
  recorded.train(model, batch, 0.5F, false);
  lockstep::check(cudaStreamEndCapture(b.device.stream().get(), &graph));
  lockstep::check(cudaGraphInstantiate(&replayed, graph, 0));

  call other{b};
  other.train(model, larger, 0.25F, false);
  for (int times = 0; times < 2; ++times) {
    lockstep::cuda::copy(b.device.stream(), recorded.loss, none, sizeof(float));
    lockstep::check(cudaGraphLaunch(replayed, b.device.stream().get()));
    CHECK(b.get(recorded.loss, 1)[0] == loss);
    CHECK(gradients_of(b, model.parameters()) == gradients);
  }
  lockstep::check(cudaGraphExecDestroy(replayed));
  lockstep::check(cudaGraphDestroy(graph));
}

TEST_CASE("perceptron: a trainer on one GPU takes the same steps as one on the host") {
  bench b;
  widths_type const widths{20, 31, 10};
  tests::generator random{19};
  reference const any = [&] {
    f32 model{b.context, widths, 7};
    return randomise(b, model, widths, random);
  }();
  samples const s = draw(any, 50, 0, random);
  lockstep::sgd const sgd{.learning_rate = 0.1F, .momentum = 0.9F};
  lockstep::trainer<f32, lockstep::sgd, lockstep::single_device> gpu{lockstep::devices{0},
                                                                     [&](lockstep::device_context<lockstep::cuda>& device) {
                                                                       return f32{device, widths, 7};
                                                                     },
                                                                     sgd};
  lockstep::trainer<examples::mlp, lockstep::sgd, lockstep::single_device> host{
      lockstep::devices{0},
      [&](lockstep::device_context<lockstep::host>& device) {
        return examples::mlp{device, widths, 7};
      },
      sgd};
  f32::batch const on_gpu = place<f32>(b, s, widths[0]);
  examples::mlp::batch const on_host{{s.inputs.data(), 50, widths[0]}, {s.labels.data(), 50, 1}};
  for (std::size_t step = 0; step < 10; ++step) {
    lockstep::step_options const options{.micro_batches = 1 + step % 3};
    CHECK(gpu.step(on_gpu, options).loss() == doctest::Approx(host.step(on_host, options).loss()).epsilon(1e-4));
  }
}

TEST_CASE("perceptron: in f16, steps that overflow are skipped until the loss scale fits, and then the loss falls") {
  bench b;
  widths_type const widths{20, 31, 10};
  tests::generator random{31};
  reference const any = [&] {
    f16 model{b.context, widths, 7};
    return randomise(b, model, widths, random);
  }();
  f16::batch const batch = place<f16>(b, draw(any, 50, 0, random), widths[0]);
  lockstep::trainer<f16, lockstep::sgd, lockstep::single_device> trainer{
      lockstep::devices{0},
      [&](lockstep::device_context<lockstep::cuda>& device) {
        return f16{device, widths, 7};
      },
      lockstep::sgd{.learning_rate = 0.5F}, lockstep::gradient_rules{.loss_scale = lockstep::loss_scale{.initial = 16777216}}};
  double const loss = trainer.step(batch).loss();
  int skipped = 0;
  double scale = 0;
  double last = 0;
  for (int step = 2; step <= 60; ++step) {
    auto const result = trainer.step(batch, {.micro_batches = 2});
    skipped += result.skipped() ? 1 : 0;
    scale = result.loss_scale();
    last = result.loss();
  }
  CHECK(skipped > 0);  // 2^24 / 50 is beyond f16
  CHECK(skipped < 20);
  CHECK(scale < 16777216);
  CHECK(last < 0.9 * loss);
}

TEST_CASE("perceptron: with the first algorithm, two models give the same bits") {
  bench b;
  widths_type const widths{64, 256, 10};
  std::vector<std::vector<std::vector<float>>> all;
  for (int times = 0; times < 2; ++times) {
    bf16 model{b.context, widths, 5, {.algorithms = examples::algorithm_choice::first}};
    tests::generator random{13};
    reference const r = randomise(b, model, widths, random);
    call c{b};
    c.train(model, place<bf16>(b, draw(r, 300, 0, random), widths[0]), 1.0F, false);
    all.push_back(gradients_of(b, model.parameters()));
  }
  CHECK(all[0] == all[1]);
}

TEST_CASE("perceptron: a label outside of the classes makes the loss NaN") {
  for (std::int32_t const wrong : {-1, 10}) {
    bench b;
    f32 model{b.context, {8, 10}, 1};
    samples s{std::vector<float>(16, 0.5F), {0, wrong}};
    call c{b};
    c.train(model, place<f32>(b, s, 8), 1.0F, false);
    CHECK(std::isnan(b.get(c.loss, 1)[0]));
  }
}

TEST_CASE("perceptron: wrong shapes are refused") {
  bench b;
  CHECK_THROWS_AS((f32{b.context, {8}, 1}), lockstep::usage_error);
  CHECK_THROWS_AS((f32{b.context, {8, 0, 2}, 1}), lockstep::usage_error);
  f32 model{b.context, {8, 10}, 1};
  samples const s{std::vector<float>(16, 0.5F), {0, 1}};
  f32::batch batch = place<f32>(b, s, 8);
  call c{b};
  CHECK_THROWS_AS(c.train(model, {{std::get<0>(batch).data(), 2, 7}, std::get<1>(batch)}, 1.0F, false), lockstep::usage_error);
  CHECK_THROWS_AS(c.train(model, {std::get<0>(batch), {std::get<1>(batch).data(), 2, 2}}, 1.0F, false), lockstep::usage_error);
  lockstep::infer_context<lockstep::cuda> ctx{b.device.stream(), lockstep::rank_id{0}};
  CHECK_THROWS_AS(model.infer(ctx, batch, {nullptr, 2, 9}), lockstep::usage_error);
}
