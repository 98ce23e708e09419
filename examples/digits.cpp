// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Trains a classifier of handwritten digits on the host, under each policy, and compares them.

#include "classifier.hpp"
#include "models/mlp.hpp"
#include "report.hpp"
#include "settings.hpp"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <string_view>
#include <vector>

namespace {

int compare(examples::settings const& s) {
  using examples::policies;
  std::ofstream json = examples::open_json(s);
  examples::task const digits = examples::read(s.data);
  std::printf("%zu digits to train on, %zu to test with\n", digits.train.rows(), digits.test.rows());
  std::vector<examples::outcome> outcomes;
  if (s.precision == "f32") {
    examples::run_policies<examples::mlp, policies::all>(s, digits, outcomes);
  } else if (s.precision == "bf16") {
    examples::run_policies<examples::basic_mlp<lockstep::bfloat16>, policies::with_peer_all_reduce>(s, digits, outcomes);
  } else {
    examples::run_policies<examples::basic_mlp<lockstep::float16>, policies::with_peer_all_reduce>(s, digits, outcomes);
  }
  examples::write_json(json, s, outcomes);
  return examples::report(s, outcomes);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string_view> const words(argv + 1, argv + argc);
  examples::machine const host{.devices = lockstep::devices::max_count};
  if (std::find(words.begin(), words.end(), "--help") != words.end()) {
    examples::print_usage(host);
    return 0;
  }
  examples::one_thread_a_product();
  try {
    return compare(examples::parse(words, host));
  } catch (examples::skipped const& e) {
    std::printf("skipped: %s\n", e.what());
    return 77;
  } catch (std::invalid_argument const& e) {
    std::fprintf(stderr, "digits: %s; --help lists the options\n", e.what());
    return 2;
  } catch (std::exception const& e) {
    std::fprintf(stderr, "digits: %s\n", e.what());
    return 1;
  }
}
