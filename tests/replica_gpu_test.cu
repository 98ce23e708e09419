// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// What a rank on a GPU may do in a step beside plain training: vote to skip it, leave parameters out, bring an optimizer that
// updates by itself; and the same training on GPUs and on the host.

#include "support/gpu_trainer_cases.cuh"

#include <lockstep/lockstep.cuh>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <exception>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using gpu_cases::fed_batch;
using gpu_cases::one_gpu_setup;
using gpu_cases::one_stream_each;
using gpu_cases::pull_trainer;
using gpu_cases::resident_batch;
using gpu_cases::values_of;
using lockstep::rank_id;
using support::gpu_pull_model;
using support::layout;
using support::marking;
using support::one_gpu;
using support::pull_model;
using support::pull_plan;
using support::pull_reference;
using support::pull_samples;

namespace {

using all_reduce = one_gpu_setup::all_reduce;
using gather = one_gpu_setup::gather;

constexpr lockstep::model_promises reports{.honours_accumulate = true, .reports_unused = true};
using reporting_model = gpu_pull_model<one_gpu, reports>;

/// Signed steps of one rate.
__global__ void descend_by_sign(float* value, float const* gradient, std::size_t count, lockstep::cuda::weight factor,
                                float rate) {
  for (std::size_t e = threadIdx.x; e < count; e += blockDim.x) {
    float const g = gradient[e] * factor;
    value[e] -= g > 0 ? rate : g < 0 ? -rate : 0;
  }
}

void load_sign_descent() {
  descend_by_sign<<<1, 128>>>(nullptr, nullptr, 0, lockstep::cuda::weight{1}, 0);
  lockstep::check(cudaGetLastError());
  lockstep::check(cudaStreamSynchronize(nullptr));
}

/// A whole optimizer, which counts its own calls.
struct sign_descent {
  float rate = 0.25F;
  int calls = 0;
  std::size_t listed = 0;

  void step(lockstep::update_context<one_gpu>& ctx, std::span<lockstep::parameter const> parameters) {
    ++calls;
    listed = parameters.size();
    for (lockstep::parameter const& p : parameters) {
      descend_by_sign<<<1, 128, 0, ctx.stream().get()>>>(static_cast<float*>(p.value), static_cast<float const*>(p.gradient),
                                                         p.count(), ctx.gradient_factor(), rate);
      lockstep::check(cudaGetLastError());
    }
  }
};
[[maybe_unused]] bool const loads_sign_descent = support::loads<load_sign_descent>;

}  // namespace

TEST_CASE("replica on one GPU: one rank's vote skips the step everywhere, and values stay") {
  constexpr int ranks = 3;
  pull_plan const plan{.counts = {40, 300, 7}, .marks = marking::in_order};
  tests::generator random{1};
  pull_samples const samples{random, 6, 2};
  resident_batch<one_gpu_setup> const fed{samples, {2, 2, 2}};
  std::array const ids{lockstep::device_id{0}, lockstep::device_id{1}, lockstep::device_id{2}};
  auto communicators = lockstep::communicator_for<support::shared_gpu, one_gpu>::create(ids, {.timeout_seconds = 30});
  std::array<std::vector<float>, ranks> ends;
  std::array<std::string, ranks> said;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      auto const r = static_cast<std::size_t>(rank);
      try {
        one_gpu::device device{ids[r]};
        auto const current = lockstep::activate(device);
        gpu_pull_model<one_gpu> model{lockstep::device_context<one_gpu>{device, rank_id{rank}, ranks}, plan};
        lockstep::replica<all_reduce, lockstep::sgd, one_gpu> replica{device, std::move(communicators[r]), model.parameters(),
                                                                      lockstep::sgd{.learning_rate = 0.125F, .momentum = 0.5F}};
        std::vector<lockstep::step_result> results;
        for (int k = 0; k < 6; ++k) {
          auto step = replica.begin({.samples = 2, .total_samples = 6});
          if (k % 2 == 1 && rank == 1) {
            if (k == 3) {
              auto ctx = step.micro_batch(1);  // half way, and then no
              model.train(ctx, lockstep::slice(fed.shards()[r], 0, 1));
            }
            results.push_back(step.skip());
          } else {
            auto ctx = step.micro_batch(2);
            model.train(ctx, fed.shards()[r]);
            results.push_back(step.finish());
          }
        }
        replica.synchronize();
        for (std::size_t k = 0; k < results.size(); ++k) {
          wrong += results[k].skipped() != (k % 2 == 1) ? 1 : 0;
          wrong += results[k].samples() != (k % 2 == 1 ? 4U : 6U) ? 1 : 0;
        }
        wrong += replica.applied_steps() != 3 ? 1 : 0;
        for (lockstep::parameter const& p : model.parameters()) {
          std::vector<float> values(p.count());
          one_gpu::copy(device.stream(), values.data(), p.value, p.values().bytes());
          ends[r].insert(ends[r].end(), values.begin(), values.end());
        }
        replica.synchronize();
      } catch (std::exception const& e) {
        said[r] = e.what();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (std::string const& one : said) {
    CHECK_MESSAGE(one.empty(), one);
  }
  CHECK(wrong == 0);
  CHECK(ends[1] == ends[0]);
  CHECK(ends[2] == ends[0]);
  pull_reference truth{plan};
  for (int k = 0; k < 3; ++k) {
    truth.step(samples, 0.125);
  }
  std::size_t at = 0;
  for (std::vector<double> const& values : truth.values) {
    for (double const value : values) {
      CHECK(static_cast<double>(ends[0].at(at++)) == doctest::Approx(value).epsilon(1e-5));
    }
  }
}

TEST_CASE(
    "trainer on one GPU: a parameter that no rank used keeps value and optimizer state; used somewhere, it gets the sum") {
  for (marking const marks : {marking::none, marking::in_order}) {
    pull_plan const plan{.counts = {3, 4, 5}, .memory = layout::arena, .marks = marks, .tied = {}, .seed = 1};
    pull_trainer<one_gpu_setup, all_reduce, reports> trainer{
        lockstep::devices::first(3),
        [&](auto& device) {
          return reporting_model{device, plan};
        },
        lockstep::sgd{.learning_rate = 0.1F, .momentum = 0.9F, .weight_decay = 0.1F}};
    tests::generator random{4};
    pull_samples const samples{random, 9, 1};
    resident_batch<one_gpu_setup> const fed{samples, {3, 3, 3}};
    auto const values = [&] {
      trainer.synchronize();
      auto const root = gpu_cases::bits_of(trainer);
      CHECK(gpu_cases::bits_of(trainer, 1) == root);
      CHECK(gpu_cases::bits_of(trainer, 2) == root);
      return values_of(trainer);
    };
    trainer.step_shards(fed.shards());  // momentum is no longer zero
    auto const before = values();
    for (int rank = 0; rank < 3; ++rank) {
      trainer.model(rank_id{rank}).leave_out = {1};
    }
    for (int k = 0; k < 4; ++k) {  // as often as would be recorded
      trainer.step_shards(fed.shards(), {.micro_batches = 2});
    }
    auto const after = values();
    CHECK(after[1] == before[1]);
    CHECK(after[0] != before[0]);
    CHECK(after[2] != before[2]);

    // Used on rank 1 only: the gradient is that rank's part.
    trainer.model(rank_id{1}).leave_out = {};
    trainer.optimizer().momentum = 0;
    trainer.optimizer().weight_decay = 0;
    trainer.step_shards(fed.shards());
    double pull = 0;
    for (std::size_t s = 3; s < 6; ++s) {
      pull += static_cast<double>(after[1][0]) - static_cast<double>(samples.data[s]);
    }
    CHECK(static_cast<double>(values()[1][0]) ==
          doctest::Approx(static_cast<double>(after[1][0]) - 0.1 * pull / 9).epsilon(1e-5));
  }
}

TEST_CASE("trainer on one GPU: a whole optimizer steps each distinct parameter once, where the policy updates") {
  CHECK(std::count(support::loaders().begin(), support::loaders().end(), &load_sign_descent) == 1);
  pull_plan const plan{.counts = {3, 400, 5}, .memory = layout::arena, .marks = marking::in_order, .tied = {1}, .seed = 1};
  lockstep::trainer<gpu_pull_model<one_gpu>, sign_descent, gather> trainer{lockstep::devices::first(3),
                                                                           [&](auto& device) {
                                                                             return gpu_pull_model<one_gpu>{device, plan};
                                                                           },
                                                                           sign_descent{}};
  tests::generator random{4};
  pull_samples const samples{random, 9, 2};
  resident_batch<one_gpu_setup> const fed{samples, {0, 5, 4}};
  auto const before = values_of(trainer);
  for (int k = 0; k < 5; ++k) {
    trainer.step_shards(fed.shards());
  }
  trainer.synchronize();
  auto const after = values_of(trainer);
  for (std::size_t p = 0; p < before.size(); ++p) {
    std::size_t const parameter = p == 3 ? 1 : p;  // listed again
    for (std::size_t e = 0; e < before[p].size(); ++e) {
      // Always towards the mean of its samples, and then to and fro.
      double mean = 0;
      for (std::size_t s = 0; s < 9; ++s) {
        mean += static_cast<double>(samples.data[s * 2 + (parameter + e) % 2]) / 9;
      }
      double value = static_cast<double>(before[p][e]);
      for (int k = 0; k < 5; ++k) {
        value -= value > mean ? 0.25 : -0.25;
      }
      CHECK(static_cast<double>(after[p][e]) == value);
    }
  }
  auto const root = gpu_cases::bits_of(trainer);
  for (int rank = 0; rank < 3; ++rank) {
    CAPTURE(rank);
    CHECK(gpu_cases::bits_of(trainer, rank) == root);
    CHECK(trainer.optimizer(0, rank_id{rank}).calls == (rank == 0 ? 5 : 0));
    CHECK(trainer.optimizer(0, rank_id{rank}).listed == (rank == 0 ? 3 : 0));
  }
}

TEST_CASE("trainer on one GPU: 100 steps of each policy agree with the host's") {
  std::uint64_t const seed = tests::seed();
  CAPTURE(seed);
  tests::generator random{seed};
  pull_plan const plan{.counts = {40, 300, 7, 500, 1}, .memory = layout::scattered, .marks = marking::in_order, .tied = {2}};
  std::vector<fed_batch<one_gpu_setup>> batches;
  for (int i = 0; i < 4; ++i) {
    batches.emplace_back(random, 3, random.whole(3, 60), 5);
  }
  lockstep::sgd const optimizer{.learning_rate = 0.05F, .momentum = 0.9F, .weight_decay = 0.01F};
  lockstep::trainer<pull_model<>, lockstep::sgd, lockstep::peer_all_reduce<>> on_host{
      lockstep::devices::first(3), [&](auto&) { return pull_model<>{plan}; }, optimizer};
  std::vector<double> losses;
  for (int k = 0; k < 100; ++k) {
    losses.push_back(on_host.step(batches[static_cast<std::size_t>(k) % 4].samples.view()).loss());
  }

  auto const compare = [&](auto& trainer) {
    std::vector<lockstep::step_result> results;
    for (int k = 0; k < 100; ++k) {
      results.push_back(trainer.step_shards(batches[static_cast<std::size_t>(k) % 4].resident.shards()));
      if (k % 50 == 49) {
        for (std::size_t i = results.size() - 50; i < results.size(); ++i) {
          CHECK(results[i].loss() == doctest::Approx(losses[i]).epsilon(1e-5));
        }
      }
    }
    trainer.synchronize();
    auto const values = values_of(trainer);
    for (std::size_t p = 0; p < values.size(); ++p) {
      auto const* const expected = static_cast<float const*>(on_host.model().parameters()[p].value);
      for (std::size_t e = 0; e < values[p].size(); ++e) {
        CHECK(values[p][e] == doctest::Approx(expected[e]).epsilon(1e-5));
      }
    }
    CHECK(gpu_cases::bits_of(trainer, 2) == gpu_cases::bits_of(trainer));
  };
  one_stream_each const one;
  {
    pull_trainer<one_gpu_setup, all_reduce> trainer{lockstep::devices::first(3),
                                                    [&](auto& device) {
                                                      return gpu_pull_model<one_gpu>{device, plan};
                                                    },
                                                    optimizer};
    compare(trainer);
  }
  {
    pull_trainer<one_gpu_setup, gather> trainer{lockstep::devices::first(3),
                                                [&](auto& device) {
                                                  return gpu_pull_model<one_gpu>{device, plan};
                                                },
                                                optimizer};
    compare(trainer);
  }
}
