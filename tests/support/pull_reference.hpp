// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "pull_model.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

namespace support {

/// A pull_model of up to 13 parameters, some of them empty, tied or larger than a small bucket.
inline pull_plan random_plan(tests::generator& random) {
  pull_plan plan;
  plan.counts.clear();
  std::size_t const parameters = random.whole(1, 12);
  for (std::size_t p = 0; p < parameters; ++p) {
    plan.counts.push_back(random.chance(0.1) ? 0 : random.whole(1, random.chance(0.2) ? 900 : 40));
  }
  plan.counts.push_back(random.whole(1, 30));
  plan.memory = std::array{layout::arena, layout::scattered, layout::backwards}[random.whole(0, 2)];
  plan.marks = static_cast<marking>(random.whole(0, static_cast<std::size_t>(marking::shuffled)));
  if (random.chance(0.3)) {
    plan.tied.push_back(random.whole(0, plan.counts.size() - 1));
  }
  plan.seed = random.whole(0, 1U << 30U);
  return plan;
}

/// The training of a pull_model in double precision, by the book: mean gradient over all samples, SGD with momentum 0.5.
struct pull_reference {
  explicit pull_reference(pull_plan const& model_plan) : plan(model_plan) {
    for (std::size_t const count : plan.counts) {
      values.emplace_back();
      for (std::size_t e = 0; e < count; ++e) {
        values.back().push_back(static_cast<double>(pull_start(count, e)));
      }
      momentum.emplace_back(count, 0.0);
    }
  }
  /// Returns the mean loss before the step.
  double step(pull_samples const& samples, double rate) {
    double loss = 0;
    for (std::size_t p = 0; p < values.size(); ++p) {
      auto const uses = 1.0 + static_cast<double>(std::count(plan.tied.begin(), plan.tied.end(), p));
      for (std::size_t e = 0; e < values[p].size(); ++e) {
        double gradient = 0;
        for (std::size_t s = 0; s < samples.count; ++s) {
          double const error = values[p][e] - static_cast<double>(samples.data[s * samples.width + (p + e) % samples.width]);
          gradient += uses * error;
          loss += uses * 0.5 * error * error;
        }
        momentum[p][e] = 0.5 * momentum[p][e] + gradient / static_cast<double>(samples.count);
        values[p][e] -= rate * momentum[p][e];
      }
    }
    return loss / static_cast<double>(samples.count);
  }

  pull_plan plan;
  std::vector<std::vector<double>> values;
  std::vector<std::vector<double>> momentum;
};

}  // namespace support
