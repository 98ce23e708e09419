// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/concepts.hpp>
#include <lockstep/core/element_type.hpp>
#include <lockstep/core/error.hpp>
#include <lockstep/core/memory.hpp>
#include <lockstep/core/options.hpp>
#include <lockstep/core/parameter_list.hpp>
#include <lockstep/core/step_result.hpp>
#include <lockstep/core/update.hpp>
#include <lockstep/optim/gradient_rules.hpp>
#include <lockstep/step_calls.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace lockstep {

/// What a step adds up over all ranks beside gradients: the loss, what counted, votes to skip, the squares of gradients where a
/// rule asks for them, metrics, and, where the model counts them, in how many micro-batches each parameter was used. All of it
/// lies in device memory, and is worked out there.
template <class Backend>
class step_totals {
 public:
  using stream_ref = typename Backend::stream_ref;

  /// Outcomes are kept for this many steps.
  static constexpr std::uint64_t kept = 64;

  /// Throws usage_error for promises that don't go together. Requires: `parameters` outlives this object. Synchronizes: the
  /// host waits for the device.
  step_totals(typename Backend::device& device, parameter_list const& parameters, model_promises const& promises)
      : parameters_(&parameters),
        promises_(checked(promises)),
        measures_busy_(device.options().measure_busy),
        uses_(promises.reports_unused ? parameters.distinct_count() : 0, 0.0),
        unused_(promises.reports_unused ? parameters.listings().size() : 0, 0),
        sums_(device.allocate(sizeof(step_sums) + behind_sums() * sizeof(double), memory_use::other)),
        counters_(device.allocate(sizeof(step_counters), memory_use::other)),
        cells_(device.allocate(cell_count() * sizeof(float), memory_use::other)),
        outcomes_(device.allocate_pinned(kept * sizeof(step_outcome))) {
    if (promises.counts_uses) {
      std::vector<std::uint32_t> distinct;
      for (std::size_t const p : parameters.distinct_of_listing()) {
        distinct.push_back(static_cast<std::uint32_t>(p));
      }
      distinct_ = device.allocate(distinct.size() * sizeof(std::uint32_t), memory_use::other);
      Backend::copy(device.stream(), distinct_.data(), distinct.data(), distinct.size() * sizeof(std::uint32_t));
      device.stream().synchronize();  // before the list ends
    }
    run_once(device.stream());
    device.stream().synchronize();
    std::fill_n(outcomes_.template as<step_outcome>(), kept, step_outcome{});
  }

  /// Takes rules for the steps that follow; enqueues nothing where they are those that were set before.
  void set_rules(stream_ref stream, gradient_rules const& rules) {
    device_rules now;
    now.scales = rules.loss_scale.has_value();
    now.scaling = rules.loss_scale.value_or(loss_scale{});
    now.max_norm = rules.max_norm && std::isfinite(*rules.max_norm) ? static_cast<double>(*rules.max_norm) : 0.0;
    if (!(now == rules_)) {
      rules_ = now;
      Backend::invoke(stream, totals_detail::set_rules{counters(), now});
    }
  }
  /// The same for what this rank's samples count for, and those of all ranks, of which there are `nominal`: 0 where that is not
  /// known.
  void set_weight(stream_ref stream, double weight, double total, double nominal) {
    if (weight != weight_ || total != total_weight_ || nominal != nominal_) {
      weight_ = weight;
      total_weight_ = total;
      nominal_ = nominal;
      step_sums const all{.weight = total, .nominal = nominal, .nominal_squares = nominal * nominal, .ranks = 1, .scale = 1};
      Backend::invoke(stream, totals_detail::set_weight{counters(), weight, total, all.decision()});
    }
  }
  /// In device memory: what is known of the decision before anything is reduced. Behind `set_weight`.
  [[nodiscard]] step_decision const* announced() const noexcept { return &counters()->announced; }

  /// What a step knows of the weight of its samples before it is taken.
  enum class known_weight : std::uint8_t {
    none,   ///< they count one each, or as the model says where it promises that
    rank,   ///< this rank's, as `set_weight` was told
    total,  ///< all ranks' too, and updates rely on it
  };

  /// `nominal` samples were announced for all ranks, `samples` of them for this one.
  void open(stream_ref stream, double nominal, std::size_t samples, known_weight weight) {
    using totals_detail::weighing;
    weighing const from = weight == known_weight::total  ? weighing::batch_and_total
                          : weight == known_weight::rank ? weighing::batch
                          : promises_.counts_weight      ? weighing::model
                                                         : weighing::samples;
    Backend::invoke(stream, totals_detail::open{sums(), counters(), static_cast<std::uint32_t>(behind_sums()), from, nominal,
                                                static_cast<double>(samples)});
    std::fill(uses_.begin(), uses_.end(), 0.0);
    std::fill(unused_.begin(), unused_.end(), std::uint8_t{0});
    pending_ = false;
  }

  /// Where the model adds up: zero when a micro-batch begins. Null for what it does not promise.
  [[nodiscard]] float* loss_cell() const noexcept { return cell(totals_detail::cells::loss); }
  [[nodiscard]] float* counted_cell() const noexcept {
    return promises_.counts_weight ? cell(totals_detail::cells::counted) : nullptr;
  }
  [[nodiscard]] float* vote_cell() const noexcept { return promises_.votes ? cell(totals_detail::cells::vote) : nullptr; }
  [[nodiscard]] float* metric_cells() const noexcept {
    return metric_count() == 0 ? nullptr : cell(totals_detail::cells::metrics);
  }
  [[nodiscard]] float* use_cells() const noexcept {
    return promises_.counts_uses ? cell(totals_detail::cells::metrics + metric_count()) : nullptr;
  }

  /// A listing takes no part in the micro-batch that runs. Returns the distinct parameter when none of its listings does.
  std::optional<std::size_t> mark_unused(std::size_t listing) {
    unused_[listing] = 1;
    auto const distinct = parameters_->distinct_of_listing();
    for (std::size_t other = 0; other < unused_.size(); ++other) {
      if (distinct[other] == distinct[listing] && unused_[other] == 0) {
        return std::nullopt;
      }
    }
    return distinct[listing];
  }

  /// The model has run; what it left in its cells is taken by the next call of `take_cells` or `close`.
  void close_micro_batch() {
    pending_ = true;
    for (std::size_t listing = 0; listing < unused_.size(); ++listing) {
      if (std::exchange(unused_[listing], std::uint8_t{0}) == 0) {
        uses_[parameters_->distinct_of_listing()[listing]] += 1;
      }
    }
  }

  /// Before another micro-batch, and before `reduce`. Behind `open`.
  void take_cells(stream_ref stream) {
    if (std::exchange(pending_, false)) {
      Backend::invoke(stream, totals_detail::take{sums(), model_cells()});
    }
  }
  /// Whether an update depends on what the model leaves in its cells.
  [[nodiscard]] bool cells_decide() const noexcept {
    return promises_.counts_weight || promises_.votes || promises_.counts_uses;
  }

  /// This rank votes to leave the step out.
  void withdraw(stream_ref stream) {
    Backend::invoke(stream, totals_detail::withdraw{sums(), static_cast<std::uint32_t>(metric_count())});
  }

  /// What this rank adds has been enqueued, but for the use counts, which the host knows.
  void contribute(stream_ref stream) {
    if (!uses_.empty()) {
      Backend::copy(stream, use_counts(), uses_.data(), uses_.size() * sizeof(double));
    }
  }

  /// Adds up over the ranks.
  template <class Communicator>
  void reduce(Communicator& communicator, stream_ref stream) {
    communicator.all_reduce(typed_span{sums_.data(), sizeof(step_sums) / sizeof(double) + behind_sums(), element_type::f64},
                            reduction::sum, stream);
  }

  /// Works out what the update does, where sums have changed since `open`.
  void decide(stream_ref stream) { Backend::invoke(stream, totals_detail::decide{sums(), counters()}); }
  /// In device memory: what the update does with the step that runs. Behind `open`, and behind `decide` where that is called.
  [[nodiscard]] step_decision const* decision() const noexcept { return &counters()->decision; }

  /// Leaves the outcome of the step where the host reads it.
  void close(stream_ref stream) {
    Backend::invoke(stream, totals_detail::close{sums(), counters(), model_cells(), std::exchange(pending_, false),
                                                 outcomes_.template as<step_outcome>(), kept});
  }

  /// Measures what is enqueued between the two: forward and backward, or an update.
  enum class measured { training, updating };
  void start_clock(measured which, stream_ref stream) {
    if (measures_busy_) {
      Backend::invoke(stream, totals_detail::start_clock{since(which)});
    }
  }
  void stop_clock(measured which, stream_ref stream) {
    if (measures_busy_) {
      step_counters* const all = counters();
      Backend::invoke(
          stream, totals_detail::stop_clock{which == measured::training ? &all->training_ns : &all->updating_ns, since(which)});
    }
  }
  /// Enqueues copying the counters to `host`.
  void read_counters(step_counters& host, stream_ref stream) const { Backend::copy(stream, &host, counters(), sizeof host); }

  /// The outcome of a step: done, and not `kept` or more steps back.
  [[nodiscard]] step_outcome const& outcome(std::uint64_t step) const noexcept {
    return outcomes_.template as<step_outcome>()[step % kept];
  }

  /// In device memory: in how many micro-batches each distinct parameter was used; null where that is not counted.
  [[nodiscard]] double const* uses() const noexcept { return counts_uses() ? use_counts() : nullptr; }
  /// The same on the host, empty where they are not counted, once what was enqueued is done.
  [[nodiscard]] std::vector<double> uses_on_host(stream_ref stream) const {
    std::vector<double> counts(counts_uses() ? parameters_->distinct_count() : 0);
    Backend::copy(stream, counts.data(), uses(), counts.size() * sizeof(double));
    return counts;
  }
  /// In device memory: the sum of squares of gradients of the step that runs.
  [[nodiscard]] double* squares() const noexcept { return &sums()->squares; }
  /// In device memory: the loss scale of the step that runs; null where there is none.
  [[nodiscard]] float const* scale() const noexcept { return rules_.scales ? &counters()->scale.scale : nullptr; }
  /// In device memory: how many updates were made before this step.
  [[nodiscard]] std::uint64_t const* applied() const noexcept { return &counters()->applied; }

 private:
  [[nodiscard]] step_sums* sums() const noexcept { return sums_.template as<step_sums>(); }

  static_assert(sizeof(step_sums) % sizeof(double) == 0);

  [[nodiscard]] static model_promises checked(model_promises const& promises) {
    expects(!(promises.reports_unused && promises.counts_uses),
            "a model promises reports_unused or counts_uses: unused parameters are known on the host or on the device");
    return promises;
  }

  /// Everything that is ever enqueued, and back to the start: kernels are loaded when they are first called, which must not
  /// happen while another rank waits.
  void run_once(stream_ref stream) {
    using namespace totals_detail;
    std::uint64_t* const time = since(measured::training);
    clear const start{sums(), counters(), model_cells()};
    Backend::invoke(stream, start);
    Backend::invoke(stream, totals_detail::set_rules{counters(), {}});
    Backend::invoke(stream, totals_detail::set_weight{counters(), 0, 0, {}});
    Backend::invoke(stream, totals_detail::open{sums(), counters(), 0, weighing::samples, 1, 1});
    Backend::invoke(stream, totals_detail::start_clock{time});
    Backend::invoke(stream, totals_detail::stop_clock{time, time});
    Backend::invoke(stream, totals_detail::take{sums(), model_cells()});
    Backend::invoke(stream, totals_detail::withdraw{sums(), 0});
    Backend::invoke(stream, totals_detail::decide{sums(), counters()});
    Backend::invoke(
        stream, totals_detail::close{sums(), counters(), model_cells(), false, outcomes_.template as<step_outcome>(), kept});
    Backend::invoke(stream, start);
  }

  [[nodiscard]] std::size_t metric_count() const noexcept { return count_of(promises_.metrics); }
  [[nodiscard]] bool counts_uses() const noexcept { return promises_.reports_unused || promises_.counts_uses; }
  /// Numbers behind the sums: metrics, then uses by distinct parameter.
  [[nodiscard]] std::size_t behind_sums() const noexcept {
    return metric_count() + (counts_uses() ? parameters_->distinct_count() : 0);
  }
  [[nodiscard]] double* use_counts() const noexcept { return reinterpret_cast<double*>(sums() + 1) + metric_count(); }
  [[nodiscard]] std::size_t cell_count() const noexcept {
    return cells_decide() || metric_count() != 0
               ? totals_detail::cells::metrics + metric_count() + (promises_.counts_uses ? parameters_->listings().size() : 0)
               : 1;
  }
  [[nodiscard]] totals_detail::cells model_cells() const noexcept {
    return {cell(0), static_cast<std::uint32_t>(cell_count()), static_cast<std::uint32_t>(metric_count()),
            promises_.counts_uses ? distinct_.template as<std::uint32_t>() : nullptr};
  }
  [[nodiscard]] float* cell(std::size_t at) const noexcept { return cells_.template as<float>() + at; }
  [[nodiscard]] std::uint64_t* since(measured which) const noexcept {
    return which == measured::training ? &counters()->training_since : &counters()->updating_since;
  }
  [[nodiscard]] step_counters* counters() const noexcept { return counters_.template as<step_counters>(); }

  parameter_list const* parameters_;
  model_promises promises_;
  bool measures_busy_;
  device_rules rules_;  // set last
  double weight_ = 0;   // set last, as are these
  double total_weight_ = 0;
  double nominal_ = 0;
  std::vector<double> uses_;          // by distinct parameter, on this rank, where the host reports them
  std::vector<std::uint8_t> unused_;  // by listing, in the micro-batch that runs
  bool pending_ = false;              // the cells hold what a micro-batch left
  typename Backend::buffer sums_;     // step_sums, and the numbers behind them
  typename Backend::buffer counters_;
  typename Backend::buffer cells_;
  typename Backend::buffer distinct_;
  typename Backend::pinned_buffer outcomes_;
};

}  // namespace lockstep
