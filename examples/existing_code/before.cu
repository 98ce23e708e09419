// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// A small trainer in plain CUDA, for one GPU: a perceptron with one hidden layer learns y = sin(A x). It has what such programs
// have: its own main, one arena of parameters and one of gradients, kernels, a stream, AdamW, and a loop over steps.

#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#define CHECK(call)                                                                        \
  do {                                                                                     \
    cudaError_t const status = (call);                                                     \
    if (status != cudaSuccess) {                                                           \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(status)); \
      std::exit(1);                                                                        \
    }                                                                                      \
  } while (0)

constexpr int INPUTS = 8, HIDDEN = 128, OUTPUTS = 4, STEPS = 1000;
constexpr size_t SAMPLES = 65536, BATCH = 256;
// Where tensors begin in the arenas: weights {out, in}, biases {out}.
constexpr size_t W1 = 0, B1 = W1 + HIDDEN * INPUTS, W2 = B1 + HIDDEN, B2 = W2 + OUTPUTS * HIDDEN, COUNT = B2 + OUTPUTS;

__global__ void linear(float* y, const float* x, const float* w, const float* b, int n, int in, int out, bool relu) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, o = i % out;
  if (i < n * out) {
    float sum = b[o];
    for (int k = 0; k < in; ++k)
      sum += w[o * in + k] * x[i / out * in + k];
    y[i] = relu && sum < 0 ? 0 : sum;
  }
}

__global__ void mse(float* dy, float* loss, const float* y, const float* target, int count, float scale) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) {
    float error = y[i] - target[i];
    dy[i] = scale * error;
    atomicAdd(loss, scale * error * error / 2);
  }
}

__global__ void weight_gradient(float* dw, float* db, const float* dy, const float* x, int n, int in, int out) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, o = i / in;
  if (i < out * in) {
    for (int s = 0; s < n; ++s)
      dw[i] += dy[s * out + o] * x[s * in + i % in];
    if (i % in == 0)
      for (int s = 0; s < n; ++s)
        db[o] += dy[s * out + o];
  }
}

__global__ void relu_input_gradient(float* dx, const float* dy, const float* w, const float* x, int n, int in, int out) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n * in) {
    float sum = 0;
    for (int o = 0; o < out; ++o)
      sum += dy[i / in * out + o] * w[o * in + i % in];
    dx[i] = x[i] > 0 ? sum : 0;
  }
}

__global__ void adamw(float* value, const float* gradient, float* m, float* v, int count, float rate, float decay, int t) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) {
    float g = gradient[i];
    m[i] = 0.9f * m[i] + 0.1f * g;
    v[i] = 0.999f * v[i] + 0.001f * g * g;
    float m_hat = m[i] / (1 - powf(0.9f, t)), v_hat = v[i] / (1 - powf(0.999f, t));
    value[i] -= rate * (m_hat / (sqrtf(v_hat) + 1e-8f) + decay * value[i]);
  }
}

unsigned blocks(size_t threads) { return static_cast<unsigned>((threads + 255) / 256); }

float* to_device(const std::vector<float>& values) {
  float* memory = nullptr;
  CHECK(cudaMalloc(&memory, values.size() * sizeof(float)));
  CHECK(cudaMemcpy(memory, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice));
  return memory;
}

struct AdamW {
  float* params;
  const float* grads;
  float *m, *v;
  cudaStream_t stream;
  int t = 0;

  void step() {
    adamw<<<blocks(COUNT), 256, 0, stream>>>(params, grads, m, v, COUNT, 3e-3f, 0.01f, ++t);
    CHECK(cudaGetLastError());
  }
};

void train(int device) {
  CHECK(cudaSetDevice(device));
  cudaStream_t stream = nullptr;
  CHECK(cudaStreamCreate(&stream));

  std::mt19937 random(1);
  auto fill = [&](float* first, float* last, float most) {
    for (; first != last; ++first)
      *first = most * (static_cast<float>(random()) / 2147483648.0f - 1);
  };
  std::vector<float> a(OUTPUTS * INPUTS), x_values(SAMPLES * INPUTS), y_values(SAMPLES * OUTPUTS), start(COUNT);
  fill(a.data(), a.data() + a.size(), 1.5f);
  fill(x_values.data(), x_values.data() + x_values.size(), 1);
  for (size_t i = 0; i < y_values.size(); ++i) {
    float sum = 0;
    for (int k = 0; k < INPUTS; ++k)
      sum += a[i % OUTPUTS * INPUTS + k] * x_values[i / OUTPUTS * INPUTS + k];
    y_values[i] = std::sin(sum);
  }
  fill(&start[W1], &start[B1], std::sqrt(6.0f / INPUTS));
  fill(&start[W2], &start[B2], std::sqrt(6.0f / HIDDEN));

  std::vector<float> zeros(COUNT + 1), scratch(BATCH * HIDDEN);
  float *inputs = to_device(x_values), *targets = to_device(y_values);
  float *params = to_device(start), *grads = to_device(zeros);  // and behind the gradients the loss
  float *h = to_device(scratch), *dh = to_device(scratch), *y = to_device(scratch), *dy = to_device(scratch);
  AdamW optimizer{params, grads, to_device(zeros), to_device(zeros), stream};

  std::mt19937 order(100 + device);
  float loss = 0;
  for (int step = 1; step <= STEPS; ++step) {
    size_t first = order() % (SAMPLES / BATCH) * BATCH;
    const float *x = inputs + first * INPUTS, *target = targets + first * OUTPUTS;
    CHECK(cudaMemsetAsync(grads, 0, (COUNT + 1) * sizeof(float), stream));

    linear<<<blocks(BATCH * HIDDEN), 256, 0, stream>>>(h, x, params + W1, params + B1, BATCH, INPUTS, HIDDEN, true);
    linear<<<blocks(BATCH * OUTPUTS), 256, 0, stream>>>(y, h, params + W2, params + B2, BATCH, HIDDEN, OUTPUTS, false);
    mse<<<blocks(BATCH * OUTPUTS), 256, 0, stream>>>(dy, grads + COUNT, y, target, BATCH * OUTPUTS, 1.0f / BATCH);

    weight_gradient<<<blocks(OUTPUTS * HIDDEN), 256, 0, stream>>>(grads + W2, grads + B2, dy, h, BATCH, HIDDEN, OUTPUTS);
    relu_input_gradient<<<blocks(BATCH * HIDDEN), 256, 0, stream>>>(dh, dy, params + W2, h, BATCH, HIDDEN, OUTPUTS);
    weight_gradient<<<blocks(HIDDEN * INPUTS), 256, 0, stream>>>(grads + W1, grads + B1, dh, x, BATCH, INPUTS, HIDDEN);

    CHECK(cudaGetLastError());
    optimizer.step();
    if (step % 100 == 0) {
      CHECK(cudaMemcpy(&loss, grads + COUNT, sizeof(float), cudaMemcpyDeviceToHost));
      std::printf("GPU %d, step %4d: loss %.4f\n", device, step, loss);
    }
  }
  if (!(loss < 0.1f)) {
    std::fprintf(stderr, "it has not learned: the loss began at 1.8, and is %.4f\n", loss);
    std::exit(1);
  }
}

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("skipped: needs a GPU, and the CUDA runtime sees none\n");
    return 77;
  }
  train(0);
}
