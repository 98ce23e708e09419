// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/backend/host.hpp>
#include <lockstep/backend/host_norm.hpp>
#include <lockstep/backend/host_update.hpp>
#include <lockstep/comm/shared_memory.hpp>
#include <lockstep/optim/sgd.hpp>
#include <lockstep/policy/peer_all_reduce.hpp>
#include <lockstep/policy/replicate_and_gather.hpp>
#include <lockstep/policy/single_device.hpp>
#include <lockstep/replica.hpp>
#include <lockstep/trainer.hpp>

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

// What is right, for programs that each do one thing wrong.

using pairs = std::tuple<std::span<float const>, std::span<float const>>;

struct tensors {
  float value[2]{};
  float gradient[2]{};
  std::array<lockstep::parameter, 2> parameters() {
    return {{{"a", &value[0], &gradient[0], {1}}, {"b", &value[1], &gradient[1], {1}}}};
  }
};

struct line : tensors {
  using backend = lockstep::host;
  using batch = pairs;
  void train(lockstep::train_context<backend>&, batch const&) {}
};
