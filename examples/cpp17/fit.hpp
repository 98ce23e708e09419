// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a C++17 program sees of its training code: nothing of lockstep, nothing of C++20.

#include <memory>
#include <utility>
#include <vector>

/// Fits y = slope x + offset by gradient descent on several devices.
class line_fit {
 public:
  explicit line_fit(int devices);
  ~line_fit();

  /// One step over all points; returns the loss before it. Throws std::runtime_error.
  double step(std::vector<float> const& x, std::vector<float> const& y);

  /// Slope and offset.
  std::pair<float, float> result() const;

 private:
  struct state;
  std::unique_ptr<state> state_;
};
