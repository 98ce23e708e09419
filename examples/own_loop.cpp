// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// A program that keeps what it has - its own threads, arenas, loop, backward pass and optimizer - and takes from lockstep the
// parallel step alone: a replica a thread, under a policy.
//
// It trains an autoencoder of handwritten digits whose decoder shares the encoder's weights.

#include <lockstep/lockstep.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <fstream>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr std::size_t layers = 2;
constexpr std::size_t widths[layers + 1] = {64, 24, 12};  // pixels, then codes

/// Encoder: h[l+1] = tanh(W[l] h[l] + b[l]). Decoder, backwards with the same weights: g[l] = W[l]^T g[l+1] + c[l].
/// Two arenas, tensor-major: all weights, then all encoder biases, then all decoder biases. So one layer's gradients are three
/// slices that lie apart.
struct autoencoder {
  std::vector<float> values;
  std::vector<float> gradients;
  std::size_t weight_at[layers];
  std::size_t bias_at[layers];
  std::size_t decoder_bias_at[layers];

  explicit autoencoder(unsigned seed) {
    std::size_t size = 0;
    for (std::size_t l = 0; l < layers; ++l) {
      weight_at[l] = std::exchange(size, size + widths[l] * widths[l + 1]);
    }
    for (std::size_t l = 0; l < layers; ++l) {
      bias_at[l] = std::exchange(size, size + widths[l + 1]);
    }
    for (std::size_t l = 0; l < layers; ++l) {
      decoder_bias_at[l] = std::exchange(size, size + widths[l]);
    }
    values.assign(size, 0.0F);
    gradients.assign(size, 0.0F);
    std::mt19937 random{seed};
    for (std::size_t i = 0; i < bias_at[0]; ++i) {
      values[i] = 0.2F * (static_cast<float>(random()) / 4294967296.0F - 0.5F);
    }
  }

  /// One entry a tensor that the program speaks of. The weights have two: encoder and decoder both use them.
  std::vector<lockstep::parameter> parameters() {
    std::vector<lockstep::parameter> list;
    auto const add = [&](std::string const& name, std::size_t at, lockstep::shape const& shape) {
      list.emplace_back(name, values.data() + at, gradients.data() + at, shape);
    };
    for (std::size_t l = 0; l < layers; ++l) {
      std::string const layer = std::to_string(l);
      add("encoder." + layer + ".weight", weight_at[l], {widths[l + 1], widths[l]});
      add("encoder." + layer + ".bias", bias_at[l], {widths[l + 1]});
      add("decoder." + layer + ".weight", weight_at[l], {widths[l + 1], widths[l]});
      add("decoder." + layer + ".bias", decoder_bias_at[l], {widths[l]});
    }
    return list;
  }

  std::span<float> gradient(std::size_t at, std::size_t count) { return std::span{gradients}.subspan(at, count); }

  /// Adds the gradients of some images, each times the sample's weight, and says when each slice is complete.
  void train(lockstep::train_context<lockstep::host>& ctx, lockstep::sample_view<float const> images) {
    float const weight = ctx.sample_weight();
    for (std::size_t s = 0; s < images.count(); ++s) {
      bool const last = s + 1 == images.count();
      std::vector<std::vector<float>> h{{images[s].begin(), images[s].end()}};
      for (std::size_t l = 0; l < layers; ++l) {
        h.emplace_back(widths[l + 1]);
        for (std::size_t o = 0; o < widths[l + 1]; ++o) {
          float sum = values[bias_at[l] + o];
          for (std::size_t i = 0; i < widths[l]; ++i) {
            sum += values[weight_at[l] + o * widths[l] + i] * h[l][i];
          }
          h[l + 1][o] = std::tanh(sum);
        }
      }
      std::vector<std::vector<float>> g(layers + 1);
      g[layers] = h[layers];
      for (std::size_t l = layers; l-- > 0;) {
        g[l].assign(values.begin() + static_cast<std::ptrdiff_t>(decoder_bias_at[l]),
                    values.begin() + static_cast<std::ptrdiff_t>(decoder_bias_at[l] + widths[l]));
        for (std::size_t o = 0; o < widths[l + 1]; ++o) {
          for (std::size_t i = 0; i < widths[l]; ++i) {
            g[l][i] += values[weight_at[l] + o * widths[l] + i] * g[l + 1][o];
          }
        }
      }

      // Backward: first through the decoder, whose input side is the output, then through the encoder.
      std::vector<float> delta(widths[0]);
      for (std::size_t i = 0; i < widths[0]; ++i) {
        float const error = g[0][i] - h[0][i];
        *ctx.loss() += weight * error * error / 2;
        delta[i] = weight * error;
      }
      for (std::size_t l = 0; l < layers; ++l) {
        std::vector<float> above(widths[l + 1], 0.0F);
        for (std::size_t i = 0; i < widths[l]; ++i) {
          gradients[decoder_bias_at[l] + i] += delta[i];
        }
        for (std::size_t o = 0; o < widths[l + 1]; ++o) {
          for (std::size_t i = 0; i < widths[l]; ++i) {
            gradients[weight_at[l] + o * widths[l] + i] += g[l + 1][o] * delta[i];
            above[o] += values[weight_at[l] + o * widths[l] + i] * delta[i];
          }
        }
        delta = std::move(above);
        if (last) {
          ctx.gradient_ready(gradient(decoder_bias_at[l], widths[l]));
        }
      }
      for (std::size_t l = layers; l-- > 0;) {
        std::vector<float> below(widths[l], 0.0F);
        for (std::size_t o = 0; o < widths[l + 1]; ++o) {
          float const through = delta[o] * (1.0F - h[l + 1][o] * h[l + 1][o]);
          gradients[bias_at[l] + o] += through;
          for (std::size_t i = 0; i < widths[l]; ++i) {
            gradients[weight_at[l] + o * widths[l] + i] += through * h[l][i];
            below[i] += values[weight_at[l] + o * widths[l] + i] * through;
          }
        }
        delta = std::move(below);
        if (last) {  // the encoder is the last to use a layer's weights: now both uses are in the gradient
          ctx.gradient_ready(gradient(weight_at[l], widths[l] * widths[l + 1]));
          ctx.gradient_ready(gradient(bias_at[l], widths[l + 1]));
        }
      }
    }
  }
};

/// The program's own optimizer, for all parameters at once: Lion (Chen et al. 2023, algorithm 2), without weight decay. It is
/// given each tied parameter once.
struct lion {
  float learning_rate = 1e-3F;
  float beta1 = 0.9F;
  float beta2 = 0.99F;
  std::vector<std::vector<float>> momentum;

  void step(lockstep::update_context<lockstep::host>& ctx, std::span<lockstep::parameter const> parameters) {
    momentum.resize(parameters.size());
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      std::vector<float>& m = momentum[p];
      m.resize(parameters[p].count(), 0.0F);
      auto* const value = static_cast<float*>(parameters[p].value);
      auto const* const gradient = static_cast<float const*>(parameters[p].gradient);
      for (std::size_t i = 0; i < m.size(); ++i) {
        float const g = gradient[i] * ctx.gradient_factor();
        float const direction = beta1 * m[i] + (1 - beta1) * g;
        value[i] -= direction > 0 ? learning_rate : direction < 0 ? -learning_rate : 0.0F;
        m[i] = beta2 * m[i] + (1 - beta2) * g;
      }
    }
  }
};

using policy = lockstep::peer_all_reduce<>;
using transport = lockstep::communicator_for<policy::transport, lockstep::host>;

int run() {
  std::ifstream file{LOCKSTEP_DATA_DIR "/digits/digits.csv"};
  auto digits = lockstep::read_labelled_csv(file, "digits.csv", 10);
  for (float& pixel : digits.values<0>()) {
    pixel /= 16.0F;
  }
  auto const images = std::get<0>(digits.view());

  constexpr int ranks = 4;
  constexpr std::size_t batch = 64;
  constexpr int epochs = 4;
  std::vector<lockstep::device_id> devices;
  for (int r = 0; r < ranks; ++r) {
    devices.push_back(lockstep::device_id{r});
  }
  auto communicators = transport::create(devices, {});
  std::vector<autoencoder> models(ranks, autoencoder{7});
  std::vector<double> losses;
  std::exception_ptr failure;
  std::mutex mutex;

  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      try {
        autoencoder& mine = models[r];
        lockstep::host::device device{devices[r]};
        lockstep::replica<policy, lion, lockstep::host> replica{device, std::move(communicators[r]), mine.parameters(), lion{}};
        for (int epoch = 0; epoch < epochs; ++epoch) {
          double sum = 0;
          std::size_t steps = 0;
          for (std::size_t first = 0; first < images.count(); first += batch, ++steps) {
            auto const whole = lockstep::slice(images, first, std::min(batch, images.count() - first));
            auto const part = lockstep::plan::split(whole.count(), ranks, r);
            auto step = replica.begin({.samples = part.count, .total_samples = whole.count()});
            if (part.count != 0) {
              auto ctx = step.micro_batch(part.count);
              mine.train(ctx, lockstep::slice(whole, part.first, part.count));
            }
            sum += step.finish().loss();
          }
          if (r == 0) {
            losses.push_back(sum / static_cast<double>(steps));
            std::printf("epoch %d: loss %.4f\n", epoch + 1, losses.back());
          }
        }
      } catch (...) {
        std::lock_guard const lock{mutex};
        failure = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (failure != nullptr) {
    std::rethrow_exception(failure);
  }
  bool same = true;
  for (autoencoder const& model : models) {
    same = same && model.values == models.front().values;
  }
  std::printf("replicas %s\n", same ? "hold the same bits" : "differ");
  return same && losses.back() < 0.7 * losses.front() ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (std::exception const& e) {
    std::fprintf(stderr, "own_loop: %s\n", e.what());
    return 1;
  }
}
