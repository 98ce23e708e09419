// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/concepts.hpp>
#include <lockstep/core/devices.hpp>
#include <lockstep/core/element_type.hpp>
#include <lockstep/core/error.hpp>
#include <lockstep/core/parameter.hpp>
#include <lockstep/policy/single_device.hpp>
#include <lockstep/trainer.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <random>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep {

struct gradient_check_options {
  /// How many elements of each parameter to differentiate, drawn from `seed`; all where there are fewer.
  std::size_t elements_per_parameter = 16;
  std::uint64_t seed = 0;
  std::size_t micro_batches = 1;
};

/// One element's gradient, from the model and from its loss.
struct gradient_comparison {
  std::string parameter;
  std::size_t element = 0;
  /// What the model's `train` computed, added over all ranks.
  double analytic = 0;
  /// What the loss says.
  double numeric = 0;
  /// How far off `numeric` may be: what it still changed when the step was made smaller, and the rounding of an f32 loss.
  double uncertainty = 0;

  /// The difference beyond the uncertainty, relative to the larger of the two; 0 where they agree within it.
  [[nodiscard]] double error() const noexcept {
    double const beyond = std::abs(analytic - numeric) - uncertainty;
    if (std::isnan(beyond)) {
      return HUGE_VAL;
    }
    return beyond <= 0 ? 0 : beyond / (std::max)(std::abs(analytic), std::abs(numeric));
  }
};

struct gradient_report {
  /// Where analytic and numeric gradient differ most.
  gradient_comparison worst;
  /// How many elements were compared.
  std::size_t checked = 0;

  /// Whether every error is at most `tolerance`: a wrong factor or term is far above 0.01, rounding far below.
  [[nodiscard]] bool within(double tolerance = 0.01) const noexcept { return checked != 0 && worst.error() <= tolerance; }
};

/// "worst of 36 elements: 'layer0.weight'[17] has gradient 0.25, but its loss says 0.125 (+- 1e-05)"
[[nodiscard]] inline std::string to_string(gradient_report const& report) {
  auto const number = [](double value) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%.6g", value);
    return std::string{text.data()};
  };
  gradient_comparison const& w = report.worst;
  return std::string("worst of ") + std::to_string(report.checked) + " elements: '" + w.parameter + "'[" +
         std::to_string(w.element) + "] has gradient " + number(w.analytic) + ", but its loss says " + number(w.numeric) +
         " (+- " + number(w.uncertainty) + ")";
}

namespace gradient_check_detail {

/// Leaves every value as it is.
struct keep_values {
  template <class Backend>
  void step(update_context<Backend>&, std::span<parameter const>) const noexcept {}
};

/// Derivative at 0 of `f`, by central differences with steps h, h/2, h/4, ... extrapolated to none: Ridders, "Accurate
/// computation of F'(x) and F'(x)F''(x)", Advances in Engineering Software 4 (1982). Of the estimates, the one that moved
/// least. `f(h)` returns the point it was really evaluated at, for steps are rounded, and the loss there.
struct estimate {
  double derivative = 0;
  double uncertainty = HUGE_VAL;
};
template <class F>
estimate differentiate(F&& f, double first, int shorter = 2) {
  constexpr std::size_t levels = 6;
  constexpr double rounding = 4 * 0x1p-24;  // of a loss that was added up in f32
  estimate best;
  std::array<std::array<double, levels>, levels> table{};
  std::array<double, levels> noises{};
  std::size_t known = 0;
  double h = first;
  for (std::size_t i = 0; i < levels; ++i, h /= 2) {
    auto const [above_at, above] = f(h);
    auto const [below_at, below] = f(-h);
    double const width = above_at - below_at;
    if (!(width > 0)) {
      break;  // the step is below the precision of the value
    }
    double noise = rounding * (std::abs(above) + std::abs(below)) / width;
    table[i][0] = (above - below) / width;
    noises[i] = noise;
    known = i + 1;
    if (i == 0) {
      best = {table[0][0], HUGE_VAL};
    }
    double factor = 1;
    for (std::size_t j = 1; j <= i; ++j) {
      factor *= 4;
      table[i][j] = (factor * table[i][j - 1] - table[i - 1][j - 1]) / (factor - 1);
      double const moved = (std::max)(std::abs(table[i][j] - table[i][j - 1]), std::abs(table[i][j] - table[i - 1][j - 1]));
      noise *= 5.0 / 3.0;  // what extrapolation makes of it, at most
      if (moved + noise < best.uncertainty) {
        best = {table[i][j], moved + noise};
      }
    }
  }
  // A corner, as of a ReLU, between the points of the longer steps can make them agree on a wrong slope. The short steps reach
  // it seldom: what they contradict beyond their noise starts again with shorter ones, and in the end is not known.
  double contradicted = 0;
  for (std::size_t i = levels / 2; i < known; ++i) {
    contradicted = (std::max)(contradicted, std::abs(best.derivative - table[i][0]) - noises[i]);
  }
  if (contradicted > best.uncertainty && shorter != 0) {
    return differentiate(f, first / 8, shorter - 1);
  }
  best.uncertainty = (std::max)(best.uncertainty, contradicted);
  return best;
}

}  // namespace gradient_check_detail

/// Compares the gradient that a model computes with the numeric derivative of its loss, under a policy: for people who write
/// backward passes by hand. `batch` and `factory` are those of a trainer. Values come back as they were.
///
///   using policy = lockstep::peer_all_reduce<>;
///   auto const report = lockstep::gradient_check<mlp, policy>(lockstep::devices::first(4), factory, batch);
///   if (!report.within()) { std::puts(to_string(report).c_str()); }
///
/// Beside a corner of the loss, as of a ReLU, the numeric derivative may be wrong: a complaint about one element out of
/// thousands that another seed of the batch does not repeat is such a place. Throws what a trainer throws. The model's loss
/// must be a function of parameters and batch alone: fix the seed of dropout. Complexity: 12 steps for each element compared,
/// up to 36 beside a corner of the loss.
template <class Model, class Policy = single_device, class Factory>
gradient_report gradient_check(devices const& chosen, Factory&& factory, typename Model::batch const& batch,
                               gradient_check_options options = {}) {
  using backend_type = typename Model::backend;
  using stream_ref = typename backend_type::stream_ref;
  trainer<Model, gradient_check_detail::keep_values, Policy> probe{chosen, std::forward<Factory>(factory),
                                                                   gradient_check_detail::keep_values{}};
  auto const read = [](typed_span one) {
    double value = 0;
    visit(one.type, [&]<class T>(std::type_identity<T>) {
      T raw{};
      backend_type::copy(stream_ref{}, &raw, one.data, sizeof(T));
      stream_ref{}.synchronize();
      value = static_cast<double>(raw);
    });
    return value;
  };
  // Writes `value`, rounded to the element's type, on every rank; returns what was written.
  auto const write = [&](std::size_t p, std::size_t element, double value) {
    for (int r = 0; r < probe.size(); ++r) {
      typed_span const one =
          std::begin(probe.model(rank_id{r}).parameters())[static_cast<std::ptrdiff_t>(p)].values().part(element, 1);
      visit(one.type, [&]<class T>(std::type_identity<T>) {
        T raw{};
        if constexpr (std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>) {
          raw = T(static_cast<float>(value));
        } else {
          raw = static_cast<T>(value);
        }
        backend_type::copy(stream_ref{}, one.data, &raw, sizeof(T));
        stream_ref{}.synchronize();
        value = static_cast<double>(raw);
      });
    }
    return value;
  };

  gradient_report report;
  std::mt19937_64 random{options.seed};
  step_options const step{.micro_batches = options.micro_batches};
  auto&& listed = probe.model().parameters();
  std::vector<parameter> const parameters(std::begin(listed), std::end(listed));
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    parameter const& described = parameters[p];
    if (!described.trainable()) {
      continue;
    }
    std::vector<std::size_t> elements(described.count());
    for (std::size_t e = 0; e < elements.size(); ++e) {
      elements[e] = e;
    }
    std::shuffle(elements.begin(), elements.end(), random);
    elements.resize((std::min)(elements.size(), options.elements_per_parameter));
    for (std::size_t const element : elements) {
      double const value = read(described.values().part(element, 1));
      auto const loss_at = [&](double h) {
        double const at = write(p, element, value + h);
        return std::pair{at, probe.step(batch, step).loss()};
      };
      static_cast<void>(probe.step(batch, step));
      probe.synchronize();
      gradient_comparison found{described.name, element, read(described.gradients().part(element, 1))};
      auto const [numeric, uncertainty] =
          gradient_check_detail::differentiate(loss_at, 0.0625 * (std::max)(std::abs(value), 0.125));
      write(p, element, value);
      found.numeric = numeric;
      found.uncertainty = uncertainty;
      if (report.checked++ == 0 || found.error() > report.worst.error()) {
        report.worst = found;
      }
    }
  }
  return report;
}

}  // namespace lockstep
