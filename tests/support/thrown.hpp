// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/error.hpp>

#include <string>

namespace support {

/// The message of what `work` throws, which must be an E; "" when it throws nothing.
template <class E, class Work>
std::string thrown(Work&& work) {
  try {
    work();
  } catch (E const& e) {
    return e.what();
  }
  return {};
}

/// The same of a usage_error: why something is refused.
template <class Work>
std::string refused(Work&& work) {
  return thrown<lockstep::usage_error>(work);
}

/// Why an object's `validate` refuses it; "" where it does not.
template <class T>
std::string refusal(T const& object) {
  return refused([&] { object.validate(); });
}

inline bool contains(std::string const& text, std::string const& part) { return text.find(part) != std::string::npos; }

}  // namespace support
