// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "layers.hpp"
#include "matrix_product.hpp"

#include <lockstep/lockstep.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <vector>

namespace examples {

/// Batch normalisation over the samples of all ranks: Ioffe and Szegedy, "Batch Normalization: Accelerating Deep Network
/// Training by Reducing Internal Covariate Shift" (2015), algorithm 1 forward, section 3 backward. For each feature, over the n
/// samples that all ranks have in one micro-batch:
///
///   mean = sum(x) / n    variance = sum((x - mean)^2) / n    x^ = (x - mean) / sqrt(variance + epsilon)    y = scale x^ +
///   shift
///
/// Three times the ranks add up, in f64: sum(x) of each feature and n, {features + 1}; sum((x - mean)^2), {features}; in
/// backward sum(dy) and sum(dy x^), {2 features}. A rank without samples adds zeros.
class batch_norm {
 public:
  using context = lockstep::train_context<lockstep::host>;

  static constexpr double epsilon = 1e-5;
  static constexpr double momentum = 0.1;

  explicit batch_norm(std::size_t features) : running_mean_(features, 0.0F), running_variance_(features, 1.0F) {}

  /// `<name>.running_mean` and `<name>.running_variance`, {features} f32: of all micro-batches so far, the last counting
  /// `momentum` but for the first few, which count alike. `<name>.batches`, {} i64: how many there were.
  [[nodiscard]] std::array<lockstep::parameter, 3> buffers(std::string const& name) {
    lockstep::shape const features{running_mean_.size()};
    return {lockstep::buffer(name + ".running_mean", running_mean_.data(), features),
            lockstep::buffer(name + ".running_variance", running_variance_.data(), features),
            lockstep::buffer(name + ".batches", &batches_, {})};
  }

  /// x becomes y: {samples of this rank, features}. `scale` and `shift`: {features}.
  void forward(context& ctx, lockstep::sample_view<float> x, float const* scale, float const* shift) {
    std::size_t const features = running_mean_.size();
    sums_.assign(features + 1, 0.0);
    for (std::size_t s = 0; s < x.count(); ++s) {
      for (std::size_t f = 0; f < features; ++f) {
        sums_[f] += static_cast<double>(x[s][f]);
      }
    }
    sums_[features] = static_cast<double>(x.count());
    ctx.all_reduce(std::span{sums_});
    count_ = sums_[features];
    if (count_ == 0) {
      return;  // on every rank
    }
    mean_.resize(features);
    for (std::size_t f = 0; f < features; ++f) {
      mean_[f] = sums_[f] / count_;
    }

    // A second pass, around the mean: sum(x^2) / n - mean^2 is lost in rounding where the mean is far from zero.
    sums_.assign(features, 0.0);
    for (std::size_t s = 0; s < x.count(); ++s) {
      for (std::size_t f = 0; f < features; ++f) {
        double const centred = static_cast<double>(x[s][f]) - mean_[f];
        sums_[f] += centred * centred;
      }
    }
    ctx.all_reduce(std::span{sums_});
    inverse_deviation_.resize(features);
    for (std::size_t f = 0; f < features; ++f) {
      inverse_deviation_[f] = 1 / std::sqrt(sums_[f] / count_ + epsilon);
    }

    normalised_.resize(x.count() * features);
    for (std::size_t s = 0; s < x.count(); ++s) {
      for (std::size_t f = 0; f < features; ++f) {
        double const centred = static_cast<double>(x[s][f]) - mean_[f];
        float const normalised = static_cast<float>(centred * inverse_deviation_[f]);
        normalised_[s * features + f] = normalised;
        x[s][f] = scale[f] * normalised + shift[f];
      }
    }

    // The same on every rank, for it comes from sums over all of them. The variance is the unbiased one (algorithm 2).
    double const share = std::max(momentum, 1 / static_cast<double>(++batches_));
    auto const average = [share](float& running, double now) {
      running = static_cast<float>((1 - share) * static_cast<double>(running) + share * now);
    };
    for (std::size_t f = 0; f < features; ++f) {
      average(running_mean_[f], mean_[f]);
      average(running_variance_[f], sums_[f] / std::max(count_ - 1, 1.0));
    }
  }

  /// Of the same samples, dy becomes dx: {samples of this rank, features}. Adds to `scale_gradient` and `shift_gradient`.
  void backward(context& ctx, lockstep::sample_view<float> dy, float const* scale, float* scale_gradient,
                float* shift_gradient) {
    std::size_t const features = running_mean_.size();
    sums_.assign(2 * features, 0.0);
    double* const sum_dy = sums_.data();
    double* const sum_dy_normalised = sums_.data() + features;
    for (std::size_t s = 0; s < dy.count(); ++s) {
      for (std::size_t f = 0; f < features; ++f) {
        sum_dy[f] += static_cast<double>(dy[s][f]);
        sum_dy_normalised[f] += static_cast<double>(dy[s][f] * normalised_[s * features + f]);
      }
    }
    // Before they are added up: gradients are this rank's part, and lockstep adds the parts.
    for (std::size_t f = 0; f < features; ++f) {
      shift_gradient[f] += static_cast<float>(sum_dy[f]);
      scale_gradient[f] += static_cast<float>(sum_dy_normalised[f]);
    }
    ctx.all_reduce(std::span{sums_});
    for (std::size_t s = 0; s < dy.count(); ++s) {
      for (std::size_t f = 0; f < features; ++f) {
        double const normalised = static_cast<double>(normalised_[s * features + f]);
        double const common = (sum_dy[f] + normalised * sum_dy_normalised[f]) / count_;
        dy[s][f] = static_cast<float>(static_cast<double>(scale[f]) * inverse_deviation_[f] *
                                      (static_cast<double>(dy[s][f]) - common));
      }
    }
  }

  /// x becomes y, by the running statistics: no rank waits for another.
  void infer(lockstep::sample_view<float> x, float const* scale, float const* shift) const {
    for (std::size_t f = 0; f < running_mean_.size(); ++f) {
      float const factor = scale[f] / std::sqrt(running_variance_[f] + static_cast<float>(epsilon));
      for (std::size_t s = 0; s < x.count(); ++s) {
        x[s][f] = factor * (x[s][f] - running_mean_[f]) + shift[f];
      }
    }
  }

 private:
  std::vector<float> running_mean_;
  std::vector<float> running_variance_;
  std::int64_t batches_ = 0;

  // Of the micro-batch that runs.
  double count_ = 0;  // samples of all ranks
  std::vector<double> mean_;
  std::vector<double> inverse_deviation_;
  std::vector<float> normalised_;  // {samples of this rank, features}
  std::vector<double> sums_;
};

/// Regression with a hidden layer that is normalised over all ranks: out.weight . tanh(batch_norm(linear.weight x)) + out.bias,
/// squared error. Input: {samples, inputs} f32. Target: {samples} f32. However many ranks share the samples, it trains as on
/// one device, up to rounding.
class normalised_network {
 public:
  using backend = lockstep::host;
  using batch = std::tuple<lockstep::sample_view<float const>, std::span<float const>>;
  using output = std::span<float>;
  static constexpr lockstep::model_promises promises{.communicates = true};

  /// Weights are drawn from a normal distribution of variance 2 / inputs; the scale is one, shift and bias are zero.
  normalised_network(lockstep::device_context<backend> const& device, std::size_t inputs, std::size_t hidden,
                     std::uint64_t seed)
      : inputs_(inputs),
        hidden_(hidden),
        arena_(device, {{"linear.weight", {hidden, inputs}},
                        {"norm.scale", {hidden}},
                        {"norm.shift", {hidden}},
                        {"out.weight", {1, hidden}},
                        {"out.bias", {1}}}),
        norm_(hidden) {
    std::mt19937_64 random{seed};
    std::vector<float> const linear = draw_weights(random, inputs, hidden);
    std::copy(linear.begin(), linear.end(), arena_.value(linear_weight));
    std::fill_n(arena_.value(norm_scale), hidden, 1.0F);
    std::vector<float> const out = draw_weights(random, hidden, 1);
    std::copy(out.begin(), out.end(), arena_.value(out_weight));
  }

  std::vector<lockstep::parameter> parameters() {
    std::vector<lockstep::parameter> list(arena_.parameters().begin(), arena_.parameters().end());
    for (lockstep::parameter const& buffer : norm_.buffers("norm")) {
      list.push_back(buffer);
    }
    return list;
  }

  /// Runs on every rank in every micro-batch, and makes the same calls of `all_reduce` there, with an empty shard too.
  void train(lockstep::train_context<backend>& ctx, batch const& shard) {
    auto const& [x, target] = shard;
    std::size_t const samples = target.size();
    lockstep::sample_view<float> const h = linear(x);
    norm_.forward(ctx, h, arena_.value(norm_scale), arena_.value(norm_shift));
    output_.resize(samples);
    tanh_and_out(h, output_);

    float const weight = ctx.sample_weight();
    double loss = 0;
    for (std::size_t s = 0; s < samples; ++s) {
      float const error = output_[s] - target[s];
      loss += static_cast<double>(error * error / 2);
      float const delta = weight * error;
      arena_.gradient(out_bias)[0] += delta;
      for (std::size_t j = 0; j < hidden_; ++j) {
        arena_.gradient(out_weight)[j] += delta * h[s][j];
        h[s][j] = delta * arena_.value(out_weight)[j] * (1 - h[s][j] * h[s][j]);  // the derivative by what tanh is given
      }
    }
    *ctx.loss() += weight * static_cast<float>(loss);

    norm_.backward(ctx, h, arena_.value(norm_scale), arena_.gradient(norm_scale), arena_.gradient(norm_shift));
    matrix_product(transposed::yes, transposed::no, hidden_, inputs_, samples, h.data(), x.data(), 1.0F,
                   arena_.gradient(linear_weight));
  }

  void infer(lockstep::infer_context<backend>&, batch const& shard, output const& y) {
    lockstep::sample_view<float> const h = linear(std::get<0>(shard));
    norm_.infer(h, arena_.value(norm_scale), arena_.value(norm_shift));
    tanh_and_out(h, y);
  }

 private:
  enum tensor : std::size_t { linear_weight, norm_scale, norm_shift, out_weight, out_bias };

  /// linear.weight x: {samples, hidden}.
  lockstep::sample_view<float> linear(lockstep::sample_view<float const> x) {
    hidden_values_.resize(x.count() * hidden_);
    matrix_product(transposed::no, transposed::yes, x.count(), hidden_, inputs_, x.data(), arena_.value(linear_weight), 0.0F,
                   hidden_values_.data());
    return {hidden_values_.data(), x.count(), hidden_};
  }

  /// h becomes tanh(h), and y the network's output: {samples}.
  void tanh_and_out(lockstep::sample_view<float> h, std::span<float> y) const {
    for (std::size_t s = 0; s < h.count(); ++s) {
      y[s] = arena_.value(out_bias)[0];
      for (std::size_t j = 0; j < hidden_; ++j) {
        h[s][j] = std::tanh(h[s][j]);
        y[s] += arena_.value(out_weight)[j] * h[s][j];
      }
    }
  }

  std::size_t inputs_;
  std::size_t hidden_;
  lockstep::arena<backend> arena_;
  batch_norm norm_;
  std::vector<float> hidden_values_;  // what tanh is given, then its results, then the derivatives
  std::vector<float> output_;
};

}  // namespace examples
