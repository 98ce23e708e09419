// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/captured_steps.hpp>
#include <lockstep/composes.hpp>
#include <lockstep/concepts.hpp>
#include <lockstep/core/batch.hpp>
#include <lockstep/core/context.hpp>
#include <lockstep/core/deadline.hpp>
#include <lockstep/core/devices.hpp>
#include <lockstep/core/work_queue.hpp>
#include <lockstep/input_slots.hpp>
#include <lockstep/optim/gradient_rules.hpp>
#include <lockstep/plan/split.hpp>
#include <lockstep/replica.hpp>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep {

/// The ranks of one process, a thread each, and the step they take together. Base of `trainer`, which see.
template <class Model, class Optimizer, class Policy>
class trainer_body {
 public:
  using backend_type = typename Model::backend;
  using batch_type = typename Model::batch;
  using options_type = typename backend_type::options;
  using replica_type = replica<Policy, Optimizer, backend_type>;

  /// Builds one model a device with `factory(device_context<backend>&)`, one after another, each in its rank's thread; models
  /// are built in place and never moved. Values become rank 0's on every rank. `optimizers` holds one for all parameters, or
  /// one a parameter group; `rules` hold for all gradients together. Throws usage_error for what is wrong with devices,
  /// parameters or optimizers, and what the factory throws; no thread is left.
  template <class Factory, std::same_as<gradient_rules> Rules>
  trainer_body(devices const& chosen, Factory&& factory, std::vector<Optimizer> optimizers, Rules const& rules,
               options_type const& options = {})
      : options_(options), optimizers_(std::move(optimizers)), rules_(rules), ruled_(rules), captured_(graphs_of(options)) {
    rules_.validate();
    std::vector<device_id> const ids = chosen.resolve(backend_type::device_count());
    auto communicators = communicator_for<typename Policy::transport, backend_type>::create(ids, options);
    for (std::size_t r = 0; r < ids.size(); ++r) {
      ranks_.emplace_back(new rank_state(ids[r], options, static_cast<int>(r)), end_on_device{});
    }
    try {
      for (std::size_t r = 0; r < ids.size(); ++r) {
        on_rank(r, [&](rank_state& self) {
          device_context<backend_type> context{self.device, self.rank, static_cast<int>(ids.size())};
          try {
            self.model.emplace(factory, context);
          } catch (...) {
            rethrow_at(self.rank, self.place("building the model"));
          }
        });
      }
      on_all_ranks(waiting::as_long_as_it_takes, [&communicators, this](rank_state& self) {
        auto& communicator = communicators[static_cast<std::size_t>(number(self.rank))];
        self.replica.emplace(self.device, std::move(communicator), self.model->value.parameters(), optimizers_,
                             promises_of<Model>(), rules_);
      });
    } catch (...) {
      tear_down();
      throw;
    }
  }
  template <class Factory, std::same_as<gradient_rules> Rules>  // named, so that `{}` are options
  trainer_body(devices const& chosen, Factory&& factory, Optimizer optimizer, Rules const& rules,
               options_type const& options = {})
      : trainer_body(chosen, std::forward<Factory>(factory), std::vector<Optimizer>{std::move(optimizer)}, rules, options) {}
  template <class Factory>
  trainer_body(devices const& chosen, Factory&& factory, std::vector<Optimizer> optimizers, options_type const& options = {})
      : trainer_body(chosen, std::forward<Factory>(factory), std::move(optimizers), gradient_rules{}, options) {}
  template <class Factory>
  trainer_body(devices const& chosen, Factory&& factory, Optimizer optimizer, options_type const& options = {})
      : trainer_body(chosen, std::forward<Factory>(factory), std::move(optimizer), gradient_rules{}, options) {}

  trainer_body(trainer_body const&) = delete;  // ranks point into it
  trainer_body& operator=(trainer_body const&) = delete;

  /// Models end in the threads they were built in. A thread whose model never returned from `train` is left behind.
  ~trainer_body() { tear_down(); }

  /// One training step on `batch`, cut evenly over the devices (sizes differ by at most one; with fewer samples than devices
  /// some idle, and still take part). A shard that does not lie on its device is copied there; its memory may change when the
  /// call returns, that of a shard which lies there once the step is done. Synchronizes: on the host, returns when every rank
  /// is done; on a GPU the step is enqueued, and the host waits for the step before the last one only, see `synchronize`.
  /// There, a step whose shards lie in the same memory as those of an earlier one is captured in a CUDA graph and replayed,
  /// unless the model promises that it can't be. Throws usage_error, with nothing changed, for an empty batch or no
  /// micro-batches. When a rank fails, the step ends on all of them, the first failure comes out here, and the parameters are
  /// invalid. Where it is that a model did not come back in time (timeout_error), its thread may still read the batch: keep its
  /// memory. Complexity: see the policy for bytes over the wire.
  step_result step(batch_type const& batch, step_options options = {}) {
    std::size_t const samples = lockstep::sample_count(batch);
    expects(samples != 0, "step: the batch has no samples");
    check_step(options);
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      plan::range const mine = plan::split(samples, ranks_.size(), r);
      ranks_[r]->shard.emplace(lockstep::slice(batch, mine.first, mine.count));
    }
    return take_step(samples, options);
  }

  /// The same with one batch a device, in rank order; any of them may be empty, but not all.
  step_result step_shards(std::span<batch_type const> shards, step_options options = {}) {
    if (shards.size() != ranks_.size()) {
      refuse(std::string("step_shards: ") + std::to_string(shards.size()) + " shards for " + std::to_string(ranks_.size()) +
             " devices; give one a device");
    }
    std::size_t samples = 0;
    for (batch_type const& shard : shards) {
      samples += lockstep::sample_count(shard);
    }
    expects(samples != 0, "step_shards: no shard has a sample");
    check_step(options);
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      ranks_[r]->shard.emplace(shards[r]);
    }
    return take_step(samples, options);
  }

  /// Runs the model's `infer` on every device, each on its part of `batch`, writing its part of `output`. Returns when all are
  /// done. Throws usage_error when batch and output differ in their samples. Where a model did not come back from `infer` in
  /// time (timeout_error), its thread may still read batch and write output: keep both.
  template <class Batch, class Output>
  void predict(Batch const& batch, Output const& output) {
    static_assert(infers<Model>, "lockstep: Model must have a public infer to predict; see docs/concepts.md#model-predict");
    if constexpr (infers<Model>) {
      predict_parts(batch, output);
    }
  }

  /// Waits until every device has done what was enqueued: before parameters are read by anything but the next step. Throws what
  /// went wrong there.
  void synchronize() {
    expects_healthy();
    keep_failure([this] { on_all_ranks(waiting::one_timeout, [](rank_state& self) { self.replica->synchronize(); }); });
  }

  /// Whether a step failed: then the parameters are invalid, and what uses them is refused.
  [[nodiscard]] bool failed() const noexcept {
    return failure_.has_value() ||
           std::any_of(ranks_.begin(), ranks_.end(), [](auto const& rank) { return rank->replica && rank->replica->failed(); });
  }

  /// How many devices train together.
  [[nodiscard]] int size() const noexcept { return static_cast<int>(ranks_.size()); }

  /// The model of a rank: after a step, any rank's holds the same values.
  [[nodiscard]] Model& model(rank_id rank = rank_id{0}) { return state(rank).model->value; }

  /// The optimizer of a parameter group, to change hyperparameters between two steps. An elementwise one is every rank's; a
  /// whole one keeps its own state, so each rank has its own.
  [[nodiscard]] Optimizer& optimizer(std::size_t group = 0, rank_id rank = rank_id{0}) {
    expects(group < optimizers_.size(), "optimizer: there is no such group");
    if constexpr (elementwise_optimizer<Optimizer>) {
      return optimizers_[group];
    } else {
      return state(rank).replica->optimizers()[group];
    }
  }

  /// What holds for all gradients together: changes take effect at the next step. Which rules there are is fixed at
  /// construction.
  [[nodiscard]] gradient_rules& rules() noexcept { return rules_; }

  /// Bytes on a rank's device: what the library allocated there, inboxes of its communicator included, and the model's
  /// parameters and gradients, wherever they lie.
  [[nodiscard]] memory_usage memory(rank_id rank) {
    rank_state& self = state(rank);
    memory_usage usage = self.device.memory();
    std::size_t values = 0;
    std::size_t gradients = 0;
    parameter_list const& parameters = self.replica->parameters();
    for (std::size_t p = 0; p < parameters.distinct_count(); ++p) {
      parameter const& described = parameters.distinct(p);
      values += described.values().bytes();
      gradients += described.trainable() ? described.gradients().bytes() : 0;
    }
    auto const count_listed = [&usage](memory_use use, std::size_t listed) {  // unless the device gave the memory
      std::size_t& bytes = usage.bytes[static_cast<std::size_t>(use)];
      std::size_t const outside = listed > bytes ? listed - bytes : 0;
      bytes += outside;
      usage.peak_bytes += outside;
    };
    count_listed(memory_use::parameters, values);
    count_listed(memory_use::gradients, gradients);
    if constexpr (requires { self.replica->communicator().inbox_bytes(); }) {
      std::size_t const inboxes = self.replica->communicator().inbox_bytes();
      usage.bytes[static_cast<std::size_t>(memory_use::staging)] += inboxes;
      usage.peak_bytes += inboxes;
    }
    return usage;
  }

  /// How long a rank's device has worked on forward, backward and updates so far, in seconds: see replica::busy_seconds.
  [[nodiscard]] double busy_seconds(rank_id rank) {
    rank_state& self = state(rank);
    expects_healthy();
    double seconds = 0;
    keep_failure([&] {
      on_rank(static_cast<std::size_t>(number(self.rank)), [&](rank_state& r) { seconds = r.replica->busy_seconds(); });
    });
    return seconds;
  }

  /// Bytes that this process's ranks have read from or written to other ranks' memory so far, in steps that were not replayed
  /// as graphs, and by collectives.
  [[nodiscard]] std::uint64_t bytes_moved() const {
    std::uint64_t sum = 0;
    for (auto const& rank : ranks_) {
      sum += rank->replica->communicator().bytes_moved();
    }
    return sum;
  }

 private:
  // Built in place from the factory's result.
  struct model_holder {
    template <class Factory>
    model_holder(Factory& factory, device_context<backend_type>& context) : value(factory(context)) {}
    Model value;
  };

  template <class Backend>
  struct graph_of {
    struct type {};
  };
  template <class Backend>
  requires requires { typename Backend::graph; }
  struct graph_of<Backend> {
    using type = typename Backend::graph;
  };
  /// Whether steps can be recorded, as far as types tell.
  static constexpr bool records = requires { typename backend_type::graph; }
  &&elementwise_optimizer<Optimizer>&& promises_of<Model>().capturable && !promises_of<Model>().reports_unused;

  [[nodiscard]] static std::size_t graphs_of([[maybe_unused]] options_type const& options) {
    if constexpr (records) {
      return options.graphs;
    } else {
      return 0;
    }
  }

  struct rank_state {
    rank_state(device_id id, options_type const& options, int r) : device(id, options), rank(rank_id{r}), inputs(device) {}

    [[nodiscard]] std::string place(char const* doing) const { return place_of(rank, device) + ", " + doing; }

    typename backend_type::device device;
    rank_id rank;
    std::optional<model_holder> model;
    input_slots<backend_type, batch_type> inputs;
    std::optional<replica_type> replica;
    std::vector<typename graph_of<backend_type>::type> graphs;  // by place in captured_; they end before the communicator
    std::optional<batch_type> shard;                            // of the step that runs
    std::size_t pieces = 0;                                     // that it is cut into
    double weight = 0;                                          // of its samples, where batches bring it
    step_result result;
    std::uint64_t steps = 0;
    bool stuck = false;  // its thread never came back
    work_queue thread;   // not used by rank 0, which works in the caller's thread
  };

  // What a rank owns is given back with its device current.
  struct end_on_device {
    void operator()(rank_state* ended) const noexcept {
      try {
        [[maybe_unused]] auto const current = activate(ended->device);
        delete ended;
      } catch (error const&) {  // the device is lost, and was not made current
        delete ended;
      }
    }
  };

  // The first failure of all ranks; those that only followed don't count.
  struct failures {
    void add(std::exception_ptr caught, bool followed) {
      std::lock_guard const lock(mutex);
      if (first == nullptr || (first_followed && !followed)) {
        first = std::move(caught);
        first_followed = followed;
      }
    }
    std::mutex mutex;
    std::exception_ptr first;
    bool first_followed = false;
  };

  [[nodiscard]] rank_state& state(rank_id rank) {
    if (number(rank) < 0 || static_cast<std::size_t>(number(rank)) >= ranks_.size()) {
      refuse(std::string("rank ") + std::to_string(number(rank)) + " is not one of the " + std::to_string(ranks_.size()) +
             " here");
    }
    return *ranks_[static_cast<std::size_t>(number(rank))];
  }

  /// Models end in the threads they were built in; replicas before them, all at once, for their communicators may say goodbye
  /// to each other.
  void tear_down() noexcept {
    try {
      bool const all = std::none_of(ranks_.begin(), ranks_.end(), [](auto const& rank) { return rank->stuck; });
      if (all) {
        on_all_ranks(waiting::as_long_as_it_takes, [](rank_state& self) {
          self.graphs.clear();
          self.replica.reset();
        });
      }
    } catch (...) {  // what a destructor throws has nowhere to go
    }
    for (std::size_t r = ranks_.size(); r-- > 0;) {
      try {
        if (!ranks_[r]->stuck) {
          on_rank(r, [](rank_state& self) {
            self.graphs.clear();
            self.replica.reset();
            self.model.reset();
          });
        }
      } catch (...) {
      }
    }
  }

  void expects_healthy() {
    for (auto const& rank : ranks_) {
      if (!failure_ && rank->replica && rank->replica->failed()) {  // found out when a result was asked for
        failure_ = rank->replica->failure();
      }
    }
    if (failure_) {
      throw error("lockstep: an earlier step failed, so the parameters in memory are invalid; build a new trainer. It was: " +
                  *failure_);
    }
  }

  /// What can be refused before any rank starts.
  void check_step(step_options options) {
    expects(options.micro_batches > 0, "step: give at least one micro-batch");
    expects_healthy();
    rules_.validate();
    expects(rules_.same_kinds(ruled_), "rules: which of them there are is fixed when the trainer is built");
    if constexpr (elementwise_optimizer<Optimizer>) {
      validate(std::span<Optimizer const>{optimizers_});
    }
    for (auto const& rank : ranks_) {
      if constexpr (!elementwise_optimizer<Optimizer>) {
        validate(std::span<Optimizer const>{rank->replica->optimizers()});
      }
      rank->replica->parameters().expect_unchanged(rank->model->value.parameters());
      rank->replica->rules() = rules_;
      if constexpr (elementwise_optimizer<Optimizer>) {
        std::copy(optimizers_.begin(), optimizers_.end(), rank->replica->optimizers().begin());
      }
    }
  }

  template <class Work>
  static void guarded(rank_state& self, failures& failed, Work& work) noexcept {
    try {
      [[maybe_unused]] auto const current = activate(self.device);
      work(self);
    } catch (aborted_error const&) {
      failed.add(std::current_exception(), true);
    } catch (...) {
      failed.add(std::current_exception(), false);
    }
  }

  /// Runs `work` in the thread of one rank and waits for it; throws what it throws.
  template <class Work>
  void on_rank(std::size_t rank, Work work) {
    auto const run = [self = ranks_[rank].get(), &work] {
      [[maybe_unused]] auto const current = activate(self->device);
      work(*self);
    };
    if (rank == 0) {
      run();
    } else {
      ranks_[rank]->thread.enqueue(run);
      ranks_[rank]->thread.wait();
    }
  }

  /// How long to wait for the other ranks once rank 0 is done.
  enum class waiting { as_long_as_it_takes, one_timeout };

  /// Runs `work` on every rank at once and waits for all; throws the first failure. A rank that has not come back a whole
  /// timeout after rank 0 may be given up: its thread keeps rank, model and replica alive, and ends when the model returns.
  template <class Work>
  void on_all_ranks(waiting how_long, Work work) {
    if (ranks_.size() == 1) {
      [[maybe_unused]] auto const current = activate(ranks_[0]->device);
      work(*ranks_[0]);
      return;
    }
    auto const failed = std::make_shared<failures>();
    for (std::size_t r = 1; r < ranks_.size(); ++r) {
      ranks_[r]->thread.enqueue([self = ranks_[r], failed, work]() mutable { guarded(*self, *failed, work); });
    }
    guarded(*ranks_[0], *failed, work);
    auto const deadline =
        deadline_after(how_long == waiting::one_timeout ? static_cast<double>(options_.timeout_seconds) : HUGE_VAL);
    for (std::size_t r = 1; r < ranks_.size(); ++r) {
      if (!ranks_[r]->thread.wait(deadline)) {
        ranks_[r]->stuck = true;
        ranks_[r]->thread.abandon();
        failure_ = ranks_[r]->place("running the model") + ": did not come back within " +
                   std::to_string(options_.timeout_seconds) + " s after rank 0";
        failed->add(std::make_exception_ptr(timeout_error(ranks_[r]->rank, *failure_)), false);
      }
    }
    std::lock_guard const lock(failed->mutex);
    if (failed->first != nullptr) {
      std::rethrow_exception(failed->first);
    }
  }

  /// Runs `work`; a failure is the trainer's from then on.
  template <class Work>
  void keep_failure(Work&& work) {
    try {
      work();
    } catch (std::exception const& e) {
      failure_ = e.what();
      throw;
    }
  }

  /// Of a step, over all ranks.
  struct totals {
    std::size_t samples = 0;
    double weight = 0;
  };

  /// Every rank knows its shard, wherever that lies.
  step_result take_step(std::size_t samples, step_options options) {
    totals total{samples, 0};
    if constexpr (weighted_batch<batch_type>) {
      expects(!promises_of<Model>().counts_weight, "step: the batch brings its weight, and the model counts it itself");
      for (auto const& rank : ranks_) {  // while shards lie where the caller has them
        rank->weight = lockstep::batch_weight(*rank->shard);
        expects(rank->weight >= 0 && std::isfinite(rank->weight), "step: batch_weight is finite, and not negative");
        total.weight += rank->weight;
      }
    }
    if constexpr (backend_type::asynchronous) {
      for (auto const& rank : ranks_) {  // before copies that can't give up waiting
        keep_failure([&] { rank->replica->wait_for_room(); });
      }
      for (auto const& rank : ranks_) {
        [[maybe_unused]] auto const current = activate(rank->device);
        rank->shard.emplace(rank->inputs.place(*rank->shard, rank->device.stream()));
      }
    }
    set_pieces(options);
    keep_failure([&] {
      std::size_t const graph = graph_for(total, options);
      bool const fresh = has_new_sizes();
      on_all_ranks(waiting::one_timeout, [total, graph, fresh](rank_state& self) {
        [[maybe_unused]] typename backend_type::profiler_range const range{"lockstep step"};
        self.result = graph < self.graphs.size() ? replay(self, total, graph) : run(self, total, fresh);
        self.inputs.used(self.device.stream());
      });
    });
    for (auto const& rank : ranks_) {
      [[maybe_unused]] auto const current = activate(rank->device);
      rank->inputs.wait_until_read();
      rank->shard.reset();
    }
    return ranks_[0]->result;
  }

  [[nodiscard]] static step_info info_of(rank_state& self, totals const& total) {
    step_info info{
        .samples = lockstep::sample_count(*self.shard), .total_samples = total.samples, .updates = updates::as_reduced};
    if constexpr (weighted_batch<batch_type>) {
      info.weight = self.weight;
      info.total_weight = total.weight;
    }
    return info;
  }

  /// Into how many micro-batches each rank cuts its shard. None of them is empty, but where models communicate: then each rank
  /// has as many as the one with most samples.
  void set_pieces(step_options options) {
    std::size_t most = 0;
    for (auto const& rank : ranks_) {
      rank->pieces = (std::min)(options.micro_batches, lockstep::sample_count(*rank->shard));
      most = (std::max)(most, rank->pieces);
    }
    for (auto const& rank : ranks_) {
      rank->pieces = promises_of<Model>().communicates ? most : rank->pieces;
    }
  }

  /// Whether any rank trains a number of samples for the first time.
  [[nodiscard]] bool has_new_sizes() const {
    if constexpr (backend_type::asynchronous) {
      return std::any_of(ranks_.begin(), ranks_.end(), [](auto const& rank) {
        std::size_t const samples = lockstep::sample_count(*rank->shard);
        return samples != 0 && !(rank->replica->knows(plan::split(samples, rank->pieces, 0).count) &&
                                 rank->replica->knows(plan::split(samples, rank->pieces, rank->pieces - 1).count));
      });
    } else {
      return false;
    }
  }

  static step_result run(rank_state& self, totals const& total, bool has_new_sizes) {
    step_info info = info_of(self, total);
    info.first_of_its_sizes = has_new_sizes;
    auto step = self.replica->begin(info);
    step.attempt("training", [&] {
      if constexpr (requires { self.device.begin_step(std::uint64_t{}, [] { return false; }); }) {
        self.device.begin_step(++self.steps, [&self] { return self.replica->communicator().aborted(); });
      }
      step.expect_going_on();
      train(self, step);
    });
    return step.finish();
  }

  static step_result replay(rank_state& self, totals const& total, std::size_t graph) {
    if constexpr (records) {
      return self.replica->replay(self.graphs[graph], info_of(self, total));
    } else {
      return {};
    }
  }

  /// The graph that every rank has of this step, recorded now where that pays; else a number too large.
  std::size_t graph_for([[maybe_unused]] totals const& total, [[maybe_unused]] step_options options) {
    if constexpr (records) {
      std::vector<batch_type> shards;
      for (auto const& rank : ranks_) {
        shards.push_back(*rank->shard);
      }
      std::size_t const at = captured_.find_or_add(shards, options.micro_batches);
      if (at != captured_.capacity() && !captured_.recorded(at) &&
          std::all_of(ranks_.begin(), ranks_.end(), [](auto const& rank) { return rank->replica->capturable(); })) {
        record(at, total);
      }
      return at != captured_.capacity() && captured_.recorded(at) ? at : captured_.capacity();
    } else {
      return 1;
    }
  }

  /// All ranks record the step, with nothing running, before any of them launches it.
  void record(std::size_t at, totals const& total) {
    std::size_t const drop = captured_.set_recorded(at);
    on_all_ranks(waiting::one_timeout, [at, drop, total, capacity = captured_.capacity()](rank_state& self) {
      self.replica->synchronize();
      self.graphs.resize(capacity);
      if (drop != capacity) {
        self.graphs[drop] = {};
      }
      self.graphs[at] = self.replica->record(info_of(self, total), [&](typename replica_type::step& step) {
        step.attempt("training", [&] { train(self, step); });
        static_cast<void>(step.finish());
      });
    });
  }

  /// Micro-batches differ by at most one sample.
  static void train(rank_state& self, typename replica_type::step& step) {
    [[maybe_unused]] typename backend_type::profiler_range const range{"lockstep forward and backward"};
    std::size_t const samples = lockstep::sample_count(*self.shard);
    for (std::size_t i = 0; i < self.pieces; ++i) {
      plan::range const piece = plan::split(samples, self.pieces, i);
      auto ctx = step.micro_batch(piece.count);
      if (self.pieces == 1) {
        self.model->value.train(ctx, *self.shard);
      } else {
        self.model->value.train(ctx, lockstep::slice(*self.shard, piece.first, piece.count));
      }
    }
  }

  template <class Batch, class Output>
  void predict_parts(Batch const& batch, Output const& output) {
    expects_healthy();
    std::size_t const samples = lockstep::sample_count(batch);
    if (std::size_t const places = lockstep::sample_count(output); places != samples) {
      refuse(std::string("predict: the batch has ") + std::to_string(samples) + " samples, the output has room for " +
             std::to_string(places));
    }
    std::size_t const ranks = ranks_.size();
    on_all_ranks(waiting::one_timeout, [batch, output, samples, ranks](rank_state& self) {
      plan::range const mine = plan::split(samples, ranks, static_cast<std::size_t>(number(self.rank)));
      if (mine.count == 0) {
        return;
      }
      try {
        infer_context<backend_type> ctx{self.device.stream(), self.rank};
        self.model->value.infer(ctx, lockstep::slice(batch, mine.first, mine.count),
                                lockstep::slice(output, mine.first, mine.count));
        self.replica->communicator().wait(self.device.stream());
      } catch (...) {
        rethrow_at(self.rank, self.place("predicting"));
      }
    });
  }

  std::vector<std::shared_ptr<rank_state>> ranks_;
  options_type options_;
  std::vector<Optimizer> optimizers_;
  gradient_rules rules_;
  gradient_rules ruled_;  // at construction
  captured_steps<batch_type> captured_;
  std::optional<std::string> failure_;
};

template <class Model, class Optimizer, class Policy>
using trainer_base = std::conditional_t<composes<Model, Optimizer, Policy>, trainer_body<Model, Optimizer, Policy>,
                                        unmet::trainer_body<Model, Optimizer, Policy>>;

/// Trains a model on several devices: owns one replica a device, and the step they take together.
///
///   lockstep::trainer<mlp, lockstep::adamw, lockstep::peer_all_reduce<>> trainer{
///       lockstep::devices::all(),
///       [](lockstep::device_context<lockstep::host>& device) { return mlp{device, {64, 32, 10}}; },
///       lockstep::adamw{.learning_rate = 1e-3F}};
///   auto result = trainer.step({x, y}, {.micro_batches = 4});
///
/// Members: trainer_body. Where Model, Optimizer and Policy don't make a trainer, the first error is a sentence that says why.
/// Thread safety: one thread at a time.
template <class Model, class Optimizer, class Policy>
class trainer : public trainer_base<Model, Optimizer, Policy> {
  using base = trainer_base<Model, Optimizer, Policy>;

 public:
  using base::base;
};

}  // namespace lockstep
