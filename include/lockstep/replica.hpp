// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/comm/agreement.hpp>
#include <lockstep/comm/bucket_memory.hpp>
#include <lockstep/composes.hpp>
#include <lockstep/concepts.hpp>
#include <lockstep/core/context.hpp>
#include <lockstep/core/error.hpp>
#include <lockstep/core/parameter_list.hpp>
#include <lockstep/core/step_result.hpp>
#include <lockstep/mark_check.hpp>
#include <lockstep/optimizer_state.hpp>
#include <lockstep/plan/buckets.hpp>
#include <lockstep/plan/order.hpp>
#include <lockstep/plan/readiness.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep {

/// What a rank knows of a step before it starts.
struct step_info {
  /// Samples that this rank will train on, over all its micro-batches; 0 when it has none.
  std::size_t samples = 0;
  /// Samples of all ranks, the same on every rank; 0 when not known. Then sample weights are 1, gradients are sums over
  /// samples, and the update divides by the number that was counted. Give it where it is known, for 16-bit gradients above all.
  std::size_t total_samples = 0;
};

/// What a rank is made of. Base of `replica`, which see.
template <class Policy, class Optimizer, class Backend>
class replica_body {
 public:
  using communicator_type = typename communicator_for<typename Policy::transport, Backend>::type;
  using stream_ref = typename Backend::stream_ref;
  class step;

  /// `optimizers` holds one for all parameters, or one for each parameter group. Values become rank 0's on every rank.
  /// Throws usage_error, before anything is sent where one rank can tell, else on every rank: for what parameter_list refuses,
  /// a group without optimizer, an element type that the optimizer can't update, and when the ranks' lists differ.
  /// Synchronizes: with all ranks.
  template <class Parameters>
  replica_body(typename Backend::device& device, communicator_type communicator, Parameters&& parameters,
               std::vector<Optimizer> optimizers, model_promises promises = {})
      : device_(device), communicator_(std::move(communicator)), promises_(promises), stream_(device.stream()) {
    attempt("meeting the other ranks", [&] {
      parameters_ = parameter_list(std::forward<Parameters>(parameters));
      state_.emplace(device_, parameters_, std::move(optimizers));
      meet();
    });
  }
  template <class Parameters>
  replica_body(typename Backend::device& device, communicator_type communicator, Parameters&& parameters, Optimizer optimizer,
               model_promises promises = {})
      : replica_body(device, std::move(communicator), std::forward<Parameters>(parameters),
                     std::vector<Optimizer>{std::move(optimizer)}, promises) {}
  replica_body(replica_body const&) = delete;  // marks and steps point here
  replica_body& operator=(replica_body const&) = delete;

  /// Starts a step. One at a time.
  [[nodiscard]] step begin(step_info info) { return step{*this, info}; }

  [[nodiscard]] rank_id rank() const noexcept { return communicator_.rank(); }
  [[nodiscard]] int size() const noexcept { return communicator_.size(); }
  [[nodiscard]] communicator_type& communicator() noexcept { return communicator_; }
  [[nodiscard]] communicator_type const& communicator() const noexcept { return communicator_; }
  [[nodiscard]] parameter_list const& parameters() const noexcept { return parameters_; }
  /// Changes take effect at the next step; make the same on every rank.
  [[nodiscard]] std::span<Optimizer> optimizers() noexcept { return state_->optimizers(); }
  /// How many updates were made.
  [[nodiscard]] std::uint64_t applied_steps() const noexcept { return applied_; }

 private:
  // The scalars that every rank adds up each step, in this order; one count of uses for each distinct parameter follows where
  // the model reports them.
  enum scalar : std::size_t { loss_sum, weight_sum, skip_votes, nominal_sum, scalar_count };

  [[nodiscard]] bool alone() const noexcept { return communicator_.size() == 1; }

  [[nodiscard]] std::string place(char const* doing) const {
    return std::string("rank ") + std::to_string(number(rank())) + " (device " + std::to_string(number(device_.id())) +
           "), step " + std::to_string(steps_) + ", " + doing;
  }

  void fail(std::string const& reason) noexcept {
    if (!failure_) {
      failure_ = reason;
      communicator_.abort(reason);
    }
  }

  /// Runs `work`; what it throws names the place, and ends the step on every rank.
  template <class Work>
  void attempt(char const* doing, Work&& work) {
    try {
      work();
    } catch (...) {
      try {
        rethrow_at(rank(), place(doing));
      } catch (std::exception const& e) {
        fail(e.what());
        throw;
      }
    }
  }

  // ---- meeting: what the ranks settle once ----

  void meet() {
    std::size_t const uses = promises_.reports_unused ? parameters_.distinct_count() : 0;
    totals_.assign(scalar_count + uses, 0.0);
    scalars_ = device_.allocate(totals_.size() * sizeof(double), memory_use::other);
    loss_ = device_.allocate(sizeof(float), memory_use::other);
    unused_now_.assign(promises_.reports_unused ? parameters_.listings().size() : 0, 0);
    used_.assign(uses, 0);

    if (device_.options().checking == checking::marks) {
      marks_.emplace(parameters_);
    }
    agreement<Backend, communicator_type> const meeting{device_, communicator_};
    if (!alone()) {
      meeting.expect_same(settings(), parameters_);
      communication_.emplace();
    }
    lay_out({}, meeting);
    lay_out_buffers(meeting);
    if (!alone()) {
      for (std::size_t b = 0; b < gradients_->size(); ++b) {
        gradients_->each_span(b, bucket_side::value, stream_,
                              [&](typed_span values) { communicator_.broadcast(values, rank_id{0}, stream_); });
      }
      publish_buffers();
    }
    state_->start(stream_);
  }

  [[nodiscard]] std::string settings() const {
    constexpr tuning t = Policy::tuning_values;
    return std::string("bucket_bytes ") + std::to_string(t.bucket_bytes) + ", stage_below_bytes " +
           std::to_string(t.stage_below_bytes) + ", " + std::to_string(state_->optimizers().size()) +
           " optimizers, reports_unused " + (promises_.reports_unused ? "yes" : "no");
  }

  /// Plans the buckets for gradients that become ready in the order of `marks`; parameters backwards without marks.
  void lay_out(std::span<plan::mark const> marks, agreement<Backend, communicator_type> const& meeting) {
    std::vector<std::size_t> counts(parameters_.distinct_count());
    for (std::size_t p = 0; p < counts.size(); ++p) {
      counts[p] = parameters_.distinct(p).count();
    }
    std::vector<plan::piece> pieces;
    for (plan::mark const& part : plan::cut_and_order(counts, marks)) {
      if (parameters_.distinct(part.parameter).trainable()) {
        pieces.push_back(piece_of(part.parameter, part.first, part.count));
      }
    }
    meeting.find_neighbours(pieces, parameters_);
    constexpr tuning t = Policy::tuning_values;
    std::vector<plan::bucket> buckets = plan::plan_buckets(pieces, t.bucket_bytes, t.stage_below_bytes);
    readiness_ = plan::readiness{parameters_.distinct_of_listing(), pieces, buckets};
    gradients_.emplace(device_, parameters_, std::move(pieces), std::move(buckets));

    std::vector<plan::mark> owned;
    for (std::size_t b = 0; b < gradients_->size(); ++b) {
      gradients_->each_owned(
          b, [&](std::size_t count) { return Policy::owned(count, rank(), size()); },
          [&](std::size_t p, std::size_t first, std::size_t count) {
            owned.push_back({p, first, count});
          });
    }
    state_->own(std::move(owned));
  }

  void lay_out_buffers(agreement<Backend, communicator_type> const& meeting) {
    std::vector<plan::piece> pieces;
    for (std::size_t p = 0; p < parameters_.distinct_count(); ++p) {
      if (!parameters_.distinct(p).trainable()) {
        pieces.push_back(piece_of(p, 0, parameters_.distinct(p).count()));
      }
    }
    if (!pieces.empty() && !alone()) {
      meeting.find_neighbours(pieces, parameters_);
      constexpr tuning t = Policy::tuning_values;
      std::vector<plan::bucket> buckets = plan::plan_buckets(pieces, t.bucket_bytes, t.stage_below_bytes);
      buffers_.emplace(device_, parameters_, std::move(pieces), std::move(buckets));
    }
  }

  [[nodiscard]] plan::piece piece_of(std::size_t p, std::size_t first, std::size_t count) const {
    parameter const& described = parameters_.distinct(p);
    element_type const travels = described.trainable() ? described.gradient_type : described.value_type;
    auto const kind = static_cast<std::uint32_t>(described.value_type) << 8U | static_cast<std::uint32_t>(travels);
    return {p, first, count, kind, static_cast<std::uint32_t>(size_of(travels)), plan::none};
  }

  /// Before the second step, with nothing pending: the order in which rank 0's gradients became ready is everyone's from now
  /// on.
  void adopt_order() {
    agreement<Backend, communicator_type> const meeting{device_, communicator_};
    std::vector<std::uint64_t> words;
    for (plan::mark const& m : recorded_) {
      words.insert(words.end(), {m.parameter, m.first, m.count});
    }
    words = meeting.from_root(std::move(words));
    std::vector<plan::mark> marks;
    for (std::size_t i = 0; i + 2 < words.size(); i += 3) {
      marks.push_back({words[i], words[i + 1], words[i + 2]});
    }
    if (!marks.empty()) {
      lay_out(marks, meeting);
    }
    recorded_ = {};
  }

  // ---- marks: what the model says while it runs ----

  [[nodiscard]] gradient_listener listener(bool last) noexcept {
    gradient_listener heard;
    heard.self = this;
    heard.unused = [](void* self, std::size_t index) { of(self).unused(index); };
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
    if (alone() && !marks_) {
      return;
    }
    for (std::size_t listing = first; listing < first + count; ++listing) {
      if (recording() || marks_) {
        ready_listing(listing);
      } else {
        readiness_.mark(listing);
      }
    }
    launch_ready();
  }

  void ready_memory(void const* first, std::size_t bytes) {
    parameters_.find_gradients(first, bytes, [&](std::size_t p, std::size_t begin, std::size_t count) {
      if (recording() || marks_) {
        ready_part({p, begin, count});
      } else {
        readiness_.mark_range(p, begin, count);
      }
    });
    launch_ready();
  }

  void unused(std::size_t index) {
    expect_listed("unused", index, 1);
    expects(promises_.reports_unused,
            "ctx.unused was called by a model that does not promise it; add "
            "`static constexpr lockstep::model_promises promises{.reports_unused = true};`");
    parameter const& p = parameters_.listings()[index];
    if (!accumulated_ && promises_.honours_accumulate && p.trainable()) {
      Backend::zero(stream_, p.gradient, p.gradients().bytes());  // the model won't write it
    }
    unused_now_[index] = 1;
  }

  /// The first step reduces after backward, and records in which order gradients became ready.
  [[nodiscard]] bool recording() const noexcept { return steps_ == 1; }

  /// A tied parameter is ready once each of its listings was marked.
  void ready_listing(std::size_t listing) {
    marked_listings_.resize(parameters_.listings().size(), 0);
    marked_listings_[listing] = 1;
    std::size_t const p = parameters_.distinct_of_listing()[listing];
    for (std::size_t other = 0; other < marked_listings_.size(); ++other) {
      if (parameters_.distinct_of_listing()[other] == p && marked_listings_[other] == 0) {
        return;
      }
    }
    if (parameters_.distinct(p).trainable()) {
      ready_part({p, 0, parameters_.distinct(p).count()});
    }
  }

  void ready_part(plan::mark const& part) {
    if (recording()) {
      recorded_.push_back(part);
    }
    if (marks_) {
      marks_->mark(part.parameter, part.first, part.count, stream_);
    }
  }

  // ---- communication ----

  void reduce_bucket(std::size_t bucket, stream_ref stream) {
    gradients_->each_span(bucket, bucket_side::gradient, stream,
                          [&](typed_span gradients) { Policy::reduce(communicator_, gradients, stream); });
  }

  /// Sends off the buckets that are complete, in plan order, behind what the model has enqueued. The last bucket has nothing
  /// left to hide behind and stays on the model's own stream.
  void launch_ready() {
    if (alone() || marks_) {
      return;
    }
    for (; launched_ + 1 < gradients_->size() && launched_ < readiness_.launchable(); ++launched_) {
      ready_event_.record(stream_);
      communication_->ref().wait(ready_event_);
      reduce_bucket(launched_, communication_->ref());
    }
  }

  void reduce_rest() {
    if (launched_ != 0) {
      ready_event_.record(communication_->ref());
      stream_.wait(ready_event_);
      communication_->ref().check();
    }
    for (; launched_ < gradients_->size(); ++launched_) {
      reduce_bucket(launched_, stream_);
    }
  }

  void publish_buffers() {
    for (std::size_t b = 0; buffers_ && b < buffers_->size(); ++b) {
      buffers_->each_span(b, bucket_side::value, stream_,
                          [&](typed_span values) { communicator_.broadcast(values, rank_id{0}, stream_); });
    }
  }

  typename Backend::device& device_;
  communicator_type communicator_;
  parameter_list parameters_;
  model_promises promises_;
  stream_ref stream_;
  std::optional<optimizer_state<Optimizer, Backend>> state_;

  std::optional<typename Backend::stream> communication_;
  typename Backend::event ready_event_;
  std::optional<bucket_memory<Backend>> gradients_;
  std::optional<bucket_memory<Backend>> buffers_;
  plan::readiness readiness_;
  std::size_t launched_ = 0;

  std::optional<mark_check<Backend>> marks_;
  std::vector<plan::mark> recorded_;
  std::vector<std::uint8_t> marked_listings_;

  typename Backend::buffer scalars_;
  typename Backend::buffer loss_;
  std::vector<double> totals_;
  std::vector<std::uint8_t> unused_now_;
  std::vector<std::uint8_t> used_;

  bool accumulated_ = false;  // gradients hold something of this step
  bool open_ = false;
  std::uint64_t steps_ = 0;
  std::uint64_t applied_ = 0;
  std::optional<std::string> failure_;
};

/// One step of one rank. Made by replica::begin. Left unfinished, it ends the step on all ranks with an error; `skip` is the
/// way out that keeps everyone healthy.
template <class Policy, class Optimizer, class Backend>
class [[nodiscard]] replica_body<Policy, Optimizer, Backend>::step {
 public:
  step(step const&) = delete;
  step& operator=(step const&) = delete;
  ~step() {
    if (phase_ != phase::done) {
      owner_.fail(owner_.place("step left unfinished"));
    }
    owner_.open_ = false;
  }

  /// The context for the next `samples` samples: at least 1, and together not more than announced. The model runs before the
  /// next call of this object.
  [[nodiscard]] train_context<Backend> micro_batch(std::size_t samples) {
    expects(phase_ == phase::backward, "micro_batch comes before reduce");
    expects(samples > 0, "a micro-batch has at least one sample");
    if (samples > info_.samples - trained_) {
      refuse(std::string("micro_batch(") + std::to_string(samples) + "): " + std::to_string(info_.samples) +
             " samples were announced to begin, and " + std::to_string(trained_) + " have been trained");
    }
    if (owner_.communicator_.aborted()) [[unlikely]] {
      throw aborted_error(std::string("lockstep: another rank ended the step: ") + owner_.communicator_.abort_reason());
    }
    close_micro_batch();
    bool const accumulate = owner_.accumulated_;
    running_ = samples;
    auto const weight = static_cast<float>(1.0 / nominal_);
    return train_context<Backend>{
        {.stream = owner_.stream_,
         .sample_weight = typename Backend::weight{weight},
         .shard_weight = typename Backend::weight{static_cast<float>(static_cast<double>(samples) / nominal_)},
         .host_sample_weight = weight,
         .loss = static_cast<float*>(owner_.loss_.data()),
         .accumulate = accumulate,
         .rank = owner_.rank(),
         .step = owner_.steps_,
         .shard = static_cast<std::size_t>(number(owner_.rank())) + micro_batches_++ * static_cast<std::size_t>(owner_.size()),
         .listener = owner_.listener(trained_ + samples == info_.samples)}};
  }

  /// Adds gradients, loss and weights over the ranks. Throws usage_error when fewer samples were trained than announced.
  void reduce() {
    expects(phase_ == phase::backward, "reduce comes once, after backward");
    close_micro_batch();
    if (trained_ != info_.samples) {
      refuse(std::string("reduce: ") + std::to_string(info_.samples) + " samples were announced to begin, but only " +
             std::to_string(trained_) + " were trained");
    }
    reduce_all();
  }

  /// Updates what this rank owns.
  void update() {
    expects(phase_ == phase::reduced, "update comes once, after reduce");
    phase_ = phase::updated;
    if (!skipped_) {
      owner_.attempt("updating parameters", [&] {
        ++owner_.applied_;
        owner_.state_->update(owner_.stream_, owner_.applied_, static_cast<float>(nominal_ / weight()), owner_.used_);
      });
    }
  }

  /// Brings updated values to the ranks that did not update them, and rank 0's buffers to all.
  void publish() {
    expects(phase_ == phase::updated, "publish comes once, after update");
    phase_ = phase::published;
    if (owner_.alone()) {
      return;
    }
    owner_.attempt("publishing parameters", [&] {
      if constexpr (publishes<Policy, communicator_type, stream_ref>) {
        for (std::size_t b = 0; !skipped_ && b < owner_.gradients_->size(); ++b) {
          owner_.gradients_->each_span(b, bucket_side::value, owner_.stream_, [&](typed_span values) {
            Policy::publish(owner_.communicator_, values, owner_.stream_);
          });
        }
      }
      owner_.publish_buffers();
    });
  }

  /// Ends the step. Throws usage_error unless it was reduced, updated and published.
  step_result done() {
    expects(phase_ == phase::published, "done comes after publish");
    phase_ = phase::done;
    double const counted = weight();
    return {counted == 0 ? 0 : owner_.totals_[loss_sum] * (nominal_ / counted), static_cast<std::size_t>(counted),
            owner_.steps_, skipped_};
  }

  /// reduce, update, publish, done.
  step_result finish() {
    reduce();
    update();
    publish();
    return done();
  }

  /// Votes to leave this step out, whatever was trained of it, and ends it: no rank updates. The others need not know; each
  /// ends the step with `finish` as ever. Instead of `finish`, before `reduce`.
  step_result skip() {
    expects(phase_ == phase::backward, "skip comes before reduce");
    close_micro_batch();
    voted_ = true;
    reduce_all();
    update();
    publish();
    return done();
  }

  /// The stretches of distinct parameters that this rank updates, as (parameter, first element, count).
  [[nodiscard]] std::span<plan::mark const> owned() const noexcept { return owner_.state_->owned(); }

  /// Runs `work` of the caller's own. What it throws comes out with rank, device, step and `doing` in its message, and ends the
  /// step on every rank.
  template <class Work>
  void attempt(char const* doing, Work&& work) {
    owner_.attempt(doing, std::forward<Work>(work));
  }

 private:
  friend class replica_body;
  enum class phase { backward, reduced, updated, published, done };

  step(replica_body& owner, step_info info) : owner_(owner), info_(info) {
    if (owner.failure_) {
      throw error("lockstep: an earlier step failed, so the parameters in memory are invalid; build anew. It was: " +
                  *owner.failure_);
    }
    expects(!owner.open_, "begin: the step before has not ended");
    nominal_ = info.total_samples != 0 ? static_cast<double>(info.total_samples) : 1.0;
    owner.open_ = true;
    ++owner.steps_;
    owner.attempt("preparing", [&] {
      if (owner.steps_ == 2 && !owner.alone()) {
        owner.adopt_order();
      }
      owner.readiness_.reset();
      owner.launched_ = 0;
      owner.marked_listings_.clear();
      std::fill(owner.totals_.begin(), owner.totals_.end(), 0.0);
      Backend::zero(owner.stream_, owner.scalars_.data(), owner.scalars_.bytes());
      Backend::zero(owner.stream_, owner.loss_.data(), owner.loss_.bytes());
      owner.accumulated_ = !owner.promises_.honours_accumulate || info.samples == 0;
      if (owner.accumulated_) {
        zero_gradients();
      }
    });
  }

  void zero_gradients() {
    for (std::size_t p = 0; p < owner_.parameters_.distinct_count(); ++p) {
      parameter const& described = owner_.parameters_.distinct(p);
      if (described.trainable()) {
        Backend::zero(owner_.stream_, described.gradient, described.gradients().bytes());
      }
    }
  }

  [[nodiscard]] double weight() const noexcept { return owner_.totals_[weight_sum]; }

  /// Counts what the model has done since the last call.
  void close_micro_batch() {
    if (running_ == 0) {
      return;
    }
    trained_ += running_;
    running_ = 0;
    owner_.accumulated_ = true;
    Backend::add_loss(owner_.stream_, static_cast<double*>(owner_.scalars_.data()), static_cast<float*>(owner_.loss_.data()));
    auto const listed = owner_.parameters_.distinct_of_listing();
    for (std::size_t i = 0; i < owner_.unused_now_.size(); ++i) {
      if (std::exchange(owner_.unused_now_[i], std::uint8_t{0}) == 0) {
        owner_.totals_[scalar_count + listed[i]] += 1;
      }
    }
  }

  void reduce_all() {
    phase_ = phase::reduced;
    if (owner_.marks_) {
      owner_.attempt("checking marks", [&] { owner_.marks_->finish(owner_.stream_); });
    }
    owner_.attempt("reducing gradients", [&] {
      if (!owner_.accumulated_) {
        zero_gradients();  // skipped before anything was written
      }
      if (!owner_.alone()) {
        owner_.reduce_rest();
      }
      reduce_scalars();
    });
    skipped_ = owner_.totals_[skip_votes] != 0 || weight() == 0;
    for (std::size_t p = 0; p < owner_.used_.size(); ++p) {
      owner_.used_[p] = owner_.totals_[scalar_count + p] != 0 ? 1 : 0;
    }
  }

  void reduce_scalars() {
    auto& totals = owner_.totals_;
    totals[weight_sum] = voted_ ? 0 : static_cast<double>(trained_);
    totals[skip_votes] = voted_ ? 1 : 0;
    totals[nominal_sum] = nominal_;
    auto* const scalars = static_cast<double*>(owner_.scalars_.data());
    if (voted_) {
      Backend::zero(owner_.stream_, scalars, sizeof(double));  // its loss doesn't count either
    }
    if (!owner_.alone()) {
      Backend::copy(owner_.stream_, scalars + weight_sum, &totals[weight_sum], (totals.size() - weight_sum) * sizeof(double));
      owner_.communicator_.all_reduce(typed_span{scalars, totals.size(), element_type::f64}, reduction::sum, owner_.stream_);
      Backend::copy(owner_.stream_, totals.data(), scalars, totals.size() * sizeof(double));
    } else {
      Backend::copy(owner_.stream_, &totals[loss_sum], scalars, sizeof(double));
    }
    owner_.stream_.synchronize();
    if (double const mean = totals[nominal_sum] / owner_.size(); mean != nominal_) {
      refuse(std::string("begin: the ranks disagree about total_samples; here it is ") + std::to_string(info_.total_samples) +
             ", and its mean over the ranks is " + std::to_string(mean));
    }
  }

  replica_body& owner_;
  step_info info_;
  double nominal_ = 1;
  std::size_t trained_ = 0;
  std::size_t running_ = 0;
  std::size_t micro_batches_ = 0;
  phase phase_ = phase::backward;
  bool voted_ = false;
  bool skipped_ = false;
};

namespace unmet {

/// Its constructors and members take anything, so that uses of a replica that can't be add no errors.
template <class Policy, class Optimizer, class Backend>
class replica_body {
  static_assert(report_replica<Policy, Optimizer, Backend>());

 public:
  class step {
   public:
    train_context<Backend> micro_batch(std::size_t);
    void reduce() {}
    void update() {}
    void publish() {}
    void skip() {}
    step_result done() { return {}; }
    step_result finish() { return {}; }
  };

  template <class = void>
  replica_body(anything, anything, anything, anything, model_promises = {}) {}
  replica_body(anything, anything, anything, aggregate<Optimizer>, model_promises = {}) {}

  step begin(step_info) { return {}; }
  rank_id rank() const noexcept { return rank_id{0}; }
  int size() const noexcept { return 0; }
  std::span<Optimizer> optimizers() noexcept { return {}; }
  parameter_list const& parameters() const noexcept;
  std::uint64_t applied_steps() const noexcept { return 0; }
};

}  // namespace unmet

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
