// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cublaslt.cuh"
#include "layers.hpp"

#include <lockstep/arena.hpp>
#include <lockstep/backend/cuda.cuh>
#include <lockstep/core/batch.hpp>
#include <lockstep/core/context.hpp>
#include <lockstep/core/error.hpp>
#include <lockstep/core/float16.hpp>
#include <lockstep/core/memory.hpp>
#include <lockstep/core/options.hpp>
#include <lockstep/core/parameter.hpp>

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace examples {

/// What a perceptron's products are made of. All of them add up in f32.
enum class compute : std::uint8_t {
  /// Values and activations in f32, multiplied in f32.
  f32,
  /// The same in memory; products round their factors to 10 bits of mantissa, for tensor cores.
  tf32,
  /// Values and activations in bf16.
  bf16,
  /// Values and activations in f16. Derivatives have its range too, and need a loss scale.
  f16,
};

/// What values and activations are stored as.
template <compute Mode>
using stored_as = std::conditional_t<Mode == compute::bf16, lockstep::bfloat16,
                                     std::conditional_t<Mode == compute::f16, lockstep::float16, float>>;

namespace perceptron_kernels {

/// Some elements that are loaded and stored at once.
template <class T, int Width>
struct alignas(sizeof(T) * Width) pack {
  T element[Width];
};
template <class T, int Width>
__device__ pack<T, Width> load(T const* from) {
  return *reinterpret_cast<pack<T, Width> const*>(from);
}
template <class T, int Width>
__device__ void store(T* to, pack<T, Width> const& elements) {
  *reinterpret_cast<pack<T, Width>*>(to) = elements;
}

/// Calls `launch` with how many elements a thread takes at once, as an integral constant: 16 bytes where rows allow it.
/// Requires: the first row lies at a multiple of 16 bytes.
template <class T, class Launch>
void with_width(std::size_t columns, Launch&& launch) {
  constexpr int most = 16 / sizeof(T);
  if (columns % most == 0) {
    launch(std::integral_constant<int, most>{});
  } else {
    launch(std::integral_constant<int, 1>{});
  }
  lockstep::check(cudaGetLastError());
}

/// Combines one value of each thread of a block of whole warps, in an order that depends on the block's size only. Every thread
/// gets the result.
template <class T, class Combine>
__device__ T over_block(T value, Combine combine) {
  __shared__ T parts[32];
  for (int offset = 16; offset > 0; offset /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffU, value, offset));
  }
  if (threadIdx.x % 32 == 0) {
    parts[threadIdx.x / 32] = value;
  }
  __syncthreads();
  value = parts[0];
  for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) {
    value = combine(value, parts[warp]);
  }
  __syncthreads();
  return value;
}

/// True in every thread of the block that arrives last of `blocks`, which then sees what the others wrote before. `arrived` is
/// zero before and afterwards. What was written must be read around the L1 cache.
__device__ inline bool arrives_last(unsigned* arrived, unsigned blocks) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0) {
    last = atomicInc(arrived, blocks - 1) == blocks - 1;
  }
  __syncthreads();
  __threadfence();
  return last;
}

/// The largest element of a row, and the sum of exp(element - largest).
struct row_sum {
  float largest;
  float sum;
};

/// One block a row.
template <int Width, class T>
__device__ row_sum sum_row(T const* row, std::size_t columns) {
  float largest = -INFINITY;
  for (std::size_t c = threadIdx.x * Width; c < columns; c += blockDim.x * Width) {
    pack<T, Width> const x = load<T, Width>(row + c);
    for (int e = 0; e < Width; ++e) {
      largest = fmaxf(largest, static_cast<float>(x.element[e]));
    }
  }
  largest = over_block(largest, [](float a, float b) { return fmaxf(a, b); });
  float sum = 0;
  for (std::size_t c = threadIdx.x * Width; c < columns; c += blockDim.x * Width) {
    pack<T, Width> const x = load<T, Width>(row + c);
    for (int e = 0; e < Width; ++e) {
      sum += expf(static_cast<float>(x.element[e]) - largest);
    }
  }
  return {largest, over_block(sum, [](float a, float b) { return a + b; })};
}

/// Softmax cross-entropy, one block a sample: the loss of a sample is log(sum of exp(logits)) - logits[label], and its
/// derivative softmax - one-hot. `rows` {gridDim.x, classes} holds logits, and then the derivatives times `weight`. The block
/// that ends last adds all losses, in the order of samples, times `weight`, to `*loss`, and to `*correct` the number of samples
/// whose label has the largest logit; it finds both in `outcomes` {gridDim.x}. A label outside of the classes makes the loss
/// NaN.
template <int Width, class T>
__global__ void cross_entropy(T* rows, std::int32_t const* labels, std::size_t classes, lockstep::cuda::weight weight,
                              float2* outcomes, unsigned* arrived, float* loss, float* correct) {
  T* const row = rows + blockIdx.x * classes;
  std::int32_t const label = labels[blockIdx.x];
  bool const known = label >= 0 && static_cast<std::size_t>(label) < classes;
  float const chosen = known ? static_cast<float>(row[label]) : NAN;
  row_sum const all = sum_row<Width>(static_cast<T const*>(row), classes);
  float const factor = weight / all.sum;
  for (std::size_t c = threadIdx.x * Width; c < classes; c += blockDim.x * Width) {
    pack<T, Width> x = load<T, Width>(row + c);
    for (int e = 0; e < Width; ++e) {
      float const derivative = factor * expf(static_cast<float>(x.element[e]) - all.largest);
      bool const here = known && c + static_cast<std::size_t>(e) == static_cast<std::size_t>(label);
      x.element[e] = T(here ? derivative - weight : derivative);
    }
    store(row + c, x);
  }
  if (threadIdx.x == 0) {
    outcomes[blockIdx.x] = {all.largest + logf(all.sum) - chosen, chosen >= all.largest ? 1.0F : 0.0F};
  }
  if (arrives_last(arrived, gridDim.x)) {
    double sum = 0;
    double right = 0;
    for (unsigned s = threadIdx.x; s < gridDim.x; s += blockDim.x) {
      float2 const sample = __ldcg(outcomes + s);
      sum += static_cast<double>(sample.x);
      right += static_cast<double>(sample.y);
    }
    auto const add = [](double a, double b) { return a + b; };
    sum = over_block(sum, add);
    right = over_block(right, add);
    if (threadIdx.x == 0) {
      *loss += weight * static_cast<float>(sum);
      *correct += static_cast<float>(right);
    }
  }
}

/// Writes the softmax of each row of `logits` to `probabilities`, one block a row.
template <class T>
__global__ void softmax(T const* logits, std::size_t classes, float* probabilities) {
  T const* const row = logits + blockIdx.x * classes;
  row_sum const all = sum_row<1>(row, classes);
  for (std::size_t c = threadIdx.x; c < classes; c += blockDim.x) {
    probabilities[blockIdx.x * classes + c] = expf(static_cast<float>(row[c]) - all.largest) / all.sum;
  }
}

inline constexpr unsigned strip_threads = 32;  // that lie beside each other in a row
inline constexpr unsigned strip_rows = 8;      // that a block takes at once

/// The gradient of a bias: `gradient` = the sum of the rows of `derivatives` {rows, columns}, added to what is there if
/// `accumulate`. With `outputs`, those of the ReLU below, derivatives go through it first: they become 0 where it gave 0.
/// Block (x, y) takes strip x of the columns, and `rows_a_block` rows from y * rows_a_block. Partial sums {gridDim.y, columns
/// rounded up to whole strips} are added by the last block of a strip, in the order of rows.
template <int Width, class T, class Gradient>
__global__ void __launch_bounds__(strip_threads* strip_rows)
    bias_gradient(T* __restrict__ derivatives, T const* __restrict__ outputs, std::size_t rows, std::size_t columns,
                  std::size_t rows_a_block, float* partial, unsigned* arrived, Gradient* gradient, bool accumulate) {
  constexpr unsigned strip = strip_threads * Width;
  __shared__ float sums[strip_rows][strip];
  std::size_t const column = std::size_t{blockIdx.x} * strip + threadIdx.x * Width;
  std::size_t const end = (blockIdx.y + 1) * rows_a_block < rows ? (blockIdx.y + 1) * rows_a_block : rows;
  float sum[Width] = {};
  if (column < columns) {
#pragma unroll 4
    for (std::size_t row = blockIdx.y * rows_a_block + threadIdx.y; row < end; row += strip_rows) {
      pack<T, Width> x = load<T, Width>(derivatives + row * columns + column);
      if (outputs != nullptr) {
        pack<T, Width> const y = load<T, Width>(outputs + row * columns + column);
        for (int e = 0; e < Width; ++e) {
          x.element[e] = static_cast<float>(y.element[e]) > 0 ? x.element[e] : T(0.0F);
        }
        store(derivatives + row * columns + column, x);
      }
      for (int e = 0; e < Width; ++e) {
        sum[e] += static_cast<float>(x.element[e]);
      }
    }
  }
  for (int e = 0; e < Width; ++e) {  // a thread's neighbours write side by side
    sums[threadIdx.y][e * strip_threads + threadIdx.x] = sum[e];
  }
  __syncthreads();
  unsigned const place = threadIdx.y * strip_threads + threadIdx.x;
  float total = 0;
  if (place < strip) {
    for (unsigned y = 0; y < strip_rows; ++y) {
      total += sums[y][place];
    }
  }
  if (gridDim.y > 1) {
    std::size_t const stride = std::size_t{gridDim.x} * strip;
    float* const mine = partial + std::size_t{blockIdx.x} * strip + place;
    if (place < strip) {
      mine[blockIdx.y * stride] = total;
    }
    if (!arrives_last(arrived + blockIdx.x, gridDim.y)) {
      return;
    }
    if (place < strip) {
      total = 0;
      for (unsigned y = 0; y < gridDim.y; ++y) {
        total += __ldcg(mine + y * stride);
      }
    }
  }
  std::size_t const at = std::size_t{blockIdx.x} * strip + (place % strip_threads) * Width + place / strip_threads;
  if (place < strip && at < columns) {
    gradient[at] = Gradient(accumulate ? static_cast<float>(gradient[at]) + total : total);
  }
}

/// Adds `bias` to each row, and lets the result through a ReLU if asked: for products whose bias cuBLASLt does not take.
template <class T>
__global__ void add_bias(T* rows, std::size_t count, std::size_t columns, T const* bias, bool relu) {
  std::size_t const stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count * columns; i += stride) {
    float const x = static_cast<float>(rows[i]) + static_cast<float>(bias[i % columns]);
    rows[i] = T(relu ? fmaxf(x, 0.0F) : x);
  }
}

template <class From, class To>
__global__ void convert(From const* from, To* to, std::size_t count) {
  std::size_t const stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    to[i] = To(static_cast<float>(from[i]));
  }
}

inline unsigned blocks_for(std::size_t count) {
  return static_cast<unsigned>((std::min)((count + 255) / 256, std::size_t{2048}));
}

}  // namespace perceptron_kernels

/// What a perceptron may be told beyond its shape.
struct perceptron_options {
  algorithm_choice algorithms = algorithm_choice::timed;
};

/// A multi-layer perceptron on one GPU, the same as `mlp` on the host: fully connected layers, ReLU between them, softmax
/// cross-entropy at the end, and for the same seed the same first values.
/// Input: {samples, widths.front()} elements of type Input. Labels: {samples, 1} in [0, widths.back()). Both in device memory.
/// `Gradient` and `Input` are float, or the type of the values; activations have that type. Where inputs have it, the first
/// layer takes the batch as it is.
///
/// When `train` or `infer` first sees a number of samples (and an alignment of the input) it plans products and allocates
/// activations, and keeps both; after that it neither allocates, frees nor synchronises.
template <compute Mode = compute::f32, class Gradient = float, class Input = float>
class perceptron {
 public:
  using value_type = stored_as<Mode>;
  using backend = lockstep::cuda;
  using batch = std::tuple<lockstep::sample_view<Input const>, lockstep::sample_view<std::int32_t const>>;
  using output = lockstep::sample_view<float>;  // one probability a class, in device memory
  static constexpr lockstep::model_promises promises{.honours_accumulate = true, .metrics = {"correct"}};

  static_assert(std::is_same_v<Gradient, float> || std::is_same_v<Gradient, value_type>,
                "gradients are float, or have the type of the values");
  static_assert(std::is_same_v<Input, float> || std::is_same_v<Input, value_type>,
                "inputs are float, or have the type of the values");

  /// Weights are drawn on rank 0, whose values every rank starts from. Throws usage_error without two widths above 0,
  /// out_of_memory, cublas_error.
  perceptron(lockstep::device_context<backend> const& context, std::vector<std::size_t> widths, std::uint64_t seed,
             perceptron_options const& options = {})
      : device_(context.device()),
        widths_(checked(std::move(widths))),
        arena_(context, layer_tensors(widths_)),
        products_(context.device(), Mode == compute::tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                  options.algorithms) {
    std::size_t const widest = *std::max_element(widths_.begin(), widths_.end());
    arrived_ =
        context.allocate((widest / perceptron_kernels::strip_threads + 1) * sizeof(unsigned), lockstep::memory_use::staging);
    lockstep::cuda::zero(context.stream(), arrived_.data(), arrived_.bytes());
    if (context.rank() == lockstep::rank_id{0}) {
      std::mt19937_64 random{seed};
      for (std::size_t layer = 0; layer + 1 < widths_.size(); ++layer) {
        std::vector<float> const drawn = draw_weights(random, widths_[layer], widths_[layer + 1]);
        std::vector<value_type> weights;
        weights.reserve(drawn.size());
        for (float const weight : drawn) {
          weights.push_back(value_type(weight));
        }
        lockstep::cuda::copy(context.stream(), arena_.value(2 * layer), weights.data(), weights.size() * sizeof(value_type));
        context.stream().synchronize();
      }
    }
  }

  std::span<lockstep::parameter const> parameters() const { return arena_.parameters(); }

  void train(lockstep::train_context<backend>& ctx, batch const& shard) {
    lockstep::sample_view<Input const> const& inputs = std::get<0>(shard);
    lockstep::sample_view<std::int32_t const> const& labels = std::get<1>(shard);
    lockstep::expects(labels.width() == 1, "perceptron: one label a sample");
    std::size_t const samples = inputs.count();
    work& w = work_for(inputs);
    plan_backward(w);
    value_type const* const first = forward(ctx.stream(), w, inputs);

    std::size_t const classes = widths_.back();
    value_type* derivatives = w.activations.back();
    perceptron_kernels::with_width<value_type>(classes, [&](auto width) {
      perceptron_kernels::cross_entropy<width()>
          <<<static_cast<unsigned>(samples), row_threads(classes, width()), 0, ctx.stream().get()>>>(
              derivatives, labels.data(), classes, ctx.sample_weight(), w.outcomes, arrived_.template as<unsigned>(),
              ctx.loss(), ctx.metric(0));
    });

    float const keep = ctx.accumulate() ? 1.0F : 0.0F;
    value_type const* outputs = nullptr;  // of the ReLU that derivatives still have to go through
    for (std::size_t layer = widths_.size() - 1; layer-- > 0;) {
      add_rows(ctx, w, derivatives, outputs, layer);
      value_type const* const input = layer == 0 ? first : w.activations[layer - 1];
      products_.run(ctx.stream(), w.weight[layer], derivatives, input, keep, arena_.gradient(2 * layer));
      if (layer != 0) {
        value_type* const below = w.below[layer % 2];
        products_.run(ctx.stream(), w.input[layer], derivatives, arena_.value(2 * layer), 0.0F, below);
        derivatives = below;
        outputs = w.activations[layer - 1];
      }
      ctx.gradient_ready(2 * layer, 2);
    }
  }

  void infer(lockstep::infer_context<backend>& ctx, batch const& shard, output const& probabilities) {
    lockstep::expects(probabilities.width() == widths_.back(), "perceptron: the output has one probability a class");
    work& w = work_for(std::get<0>(shard));
    static_cast<void>(forward(ctx.stream(), w, std::get<0>(shard)));
    std::size_t const classes = widths_.back();
    perceptron_kernels::softmax<<<static_cast<unsigned>(w.samples), row_threads(classes, 1), 0, ctx.stream().get()>>>(
        static_cast<value_type const*>(w.activations.back()), classes, probabilities.data());
    lockstep::check(cudaGetLastError());
  }

 private:
  static constexpr bool converts = !std::is_same_v<Input, value_type>;

  struct key {
    std::size_t samples;
    std::uint32_t alignment;  // of the first layer's input
    friend auto operator<=>(key const&, key const&) = default;
  };

  /// What one number of samples needs.
  struct work {
    std::size_t samples = 0;
    std::uint32_t alignment = 0;
    std::vector<value_type*> activations;  // {samples, out} of each layer; the last one's become derivatives
    value_type* below[2] = {};             // {samples, in}: derivatives by the input of a layer
    value_type* inputs = nullptr;          // {samples, in} of the first layer, where they are converted
    float2* outcomes = nullptr;            // {samples}: the loss, and 1 for a right answer
    float* partial = nullptr;              // of bias gradients
    std::vector<planned_product> forward;  // {samples, out} = {samples, in} {in, out}
    std::vector<char> bias_fused;          // whether it adds the bias too
    std::vector<planned_product> weight;   // {out, in} = {out, samples} {samples, in}
    std::vector<planned_product> input;    // {samples, in} = {samples, out} {out, in}; the first layer's is never run
  };

  static std::vector<std::size_t> checked(std::vector<std::size_t> widths) {
    lockstep::expects(widths.size() >= 2, "perceptron: give at least two widths");
    lockstep::expects(std::find(widths.begin(), widths.end(), std::size_t{0}) == widths.end(),
                      "perceptron: every width is above 0");
    return widths;
  }

  /// Threads for a row: whole warps, 256 at most.
  static unsigned row_threads(std::size_t columns, int width) {
    std::size_t const warps = (columns / static_cast<std::size_t>(width) + 31) / 32;
    return static_cast<unsigned>(32 * (std::min)((std::max)(warps, std::size_t{1}), std::size_t{8}));
  }

  /// How the rows of {rows, columns} are cut to add them up: into about eight blocks for each multiprocessor of a large GPU.
  struct cut {
    unsigned strips;
    unsigned pieces;
    std::size_t rows_a_block;
    std::size_t padded_columns;
  };
  static cut cut_rows(std::size_t rows, std::size_t columns) {
    std::size_t const width = columns % (16 / sizeof(value_type)) == 0 ? 16 / sizeof(value_type) : 1;
    std::size_t const strip = perceptron_kernels::strip_threads * width;
    std::size_t const strips = (columns + strip - 1) / strip;
    std::size_t const at_once = perceptron_kernels::strip_rows;
    std::size_t const even = (rows * strips + 1055) / 1056;
    std::size_t const rows_a_block = (std::max)((even + at_once - 1) / at_once * at_once, 4 * at_once);
    return {static_cast<unsigned>(strips), static_cast<unsigned>((rows + rows_a_block - 1) / rows_a_block), rows_a_block,
            strips * strip};
  }

  /// Puts the bias gradient of `layer` from its derivatives, through the ReLU with these outputs first, where there is one.
  void add_rows(lockstep::train_context<backend>& ctx, work const& w, value_type* derivatives, value_type const* outputs,
                std::size_t layer) {
    std::size_t const columns = widths_[layer + 1];
    cut const c = cut_rows(w.samples, columns);
    perceptron_kernels::with_width<value_type>(columns, [&](auto width) {
      perceptron_kernels::bias_gradient<width()>
          <<<dim3{c.strips, c.pieces}, dim3{perceptron_kernels::strip_threads, perceptron_kernels::strip_rows}, 0,
             ctx.stream().get()>>>(derivatives, outputs, w.samples, columns, c.rows_a_block, w.partial,
                                   arrived_.template as<unsigned>(), arena_.gradient(2 * layer + 1), ctx.accumulate());
    });
  }

  /// Leaves the last layer's output in w.activations.back(). Returns the first layer's input.
  value_type const* forward(lockstep::cuda::stream_ref stream, work const& w, lockstep::sample_view<Input const> inputs) {
    value_type const* first = nullptr;
    if constexpr (converts) {
      std::size_t const count = w.samples * widths_.front();
      perceptron_kernels::convert<<<perceptron_kernels::blocks_for(count), 256, 0, stream.get()>>>(inputs.data(), w.inputs,
                                                                                                   count);
      lockstep::check(cudaGetLastError());
      first = w.inputs;
    } else {
      first = inputs.data();
    }
    value_type const* input = first;
    for (std::size_t layer = 0; layer + 1 < widths_.size(); ++layer) {
      value_type* const output = w.activations[layer];
      products_.run(stream, w.forward[layer], input, arena_.value(2 * layer), 0.0F, output);
      if (w.bias_fused[layer] == 0) {
        std::size_t const columns = widths_[layer + 1];
        perceptron_kernels::add_bias<<<perceptron_kernels::blocks_for(w.samples * columns), 256, 0, stream.get()>>>(
            output, w.samples, columns, static_cast<value_type const*>(arena_.value(2 * layer + 1)),
            layer + 2 < widths_.size());
        lockstep::check(cudaGetLastError());
      }
      input = output;
    }
    return first;
  }

  work& work_for(lockstep::sample_view<Input const> inputs) {
    if (inputs.width() != widths_.front()) {
      lockstep::refuse(std::string("perceptron: inputs have ") + std::to_string(inputs.width()) + " elements a sample, not " +
                       std::to_string(widths_.front()));
    }
    key const wanted{inputs.count(), converts ? 256U : alignment_of(inputs.data())};
    auto found = works_.find(wanted);
    if (found == works_.end()) {
      work made;
      made.samples = wanted.samples;
      made.alignment = wanted.alignment;
      place(made);
      plan_forward(made);
      found = works_.emplace(wanted, std::move(made)).first;
    }
    return found->second;
  }

  /// Places what `w` needs in the newest memory, or in new memory where that is too small. Older memory stays, because recorded
  /// graphs know its addresses.
  void place(work& w) {
    std::size_t bytes = 0;
    std::byte* memory = nullptr;
    auto const take = [&]<class T>(T*& at, std::size_t count) {
      at = reinterpret_cast<T*>(memory + bytes);
      bytes += (count * sizeof(T) + 255) / 256 * 256;
    };
    auto const take_all = [&] {
      bytes = 0;
      std::size_t most_partial = 0;
      std::size_t widest_between = 0;
      w.activations.assign(widths_.size() - 1, nullptr);
      for (std::size_t layer = 0; layer + 1 < widths_.size(); ++layer) {
        take(w.activations[layer], w.samples * widths_[layer + 1]);
        cut const c = cut_rows(w.samples, widths_[layer + 1]);
        most_partial = (std::max)(most_partial, c.pieces * c.padded_columns);
        widest_between = layer == 0 ? 0 : (std::max)(widest_between, widths_[layer]);
      }
      take(w.below[0], w.samples * widest_between);
      take(w.below[1], w.samples * widest_between);
      take(w.inputs, converts ? w.samples * widths_.front() : 0);
      take(w.outcomes, w.samples);
      take(w.partial, most_partial);
    };
    take_all();
    if (memory_.empty() || memory_.back().bytes() < bytes) {
      memory_.push_back(device_.allocate(bytes, lockstep::memory_use::activations));
    }
    memory = memory_.back().template as<std::byte>();
    take_all();
  }

  [[nodiscard]] product_shape shape(transposed ta, transposed tb, std::size_t m, std::size_t n, std::size_t k) const {
    product_shape s;
    s.ta = ta;
    s.tb = tb;
    s.m = m;
    s.n = n;
    s.k = k;
    s.factors = cublaslt_detail::data_type<value_type>;
    s.result = cublaslt_detail::data_type<value_type>;
    return s;
  }

  void plan_forward(work& w) {
    for (std::size_t layer = 0; layer + 1 < widths_.size(); ++layer) {
      product_shape s = shape(transposed::no, transposed::yes, w.samples, widths_[layer + 1], widths_[layer]);
      s.a_alignment = layer == 0 ? w.alignment : 256;
      s.b_alignment = alignment_of(arena_.value(2 * layer));
      // cuBLASLt wants the bias at a multiple of 16 bytes, and has its sum for some products only.
      value_type const* const bias = arena_.value(2 * layer + 1);
      bool fused = false;
      if (alignment_of(bias) >= 16) {
        s.epilogue = layer + 2 < widths_.size() ? epilogue::relu_bias : epilogue::bias;
        matrix_products::planning made = products_.plan(s, bias);
        if (made.found) {
          w.forward.push_back(std::move(made.product));
          fused = true;
        }
        s.epilogue = epilogue::none;
      }
      if (!fused) {
        w.forward.push_back(products_.require(s));
      }
      w.bias_fused.push_back(fused ? 1 : 0);
    }
  }

  void plan_backward(work& w) {
    if (!w.weight.empty()) {
      return;
    }
    for (std::size_t layer = 0; layer + 1 < widths_.size(); ++layer) {
      product_shape weight = shape(transposed::yes, transposed::no, widths_[layer + 1], widths_[layer], w.samples);
      weight.result = cublaslt_detail::data_type<Gradient>;
      weight.b_alignment = layer == 0 ? w.alignment : 256;
      weight.c_alignment = alignment_of(arena_.gradient(2 * layer));
      w.weight.push_back(products_.require(weight));
      if (layer == 0) {
        w.input.emplace_back();
      } else {
        product_shape input = shape(transposed::no, transposed::no, w.samples, widths_[layer], widths_[layer + 1]);
        input.b_alignment = alignment_of(arena_.value(2 * layer));
        w.input.push_back(products_.require(input));
      }
    }
  }

  lockstep::cuda::device& device_;
  std::vector<std::size_t> widths_;
  lockstep::arena<backend, value_type, Gradient> arena_;
  matrix_products products_;
  lockstep::cuda::buffer arrived_;              // how many blocks of a kernel have ended; zero between kernels
  std::vector<lockstep::cuda::buffer> memory_;  // of all works, the largest last
  std::map<key, work> works_;
};

}  // namespace examples
