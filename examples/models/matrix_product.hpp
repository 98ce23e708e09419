// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#if defined(LOCKSTEP_EXAMPLE_BLAS)
#include <cblas.h>
#endif

namespace examples {

enum class transposed : bool { no, yes };

/// C = A B + beta C for row-major matrices: A is {m, k} (stored {k, m} when transposed), B {k, n} (stored {n, k}), C {m, n}.
/// With beta = 0, C is not read. Through a BLAS where the build found one, else a plain loop; one thread either way.
inline void matrix_product(transposed ta, transposed tb, std::size_t m, std::size_t n, std::size_t k, float const* a,
                           float const* b, float beta, float* c) {
#if defined(LOCKSTEP_EXAMPLE_BLAS)
  auto const side = [](transposed t) { return t == transposed::yes ? CblasTrans : CblasNoTrans; };
  auto const stride = [](transposed t, std::size_t plain, std::size_t other) {
    return static_cast<int>(t == transposed::yes ? other : plain);
  };
  cblas_sgemm(CblasRowMajor, side(ta), side(tb), static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), 1.0F, a,
              stride(ta, k, m), b, stride(tb, n, k), beta, c, static_cast<int>(n));
#else
  auto const at = [](transposed t, std::size_t row, std::size_t column, std::size_t rows, std::size_t columns) {
    return t == transposed::yes ? column * rows + row : row * columns + column;
  };
  for (std::size_t i = 0; i < m; ++i) {
    float* const row = c + i * n;
    for (std::size_t j = 0; j < n; ++j) {
      row[j] = beta == 0 ? 0.0F : beta * row[j];
    }
    if (tb == transposed::no) {  // rows of B and C are contiguous
      for (std::size_t p = 0; p < k; ++p) {
        float const x = a[at(ta, i, p, m, k)];
        float const* const line = b + p * n;
        for (std::size_t j = 0; j < n; ++j) {
          row[j] += x * line[j];
        }
      }
    } else {
      for (std::size_t j = 0; j < n; ++j) {
        float sum = 0;
        for (std::size_t p = 0; p < k; ++p) {
          sum += a[at(ta, i, p, m, k)] * b[j * k + p];
        }
        row[j] += sum;
      }
    }
  }
#endif
}

/// Ranks are threads already, so the BLAS gets one each. Call once, before the first product.
inline void one_thread_a_product() {
#if defined(LOCKSTEP_EXAMPLE_BLAS) && defined(OPENBLAS_VERSION)
  openblas_set_num_threads(1);
#endif
}

}  // namespace examples
