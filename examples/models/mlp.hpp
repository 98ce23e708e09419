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
/// Everything that a user of lockstep writes for a model is here.
class mlp {
 public:
  using backend = lockstep::host;
  using batch = std::tuple<lockstep::sample_view<float const>, lockstep::sample_view<std::int32_t const>>;
  using output = lockstep::sample_view<float>;  // one probability a class
  static constexpr lockstep::model_promises promises{.honours_accumulate = true};

  /// Weights are drawn from a normal distribution of variance 2 / inputs (He et al. 2015), biases are zero.
  mlp(lockstep::device_context<backend> const& device, std::vector<std::size_t> widths, std::uint64_t seed)
      : widths_(std::move(widths)), arena_(device, layer_tensors(widths_)) {
    std::mt19937_64 random{seed};
    for (std::size_t layer = 0; layer + 1 < widths_.size(); ++layer) {
      std::vector<float> const weights = draw_weights(random, widths_[layer], widths_[layer + 1]);
      std::copy(weights.begin(), weights.end(), arena_.value(2 * layer));
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
    for (std::size_t s = 0; s < samples; ++s) {
      float* const row = last.data() + s * classes;
      softmax(row, classes);
      auto const label = static_cast<std::size_t>(labels[s][0]);
      loss -= std::log(std::max(row[label], 1e-30F));
      row[label] -= 1.0F;
      for (std::size_t c = 0; c < classes; ++c) {
        row[c] *= weight;
      }
    }
    *ctx.loss() += weight * static_cast<float>(loss);

    float const keep = ctx.accumulate() ? 1.0F : 0.0F;
    for (std::size_t layer = widths_.size() - 1; layer-- > 0;) {
      std::size_t const in = widths_[layer];
      std::size_t const out = widths_[layer + 1];
      float const* const input = layer == 0 ? images.data() : activation_[layer - 1].data();
      float const* const delta = activation_[layer].data();
      matrix_product(transposed::yes, transposed::no, out, in, samples, delta, input, keep, arena_.gradient(2 * layer));
      float* const bias = arena_.gradient(2 * layer + 1);
      for (std::size_t o = 0; o < out; ++o) {
        bias[o] *= keep;
      }
      for (std::size_t s = 0; s < samples; ++s) {
        for (std::size_t o = 0; o < out; ++o) {
          bias[o] += delta[s * out + o];
        }
      }
      if (layer != 0) {
        below_.resize(samples * in);
        matrix_product(transposed::no, transposed::no, samples, in, out, delta, arena_.value(2 * layer), 0.0F, below_.data());
        for (std::size_t i = 0; i < below_.size(); ++i) {  // through the ReLU
          below_[i] = activation_[layer - 1][i] > 0 ? below_[i] : 0.0F;
        }
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
    float const* input = images.data();
    for (std::size_t layer = 0; layer + 1 < widths_.size(); ++layer) {
      std::size_t const out = widths_[layer + 1];
      std::vector<float>& result = activation_[layer];
      result.resize(samples * out);
      for (std::size_t s = 0; s < samples; ++s) {
        std::copy_n(arena_.value(2 * layer + 1), out, result.data() + s * out);
      }
      matrix_product(transposed::no, transposed::yes, samples, out, widths_[layer], input, arena_.value(2 * layer), 1.0F,
                     result.data());
      if (layer + 2 < widths_.size()) {
        for (float& x : result) {
          x = std::max(x, 0.0F);
        }
      }
      input = result.data();
    }
  }

  static void softmax(float* row, std::size_t classes) {
    float const largest = *std::max_element(row, row + classes);
    float sum = 0;
    for (std::size_t c = 0; c < classes; ++c) {
      row[c] = std::exp(row[c] - largest);
      sum += row[c];
    }
    for (std::size_t c = 0; c < classes; ++c) {
      row[c] /= sum;
    }
  }

  std::vector<std::size_t> widths_;
  lockstep::arena<backend> arena_;
  std::vector<std::vector<float>> activation_;  // outputs of each layer; in backward, their derivatives
  std::vector<float> below_;
};

}  // namespace examples
