// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <functional>
#include <vector>

/// Wall times of steps, taken so that what is compared is measured side by side.
namespace bench {

struct timing {
  double median_ms = 0;
  /// The distance between the quartiles, as a part of the median.
  double spread = 0;
  std::size_t steps = 0;
};

/// Runs some steps and returns when all of them are done.
using block = std::function<void(std::size_t steps)>;

inline double seconds_of(block const& run, std::size_t steps) {
  auto const begin = std::chrono::steady_clock::now();
  run(steps);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Element `part` (0 to 1) of sorted values, between neighbours where it falls between them.
inline double quantile(std::vector<double> const& sorted, double part) {
  double const at = part * static_cast<double>(sorted.size() - 1);
  auto const below = static_cast<std::size_t>(at);
  std::size_t const above = (std::min)(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

inline timing summary(std::vector<double> milliseconds, std::size_t steps_each) {
  std::sort(milliseconds.begin(), milliseconds.end());
  double const median = quantile(milliseconds, 0.5);
  return {median, (quantile(milliseconds, 0.75) - quantile(milliseconds, 0.25)) / median, steps_each * milliseconds.size()};
}

inline constexpr std::size_t warm_up_steps = 12;
inline constexpr std::size_t most_repetitions = 15;
inline constexpr std::size_t least_steps = 10;  // a repetition
inline constexpr double repetition_seconds = 0.02;

/// The time of a step of each alternative, warm: the median over repetitions in which each gets its turn, so that a clock that
/// drifts does so for all of them. A repetition of one alternative takes at least 10 steps and 20 ms. `seconds` bounds the
/// whole, but for three repetitions, which there always are.
inline std::vector<timing> time_in_turn(std::vector<block> const& alternatives, double seconds) {
  std::vector<std::size_t> steps;
  double a_repetition = 0;
  for (block const& run : alternatives) {
    run(warm_up_steps);
    double const estimate = seconds_of(run, least_steps) / static_cast<double>(least_steps);
    steps.push_back((std::max)(least_steps, static_cast<std::size_t>(std::ceil(repetition_seconds / estimate))));
    a_repetition += estimate * static_cast<double>(steps.back());
  }
  double const fitting = std::clamp(seconds / a_repetition, 3.0, static_cast<double>(most_repetitions));
  std::vector<std::vector<double>> times(alternatives.size());
  for (auto left = static_cast<std::size_t>(fitting); left > 0; --left) {
    for (std::size_t a = 0; a < alternatives.size(); ++a) {
      times[a].push_back(1000 * seconds_of(alternatives[a], steps[a]) / static_cast<double>(steps[a]));
    }
  }
  std::vector<timing> result;
  for (std::size_t a = 0; a < alternatives.size(); ++a) {
    result.push_back(summary(std::move(times[a]), steps[a]));
  }
  return result;
}

}  // namespace bench
