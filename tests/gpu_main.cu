// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cuda_runtime_api.h>

#include <cstdio>

int main(int argc, char** argv) {
  int found = 0;
  if (cudaGetDeviceCount(&found) != cudaSuccess) {
    found = 0;
  }
  if (found < LOCKSTEP_TEST_GPUS) {
    std::printf("skipped: needs GPUs: %d, found: %d\n", LOCKSTEP_TEST_GPUS, found);
    return 77;
  }
  return doctest::Context(argc, argv).run();
}
