// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/error.hpp>
#include <lockstep/data/sampler.hpp>
#include <lockstep/data/table.hpp>

#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace lockstep {

/// What a loader draws batches from: `rows()` samples, of which `gather(rows, storage)` puts some into a storage and returns
/// the batch that views it. `table` is one; a type of your own may read files in `gather`, which runs on a background thread.
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
  /// Matters with several processes only.
  epoch_end end = epoch_end::pad;
  last_batch last = last_batch::keep;
  /// How many batches are gathered ahead by a background thread. 0: none, each is gathered when it is asked for. Changes
  /// neither batches nor their order.
  std::size_t prefetch = 2;
  /// This process, and how many processes share the samples.
  rank_id rank{0};
  int size = 1;
};

/// One pass over the samples: an input range of batches, made by `loader::epoch`. Owns its buffers and its background thread,
/// which ends with it: leaving a loop early is fine, and the wait is for one batch at most.
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
    batch const& operator*() const noexcept { return *owner_->slot_of(owner_->position_).content; }
    /// Waits for the next batch. Throws what gathering it threw.
    iterator& operator++() {
      owner_->move_on();
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const noexcept { return owner_->position_ == owner_->batches_; }

   private:
    loader_epoch* owner_ = nullptr;
  };

  loader_epoch(Dataset const& data, sampler const& samples, std::uint64_t epoch, loader_options const& options,
               std::size_t batches)
      : data_(data),
        sampler_(samples),
        epoch_(epoch),
        batch_samples_(options.batch),
        batches_(batches),
        slots_(options.prefetch < batches ? options.prefetch + 1 : batches) {
    if (options.prefetch != 0 && batches != 0) {
      producer_ = std::thread([this] { produce(); });
    }
  }
  loader_epoch(loader_epoch const&) = delete;  // a thread fills its buffers
  loader_epoch& operator=(loader_epoch const&) = delete;
  ~loader_epoch() {
    if (producer_.joinable()) {
      {
        std::lock_guard const lock{mutex_};
        stop_ = true;
      }
      changed_.notify_all();
      producer_.join();
    }
  }

  /// Waits for the first batch. Throws usage_error when called again, for an epoch is run through once; and what gathering
  /// threw.
  iterator begin() {
    expects(!begun_, "an epoch of a loader is run through once: ask the loader for another");
    begun_ = true;
    await();
    return iterator{*this};
  }
  [[nodiscard]] std::default_sentinel_t end() const noexcept { return {}; }

 private:
  struct slot {
    typename Dataset::storage memory{};
    std::optional<batch> content;
  };

  [[nodiscard]] slot& slot_of(std::size_t index) noexcept { return slots_[index % slots_.size()]; }

  void move_on() {
    if (producer_.joinable()) {
      {
        std::lock_guard const lock{mutex_};
        ++released_;
      }
      changed_.notify_all();
    }
    ++position_;
    await();
  }

  // Returns once the batch at position_ is there, if there is one. On an exception the range is at its end.
  void await() {
    if (position_ == batches_) {
      return;
    }
    try {
      if (!producer_.joinable()) {
        fill(position_);
        return;
      }
      std::unique_lock lock{mutex_};
      changed_.wait(lock, [this] { return filled_ > position_ || failure_ != nullptr; });
      if (filled_ <= position_) {
        lock.unlock();
        producer_.join();  // it has stopped, and lets go of the exception before the caller looks at it
        std::rethrow_exception(std::exchange(failure_, nullptr));
      }
    } catch (...) {
      position_ = batches_;
      throw;
    }
  }

  void produce() noexcept {
    try {
      for (std::size_t index = 0; index < batches_; ++index) {
        {
          std::unique_lock lock{mutex_};
          changed_.wait(lock, [&] { return stop_ || index - released_ < slots_.size(); });
          if (stop_) {
            return;
          }
        }
        fill(index);
        {
          std::lock_guard const lock{mutex_};
          ++filled_;
        }
        changed_.notify_all();
      }
    } catch (...) {
      {
        std::lock_guard const lock{mutex_};
        failure_ = std::current_exception();
      }
      changed_.notify_all();
    }
  }

  // Gathers batch `index`. A process that has run out of samples before the others gets an empty one.
  void fill(std::size_t index) {
    if (index == 0) {
      order_ = sampler_.epoch(epoch_);
    }
    std::span<std::size_t const> rows{order_};
    std::size_t const first = index * batch_samples_;
    rows = first < rows.size() ? rows.subspan(first) : rows.last(0);
    rows = rows.first(batch_samples_ < rows.size() ? batch_samples_ : rows.size());
    slot& target = slot_of(index);
    target.content.emplace(data_.gather(rows, target.memory));
  }

  Dataset const& data_;
  sampler const sampler_;
  std::uint64_t const epoch_;
  std::size_t const batch_samples_;
  std::size_t const batches_;
  std::vector<std::size_t> order_;  // of whoever fills
  std::vector<slot> slots_;
  std::size_t position_ = 0;  // of the reader
  bool begun_ = false;

  std::mutex mutex_;  // guards the four below, and passes slots on
  std::condition_variable changed_;
  std::size_t filled_ = 0;
  std::size_t released_ = 0;
  bool stop_ = false;
  std::exception_ptr failure_;

  std::thread producer_;
};

/// Batches of a data set, in a new order each epoch, gathered by a background thread while the step runs:
/// `for (auto const& batch : loader.epoch(e)) trainer.step(batch);`
///
/// Every process yields equally many batches, so that none waits for another at the end: under `epoch_end::uneven` the last
/// one may be empty on some. Thread safety: several epochs may run at once, each with its own thread and buffers, provided the
/// data set's `gather` may run beside itself (a table's may).
template <dataset Dataset>
class loader {
 public:
  using batch = typename Dataset::batch;

  /// Keeps a reference to `data`, which must outlive the loader and its epochs and stay as it is meanwhile. Throws usage_error
  /// when a batch has no sample, or rank and size don't fit each other.
  explicit loader(Dataset const& data, loader_options const& options = {})
      : data_(data), options_(options), sampler_(data.rows(), options.size, options.rank, sampling(options)) {
    expects(options.batch != 0, "a loader's batch holds at least one sample");
    auto const size = static_cast<std::size_t>(options.size);
    std::size_t const floor = data.rows() / size;
    std::size_t const ceil = floor + (data.rows() % size != 0 ? 1 : 0);
    std::size_t const most = options.end == epoch_end::drop ? floor : ceil;  // samples of the process that has most
    std::size_t const least = options.end == epoch_end::pad ? ceil : floor;
    batches_ =
        options.last == last_batch::drop ? least / options.batch : most / options.batch + (most % options.batch != 0 ? 1 : 0);
  }
  explicit loader(Dataset const&& data, loader_options const& options = {}) = delete;  // the data set must outlive the loader

  /// How many batches every epoch has, the same number on every process.
  [[nodiscard]] std::size_t batches() const noexcept { return batches_; }

  /// The batches of epoch `epoch`; gathering begins at once. The same arguments always give the same batches.
  [[nodiscard]] loader_epoch<Dataset> epoch(std::uint64_t epoch) const {
    return loader_epoch<Dataset>{data_, sampler_, epoch, options_, batches_};
  }

 private:
  [[nodiscard]] static sampler_options sampling(loader_options const& options) noexcept {
    return {.seed = options.seed, .order = options.order, .end = options.end};
  }

  Dataset const& data_;
  loader_options options_;
  sampler sampler_;
  std::size_t batches_ = 0;
};

}  // namespace lockstep
