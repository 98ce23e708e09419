// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "classifier.hpp"
#include "settings.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <iomanip>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

/// What digits.cpp and digits.cu say in the end.
namespace examples {

inline double mean(std::vector<double> const& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// The standard deviation of what the values are a sample of; 0 for a single one.
inline double spread(std::vector<double> const& values) {
  double squares = 0;
  for (double const value : values) {
    squares += (value - mean(values)) * (value - mean(values));
  }
  return values.size() < 2 ? 0 : std::sqrt(squares / static_cast<double>(values.size() - 1));
}

inline double largest_difference(std::span<float const> a, std::span<float const> b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = (std::max)(largest, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return largest;
}

/// Prints a table. Returns the exit status: 0 when each of them learned something, with every seed.
inline int report(settings const& s, std::vector<outcome> const& outcomes) {
  std::printf("\n%s, after %d %s; %zu %s\n", s.precision.c_str(), s.epochs, s.epochs == 1 ? "epoch" : "epochs", s.seeds,
              s.seeds == 1 ? "seed" : "seeds");
  std::printf("%-5s %-22s %7s %13s %9s %9s %11s %22s %13s\n", "", "policy", "devices", "test accuracy", "spread", "seconds",
              "samples/s", "largest difference of", "bytes moved");
  std::printf("%-5s %-22s %7s %13s %9s %9s %11s %22s %13s\n", "", "", "", "", "", "", "", "a parameter, to first", "a step");
  bool learned = true;
  for (outcome const& o : outcomes) {
    std::printf("%-5s %-22s %7d %13.4f %9.4f %9.2f %11.0f %22.2e %13.0f\n", o.where.c_str(), o.policy.c_str(), o.devices,
                mean(o.accuracies), spread(o.accuracies), o.seconds, o.samples / o.seconds,
                largest_difference(o.parameters, outcomes.front().parameters), o.bytes_moved / o.steps);
    learned = learned && *std::min_element(o.accuracies.begin(), o.accuracies.end()) > 0.5;
  }
  if (!learned) {
    std::printf("some accuracy is not above 0.5\n");
  }
  return learned ? 0 : 1;
}

/// The file for --json, made before the training that it is to hold; closed where none is asked for. Throws
/// std::runtime_error.
inline std::ofstream open_json(settings const& s) {
  std::ofstream file;
  if (!s.json.empty()) {
    file.open(s.json);
    if (!file) {
      throw std::runtime_error("cannot write " + s.json);
    }
  }
  return file;
}

/// Writes settings and outcomes as one JSON object in one line. Throws std::runtime_error.
inline void write_json(std::ofstream& file, settings const& s, std::vector<outcome> const& outcomes) {
  if (!file.is_open()) {
    return;
  }
  file << "{\"data\": " << std::quoted(s.data) << ", \"precision\": \"" << s.precision << "\", \"epochs\": " << s.epochs
       << ", \"batch\": " << s.batch << ", \"micro_batches\": " << s.micro_batches << ", \"rate\": " << s.rate
       << ", \"warmup_steps\": " << s.warm_up_steps << ", \"schedule\": \"" << s.schedule << "\", \"clip\": " << s.clip
       << ", \"first_seed\": " << s.seed << ", \"runs\": [";
  char const* before = "";
  for (outcome const& o : outcomes) {
    file << before << "{\"where\": \"" << o.where << "\", \"policy\": \"" << o.policy << "\", \"devices\": " << o.devices
         << ", \"accuracies\": [";
    for (std::size_t i = 0; i < o.accuracies.size(); ++i) {
      file << (i == 0 ? "" : ", ") << o.accuracies[i];
    }
    file << "], \"mean\": " << mean(o.accuracies) << ", \"spread\": " << spread(o.accuracies) << ", \"seconds\": " << o.seconds
         << "}";
    before = ", ";
  }
  file << "]}\n";
  file.close();
  if (!file) {
    throw std::runtime_error("cannot write " + s.json);
  }
}

}  // namespace examples
