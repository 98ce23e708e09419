// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/error.hpp>

#include <cstddef>
#include <initializer_list>
#include <string>
#include <vector>

namespace lockstep {

/// The devices of this process that train together, in rank order: the first is rank 0. Nothing else is touched.
class devices {
 public:
  /// Most devices one process may drive.
  static constexpr int max_count = 1024;

  /// Every device the backend offers; on the host, one a hardware thread.
  [[nodiscard]] static devices all() noexcept { return devices{}; }

  /// Devices 0 to count - 1. Throws usage_error when count is not in [1, max_count].
  [[nodiscard]] static devices first(int count) {
    if (count < 1 || count > max_count) {
      refuse(std::string("devices::first(") + std::to_string(count) + "): give 1 to " + std::to_string(max_count) + " devices");
    }
    devices chosen;
    for (int index = 0; index < count; ++index) {
      chosen.ids_.push_back(device_id{index});
    }
    return chosen;
  }

  /// Throws usage_error for an empty list, a negative number, or a device listed twice (both ranks are named).
  devices(std::initializer_list<int> ids) : devices(std::vector<int>(ids)) {}
  explicit devices(std::vector<int> const& ids) {
    expects(!ids.empty(), "no devices: list at least one");
    expects(ids.size() <= static_cast<std::size_t>(max_count), "more than 1024 devices");
    for (std::size_t rank = 0; rank < ids.size(); ++rank) {
      int const id = ids[rank];
      if (id < 0) {
        refuse(std::string("device ") + std::to_string(id) + " at rank " + std::to_string(rank) + ": devices count from 0");
      }
      for (std::size_t before = 0; before < rank; ++before) {
        if (ids[before] == id) {
          refuse(std::string("ranks ") + std::to_string(before) + " and " + std::to_string(rank) + " are both on device " +
                 std::to_string(id) + ": list each device once");
        }
      }
      ids_.push_back(device_id{id});
    }
  }

  /// The list, `all()` resolved for a backend that has `available` devices. Throws usage_error when it has none.
  [[nodiscard]] std::vector<device_id> resolve(int available) const {
    if (!ids_.empty()) {
      return ids_;
    }
    expects(available > 0, "this machine has no device of that kind");
    return first(available < max_count ? available : max_count).ids_;
  }

 private:
  devices() noexcept = default;

  std::vector<device_id> ids_;  // empty: all
};

}  // namespace lockstep
