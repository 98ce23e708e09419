// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu_pull_model.cuh"
#include "one_gpu.cuh"
#include "policies.hpp"
#include "pull_reference.hpp"

#include <lockstep/lockstep.cuh>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

/// What trainers on GPUs must do, whichever they are. A setup says which:
/// - `backend`, and `all_reduce` and `gather`, policies for several ranks, or `single` for one;
/// - `ranks()`, the most there can be; `gpu(rank)`, the GPU of a rank;
/// - `deadline`, in seconds: short, but long enough to start;
/// - `all_given_back()`: whether all memory was given back that trainers took.
namespace gpu_cases {

inline bool const loads_updates = support::loads<support::load_update<lockstep::sgd>>;

using lockstep::rank_id;
using support::gpu_pull_model;
using support::gpu_pull_types;
using support::pull_plan;
using support::pull_reference;
using support::pull_samples;

using batch = std::tuple<lockstep::sample_view<float const>>;

inline constexpr lockstep::model_promises accumulates{.honours_accumulate = true};

/// Ranks that share GPU 0.
struct one_gpu_setup {
  using backend = support::one_gpu;
  using all_reduce = lockstep::peer_all_reduce<support::shared_gpu, support::small_buckets>;
  using gather = lockstep::replicate_and_gather<support::shared_gpu, support::small_buckets>;
  static int ranks() { return 4; }
  static int gpu(int) { return 0; }
  static constexpr double deadline = 1;
  static bool all_given_back() {
    for (int tries = 0; tries < 5000; ++tries) {
      if (support::device_pool().live() == 0 && support::pinned_pool().live() == 0) {
        return true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
    return false;
  }
};

/// Until the end of the scope, all work of a rank that shares a GPU is on one stream: where steps are replayed.
class [[nodiscard]] one_stream_each {
 public:
  one_stream_each() { support::one_gpu::one_stream = true; }
  one_stream_each(one_stream_each const&) = delete;
  one_stream_each& operator=(one_stream_each const&) = delete;
  ~one_stream_each() { support::one_gpu::one_stream = false; }
};

/// One rank on GPU 0.
struct single_setup {
  using backend = lockstep::cuda;
  using single = lockstep::single_device;
  static int ranks() { return 1; }
  static int gpu(int) { return 0; }
  static constexpr double deadline = 1;
  static bool all_given_back() { return true; }
};

template <class Setup, class Policy, lockstep::model_promises Promises = lockstep::model_promises{}>
using pull_trainer = lockstep::trainer<gpu_pull_model<typename Setup::backend, Promises>, lockstep::sgd, Policy>;

/// Some numbers of samples that add up to `samples`, 0 among them.
inline std::vector<std::size_t> random_cut(tests::generator& random, std::size_t samples, int ranks) {
  std::vector<std::size_t> sizes(static_cast<std::size_t>(ranks), 0);
  std::size_t rest = samples;
  for (std::size_t& size : sizes) {
    size = random.chance(0.25) ? 0 : random.whole(0, rest);
    rest -= size;
  }
  sizes[random.whole(0, sizes.size() - 1)] += rest;
  return sizes;
}

/// A batch that lies on the devices that train on it.
template <class Setup>
class resident_batch {
 public:
  resident_batch(pull_samples const& all, std::vector<std::size_t> const& sizes) {
    std::size_t first = 0;
    for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
      lockstep::cuda::device_guard const current{lockstep::device_id{Setup::gpu(static_cast<int>(rank))}};
      void* memory = nullptr;
      std::size_t const bytes = sizes[rank] * all.width * sizeof(float);
      if (bytes != 0) {
        lockstep::check(cudaMalloc(&memory, bytes));
        memory_.emplace_back(memory);
        lockstep::check(cudaMemcpy(memory, all.data.data() + first * all.width, bytes, cudaMemcpyHostToDevice));
        lockstep::check(cudaStreamSynchronize(nullptr));  // not the device, where another thread may record
      }
      shards_.push_back({lockstep::sample_view<float const>{static_cast<float const*>(memory), sizes[rank], all.width}});
      first += sizes[rank];
    }
  }

  [[nodiscard]] std::vector<batch> const& shards() const noexcept { return shards_; }
  [[nodiscard]] std::size_t count(int rank) const { return std::get<0>(shards_[static_cast<std::size_t>(rank)]).count(); }

 private:
  std::vector<std::unique_ptr<void, lockstep::cuda::give_back>> memory_;
  std::vector<batch> shards_;
};

/// Samples, and where they lie.
template <class Setup>
struct fed_batch {
  fed_batch(tests::generator& random, int ranks, std::size_t count, std::size_t width, std::size_t pieces = 1)
      : samples(random, count, width), micro_batches(pieces), resident(samples, random_cut(random, count, ranks)) {}

  pull_samples samples;
  std::size_t micro_batches;
  resident_batch<Setup> resident;

  /// How often a rank's `train` is called in one step.
  [[nodiscard]] int calls(int rank) const { return static_cast<int>((std::min)(micro_batches, resident.count(rank))); }
};

/// The values of a rank's model as they are stored, one after another. Requires: the trainer was synchronised.
template <class Trainer>
std::vector<unsigned char> bits_of(Trainer& trainer, int rank = 0) {
  std::vector<unsigned char> bits;
  for (lockstep::parameter const& p : trainer.model(rank_id{rank}).parameters()) {
    std::size_t const before = bits.size();
    bits.resize(before + p.values().bytes());
    lockstep::check(cudaMemcpy(bits.data() + before, p.value, p.values().bytes(), cudaMemcpyDeviceToHost));
  }
  return bits;
}

/// The same as numbers, one vector a parameter.
template <class Trainer>
std::vector<std::vector<float>> values_of(Trainer& trainer, int rank = 0) {
  std::vector<std::vector<float>> all;
  for (lockstep::parameter const& p : trainer.model(rank_id{rank}).parameters()) {
    all.emplace_back();
    lockstep::elementwise::visit(p.value_type, [&]<class T>(std::type_identity<T>) {
      std::vector<T> stored(p.count());
      lockstep::check(cudaMemcpy(stored.data(), p.value, p.values().bytes(), cudaMemcpyDeviceToHost));
      for (T const value : stored) {
        all.back().push_back(static_cast<float>(value));
      }
    });
  }
  return all;
}

/// Waits for the devices; checks that all ranks hold the same bits, and these the values of `truth`.
template <class Trainer>
void check_values(Trainer& trainer, pull_reference const& truth, double tolerance) {
  trainer.synchronize();
  auto const root = bits_of(trainer);
  for (int rank = 1; rank < trainer.size(); ++rank) {
    CAPTURE(rank);
    CHECK(bits_of(trainer, rank) == root);
  }
  auto const values = values_of(trainer);
  double worst = 0;
  for (std::size_t p = 0; p < truth.values.size(); ++p) {
    for (std::size_t e = 0; e < truth.values[p].size(); ++e) {
      double const off = std::abs(static_cast<double>(values[p][e]) - truth.values[p][e]);
      worst = off <= worst ? worst : off;  // NaN is worst
    }
  }
  CHECK(worst < tolerance);
}

/// What a training came to.
struct outcome {
  std::vector<unsigned char> bits;
  std::vector<double> losses;

  friend bool operator==(outcome const&, outcome const&) = default;
};

struct element_types {
  gpu_pull_types types;
  double tolerance;       // of values of order 1, after a dozen steps
  double loss_tolerance;  // relative
};

inline element_types random_types(tests::generator& random) {
  using lockstep::element_type;
  constexpr std::array all{element_types{{element_type::f32, element_type::f32}, 1e-5, 1e-5},
                           element_types{{element_type::f32, element_type::f32}, 1e-5, 1e-5},
                           element_types{{element_type::f16, element_type::f32}, 6e-3, 1e-2},
                           element_types{{element_type::f16, element_type::f16}, 1e-2, 1e-2},
                           element_types{{element_type::bf16, element_type::f32}, 4e-2, 5e-2},
                           element_types{{element_type::bf16, element_type::bf16}, 8e-2, 1e-1}};
  return all[random.whole(0, all.size() - 1)];
}

/// One random model under one policy: a dozen steps on three batches that lie on the devices, the learning rate changed
/// between them, compared with the reference. With graphs, each batch is trained once by calls, and recorded at its second
/// step; then `train` is not called any more.
template <class Setup, class Policy, lockstep::model_promises Promises = lockstep::model_promises{}>
outcome train_random_case(std::uint64_t seed, int ranks, std::size_t graphs) {
  tests::generator random{seed};
  pull_plan const plan = support::random_plan(random);
  element_types const kind = random_types(random);
  CAPTURE(std::string{name_of(kind.types.value)});
  CAPTURE(std::string{name_of(kind.types.gradient)});
  bool const looks = random.chance(0.5);  // at every step, which makes the host wait
  std::vector<fed_batch<Setup>> batches;
  for (int i = 0; i < 3; ++i) {
    batches.emplace_back(random, ranks, random.whole(1, random.chance(0.5) ? 9 : 257), random.whole(1, 8), random.whole(1, 4));
  }

  float rate = 0.125F;
  pull_trainer<Setup, Policy, Promises> trainer{
      lockstep::devices::first(ranks),
      [&](auto& device) {
        return gpu_pull_model<typename Setup::backend, Promises>{device, plan, kind.types};
      },
      lockstep::sgd{.learning_rate = rate, .momentum = 0.5F},
      {.timeout_seconds = 30, .graphs = graphs}};
  pull_reference truth{plan};
  std::vector<lockstep::step_result> results;
  std::vector<double> expected;
  constexpr int steps = 12;
  for (int k = 0; k < steps; ++k) {
    if (k == 5 || k == 8) {
      rate /= 2;
      trainer.optimizer().learning_rate = rate;
    }
    fed_batch<Setup> const& now = batches[static_cast<std::size_t>(k) % 3];
    results.push_back(trainer.step_shards(now.resident.shards(), {.micro_batches = now.micro_batches}));
    expected.push_back(truth.step(now.samples, static_cast<double>(rate)));
    if (looks || k + 1 == steps) {
      check_values(trainer, truth, kind.tolerance);
    }
  }
  outcome end{bits_of(trainer), {}};
  for (std::size_t k = 0; k < results.size(); ++k) {
    CAPTURE(k);
    end.losses.push_back(results[k].loss());
    CHECK(end.losses[k] == doctest::Approx(expected[k]).epsilon(kind.loss_tolerance));
    CHECK(results[k].samples() == batches[k % 3].samples.count);
    CHECK(results[k].step() == k + 1);
    CHECK_FALSE(results[k].skipped());
  }
  for (int rank = 0; rank < ranks; ++rank) {
    CAPTURE(rank);
    int calls = 0;
    for (fed_batch<Setup> const& one : batches) {
      calls += one.calls(rank) * (graphs == 0 || !Promises.capturable ? steps / 3 : 2);
    }
    CHECK(trainer.model(rank_id{rank}).trained == calls);
  }
  return end;
}

// ---- graphs --------------------------------------------------------------------------------------------------------------

/// How often `train` was called, for one rank and steps of one piece each.
template <class Trainer>
int trained(Trainer& trainer) {
  return trainer.model().trained;
}

/// With two graphs, a third one takes the place of that which was not used for longest.
template <class Setup, class Policy>
void check_bounded(int ranks) {
  std::uint64_t const seed = tests::seed();
  CAPTURE(seed);
  tests::generator random{seed};
  pull_plan const plan{.counts = {40, 300, 7}, .marks = support::marking::in_order};
  std::vector<fed_batch<Setup>> batches;
  for (std::size_t i = 0; i < 3; ++i) {
    batches.emplace_back(random, ranks, 20 + i, 3);
    while (batches.back().calls(0) == 0) {
      batches.back() = fed_batch<Setup>{random, ranks, 20 + i, 3};
    }
  }
  pull_trainer<Setup, Policy> trainer{lockstep::devices::first(ranks),
                                      [&](auto& device) {
                                        return gpu_pull_model<typename Setup::backend>{device, plan};
                                      },
                                      lockstep::sgd{.learning_rate = 0.125F, .momentum = 0.5F},
                                      {.timeout_seconds = 30, .graphs = 2}};
  pull_reference truth{plan};
  auto const three_steps = [&](std::size_t which) {
    for (int k = 0; k < 3; ++k) {
      trainer.step_shards(batches[which].resident.shards());
      truth.step(batches[which].samples, 0.125);
    }
    return trained(trainer);
  };
  CHECK(three_steps(0) == 3);  // two by calls, for the first steps are never recorded; and recorded
  CHECK(three_steps(1) == 5);  // by calls, and recorded
  CHECK(three_steps(2) == 7);  // the same, and the first is dropped
  CHECK(three_steps(1) == 7);
  CHECK(three_steps(0) == 8);  // recorded again
  check_values(trainer, truth, 1e-5);

  for (int k = 0; k < 40; ++k) {  // whatever comes
    std::size_t const which = random.whole(0, 2);
    trainer.step_shards(batches[which].resident.shards());
    truth.step(batches[which].samples, 0.125);
  }
  check_values(trainer, truth, 2e-5);
}

/// A model that asks for the number of the step is called each time; the same shards in other pieces are another step.
template <class Setup, class Policy>
void check_not_captured(int ranks) {
  tests::generator random{7};
  pull_plan const plan{.counts = {40, 300, 7}};
  fed_batch<Setup> const fed{random, 1, 12, 3};
  std::vector<std::size_t> cut(static_cast<std::size_t>(ranks), 0);
  cut[0] = 12;
  resident_batch<Setup> const resident{fed.samples, cut};
  for (bool const asks : {true, false}) {
    CAPTURE(asks);
    pull_trainer<Setup, Policy> trainer{lockstep::devices::first(ranks),
                                        [&](auto& device) {
                                          return gpu_pull_model<typename Setup::backend>{device, plan};
                                        },
                                        lockstep::sgd{.learning_rate = 0.125F, .momentum = 0.5F},
                                        {.timeout_seconds = 30}};
    pull_reference truth{plan};
    std::uint64_t told = 0;
    if (asks) {
      trainer.model().before_train = [&](auto& ctx) { told += ctx.step(); };
    }
    for (int k = 0; k < 8; ++k) {
      trainer.step_shards(resident.shards());
      truth.step(fed.samples, 0.125);
    }
    CHECK(trained(trainer) == (asks ? 8 : 3));
    CHECK(told == (asks ? 1 + 2 + 3 + 4 + 5 + 6 + 7 + 8 : 0));
    for (int k = 0; k < 4; ++k) {
      trainer.step_shards(resident.shards(), {.micro_batches = 3});
      truth.step(fed.samples, 0.125);
    }
    CHECK(trained(trainer) == (asks ? 8 + 4 * 3 : 3 + 2 * 3));
    check_values(trainer, truth, 1e-5);
  }
}

// ---- host batches --------------------------------------------------------------------------------------------------------

enum class host_memory { pageable, pinned };

/// Floats in host memory of some kind.
class host_floats {
 public:
  host_floats(std::size_t count, host_memory kind) : pageable_(kind == host_memory::pageable ? count : 0) {
    if (kind == host_memory::pinned) {
      void* memory = nullptr;
      lockstep::check(cudaHostAlloc(&memory, count * sizeof(float), cudaHostAllocPortable));
      pinned_.reset(memory);
    }
  }
  [[nodiscard]] float* data() { return pinned_ != nullptr ? static_cast<float*>(pinned_.get()) : pageable_.data(); }

 private:
  std::vector<float> pageable_;
  std::unique_ptr<void, lockstep::cuda::give_back_pinned> pinned_;
};

/// Batches in host memory, which is written over as soon as `step` returns. Shards alternate between two places on the device,
/// so that each is trained by calls once and recorded once.
template <class Setup, class Policy>
void check_host_batches(int ranks, host_memory kind) {
  std::uint64_t const seed = tests::seed();
  CAPTURE(seed);
  CAPTURE(ranks);
  tests::generator random{seed};
  pull_plan const plan{.counts = {40, 300, 7, 0, 500}, .marks = support::marking::in_order};
  pull_trainer<Setup, Policy> trainer{lockstep::devices::first(ranks),
                                      [&](auto& device) {
                                        return gpu_pull_model<typename Setup::backend>{device, plan};
                                      },
                                      lockstep::sgd{.learning_rate = 0.125F, .momentum = 0.5F},
                                      {.timeout_seconds = 30}};
  pull_reference truth{plan};
  constexpr std::size_t width = 3;
  host_floats memory{300 * width, kind};
  auto const step = [&](std::size_t count) {
    pull_samples const samples{random, count, width};
    std::copy(samples.data.begin(), samples.data.end(), memory.data());
    auto const result = trainer.step({lockstep::sample_view<float const>{memory.data(), count, width}}, {.micro_batches = 2});
    std::fill_n(memory.data(), count * width, std::numeric_limits<float>::quiet_NaN());
    double const loss = truth.step(samples, 0.125);
    if (random.chance(0.3)) {
      CHECK(result.loss() == doctest::Approx(loss).epsilon(1e-5));
    }
  };
  for (int k = 0; k < 10; ++k) {
    step(37);
  }
  check_values(trainer, truth, 1e-5);
  for (int rank = 0; rank < ranks; ++rank) {
    CHECK(trainer.model(rank_id{rank}).trained == 2 * 4);  // two pieces, twice by calls, twice recorded
  }
  for (int k = 0; k < 12; ++k) {  // longer ones need other places; with fewer samples than ranks some idle
    step(k < 4 ? 50 + 60 * static_cast<std::size_t>(k) : random.whole(1, 300));
  }
  check_values(trainer, truth, 2e-5);
}

// ---- failures ------------------------------------------------------------------------------------------------------------

struct user_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline bool contains(std::string const& text, std::string const& part) { return text.find(part) != std::string::npos; }

/// The message of what `work` throws, which must be an E; "" when it throws nothing.
template <class E, class Work>
std::string thrown(Work&& work) {
  try {
    work();
  } catch (E const& e) {
    return e.what();
  }
  return {};
}

/// "rank 2 (device 2": how a place begins.
inline std::string place_of(int rank) {
  return std::string("rank ") + std::to_string(rank) + " (device " + std::to_string(rank);
}

template <class Setup, class Policy>
std::unique_ptr<pull_trainer<Setup, Policy>> make_trainer(int ranks, lockstep::cuda::options const& options,
                                                          pull_plan const& plan = {.counts = std::vector<std::size_t>(20, 300),
                                                                                   .marks = support::marking::in_order}) {
  return std::make_unique<pull_trainer<Setup, Policy>>(
      lockstep::devices::first(ranks),
      [&](auto& device) {
        return gpu_pull_model<typename Setup::backend>{device, plan};
      },
      lockstep::sgd{.learning_rate = 0.125F}, options);
}

template <class Setup, class Policy>
void check_healthy(int ranks) {
  auto const trainer = make_trainer<Setup, Policy>(ranks, {.timeout_seconds = 30});
  tests::generator random{1};
  fed_batch<Setup> const fed{random, ranks, 8, 2};
  double last = std::numeric_limits<double>::infinity();
  for (int k = 0; k < 5; ++k) {
    double const loss = trainer->step_shards(fed.resident.shards()).loss();
    CHECK(loss < last);
    last = loss;
  }
  trainer->synchronize();
}

/// An exception in one model's train, after steps by calls or after replays.
template <class Setup, class Policy>
void check_exception(int ranks) {
  tests::generator random{1};
  fed_batch<Setup> const fed{random, ranks, 8, 2};
  pull_samples const all{random, static_cast<std::size_t>(3 * ranks), 2};
  resident_batch<Setup> const fresh{all, std::vector<std::size_t>(static_cast<std::size_t>(ranks), 3)};
  for (int const steps_before : {0, 1, 5}) {
    for (int failing = 0; failing < ranks; ++failing) {
      CAPTURE(steps_before);
      CAPTURE(failing);
      auto const trainer = make_trainer<Setup, Policy>(ranks, {.timeout_seconds = 30});
      for (int k = 0; k < steps_before; ++k) {
        trainer->step_shards(fed.resident.shards());
      }
      trainer->model(rank_id{failing}).before_train = [](auto&) { throw user_error("no more paper"); };
      try {
        trainer->step_shards(fresh.shards());
        FAIL("the step should have failed");
      } catch (lockstep::rank_error const& e) {
        CHECK(e.rank() == rank_id{failing});
        CHECK(contains(e.what(), place_of(failing)));
        CHECK(contains(e.what(), "step " + std::to_string(steps_before + 1) + ", training: no more paper"));
        CHECK_THROWS_AS(std::rethrow_if_nested(e), user_error);
      }
      CHECK(trainer->failed());
      CHECK(contains(thrown<lockstep::error>([&] { trainer->step_shards(fed.resident.shards()); }), "no more paper"));
      CHECK(contains(thrown<lockstep::error>([&] { trainer->synchronize(); }), "invalid"));
    }
  }
  CHECK(Setup::all_given_back());
  check_healthy<Setup, Policy>(ranks);
}

/// A rank whose model does not come back from train is named, and everything else ends.
template <class Setup, class Policy>
void check_absence(int ranks) {
  tests::generator random{1};
  pull_samples const all{random, static_cast<std::size_t>(3 * ranks), 2};
  resident_batch<Setup> const fed{all, std::vector<std::size_t>(static_cast<std::size_t>(ranks), 3)};
  for (int absent = 1; absent < ranks; absent += (std::max)(1, ranks - 2)) {  // the second and the last
    CAPTURE(absent);
    auto const released = std::make_shared<std::atomic<bool>>(false);
    auto const gone = std::make_shared<std::atomic<bool>>(false);
    auto const start = std::chrono::steady_clock::now();
    {
      auto const trainer = make_trainer<Setup, Policy>(ranks, {.timeout_seconds = Setup::deadline, .graphs = 0});
      trainer->step_shards(fed.shards());
      trainer->synchronize();
      trainer->model(rank_id{absent}).gone = gone;
      trainer->model(rank_id{absent}).before_train = [released](auto&) {
        while (!*released) {
          std::this_thread::sleep_for(std::chrono::milliseconds{1});
        }
      };
      try {
        trainer->step_shards(fed.shards());
        FAIL("the step should have failed");
      } catch (lockstep::timeout_error const& e) {
        CHECK(e.missing() == rank_id{absent});
        CHECK(contains(e.what(), place_of(absent)));
      }
      CHECK(contains(thrown<lockstep::error>([&] { trainer->step_shards(fed.shards()); }), place_of(absent)));
    }
    std::chrono::duration<double> const took = std::chrono::steady_clock::now() - start;
    CHECK(took.count() < 3 * Setup::deadline + 30);
    CHECK_FALSE(*gone);
    *released = true;
    for (int tries = 0; tries < 10000 && !*gone; ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
    CHECK(*gone);
    CHECK(Setup::all_given_back());
  }
  check_healthy<Setup, Policy>(ranks);
}

/// The same seen from a replica of the caller's own: the wait for its step names the rank that never began it.
template <class Setup, class Policy>
void check_absence_in_own_loop(int ranks) {
  using backend = typename Setup::backend;
  lockstep::cuda::options const options{.timeout_seconds = Setup::deadline};
  std::vector<lockstep::device_id> ids;
  for (int rank = 0; rank < ranks; ++rank) {
    ids.push_back(lockstep::device_id{rank});
  }
  tests::generator random{1};
  pull_samples const all{random, static_cast<std::size_t>(3 * ranks), 2};
  resident_batch<Setup> const fed{all, std::vector<std::size_t>(static_cast<std::size_t>(ranks), 3)};
  auto communicators = lockstep::communicator_for<typename Policy::transport, backend>::create(ids, options);
  int const absent = ranks - 1;
  std::vector<std::string> said(static_cast<std::size_t>(ranks));
  std::vector<int> missing(static_cast<std::size_t>(ranks), -2);
  std::atomic<int> over{0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      auto const r = static_cast<std::size_t>(rank);
      try {
        typename backend::device device{ids[r], options};
        [[maybe_unused]] auto const current = lockstep::activate(device);
        gpu_pull_model<backend> model{lockstep::device_context<backend>{device, rank_id{rank}, ranks},
                                      {.counts = std::vector<std::size_t>(20, 300), .marks = support::marking::in_order}};
        lockstep::replica<Policy, lockstep::sgd, backend> replica{device, std::move(communicators[r]), model.parameters(),
                                                                  lockstep::sgd{}};
        if (rank == absent) {
          while (over + 1 < ranks) {
            std::this_thread::sleep_for(std::chrono::milliseconds{1});
          }
          return;
        }
        try {
          auto step = replica.begin({.samples = 3, .total_samples = 3 * static_cast<std::size_t>(ranks)});
          auto ctx = step.micro_batch(3);
          model.train(ctx, fed.shards()[r]);
          static_cast<void>(step.finish().loss());
        } catch (lockstep::timeout_error const& e) {
          missing[r] = lockstep::number(e.missing());
          ++over;
          throw;
        } catch (...) {
          ++over;
          throw;
        }
      } catch (std::exception const& e) {
        said[r] = e.what();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(std::count(missing.begin(), missing.end(), absent) >= 1);  // the others may have been stopped by the first to notice
  for (int rank = 0; rank + 1 < ranks; ++rank) {
    CAPTURE(rank);
    CHECK_MESSAGE(contains(said[static_cast<std::size_t>(rank)], "rank " + std::to_string(absent)),
                  said[static_cast<std::size_t>(rank)]);
  }
  CHECK(Setup::all_given_back());
}

/// Free bytes of the GPUs of `ranks` ranks, the least of them.
template <class Setup>
std::size_t free_bytes(int ranks) {
  std::size_t least = (std::numeric_limits<std::size_t>::max)();
  for (int rank = 0; rank < ranks; ++rank) {
    lockstep::cuda::device_guard const current{lockstep::device_id{Setup::gpu(rank)}};
    std::size_t free = 0;
    std::size_t total = 0;
    lockstep::check(cudaDeviceSynchronize());
    lockstep::check(cudaMemGetInfo(&free, &total));
    least = (std::min)(least, free);
  }
  return least;
}

/// What is allowed to stay with CUDA: loaded kernels, and what it keeps for later.
inline constexpr std::size_t kept_bytes = std::size_t{256} << 20U;

/// More memory than there is, in a factory and in train, on each rank. Every model takes a gigabyte, so that one which is left
/// behind is seen.
template <class Setup, class Policy>
void check_out_of_memory(int ranks) {
  using backend = typename Setup::backend;
  constexpr std::size_t too_much = std::size_t{1} << 50U;
  constexpr std::size_t much = std::size_t{1} << 30U;
  check_healthy<Setup, Policy>(ranks);
  std::size_t const before = free_bytes<Setup>(ranks);
  tests::generator random{1};
  pull_samples const all{random, static_cast<std::size_t>(3 * ranks), 2};
  resident_batch<Setup> const fed{all, std::vector<std::size_t>(static_cast<std::size_t>(ranks), 3)};
  for (int failing = 0; failing < ranks; ++failing) {
    CAPTURE(failing);
    std::string const words =
        "device " + std::to_string(failing) + ": out of memory allocating " + std::to_string(too_much) + " bytes of ";
    typename backend::device* device_of_failing = nullptr;
    auto const build = [&](std::size_t wanted) {
      return std::make_unique<pull_trainer<Setup, Policy>>(
          lockstep::devices::first(ranks),
          [&](auto& device) {
            if (lockstep::number(device.rank()) == failing) {
              static_cast<void>(device.allocate(wanted, lockstep::memory_use::parameters));
              device_of_failing = &device.device();
            }
            return gpu_pull_model<backend>{device, {}, {}, much};
          },
          lockstep::sgd{}, lockstep::cuda::options{.timeout_seconds = 30, .graphs = 0});
    };
    std::string const said = thrown<lockstep::out_of_memory>([&] { static_cast<void>(build(too_much)); });
    CHECK_MESSAGE(contains(said, place_of(failing)), said);
    CHECK_MESSAGE(contains(said, "building the model: " + words + "parameters"), said);
    {
      auto const trainer = build(16);
      trainer->step_shards(fed.shards());
      trainer->model(rank_id{failing}).before_train = [&](auto&) {
        static_cast<void>(device_of_failing->allocate(too_much, lockstep::memory_use::other));
      };
      try {
        trainer->step_shards(fed.shards());
        FAIL("the step should have failed");
      } catch (lockstep::out_of_memory const& e) {
        CHECK(e.device() == lockstep::device_id{failing});
        CHECK(e.bytes() == too_much);
        CHECK(contains(e.what(), place_of(failing)));
        CHECK(contains(e.what(), "step 2, training: " + words + "other"));
      }
    }
    CHECK(Setup::all_given_back());
  }
  check_healthy<Setup, Policy>(ranks);  // on one GPU, this gives back to CUDA what the others had
  CHECK(free_bytes<Setup>(ranks) + kept_bytes > before);
}

/// One trainer after another, every second of which fails.
template <class Setup, class Policy>
void check_thirty(int ranks) {
  check_healthy<Setup, Policy>(ranks);
  std::size_t const before = free_bytes<Setup>(ranks);
  tests::generator random{1};
  pull_samples const all{random, static_cast<std::size_t>(3 * ranks), 2};
  resident_batch<Setup> const fed{all, std::vector<std::size_t>(static_cast<std::size_t>(ranks), 3)};
  for (int k = 0; k < 30; ++k) {
    CAPTURE(k);
    auto const trainer = make_trainer<Setup, Policy>(ranks, {.timeout_seconds = 30});
    int const failing = k % 4 == 1 ? 0 : ranks - 1;
    for (int step = 0; step < 2; ++step) {
      trainer->step_shards(fed.shards());
    }
    if (k % 2 == 1) {
      trainer->model(rank_id{failing}).before_train = [](auto&) { throw user_error("no more paper"); };
      CHECK_THROWS_AS(trainer->step_shards(fed.shards()), lockstep::rank_error);  // while it is recorded
    } else {
      lockstep::step_result last;
      for (int step = 0; step < 4; ++step) {
        last = trainer->step_shards(fed.shards());
      }
      CHECK(last.loss() > 0);
    }
  }
  CHECK(Setup::all_given_back());
  CHECK(free_bytes<Setup>(ranks) + kept_bytes > before);
}

/// A model that allocates in every call breaks its promise when it is recorded: that works, or says what it was.
template <class Setup, class Policy>
void check_allocation_while_recorded(int ranks) {
  tests::generator random{1};
  pull_samples const all{random, static_cast<std::size_t>(3 * ranks), 2};
  resident_batch<Setup> const fed{all, std::vector<std::size_t>(static_cast<std::size_t>(ranks), 3)};
  {
    auto const trainer = make_trainer<Setup, Policy>(ranks, {.timeout_seconds = 30});
    trainer->model(rank_id{ranks - 1}).before_train = [](auto&) {
      void* memory = nullptr;
      lockstep::check(cudaMalloc(&memory, 1 << 20));
      lockstep::check(cudaFree(memory));
    };
    trainer->step_shards(fed.shards());
    trainer->step_shards(fed.shards());
    std::string const said = thrown<lockstep::cuda_error>([&] {
      for (int k = 0; k < 3; ++k) {
        trainer->step_shards(fed.shards());
      }
      trainer->synchronize();
    });
    if (!said.empty()) {
      CHECK_MESSAGE(contains(said, place_of(ranks - 1)), said);
      CHECK_MESSAGE(contains(said, "training: CUDA: "), said);
      CHECK_MESSAGE(contains(said, "captur"), said);
      CHECK(trainer->failed());
    }
  }
  check_healthy<Setup, Policy>(ranks);
}

}  // namespace gpu_cases
