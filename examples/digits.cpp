// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Trains a classifier of handwritten digits on the host, under each policy, and compares them.

#include "classifier.hpp"
#include "models/mlp.hpp"

#include <CLI/CLI.hpp>

#include <cstddef>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

namespace {

int compare(examples::settings const& s) {
  examples::task const digits = examples::read(s.data);
  std::printf("%zu digits to train on, %zu to test with\n", digits.train.rows(), digits.test.rows());
  std::vector<examples::outcome> outcomes;
  examples::run_policies<examples::mlp, true>(s, digits, outcomes);
  return examples::report(s, outcomes);
}

}  // namespace

int main(int argc, char** argv) {
  examples::settings s;
  CLI::App app{"Trains a classifier of handwritten digits on the host, under each policy, and compares them."};
  app.add_option("--epochs", s.epochs, "passes over the training set")->capture_default_str()->check(CLI::Range(1, 100000));
  app.add_option("--devices", s.devices, "host devices (threads) for the policies that take several")
      ->capture_default_str()
      ->check(CLI::Range(1, lockstep::devices::max_count));
  app.add_option("--batch", s.batch, "samples a step, all devices together")
      ->capture_default_str()
      ->check(CLI::Range(std::size_t{1}, std::size_t{1} << 20));
  app.add_option("--policy", s.policy, "which policy to run beside single_device")
      ->capture_default_str()
      ->check(CLI::IsMember({"all", "single_device", "replicate_and_gather", "peer_all_reduce", "sharded_optimizer"}));
  app.add_option("--data", s.data, "digits, mnist, or a file of digits: rows of 64 pixel counts 0 to 16, then the label")
      ->capture_default_str();
  app.add_option("--seed", s.seed, "of the first weights and of the order of samples")->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  examples::one_thread_a_product();
  try {
    return compare(s);
  } catch (examples::skipped const& e) {
    std::cout << "skipped: " << e.what() << '\n';
    return 77;
  } catch (std::exception const& e) {
    std::cerr << "digits: " << e.what() << '\n';
    return 1;
  }
}
