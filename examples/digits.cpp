// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Trains a classifier of handwritten digits under each policy, and compares them.

#include "models/mlp.hpp"

#include <lockstep/lockstep.hpp>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr std::size_t pixels = 64;
constexpr int classes = 10;

struct settings {
  std::string data = LOCKSTEP_DATA_DIR "/digits/digits.csv";
  std::string policy = "all";
  int epochs = 20;
  int devices = 4;
  std::size_t batch = 64;
  std::uint64_t seed = 1;
};

using digits = lockstep::table<float, int>;

/// What one policy came to.
struct outcome {
  std::string policy;
  int devices = 0;
  double accuracy = 0;
  double samples_a_second = 0;
  double bytes_a_step = 0;
  std::vector<float> parameters;
};

digits read_digits(std::string const& path) {
  std::ifstream file{path, std::ios::binary};
  if (!file) {
    throw lockstep::file_error(path, 0, "expected a readable file");
  }
  digits all = lockstep::read_labelled_csv(file, path, classes, {.columns = pixels + 1});
  for (float& pixel : all.values<0>()) {
    pixel /= 16.0F;  // counts 0 to 16
  }
  return all;
}

/// Every fifth sample of a fixed shuffle is for testing.
std::pair<digits, digits> split(digits const& all) {
  std::vector<std::size_t> train;
  std::vector<std::size_t> test;
  for (std::size_t const row : lockstep::sampler{all.rows(), 1, lockstep::rank_id{0}, {.seed = 2026}}.epoch(0)) {
    ((train.size() + test.size()) % 5 == 4 ? test : train).push_back(row);
  }
  return {all.select(train), all.select(test)};
}

template <class Policy>
outcome run(std::string const& name, int devices, settings const& s, digits const& train, digits const& test) {
  std::printf("%s on %d %s\n", name.c_str(), devices, devices == 1 ? "device" : "devices");
  std::fflush(stdout);

  lockstep::trainer<examples::mlp, lockstep::adamw, Policy> trainer{
      lockstep::devices::first(devices),
      [&](lockstep::device_context<lockstep::host>& device) {
        return examples::mlp{device, {pixels, 64, classes}, s.seed};
      },
      {lockstep::adamw{.learning_rate = 3e-3F, .weight_decay = 0.01F},   // weights
       lockstep::adamw{.learning_rate = 3e-3F, .weight_decay = 0.0F}}};  // biases

  lockstep::loader loader{train, {.batch = s.batch, .seed = s.seed}};
  std::uint64_t const steps = static_cast<std::uint64_t>(s.epochs) * loader.batches();
  std::size_t samples = 0;
  std::uint64_t const moved_before = trainer.bytes_moved();
  auto const start = std::chrono::steady_clock::now();
  {
    lockstep::progress progress{steps};
    for (int epoch = 0; epoch < s.epochs; ++epoch) {
      for (auto const& batch : loader.epoch(static_cast<std::uint64_t>(epoch))) {
        auto const result = trainer.step(batch);
        samples += result.samples();
        progress.update(result);
      }
    }
  }
  std::chrono::duration<double> const seconds = std::chrono::steady_clock::now() - start;

  outcome done;
  done.policy = name;
  done.devices = devices;
  done.samples_a_second = static_cast<double>(samples) / seconds.count();
  done.bytes_a_step = static_cast<double>(trainer.bytes_moved() - moved_before) / static_cast<double>(steps);

  std::vector<float> probabilities(test.rows() * std::size_t{classes});
  lockstep::sample_view<float> const predicted{probabilities.data(), test.rows(), classes};
  trainer.predict(test.view(), predicted);
  std::size_t right = 0;
  for (std::size_t i = 0; i < test.rows(); ++i) {
    auto const guess = std::max_element(predicted[i].begin(), predicted[i].end()) - predicted[i].begin();
    right += guess == test.values<1>()[i] ? 1U : 0U;
  }
  done.accuracy = static_cast<double>(right) / static_cast<double>(test.rows());

  for (lockstep::parameter const& p : trainer.model().parameters()) {
    auto const* const values = static_cast<float const*>(p.value);
    done.parameters.insert(done.parameters.end(), values, values + p.count());
  }
  return done;
}

double largest_difference(std::span<float const> a, std::span<float const> b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return largest;
}

void compare(settings const& s) {
  auto const [train, test] = split(read_digits(s.data));
  std::printf("%zu digits to train on, %zu to test with\n", train.rows(), test.rows());

  // single_device always runs: the others are measured against it.
  std::vector<outcome> outcomes;
  outcomes.push_back(run<lockstep::single_device>("single_device", 1, s, train, test));
  if (s.policy == "all" || s.policy == "replicate_and_gather") {
    outcomes.push_back(run<lockstep::replicate_and_gather<>>("replicate_and_gather", s.devices, s, train, test));
  }
  if (s.policy == "all" || s.policy == "peer_all_reduce") {
    outcomes.push_back(run<lockstep::peer_all_reduce<>>("peer_all_reduce", s.devices, s, train, test));
  }

  std::printf("\n%-22s %7s %13s %11s %22s %17s\n", "policy", "devices", "test accuracy", "samples/s", "largest difference of",
              "bytes moved");
  std::printf("%-22s %7s %13s %11s %22s %17s\n", "", "", "", "", "a parameter, to single", "a step");
  for (outcome const& o : outcomes) {
    std::printf("%-22s %7d %13.4f %11.0f %22.2e %17.0f\n", o.policy.c_str(), o.devices, o.accuracy, o.samples_a_second,
                largest_difference(o.parameters, outcomes.front().parameters), o.bytes_a_step);
  }
}

}  // namespace

int main(int argc, char** argv) {
  settings s;
  CLI::App app{"Trains a classifier of handwritten digits under each policy, and compares them."};
  app.add_option("--epochs", s.epochs, "passes over the training set")->capture_default_str()->check(CLI::Range(1, 100000));
  app.add_option("--devices", s.devices, "host devices (threads) for the policies that take several")
      ->capture_default_str()
      ->check(CLI::Range(1, lockstep::devices::max_count));
  app.add_option("--batch", s.batch, "samples a step, all devices together")
      ->capture_default_str()
      ->check(CLI::Range(std::size_t{1}, std::size_t{1} << 20));
  app.add_option("--policy", s.policy, "which policy to run beside single_device")
      ->capture_default_str()
      ->check(CLI::IsMember({"all", "single_device", "replicate_and_gather", "peer_all_reduce"}));
  app.add_option("--data", s.data, "the digits: rows of 64 pixel counts 0 to 16, then the label")->capture_default_str();
  app.add_option("--seed", s.seed, "of the first weights and of the order of samples")->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  examples::one_thread_a_product();
  try {
    compare(s);
  } catch (std::exception const& e) {
    std::cerr << "digits: " << e.what() << '\n';
    return 1;
  }
  return 0;
}
