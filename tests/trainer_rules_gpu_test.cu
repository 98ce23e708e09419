// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// What steps mean on one GPU: alone, and with several ranks that share it. By calls, and replayed.

#include "support/gpu_trainer_cases.cuh"
#include "support/ruled_gpu_setup.cuh"

#include <lockstep/lockstep.cuh>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace {

using lockstep::single_device;
using support::one_gpu;
using support::rows;
using support::weighed_rows;
using all_reduce = lockstep::peer_all_reduce<support::shared_gpu, support::small_buckets>;
using gather = lockstep::replicate_and_gather<support::shared_gpu, support::small_buckets>;
using sharded = lockstep::sharded_optimizer<support::shared_gpu, support::small_buckets>;

template <class Backend, std::size_t Graphs, class Policy, class Batch, lockstep::model_promises Promises>
void train(std::uint64_t seed, int ranks, std::string const& what) {
  CAPTURE(what);
  ruled_cases::train_case<support::ruled_gpu_setup<Backend, Graphs>, Policy, Batch, Promises>(seed, ranks);
}

template <std::size_t Graphs>
void train_alone(std::uint64_t seed) {
  train<lockstep::cuda, Graphs, single_device, weighed_rows, ruled_cases::measured>(seed, 1, "measured");
  train<lockstep::cuda, Graphs, single_device, rows, ruled_cases::counting>(seed, 1, "counting");
  train<lockstep::cuda, Graphs, single_device, rows, ruled_cases::weighing>(seed, 1, "weighing");
  train<lockstep::cuda, Graphs, single_device, rows, ruled_cases::voting>(seed, 1, "voting");
}

template <std::size_t Graphs>
void train_together(std::uint64_t seed, int ranks) {
  train<one_gpu, Graphs, all_reduce, weighed_rows, ruled_cases::measured>(seed, ranks, "all_reduce, measured");
  train<one_gpu, Graphs, all_reduce, rows, ruled_cases::weighing>(seed, ranks, "all_reduce, weighing");
  train<one_gpu, Graphs, all_reduce, rows, ruled_cases::voting>(seed, ranks, "all_reduce, voting");
  train<one_gpu, Graphs, gather, rows, ruled_cases::counting>(seed, ranks, "gather, counting");
  train<one_gpu, Graphs, gather, rows, ruled_cases::reporting>(seed, ranks, "gather, reporting");
  train<one_gpu, Graphs, sharded, rows, ruled_cases::measured>(seed, ranks, "sharded, measured");
}

/// Weights in host memory, which only the host can add up.
struct host_weights {
  float const* data = nullptr;
  std::size_t count = 0;
  friend bool operator==(host_weights const&, host_weights const&) = default;
};
std::size_t sample_count(host_weights const& batch) { return batch.count; }
host_weights slice(host_weights const& batch, std::size_t first, std::size_t count) { return {batch.data + first, count}; }
double batch_weight(host_weights const& batch) {
  double sum = 0;
  for (std::size_t s = 0; s < batch.count; ++s) {
    sum += static_cast<double>(batch.data[s]);
  }
  return sum;
}
template <class Backend>
host_weights place(lockstep::place_context<Backend>& ctx, host_weights const& batch) {
  return {ctx.bring(batch.data, batch.count), batch.count};
}

/// Pulls the value towards 2, by each sample as much as it weighs.
struct pull_weighed {
  host_weights samples;
  float const* value;
  float* gradient;
  lockstep::cuda::weight weight;
  float* loss;  // null: does nothing

  LOCKSTEP_HOST_DEVICE void operator()() const {
#if defined(__CUDA_ARCH__)
    for (std::size_t s = 0; loss != nullptr && s < samples.count; ++s) {
      float const error = *value - 2;
      *gradient += weight * samples.data[s] * error;
      *loss += weight * samples.data[s] * error * error / 2;
    }
#endif
  }
};
void load_pull_weighed() {
  lockstep::cuda::invoke(lockstep::cuda::stream_ref{}, pull_weighed{});
  lockstep::check(cudaStreamSynchronize(nullptr));
}

template <class Backend>
class weighed_value {
 public:
  using backend = Backend;
  using batch = host_weights;

  explicit weighed_value(lockstep::device_context<Backend> const& device)
      : memory_(device.allocate(8, lockstep::memory_use::parameters)) {
    static_cast<void>(support::loads<load_pull_weighed>);
    Backend::zero(device.stream(), memory_.data(), memory_.bytes());
    device.stream().synchronize();
  }
  std::vector<lockstep::parameter> parameters() {
    return {{"value", memory_.template as<float>(), memory_.template as<float>() + 1, {1}}};
  }
  void train(lockstep::train_context<Backend>& ctx, batch const& shard) {
    auto* const floats = memory_.template as<float>();
    Backend::invoke(ctx.stream(), pull_weighed{shard, floats, floats + 1, ctx.sample_weight(), ctx.loss()});
  }

 private:
  typename Backend::buffer memory_;
};

template <class Backend, class Policy>
void train_on_host_weights(int ranks) {
  lockstep::trainer<weighed_value<Backend>, lockstep::sgd, Policy> trainer{
      lockstep::devices::first(ranks),
      [](auto& device) { return weighed_value<Backend>{device}; },
      lockstep::sgd{.learning_rate = 0.5F},
      {.timeout_seconds = 30}};
  std::vector<float> weights{3, 0, 5, 1, 1, 2, 8};
  double distance = 2;
  for (int k = 0; k < 6; ++k) {
    weights[static_cast<std::size_t>(k)] += 4;  // a replayed step weighs anew
    host_weights const batch{weights.data(), weights.size()};
    auto const result = trainer.step(batch, {.micro_batches = 2});
    CHECK(result.weight() == batch_weight(batch));
    CHECK(result.loss() == doctest::Approx(distance * distance / 2).epsilon(1e-5));
    distance /= 2;
  }
}

}  // namespace

TEST_CASE("trainer rules on one GPU: a batch in host memory is weighed there, and trained where it is brought") {
  train_on_host_weights<lockstep::cuda, single_device>(1);
  gpu_cases::one_stream_each const one;
  train_on_host_weights<one_gpu, all_reduce>(3);
}

TEST_CASE(
    "trainer rules on one GPU: weights, votes, metrics, unused parameters, loss scale and bounded norms give the formula") {
  std::uint64_t const first = tests::seed();
  for (std::uint64_t seed = first; seed < first + 12; ++seed) {
    CAPTURE(seed);
    train_alone<0>(seed);
    train_alone<8>(seed);
  }
}

TEST_CASE("trainer rules on one GPU: the same with 1 to 4 ranks") {
  std::uint64_t const first = tests::seed();
  for (std::uint64_t seed = first; seed < first + 6; ++seed) {
    int const ranks = static_cast<int>(tests::generator{seed ^ 0x5eedU}.whole(1, 4));
    CAPTURE(seed);
    CAPTURE(ranks);
    train_together<0>(seed, ranks);
  }
}

TEST_CASE("trainer rules on one GPU: the same with 1 to 4 ranks that replay their steps") {
  gpu_cases::one_stream_each const one;
  std::uint64_t const first = tests::seed();
  for (std::uint64_t seed = first; seed < first + 6; ++seed) {
    int const ranks = static_cast<int>(tests::generator{seed ^ 0x5eedU}.whole(1, 4));
    CAPTURE(seed);
    CAPTURE(ranks);
    train_together<8>(seed, ranks);
  }
}
