// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

/// The command line of digits.cpp and digits.cu.
namespace examples {

/// What a program runs on, as far as its options depend on it.
struct machine {
  bool gpus = false;  // and the host beside them
  int devices = 1;    // at most
};

/// What the options say.
struct settings {
  std::string data = "digits";
  std::string policy = "all";
  int devices = 4;
  int epochs = 20;
  std::size_t batch = 64;
  std::size_t micro_batches = 1;
  std::string precision = "f32";
  float rate = 3e-3F;
  std::uint64_t warm_up_steps = 0;
  std::string schedule = "constant";
  float clip = 0;  // 0: not at all
  std::uint64_t seed = 1;
  std::size_t seeds = 1;
  std::string json;  // a file; empty: none
  bool host = true;  // beside GPUs
};

inline void print_usage(machine const& on) {
  std::fputs(R"(Trains a classifier of handwritten digits under each policy, and compares them.

Options, each with a value:
  --data WHAT         digits, mnist, or a file of digits: rows of 64 pixel counts 0 to 16, then the label (digits)
  --policy NAME       all, single_device, replicate_and_gather, peer_all_reduce or sharded_optimizer (all): which to run beside
                      single_device
  --epochs N          passes over the training set (20)
  --batch N           samples a step, all devices together (64)
  --micro-batches N   into which each device cuts its samples of a step (1)
  --precision TYPE    f32, bf16 or f16: what values and activations are stored as; f16 has a dynamic loss scale (f32). All
                      but f32 run under single_device and peer_all_reduce
  --rate X            the learning rate of AdamW (0.003)
  --warmup STEPS      over which the learning rate rises in the beginning (0)
  --schedule NAME     constant, or cosine: down to 0 over the steps behind the warm-up (constant)
  --clip NORM         the largest norm of all gradients together; 0 bounds nothing (0)
  --seed N            of the first weights and of the order of samples (1)
  --seeds N           how many seeds to train with, from that one on; accuracies are then their mean (1)
  --json FILE         where to write settings, and the test accuracy of each seed
)",
             stdout);
  std::fputs(on.gpus ? R"(  --devices N         GPUs for the policies that take several (all); these policies need NCCL
  --precision tf32    f32 in memory, products on tensor cores; the host takes f32
  --host WORD         yes or no: whether the host trains too, on one thread (yes)
)"
                     : "  --devices N         host devices (threads) for the policies that take several (4)\n",
             stdout);
}

/// Puts the number that `text` is into `value`; false where it is none.
template <class T>
bool read_number(std::string_view text, T& value) {
  auto const [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  return code == std::errc{} && end == text.data() + text.size();
}

/// A whole number in [low, high]. Throws std::invalid_argument.
template <class T>
T whole(std::string_view option, std::string_view text, T low, T high) {
  T value{};
  if (!read_number(text, value) || value < low || value > high) {
    throw std::invalid_argument(std::string(option) + " needs a whole number from " + std::to_string(low) + " to " +
                                std::to_string(high) + ", not '" + std::string(text) + "'");
  }
  return value;
}

/// A finite number, not below 0. Throws std::invalid_argument.
inline float not_negative(std::string_view option, std::string_view text) {
  float value{};
  if (!read_number(text, value) || !(value >= 0 && value <= (std::numeric_limits<float>::max)())) {
    throw std::invalid_argument(std::string(option) + " needs a finite number, 0 or more, not '" + std::string(text) + "'");
  }
  return value;
}

/// Throws std::invalid_argument.
inline settings parse(std::vector<std::string_view> const& words, machine const& on) {
  settings s;
  s.devices = on.gpus ? on.devices : s.devices;
  for (std::size_t i = 0; i < words.size(); i += 2) {
    std::string_view const option = words[i];
    if (i + 1 == words.size()) {
      throw std::invalid_argument(std::string(option) + " is no option, or lacks its value");
    }
    std::string_view const value = words[i + 1];
    auto const one_of = [&](std::vector<std::string_view> const& allowed) {
      if (std::find(allowed.begin(), allowed.end(), value) == allowed.end()) {
        throw std::invalid_argument(std::string(option) + " does not know '" + std::string(value) + "'");
      }
      return std::string(value);
    };
    if (option == "--data") {
      s.data = value;
    } else if (option == "--policy") {
      s.policy = one_of({"all", "single_device", "replicate_and_gather", "peer_all_reduce", "sharded_optimizer"});
    } else if (option == "--devices") {
      s.devices = whole(option, value, 1, on.devices);
    } else if (option == "--epochs") {
      s.epochs = whole(option, value, 1, 100000);
    } else if (option == "--batch") {
      s.batch = whole(option, value, std::size_t{1}, std::size_t{1} << 20);
    } else if (option == "--micro-batches") {
      s.micro_batches = whole(option, value, std::size_t{1}, std::size_t{1} << 20);
    } else if (option == "--precision") {
      s.precision = on.gpus ? one_of({"f32", "tf32", "bf16", "f16"}) : one_of({"f32", "bf16", "f16"});
    } else if (option == "--rate") {
      s.rate = not_negative(option, value);
    } else if (option == "--warmup") {
      s.warm_up_steps = whole(option, value, std::uint64_t{0}, std::uint64_t{1} << 40);
    } else if (option == "--schedule") {
      s.schedule = one_of({"constant", "cosine"});
    } else if (option == "--clip") {
      s.clip = not_negative(option, value);
    } else if (option == "--seed") {
      s.seed = whole(option, value, std::uint64_t{0}, std::uint64_t{1} << 62);
    } else if (option == "--seeds") {
      s.seeds = whole(option, value, std::size_t{1}, std::size_t{10000});
    } else if (option == "--json") {
      s.json = value;
    } else if (option == "--host" && on.gpus) {
      s.host = one_of({"yes", "no"}) == "yes";
    } else {
      throw std::invalid_argument("there is no option " + std::string(option));
    }
  }
  if (s.precision != "f32" && (s.policy == "replicate_and_gather" || s.policy == "sharded_optimizer")) {
    throw std::invalid_argument("--precision " + s.precision + " takes --policy all, single_device or peer_all_reduce");
  }
  return s;
}

}  // namespace examples
