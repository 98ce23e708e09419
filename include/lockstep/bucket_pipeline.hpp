// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/bucket_layout.hpp>
#include <lockstep/comm/bucket_memory.hpp>
#include <lockstep/concepts.hpp>
#include <lockstep/core/element_type.hpp>
#include <lockstep/core/host_device.hpp>
#include <lockstep/core/parameter.hpp>
#include <lockstep/core/update.hpp>
#include <lockstep/optimizer_state.hpp>
#include <lockstep/plan/split.hpp>
#include <lockstep/step_totals.hpp>

#include <cstddef>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep {

namespace pipeline_detail {

/// Multiplies element i by a factor.
template <class T>
struct scale {
  T* data;
  double factor;

  LOCKSTEP_HOST_DEVICE void operator()(std::size_t i) const {
    if constexpr (sizeof(T) == 2) {
      data[i] = T(static_cast<float>(static_cast<double>(static_cast<float>(data[i])) * factor));
    } else {
      data[i] = static_cast<T>(static_cast<double>(data[i]) * factor);
    }
  }
};

}  // namespace pipeline_detail

/// The streams of a rank, and the way of the buckets over them: each is reduced as soon as its gradients are ready, updated and
/// published once that may be. Buckets go strictly in plan order, and so do the collectives of every rank.
///
///   model        forward, backward                                | update (held)
///   communication        reduce 0 | reduce 1 | publish 0 | ...    |
///   aside        open, prepare    | update 0 | update 1  | ...    | close
///
/// Where a rule needs the norm of all gradients, their squares are added up aside instead, bucket after bucket, and updates are
/// held.
/// Where work is not asynchronous, everything but communication beside backward runs in the calling thread, at once.
template <class Policy, class Optimizer, class Backend>
class bucket_pipeline {
 public:
  using communicator_type = typename communicator_for<typename Policy::transport, Backend>::type;
  using stream_ref = typename Backend::stream_ref;
  using event = typename Backend::event;

  /// Requires: all of these outlive this object.
  bucket_pipeline(typename Backend::device& device, communicator_type& communicator, bucket_layout<Backend>& layout,
                  optimizer_state<Optimizer, Backend>& state, step_totals<Backend>& totals)
      : communicator_(communicator), layout_(layout), state_(state), totals_(totals), model_(device.stream()) {
    if (Backend::asynchronous) {
      aside_.emplace(device);
    }
    if (!alone()) {
      communication_.emplace(device);
    }
  }

  /// From now on squares of gradients are added up, those of `stretches` on this rank.
  void measure(typename Backend::device& device, std::vector<gradient_stretch> stretches) {
    norm_.emplace(device, std::move(stretches));
  }

  /// A step begins: `nominal` samples were announced for all ranks, and for this one what `totals` are told.
  void open(double nominal, std::size_t samples, bool brings_weight, updates when) {
    using known_weight = typename step_totals<Backend>::known_weight;
    reduced_ = 0;
    when_ = when;
    brings_weight_ = brings_weight;
    follow(aside(), model_, opened_);
    known_weight const known = early() ? known_weight::total : known_weight::rank;
    totals_.open(aside(), nominal, samples, brings_weight ? known : known_weight::none);
    if constexpr (elementwise_optimizer<Optimizer>) {
      state_.prepare(aside(), totals_.applied());
    }
    opened_.record(aside());
    behind_open_ = false;
    totals_.start_clock(measured::training, model_);
  }

  /// A micro-batch has ended, and another one begins.
  void take_cells() {
    wait_for_open();
    totals_.take_cells(model_);
  }

  /// Sends off the buckets before `until`, behind what the model has enqueued. The last bucket has nothing left to hide behind
  /// and waits for `reduce_rest`.
  void reduce_until(std::size_t until) {
    std::size_t const last = layout_.gradients().size() - 1;
    until = until < last ? until : last;
    if (reduced_ >= until) {
      return;
    }
    if (alone()) {
      if (norm_) {
        follow(aside(), model_, ready_);
        norm_->run(aside(), {reduced_, until - reduced_}, totals_.squares());
        reduced_ = until;
      }
      return;
    }
    follow(communication(), model_, ready_);
    for (; reduced_ < until; ++reduced_) {
      reduce(reduced_, communication(), [] {});
    }
  }
  /// Whether a bucket has been sent off in this step.
  [[nodiscard]] bool started() const noexcept { return reduced_ != 0; }

  /// Backward has ended: sends off the rest, and with it the totals. `votes_to_skip` withdraws this rank.
  void reduce_rest(bool votes_to_skip) {
    totals_.stop_clock(measured::training, model_);
    wait_for_open();
    if (votes_to_skip || !alone() || totals_.cells_decide()) {
      totals_.take_cells(model_);
    }
    if (votes_to_skip) {
      totals_.withdraw(model_);
    }
    totals_.contribute(model_);
    if (alone()) {
      if (norm_) {
        follow(model_, aside(), measured_);
        norm_->run(model_, {reduced_, layout_.gradients().size() - reduced_}, totals_.squares());
      }
      if (norm_ || votes_to_skip || totals_.cells_decide()) {
        decide(model_);
      }
      closing_ = model_;
      return;
    }
    stream_ref const tail = Backend::asynchronous ? communication() : model_;
    if (Backend::asynchronous) {
      follow(tail, model_, ready_);
    } else if (started()) {
      follow(model_, communication(), ready_);
      communication().check();
    }
    std::size_t const buckets = layout_.gradients().size();
    auto const totals = [&] { totals_.reduce(communicator_, tail); };
    for (; reduced_ < buckets; ++reduced_) {
      if (reduced_ + 1 < buckets || norm_) {
        reduce(reduced_, tail, [] {});
      } else {
        reduce(reduced_, tail, totals);
      }
    }
    if (norm_) {
      follow(tail, beside(tail), measured_);
      totals();
    }
    if (!early()) {
      decide(tail);
    }
    publish_updated(tail);
    if constexpr (shares) {
      if (early()) {
        communicator_.meet(tail);  // values are written, and gradients have been read
      }
    }
    follow(model_, tail, reduced_all_);
    closing_ = tail;
  }

  /// Leaves the outcome of the step where the host reads it. Once, after reduce_rest.
  void close() {
    follow(aside(), closing_, closing_event_);
    totals_.close(aside());
    closed_.record(aside());
  }
  /// Complete once the outcome of the step can be read.
  [[nodiscard]] event const& closed() const noexcept { return closed_; }

  /// Updates what was held.
  void update() {
    if constexpr (elementwise_optimizer<Optimizer>) {
      if (!early()) {
        totals_.start_clock(measured::updating, model_);
        state_.update(model_, {0, layout_.gradients().size()}, totals_.decision(), totals_.uses());
        totals_.stop_clock(measured::updating, model_);
      }
    }
  }

  /// Brings what was held to all ranks, and makes buffers equal.
  void publish() {
    bucket_memory<Backend> const* const buffers = layout_.buffers();
    bool const values = publishes_values && !early();
    if (alone() || (!values && buffers == nullptr)) {
      return;
    }
    stream_ref const stream = Backend::asynchronous ? communication() : model_;
    follow(stream, model_, ready_);
    for (std::size_t b = 0; values && b < layout_.gradients().size(); ++b) {
      publish(b, stream);
    }
    for (std::size_t b = 0; buffers != nullptr && b < buffers->size(); ++b) {
      if (buffers->sync_of(b) == buffer_sync::root) {
        travel(*buffers, b, bucket_side::value, stream,
               [&](typed_span span) { communicator_.broadcast(span, rank_id{0}, stream); });
      } else {
        travel(*buffers, b, bucket_side::value, stream, [&](typed_span span) { average(span, stream); });
      }
    }
    follow(model_, stream, ready_);
  }

  /// The model's stream is behind everything of this step.
  void join() {
    if (Backend::asynchronous) {
      follow(model_, aside(), joined_);
    }
  }

  /// At the meeting: rank 0's values and buffers become everyone's.
  void start_from_root() {
    auto const from_root = [&](typed_span span) { communicator_.broadcast(span, rank_id{0}, model_); };
    for (std::size_t b = 0; b < layout_.gradients().size(); ++b) {
      travel(layout_.gradients(), b, bucket_side::value, model_, from_root);
    }
    for (std::size_t b = 0; layout_.buffers() != nullptr && b < layout_.buffers()->size(); ++b) {
      travel(*layout_.buffers(), b, bucket_side::value, model_, from_root);
      if (layout_.buffers()->sync_of(b) == buffer_sync::mean) {  // what averages them is loaded now
        layout_.buffers()->each_span(b, bucket_side::value, [&](typed_span span) { scale(span, 1, model_); });
      }
    }
  }

  /// Throws what went wrong in a communication stream that runs in a thread of its own, once all there has ended.
  void rethrow_communication() {
    if (!Backend::asynchronous && communication_) {
      communication_->ref().synchronize();
    }
  }

  /// Whether ranks reach each other's memory and each updates a part: then a bucket is added up, updated and brought to all
  /// ranks in one pass, between two meetings, where its update need not be held.
  static constexpr bool shares = [] {
    if constexpr (splits_updates<Policy> && elementwise_optimizer<Optimizer> && requires { requires Policy::shares_updates; }) {
      return optimizer_state<Optimizer, Backend>::shares && requires(communicator_type & c, stream_ref stream) {
        c.meet(stream);
        c.stopped();
        c.reaches(static_cast<void const*>(nullptr));
      };
    } else {
      return false;
    }
  }();

 private:
  using measured = typename step_totals<Backend>::measured;

  static constexpr bool publishes_values = publishes<Policy, communicator_type, stream_ref>;

  [[nodiscard]] bool alone() const noexcept { return communicator_.size() == 1; }
  /// Alone, nothing is hidden by many small updates.
  [[nodiscard]] bool early() const noexcept {
    return elementwise_optimizer<Optimizer> && !alone() && when_ == updates::as_reduced && !norm_;
  }
  [[nodiscard]] stream_ref aside() const { return aside_ ? aside_->ref() : model_; }
  [[nodiscard]] stream_ref communication() const { return communication_->ref(); }

  void decide(stream_ref stream) {
    if constexpr (elementwise_optimizer<Optimizer>) {  // others are called by the host, which reads the outcome
      totals_.decide(stream);
    }
  }

  /// What an early update divides gradients by: null for the samples that were announced.
  [[nodiscard]] step_decision const* announced() const noexcept { return brings_weight_ ? totals_.announced() : nullptr; }

  /// Where what may run beside a reduction is enqueued, behind it: on the host in the same thread.
  [[nodiscard]] stream_ref beside(stream_ref stream) const { return Backend::asynchronous ? aside() : stream; }

  /// What is enqueued on `later` from now on runs after what was enqueued on `earlier`.
  static void follow(stream_ref later, stream_ref earlier, event& point) {
    if (!(later == earlier)) {
      point.record(earlier);
      later.wait(point);
    }
  }

  void wait_for_open() {
    if (!behind_open_) {
      if (aside_) {
        model_.wait(opened_);
      }
      behind_open_ = true;
    }
  }

  /// Divides before it adds: a sum of f16 may overflow where the mean does not.
  void average(typed_span span, stream_ref stream) {
    scale(span, 1.0 / communicator_.size(), stream);
    communicator_.all_reduce(span, reduction::sum, stream);
  }
  static void scale(typed_span span, double factor, stream_ref stream) {
    visit(span.type, [&]<class T>(std::type_identity<T>) {
      if constexpr (is_floating(element_type_of<T>::value)) {
        Backend::for_each(stream, span.count, pipeline_detail::scale<T>{static_cast<T*>(span.data), factor});
      }
    });
  }

  template <class Work>
  void together(Work&& work) {
    if constexpr (requires { communicator_.together(work); }) {
      communicator_.together(work);
    } else {
      work();
    }
  }

  /// Moves the spans of one bucket; what else `with` enqueues may travel in the same launch.
  template <class Travel, class With>
  void travel(bucket_memory<Backend> const& memory, std::size_t bucket, bucket_side side, stream_ref stream, Travel&& one,
              With&& with) {
    memory.stage(bucket, side, stream);
    together([&] {
      memory.each_span(bucket, side, one);
      with();
    });
    memory.unstage(bucket, side, stream);
  }
  template <class Travel>
  void travel(bucket_memory<Backend> const& memory, std::size_t bucket, bucket_side side, stream_ref stream, Travel&& one) {
    travel(memory, bucket, side, stream, one, [] {});
  }

  template <class With>
  void reduce(std::size_t bucket, stream_ref stream, With&& with) {
    [[maybe_unused]] typename Backend::profiler_range const range{"lockstep bucket"};
    if constexpr (shares) {
      if (early()) {
        share(bucket, stream);
        with();
        return;
      }
    }
    travel(
        layout_.gradients(), bucket, bucket_side::gradient, stream,
        [&](typed_span gradients) { Policy::reduce(communicator_, gradients, stream); }, with);
    if (norm_) {
      follow(beside(stream), stream, bucket_reduced_);
      norm_->run(beside(stream), {bucket, 1}, totals_.squares());
    }
    if constexpr (elementwise_optimizer<Optimizer>) {
      if (early()) {
        publish_updated(stream);  // the bucket before this one: its update ran beside this reduction
        stream_ref const apart = beside(stream);
        follow(apart, stream, bucket_reduced_);
        totals_.start_clock(measured::updating, apart);
        state_.update(apart, {bucket, 1}, announced(), nullptr);
        totals_.stop_clock(measured::updating, apart);
        updated_.record(apart);
        updated_bucket_ = bucket;
      }
    }
  }

  void share(std::size_t bucket, stream_ref stream) {
    if (bucket == 0) {
      stream.wait(opened_);  // what the update is prepared from
    }
    communicator_.meet(stream);  // everybody's gradients are there, and nobody reads the values any more
    totals_.start_clock(measured::updating, stream);
    state_.update_shared(stream, {bucket, 1}, announced(), communicator_.stopped());
    totals_.stop_clock(measured::updating, stream);
  }

  void publish(std::size_t bucket, stream_ref stream) {
    if constexpr (publishes_values) {
      travel(layout_.gradients(), bucket, bucket_side::value, stream,
             [&](typed_span values) { Policy::publish(communicator_, values, stream); });
    }
  }

  void publish_updated(stream_ref stream) {
    if (updated_bucket_) {
      if constexpr (publishes_values) {
        stream.wait(updated_);
        publish(*updated_bucket_, stream);
      }
      updated_bucket_.reset();
    }
  }

  communicator_type& communicator_;
  bucket_layout<Backend>& layout_;
  optimizer_state<Optimizer, Backend>& state_;
  step_totals<Backend>& totals_;
  stream_ref model_;
  stream_ref closing_{};  // where the totals of this step become complete
  updates when_ = updates::held;
  bool brings_weight_ = false;
  std::size_t reduced_ = 0;                    // buckets sent in this step
  std::optional<std::size_t> updated_bucket_;  // updated, not published
  bool behind_open_ = false;                   // the model's stream waits for `open` already
  std::optional<squared_norm<Backend>> norm_;  // where a rule asks for it

  event opened_;
  event ready_;
  event bucket_reduced_;
  event updated_;
  event reduced_all_;
  event measured_;
  event closing_event_;
  event closed_;
  event joined_;
  // Last, so that they end first: what runs there uses the rest.
  std::optional<typename Backend::stream> aside_;
  std::optional<typename Backend::stream> communication_;
};

}  // namespace lockstep
