// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <thread>

namespace lockstep {

/// Hardware threads that this process may use, at least 1. Asked once.
[[nodiscard]] inline int hardware_threads() noexcept {
  static int const count = [] {
    unsigned const known = std::thread::hardware_concurrency();
    return known == 0 ? 1 : static_cast<int>(known);
  }();
  return count;
}

/// Polls `done` a few hundred times, some microseconds in all, and returns whether it became true: a hand-over to a thread that
/// is about to answer is then cheaper than sleeping. Polls once where the machine lacks hardware threads for `busy_threads`
/// threads, since polling would only delay the one that is waited for.
template <std::predicate Done>
bool spin_briefly(int busy_threads, Done&& done) {
  int const polls = hardware_threads() >= busy_threads ? 400 : 1;
  for (int poll = 0; poll < polls; ++poll) {
    if (done()) {
      return true;
    }
#if defined(__x86_64__) || defined(__i386__)
    asm volatile("pause");
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }
  return false;
}

}  // namespace lockstep
