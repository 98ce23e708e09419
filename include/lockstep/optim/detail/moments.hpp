// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/host_device.hpp>
#include <lockstep/core/options.hpp>

#include <cmath>
#include <cstdint>

/// What adam and adamw share: the two moments of a gradient, and their bias corrections.
namespace lockstep::optim_detail {

/// 1 - beta^step, to within a few ulps of f64 for every step: no power near 1 is subtracted from 1, and for large steps the
/// power fades to 0. Requires: 0 <= beta < 1, step >= 1.
[[nodiscard]] LOCKSTEP_HOST_DEVICE inline double bias_correction(float beta, std::uint64_t step) {
  return -std::expm1(static_cast<double>(step) * std::log(static_cast<double>(beta)));
}

/// The factors of one step, the same for every element.
struct moment_factors {
  float beta1;
  float beta2;
  float one_minus_beta1;
  float one_minus_beta2;
  float epsilon;
  /// learning_rate / (1 - beta1^t)
  float step_size;
  /// 1 / sqrt(1 - beta2^t)
  float root_factor;
};

[[nodiscard]] LOCKSTEP_HOST_DEVICE inline moment_factors prepare_moments(update_info const& info, float beta1, float beta2,
                                                                         float epsilon) {
  return {beta1,
          beta2,
          1 - beta1,
          1 - beta2,
          epsilon,
          static_cast<float>(static_cast<double>(info.learning_rate) / bias_correction(beta1, info.step)),
          static_cast<float>(1 / std::sqrt(bias_correction(beta2, info.step)))};
}

/// Updates both moments with `gradient`. Returns what Adam subtracts from the value: learning_rate * m_hat / (sqrt(v_hat) +
/// epsilon), where m_hat = first_moment / (1 - beta1^t) and v_hat = second_moment / (1 - beta2^t).
[[nodiscard]] LOCKSTEP_HOST_DEVICE inline float advance_moments(float gradient, float& first_moment, float& second_moment,
                                                                moment_factors const& f) {
  first_moment = f.beta1 * first_moment + f.one_minus_beta1 * gradient;
  second_moment = f.beta2 * second_moment + f.one_minus_beta2 * gradient * gradient;
  return f.step_size * first_moment / (std::sqrt(second_moment) * f.root_factor + f.epsilon);
}

}  // namespace lockstep::optim_detail
