// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

namespace lockstep {

/// The place of one participant among all that train together, 0 <= rank < world size.
enum class rank_id : int {};

/// The number of a device of this process, as its backend counts them from 0.
enum class device_id : int {};

/// The plain number behind a strong index.
[[nodiscard]] constexpr int number(rank_id rank) noexcept { return static_cast<int>(rank); }
[[nodiscard]] constexpr int number(device_id device) noexcept { return static_cast<int>(device); }

/// What every exception of this library derives from.
class error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;

  [[nodiscard]] char const* what() const noexcept override {
    return located_ != nullptr ? located_->c_str() : std::runtime_error::what();
  }

  /// Puts the place in front of the message: "rank 2 (device 1), step 7: ...". The first place stays, which is the nearest.
  void locate(std::string const& place) {
    if (located_ == nullptr) {
      located_ = std::make_shared<std::string const>(place + ": " + what());
    }
  }

 private:
  std::shared_ptr<std::string const> located_;  // shared, so that copies can't throw
};

/// A precondition does not hold. From constructors and from the entry of a step it comes before any work starts, and nothing
/// has changed; from within a step (a wrong mark, ranks that disagree) it ends the step like any other failure.
class usage_error : public error {
 public:
  using error::error;
};

/// A file or stream does not hold what it should.
class file_error : public error {
 public:
  /// `expected` says what should have stood at byte `offset` of `file`, and what stood there.
  file_error(std::string file, std::uint64_t offset, std::string const& expected)
      : error(file + ", byte " + std::to_string(offset) + ": " + expected), file_(std::move(file)), offset_(offset) {}

  [[nodiscard]] std::string const& file() const noexcept { return file_; }
  [[nodiscard]] std::uint64_t offset() const noexcept { return offset_; }

 private:
  std::string file_;
  std::uint64_t offset_;
};

/// An allocation for one device failed.
class out_of_memory : public error {
 public:
  out_of_memory(device_id device, std::uint64_t bytes, std::string const& use)
      : error(std::string("device ") + std::to_string(number(device)) + ": out of memory allocating " + std::to_string(bytes) +
              " bytes of " + use),
        device_(device),
        bytes_(bytes) {}

  [[nodiscard]] device_id device() const noexcept { return device_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  device_id device_;
  std::uint64_t bytes_;
};

/// A rank did not arrive at an operation within its deadline.
class timeout_error : public error {
 public:
  timeout_error(rank_id missing, std::string const& message) : error(message), missing_(missing) {}

  /// The first rank that had not arrived; -1 where that can't be told.
  [[nodiscard]] rank_id missing() const noexcept { return missing_; }

 private:
  rank_id missing_;
};

/// This rank was healthy, and stopped because another rank failed; the message carries that rank's reason.
class aborted_error : public error {
 public:
  using error::error;
};

/// Code of the user's threw on one rank. The message names rank, device and step and repeats the original message; the
/// original is nested (std::rethrow_if_nested). Exceptions of this library keep their own type instead.
class rank_error : public error, public std::nested_exception {
 public:
  rank_error(rank_id rank, std::string const& message) : error(message), rank_(rank) {}

  [[nodiscard]] rank_id rank() const noexcept { return rank_; }

 private:
  rank_id rank_;
};

/// Call in a catch block: throws what was caught again, with `place` in its message. Exceptions of this library keep their
/// type; others become a rank_error with the original nested.
[[noreturn]] inline void rethrow_at(rank_id rank, std::string const& place) {
  try {
    throw;
  } catch (aborted_error const&) {
    throw;  // the place of the failure is in the reason
  } catch (error& e) {
    e.locate(place);
    throw;
  } catch (std::exception const& e) {
    throw rank_error(rank, place + ": " + e.what());
  } catch (...) {
    throw rank_error(rank, place + ": an exception that is no std::exception");
  }
}

/// Throws usage_error with `sentence`.
[[noreturn]] inline void refuse(std::string const& sentence) { throw usage_error(std::string("lockstep: ") + sentence); }

/// Throws usage_error with `sentence` unless `condition` holds. For sentences that must be built: test, then `refuse`.
constexpr void expects(bool condition, char const* sentence) {
  if (!condition) [[unlikely]] {
    refuse(sentence);
  }
}

}  // namespace lockstep
