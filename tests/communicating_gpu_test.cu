// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Models that add up over the ranks within train, and buffers, on one GPU: alone, and with several ranks that share it. By
// calls, and replayed.

#include "support/gpu_trainer_cases.cuh"
#include "support/ruled_gpu_setup.cuh"

#include <lockstep/lockstep.cuh>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace {

using lockstep::rank_id;
using support::one_gpu;
using support::rows;

/// The sum of the samples of a micro-batch, and how many there are.
struct add_samples {
  rows samples;
  double* sums;

  LOCKSTEP_HOST_DEVICE void operator()() const {
    sums[0] = 0;
    for (std::size_t s = 0; s < samples.count; ++s) {
      sums[0] += static_cast<double>(samples.data[s]);
    }
    sums[1] = static_cast<double>(samples.count);
  }
};

/// Pulls the value towards the square of each sample's distance from the mean of all ranks' samples.
struct pull_to_squares {
  rows samples;
  double const* sums;
  float* value;
  float* gradient;
  lockstep::cuda::weight weight;
  float* loss;
  float* last_mean;
  float* samples_here;
  std::int64_t* calls;

  LOCKSTEP_HOST_DEVICE void operator()() const {
    if (value == nullptr) {
      return;
    }
#if defined(__CUDA_ARCH__)
    float const w = weight;
    double const mean = sums[1] > 0 ? sums[0] / sums[1] : 0;
    for (std::size_t s = 0; s < samples.count; ++s) {
      double const off = static_cast<double>(samples.data[s]) - mean;
      auto const error = static_cast<float>(static_cast<double>(*value) - off * off);
      *gradient += w * error;
      *loss += w * error * error / 2;
    }
    *last_mean = static_cast<float>(mean);
    *samples_here = static_cast<float>(samples.count);
    *calls += 1;
#endif
  }
};

void load_functors() {
  lockstep::cuda::stream_ref const stream{};
  auto const memory = support::one_gpu::device{}.allocate(64, lockstep::memory_use::other);
  lockstep::cuda::invoke(stream, add_samples{{}, memory.as<double>()});
  lockstep::cuda::invoke(stream, pull_to_squares{});
  lockstep::check(cudaStreamSynchronize(nullptr));
}

template <class Backend>
class centred {
 public:
  using backend = Backend;
  using batch = rows;
  static constexpr lockstep::model_promises promises{.communicates = true};

  explicit centred(lockstep::device_context<Backend> const& device)
      : memory_(device.allocate(128, lockstep::memory_use::parameters)) {
    static_cast<void>(support::loads<load_functors>);
    Backend::zero(device.stream(), memory_.data(), memory_.bytes());
    device.stream().synchronize();
  }

  std::vector<lockstep::parameter> parameters() {
    return {{"value", floats(), floats() + 1, {1}},
            lockstep::buffer("last_mean", floats() + 2, {1}),
            lockstep::buffer("samples_here", floats() + 3, {1}, {.sync = lockstep::buffer_sync::mean}),
            lockstep::buffer("calls", memory_.template as<std::int64_t>() + 4, {1})};
  }

  void train(lockstep::train_context<Backend>& ctx, batch const& shard) {
    auto* const sums = memory_.template as<double>() + 8;
    Backend::invoke(ctx.stream(), add_samples{shard, sums});
    ctx.all_reduce({sums, 2, lockstep::element_type::f64});
    Backend::invoke(ctx.stream(), pull_to_squares{shard, sums, floats(), floats() + 1, ctx.sample_weight(), ctx.loss(),
                                                  floats() + 2, floats() + 3, memory_.template as<std::int64_t>() + 4});
    ctx.gradient_ready(0);
  }

 private:
  float* floats() const { return memory_.template as<float>(); }

  typename Backend::buffer memory_;
};

/// One device in double precision, that is told which samples each micro-batch holds.
struct centred_reference {
  double value = 0;
  double last_mean = 0;
  double mean_samples = 0;
  std::int64_t calls = 0;

  double step(std::vector<std::vector<float>> const& shards, std::size_t micro_batches, double rate) {
    std::size_t pieces = 0;
    double total = 0;
    for (auto const& shard : shards) {
      pieces = (std::max)(pieces, (std::min)(micro_batches, shard.size()));
      total += static_cast<double>(shard.size());
    }
    double gradient = 0;
    double loss = 0;
    for (std::size_t i = 0; i < pieces; ++i) {
      std::vector<double> all;
      mean_samples = 0;
      for (auto const& shard : shards) {
        lockstep::plan::range const piece = lockstep::plan::split(shard.size(), pieces, i);
        for (std::size_t s = piece.first; s < piece.end(); ++s) {
          all.push_back(static_cast<double>(shard[s]));
        }
        mean_samples += static_cast<double>(piece.count) / static_cast<double>(shards.size());
      }
      double sum = 0;
      for (double const x : all) {
        sum += x;
      }
      last_mean = sum / static_cast<double>(all.size());
      for (double const x : all) {
        double const error = value - (x - last_mean) * (x - last_mean);
        gradient += error / total;
        loss += error * error / 2 / total;
      }
      ++calls;
    }
    value -= rate * gradient;
    return loss;
  }
};

template <class T>
T read(lockstep::parameter const& p) {
  T value{};
  support::ruled_gpu_setup<lockstep::cuda, 0>::copy(&value, p.value, sizeof value);
  return value;
}

template <class Backend, class Policy, std::size_t Graphs>
void train(std::uint64_t seed, int ranks) {
  using setup = support::ruled_gpu_setup<Backend, Graphs>;
  tests::generator random{seed};
  lockstep::trainer<centred<Backend>, lockstep::sgd, Policy> trainer{lockstep::devices::first(ranks),
                                                                     [](auto& device) { return centred<Backend>{device}; },
                                                                     lockstep::sgd{.learning_rate = 0.25F}, setup::options()};
  centred_reference truth;
  std::size_t const samples = random.whole(1, 30);
  std::size_t const micro_batches = random.whole(1, 4);
  std::vector<std::size_t> const sizes = ruled_cases::random_sizes(random, samples, ranks);
  ruled_cases::resident<setup, rows> memory{ranks, samples, 1};
  for (int k = 0; k < 8; ++k) {
    CAPTURE(k);
    std::vector<float> all;
    std::vector<std::vector<float>> cut;
    for (std::size_t const size : sizes) {
      cut.emplace_back();
      for (std::size_t s = 0; s < size; ++s) {
        cut.back().push_back(random.real(-2.0F, 2.0F));
      }
      all.insert(all.end(), cut.back().begin(), cut.back().end());
    }
    memory.set(all);
    std::vector<rows> const shards = memory.shards(sizes);
    auto const result = trainer.step_shards(std::span<rows const>{shards}, {.micro_batches = micro_batches});
    CHECK(result.loss() == doctest::Approx(truth.step(cut, micro_batches, 0.25)).epsilon(1e-5));
    trainer.synchronize();
    for (int r = 0; r < ranks; ++r) {
      CAPTURE(r);
      auto const parameters = trainer.model(rank_id{r}).parameters();
      CHECK(read<float>(parameters[0]) == doctest::Approx(truth.value).epsilon(1e-5));
      CHECK(read<float>(parameters[1]) == doctest::Approx(truth.last_mean).epsilon(1e-5));
      CHECK(read<float>(parameters[2]) == doctest::Approx(truth.mean_samples).epsilon(1e-6));
      CHECK(read<std::int64_t>(parameters[3]) == truth.calls);
    }
  }
}

using all_reduce = lockstep::peer_all_reduce<support::shared_gpu, support::small_buckets>;
using sharded = lockstep::sharded_optimizer<support::shared_gpu, support::small_buckets>;

template <std::size_t Graphs>
void train_everywhere(std::uint64_t seed) {
  int const ranks = static_cast<int>(tests::generator{seed ^ 0x5eedU}.whole(1, 4));
  CAPTURE(seed);
  CAPTURE(ranks);
  train<lockstep::cuda, lockstep::single_device, Graphs>(seed, 1);
  train<one_gpu, all_reduce, Graphs>(seed, ranks);
  train<one_gpu, sharded, Graphs>(seed, ranks);
}

}  // namespace

TEST_CASE("communicating models on one GPU: uneven and empty shards give one device's result, buffers are equal everywhere") {
  std::uint64_t const first = tests::seed();
  for (std::uint64_t seed = first; seed < first + 12; ++seed) {
    train_everywhere<0>(seed);
  }
}

TEST_CASE("communicating models on one GPU: the same when steps are replayed") {
  gpu_cases::one_stream_each const one;
  std::uint64_t const first = tests::seed();
  for (std::uint64_t seed = first; seed < first + 12; ++seed) {
    train_everywhere<8>(seed);
  }
}
