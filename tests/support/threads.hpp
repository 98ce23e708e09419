// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <filesystem>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

namespace support {

/// Runs `work(rank)` in a thread a rank; returns what each threw, as text ("" for nothing).
template <class Work>
std::vector<std::string> on_ranks(int size, Work work) {
  std::vector<std::string> said(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        work(rank);
      } catch (std::exception const& e) {
        said[static_cast<std::size_t>(rank)] = e.what();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return said;
}

/// How many threads the system lists for this process; 0 where it doesn't say. One that was joined can stay listed for a
/// moment.
inline std::size_t listed_threads() {
  // A sanitizer may start a thread of its own beside the first one; it is not to be counted as left behind.
  [[maybe_unused]] static bool const started = (std::thread{[] {}}.join(), true);
  std::error_code none;
  std::filesystem::directory_iterator const tasks{"/proc/self/task", none};
  return none ? 0 : static_cast<std::size_t>(std::distance(begin(tasks), end(tasks)));
}

/// How many threads this process has, none of them about to end: what is listed once that has stayed the same for 10 ms.
inline std::size_t thread_count() {
  std::size_t count = listed_threads();
  for (int same = 0, tries = 0; same < 10 && tries < 2000; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
    std::size_t const now = listed_threads();
    same = now == count ? same + 1 : 0;
    count = now;
  }
  return count;
}

/// Whether the process comes back to `count` threads.
inline bool comes_back_to(std::size_t count) {
  for (int tries = 0; tries < 2000 && listed_threads() != count; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
  return listed_threads() == count;
}

}  // namespace support
