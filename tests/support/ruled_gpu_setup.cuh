// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "one_gpu.cuh"
#include "ruled_cases.hpp"

#include <lockstep/lockstep.cuh>

#include <cstddef>
#include <memory>

namespace support {

inline void load_ruled_call() {
  lockstep::cuda::invoke(lockstep::cuda::stream_ref{}, ruled_call<lockstep::cuda::weight>{.samples = {.width = 3}});
  lockstep::check(cudaStreamSynchronize(nullptr));
}

/// Where ruled_cases run on GPU 0, with so many steps kept as graphs.
template <class Backend, std::size_t Graphs>
struct ruled_gpu_setup {
  using backend = Backend;
  static std::shared_ptr<void> memory(int, std::size_t bytes) {
    static_cast<void>(loads<load_ruled_call> && loads<load_update<ruled_cases::scheduled_sgd>>);
    void* taken = nullptr;
    lockstep::check(cudaMalloc(&taken, bytes));
    return {taken, [](void* memory) { static_cast<void>(cudaFree(memory)); }};
  }
  static void copy(void* to, void const* from, std::size_t bytes) {
    lockstep::check(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
    lockstep::check(cudaStreamSynchronize(nullptr));
  }
  static lockstep::cuda::options options() { return {.timeout_seconds = 30, .graphs = Graphs}; }
};

}  // namespace support
