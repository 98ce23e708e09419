// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/error.hpp>

#include <nccl.h>

#include <source_location>
#include <string>

namespace lockstep {

/// A call of NCCL failed.
class nccl_error : public error {
 public:
  nccl_error(ncclResult_t code, std::string const& message) : error(message), code_(code) {}

  [[nodiscard]] ncclResult_t code() const noexcept { return code_; }

 private:
  ncclResult_t code_;
};

namespace comm_detail {

/// Whether a call succeeded, or goes on by itself, as those of a non-blocking communicator may.
[[nodiscard]] inline bool accepted(ncclResult_t code) noexcept { return code == ncclSuccess || code == ncclInProgress; }

/// "NCCL: what the code means; what NCCL said last"
[[nodiscard]] inline std::string explain(ncclResult_t code) {
  std::string text = std::string("NCCL: ") + ncclGetErrorString(code);
  char const* const said = ncclGetLastError(nullptr);
  if (said != nullptr && *said != '\0') {
    text += std::string("; ") + said;
    text.erase(text.find_last_not_of(" \n") + 1);
  }
  return text;
}

}  // namespace comm_detail

/// Throws nccl_error, with the place of the call, unless `code` is success or says that a non-blocking call goes on.
inline void check(ncclResult_t code, std::source_location place = std::source_location::current()) {
  if (!comm_detail::accepted(code)) [[unlikely]] {
    throw nccl_error(code, comm_detail::explain(code) + ", at " + place.file_name() + ":" + std::to_string(place.line()));
  }
}

}  // namespace lockstep
