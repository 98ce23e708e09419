// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "matrix_product.hpp"

#include <lockstep/backend/cuda.cuh>
#include <lockstep/core/error.hpp>
#include <lockstep/core/float16.hpp>
#include <lockstep/core/memory.hpp>

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <source_location>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace examples {

/// A call of cuBLASLt failed, or it has no algorithm for a product.
class cublas_error : public lockstep::error {
 public:
  cublas_error(cublasStatus_t code, std::string const& message) : error(message), code_(code) {}

  [[nodiscard]] cublasStatus_t code() const noexcept { return code_; }

 private:
  cublasStatus_t code_;
};

using lockstep::check;

/// Throws cublas_error, with the place of the call, unless `code` is success.
inline void check(cublasStatus_t code, std::source_location place = std::source_location::current()) {
  if (code != CUBLAS_STATUS_SUCCESS) [[unlikely]] {
    throw cublas_error(code, std::string("cuBLASLt: ") + cublasLtGetStatusName(code) + ", at " + place.file_name() + ":" +
                                 std::to_string(place.line()));
  }
}

namespace cublaslt_detail {

struct destroy {
  void operator()(cublasLtHandle_t handle) const noexcept { static_cast<void>(cublasLtDestroy(handle)); }
  void operator()(cublasLtMatmulDesc_t handle) const noexcept { static_cast<void>(cublasLtMatmulDescDestroy(handle)); }
  void operator()(cublasLtMatrixLayout_t handle) const noexcept { static_cast<void>(cublasLtMatrixLayoutDestroy(handle)); }
  void operator()(cublasLtMatmulPreference_t handle) const noexcept {
    static_cast<void>(cublasLtMatmulPreferenceDestroy(handle));
  }
  void operator()(cudaEvent_t handle) const noexcept { static_cast<void>(cudaEventDestroy(handle)); }
};
template <class Handle>
using owned = std::unique_ptr<std::remove_pointer_t<Handle>, destroy>;

template <class T>
inline constexpr cudaDataType_t data_type = std::is_same_v<T, float>               ? CUDA_R_32F
                                            : std::is_same_v<T, lockstep::float16> ? CUDA_R_16F
                                                                                   : CUDA_R_16BF;

}  // namespace cublaslt_detail

/// The largest power of two, at most 256, that `address` is a multiple of.
inline std::uint32_t alignment_of(void const* address) {
  auto const bits = reinterpret_cast<std::uintptr_t>(address) | 256U;
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

/// What is done to each row of a product before it is stored.
enum class epilogue : std::uint8_t { none, bias, relu_bias };

/// Which of the algorithms that cuBLASLt proposes is taken.
enum class algorithm_choice : std::uint8_t {
  /// The fastest of up to eight, tried when a shape is first seen. Two runs may choose differently, and differ in rounding.
  timed,
  /// The first: the same in every run on the same GPU and libraries.
  first,
};

/// C = A B + beta C for row-major matrices without gaps: A is {m, k} (stored {k, m} when transposed), B {k, n} (stored {n, k}
/// when transposed), C {m, n}.
struct product_shape {
  transposed ta = transposed::no;
  transposed tb = transposed::no;
  std::size_t m = 0;
  std::size_t n = 0;
  std::size_t k = 0;
  cudaDataType_t factors = CUDA_R_32F;  // of A and B
  cudaDataType_t result = CUDA_R_32F;   // of C
  /// What the addresses of A, B and C will be multiples of, in bytes.
  std::uint32_t a_alignment = 256;
  std::uint32_t b_alignment = 256;
  std::uint32_t c_alignment = 256;
  examples::epilogue epilogue = epilogue::none;

  friend bool operator==(product_shape const&, product_shape const&) = default;
};

/// A product of which everything is known but its operands.
class planned_product {
 public:
  [[nodiscard]] product_shape const& shape() const noexcept { return shape_; }

 private:
  friend class matrix_products;

  product_shape shape_;
  cublaslt_detail::owned<cublasLtMatmulDesc_t> operation_;
  cublaslt_detail::owned<cublasLtMatrixLayout_t> a_, b_, c_;
  cublasLtMatmulAlgo_t algorithm_;
};

/// Plans and runs matrix products through cuBLASLt on one device. Accumulates in f32.
/// Thread safety: one thread at a time, and one stream at a time, for products share a workspace.
class matrix_products {
 public:
  static constexpr std::size_t workspace_bytes = std::size_t{32} << 20;

  /// Requires: `device` is the current one, and outlives this object. Throws cublas_error, out_of_memory.
  matrix_products(lockstep::cuda::device& device, cublasComputeType_t compute, algorithm_choice choice)
      : device_(device),
        compute_(compute),
        choice_(choice),
        workspace_(device.allocate(workspace_bytes, lockstep::memory_use::staging)) {
    cublasLtHandle_t made = nullptr;
    check(cublasLtCreate(&made));
    library_.reset(made);
  }

  /// Plans a product; `bias`, n elements of C's type, is null without an epilogue. `found` says whether there is an algorithm;
  /// without one the plan can't be run. Synchronizes: where algorithms are timed, the host waits for a shape not yet seen.
  struct planning {
    planned_product product;
    bool found = false;
  };
  [[nodiscard]] planning plan(product_shape const& shape, void const* bias = nullptr) {
    planning result{describe(shape, bias), true};
    for (chosen const& earlier : chosen_) {
      if (earlier.shape == shape) {
        result.product.algorithm_ = earlier.algorithm;
        return result;
      }
    }
    cublaslt_detail::owned<cublasLtMatmulPreference_t> const preference = preferences(shape);
    cublasLtMatmulHeuristicResult_t candidates[most_candidates] = {};
    int count = 0;
    planned_product& p = result.product;
    // It says "not supported" where there is none, and has nothing else to say.
    cublasStatus_t const status = cublasLtMatmulAlgoGetHeuristic(
        library_.get(), p.operation_.get(), p.a_.get(), p.b_.get(), p.c_.get(), p.c_.get(), preference.get(),
        choice_ == algorithm_choice::timed ? most_candidates : 1, candidates, &count);
    if (status != CUBLAS_STATUS_SUCCESS && status != CUBLAS_STATUS_NOT_SUPPORTED) {
      check(status);
    }
    result.found = status == CUBLAS_STATUS_SUCCESS && count > 0;
    if (result.found) {
      p.algorithm_ = candidates[0].algo;
      if (count > 1) {
        p.algorithm_ = fastest(p, candidates, count);
      }
      chosen_.push_back({shape, p.algorithm_});
    }
    return result;
  }

  /// The same, where a missing algorithm is an error. Throws cublas_error.
  [[nodiscard]] planned_product require(product_shape const& shape) {
    planning made = plan(shape);
    if (!made.found) {
      throw cublas_error(CUBLAS_STATUS_NOT_SUPPORTED,
                         std::string("cuBLASLt has no algorithm for a product of {") + std::to_string(shape.m) + ", " +
                             std::to_string(shape.k) + "} and {" + std::to_string(shape.k) + ", " + std::to_string(shape.n) +
                             "}" + (shape.factors != CUDA_R_32F ? " in 16 bits: take widths that are multiples of 8" : ""));
    }
    return std::move(made.product);
  }

  /// Enqueues C = A B + beta C, with the epilogue planned. With beta = 0, C is not read. Neither allocates nor synchronises.
  void run(lockstep::cuda::stream_ref stream, planned_product const& p, void const* a, void const* b, float beta,
           void* c) const {
    check(enqueue(stream, p, p.algorithm_, a, b, beta, c));
  }

 private:
  static constexpr int most_candidates = 8;

  struct chosen {
    product_shape shape;
    cublasLtMatmulAlgo_t algorithm;
  };

  // cuBLASLt speaks of column-major matrices. A row-major {m, n} is a column-major {n, m}, so C' = B' A': their first factor is
  // our second.
  [[nodiscard]] cublasStatus_t enqueue(lockstep::cuda::stream_ref stream, planned_product const& p,
                                       cublasLtMatmulAlgo_t const& algorithm, void const* a, void const* b, float beta,
                                       void* c) const {
    float const alpha = 1;
    return cublasLtMatmul(library_.get(), p.operation_.get(), &alpha, b, p.a_.get(), a, p.b_.get(), &beta, c, p.c_.get(), c,
                          p.c_.get(), &algorithm, workspace_.data(), workspace_.bytes(), stream.get());
  }

  template <class Attribute, class T>
  static void set(cublasLtMatmulDesc_t operation, Attribute attribute, T const& value) {
    check(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value));
  }

  static cublaslt_detail::owned<cublasLtMatrixLayout_t> layout(cudaDataType_t type, std::size_t rows, std::size_t columns) {
    cublasLtMatrixLayout_t made = nullptr;
    check(cublasLtMatrixLayoutCreate(&made, type, columns, rows, static_cast<std::int64_t>(columns)));
    return cublaslt_detail::owned<cublasLtMatrixLayout_t>{made};
  }

  [[nodiscard]] planned_product describe(product_shape const& shape, void const* bias) const {
    planned_product p;
    p.shape_ = shape;
    cublasLtMatmulDesc_t made = nullptr;
    check(cublasLtMatmulDescCreate(&made, compute_, CUDA_R_32F));
    p.operation_.reset(made);
    auto const side = [](transposed t) { return t == transposed::yes ? CUBLAS_OP_T : CUBLAS_OP_N; };
    set(made, CUBLASLT_MATMUL_DESC_TRANSA, side(shape.tb));
    set(made, CUBLASLT_MATMUL_DESC_TRANSB, side(shape.ta));
    if (shape.epilogue != epilogue::none) {
      set(made, CUBLASLT_MATMUL_DESC_EPILOGUE,
          shape.epilogue == epilogue::bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_RELU_BIAS);
      set(made, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    }
    bool const b_turned = shape.tb == transposed::yes;
    bool const a_turned = shape.ta == transposed::yes;
    p.a_ = layout(shape.factors, b_turned ? shape.n : shape.k, b_turned ? shape.k : shape.n);
    p.b_ = layout(shape.factors, a_turned ? shape.k : shape.m, a_turned ? shape.m : shape.k);
    p.c_ = layout(shape.result, shape.m, shape.n);
    return p;
  }

  static cublaslt_detail::owned<cublasLtMatmulPreference_t> preferences(product_shape const& shape) {
    cublasLtMatmulPreference_t made = nullptr;
    check(cublasLtMatmulPreferenceCreate(&made));
    cublaslt_detail::owned<cublasLtMatmulPreference_t> preference{made};
    auto const prefer = [made](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      check(cublasLtMatmulPreferenceSetAttribute(made, attribute, &value, sizeof value));
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, shape.b_alignment);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, shape.a_alignment);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, shape.c_alignment);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, shape.c_alignment);
    return preference;
  }

  /// Tries candidates in the order that cuBLASLt likes them in, on memory of its own, for a quarter of a second at most.
  [[nodiscard]] cublasLtMatmulAlgo_t fastest(planned_product const& p, cublasLtMatmulHeuristicResult_t const* candidates,
                                             int count) const {
    product_shape const& s = p.shape_;
    auto const bytes = [](cudaDataType_t type, std::size_t elements) { return elements * (type == CUDA_R_32F ? 4 : 2); };
    lockstep::cuda::stream_ref const stream = device_.stream();
    auto const scratch = [&](std::size_t size) {
      lockstep::cuda::buffer memory = device_.allocate(size, lockstep::memory_use::staging);
      lockstep::cuda::zero(stream, memory.data(), size);
      return memory;
    };
    lockstep::cuda::buffer const a = scratch(bytes(s.factors, s.m * s.k));
    lockstep::cuda::buffer const b = scratch(bytes(s.factors, s.k * s.n));
    lockstep::cuda::buffer const c = scratch(bytes(s.result, s.m * s.n));
    cublaslt_detail::owned<cudaEvent_t> const begin = timer();
    cublaslt_detail::owned<cudaEvent_t> const end = timer();

    int const rounds = static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k) < 1e10 ? 10 : 3;
    int best = 0;
    float best_time = (std::numeric_limits<float>::max)();
    float spent = 0;
    for (int i = 0; i < count && spent < 250; ++i) {
      if (candidates[i].state != CUBLAS_STATUS_SUCCESS ||
          enqueue(stream, p, candidates[i].algo, a.data(), b.data(), 0, c.data()) != CUBLAS_STATUS_SUCCESS) {
        continue;
      }
      check(cudaEventRecord(begin.get(), stream.get()));
      for (int round = 0; round < rounds; ++round) {
        check(enqueue(stream, p, candidates[i].algo, a.data(), b.data(), 0, c.data()));
      }
      check(cudaEventRecord(end.get(), stream.get()));
      check(cudaEventSynchronize(end.get()));
      float milliseconds = 0;
      check(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()));
      spent += milliseconds;
      if (milliseconds < best_time) {
        best = i;
        best_time = milliseconds;
      }
    }
    return candidates[best].algo;
  }

  static cublaslt_detail::owned<cudaEvent_t> timer() {
    cudaEvent_t made = nullptr;
    check(cudaEventCreate(&made));
    return cublaslt_detail::owned<cudaEvent_t>{made};
  }

  lockstep::cuda::device& device_;
  cublasComputeType_t compute_;
  algorithm_choice choice_;
  lockstep::cuda::buffer workspace_;
  cublaslt_detail::owned<cublasLtHandle_t> library_;
  std::vector<chosen> chosen_;
};

}  // namespace examples
