// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace lockstep::comm_detail {

/// Tells plain device memory (cudaMalloc), which peers reach, from that of pools, managed and virtual memory, which they may
/// not. The driver is asked through the runtime, so that nothing else need be linked.
class plain_memory {
 public:
  plain_memory() noexcept = default;
  /// `known` is plain: where the driver does not say so, it is not believed about others either.
  explicit plain_memory(void const* known) noexcept {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult state{};
    if (cudaGetDriverEntryPointByVersion("cuPointerGetAttribute", &found, 4000, cudaEnableDefault, &state) == cudaSuccess &&
        state == cudaDriverEntryPointSuccess) {
      ask_ = reinterpret_cast<decltype(ask_)>(found);
    } else {
      static_cast<void>(cudaGetLastError());
    }
    if (!capable(known)) {
      ask_ = nullptr;
    }
  }

  /// Whether `memory` is plain, or can't be told from it.
  [[nodiscard]] bool contains(void const* memory) const noexcept { return ask_ == nullptr || capable(memory); }

 private:
  [[nodiscard]] bool capable(void const* memory) const noexcept {
    int is_capable = 0;
    return ask_ != nullptr &&
           ask_(&is_capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(memory))) == CUDA_SUCCESS &&
           is_capable != 0;
  }

  CUresult(CUDAAPI* ask_)(void*, CUpointer_attribute, CUdeviceptr) = nullptr;
};

}  // namespace lockstep::comm_detail
