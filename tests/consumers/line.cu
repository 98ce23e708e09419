// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Fits y = a x + b on one GPU, and says whether it came out right. Exit status 77: there is no GPU.

#include <lockstep/lockstep.cuh>

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <span>
#include <tuple>
#include <vector>

/// Adds one thread block's part of the loss and of the gradients.
__global__ void differentiate(float const* a, float const* b, float* gradient_a, float* gradient_b, float const* x,
                              float const* y, std::size_t count, lockstep::cuda::weight weight, float* loss) {
  for (std::size_t i = threadIdx.x; i < count; i += blockDim.x) {
    float const error = *a * x[i] + *b - y[i];
    atomicAdd(loss, weight * error * error / 2);
    atomicAdd(gradient_a, weight * error * x[i]);
    atomicAdd(gradient_b, weight * error);
  }
}

class line {
 public:
  using backend = lockstep::cuda;
  using batch = std::tuple<std::span<float const>, std::span<float const>>;  // x, y, in device memory

  explicit line(lockstep::device_context<lockstep::cuda> const& device) : arena_(device, {{"a", {1}}, {"b", {1}}}) {}

  std::span<lockstep::parameter const> parameters() const { return arena_.parameters(); }

  void train(lockstep::train_context<backend>& ctx, batch const& shard) {
    auto const& [x, y] = shard;
    differentiate<<<1, 128, 0, ctx.stream().get()>>>(arena_.value(0), arena_.value(1), arena_.gradient(0), arena_.gradient(1),
                                                     x.data(), y.data(), x.size(), ctx.sample_weight(), ctx.loss());
    lockstep::check(cudaGetLastError());
  }

  /// Parameter `index`, copied to the host.
  float value(std::size_t index) const {
    float value = 0;
    lockstep::check(cudaMemcpy(&value, arena_.value(index), sizeof(float), cudaMemcpyDeviceToHost));
    return value;
  }

 private:
  lockstep::arena<lockstep::cuda> arena_;
};

int main() {
  if (lockstep::cuda::device_count() < 1) {
    std::puts("skipped: no GPU is there");
    return 77;
  }
  constexpr std::size_t count = 101;
  std::vector<float> samples;  // all x, then all y
  for (std::size_t i = 0; i < count; ++i) {
    samples.push_back(static_cast<float>(i) / 100);
  }
  for (std::size_t i = 0; i < count; ++i) {
    samples.push_back(2 - 5 * samples[i]);
  }
  float* memory = nullptr;
  lockstep::check(cudaMalloc(&memory, samples.size() * sizeof(float)));
  lockstep::check(cudaMemcpy(memory, samples.data(), samples.size() * sizeof(float), cudaMemcpyHostToDevice));
  std::span<float const> const x{memory, count};
  std::span<float const> const y{memory + count, count};

  lockstep::trainer<line, lockstep::sgd, lockstep::single_device> trainer{
      lockstep::devices::first(1), [](lockstep::device_context<lockstep::cuda>& device) { return line{device}; },
      lockstep::sgd{.learning_rate = 0.5F, .momentum = 0.9F}};
  for (int step = 0; step < 200; ++step) {
    trainer.step({x, y});
  }
  trainer.synchronize();  // the last update may still run
  float const a = trainer.model().value(0);
  float const b = trainer.model().value(1);
  lockstep::check(cudaFree(memory));
  std::printf("a = %.3f, b = %.3f\n", double{a}, double{b});
  return std::abs(a + 5) < 1e-3F && std::abs(b - 2) < 1e-3F ? 0 : 1;
}
