// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/clock.hpp>
#include <lockstep/core/host_device.hpp>
#include <lockstep/core/step_result.hpp>
#include <lockstep/core/update.hpp>
#include <lockstep/optim/loss_scale.hpp>

#include <cstdint>

namespace lockstep {

/// gradient_rules as a device reads them.
struct device_rules {
  double max_norm = 0;
  bool scales = false;
  loss_scale scaling;

  friend bool operator==(device_rules const&, device_rules const&) = default;
};

/// What a device counts from step to step, in its own memory.
struct step_counters {
  /// Of the step that runs; and of the one that follows, where it is known before what its samples count for.
  step_decision decision;
  step_decision announced;
  std::uint64_t steps = 0;
  std::uint64_t applied = 0;
  /// Time spent on forward and backward, and on updates; and when what runs now began.
  std::uint64_t training_ns = 0;
  std::uint64_t training_since = 0;
  std::uint64_t updating_ns = 0;
  std::uint64_t updating_since = 0;
  /// Of the steps that follow.
  device_rules rules;
  loss_scale_state scale;
  /// What this rank's samples count for in the step that follows, where that is not their number.
  double weight = 0;
  /// The same of all ranks, where it is known.
  double total_weight = 0;
};

/// What is enqueued for a step's totals: one call each, on one thread of the device.
namespace totals_detail {

/// Where a model leaves what it adds up: f32 cells, zero when a micro-batch begins. The first is the loss; behind it, where the
/// model promises any of them, what counted, a vote to skip, its metrics, and how often each listing was used.
struct cells {
  static constexpr std::uint32_t loss = 0;
  static constexpr std::uint32_t counted = 1;
  static constexpr std::uint32_t vote = 2;
  static constexpr std::uint32_t metrics = 3;

  float* at;
  std::uint32_t count;
  std::uint32_t metric_count;
  /// By listing, the distinct parameter; null where uses are not counted on the device.
  std::uint32_t const* distinct;
};

/// Puts everything to its start, once.
struct clear {
  step_sums* sums;
  step_counters* counters;
  cells model;

  LOCKSTEP_HOST_DEVICE void operator()() const {
    *sums = {};
    *counters = {};
    for (std::uint32_t i = 0; i < model.count; ++i) {
      model.at[i] = 0;
    }
  }
};

/// Rules for the steps that follow. The loss scale starts with the first.
struct set_rules {
  step_counters* counters;
  device_rules rules;

  LOCKSTEP_HOST_DEVICE void operator()() const {
    if (!counters->rules.scales) {
      counters->scale = rules.scaling.first();
    }
    counters->rules = rules;
  }
};

struct set_weight {
  step_counters* counters;
  double weight;
  double total;
  step_decision announced;

  LOCKSTEP_HOST_DEVICE void operator()() const {
    counters->weight = weight;
    counters->total_weight = total;
    counters->announced = announced;
  }
};

/// Where the weight of a rank's samples is known from. `batch_and_total`: updates rely on that of all ranks too.
enum class weighing : std::uint8_t { samples, batch, batch_and_total, model };

/// A step begins: this rank's part of the sums, and the `count` numbers behind them. The cells are zero already.
struct open {
  step_sums* sums;
  step_counters* counters;
  std::uint32_t count;
  weighing from;
  double nominal;
  double samples;

  LOCKSTEP_HOST_DEVICE void operator()() const {
    double const weight = from == weighing::samples ? samples : from == weighing::model ? 0 : counters->weight;
    *sums = {.weight = weight,
             .nominal = nominal,
             .nominal_squares = nominal * nominal,
             .ranks = 1,
             .scale = counters->rules.scales ? static_cast<double>(counters->scale.scale) : 1.0,
             .max_norm = counters->rules.max_norm,
             .promised = from == weighing::batch_and_total ? counters->total_weight : 0};
    auto* const numbers = reinterpret_cast<double*>(sums + 1);
    for (std::uint32_t i = 0; i < count; ++i) {
      numbers[i] = 0;
    }
    counters->decision = sums->decision();
    ++counters->steps;
  }
};

/// All that an update depends on is added up.
struct decide {
  step_sums const* sums;
  step_counters* counters;

  LOCKSTEP_HOST_DEVICE void operator()() const { counters->decision = sums->decision(); }
};

/// This rank votes to leave the step out: nothing of it counts.
struct withdraw {
  step_sums* sums;
  std::uint32_t metric_count;

  LOCKSTEP_HOST_DEVICE void operator()() const {
    sums->loss = 0;
    sums->weight = 0;
    sums->votes = 1;
    for (std::uint32_t m = 0; m < metric_count; ++m) {
      reinterpret_cast<double*>(sums + 1)[m] = 0;
    }
  }
};

/// A micro-batch has ended: what the model left in its cells.
struct take {
  step_sums* sums;
  cells model;

  LOCKSTEP_HOST_DEVICE void operator()() const {
    sums->loss += static_cast<double>(model.at[cells::loss]);
    model.at[cells::loss] = 0;
    if (model.count > 1) {
      take_rest();
    }
  }
  LOCKSTEP_HOST_DEVICE void take_rest() const {
    auto* const metrics = reinterpret_cast<double*>(sums + 1);
    double* const uses = metrics + model.metric_count;
    float const* const used = model.at + cells::metrics + model.metric_count;
    sums->weight += static_cast<double>(model.at[cells::counted]);
    bool const votes = model.at[cells::vote] != 0;
    for (std::uint32_t m = 0; m < model.metric_count; ++m) {
      metrics[m] += static_cast<double>(model.at[cells::metrics + m]);
    }
    for (std::uint32_t i = cells::metrics + model.metric_count; i < model.count; ++i) {
      std::uint32_t const listing = i - cells::metrics - model.metric_count;
      uses[model.distinct[listing]] += static_cast<double>(used[listing]);
    }
    for (std::uint32_t i = cells::counted; i < model.count; ++i) {
      model.at[i] = 0;
    }
    if (votes || sums->votes != 0) {
      withdraw{sums, model.metric_count}();
    }
  }
};

/// Between these two a device works.
struct start_clock {
  std::uint64_t* since;

  LOCKSTEP_HOST_DEVICE void operator()() const { *since = clock_ns(); }
};
struct stop_clock {
  std::uint64_t* total;
  std::uint64_t const* since;

  LOCKSTEP_HOST_DEVICE void operator()() const { *total += clock_ns() - *since; }
};

/// All is added up: leaves the outcome where the host reads it, and the loss scale for the next step. Cells that are `pending`
/// are taken first.
struct close {
  step_sums* sums;
  step_counters* counters;
  cells model;
  bool pending;
  step_outcome* outcomes;
  std::uint64_t slots;

  LOCKSTEP_HOST_DEVICE void operator()() const {
    if (pending) {
      take{sums, model}();
    }
    if (!sums->skipped()) {
      ++counters->applied;
    }
    if (counters->rules.scales && sums->votes == 0 && sums->counts() && !sums->differ()) {
      counters->scale = counters->rules.scaling.next(counters->scale,
                                                     sums->overflowed() ? gradient_range::overflowed : gradient_range::finite);
    }
    step_outcome& left = outcomes[counters->steps % slots];
    left.sums = *sums;
    for (std::uint32_t m = 0; m < model.metric_count; ++m) {
      left.metrics[m] = reinterpret_cast<double const*>(sums + 1)[m];
    }
    left.step = counters->steps;
    left.applied = counters->applied;
  }
};

}  // namespace totals_detail

}  // namespace lockstep
