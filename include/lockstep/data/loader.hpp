// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/error.hpp>
#include <lockstep/data/detail/batch_source.hpp>
#include <lockstep/data/detail/gather_ahead.hpp>
#include <lockstep/data/sampler.hpp>
#include <lockstep/data/table.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string>

namespace lockstep {

/// What a loader draws batches from: `rows()` samples, of which `gather(rows, storage)` puts some into a storage and returns
/// the batch that views it. No rows are a batch without samples. `table` is one; a type of your own may read files in `gather`,
/// which runs on a background thread, and beside itself where a loader has several or several epochs run at once.
template <class D>
concept dataset = std::default_initializable<typename D::storage> && std::movable<typename D::batch> &&
    requires(D const& data, std::span<std::size_t const> rows, typename D::storage& into) {
  { data.rows() } -> std::convertible_to<std::size_t>;
  { data.gather(rows, into) } -> std::same_as<typename D::batch>;
};

/// What becomes of the samples of an epoch that don't fill a batch.
enum class last_batch : std::uint8_t { keep, drop };

struct loader_options {
  /// Samples a batch, all devices of this process together. At least 1.
  std::size_t batch = 32;
  std::uint64_t seed = 0;
  epoch_order order = epoch_order::shuffled;
  /// Matters with several processes and without `global_batch` only.
  epoch_end end = epoch_end::pad;
  last_batch last = last_batch::keep;
  /// How many batches are gathered ahead by background threads. 0: none, each is gathered when it is asked for. Changes
  /// neither batches nor their order.
  std::size_t prefetch = 2;
  /// This process, and how many processes share the samples.
  rank_id rank{0};
  int size = 1;
  /// Samples a step, all processes together; used instead of `batch` where it is given. At least 1. Step k of an epoch then has
  /// places [k * global_batch, (k + 1) * global_batch) of the order of all samples, for any number of processes; process r
  /// takes piece r of it, as `plan::split` cuts: in the order of the processes the pieces are the batch of one process, and
  /// differ by at most one sample, so that some may be empty. Nothing is padded; `last` says whether the last, smaller batch is
  /// kept.
  std::optional<std::size_t> global_batch{};
  /// How many threads gather ahead. At least 1; at most `prefetch` are started, for each needs a batch to be at. With one,
  /// `gather` is called for one batch after another; with more, beside itself, which the data set must allow (a table does).
  /// Changes neither batches nor their order.
  std::size_t threads = 1;
  /// For the weighted orders, as in `sampler_options`. Read by the constructor only.
  std::span<double const> weights{};
  std::optional<std::size_t> draws{};
};

/// A place between two batches: where to go on. Two numbers for a checkpoint.
struct loader_position {
  std::uint64_t epoch = 0;
  /// The next batch of that epoch.
  std::uint64_t batch = 0;

  friend bool operator==(loader_position const&, loader_position const&) = default;
};

struct epoch_options {
  /// The epoch has at least this many batches: empty ones follow its own. For processes with data sets of their own, which must
  /// take equally many steps: give all of them the largest `batches()` among them.
  std::size_t padded_to = 0;
};

/// One pass over the samples: an input range of batches, made by `loader::epoch`. Owns its buffers and its background threads,
/// which end with it: leaving a loop early is fine, and the wait is for one batch a thread at most.
template <dataset Dataset>
class loader_epoch {
 public:
  using batch = typename Dataset::batch;

  class iterator {
   public:
    using iterator_concept = std::input_iterator_tag;
    using value_type = batch;
    using difference_type = std::ptrdiff_t;

    iterator() noexcept = default;
    explicit iterator(loader_epoch& owner) noexcept : owner_(&owner) {}

    /// The batch is valid until the iterator moves on.
    batch const& operator*() const noexcept { return *owner_->current_->batch; }
    /// Waits for the next batch. Throws what gathering it threw; the epoch is at its end then.
    iterator& operator++() {
      owner_->move_on();
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const noexcept { return owner_->current_ == nullptr; }

   private:
    loader_epoch* owner_ = nullptr;
  };

  /// Batches [from.batch, batches) of epoch from.epoch, as `cut` cuts them. Requires: from.batch <= batches.
  loader_epoch(Dataset const& data, sampler const& samples, data_detail::batch_cut const& cut, loader_position from,
               std::size_t batches, loader_options const& options)
      : epoch_(from.epoch),
        source_(data, samples, from.epoch, cut),
        ahead_(source_, static_cast<std::size_t>(from.batch), batches, options.prefetch, options.threads) {}
  loader_epoch(loader_epoch const&) = delete;  // threads fill its buffers
  loader_epoch& operator=(loader_epoch const&) = delete;

  /// Waits for the first batch. Throws usage_error when called again, for an epoch is run through once; and what gathering
  /// threw.
  iterator begin() {
    expects(!begun_, "an epoch of a loader is run through once: ask the loader for another");
    begun_ = true;
    move_on();
    return iterator{*this};
  }
  [[nodiscard]] std::default_sentinel_t end() const noexcept { return {}; }

  /// Where an epoch must begin to yield what this one has not yielded yet: within the loop, behind the batch that the loop is
  /// at, whatever was gathered ahead; after an exception of `gather`, at the batch that it belongs to; behind the last batch,
  /// at the end of the epoch, where `loader::epoch` yields nothing. Call it from the thread that reads.
  [[nodiscard]] loader_position next() const noexcept { return {epoch_, ahead_.next()}; }

 private:
  void move_on() {
    current_ = nullptr;
    current_ = ahead_.take();
  }

  using source = data_detail::batch_source<Dataset>;

  std::uint64_t const epoch_;
  source source_;
  typename source::slot const* current_ = nullptr;  // of the reader
  bool begun_ = false;
  data_detail::gather_ahead<source> ahead_;  // last: its threads use the source
};

/// Batches of a data set, in a new order each epoch, gathered by background threads while the step runs:
/// `for (auto const& batch : loader.epoch(e)) trainer.step(batch);`
///
/// Every process that shares the samples yields equally many batches, so that none waits for another at the end: with
/// `epoch_end::uneven` or a `global_batch` some may be empty. Thread safety: several epochs may run at once, each with its own
/// threads and buffers, provided the data set's `gather` may run beside itself (a table's may).
template <dataset Dataset>
class loader {
 public:
  using batch = typename Dataset::batch;

  /// Keeps a reference to `data`, which must outlive the loader and its epochs and stay as it is meanwhile. Throws usage_error
  /// when a batch has no sample, no thread is to gather, or the sampler refuses rank, size, weights or draws.
  explicit loader(Dataset const& data, loader_options const& options = {})
      : data_(data), options_(options), sampler_(data.rows(), options.size, options.rank, sampling(options)) {
    options_.weights = {};  // the sampler has read them
    cut_ = {.samples = sampler_.count(), .size = options.batch};
    if (options.global_batch) {
      cut_ = {.samples = sampler_.order_size(),
              .size = *options.global_batch,
              .pieces = static_cast<std::size_t>(options.size),
              .piece = static_cast<std::size_t>(number(options.rank))};
    }
    expects(cut_.size != 0, "a loader's batch holds at least one sample");
    expects(options.threads != 0, "a loader gathers ahead with at least one thread: for none, prefetch nothing");
    batches_ = count_batches();
  }
  explicit loader(Dataset const&& data, loader_options const& options = {}) = delete;  // the data set must outlive the loader

  /// How many batches every epoch has, the same number on every process that shares the samples.
  [[nodiscard]] std::size_t batches() const noexcept { return batches_; }

  /// The batches of epoch `epoch`; gathering begins at once. The same arguments always give the same batches.
  [[nodiscard]] loader_epoch<Dataset> epoch(std::uint64_t epoch, epoch_options const& options = {}) const {
    return this->epoch(loader_position{.epoch = epoch}, options);
  }
  /// The same epoch from batch `from.batch` on, to resume it: exactly the batches that the whole one has there, given the same
  /// loader options; with a `global_batch` the number of processes may be another. Throws usage_error for a position behind
  /// the end; at the end, the range is empty.
  [[nodiscard]] loader_epoch<Dataset> epoch(loader_position from, epoch_options const& options = {}) const {
    std::size_t const batches = batches_ < options.padded_to ? options.padded_to : batches_;
    if (from.batch > batches) {
      refuse(std::string("batch ") + std::to_string(from.batch) + " of an epoch that has " + std::to_string(batches));
    }
    return loader_epoch<Dataset>{data_, sampler_, cut_, from, batches, options_};
  }

 private:
  [[nodiscard]] static sampler_options sampling(loader_options const& options) noexcept {
    return {
        .seed = options.seed, .order = options.order, .end = options.end, .weights = options.weights, .draws = options.draws};
  }

  // Every process comes to the same number: that of the one with most samples, or least where smaller batches are dropped.
  [[nodiscard]] std::size_t count_batches() const noexcept {
    std::size_t most = cut_.samples;
    std::size_t least = cut_.samples;
    if (!options_.global_batch) {
      auto const size = static_cast<std::size_t>(options_.size);
      std::size_t const floor = sampler_.order_size() / size;
      std::size_t const ceil = floor + (sampler_.order_size() % size != 0 ? 1 : 0);
      most = options_.end == epoch_end::drop ? floor : ceil;
      least = options_.end == epoch_end::pad ? ceil : floor;
    }
    if (options_.last == last_batch::drop) {
      return least / cut_.size;
    }
    return most / cut_.size + (most % cut_.size != 0 ? 1 : 0);
  }

  Dataset const& data_;
  loader_options options_;
  sampler sampler_;
  data_detail::batch_cut cut_;
  std::size_t batches_ = 0;
};

}  // namespace lockstep
