// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/bucket_layout.hpp>
#include <lockstep/bucket_pipeline.hpp>
#include <lockstep/comm/agreement.hpp>
#include <lockstep/composes.hpp>
#include <lockstep/concepts.hpp>
#include <lockstep/core/context.hpp>
#include <lockstep/core/element_type.hpp>
#include <lockstep/core/error.hpp>
#include <lockstep/core/options.hpp>
#include <lockstep/core/parameter_list.hpp>
#include <lockstep/core/step_result.hpp>
#include <lockstep/mark_check.hpp>
#include <lockstep/optim/gradient_rules.hpp>
#include <lockstep/optimizer_state.hpp>
#include <lockstep/plan/order.hpp>
#include <lockstep/plan/readiness.hpp>
#include <lockstep/step_totals.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep {

/// What a rank is made of. Base of `replica`, which see.
template <class Policy, class Optimizer, class Backend>
class replica_body {
 public:
  using communicator_type = typename communicator_for<typename Policy::transport, Backend>::type;
  using stream_ref = typename Backend::stream_ref;
  class step;

  /// `optimizers` holds one for all parameters, or one for each parameter group. Values become rank 0's on every rank.
  /// Throws usage_error for what parameter_list refuses, memory that does not lie on the device, a group without optimizer, an
  /// element type that the optimizer can't update, and when the ranks' lists differ; a rank that throws releases the others.
  /// Synchronizes: with all ranks.
  template <class Parameters>
  replica_body(typename Backend::device& device, communicator_type communicator, Parameters&& parameters,
               std::vector<Optimizer> optimizers, model_promises promises = {}, gradient_rules const& rules = {})
      : device_(device),
        communicator_(std::move(communicator)),
        promises_(promises),
        rules_(rules),
        ruled_(rules),
        stream_(device.stream()) {
    expects(communicator_.size() > 0, "the replica's communicator was moved from");
    attempt("meeting the other ranks", [&] {
      parameters_ = parameter_list(std::forward<Parameters>(parameters));
      expect_here();
      state_.emplace(device_, parameters_, std::move(optimizers));
      meet();
    });
  }
  template <class Parameters>
  replica_body(typename Backend::device& device, communicator_type communicator, Parameters&& parameters, Optimizer optimizer,
               model_promises promises = {}, gradient_rules const& rules = {})
      : replica_body(device, std::move(communicator), std::forward<Parameters>(parameters),
                     std::vector<Optimizer>{std::move(optimizer)}, promises, rules) {}
  replica_body(replica_body const&) = delete;  // marks and steps point here
  replica_body& operator=(replica_body const&) = delete;
  /// Synchronizes: waits for the steps that run, unless one failed; their results can still be read.
  ~replica_body() {
    if (!failed_) {
      try {
        synchronize();
      } catch (...) {  // whoever asks for a result will hear of it
      }
    }
    for (std::uint64_t back = 0; back < (std::min)(known_, kept_results); ++back) {
      results_->outcomes[(known_ - back) % kept_results] = totals_->outcome(known_ - back);
    }
    results_->replica = nullptr;
  }

  /// Starts a step. One at a time. Synchronizes: waits for the step before the last, so that no more than two run at once.
  [[nodiscard]] step begin(step_info info) {
    start(info);
    return step{*this, info, running::now};
  }

  /// Records a step in a graph instead of running it: `work(step)` calls `micro_batch`, the model and `finish`, as for any
  /// step. Leaves everything as it is. After at least two steps of the same sizes, whose work this step repeats. Throws
  /// usage_error where that can't be: see capturable.
  template <class Work>
  [[nodiscard]] auto record(step_info info, Work&& work) {
    expects(!open_, "record: the step before has not ended");
    expects(capturable(), "record: the steps of this replica can't be captured");
    typename Backend::graph graph;
    attempt("capturing the step in a graph", [&] {
      graph = Backend::graph::capture(stream_, [&] {
        step recorded{*this, info, running::later};
        work(recorded);
      });
    });
    return graph;
  }
  /// Runs a recorded step. Every rank replays the same, or none does. Requires: `info` is that of the recording, but for the
  /// values of weights.
  template <class Graph>
  step_result replay(Graph const& graph, step_info info) {
    start(info);
    attempt("replaying the step", [&] {
      if constexpr (requires { communicator_.replay(); }) {
        communicator_.replay();
      }
      graph.launch(stream_);
    });
    return end();
  }
  /// Whether a step can be recorded: the backend has graphs, and nothing of a step is decided by the host.
  [[nodiscard]] bool capturable() const noexcept {
    if constexpr (requires { typename Backend::graph; }) {
      return elementwise_optimizer<Optimizer> && promises_.capturable && !promises_.reports_unused && !marks_ && !asked_step_ &&
             steps_ > 1;
    } else {
      return false;
    }
  }

  /// Waits until all steps are done; throws what went wrong in them.
  void synchronize() {
    attempt("waiting for the device", [&] { communicator_.wait(stream_); });
    if (ended() != 0) {
      static_cast<void>(outcome(ended()));
    }
  }

  [[nodiscard]] rank_id rank() const noexcept { return communicator_.rank(); }
  [[nodiscard]] int size() const noexcept { return communicator_.size(); }
  [[nodiscard]] communicator_type& communicator() noexcept { return communicator_; }
  [[nodiscard]] communicator_type const& communicator() const noexcept { return communicator_; }
  [[nodiscard]] parameter_list const& parameters() const noexcept { return parameters_; }
  /// Changes take effect at the next step; make the same on every rank.
  [[nodiscard]] std::span<Optimizer> optimizers() noexcept { return state_->optimizers(); }
  /// Changes take effect at the next step; make the same on every rank. Which rules there are is fixed at construction.
  [[nodiscard]] gradient_rules& rules() noexcept { return rules_; }
  /// The largest `count` of any rank: how often all must step so that no rank is left waiting, those that have fewer batches
  /// with steps of 0 samples. Collective, between two steps. Synchronizes: with all ranks.
  [[nodiscard]] std::uint64_t longest(std::uint64_t count) {
    expects(!open_, "longest: the step before has not ended");
    std::uint64_t most = count;
    attempt("agreeing on the number of steps", [&] {
      std::uint64_t const mine[] = {count};
      for (std::uint64_t const of_rank : agreement_type{device_, communicator_, scratch_}.all_gather(mine)) {
        most = (std::max)(most, of_rank);
      }
    });
    return most;
  }
  /// How many updates were made. Synchronizes: waits until all steps are done.
  [[nodiscard]] std::uint64_t applied_steps() { return ended() == 0 ? 0 : outcome(ended()).applied; }
  /// How long the device has worked on forward, backward and updates so far, in seconds, without communication and what it
  /// waited for; beside communication that runs at the same time it is slower. Measured where the backend's options ask for
  /// `measure_busy`, else 0; updates of whole optimizers are not. Synchronizes: waits until all steps are done.
  [[nodiscard]] double busy_seconds() {
    synchronize();
    step_counters counters;
    attempt("reading its counters", [&] {
      totals_->read_counters(counters, stream_);
      communicator_.wait(stream_);
    });
    return static_cast<double>(counters.training_ns + counters.updating_ns) * 1e-9;
  }
  /// Whether a micro-batch of so many samples was trained here before.
  [[nodiscard]] bool knows(std::size_t samples) const {
    return std::binary_search(known_sizes_.begin(), known_sizes_.end(), samples);
  }
  /// Waits until another step may begin: for the step before the last.
  void wait_for_room() {
    if (!failed_ && !open_ && steps_ >= steps_in_flight) {
      static_cast<void>(outcome(steps_ - steps_in_flight + 1));
    }
  }
  /// Whether a step failed: then the parameters are invalid, and every later step is refused.
  [[nodiscard]] bool failed() const noexcept { return failed_; }
  /// What failed; empty while nothing has.
  [[nodiscard]] std::string const& failure() const noexcept { return failure_; }

 private:
  using agreement_type = agreement<Backend, communicator_type>;
  using totals_type = step_totals<Backend>;
  enum class running { now, later };

  static constexpr std::uint64_t kept_results = totals_type::kept;
  static constexpr std::uint64_t steps_in_flight = 2;

  // What step_results point at: the replica while it lives, and what it left.
  struct results {
    replica_body* replica = nullptr;
    std::array<step_outcome, kept_results> outcomes{};
  };

  [[nodiscard]] bool alone() const noexcept { return communicator_.size() == 1; }

  [[nodiscard]] std::string place(char const* doing) const {
    return place_of(rank(), device_) + ", step " + std::to_string(steps_) + ", " + doing;
  }

  /// Ends the step on every rank. The first reason stays.
  void fail(char const* reason) noexcept {
    if (!std::exchange(failed_, true)) {
      try {
        failure_ = reason;
        communicator_.abort(failure_);
      } catch (...) {  // no memory for the words: end it without
        communicator_.abort({});
      }
    }
  }

  /// Runs `work` with the device current; what it throws names the place, and ends the step on every rank.
  template <class Work>
  void attempt(char const* doing, Work&& work) {
    try {
      [[maybe_unused]] auto const current = activate(device_);
      work();
    } catch (...) {
      try {
        rethrow_cause();
      } catch (...) {
        try {
          rethrow_at(rank(), place(doing));
        } catch (std::exception const& e) {
          fail(e.what());
          throw;
        }
      }
    }
  }

  /// Call in a catch block. Where this rank was stopped by its own communication stream, throws what happened there.
  [[noreturn]] void rethrow_cause() {
    try {
      throw;
    } catch (aborted_error const&) {
      if (pipeline_) {
        pipeline_->rethrow_communication();
      }
      throw;
    }
  }

  // ---- steps and their outcomes ----

  /// The last step that `end` was reached of.
  [[nodiscard]] std::uint64_t ended() const noexcept { return steps_ - (open_ ? 1 : 0); }

  /// What the host does before a step is enqueued or replayed.
  void start(step_info const& info) {
    if (failed_) {
      throw error("lockstep: an earlier step failed, so the parameters in memory are invalid; build anew. It was: " + failure_);
    }
    expects(!open_, "begin: the step before has not ended");
    expects(info.updates == updates::held || info.total_samples != 0,
            "begin: buckets can be updated as they are reduced only where total_samples is given");
    wait_for_room();
    if (alone()) {
      check_begin(info);
    } else {
      attempt("beginning a step", [&] { check_begin(info); });  // the others may have begun
    }
    ++steps_;
    attempt("preparing", [&] {
      if constexpr (elementwise_optimizer<Optimizer>) {
        state_->set(stream_);
      }
      if (ruled_.any()) {
        totals_->set_rules(stream_, rules_);
      }
      if (info.weight) {
        totals_->set_weight(stream_, *info.weight, info.total_weight.value_or(0), static_cast<double>(info.total_samples));
      }
    });
  }

  /// Throws usage_error for what this rank alone may have got wrong.
  void check_begin(step_info const& info) const {
    validate(std::as_const(*state_).optimizers());
    rules_.validate();
    expects(rules_.same_kinds(ruled_), "rules: which of them there are is fixed when the replica is built");
    expects(!info.weight || !promises_.counts_weight, "begin: a weight is given, and the model counts it itself");
    for (std::optional<double> const& weight : {info.weight, info.total_weight}) {
      expects(!weight || (*weight >= 0 && std::isfinite(*weight)), "begin: a weight is finite, and not negative");
    }
    expects(!info.weight || info.total_weight || info.updates == updates::held,
            "begin: buckets can be updated as they are reduced only where the weight of all ranks is given");
  }

  /// What the host does once a step is enqueued.
  step_result end() {
    if constexpr (Backend::asynchronous) {
      attempt("preparing", [&] { finished_[steps_ % steps_in_flight].record(stream_); });
      return {results_, [](void* source, std::uint64_t number) { return fetch(*static_cast<results*>(source), number); },
              steps_, promises_.metrics};
    } else {
      return step_result{totals_->outcome(steps_), promises_.metrics};
    }
  }

  /// Waits for a step; throws what went wrong in it.
  step_outcome const& outcome(std::uint64_t number) {
    if (number > known_) {
      attempt((std::string("waiting for step ") + std::to_string(number) + " to end").c_str(), [&] {
        if (Backend::asynchronous) {
          communicator_.wait(finished_[number % steps_in_flight]);
        }
        expect_agreement(totals_->outcome(number).sums);
      });
      known_ = number;
    }
    return totals_->outcome(number);
  }

  static step_outcome fetch(results& from, std::uint64_t number) {
    if (from.replica != nullptr && number + kept_results > from.replica->steps_) {
      return from.replica->outcome(number);
    }
    step_outcome const& left = from.outcomes[number % kept_results];
    expects(from.replica == nullptr || number + kept_results > from.replica->steps_,
            "step_result: read it within 64 steps; what it stood for is gone");
    if (left.step != number) {
      throw error(std::string("lockstep: the result of step ") + std::to_string(number) +
                  " is not known any more: its trainer ended, before the step or 64 steps after it");
    }
    return left;
  }

  /// Throws where the ranks announced different numbers of samples.
  void expect_agreement(step_sums const& sums) const {
    if (sums.broken()) {
      refuse(std::string("begin: buckets were updated for a weight of all ranks of ") +
             std::to_string(sums.promised / sums.ranks) + " on the mean, but " + std::to_string(sums.weight) +
             " counted; every rank gives its weight, and the same total_weight");
    }
    if (sums.differ()) {
      refuse(std::string("begin: the ranks disagree about total_samples; here it is ") +
             std::to_string(static_cast<std::uint64_t>(nominal_)) + ", and its mean over the ranks is " +
             std::to_string(sums.nominal / sums.ranks));
    }
  }

  /// Throws usage_error for a parameter whose memory lies elsewhere, where the device can tell.
  void expect_here() const {
    if constexpr (requires(void const* memory) { device_.holds(memory); }) {
      auto const check_memory = [this](parameter const& p, void const* memory, char const* what) {
        if (p.count() != 0 && !device_.holds(memory)) {
          refuse(std::string("parameter '") + p.name + "': its " + what + " lies " + device_.whereabouts(memory) +
                 ", not on device " + std::to_string(number(device_.id())));
        }
      };
      for (parameter const& p : parameters_.listings()) {
        check_memory(p, p.value, "value");
        if (p.trainable()) {
          check_memory(p, p.gradient, "gradient");
        }
      }
    }
  }

  void meet() {
    rules_.validate();
    totals_.emplace(device_, parameters_, promises_);
    results_->replica = this;
    layout_.emplace(device_, parameters_, Policy::tuning_values);
    if (device_.options().checking == checking::marks) {
      marks_.emplace(parameters_);
    }
    agreement_type const meeting{device_, communicator_, scratch_};
    if (!alone()) {
      meeting.expect_same(settings(), parameters_);
    }
    layout_->meet(meeting);
    if constexpr (bucket_pipeline<Policy, Optimizer, Backend>::shares) {
      if (!alone()) {
        share_addresses(meeting);
      }
    }
    pipeline_.emplace(device_, communicator_, *layout_, *state_, *totals_);
    if (!alone()) {
      pipeline_->start_from_root();
    }
    if (alone() || !Backend::asynchronous) {
      own();  // else in the first step, once: giving memory back may have to wait for other ranks' devices
    }
    communicator_.wait(stream_);
  }

  /// Tells the others where this rank's parameters lie. Addresses mean the same in the whole process.
  void share_addresses(agreement_type const& meeting) {
    std::vector<std::uint64_t> words;
    for (peer_parameter const& p : state_->own_addresses()) {
      words.push_back(reinterpret_cast<std::uintptr_t>(p.gradient));
      words.push_back(reinterpret_cast<std::uintptr_t>(p.value));
    }
    for (std::size_t p = 0; p < parameters_.distinct_count(); ++p) {
      parameter const& mine = parameters_.distinct(p);
      for (void const* const memory : {static_cast<void const*>(mine.value), static_cast<void const*>(mine.gradient)}) {
        if (memory != nullptr && mine.count() != 0 && !communicator_.reaches(memory)) {
          refuse(std::string("parameter '") + mine.name +
                 "' lies in memory that other ranks can't reach: of a pool, managed or virtual; take plain device memory "
                 "(cudaMalloc), or lockstep::nccl");
        }
      }
    }
    words = meeting.all_gather(words);
    std::vector<peer_parameter> peers;
    for (std::size_t i = 0; i + 1 < words.size(); i += 2) {
      peers.push_back({reinterpret_cast<void const*>(words[i]), reinterpret_cast<void*>(words[i + 1])});
    }
    state_->share(std::move(peers), rank());
  }

  [[nodiscard]] std::string settings() const {
    constexpr tuning t = Policy::tuning_values;
    return std::string("bucket_bytes ") + std::to_string(t.bucket_bytes) + ", stage_below_bytes " +
           std::to_string(t.stage_below_bytes) + ", " + std::to_string(state_->optimizers().size()) +
           " optimizers, reports_unused " + yes(promises_.reports_unused) + ", counts_uses " + yes(promises_.counts_uses) +
           ", counts_weight " + yes(promises_.counts_weight) + ", votes " + yes(promises_.votes) + ", communicates " +
           yes(promises_.communicates) + ", metrics" + named(promises_.metrics) + ", " + to_string(rules_);
  }
  [[nodiscard]] static std::string named(metric_names const& metrics) {
    std::string text;
    for (std::size_t m = 0; m < count_of(metrics); ++m) {
      text += std::string(" '") + metrics[m] + "'";
    }
    return text.empty() ? " none" : text;
  }
  [[nodiscard]] static char const* yes(bool holds) noexcept { return holds ? "yes" : "no"; }

  /// Before the first update: what this rank will update, with optimizer state for just that.
  void own() {
    state_->own(layout_->owned([&](std::size_t count) { return Policy::owned(count, rank(), size()); }), stream_);
    if (ruled_.any()) {
      plan::owned_stretches const mine = layout_->owned([&](std::size_t count) { return measured_part(count); });
      std::vector<gradient_stretch> stretches;
      for (std::size_t i = 0; i < mine.stretches.size(); ++i) {
        plan::mark const& m = mine.stretches[i];
        stretches.push_back({parameters_.distinct(m.parameter).gradients().part(m.first, m.count), mine.buckets[i]});
      }
      pipeline_->measure(device_, std::move(stretches));
    }
  }

  /// Of a stretch of `count` gradients, those whose squares this rank adds up: what it updates, or an equal part where every
  /// rank updates everything. Throws usage_error for a policy that has several ranks update an element, but not all.
  [[nodiscard]] plan::range measured_part(std::size_t count) const {
    std::size_t owned_by_all = 0;
    for (int r = 0; r < size(); ++r) {
      owned_by_all += Policy::owned(count, rank_id{r}, size()).count;
    }
    plan::range const mine = Policy::owned(count, rank(), size());
    if (owned_by_all == count) {
      return mine;
    }
    expects(owned_by_all == count * static_cast<std::size_t>(size()) && mine.count == count,
            "gradient_rules need a policy under which each element is updated by one rank, or by all");
    return plan::part(count, static_cast<std::size_t>(number(rank())), static_cast<std::size_t>(size()));
  }

  /// This rank's gradients and totals are complete.
  void reduce(bool votes_to_skip) {
    if (!accumulated_) {
      layout_->gradients().zero_gradients(stream_);  // skipped before anything was written
    }
    if (recording() && (layout_->adopt_order(agreement_type{device_, communicator_, scratch_}) || Backend::asynchronous)) {
      own();
      if constexpr (elementwise_optimizer<Optimizer>) {
        state_->set(stream_);
        state_->prepare(stream_, totals_->applied());
      }
    }
    pipeline_->reduce_rest(votes_to_skip);
    pipeline_->close();
    if constexpr (!Backend::asynchronous) {
      expect_agreement(totals_->outcome(steps_).sums);
    }
  }

  void update() {
    if constexpr (elementwise_optimizer<Optimizer>) {
      pipeline_->update();
    } else {
      communicator_.wait(pipeline_->closed());
      step_outcome const& outcome = totals_->outcome(steps_);
      expect_agreement(outcome.sums);
      if (!outcome.sums.skipped()) {
        std::vector<double> const uses = totals_->uses_on_host(stream_);
        communicator_.wait(stream_);
        state_->update(stream_, outcome.applied, outcome.sums.factor(), uses);
      }
    }
  }

  /// Whether no parameter may be updated before all gradients, votes and uses are known.
  [[nodiscard]] bool needs_all_gradients() const noexcept {
    return ruled_.any() || promises_.reports_unused || totals_->cells_decide();
  }

  /// A weight as kernels take it, times the loss scale.
  [[nodiscard]] typename Backend::weight scaled(double factor) const {
    auto const f = static_cast<float>(factor);
    if constexpr (std::is_constructible_v<typename Backend::weight, float, float const*>) {
      return typename Backend::weight{f, totals_->scale()};
    } else {
      static_assert(!Backend::asynchronous, "a weight of this backend is built from a factor and the address of a loss scale");
      return totals_->scale() == nullptr ? typename Backend::weight{f} : typename Backend::weight{f * *totals_->scale()};
    }
  }

  /// The first micro-batch of a size may load kernels.
  void hold_unless_known(std::size_t samples) {
    loads_ = Backend::asynchronous && !alone() && !knows(samples);
    if (loads_) {
      known_sizes_.insert(std::lower_bound(known_sizes_.begin(), known_sizes_.end(), samples), samples);
      holds_ = true;
    }
  }

  // ---- marks: what the model says while it runs ----

  [[nodiscard]] gradient_listener listener(bool last) noexcept {
    gradient_listener heard;
    heard.self = this;
    heard.step = [](void* self) { of(self).asked_step_ = true; };
    if (promises_.communicates) {
      heard.all_reduce = [](void* self, typed_span data) { of(self).all_reduce(data); };
    }
    heard.unused = last ? [](void* self, std::size_t index) { of(self).unused(index, true); }
                        : [](void* self, std::size_t index) { of(self).unused(index, false); };
    if (last) {
      heard.ready = [](void* self, std::size_t first, std::size_t count) { of(self).ready(first, count); };
      heard.ready_memory = [](void* self, void const* first, std::size_t bytes) { of(self).ready_memory(first, bytes); };
    }
    return heard;
  }
  [[nodiscard]] static replica_body& of(void* self) noexcept { return *static_cast<replica_body*>(self); }

  void expect_listed(char const* call, std::size_t first, std::size_t count) const {
    std::size_t const listed = parameters_.listings().size();
    if (first > listed || count > listed - first) [[unlikely]] {
      refuse(std::string(call) + ": parameters " + std::to_string(first) + " to " + std::to_string(first + count) +
             " (not included) are not all listed; the model lists " + std::to_string(listed));
    }
  }

  void ready(std::size_t first, std::size_t count) {
    expect_listed("gradient_ready", first, count);
    if (alone() && !marks_ && !promises_.reports_unused && !ruled_.any()) {
      return;  // nothing waits for it
    }
    for (std::size_t listing = first; listing < first + count; ++listing) {
      if (layout_->readiness().mark(listing)) {
        std::size_t const p = parameters_.distinct_of_listing()[listing];
        note({p, 0, parameters_.distinct(p).count()});
      }
    }
    launch_ready();
  }

  void ready_memory(void const* first, std::size_t bytes) {
    parameters_.find_gradients(first, bytes, [&](std::size_t p, std::size_t begin, std::size_t count) {
      layout_->readiness().mark_range(p, begin, count);
      note({p, begin, count});
    });
    launch_ready();
  }

  /// A parameter none of whose listings takes part has a gradient of zero, and is ready.
  void unused(std::size_t index, bool last) {
    expect_listed("unused", index, 1);
    expects(promises_.reports_unused,
            "ctx.unused was called by a model that does not promise it; add "
            "`static constexpr lockstep::model_promises promises{.reports_unused = true};`");
    if (last && layout_->readiness().touched(index)) {
      refuse(std::string("ctx.unused: parameter '") + parameters_.listings()[index].name +
             "' was marked ready before, and may be on its way; say unused instead of gradient_ready");
    }
    if (auto const p = totals_->mark_unused(index); p && !accumulated_ && parameters_.distinct(*p).trainable()) {
      typed_span const gradient = parameters_.distinct(*p).gradients();
      [[maybe_unused]] auto const current = activate(device_);
      Backend::zero(stream_, gradient.data, gradient.bytes());  // the model won't write it
    }
    if (last) {
      ready(index, 1);
    }
  }

  /// What the model adds up over the ranks within a step. Nothing else travels then: its gradients wait for the end of
  /// backward.
  void all_reduce(typed_span data) {
    attempt("adding up over the ranks within train", [&] {
      communicator_.all_reduce(data, reduction::sum, stream_);
      if (loads_) {
        communicator_.wait(stream_);  // what the model loads next must not meet a rank that waits
      }
    });
  }

  /// The first step sends nothing before backward has ended, and records in which order gradients became ready.
  [[nodiscard]] bool recording() const noexcept { return steps_ == 1 && !alone(); }

  void note(plan::mark const& part) {
    if (recording()) {
      layout_->record(part);
    }
    if (marks_) {
      marks_->mark(part.parameter, part.first, part.count, stream_);
    }
  }

  /// Sends off the buckets that are complete. The first step of a size loads kernels, perhaps, which must not happen while
  /// another rank waits for this one: it reduces after backward. So do models that may make the host wait.
  void launch_ready() {
    if ((!alone() || ruled_.any()) && !recording() && !marks_ && !holds_) {
      [[maybe_unused]] auto const current = activate(device_);
      pipeline_->reduce_until(layout_->readiness().launchable());
    }
  }

  typename Backend::device& device_;
  communicator_type communicator_;
  parameter_list parameters_;
  model_promises promises_;
  gradient_rules rules_;
  gradient_rules ruled_;  // at construction
  stream_ref stream_;
  std::optional<optimizer_state<Optimizer, Backend>> state_;
  std::optional<bucket_layout<Backend>> layout_;
  std::optional<totals_type> totals_;
  std::optional<mark_check<Backend>> marks_;
  std::shared_ptr<results> results_ = std::make_shared<results>();
  std::array<typename Backend::event, steps_in_flight> finished_;
  std::vector<typename Backend::buffer> scratch_;  // of agreements; kept, for giving it back may wait for other ranks' devices
  std::vector<std::size_t> known_sizes_;           // samples of micro-batches that ran before, sorted

  double nominal_ = 1;
  bool accumulated_ = false;  // gradients hold something of this step
  bool holds_ = false;        // nothing is reduced before backward has ended
  bool loads_ = false;        // the micro-batch that runs is the first of its size
  bool open_ = false;
  bool failed_ = false;
  bool asked_step_ = false;  // the model's work depends on the number of the step
  std::uint64_t steps_ = 0;
  std::uint64_t known_ = 0;  // the last step that is known to have ended
  std::string failure_;

  // Last, so that it ends first: what runs there uses the rest.
  std::optional<bucket_pipeline<Policy, Optimizer, Backend>> pipeline_;
};

/// One step of one rank. Made by replica::begin. Left unfinished, it ends the step on all ranks with an error; `skip` is the
/// way out that keeps everyone healthy.
template <class Policy, class Optimizer, class Backend>
class [[nodiscard]] replica_body<Policy, Optimizer, Backend>::step {
 public:
  step(step const&) = delete;
  step& operator=(step const&) = delete;
  ~step() {
    if (phase_ == phase::done) {
      return;
    }
    owner_.open_ = false;
    if (!owner_.failed_) {
      bool const thrown = std::uncaught_exceptions() > exceptions_;
      try {
        owner_.fail(owner_.place(thrown ? "ended by an exception of the caller's" : "step left unfinished").c_str());
      } catch (...) {  // no memory for the words
        owner_.fail("step left unfinished");
      }
    }
  }

  /// The context for the next `samples` samples: at least 1, and together not more than announced. The model runs before the
  /// next call of this object. Of a model that communicates, every rank runs equally many micro-batches, with 0 samples too.
  [[nodiscard]] train_context<Backend> micro_batch(std::size_t samples) {
    expects(phase_ == phase::backward, "micro_batch comes before reduce");
    expects(samples > 0 || owner_.promises_.communicates, "a micro-batch has at least one sample");
    close_micro_batch();
    if (samples > info_.samples - trained_) {
      refuse(std::string("micro_batch(") + std::to_string(samples) + "): " + std::to_string(info_.samples) +
             " samples were announced to begin, and " + std::to_string(trained_) + " have been trained");
    }
    expect_going_on();
    if (micro_batches_ != 0) {
      owner_.attempt("preparing", [&] { owner_.pipeline_->take_cells(); });
    }
    owner_.hold_unless_known(samples);
    bool const accumulate = owner_.accumulated_;
    running_ = samples;
    double const nominal = owner_.nominal_;
    totals_type const& totals = *owner_.totals_;
    train_arguments<Backend> arguments{
        .stream = owner_.stream_,
        .sample_weight = owner_.scaled(1.0 / nominal),
        .shard_weight = owner_.scaled(static_cast<double>(samples) / nominal),
        .loss = totals.loss_cell(),
        .counted = totals.counted_cell(),
        .skip_vote = totals.vote_cell(),
        .metrics = totals.metric_cells(),
        .metric_count = count_of(owner_.promises_.metrics),
        .use_counts = totals.use_cells(),
        .accumulate = accumulate,
        .rank = owner_.rank(),
        .step = owner_.steps_,
        .shard = static_cast<std::size_t>(number(owner_.rank())) + micro_batches_++ * static_cast<std::size_t>(owner_.size()),
        .listener = owner_.listener(trained_ + samples == info_.samples && !owner_.promises_.communicates)};
    if (totals.scale() == nullptr) {
      arguments.host_sample_weight = static_cast<float>(1.0 / nominal);
    }
    return train_context<Backend>{arguments};
  }

  /// Adds gradients, loss and weights over the ranks. Throws usage_error when fewer samples were trained than announced.
  /// Synchronizes: on the host, returns when all of it is done. On a GPU it is enqueued on the device's stream.
  void reduce() {
    expects(phase_ == phase::backward, "reduce comes once, after backward");
    close_micro_batch();
    if (trained_ != info_.samples) {
      refuse(std::string("reduce: ") + std::to_string(info_.samples) + " samples were announced to begin, but only " +
             std::to_string(trained_) + " were trained");
    }
    reduce_all();
  }

  /// Updates what this rank owns: nothing where it was updated as it was reduced. Synchronizes: nothing; the update is enqueued
  /// on the device's stream. With a whole optimizer, which the host calls, waits until the step is reduced.
  void update() {
    expects(phase_ == phase::reduced, "update comes once, after reduce");
    phase_ = phase::updated;
    [[maybe_unused]] typename Backend::profiler_range const range{"lockstep update"};
    owner_.attempt("updating parameters", [&] { owner_.update(); });
  }

  /// Brings updated values to the ranks that did not update them, and rank 0's buffers to all. Synchronizes: nothing.
  void publish() {
    expects(phase_ == phase::updated, "publish comes once, after update");
    phase_ = phase::published;
    owner_.attempt("publishing parameters", [&] { owner_.pipeline_->publish(); });
  }

  /// Ends the step: the next may begin. Throws usage_error unless it was reduced, updated and published.
  step_result done() {
    expects(phase_ == phase::published, "done comes after publish");
    owner_.attempt("ending the step", [&] { owner_.pipeline_->join(); });
    phase_ = phase::done;
    owner_.open_ = false;
    return when_ == running::now ? owner_.end() : step_result{};
  }

  /// reduce, update, publish, done.
  step_result finish() {
    reduce();
    update();
    publish();
    return done();
  }

  /// Votes to leave this step out, whatever was trained of it, and ends it: no rank updates. The others need not know; each
  /// ends the step with `finish` as ever. Instead of `finish`, before `reduce`; of a model that communicates, after as many
  /// micro-batches as the others run.
  step_result skip() {
    expects(phase_ == phase::backward, "skip comes before reduce");
    expects(info_.updates == updates::held || owner_.needs_all_gradients(),
            "skip: this step updates buckets as they are reduced, so it can't be left out");
    close_micro_batch();
    voted_ = true;
    reduce_all();
    update();
    publish();
    return done();
  }

  /// The stretches of distinct parameters that this rank updates, as (parameter, first element, count).
  [[nodiscard]] std::span<plan::mark const> owned() const noexcept { return owner_.state_->owned(); }

  /// Throws aborted_error when another rank has ended the step.
  void expect_going_on() const {
    if (owner_.communicator_.aborted()) [[unlikely]] {
      throw aborted_error(std::string("lockstep: another rank ended the step: ") + owner_.communicator_.abort_reason());
    }
  }

  /// Runs `work` of the caller's own. What it throws comes out with rank, device, step and `doing` in its message, and ends the
  /// step on every rank.
  template <class Work>
  void attempt(char const* doing, Work&& work) {
    owner_.attempt(doing, std::forward<Work>(work));
  }

 private:
  friend class replica_body;
  enum class phase { backward, reduced, updated, published, done };

  step(replica_body& owner, step_info info, running when) : owner_(owner), info_(info), when_(when) {
    owner.nominal_ = info.total_samples != 0 ? static_cast<double>(info.total_samples) : 1.0;
    owner.attempt("preparing", [&] {
      owner.layout_->readiness().reset();
      owner.holds_ = !owner.promises_.capturable || info.first_of_its_sizes || owner.promises_.communicates;
      owner.pipeline_->open(owner.nominal_, info.samples, info.weight.has_value(),
                            owner.needs_all_gradients() ? updates::held : info.updates);
      owner.accumulated_ = !owner.promises_.honours_accumulate || info.samples == 0;
      if (owner.accumulated_) {
        owner.layout_->gradients().zero_gradients(owner.stream_);
      }
    });
    owner.open_ = true;
  }

  /// Counts what the model has done since the last call.
  void close_micro_batch() {
    if (running_) {
      trained_ += *std::exchange(running_, std::nullopt);
      owner_.accumulated_ = true;
      owner_.totals_->close_micro_batch();
    }
  }

  void reduce_all() {
    phase_ = phase::reduced;
    if (owner_.marks_) {
      owner_.attempt("checking marks", [&] { owner_.marks_->finish(owner_.stream_); });
    }
    owner_.attempt("reducing gradients", [&] { owner_.reduce(voted_); });
  }

  replica_body& owner_;
  step_info info_;
  running when_;
  int exceptions_ = std::uncaught_exceptions();
  std::size_t trained_ = 0;
  std::optional<std::size_t> running_;  // samples of the micro-batch that runs
  std::size_t micro_batches_ = 0;
  phase phase_ = phase::backward;
  bool voted_ = false;
};

template <class Policy, class Optimizer, class Backend>
using replica_base = std::conditional_t<composes_replica<Policy, Optimizer, Backend>, replica_body<Policy, Optimizer, Backend>,
                                        unmet::replica_body<Policy, Optimizer, Backend>>;

/// One rank under a policy: the buckets, communication and update of a list of parameters. What a trainer is made of, and what
/// a program with a loop of its own uses directly:
///
///   auto step = replica.begin({.samples = 32, .total_samples = 128});
///   auto ctx = step.micro_batch(32);
///   backward(ctx);                        // the caller's own; ctx.gradient_ready(i) on the way
///   step_result result = step.finish();
///
/// Does not own the parameters' memory, nor the device. Collective: construction, and every call of a step, on all ranks.
/// Thread safety: none; one thread a rank.
/// Members: replica_body. Where Policy, Optimizer and Backend don't make a replica, the first error is a sentence that says
/// why.
template <class Policy, class Optimizer, class Backend>
class replica : public replica_base<Policy, Optimizer, Backend> {
  using base = replica_base<Policy, Optimizer, Backend>;

 public:
  using base::base;
};

}  // namespace lockstep
