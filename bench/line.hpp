// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdio>
#include <string>
#include <string_view>

namespace bench {

/// One JSON object in one line of standard output. Names and texts hold no characters that JSON escapes.
class line {
 public:
  line& add(std::string_view name, std::string_view text) { return put(name, '"' + std::string{text} + '"'); }
  line& add(std::string_view name, char const* text) { return add(name, std::string_view{text}); }
  line& add(std::string_view name, bool value) { return put(name, value ? "true" : "false"); }
  line& add(std::string_view name, std::integral auto value) { return put(name, std::to_string(value)); }
  line& add(std::string_view name, double value) {
    char digits[32];
    std::snprintf(digits, sizeof digits, "%.6g", value);
    return put(name, digits);
  }
  line& add(std::string_view name, line const& inner) { return put(name, inner.text()); }

  [[nodiscard]] std::string text() const { return '{' + fields_ + '}'; }
  void print() const {
    std::printf("%s\n", text().c_str());
    std::fflush(stdout);
  }

 private:
  line& put(std::string_view name, std::string const& value) {
    fields_ += (fields_.empty() ? "\"" : ", \"") + std::string{name} + "\": " + value;
    return *this;
  }

  std::string fields_;
};

}  // namespace bench
