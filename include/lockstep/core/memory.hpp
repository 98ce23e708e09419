// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

namespace lockstep {

/// What memory is for, in every memory report.
enum class memory_use : std::uint8_t { parameters, gradients, optimizer_state, activations, staging, other };
inline constexpr std::size_t memory_use_count = 6;

[[nodiscard]] constexpr std::string_view name_of(memory_use use) noexcept {
  constexpr std::string_view names[memory_use_count] = {"parameters",  "gradients", "optimizer state",
                                                        "activations", "staging",   "other"};
  return names[static_cast<std::size_t>(use)];
}

/// One of several copies that are enqueued together.
struct transfer {
  void* to = nullptr;
  void const* from = nullptr;
  std::size_t bytes = 0;
};

/// Bytes in use on one device, by use, and the most that were in use at once.
struct memory_usage {
  std::array<std::size_t, memory_use_count> bytes{};
  std::size_t peak_bytes = 0;

  [[nodiscard]] constexpr std::size_t operator[](memory_use use) const noexcept { return bytes[static_cast<std::size_t>(use)]; }
  [[nodiscard]] constexpr std::size_t total() const noexcept {
    std::size_t sum = 0;
    for (std::size_t const part : bytes) {
      sum += part;
    }
    return sum;
  }
};

/// The books of one device's memory. Thread safety: every call may run beside every other.
class memory_account {
 public:
  void add(memory_use use, std::size_t bytes) noexcept {
    bytes_[static_cast<std::size_t>(use)].fetch_add(bytes, std::memory_order_relaxed);
    std::size_t const now = total_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    std::size_t peak = peak_.load(std::memory_order_relaxed);
    while (peak < now && !peak_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
    }
  }
  void remove(memory_use use, std::size_t bytes) noexcept {
    bytes_[static_cast<std::size_t>(use)].fetch_sub(bytes, std::memory_order_relaxed);
    total_.fetch_sub(bytes, std::memory_order_relaxed);
  }
  [[nodiscard]] memory_usage usage() const noexcept {
    memory_usage now;
    for (std::size_t use = 0; use < memory_use_count; ++use) {
      now.bytes[use] = bytes_[use].load(std::memory_order_relaxed);
    }
    now.peak_bytes = peak_.load(std::memory_order_relaxed);
    return now;
  }

 private:
  std::array<std::atomic<std::size_t>, memory_use_count> bytes_{};
  std::atomic<std::size_t> total_{0};
  std::atomic<std::size_t> peak_{0};
};

/// Memory of a device, uninitialised, in the books until it is given back by a `Free`, a function object. Owns it; may outlive
/// the device.
template <class Free>
class accounted_buffer {
 public:
  accounted_buffer() noexcept = default;
  /// Takes over `bytes` bytes from `memory`, and enters them where there is an account.
  accounted_buffer(void* memory, std::shared_ptr<memory_account> account, memory_use use, std::size_t bytes,
                   Free give_back = {}) noexcept
      : memory_(memory, release{std::move(account), use, bytes, std::move(give_back)}) {
    if (auto const& books = memory_.get_deleter().account; books != nullptr) {
      books->add(use, bytes);
    }
  }

  [[nodiscard]] void* data() const noexcept { return memory_.get(); }
  [[nodiscard]] std::size_t bytes() const noexcept { return memory_ == nullptr ? 0 : memory_.get_deleter().bytes; }
  /// The memory as an array of T.
  template <class T>
  [[nodiscard]] T* as() const noexcept {
    return static_cast<T*>(data());
  }

 private:
  struct release {
    std::shared_ptr<memory_account> account;
    memory_use use = memory_use::other;
    std::size_t bytes = 0;
    Free give_back{};

    void operator()(void* memory) const noexcept {
      give_back(memory);
      if (account != nullptr) {
        account->remove(use, bytes);
      }
    }
  };

  std::unique_ptr<void, release> memory_{nullptr, release{}};
};

}  // namespace lockstep
