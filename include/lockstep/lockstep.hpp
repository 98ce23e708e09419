// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/concepts.hpp>
#include <lockstep/core/batch.hpp>
#include <lockstep/core/context.hpp>
#include <lockstep/core/devices.hpp>
#include <lockstep/core/element_type.hpp>
#include <lockstep/core/error.hpp>
#include <lockstep/core/float16.hpp>
#include <lockstep/core/host_device.hpp>
#include <lockstep/core/memory.hpp>
#include <lockstep/core/options.hpp>
#include <lockstep/core/parameter.hpp>
#include <lockstep/plan/split.hpp>
#include <lockstep/version.hpp>
