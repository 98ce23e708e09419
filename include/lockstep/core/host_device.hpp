// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Marks a function that runs on the host and in CUDA kernels. An elementwise optimizer's `operator()` and `prepare`
/// carry it, so that one source serves both backends; a plain C++ compiler sees nothing.
#if defined(__CUDACC__)
#define LOCKSTEP_HOST_DEVICE __host__ __device__
#else
#define LOCKSTEP_HOST_DEVICE
#endif
