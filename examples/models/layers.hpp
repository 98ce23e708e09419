// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/arena.hpp>

#include <cmath>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

/// What the multi-layer perceptrons of both backends share: their tensors, and the first values of these.
namespace examples {

/// For each layer `layer<i>.weight` {out, in}, group 0, and `layer<i>.bias` {out}, group 1, so that a program can leave biases
/// out of weight decay.
inline std::vector<lockstep::arena_tensor> layer_tensors(std::vector<std::size_t> const& widths) {
  std::vector<lockstep::arena_tensor> list;
  for (std::size_t layer = 0; layer + 1 < widths.size(); ++layer) {
    std::string const name = "layer" + std::to_string(layer);
    list.push_back({name + ".weight", {widths[layer + 1], widths[layer]}, {.group = 0}});
    list.push_back({name + ".bias", {widths[layer + 1]}, {.group = 1}});
  }
  return list;
}

/// Draws the weights of one layer from a normal distribution of variance 2 / in (He et al. 2015).
/// std::normal_distribution differs between standard libraries; this (Box and Muller 1958) does not.
inline std::vector<float> draw_weights(std::mt19937_64& random, std::size_t in, std::size_t out) {
  auto const uniform = [&random] { return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53; };
  double const scale = std::sqrt(2.0 / static_cast<double>(in));
  std::vector<float> weights(in * out);
  for (float& weight : weights) {
    double const radius = std::sqrt(-2.0 * std::log(uniform()));
    weight = static_cast<float>(scale * (radius * std::cos(2.0 * 3.14159265358979323846 * uniform())));
  }
  return weights;
}

}  // namespace examples
