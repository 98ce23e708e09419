// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "layers.hpp"
#include "matrix_product.hpp"

#include <lockstep/lockstep.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

namespace examples {

/// A multi-layer perceptron on the host: fully connected layers, ReLU between them, softmax cross-entropy at the end.
/// Input: {samples, widths.front()} f32. Labels: {samples, 1} in [0, widths.back()).
/// With lockstep::bfloat16 or lockstep::float16 as Value, parameters are stored in 16 bits, and what a layer gives, forward and
/// backward, is rounded to them; arithmetic and gradients are f32 all the same.
/// Everything that a user of lockstep writes for a model is here.
template <class Value = float>
class basic_mlp {
 public:
  using value_type = Value;
  using backend = lockstep::host;
  using batch = std::tuple<lockstep::sample_view<float const>, lockstep::sample_view<std::int32_t const>>;
  using output = lockstep::sample_view<float>;  // one probability a class
  static constexpr lockstep::model_promises promises{.honours_accumulate = true, .metrics = {"correct"}};

  /// Weights are drawn from a normal distribution of variance 2 / inputs (He et al. 2015), biases are zero.
  basic_mlp(lockstep::device_context<backend> const& device, std::vector<std::size_t> widths, std::uint64_t seed)
      : widths_(std::move(widths)), arena_(device, layer_tensors(widths_)) {
    std::mt19937_64 random{seed};
    for (std::size_t layer = 0; layer + 1 < widths_.size(); ++layer) {
      std::vector<float> const weights = draw_weights(random, widths_[layer], widths_[layer + 1]);
      std::transform(weights.begin(), weights.end(), arena_.value(2 * layer), [](float weight) { return Value(weight); });
    }
  }

  std::span<lockstep::parameter const> parameters() const { return arena_.parameters(); }

  void train(lockstep::train_context<backend>& ctx, batch const& shard) {
    auto const& [images, labels] = shard;
    std::size_t const samples = images.count();
    forward(images);

    // Loss, and its derivative by the last layer's output: (softmax - one-hot), each times the sample's weight.
    float const weight = ctx.sample_weight();
    std::size_t const classes = widths_.back();
    std::vector<float>& last = activation_.back();
    double loss = 0;
    std::size_t correct = 0;
    for (std::size_t s = 0; s < samples; ++s) {
      float* const row = last.data() + s * classes;
      auto const label = static_cast<std::size_t>(labels[s][0]);
      float const answer = row[label];
      correct += answer >= softmax(row, classes) ? 1U : 0U;
      loss -= std::log(std::max(row[label], 1e-30F));
      row[label] -= 1.0F;
      for (std::size_t c = 0; c < classes; ++c) {
        row[c] *= weight;
      }
    }
    round(last);
    *ctx.loss() += weight * static_cast<float>(loss);
    *ctx.metric(0) += static_cast<float>(correct);

    float const keep = ctx.accumulate() ? 1.0F : 0.0F;
    for (std::size_t layer = widths_.size() - 1; layer-- > 0;) {
      std::size_t const in = widths_[layer];
      std::size_t const out = widths_[layer + 1];
      float const* const input = layer == 0 ? images.data() : activation_[layer - 1].data();
      float const* const delta = activation_[layer].data();
      matrix_product(transposed::yes, transposed::no, out, in, samples, delta, input, keep, arena_.gradient(2 * layer));
      float* const bias = arena_.gradient(2 * layer + 1);
      if (!ctx.accumulate()) {
        std::fill_n(bias, out, 0.0F);  // times 0, what overflowed would stay
      }
      for (std::size_t s = 0; s < samples; ++s) {
        for (std::size_t o = 0; o < out; ++o) {
          bias[o] += delta[s * out + o];
        }
      }
      if (layer != 0) {
        below_.resize(samples * in);
        matrix_product(transposed::no, transposed::no, samples, in, out, delta, value(2 * layer), 0.0F, below_.data());
        for (std::size_t i = 0; i < below_.size(); ++i) {  // through the ReLU
          below_[i] = activation_[layer - 1][i] > 0 ? below_[i] : 0.0F;
        }
        round(below_);
        activation_[layer - 1].swap(below_);
      }
      ctx.gradient_ready(2 * layer, 2);
    }
  }

  void infer(lockstep::infer_context<backend>&, batch const& shard, output const& probabilities) {
    auto const& images = std::get<0>(shard);
    forward(images);
    std::copy_n(activation_.back().data(), images.count() * widths_.back(), probabilities.data());
    for (std::size_t s = 0; s < images.count(); ++s) {
      softmax(probabilities[s].data(), widths_.back());
    }
  }

 private:
  void forward(lockstep::sample_view<float const> images) {
    std::size_t const samples = images.count();
    activation_.resize(widths_.size() - 1);
    widen();
    float const* input = images.data();
    for (std::size_t layer = 0; layer + 1 < widths_.size(); ++layer) {
      std::size_t const out = widths_[layer + 1];
      std::vector<float>& result = activation_[layer];
      result.resize(samples * out);
      for (std::size_t s = 0; s < samples; ++s) {
        std::copy_n(value(2 * layer + 1), out, result.data() + s * out);
      }
      matrix_product(transposed::no, transposed::yes, samples, out, widths_[layer], input, value(2 * layer), 1.0F,
                     result.data());
      if (layer + 2 < widths_.size()) {
        for (float& x : result) {
          x = std::max(x, 0.0F);
        }
      }
      round(result);
      input = result.data();
    }
  }

  /// Values in f32, which products take.
  void widen() {
    if constexpr (sixteen_bits) {
      widened_.resize(parameters().size());
      for (std::size_t p = 0; p < widened_.size(); ++p) {
        widened_[p].assign(arena_.value(p), arena_.value(p) + parameters()[p].count());
      }
    }
  }
  [[nodiscard]] float const* value(std::size_t parameter) const {
    if constexpr (sixteen_bits) {
      return widened_[parameter].data();
    } else {
      return arena_.value(parameter);
    }
  }
  static void round(std::vector<float>& results) {
    if constexpr (sixteen_bits) {
      for (float& x : results) {
        x = Value(x);
      }
    }
  }

  /// Returns the largest element that the row had before.
  static float softmax(float* row, std::size_t classes) {
    float const largest = *std::max_element(row, row + classes);
    float sum = 0;
    for (std::size_t c = 0; c < classes; ++c) {
      row[c] = std::exp(row[c] - largest);
      sum += row[c];
    }
    for (std::size_t c = 0; c < classes; ++c) {
      row[c] /= sum;
    }
    return largest;
  }

  static constexpr bool sixteen_bits = sizeof(Value) == 2;

  std::vector<std::size_t> widths_;
  lockstep::arena<backend, Value, float> arena_;
  std::vector<std::vector<float>> activation_;  // outputs of each layer; in backward, their derivatives
  std::vector<float> below_;
  std::vector<std::vector<float>> widened_;  // values, where they are not f32
};

using mlp = basic_mlp<float>;

}  // namespace examples
