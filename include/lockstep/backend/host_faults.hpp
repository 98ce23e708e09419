// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/error.hpp>
#include <lockstep/core/memory.hpp>

#include <chrono>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace lockstep {

/// What host_faults throws at a step.
class injected_fault : public error {
 public:
  using error::error;
};

/// A plan of failures for the devices of the host backend, given in host::options: how a program, or this library, is tested
/// against failing and late devices. Steps count from 1. Nothing in it changes while it is used.
struct host_faults {
  /// `device` throws injected_fault when `step` begins.
  struct exception {
    device_id device{0};
    std::uint64_t step = 1;
  };
  /// Allocations of `device` throw out_of_memory from the `from`-th on, counted from 1; only those for `use`, if one is given.
  struct allocation {
    device_id device{0};
    std::uint64_t from = 1;
    std::optional<memory_use> use = std::nullopt;
  };
  /// `device`, or every device, sleeps for 0 to `max_microseconds` when a step begins: drawn from seed, device and step.
  struct delay {
    std::optional<device_id> device = std::nullopt;
    std::uint64_t seed = 0;
    std::uint32_t max_microseconds = 1000;
  };
  /// `device` does not get past the beginning of `step`, until the step is aborted.
  struct absence {
    device_id device{0};
    std::uint64_t step = 1;
  };

  std::vector<exception> exceptions{};
  std::vector<allocation> allocations{};
  std::vector<delay> delays{};
  std::vector<absence> absences{};

  /// Whether the `count`-th allocation of `device`, counted from 1, fails.
  [[nodiscard]] bool fails_allocation(device_id device, std::uint64_t count, memory_use use) const noexcept {
    for (allocation const& fault : allocations) {
      if (fault.device == device && count >= fault.from && fault.use.value_or(use) == use) {
        return true;
      }
    }
    return false;
  }

  /// How long `device` sleeps at the beginning of `step`.
  [[nodiscard]] std::chrono::microseconds delay_of(device_id device, std::uint64_t step) const noexcept {
    std::uint64_t sum = 0;
    for (delay const& fault : delays) {
      if (fault.device.value_or(device) == device) {
        std::uint64_t const drawn = mix(mix(mix(fault.seed) ^ static_cast<std::uint64_t>(number(device))) ^ step);
        sum += drawn % (std::uint64_t{fault.max_microseconds} + 1);
      }
    }
    return std::chrono::microseconds{sum};
  }

  /// Called by a device when a step begins. Throws injected_fault; aborted_error once an absent device sees `aborted()`.
  template <std::predicate Aborted>
  void act(device_id device, std::uint64_t step, Aborted&& aborted) const {
    if (auto const pause = delay_of(device, step); pause.count() > 0) {
      std::this_thread::sleep_for(pause);
    }
    for (exception const& fault : exceptions) {
      if (fault.device == device && fault.step == step) {
        throw injected_fault(std::string("device ") + std::to_string(number(device)) + ": injected fault at step " +
                             std::to_string(step));
      }
    }
    for (absence const& fault : absences) {
      if (fault.device == device && fault.step == step) {
        while (!aborted()) {
          std::this_thread::sleep_for(std::chrono::milliseconds{1});
        }
        throw aborted_error(std::string("device ") + std::to_string(number(device)) + " was absent from step " +
                            std::to_string(step) + " until the step was aborted");
      }
    }
  }

 private:
  /// Spreads every bit of `x` over the result: multiply, shift, twice.
  [[nodiscard]] static constexpr std::uint64_t mix(std::uint64_t x) noexcept {
    x = (x + 0x9e3779b97f4a7c15U) * 0xd6e8feb86659fd93U;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93U;
    return x ^ (x >> 32);
  }
};

}  // namespace lockstep
