// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// The time of a training step on GPUs: `trainer` under each policy, and the loop one would write by hand around the same model.
// Prints one line of JSON for each, in the same form as bench/peers/pytorch_step.py. Built once for each kind of arithmetic:
// LOCKSTEP_BENCH_COMPUTE is f32, tf32 or bf16, and LOCKSTEP_BENCH_NCCL 1 where NCCL is there.

#include "../../examples/models/perceptron.cuh"
#include "../line.hpp"
#include "../timing.hpp"

#include <lockstep/comm/direct.cuh>
#include <lockstep/lockstep.cuh>

#if LOCKSTEP_BENCH_NCCL
#include <lockstep/comm/nccl.cuh>

#include <nccl.h>
#endif

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using lockstep::check;

constexpr examples::compute arithmetic = examples::compute::LOCKSTEP_BENCH_COMPUTE;

/// A perceptron, the samples that each GPU trains on in a step, and where they come from.
struct work {
  char const* name;
  examples::compute compute;
  std::vector<std::size_t> widths;
  std::size_t samples;
  /// Batches lie in pinned memory of the host instead of on the devices.
  bool pinned = false;
};

std::vector<work> works() {
  std::vector<std::size_t> const wide(9, 4096);
  return {
      {"simplenet-64", examples::compute::f32, {784, 128, 10}, 64},
      {"mlp4096-1024", examples::compute::bf16, wide, 1024},
      {"mlp4096-8192", examples::compute::bf16, wide, 8192},
      {"mlp4096-8192-tf32", examples::compute::tf32, wide, 8192},
      {"mlp4096-8192-f32", examples::compute::f32, wide, 8192},
      {"mlp4096-8192-pinned", examples::compute::bf16, wide, 8192, true},
  };
}

/// So small that weights stay as they were drawn: all sides multiply the same numbers in every step. Products of what has been
/// learned, with gradients of 0, take less power, and so less time.
constexpr float rate = 1e-9F;
constexpr float decay = 0.01F;
constexpr float beta1 = 0.9F;
constexpr float beta2 = 0.999F;
constexpr float epsilon = 1e-8F;

// ---- numbers to train on -------------------------------------------------------------------------------------------------

__device__ std::uint64_t scrambled(std::uint64_t x) {  // the finalizer of splitmix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

/// About normal, with mean 0 and variance 1: the sum of four uniform numbers.
template <class T>
__global__ void fill_normal(T* memory, std::size_t count, float scale, std::uint64_t seed) {
  std::size_t const stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    std::uint64_t const bits = scrambled(scrambled(seed) + i);
    float sum = 0;
    for (int part = 0; part < 4; ++part) {
      sum += static_cast<float>((bits >> (16 * part)) & 0xffffU);
    }
    memory[i] = T(scale * 1.7320508F * (sum / 65536 - 2));
  }
}

__global__ void fill_labels(std::int32_t* labels, std::size_t count, std::uint64_t classes, std::uint64_t seed) {
  std::size_t const stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    labels[i] = static_cast<std::int32_t>(scrambled(scrambled(seed) + i) % classes);
  }
}

/// The perceptron with first values made on the device: drawing 134 million on the host takes longer than all that is measured.
class model : public examples::perceptron<arithmetic> {
 public:
  model(lockstep::device_context<lockstep::cuda> const& context, std::vector<std::size_t> const& widths)
      : examples::perceptron<arithmetic>(without_drawing(context), widths, 0) {
    for (lockstep::parameter const& p : parameters()) {
      if (p.group == 0) {  // weights {out, in}; biases start at 0
        float const scale = std::sqrt(2.0F / static_cast<float>(p.shape.extents()[1]));
        fill_normal<<<1024, 256, 0, context.stream().get()>>>(static_cast<value_type*>(p.value), p.count(), scale, 1);
        check(cudaGetLastError());
      }
    }
  }

 private:
  /// Rank 0 would draw.
  static lockstep::device_context<lockstep::cuda> without_drawing(lockstep::device_context<lockstep::cuda> const& context) {
    return {context.device(), lockstep::rank_id{1}, context.size()};
  }
};

std::unique_ptr<void, lockstep::cuda::give_back> device_memory(std::size_t bytes) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, bytes));
  return std::unique_ptr<void, lockstep::cuda::give_back>{memory};
}

/// Two batches of one device, used in turn.
class device_batches {
 public:
  device_batches(int device, work const& w) : samples_(w.samples), in_(w.widths.front()) {
    lockstep::cuda::device_guard const current{lockstep::device_id{device}};
    for (std::size_t slot = 0; slot < 2; ++slot) {
      memory_[slot] = device_memory(bytes());
      fill(slot, w.widths.back(), 2 + 16 * static_cast<std::uint64_t>(device) + slot);
    }
  }

  /// {samples, in} f32, then {samples} labels.
  [[nodiscard]] std::size_t bytes() const { return samples_ * (in_ * sizeof(float) + sizeof(std::int32_t)); }
  [[nodiscard]] void* memory(std::size_t slot) const { return memory_[slot].get(); }
  [[nodiscard]] model::batch view(std::size_t slot) const { return view_of(memory(slot)); }
  [[nodiscard]] model::batch view_of(void* memory) const {
    auto* const inputs = static_cast<float*>(memory);
    return {lockstep::sample_view<float const>{inputs, samples_, in_},
            lockstep::sample_view<std::int32_t const>{labels(memory), samples_, 1}};
  }
  /// Synchronizes: the host waits.
  void fill(std::size_t slot, std::size_t classes, std::uint64_t seed) {
    fill_normal<<<1024, 256>>>(static_cast<float*>(memory(slot)), samples_ * in_, 1.0F, seed);
    check(cudaGetLastError());
    fill_labels<<<64, 256>>>(labels(memory(slot)), samples_, classes, seed);
    check(cudaGetLastError());
    check(cudaDeviceSynchronize());
  }

 private:
  [[nodiscard]] std::int32_t* labels(void* memory) const {
    return reinterpret_cast<std::int32_t*>(static_cast<float*>(memory) + samples_ * in_);
  }

  std::size_t samples_;
  std::size_t in_;
  std::array<std::unique_ptr<void, lockstep::cuda::give_back>, 2> memory_;
};

/// Batches of one device in pinned memory of the host.
using pinned_memory = std::vector<lockstep::cuda::pinned_buffer>;

pinned_memory pinned_copies(lockstep::cuda::device const& device, device_batches& through, std::size_t classes) {
  pinned_memory copies;
  lockstep::cuda::device_guard const current{device.id()};
  for (std::uint64_t i = 0; i < 4; ++i) {
    copies.push_back(device.allocate_pinned(through.bytes()));
    through.fill(0, classes, 100 + i);
    check(cudaMemcpy(copies.back().data(), through.memory(0), through.bytes(), cudaMemcpyDeviceToHost));
  }
  return copies;
}

/// Brings batches from pinned memory into the two of a device, each on a stream of its own while the step on the other runs.
class pinned_batches {
 public:
  pinned_batches(device_batches& target, pinned_memory const& host)
      : target_(target), host_(host), copying_(lockstep::device_id{0}) {}

  void before(std::size_t slot, lockstep::cuda::stream_ref stream) {
    if (filled_ == 0) {
      fill(slot);
    }
    fill(1 - slot);
    stream.wait(copied_[slot]);
  }
  void after(std::size_t slot, lockstep::cuda::stream_ref stream) { used_[slot].record(stream); }

 private:
  void fill(std::size_t slot) {
    copying_.ref().wait(used_[slot]);
    lockstep::cuda::copy(copying_, target_.memory(slot), host_[filled_++ % host_.size()].data(), target_.bytes());
    copied_[slot].record(copying_);
  }

  device_batches& target_;
  pinned_memory const& host_;
  lockstep::cuda::stream copying_;
  std::array<lockstep::cuda::event, 2> copied_;
  std::array<lockstep::cuda::event, 2> used_;
  std::size_t filled_ = 0;
};

// ---- by hand -------------------------------------------------------------------------------------------------------------

/// What AdamW's elements share in one step: rate / (1 - beta1^t) and 1 / sqrt(1 - beta2^t).
struct adamw_factors {
  float step_size;
  float root_factor;
};

__host__ __device__ adamw_factors factors_of(std::uint64_t step) {
  auto const t = static_cast<double>(step);
  double const first = -expm1(t * log(static_cast<double>(beta1)));
  double const second = -expm1(t * log(static_cast<double>(beta2)));
  return {static_cast<float>(static_cast<double>(rate) / first), static_cast<float>(1 / sqrt(second))};
}

/// Where a graph keeps them: it can't be given new arguments.
struct adamw_state {
  std::uint64_t step;
  adamw_factors factors;
};
__global__ void prepare_adamw(adamw_state* state) { state->factors = factors_of(++state->step); }

__device__ float adamw_element(float value, float gradient, float& m, float& v, adamw_factors const& f) {
  m = beta1 * m + (1 - beta1) * gradient;
  v = beta2 * v + (1 - beta2) * gradient * gradient;
  return value - (rate * decay * value + f.step_size * m / (sqrtf(v) * f.root_factor + epsilon));
}

template <class To>
__device__ void store(To* to, float4 x) {
  if constexpr (std::is_same_v<To, float>) {
    *reinterpret_cast<float4*>(to) = x;
  } else {
    alignas(uint2) __nv_bfloat162 const pairs[2] = {__floats2bfloat162_rn(x.x, x.y), __floats2bfloat162_rn(x.z, x.w)};
    *reinterpret_cast<uint2*>(to) = *reinterpret_cast<uint2 const*>(pairs);
  }
}

constexpr int adamw_threads = 256;

/// AdamW over one stretch of `count` elements, four a thread. `masters` is `values` where these are f32. Takes the loss of the
/// step away, so that the next begins with 0.
template <class Value>
__global__ void __launch_bounds__(adamw_threads)
    adamw_by_hand(Value* values, float* masters, float const* __restrict__ gradients, float* __restrict__ m,
                  float* __restrict__ v, std::size_t count, adamw_factors given, adamw_state const* state, float* loss,
                  float* last_loss) {
  adamw_factors const f = state != nullptr ? state->factors : given;
  std::size_t const i = 4 * (std::size_t{blockIdx.x} * adamw_threads + threadIdx.x);
  if (i + 4 <= count) {
    float4 x = *reinterpret_cast<float4 const*>(masters + i);
    float4 const g = *reinterpret_cast<float4 const*>(gradients + i);
    float4 first = *reinterpret_cast<float4 const*>(m + i);
    float4 second = *reinterpret_cast<float4 const*>(v + i);
    x = {adamw_element(x.x, g.x, first.x, second.x, f), adamw_element(x.y, g.y, first.y, second.y, f),
         adamw_element(x.z, g.z, first.z, second.z, f), adamw_element(x.w, g.w, first.w, second.w, f)};
    store(m + i, first);
    store(v + i, second);
    store(masters + i, x);
    if constexpr (!std::is_same_v<Value, float>) {
      store(values + i, x);
    }
  } else {
    for (std::size_t e = i; e < count; ++e) {
      float const x = adamw_element(masters[e], gradients[e], m[e], v[e], f);
      masters[e] = x;
      if constexpr (!std::is_same_v<Value, float>) {
        values[e] = Value(x);
      }
    }
  }
  if (i == 0) {
    *last_loss = *loss;
    *loss = 0;
  }
}

template <class Value>
__global__ void widen(Value const* values, float* masters, std::size_t count) {
  std::size_t const stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    masters[i] = static_cast<float>(values[i]);
  }
}

/// The values themselves where these are f32, else f32 copies of them in `memory`.
template <class Value>
float* masters_of(Value* values, std::size_t count, std::unique_ptr<void, lockstep::cuda::give_back>& memory) {
  if constexpr (std::is_same_v<Value, float>) {
    return values;
  } else {
    memory = device_memory(count * sizeof(float));
    auto* const masters = static_cast<float*>(memory.get());
    widen<<<1024, 256>>>(values, masters, count);
    check(cudaGetLastError());
    return masters;
  }
}

struct destroy_graph {
  void operator()(cudaGraphExec_t graph) const noexcept { static_cast<void>(cudaGraphExecDestroy(graph)); }
};
using unique_graph = std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, destroy_graph>;

/// The loop that one would write around a model: its own AdamW over the model's arena, called or captured. Takes the model that
/// the trainer trains, so that both run the same products.
class by_hand {
 public:
  using value_type = std::conditional_t<arithmetic == examples::compute::bf16, __nv_bfloat16, float>;

  by_hand(model& trained, device_batches const& batches, pinned_batches* host, std::size_t samples)
      : model_(trained),
        batches_(batches),
        host_(host),
        weight_(1.0F / static_cast<float>(samples)),
        stream_(lockstep::device_id{0}),
        beside_(lockstep::device_id{0}),
        small_(device_memory(small_bytes)) {
    auto const parameters = trained.parameters();
    lockstep::parameter const& last = parameters.back();
    auto* const gradients = static_cast<float*>(last.gradient) + last.count();
    values_ = static_cast<value_type*>(parameters.front().value);
    gradients_ = static_cast<float*>(parameters.front().gradient);
    count_ = static_cast<std::size_t>(static_cast<value_type*>(last.value) + last.count() - values_);
    if (static_cast<std::size_t>(gradients - gradients_) != count_) {
      throw std::logic_error("values and gradients lie differently, and one stretch can't be updated as one");
    }
    state_ = static_cast<adamw_state*>(small_.get());
    loss_ = reinterpret_cast<float*>(state_ + 2);
    check(cudaMemset(small_.get(), 0, small_bytes));
    moments_ = device_memory(2 * padded() * sizeof(float));
    check(cudaMemset(moments_.get(), 0, 2 * padded() * sizeof(float)));
    masters_ = masters_of(values_, count_, master_memory_);
    check(cudaDeviceSynchronize());
    called(1);  // before anything is captured, the model has planned
    for (std::size_t slot = 0; slot < 2; ++slot) {
      step_[slot] = captured([&] {
        fork_.record(stream_);  // the factors come beside the model's work
        beside_.ref().wait(fork_);
        prepare_adamw<<<1, 1, 0, beside_.ref().get()>>>(state_);
        check(cudaGetLastError());
        join_.record(beside_);
        forward_and_backward(slot);
        stream_.ref().wait(join_);
        update(state_);
      });
      train_[slot] = captured([&] { forward_and_backward(slot); });
    }
    update_ = captured([&] { update(state_ + 1); });
  }

  void called(std::size_t steps) {
    in_turn(steps, [&](std::size_t slot) {
      forward_and_backward(slot);
      update(nullptr);
    });
  }
  void replayed(std::size_t steps) {
    in_turn(steps, [&](std::size_t slot) { check(cudaGraphLaunch(step_[slot].get(), stream_.ref().get())); });
  }
  void train_alone(std::size_t steps) {
    in_turn(steps, [&](std::size_t slot) { check(cudaGraphLaunch(train_[slot].get(), stream_.ref().get())); });
  }
  void update_alone(std::size_t steps) {
    for (std::size_t i = 0; i < steps; ++i) {
      check(cudaGraphLaunch(update_.get(), stream_.ref().get()));
    }
    stream_.ref().synchronize();
  }

  /// The loss of the last whole step.
  [[nodiscard]] double loss() {
    replayed(2);  // what only trained left its losses behind
    float loss = 0;
    check(cudaMemcpy(&loss, loss_ + 1, sizeof loss, cudaMemcpyDeviceToHost));
    return static_cast<double>(loss);
  }

 private:
  /// The state of whole steps; one of zeros, with which an update alone takes its time and goes nowhere; the loss; the last
  /// loss; right answers.
  static constexpr std::size_t small_bytes = 2 * sizeof(adamw_state) + 3 * sizeof(float);

  [[nodiscard]] std::size_t padded() const { return (count_ + 3) / 4 * 4; }

  template <class Step>
  void in_turn(std::size_t steps, Step step) {
    for (std::size_t i = 0; i < steps; ++i, slot_ = 1 - slot_) {
      if (host_ != nullptr) {
        host_->before(slot_, stream_);
      }
      step(slot_);
      if (host_ != nullptr) {
        host_->after(slot_, stream_);
      }
    }
    stream_.ref().synchronize();
  }

  void forward_and_backward(std::size_t slot) {
    lockstep::train_context<lockstep::cuda> ctx{{.stream = stream_,
                                                 .sample_weight = lockstep::cuda::weight{weight_},
                                                 .shard_weight = lockstep::cuda::weight{1.0F},
                                                 .host_sample_weight = weight_,
                                                 .loss = loss_,
                                                 .metrics = loss_ + 2,
                                                 .metric_count = 1,
                                                 .accumulate = false}};
    model_.train(ctx, batches_.view(slot));
  }

  /// `state` is null where the host says the factors.
  void update(adamw_state const* state) {
    adamw_factors const factors = state == nullptr ? factors_of(++steps_) : adamw_factors{};
    auto* const m = static_cast<float*>(moments_.get());
    std::size_t const a_block = 4 * adamw_threads;
    adamw_by_hand<<<static_cast<unsigned>((count_ + a_block - 1) / a_block), adamw_threads, 0, stream_.ref().get()>>>(
        values_, masters_, gradients_, m, m + padded(), count_, factors, state, loss_, loss_ + 1);
    check(cudaGetLastError());
  }

  template <class Work>
  unique_graph captured(Work enqueue) {
    check(cudaStreamBeginCapture(stream_.ref().get(), cudaStreamCaptureModeThreadLocal));
    enqueue();
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream_.ref().get(), &graph));
    cudaGraphExec_t made = nullptr;
    cudaError_t const status = cudaGraphInstantiate(&made, graph, 0);
    check(cudaGraphDestroy(graph));
    check(status);
    unique_graph result{made};
    check(cudaGraphUpload(made, stream_.ref().get()));
    return result;
  }

  model& model_;
  device_batches const& batches_;
  pinned_batches* host_;
  float weight_;
  lockstep::cuda::stream stream_;
  lockstep::cuda::stream beside_;
  lockstep::cuda::event fork_;
  lockstep::cuda::event join_;
  std::unique_ptr<void, lockstep::cuda::give_back> small_;  // see small_bytes
  std::unique_ptr<void, lockstep::cuda::give_back> moments_;
  std::unique_ptr<void, lockstep::cuda::give_back> master_memory_;
  value_type* values_ = nullptr;
  float* masters_ = nullptr;
  float* gradients_ = nullptr;
  std::size_t count_ = 0;
  adamw_state* state_ = nullptr;
  float* loss_ = nullptr;
  std::uint64_t steps_ = 0;
  std::size_t slot_ = 0;
  std::array<unique_graph, 2> step_;
  std::array<unique_graph, 2> train_;
  unique_graph update_;
};

// ---- what is measured ----------------------------------------------------------------------------------------------------

bench::line described(work const& w, std::string_view mode, int gpus, bench::line const& settings = {}) {
  bench::line line;
  line.add("work", w.name).add("mode", mode).add("gpus", gpus).add("settings", settings);
  return line;
}

bench::line& add_timing(bench::line& line, bench::timing const& timed) {
  return line.add("median_ms", timed.median_ms).add("spread", timed.spread).add("iterations", timed.steps);
}

double finite(double loss) {
  if (!std::isfinite(loss)) {
    throw std::runtime_error("the loss is not finite: what was measured is no training");
  }
  return loss;
}

constexpr lockstep::adamw plain_adamw{
    .learning_rate = rate, .beta1 = beta1, .beta2 = beta2, .epsilon = epsilon, .weight_decay = decay};
/// What people do around the step, all of it: a schedule, and rules for all gradients.
using scheduled_adamw = lockstep::scheduled<lockstep::adamw, lockstep::warm_up<lockstep::cosine>>;
scheduled_adamw const ruled_adamw{plain_adamw, {.steps = 500, .then = {.steps = 100000}}};
lockstep::gradient_rules const all_rules{.max_norm = 1.0F, .loss_scale = lockstep::loss_scale{}};

/// A trainer on the first `gpus` devices, and its batches.
template <class Policy, class Optimizer = lockstep::adamw>
class trained {
 public:
  trained(work const& w, int gpus, Optimizer const& optimizer = plain_adamw, lockstep::gradient_rules const& rules = {})
      : trainer_(
            lockstep::devices::first(gpus),
            [&w](lockstep::device_context<lockstep::cuda>& device) {
              return model{device, w.widths};
            },
            optimizer, rules) {
    shards_.resize(w.pinned ? 4 : 2);
    for (int device = 0; device < gpus; ++device) {
      batches_.push_back(std::make_unique<device_batches>(device, w));
      if (w.pinned) {
        lockstep::cuda::device const here{lockstep::device_id{device}};
        pinned_.push_back(pinned_copies(here, *batches_.back(), w.widths.back()));
      }
      for (std::size_t slot = 0; slot < shards_.size(); ++slot) {
        shards_[slot].push_back(w.pinned ? batches_.back()->view_of(pinned_.back()[slot].data()) : batches_.back()->view(slot));
      }
    }
  }

  void steps(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      result_ = trainer_.step_shards(shards_[slot_++ % shards_.size()]);
    }
    trainer_.synchronize();
  }

  [[nodiscard]] auto& trainer() { return trainer_; }
  [[nodiscard]] device_batches& batches(int device) { return *batches_[static_cast<std::size_t>(device)]; }
  [[nodiscard]] pinned_memory const& pinned(int device) const { return pinned_[static_cast<std::size_t>(device)]; }

  void print(work const& w, std::string_view mode, bench::line const& settings, bench::timing const& timed) {
    lockstep::memory_usage most;
    for (int rank = 0; rank < trainer_.size(); ++rank) {
      lockstep::memory_usage const here = trainer_.memory(lockstep::rank_id{rank});
      most = here.peak_bytes > most.peak_bytes ? here : most;
    }
    bench::line memory;
    for (std::size_t use = 0; use < lockstep::memory_use_count; ++use) {
      memory.add(lockstep::name_of(static_cast<lockstep::memory_use>(use)), most.bytes[use]);
    }
    bench::line line = described(w, mode, trainer_.size(), settings);
    add_timing(line, timed).add("peak_bytes", most.peak_bytes).add("memory", memory);
    line.add("loss", finite(result_.loss())).print();
  }

 private:
  lockstep::trainer<model, Optimizer, Policy> trainer_;
  std::vector<std::unique_ptr<device_batches>> batches_;
  std::vector<pinned_memory> pinned_;  // by device, where batches come from the host
  std::vector<std::vector<model::batch>> shards_;
  std::size_t slot_ = 0;
  lockstep::step_result result_;
};

/// One GPU: by hand and under single_device, without rules and with all, in turn.
void measure_one(work const& w, double seconds) {
  trained<lockstep::single_device> ours{w, 1};
  ours.steps(3);
  std::unique_ptr<pinned_batches> const host =
      w.pinned ? std::make_unique<pinned_batches>(ours.batches(0), ours.pinned(0)) : nullptr;
  by_hand hand{ours.trainer().model(), ours.batches(0), host.get(), w.samples};

  std::vector<bench::block> alternatives{
      [&](std::size_t steps) { hand.called(steps); },
      [&](std::size_t steps) { hand.replayed(steps); },
      [&](std::size_t steps) { hand.train_alone(steps); },
      [&](std::size_t steps) { hand.update_alone(steps); },
  };
  alternatives.emplace_back([&](std::size_t steps) { ours.steps(steps); });
  trained<lockstep::single_device, scheduled_adamw> ruled{w, 1, ruled_adamw, all_rules};
  ruled.steps(3);
  alternatives.emplace_back([&](std::size_t steps) { ruled.steps(steps); });
  std::vector<bench::timing> const timed = bench::time_in_turn(alternatives, seconds);

  double const loss = finite(hand.loss());
  bench::line settings[4];
  settings[0].add("captured", false);
  settings[1].add("captured", true);
  settings[2].add("captured", true).add("part", "forward and backward");
  settings[3].add("captured", true).add("part", "update");
  for (std::size_t i = 0; i < 4; ++i) {
    bench::line line = described(w, "by hand", 1, settings[i]);
    add_timing(line, timed[i]).add("loss", loss).print();
  }
  ours.print(w, "single_device", {}, timed[4]);
  ruled.print(w, "single_device", bench::line{}.add("rules", "loss scale, bounded norm and schedule"), timed[5]);
}

template <class Policy>
void measure_several(work const& w, std::string_view mode, char const* transport, int gpus, double seconds) {
  trained<Policy> ours{w, gpus};
  std::vector<bench::block> const alone{[&ours](std::size_t steps) { ours.steps(steps); }};
  std::vector<bench::timing> const timed = bench::time_in_turn(alone, seconds);
  ours.print(w, mode, bench::line{}.add("transport", transport), timed[0]);
}

/// Every policy for several GPUs over one transport.
template <class Transport>
void measure_over(work const& w, char const* transport, int gpus, double seconds) {
  measure_several<lockstep::replicate_and_gather<Transport>>(w, "replicate_and_gather", transport, gpus, seconds / 3);
  measure_several<lockstep::peer_all_reduce<Transport>>(w, "peer_all_reduce", transport, gpus, seconds / 3);
  measure_several<lockstep::sharded_optimizer<Transport>>(w, "sharded_optimizer", transport, gpus, seconds / 3);
}

void skip(work const& w, char const* transport, int gpus, std::string const& lacking) {
  for (char const* const mode : {"replicate_and_gather", "peer_all_reduce", "sharded_optimizer"}) {
    described(w, mode, gpus, bench::line{}.add("transport", transport)).add("skipped", lacking).print();
  }
}

void measure_all(work const& w, int gpus, double seconds) {
  measure_one(w, seconds);
  if (gpus < 2) {
    std::string const lacking = "needs 2 GPUs, found " + std::to_string(gpus);
    skip(w, "nccl", 2, lacking);
    skip(w, "direct", 2, lacking);
    return;
  }
#if LOCKSTEP_BENCH_NCCL
  measure_over<lockstep::nccl>(w, "nccl", gpus, 3 * seconds / 4);
#else
  skip(w, "nccl", gpus, "NCCL was not there when this was built");
#endif
  try {
    measure_over<lockstep::direct>(w, "direct", gpus, 3 * seconds / 4);
  } catch (lockstep::direct_unavailable const& e) {
    skip(w, "direct", gpus, e.what());
  }
}

int wrong_use() {
  std::fprintf(stderr, "Usage: cuda_step_bench --work NAME [--gpus N] [--seconds S]; NAME is one of");
  for (work const& w : works()) {
    if (w.compute == arithmetic) {
      std::fprintf(stderr, " %s", w.name);
    }
  }
  std::fprintf(stderr, "\n");
  return 2;
}

}  // namespace

int main(int count, char** arguments) try {
  std::string name;
  int gpus = lockstep::cuda::device_count();
  double seconds = 12;
  for (int i = 1; i < count; i += 2) {
    std::string_view const option = arguments[i];
    if (i + 1 == count) {
      return wrong_use();
    } else if (option == "--work") {
      name = arguments[i + 1];
    } else if (option == "--gpus") {
      gpus = (std::min)(gpus, std::stoi(arguments[i + 1]));
    } else if (option == "--seconds") {
      seconds = std::stod(arguments[i + 1]);
    } else {
      return wrong_use();
    }
  }
  for (work const& w : works()) {
    if (w.name == name && w.compute == arithmetic) {
      if (gpus < 1) {
        std::puts("skipped: needs a GPU, and none is there");
        return 77;
      }
      measure_all(w, gpus, seconds);
      return 0;
    }
  }
  return wrong_use();
} catch (std::exception const& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
