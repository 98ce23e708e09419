// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Fits y = a x + b on all GPUs, which add their gradients over NCCL, and says whether it came out right. Exit status 77: there
// is no GPU.

#include <lockstep/comm/nccl.cuh>
#include <lockstep/lockstep.cuh>

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <span>
#include <tuple>

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
  using batch = std::tuple<std::span<float const>, std::span<float const>>;  // x, y, where every GPU can read them

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
    lockstep::check(cudaMemcpy(&value, arena_.value(index), sizeof(float), cudaMemcpyDefault));
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
  float* memory = nullptr;  // of the host, and every GPU reads it: all x, then all y
  lockstep::check(cudaMallocHost(&memory, 2 * count * sizeof(float)));
  for (std::size_t i = 0; i < count; ++i) {
    memory[i] = static_cast<float>(i) / 100;
    memory[count + i] = 2 - 5 * memory[i];
  }
  std::span<float const> const x{memory, count};
  std::span<float const> const y{memory + count, count};
  float a = 0;
  float b = 0;
  {
    lockstep::trainer<line, lockstep::sgd, lockstep::peer_all_reduce<lockstep::nccl>> trainer{
        lockstep::devices::all(), [](lockstep::device_context<lockstep::cuda>& device) { return line{device}; },
        lockstep::sgd{.learning_rate = 0.5F, .momentum = 0.9F}};
    for (int step = 0; step < 200; ++step) {
      trainer.step({x, y});
    }
    trainer.synchronize();  // the last update may still run
    a = trainer.model().value(0);
    b = trainer.model().value(1);
    std::printf("%d GPUs: ", trainer.size());
  }
  lockstep::check(cudaFreeHost(memory));
  std::printf("a = %.3f, b = %.3f\n", static_cast<double>(a), static_cast<double>(b));
  return std::abs(a + 5) < 1e-3F && std::abs(b - 2) < 1e-3F ? 0 : 1;
}
