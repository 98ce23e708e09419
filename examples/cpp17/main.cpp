// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// A program that stays C++17 and trains with lockstep all the same.

#include "fit.hpp"

#include <cmath>
#include <cstdio>
#include <vector>

static_assert(__cplusplus < 202002L, "this file is compiled as C++17");

int main() {
  std::vector<float> x;
  std::vector<float> y;
  for (int i = 0; i < 101; ++i) {
    x.push_back(0.01F * static_cast<float>(i));
    y.push_back(3 * x.back() - 1);
  }
  line_fit fit{4};
  for (int k = 0; k < 200; ++k) {
    fit.step(x, y);
  }
  auto const [slope, offset] = fit.result();
  std::printf("slope = %.3f, offset = %.3f\n", static_cast<double>(slope), static_cast<double>(offset));
  return std::abs(slope - 3) < 1e-3F && std::abs(offset + 1) < 1e-3F ? 0 : 1;
}
