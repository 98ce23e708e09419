// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// A model on one GPU: the same contract, the same trainer, another backend.

#include "../seed.hpp"

#include <lockstep/lockstep.cuh>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <regex>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <vector>

namespace {

static_assert(lockstep::backend<lockstep::cuda>);

/// value[p] is pulled towards every sample: loss = weight * sum (value - sample)^2 / 2. One block; `loss` and `gradient` are
/// added to.
template <class Value, class Gradient>
__global__ void pull(Value const* value, Gradient* gradient, std::size_t count, float const* samples, std::size_t sample_count,
                     lockstep::cuda::weight weight, float* loss) {
  float local = 0;
  for (std::size_t e = threadIdx.x; e < count; e += blockDim.x) {
    float sum = 0;
    for (std::size_t s = 0; s < sample_count; ++s) {
      float const error = static_cast<float>(value[e]) - samples[s];
      sum += weight * error;
      local += weight * error * error / 2;
    }
    gradient[e] = Gradient(static_cast<float>(gradient[e]) + sum);
  }
  atomicAdd(loss, local);
}

template <class Value, class Gradient>
class gpu_pull {
 public:
  using backend = lockstep::cuda;
  using batch = std::span<float const>;  // in device memory

  explicit gpu_pull(lockstep::device_context<lockstep::cuda> const& device)
      : arena_(device, {{"a", {count_a}, {.group = 0}}, {"b", {count_b}, {.group = 1}}}) {}

  std::span<lockstep::parameter const> parameters() const { return arena_.parameters(); }

  void train(lockstep::train_context<backend>& ctx, batch const& shard) {
    for (std::size_t p = 0; p < 2; ++p) {
      pull<<<1, 128, 0, ctx.stream().get()>>>(arena_.value(p), arena_.gradient(p), arena_.parameters()[p].count(), shard.data(),
                                              shard.size(), ctx.sample_weight(), ctx.loss());
      lockstep::check(cudaGetLastError());
      ctx.gradient_ready(p);
    }
  }

  static constexpr std::size_t count_a = 5001;  // several chunks, none of a round size
  static constexpr std::size_t count_b = 7;

 private:
  lockstep::arena<lockstep::cuda, Value, Gradient> arena_;
};

template <class T>
std::vector<float> to_host(lockstep::parameter const& p) {
  std::vector<T> values(p.count());
  lockstep::check(cudaMemcpy(values.data(), p.value, values.size() * sizeof(T), cudaMemcpyDeviceToHost));
  return {values.begin(), values.end()};
}

/// Trains for some steps and compares with the same in double precision.
template <class Value, class Gradient>
void train_and_compare(double tolerance) {
  std::uint64_t const seed = tests::seed();
  CAPTURE(seed);
  tests::generator random{seed};
  std::vector<float> samples;
  for (int i = 0; i < 33; ++i) {
    samples.push_back(random.real(0.5F, 1.5F));
  }
  float* on_device = nullptr;
  lockstep::check(cudaMalloc(&on_device, samples.size() * sizeof(float)));
  lockstep::check(cudaMemcpy(on_device, samples.data(), samples.size() * sizeof(float), cudaMemcpyHostToDevice));

  lockstep::trainer<gpu_pull<Value, Gradient>, lockstep::sgd, lockstep::single_device> trainer{
      lockstep::devices{0},
      [](lockstep::device_context<lockstep::cuda>& device) { return gpu_pull<Value, Gradient>{device}; },
      {lockstep::sgd{.learning_rate = 0.125F, .momentum = 0.5F}, lockstep::sgd{.learning_rate = 0.0F}}};

  double mean = 0;
  for (float const s : samples) {
    mean += static_cast<double>(s) / static_cast<double>(samples.size());
  }
  double value = 0;
  double momentum = 0;
  for (int k = 0; k < 6; ++k) {
    double loss = 0;
    for (float const s : samples) {
      double const all = static_cast<double>(gpu_pull<Value, Gradient>::count_a);
      double const still = static_cast<double>(gpu_pull<Value, Gradient>::count_b);
      loss += (all * std::pow(value - static_cast<double>(s), 2) + still * std::pow(static_cast<double>(s), 2)) / 2 /
              static_cast<double>(samples.size());
    }
    auto const result =
        trainer.step(std::span<float const>{on_device, samples.size()}, {.micro_batches = static_cast<std::size_t>(1 + k % 3)});
    trainer.synchronize();
    CHECK(result.loss() == doctest::Approx(loss).epsilon(tolerance));
    momentum = 0.5 * momentum + (value - mean);
    value -= 0.125 * momentum;
    auto const a = to_host<Value>(trainer.model().parameters()[0]);
    double worst = 0;
    for (float const v : a) {
      worst = (std::max)(worst, std::abs(static_cast<double>(v) - value));
    }
    CHECK(worst < tolerance);
    auto const b = to_host<Value>(trainer.model().parameters()[1]);
    CHECK(std::all_of(b.begin(), b.end(), [](float v) { return v == 0.0F; }));
  }
  auto const memory = trainer.memory(lockstep::rank_id{0});
  CHECK(memory[lockstep::memory_use::parameters] == (5001 + 7) * sizeof(Value));
  lockstep::check(cudaFree(on_device));
}

}  // namespace

TEST_CASE("cuda: a trainer on one GPU trains as the formula says, f32") { train_and_compare<float, float>(1e-5); }

TEST_CASE("cuda: a trainer on one GPU trains as the formula says, bf16 values and gradients with an f32 master") {
  train_and_compare<lockstep::bfloat16, lockstep::bfloat16>(2e-2);
}

TEST_CASE("cuda: a trainer on one GPU trains as the formula says, f16 values, f32 gradients") {
  train_and_compare<lockstep::float16, float>(2e-3);
}

TEST_CASE("cuda: many copies at once, of any size and alignment") {
  lockstep::cuda::device device;
  tests::generator random{tests::seed()};
  for (int round = 0; round < 20; ++round) {
    std::size_t const count = random.whole(1, 300);
    std::vector<std::size_t> sizes;
    std::size_t total = 0;
    for (std::size_t i = 0; i < count; ++i) {
      sizes.push_back(random.whole(0, random.chance(0.1) ? 100000 : 70));
      total += sizes.back();
    }
    std::vector<unsigned char> bytes(total + 1);
    for (unsigned char& b : bytes) {
      b = static_cast<unsigned char>(random.whole(0, 255));
    }
    auto const from = device.allocate(total + 1, lockstep::memory_use::other);
    auto const to = device.allocate(total + 1, lockstep::memory_use::other);
    lockstep::cuda::copy(device.stream(), from.data(), bytes.data(), total + 1);
    std::vector<lockstep::transfer> transfers;
    std::size_t at = 0;
    for (std::size_t const size : sizes) {  // to the mirrored place
      transfers.push_back({to.as<std::byte>() + (total - at - size), from.as<std::byte>() + at, size});
      at += size;
    }
    lockstep::cuda::copy(device.stream(), std::span<lockstep::transfer const>{transfers});
    std::vector<unsigned char> back(total);
    lockstep::cuda::copy(device.stream(), back.data(), to.data(), total);
    device.stream().synchronize();
    at = 0;
    bool same = true;
    for (std::size_t const size : sizes) {
      same = same &&
             std::equal(bytes.begin() + static_cast<std::ptrdiff_t>(at), bytes.begin() + static_cast<std::ptrdiff_t>(at + size),
                        back.begin() + static_cast<std::ptrdiff_t>(total - at - size));
      at += size;
    }
    CHECK(same);
  }
}

TEST_CASE("cuda: errors say what and where") {
  CHECK_THROWS_AS(lockstep::cuda::device{lockstep::device_id{4096}}, lockstep::usage_error);
  lockstep::cuda::device device;
  CHECK_THROWS_AS(static_cast<void>(device.allocate(std::size_t{1} << 50U, lockstep::memory_use::staging)),
                  lockstep::out_of_memory);
  CHECK(device.memory().total() == 0);
  try {
    lockstep::check(cudaErrorInvalidValue);
    FAIL("it should have thrown");
  } catch (lockstep::cuda_error const& e) {
    CHECK(e.code() == cudaErrorInvalidValue);
    CHECK(std::string{e.what()}.find("cuda_test.cu") != std::string::npos);
  }
}

TEST_CASE("cuda: a GPU has the name that other tools call it by") {
  std::string const name = lockstep::cuda::device{}.name();
  CAPTURE(name);
  CHECK(std::regex_match(
      name,
      std::regex{".+, GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}, [0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\\.0"}));
}

TEST_CASE("cuda: a guard leaves a thread as it found it, one that has not used CUDA too") {
  std::thread{[] {
    auto const current = [] { return lockstep::cuda_detail::contexts::current(); };
    CHECK(current() == nullptr);
    {
      lockstep::cuda::device_guard const outer{lockstep::device_id{0}};
      CUcontext const context = current();
      CHECK(context != nullptr);
      int now = -1;
      lockstep::check(cudaGetDevice(&now));
      CHECK(now == 0);
      void* memory = nullptr;
      lockstep::check(cudaMalloc(&memory, 16));  // the runtime works in it
      lockstep::check(cudaFree(memory));
      { lockstep::cuda::device_guard const inner{lockstep::device_id{0}}; }
      CHECK(current() == context);
    }
    CHECK(current() == nullptr);
    CHECK_THROWS_AS(lockstep::cuda::device_guard const guard(lockstep::device_id{255}), lockstep::cuda_error);
    CHECK_THROWS_AS(lockstep::cuda::device_guard const guard(lockstep::device_id{-1}), lockstep::cuda_error);
    CHECK(current() == nullptr);
  }}.join();
}

TEST_CASE("cuda: the program's own allocator supplies the library's memory, and gets all of it back") {
  auto const books = std::make_shared<std::map<void*, std::size_t>>();
  auto const refuse_above = std::make_shared<std::size_t>(std::numeric_limits<std::size_t>::max());
  auto const own = std::make_shared<lockstep::cuda::allocator const>(
      lockstep::cuda::allocator{.allocate =
                                    [books, refuse_above](std::size_t bytes) {
                                      void* memory = nullptr;
                                      if (bytes <= *refuse_above) {
                                        lockstep::check(cudaMalloc(&memory, bytes));
                                        (*books)[memory] = bytes;
                                      }
                                      return memory;
                                    },
                                .free =
                                    [books](void* memory, std::size_t bytes) {
                                      CHECK((*books)[memory] == bytes);
                                      books->erase(memory);
                                      cudaFree(memory);
                                    }});
  float* on_device = nullptr;
  lockstep::check(cudaMalloc(&on_device, 4 * sizeof(float)));
  lockstep::check(cudaMemset(on_device, 0, 4 * sizeof(float)));
  auto const make = [&] {
    return std::make_unique<lockstep::trainer<gpu_pull<float, float>, lockstep::sgd, lockstep::single_device>>(
        lockstep::devices{0}, [](lockstep::device_context<lockstep::cuda>& device) { return gpu_pull<float, float>{device}; },
        lockstep::sgd{.learning_rate = 0.125F, .momentum = 0.5F}, lockstep::cuda::options{.allocator = own});
  };
  {
    auto const trainer = make();
    for (int k = 0; k < 4; ++k) {
      trainer->step(std::span<float const>{on_device, 4});
    }
    trainer->synchronize();
    std::size_t held = 0;
    for (auto const& [memory, bytes] : *books) {
      held += bytes;
    }
    std::size_t const accounted = trainer->memory(lockstep::rank_id{0}).total();
    CHECK(held >= accounted);
    CHECK(held <= accounted + books->size());  // one byte for each piece of nothing
  }
  CHECK(books->empty());
  *refuse_above = 10'000;
  CHECK_THROWS_AS(make(), lockstep::out_of_memory);
  CHECK(books->empty());
  CHECK_THROWS_AS(
      (lockstep::cuda::device{lockstep::device_id{0}, {.allocator = std::make_shared<lockstep::cuda::allocator const>()}}),
      lockstep::usage_error);
  lockstep::check(cudaFree(on_device));
}
