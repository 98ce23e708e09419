// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/error.hpp>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>

namespace lockstep::optim_detail {

[[noreturn]] inline void refuse_field(char const* field, char const* requirement, float value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", static_cast<double>(value));
  refuse(std::string(field) + " must " + requirement + ", and is " + text);
}

/// Throws usage_error naming `field` unless 0 <= value < infinity.
inline void expects_not_negative(char const* field, float value) {
  if (!(value >= 0 && std::isfinite(value))) {
    refuse_field(field, "be finite and not negative", value);
  }
}
/// Throws usage_error naming `field` unless 0 < value < infinity.
inline void expects_positive(char const* field, float value) {
  if (!(value > 0 && std::isfinite(value))) {
    refuse_field(field, "be finite and greater than 0", value);
  }
}
/// Throws usage_error naming `field` unless 0 <= value < 1.
inline void expects_fraction(char const* field, float value) {
  if (!(value >= 0 && value < 1)) {
    refuse_field(field, "lie in [0, 1)", value);
  }
}
/// Throws usage_error naming `field` unless 0 <= value <= 1.
inline void expects_part(char const* field, float value) {
  if (!(value >= 0 && value <= 1)) {
    refuse_field(field, "lie in [0, 1]", value);
  }
}
/// Throws usage_error naming `field` unless 0 < value <= 1.
inline void expects_positive_part(char const* field, float value) {
  if (!(value > 0 && value <= 1)) {
    refuse_field(field, "lie in (0, 1]", value);
  }
}
/// Throws usage_error naming `field` unless value >= 1.
inline void expects_at_least_one(char const* field, std::uint64_t value) {
  if (value == 0) {
    refuse(std::string(field) + " must be at least 1, and is 0");
  }
}

}  // namespace lockstep::optim_detail
