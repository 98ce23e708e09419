// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

#include <lockstep/lockstep.cuh>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr std::size_t gibibyte = std::size_t{1} << 30U;

/// Loss and gradient of (value - x)^2 / 2, in one thread.
struct pull {
  float const* value;
  float* gradient;
  float const* samples;
  std::size_t count;
  lockstep::cuda::weight weight;
  float* loss;

  LOCKSTEP_HOST_DEVICE void operator()() const {
#if defined(__CUDA_ARCH__)
    float const w = weight;
    for (std::size_t i = 0; i < count; ++i) {
      float const error = *value - samples[i];
      *gradient += w * error;
      *loss += w * error * error / 2;
    }
#endif
  }
};

enum class memory_from { the_device, own_cuda_malloc };

/// Takes `bytes_a_sample` for each sample when `train` is called first, as a model does that lays out its activations then.
class growing_model {
 public:
  using backend = lockstep::cuda;
  using batch = std::span<float const>;

  growing_model(lockstep::device_context<lockstep::cuda> const& device, std::size_t bytes_a_sample, memory_from from)
      : device_(device.device()),
        bytes_a_sample_(bytes_a_sample),
        from_(from),
        memory_(device.allocate(2 * sizeof(float), lockstep::memory_use::parameters)) {
    lockstep::cuda::zero(device.stream(), memory_.data(), memory_.bytes());
    device.stream().synchronize();
  }

  std::vector<lockstep::parameter> parameters() { return {{"value", memory_.as<float>(), memory_.as<float>() + 1, {1}}}; }

  void train(lockstep::train_context<lockstep::cuda>& ctx, batch const& shard) {
    std::size_t const bytes = shard.size() * bytes_a_sample_;
    if (from_ == memory_from::the_device && activations_.bytes() < bytes) {
      activations_ = device_.allocate(bytes, lockstep::memory_use::other);
    } else if (from_ == memory_from::own_cuda_malloc && own_ == nullptr) {
      void* taken = nullptr;
      lockstep::check(cudaMalloc(&taken, bytes));
      own_.reset(taken);
    }
    lockstep::cuda::invoke(ctx.stream(), pull{memory_.as<float>(), memory_.as<float>() + 1, shard.data(), shard.size(),
                                              ctx.sample_weight(), ctx.loss()});
  }

 private:
  struct free_memory {
    void operator()(void* memory) const noexcept { static_cast<void>(cudaFree(memory)); }
  };

  lockstep::cuda::device& device_;
  std::size_t bytes_a_sample_;
  memory_from from_;
  lockstep::cuda::buffer memory_;
  lockstep::cuda::buffer activations_;
  std::unique_ptr<void, free_memory> own_;
};

using trainer = lockstep::trainer<growing_model, lockstep::adam, lockstep::single_device>;

trainer make_trainer(std::size_t bytes_a_sample, memory_from from, lockstep::cuda::options const& options = {}) {
  return trainer{lockstep::devices{0},
                 [=](auto& device) {
                   return growing_model{device, bytes_a_sample, from};
                 },
                 lockstep::adam{}, options};
}

std::size_t free_bytes() {
  std::size_t free = 0;
  std::size_t total = 0;
  lockstep::check(cudaMemGetInfo(&free, &total));
  return free;
}

/// Device memory of cudaMalloc, but not more than a budget.
class budget {
 public:
  explicit budget(std::size_t bytes) : budget_(bytes) {}

  void* allocate(std::size_t bytes) {
    std::lock_guard const lock(mutex_);
    if (bytes > budget_ - in_use_) {
      return nullptr;
    }
    void* memory = nullptr;
    lockstep::check(cudaMalloc(&memory, bytes));
    in_use_ += bytes;
    peak_ = (std::max)(peak_, in_use_);
    return memory;
  }
  void free(void* memory, std::size_t bytes) {
    std::lock_guard const lock(mutex_);
    in_use_ -= bytes;
    static_cast<void>(cudaFree(memory));
  }
  [[nodiscard]] std::size_t in_use() const { return in_use_; }
  [[nodiscard]] std::size_t peak() const { return peak_; }

  /// As options of a backend. Requires: outlives what is made with them.
  lockstep::cuda::options options() {
    lockstep::cuda::options chosen;
    chosen.allocator = std::make_shared<lockstep::cuda::allocator const>(
        lockstep::cuda::allocator{[this](std::size_t bytes) { return allocate(bytes); },
                                  [this](void* memory, std::size_t bytes) { free(memory, bytes); }});
    return chosen;
  }

 private:
  std::mutex mutex_;
  std::size_t budget_;
  std::size_t in_use_ = 0;
  std::size_t peak_ = 0;
};

}  // namespace

TEST_CASE("largest batch on a GPU: what a budget leaves is found, exactly") {
  constexpr std::size_t bytes_a_sample = 100000;
  std::vector<float> const data(4096, 1.0F);
  auto const make_batch = [&](std::size_t samples) { return std::span{data}.first(samples); };
  for (std::size_t const bytes : {std::size_t{1} << 20U, std::size_t{20'000'000}, std::size_t{123'456'789}}) {
    CAPTURE(bytes);
    budget limited{bytes};
    auto const found = lockstep::find_largest_batch(
        [&] {
          lockstep::expects(limited.in_use() == 0, "the try before has left memory behind");
          return make_trainer(bytes_a_sample, memory_from::the_device, limited.options());
        },
        make_batch, {.limit = data.size(), .multiple_of = 4});
    CHECK(limited.in_use() == 0);
    REQUIRE(found.samples != 0);
    CHECK(found.too_many == found.samples + 4);
    CHECK(found.reason.find("out of memory allocating ") != std::string::npos);
    // The same by hand, without a limit: one size fits in the budget, the next does not.
    auto const peak_of = [&](std::size_t samples) {
      budget endless{SIZE_MAX};
      auto alone = make_trainer(bytes_a_sample, memory_from::the_device, endless.options());
      for (int step = 0; step < 4; ++step) {
        alone.step(make_batch(samples));
      }
      alone.synchronize();
      return endless.peak();
    };
    CHECK(peak_of(found.samples) <= bytes);
    CHECK(peak_of(found.too_many) > bytes);
    CHECK(found.memory[0].peak_bytes <= bytes);
    CHECK(found.memory[0][lockstep::memory_use::other] >= found.samples * bytes_a_sample);
  }
}

TEST_CASE("largest batch on a GPU: all of its memory is used, and given back, whoever allocates it") {
  std::vector<float> const data(1024, 1.0F);
  auto const make_batch = [&](std::size_t samples) { return std::span{data}.first(samples); };
  {
    auto warm = make_trainer(1, memory_from::the_device);  // CUDA keeps some memory from the first kernels on
    warm.step(make_batch(1));
  }
  std::size_t const free = free_bytes();
  for (memory_from const from : {memory_from::the_device, memory_from::own_cuda_malloc}) {
    auto const found =
        lockstep::find_largest_batch([&] { return make_trainer(gibibyte, from); }, make_batch, {.limit = data.size()});
    CAPTURE(to_string(found));
    CHECK(found.samples <= free / gibibyte);
    CHECK(found.samples + 2 > free / gibibyte);
    CHECK(found.too_many == found.samples + 1);
    CHECK(free_bytes() + gibibyte / 4 > free);
  }
}

TEST_CASE("largest batch on a GPU: a failed cudaMalloc is a lack of memory, other failures of CUDA's are not") {
  CHECK(lockstep::cuda::is_out_of_memory(lockstep::cuda_error(cudaErrorMemoryAllocation, "")));
  CHECK(!lockstep::cuda::is_out_of_memory(lockstep::cuda_error(cudaErrorInvalidValue, "")));
  CHECK(!lockstep::cuda::is_out_of_memory(std::runtime_error("out of memory")));
  struct wrong_model : growing_model {
    using growing_model::growing_model;
    void train(lockstep::train_context<lockstep::cuda>&, batch const&) { lockstep::check(cudaMemset(nullptr, 0, 1)); }
  };
  std::vector<float> const data(8, 1.0F);
  CHECK_THROWS_AS(static_cast<void>(lockstep::find_largest_batch(
                      [] {
                        return lockstep::trainer<wrong_model, lockstep::adam, lockstep::single_device>{
                            lockstep::devices{0},
                            [](auto& device) {
                              return wrong_model{device, 1, memory_from::the_device};
                            },
                            lockstep::adam{}};
                      },
                      [&](std::size_t samples) { return std::span{data}.first(samples); }, {.limit = 8})),
                  lockstep::cuda_error);
}
