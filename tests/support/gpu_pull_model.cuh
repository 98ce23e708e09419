// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "one_gpu.cuh"
#include "pull_model.hpp"

#include <lockstep/lockstep.cuh>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace support {

namespace pull_detail {

inline constexpr unsigned threads = 128;

/// What one listed parameter does in a micro-batch.
struct call {
  void const* value;
  void* gradient;
  lockstep::element_type value_type;
  lockstep::element_type gradient_type;
  std::size_t count;
  std::size_t parameter;
  float const* samples;
  std::size_t sample_count;
  std::size_t width;
  lockstep::cuda::weight weight;
  float* loss;  // null: does nothing
  bool overwrites;
};

inline __device__ float read(void const* from, lockstep::element_type type, std::size_t i) {
  switch (type) {
    case lockstep::element_type::f16: return static_cast<lockstep::float16 const*>(from)[i];
    case lockstep::element_type::bf16: return static_cast<lockstep::bfloat16 const*>(from)[i];
    default: return static_cast<float const*>(from)[i];
  }
}
inline __device__ void write(void* to, lockstep::element_type type, std::size_t i, float value) {
  switch (type) {
    case lockstep::element_type::f16: static_cast<lockstep::float16*>(to)[i] = lockstep::float16(value); break;
    case lockstep::element_type::bf16: static_cast<lockstep::bfloat16*>(to)[i] = lockstep::bfloat16(value); break;
    default: static_cast<float*>(to)[i] = value;
  }
}

/// One block. Adds in the same order each time, the loss too. Variants do the same: they are kernels of their own, so that a
/// test can use one that was not loaded before.
template <int Variant>
__global__ void __launch_bounds__(threads) pull(call const now) {
  __shared__ double losses[threads];
  if (now.loss == nullptr) {
    return;
  }
  float const weight = now.weight;
  double loss = 0;
  for (std::size_t e = threadIdx.x; e < now.count; e += threads) {
    float const value = read(now.value, now.value_type, e);
    float sum = 0;
    for (std::size_t s = 0; s < now.sample_count; ++s) {
      float const error = value - now.samples[s * now.width + (now.parameter + e) % now.width];
      sum += weight * error;
      loss += 0.5 * static_cast<double>(error) * static_cast<double>(error);
    }
    write(now.gradient, now.gradient_type, e, now.overwrites ? sum : read(now.gradient, now.gradient_type, e) + sum);
  }
  losses[threadIdx.x] = loss;
  __syncthreads();
  if (threadIdx.x == 0) {
    double all = 0;
    for (double const one : losses) {
      all += one;
    }
    *now.loss += static_cast<float>(static_cast<double>(weight) * all);
  }
}

inline constexpr int variants = 4;

inline void launch(int variant, call const& now, cudaStream_t stream) {
  constexpr std::array<void (*)(call), variants> kernels{pull<0>, pull<1>, pull<2>, pull<3>};
  kernels[static_cast<std::size_t>(variant)]<<<1, threads, 0, stream>>>(now);
  lockstep::check(cudaGetLastError());
}

inline void load() {
  for (int variant = 0; variant < variants; ++variant) {
    launch(variant, {}, nullptr);
  }
  lockstep::check(cudaStreamSynchronize(nullptr));
}

}  // namespace pull_detail

/// What a gpu_pull_model is made of, beyond what it shares with the one on the host.
struct gpu_pull_types {
  lockstep::element_type value = lockstep::element_type::f32;
  lockstep::element_type gradient = lockstep::element_type::f32;
  float start = 0;  // is added to what values start from
};

/// pull_model on GPUs, with element types that are chosen when it is made. Parameters start from pull_start, gradients from
/// NaN. Backend: lockstep::cuda, or one that derives from it.
template <class Backend, lockstep::model_promises Promises = lockstep::model_promises{}>
class gpu_pull_model {
 public:
  using backend = Backend;
  using batch = std::tuple<lockstep::sample_view<float const>>;
  using context = lockstep::train_context<Backend>;
  static constexpr lockstep::model_promises promises = Promises;

  /// Takes `more_bytes` bytes that nothing uses.
  gpu_pull_model(lockstep::device_context<Backend> const& device, pull_plan plan, gpu_pull_types types = {},
                 std::size_t more_bytes = 0)
      : plan_(std::move(plan)), types_(types), random_(plan_.seed) {
    static_cast<void>(!std::is_same_v<Backend, one_gpu> || loads<pull_detail::load>);
    std::size_t const total = std::accumulate(plan_.counts.begin(), plan_.counts.end(), std::size_t{0});
    if (plan_.memory != layout::scattered) {
      take_memory(device, total + 1);
    }
    std::size_t offset = 0;
    for (std::size_t p = 0; p < plan_.counts.size(); ++p) {
      std::size_t const count = plan_.counts[p];
      if (plan_.memory == layout::scattered) {
        take_memory(device, count + 1);
      }
      add(p, plan_.memory == layout::arena ? offset : plan_.memory == layout::scattered ? 0 : total - offset - count, device);
      offset += count;
    }
    for (std::size_t const p : plan_.tied) {
      lockstep::parameter again = listed_[p];
      again.name += ".again";
      listed_.push_back(again);
    }
    more_ = device.allocate(more_bytes, lockstep::memory_use::other);
    device.stream().synchronize();
  }
  gpu_pull_model(gpu_pull_model const&) = delete;  // its memory is listed
  gpu_pull_model& operator=(gpu_pull_model const&) = delete;
  ~gpu_pull_model() {
    if (gone) {
      *gone = true;
    }
  }

  std::vector<lockstep::parameter> const& parameters() const { return listed_; }

  void train(context& ctx, batch const& shard) {
    ++trained;
    if (before_train) {
      before_train(ctx);
    }
    auto const& samples = std::get<0>(shard);
    std::vector<std::uint8_t> started(plan_.counts.size(), 0);
    for (std::size_t i = 0; i < listed_.size(); ++i) {
      std::size_t const p = i < plan_.counts.size() ? i : plan_.tied[i - plan_.counts.size()];
      if (std::find(leave_out.begin(), leave_out.end(), p) != leave_out.end()) {
        ctx.unused(i);
        continue;
      }
      bool const overwrites = Promises.honours_accumulate && !ctx.accumulate() && started[p] == 0;
      started[p] = 1;
      int const variant = new_kernels ? static_cast<int>(samples.count() % pull_detail::variants) : 0;
      pull_detail::launch(variant,
                          {.value = listed_[i].value,
                           .gradient = listed_[i].gradient,
                           .value_type = types_.value,
                           .gradient_type = types_.gradient,
                           .count = listed_[i].count(),
                           .parameter = p,
                           .samples = samples.data(),
                           .sample_count = samples.count(),
                           .width = samples.width(),
                           .weight = ctx.sample_weight(),
                           .loss = ctx.loss(),
                           .overwrites = overwrites},
                          ctx.stream().get());
    }
    mark(ctx);
  }

  // Changed by tests between steps.
  std::function<void(context&)> before_train;
  std::vector<std::size_t> leave_out;
  std::vector<lockstep::parameter> listed_;
  bool new_kernels = false;                 // another kernel for other numbers of samples
  std::shared_ptr<std::atomic<bool>> gone;  // told of the model's end

  std::atomic<int> trained{0};  // calls of train

 private:
  void take_memory(lockstep::device_context<Backend> const& device, std::size_t count) {
    values_.push_back(device.allocate(count * size_of(types_.value), lockstep::memory_use::parameters));
    gradients_.push_back(device.allocate(count * size_of(types_.gradient), lockstep::memory_use::gradients));
    lockstep::check(cudaMemsetAsync(gradients_.back().data(), 0xff, gradients_.back().bytes(), device.stream().get()));  // NaN
  }

  /// Parameter p begins `offset` elements into the memory that was taken last.
  void add(std::size_t p, std::size_t offset, lockstep::device_context<Backend> const& device) {
    lockstep::parameter described;
    described.name = "p" + std::to_string(p);
    described.value = values_.back().template as<std::byte>() + offset * size_of(types_.value);
    described.gradient = gradients_.back().template as<std::byte>() + offset * size_of(types_.gradient);
    described.value_type = types_.value;
    described.gradient_type = types_.gradient;
    described.shape = {plan_.counts[p]};
    lockstep::elementwise::visit(types_.value, [&]<class T>(std::type_identity<T>) {
      std::vector<T> start;
      for (std::size_t e = 0; e < plan_.counts[p]; ++e) {
        start.push_back(T(pull_start(plan_.counts[p], e) + types_.start));
      }
      Backend::copy(device.stream(), described.value, start.data(), start.size() * sizeof(T));
      device.stream().synchronize();
    });
    listed_.push_back(std::move(described));
  }

  /// Elements [first, first + count) of a listed gradient.
  static std::span<std::byte const> bytes_of(lockstep::parameter const& p, std::size_t first, std::size_t count) {
    lockstep::typed_span const part = p.gradients().part(first, count);
    return {static_cast<std::byte const*>(part.data), part.bytes()};
  }

  void mark(context& ctx) {
    std::vector<std::size_t> order(listed_.size());
    std::iota(order.rbegin(), order.rend(), std::size_t{0});
    auto const whole = [&](std::size_t i) { return bytes_of(listed_[i], 0, listed_[i].count()); };
    switch (plan_.marks) {
      case marking::none: break;
      case marking::in_order:
        for (std::size_t const i : order) {
          ctx.gradient_ready(i);
        }
        break;
      case marking::some:
        for (std::size_t const i : order) {
          if (random_.chance(0.5)) {
            ctx.gradient_ready(i);
          }
        }
        break;
      case marking::twice:
        for (std::size_t const i : order) {
          ctx.gradient_ready(i);
          ctx.gradient_ready(i, listed_.size() - i);
        }
        break;
      case marking::by_span:
        for (std::size_t const i : order) {
          ctx.gradient_ready(whole(i));
        }
        break;
      case marking::split_span:
        for (std::size_t const i : order) {
          std::size_t const half = listed_[i].count() / 2;
          ctx.gradient_ready(bytes_of(listed_[i], half, listed_[i].count() - half));
          ctx.gradient_ready(bytes_of(listed_[i], 0, half));
        }
        break;
      case marking::whole_span:
        if (plan_.memory != layout::scattered) {
          std::size_t const bytes = gradients_.back().bytes() - size_of(types_.gradient);
          ctx.gradient_ready(std::span<std::byte const>{gradients_.back().template as<std::byte const>(), bytes});
        }
        break;
      case marking::shuffled:
        std::shuffle(order.begin(), order.end(), random_.engine());
        for (std::size_t const i : order) {
          if (random_.chance(0.5)) {
            ctx.gradient_ready(i);
          } else {
            ctx.gradient_ready(whole(i));
          }
        }
        break;
    }
  }

  pull_plan plan_;
  gpu_pull_types types_;
  tests::generator random_;
  std::vector<typename Backend::buffer> values_;
  std::vector<typename Backend::buffer> gradients_;
  typename Backend::buffer more_;
};

}  // namespace support
