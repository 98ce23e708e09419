// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/backend/cuda.cuh>
#include <lockstep/backend/cuda_norm.cuh>
#include <lockstep/backend/cuda_update.cuh>
#include <lockstep/comm/direct.cuh>
#include <lockstep/lockstep.hpp>
