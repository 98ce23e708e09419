// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// The network of examples/models/batch_norm.hpp on several ranks, beside the same training written again in double precision,
// on one device, over sets of samples.

#include "../../examples/models/batch_norm.hpp"
#include "../seed.hpp"
#include "../support/policies.hpp"
#include "../support/threads.hpp"

#include <lockstep/lockstep.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using examples::normalised_network;
using lockstep::rank_id;

constexpr std::size_t inputs = 3;
constexpr std::size_t hidden = 4;
constexpr float rate = 0.1F;

struct samples {
  /// Inputs between -1 and 1 around `middle`.
  samples(tests::generator& random, std::size_t count, float middle = 0) {
    for (std::size_t s = 0; s < count; ++s) {
      for (std::size_t i = 0; i < inputs; ++i) {
        x.push_back(middle + random.real(-1.0F, 1.0F));
      }
      y.push_back(random.real(-1.0F, 1.0F));
    }
  }
  [[nodiscard]] normalised_network::batch view() const { return {{x.data(), y.size(), inputs}, y}; }
  [[nodiscard]] normalised_network::batch part(lockstep::plan::range r) const {
    return lockstep::slice(view(), r.first, r.count);
  }

  std::vector<float> x;
  std::vector<float> y;
};

/// Which samples are normalised together.
using index_set = std::vector<std::size_t>;

/// What the ranks of a trainer have in their micro-batches: the i-th pieces of all their shards together.
std::vector<index_set> micro_batches_of(std::size_t count, std::size_t ranks, std::size_t micro_batches) {
  std::vector<index_set> sets((std::min)(micro_batches, lockstep::plan::split(count, ranks, 0).count));
  for (std::size_t r = 0; r < ranks; ++r) {
    lockstep::plan::range const shard = lockstep::plan::split(count, ranks, r);
    for (std::size_t i = 0; i < sets.size(); ++i) {
      lockstep::plan::range const piece = lockstep::plan::split(shard.count, sets.size(), i);
      for (std::size_t s = 0; s < piece.count; ++s) {
        sets[i].push_back(shard.first + piece.first + s);
      }
    }
  }
  return sets;
}

/// The network and its training by gradient descent, by the chain rule through mean and variance term by term (section 3 of
/// Ioffe and Szegedy 2015), in double precision.
struct reference {
  explicit reference(normalised_network& start) {
    for (lockstep::parameter const& p : start.parameters()) {
      if (p.trainable()) {
        auto const* const values = static_cast<float const*>(p.value);
        tensors.emplace_back(values, values + p.count());
      }
    }
  }

  struct output {
    double loss = 0;  // the sum over samples of error^2 / 2
    std::vector<std::vector<double>> gradient;
  };

  /// Of one set of samples. Leaves the statistics of the set in `mean` and `variance`.
  [[nodiscard]] output differentiate(samples const& data, index_set const& set) {
    auto const& [w, scale, shift, out, bias] = std::tie(tensors[0], tensors[1], tensors[2], tensors[3], tensors[4]);
    auto const n = static_cast<double>(set.size());
    output result;
    for (std::vector<double> const& tensor : tensors) {
      result.gradient.emplace_back(tensor.size(), 0.0);
    }
    auto& gradient = result.gradient;
    auto const x = [&](std::size_t k, std::size_t i) { return static_cast<double>(data.x[set[k] * inputs + i]); };

    std::vector<std::vector<double>> z(set.size(), std::vector<double>(hidden, 0.0));
    for (std::size_t k = 0; k < set.size(); ++k) {
      for (std::size_t j = 0; j < hidden; ++j) {
        for (std::size_t i = 0; i < inputs; ++i) {
          z[k][j] += w[j * inputs + i] * x(k, i);
        }
      }
    }
    mean.assign(hidden, 0.0);
    variance.assign(hidden, 0.0);
    for (std::size_t j = 0; j < hidden; ++j) {
      for (auto const& row : z) {
        mean[j] += row[j] / n;
      }
      for (auto const& row : z) {
        variance[j] += (row[j] - mean[j]) * (row[j] - mean[j]) / n;
      }
      if (set.size() > 1) {
        least_variance = (std::min)(least_variance, variance[j] + examples::batch_norm::epsilon);
      }
    }

    std::vector<std::vector<double>> by_normalised(set.size(), std::vector<double>(hidden));
    for (std::size_t k = 0; k < set.size(); ++k) {
      std::vector<double> h(hidden), normalised(hidden);
      double predicted = bias[0];
      for (std::size_t j = 0; j < hidden; ++j) {
        normalised[j] = (z[k][j] - mean[j]) / std::sqrt(variance[j] + examples::batch_norm::epsilon);
        h[j] = std::tanh(scale[j] * normalised[j] + shift[j]);
        predicted += out[j] * h[j];
      }
      double const error = predicted - static_cast<double>(data.y[set[k]]);
      result.loss += error * error / 2;
      gradient[4][0] += error;
      for (std::size_t j = 0; j < hidden; ++j) {
        gradient[3][j] += error * h[j];
        double const by_y = error * out[j] * (1 - h[j] * h[j]);
        gradient[2][j] += by_y;
        gradient[1][j] += by_y * normalised[j];
        by_normalised[k][j] = by_y * scale[j];
      }
    }
    for (std::size_t j = 0; j < hidden; ++j) {
      double const deviation = std::sqrt(variance[j] + examples::batch_norm::epsilon);
      double by_variance = 0;
      double by_mean = 0;
      for (std::size_t k = 0; k < set.size(); ++k) {
        by_variance += by_normalised[k][j] * (z[k][j] - mean[j]) * -0.5 / (deviation * deviation * deviation);
        by_mean -= by_normalised[k][j] / deviation;
      }
      for (std::size_t k = 0; k < set.size(); ++k) {
        double const by_z = by_normalised[k][j] / deviation + by_variance * 2 * (z[k][j] - mean[j]) / n + by_mean / n;
        for (std::size_t i = 0; i < inputs; ++i) {
          gradient[0][j * inputs + i] += by_z * x(k, i);
        }
      }
    }
    return result;
  }

  /// One step over micro-batches; returns the mean loss before it.
  double step(samples const& data, std::vector<index_set> const& micro_batches) {
    std::size_t count = 0;
    for (index_set const& set : micro_batches) {
      count += set.size();
    }
    std::vector<std::vector<double>> const before = tensors;
    std::vector<std::vector<double>> next = tensors;
    double loss = 0;
    for (index_set const& set : micro_batches) {
      output const one = differentiate(data, set);
      loss += one.loss;
      for (std::size_t t = 0; t < next.size(); ++t) {
        for (std::size_t e = 0; e < next[t].size(); ++e) {
          next[t][e] -= static_cast<double>(rate) * one.gradient[t][e] / static_cast<double>(count);
        }
      }
      auto const n = static_cast<double>(set.size());
      ++batches;
      double const share = batches <= 10 ? 1 / static_cast<double>(batches) : 0.1;
      for (std::size_t j = 0; j < hidden; ++j) {
        running_mean[j] += share * (mean[j] - running_mean[j]);
        running_variance[j] += share * ((set.size() > 1 ? variance[j] * n / (n - 1) : 0.0) - running_variance[j]);
      }
    }
    tensors = next;
    return loss / static_cast<double>(count);
  }

  std::vector<std::vector<double>> tensors;  // as the network lists them
  std::vector<double> running_mean = std::vector<double>(hidden, 0.0);
  std::vector<double> running_variance = std::vector<double>(hidden, 1.0);
  std::int64_t batches = 0;
  double least_variance = 1;  // of all sets of several samples so far
  std::vector<double> mean;
  std::vector<double> variance;
};

/// The furthest that a network's parameters and running statistics are from the reference's, relative to what is above 1.
double distance(normalised_network& network, reference const& expected) {
  double furthest = 0;
  auto const compare = [&](lockstep::parameter const& p, std::vector<double> const& wanted) {
    REQUIRE(p.count() == wanted.size());
    for (std::size_t e = 0; e < p.count(); ++e) {
      double const off = std::abs(static_cast<double>(static_cast<float const*>(p.value)[e]) - wanted[e]);
      double const relative = off / (std::max)(1.0, std::abs(wanted[e]));
      furthest = std::isnan(relative) ? HUGE_VAL : (std::max)(furthest, relative);
    }
  };
  auto const listed = network.parameters();
  REQUIRE(listed.size() == 8);
  for (std::size_t t = 0; t < 5; ++t) {
    compare(listed[t], expected.tensors[t]);
  }
  compare(listed[5], expected.running_mean);
  compare(listed[6], expected.running_variance);
  CHECK(*static_cast<std::int64_t const*>(listed[7].value) == expected.batches);
  return furthest;
}

/// All bytes of values and buffers.
std::vector<std::byte> bytes_of(normalised_network& network) {
  std::vector<std::byte> bytes;
  for (lockstep::parameter const& p : network.parameters()) {
    auto const* const first = static_cast<std::byte const*>(p.value);
    bytes.insert(bytes.end(), first, first + p.values().bytes());
  }
  return bytes;
}

auto factory(std::uint64_t seed) {
  return [seed](lockstep::device_context<lockstep::host>& device) { return normalised_network{device, inputs, hidden, seed}; };
}

/// Every policy, single_device too, with a number of ranks that it takes.
template <class F>
void for_each_policy(tests::generator& random, F&& f) {
  f(std::type_identity<lockstep::single_device>{}, "single_device", 1);
  support::for_each_parallel_policy([&](auto policy, std::string const& name) { f(policy, name, random.whole(1, 8)); });
  f(std::type_identity<lockstep::sharded_optimizer<>>{}, "sharded_optimizer", random.whole(1, 8));
}

}  // namespace

TEST_CASE("batch_norm: gradients are the derivative of the loss, on one device and on several, with micro-batches") {
  tests::generator random{3};
  samples const data{random, 11};
  for (std::size_t const micro_batches : {1U, 2U}) {
    CAPTURE(micro_batches);
    lockstep::gradient_check_options const options{.micro_batches = micro_batches};
    auto const alone =
        lockstep::gradient_check<normalised_network>(lockstep::devices::first(1), factory(1), data.view(), options);
    CHECK(alone.checked == hidden * inputs + 3 * hidden + 1);
    CHECK_MESSAGE(alone.within(), to_string(alone));
    auto const together = lockstep::gradient_check<normalised_network, lockstep::peer_all_reduce<>>(
        lockstep::devices::first(4), factory(1), data.view(), options);
    CHECK_MESSAGE(together.within(), to_string(together));
  }
}

TEST_CASE("batch_norm: the reference's own gradient is the derivative of its loss") {
  tests::generator random{4};
  samples const data{random, 9};
  lockstep::host::device device;
  lockstep::device_context<lockstep::host> context{device, rank_id{0}, 1};
  normalised_network network = factory(2)(context);
  reference expected{network};
  index_set const set{0, 2, 3, 5, 8};
  auto const gradient = expected.differentiate(data, set).gradient;
  for (std::size_t t = 0; t < expected.tensors.size(); ++t) {
    for (std::size_t e = 0; e < expected.tensors[t].size(); ++e) {
      double const value = expected.tensors[t][e];
      double const h = 1e-5;
      expected.tensors[t][e] = value + h;
      double const above = expected.differentiate(data, set).loss;
      expected.tensors[t][e] = value - h;
      double const below = expected.differentiate(data, set).loss;
      expected.tensors[t][e] = value;
      CHECK(std::abs(gradient[t][e] - (above - below) / (2 * h)) < 1e-6);
    }
  }
}

TEST_CASE("batch_norm: over uneven and empty shards, training is that of one device with all samples") {
  std::uint64_t const seed = tests::seed();
  CAPTURE(seed);
  tests::generator random{seed};
  for (int trial = 0; trial < 60; ++trial) {
    std::uint64_t const model_seed = random.whole(0, 1000);
    std::size_t const micro_batches = random.whole(1, 4);
    std::vector<samples> batches;
    for (int k = 0; k < 4; ++k) {
      batches.emplace_back(random, random.whole(1, random.chance(0.4) ? 8 : 40));
    }
    for_each_policy(random, [&]<class Policy>(std::type_identity<Policy>, std::string const& name, std::size_t ranks) {
      CAPTURE(trial);
      CAPTURE(name);
      CAPTURE(ranks);
      CAPTURE(micro_batches);
      lockstep::trainer<normalised_network, lockstep::sgd, Policy> trainer{
          lockstep::devices::first(static_cast<int>(ranks)), factory(model_seed), lockstep::sgd{.learning_rate = rate}};
      reference expected{trainer.model()};
      for (samples const& data : batches) {
        CAPTURE(data.y.size());
        double const loss = trainer.step(data.view(), {.micro_batches = micro_batches}).loss();
        double const wanted = expected.step(data, micro_batches_of(data.y.size(), ranks, micro_batches));
        // Samples are divided by their deviation, and gradients once more: f32's rounding grows with both, where few samples
        // that lie close together are normalised.
        double const tolerance = 5e-4 * (std::max)(1.0, 1e-2 / expected.least_variance);
        CHECK(std::abs(loss - wanted) < tolerance * (std::max)(1.0, wanted));
        CHECK(distance(trainer.model(), expected) < tolerance);
        auto const first = bytes_of(trainer.model());
        for (std::size_t r = 1; r < ranks; ++r) {
          CHECK(bytes_of(trainer.model(rank_id{static_cast<int>(r)})) == first);
        }
      }
    });
  }
}

TEST_CASE("batch_norm: inputs far from zero cost no more than their own rounding") {
  tests::generator random{5};
  samples const data{random, 30, 1000.0F};
  lockstep::trainer<normalised_network, lockstep::sgd, lockstep::peer_all_reduce<>> trainer{
      lockstep::devices::first(4), factory(6), lockstep::sgd{.learning_rate = rate}};
  reference expected{trainer.model()};
  double const loss = trainer.step(data.view()).loss();
  CHECK(loss == doctest::Approx(expected.step(data, micro_batches_of(30, 4, 1))).epsilon(1e-3));
  auto const listed = trainer.model().parameters();
  for (std::size_t j = 0; j < hidden; ++j) {
    CHECK(static_cast<double>(static_cast<float const*>(listed[5].value)[j]) ==
          doctest::Approx(expected.running_mean[j]).epsilon(1e-6));
    CHECK(static_cast<double>(static_cast<float const*>(listed[6].value)[j]) ==
          doctest::Approx(expected.running_variance[j]).epsilon(1e-3));
  }
}

TEST_CASE("batch_norm: prediction takes the running statistics, whatever is predicted together") {
  tests::generator random{7};
  samples const data{random, 20};
  lockstep::trainer<normalised_network, lockstep::sgd, lockstep::peer_all_reduce<>> trainer{
      lockstep::devices::first(3), factory(8), lockstep::sgd{.learning_rate = rate}};
  reference expected{trainer.model()};
  for (int k = 0; k < 15; ++k) {
    trainer.step(data.view(), {.micro_batches = 2});
    static_cast<void>(expected.step(data, micro_batches_of(20, 3, 2)));
  }
  std::vector<float> predicted(20);
  trainer.predict(data.view(), std::span{predicted});
  for (std::size_t s = 0; s < 20; ++s) {
    double wanted = expected.tensors[4][0];
    for (std::size_t j = 0; j < hidden; ++j) {
      double z = -expected.running_mean[j];
      for (std::size_t i = 0; i < inputs; ++i) {
        z += expected.tensors[0][j * inputs + i] * static_cast<double>(data.x[s * inputs + i]);
      }
      double const normalised = z / std::sqrt(expected.running_variance[j] + examples::batch_norm::epsilon);
      wanted += expected.tensors[3][j] * std::tanh(expected.tensors[1][j] * normalised + expected.tensors[2][j]);
    }
    CHECK(std::abs(static_cast<double>(predicted[s]) - wanted) < 5e-4);
  }
  std::vector<float> one(1);
  trainer.predict(data.part({7, 1}), std::span{one});
  CHECK(one[0] == predicted[7]);
}
