// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

#include "../seed.hpp"

/// What the tests of adam and adamw share.
namespace tests {

constexpr double unit = 0x1p-24;  // largest relative error of one f32 rounding

enum class decay_kind { coupled, decoupled };

/// The papers' formulas in f64, and a bound on how far f32 can be from them: each rounding adds at most `unit` times the
/// magnitude that is rounded, and earlier errors are carried on by the derivatives of the formula. A few roundings more than
/// there are make room for what is of second order.
struct adam_reference {
  decay_kind kind;
  double value = 0;
  double m = 0;
  double v = 0;
  double value_error = 0;
  double m_error = 0;
  double v_error = 0;

  /// Returns the size of the step.
  template <class Optimizer>
  double step(Optimizer const& o, std::uint64_t t, double rate, double gradient) {
    double const beta1 = static_cast<double>(o.beta1);
    double const beta2 = static_cast<double>(o.beta2);
    double const epsilon = static_cast<double>(o.epsilon);
    double const decay = static_cast<double>(o.weight_decay);
    double const coupled = kind == decay_kind::coupled ? decay : 0;
    double const decoupled = kind == decay_kind::decoupled ? rate * decay : 0;

    double const g = gradient + coupled * value;
    double const g_error = coupled * value_error + 3 * unit * (std::abs(gradient) + std::abs(coupled * value));
    m_error = beta1 * m_error + (1 - beta1) * g_error + 4 * unit * (beta1 * std::abs(m) + (1 - beta1) * std::abs(g));
    v_error = beta2 * v_error + (1 - beta2) * 2 * std::abs(g) * g_error + 5 * unit * (beta2 * v + (1 - beta2) * g * g);
    m = beta1 * m + (1 - beta1) * g;
    v = beta2 * v + (1 - beta2) * g * g;

    double const correction1 = correction(beta1, t);
    double const correction2 = correction(beta2, t);
    double const root = std::sqrt(v / correction2);
    double const below = root + epsilon;
    double const below_error = (v > 0 ? root * v_error / v / 2 : 0) + 4 * unit * below;
    double const change = rate * (m / correction1) / below;
    double const change_error =
        rate / correction1 / below * (m_error + std::abs(m) * below_error / below) + 5 * unit * std::abs(change);
    double const decayed = decoupled * value;
    value_error += decoupled * value_error + change_error + 4 * unit * (std::abs(decayed) + std::abs(change));
    value = value - decayed - change;
    value_error += unit * std::abs(value) + unit * value_error;
    return std::abs(decayed) + std::abs(change);
  }

  /// 1 - beta^t
  static double correction(double beta, std::uint64_t t) {
    return static_cast<double>(1 - std::pow(static_cast<long double>(beta), static_cast<long double>(t)));
  }
};

/// One element under adam or adamw.
struct adam_element {
  float value = 0;
  float m = 0;
  float v = 0;

  template <class Optimizer, class Info>
  void step(Optimizer const& o, Info const& info, float gradient) {
    value = o(value, gradient, m, v, o.prepare(info));
  }
};

/// Magnitudes from 1e-3 to 10, either sign, or zero. The first of a run is of order 1, so that coupled decay can't cancel it:
/// the relative error of a second moment that is all cancellation has no bound.
inline float random_gradient(generator& random, std::uint64_t t) {
  float const size = t == 1 ? random.real(1, 2) : random.once_in(10) ? 0 : std::pow(10.0f, random.real(-3, 1));
  return random.once_in(2) ? size : -size;
}

template <class Optimizer>
Optimizer random_adam(generator& random) {
  Optimizer o{};
  o.learning_rate = random.real(1e-4f, 0.1f);
  if (!random.once_in(3)) {
    o.beta1 = random.once_in(4) ? 0 : random.real(0, 0.99f);
    o.beta2 = random.once_in(2) ? random.real(0.5f, 0.99f) : random.real(0.99f, 0.99999f);
    o.epsilon = std::pow(10.0f, random.real(-10, -3));
  }
  o.weight_decay = random.once_in(3) ? 0 : random.real(0, 0.2f);
  return o;
}

}  // namespace tests
