// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ruled_model.hpp"

#include <lockstep/lockstep.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

/// What steps mean on every backend and under every policy: weights, metrics, votes, unused parameters, loss scale and the
/// bound of the norm, over uneven and empty shards and micro-batches, against one device in double precision. A setup says
/// where:
/// - `backend`; `memory(rank, bytes)`, a std::shared_ptr<void> to memory of a rank's device; `copy(to, from, bytes)`, at once;
/// - `options()` of the backend.
namespace ruled_cases {

using lockstep::rank_id;
using support::rows;
using support::ruled_model;
using support::ruled_reference;
using support::weighed_rows;

/// A batch on the devices of all ranks, whose contents change.
template <class Setup, class Batch>
class resident {
 public:
  resident(int ranks, std::size_t most_rows, std::size_t width) : width_(width) {
    for (int r = 0; r < ranks; ++r) {
      on_.push_back(Setup::memory(r, most_rows * width * sizeof(float)));
    }
    host_.resize(most_rows * width);
  }

  void set(std::vector<float> const& all) {
    std::copy(all.begin(), all.end(), host_.begin());
    for (auto const& memory : on_) {
      Setup::copy(memory.get(), host_.data(), all.size() * sizeof(float));
    }
  }
  [[nodiscard]] std::vector<Batch> shards(std::vector<std::size_t> const& sizes) const {
    std::vector<Batch> cut;
    std::size_t first = 0;
    for (std::size_t r = 0; r < on_.size(); ++r) {
      rows const whole{static_cast<float const*>(on_[r].get()), host_.data(), first + sizes[r], width_};
      Batch shard{};
      static_cast<rows&>(shard) = support::slice(whole, first, sizes[r]);
      cut.push_back(shard);
      first += sizes[r];
    }
    return cut;
  }

 private:
  std::size_t width_;
  std::vector<std::shared_ptr<void>> on_;
  std::vector<float> host_;
};

/// Sizes that add up to `samples`, 0 among them.
inline std::vector<std::size_t> random_sizes(tests::generator& random, std::size_t samples, int ranks) {
  std::vector<std::size_t> sizes(static_cast<std::size_t>(ranks), 0);
  std::size_t rest = samples;
  for (std::size_t& size : sizes) {
    size = random.chance(0.3) ? 0 : random.whole(0, rest);
    rest -= size;
  }
  sizes[random.whole(0, sizes.size() - 1)] += rest;
  return sizes;
}

inline lockstep::gradient_rules random_rules(tests::generator& random, bool narrow) {
  lockstep::gradient_rules rules;
  if (random.chance(0.6)) {
    rules.max_norm = random.chance(0.3) ? std::numeric_limits<float>::infinity() : random.real(0.05F, 2.0F);
  }
  if (random.chance(0.6)) {
    rules.loss_scale = lockstep::loss_scale{.initial = narrow ? 4.0F : 65536.0F,
                                            .growth_interval = static_cast<std::uint32_t>(random.whole(1, 4)),
                                            .lowest = 0.5F,
                                            .highest = narrow ? 64.0F : 16777216.0F};
  }
  return rules;
}

/// Samples with what the promises allow to go wrong in them.
inline std::vector<float> random_rows(tests::generator& random, std::size_t count, std::size_t width,
                                      lockstep::model_promises const& promises, bool weighs, bool infinite) {
  std::vector<float> all;
  unsigned const parameters =
      promises.reports_unused || promises.counts_uses ? static_cast<unsigned>(random.whole(0, 31)) : 31U;
  bool const worthless = weighs && random.chance(0.1);
  for (std::size_t s = 0; s < count; ++s) {
    all.push_back(worthless ? 0.0F : weighs ? static_cast<float>(random.whole(0, 5)) : 1.0F);
    all.push_back(static_cast<float>(
        parameters & (promises.counts_uses || promises.reports_unused ? static_cast<unsigned>(random.whole(0, 31)) : 31U)));
    for (std::size_t i = 2; i < width; ++i) {
      all.push_back(random.real(-1.0F, 1.0F));
    }
  }
  std::size_t const row = random.whole(0, count - 1) * width;
  if (infinite && random.chance(0.3)) {  // whichever rank gets it
    all[row] = 1;
    all[row + 1] = 31;
    all[row + 2 + random.whole(0, width - 3)] = std::numeric_limits<float>::infinity() * (random.chance(0.5) ? 1.0F : -1.0F);
  } else if (promises.votes && random.chance(0.3)) {
    all[row] = std::numeric_limits<float>::quiet_NaN();
  }
  return all;
}

template <class Setup, class Trainer>
std::vector<float> values_of(Trainer& trainer, int rank) {
  std::vector<float> all;
  for (lockstep::parameter const& p : trainer.model(rank_id{rank}).parameters()) {
    std::vector<float> mine(p.count());
    Setup::copy(mine.data(), p.value, p.values().bytes());
    all.insert(all.end(), mine.begin(), mine.end());
  }
  return all;
}

/// Checks a result against the reference's, and all ranks' values.
template <class Setup, class Trainer>
void check_step(Trainer& trainer, lockstep::step_result const& result, ruled_reference::outcome const& expected,
                ruled_reference const& truth, double tolerance) {
  CHECK(result.skipped() == expected.skipped);
  CHECK(result.overflowed() == expected.overflowed);
  CHECK(result.loss_scale() == expected.scale);
  CHECK(result.applied_steps() == expected.applied);
  CHECK(result.weight() == doctest::Approx(expected.weight));
  if (lockstep::count_of(truth.promises.metrics) != 0) {
    CHECK(result.metric("positive") == doctest::Approx(expected.positive));
    CHECK(result.metric("seen") == expected.seen);
  }
  if (!expected.overflowed) {
    CHECK(std::abs(result.loss() - expected.loss) <= tolerance * (1 + expected.loss));
    CHECK(std::abs(result.gradient_norm() - expected.norm) <= tolerance * (1 + expected.norm));
  }
  trainer.synchronize();
  auto const root = values_of<Setup>(trainer, 0);
  for (int r = 1; r < trainer.size(); ++r) {
    CAPTURE(r);
    CHECK(values_of<Setup>(trainer, r) == root);
  }
  double worst = 0;
  std::size_t at = 0;
  for (auto const& of_parameter : truth.values) {
    for (double const value : of_parameter) {
      double const off = std::abs(static_cast<double>(root[at++]) - value);
      worst = off <= worst ? worst : off;  // what is no number is worst
    }
  }
  CHECK(worst < tolerance);
}

using scheduled_sgd = lockstep::scheduled<lockstep::sgd, lockstep::step_decay>;

/// One random model, with random rules, for a dozen steps.
template <class Setup, class Policy, class Batch, lockstep::model_promises Promises, class Optimizer = scheduled_sgd>
void train_case(std::uint64_t seed, int ranks) {
  using backend = typename Setup::backend;
  using model = ruled_model<backend, Batch, Promises>;
  tests::generator random{seed};
  std::vector<std::size_t> counts;
  for (std::size_t p = random.whole(1, support::most_ruled); p > 0; --p) {
    counts.push_back(random.whole(1, random.chance(0.3) ? 400 : 20));
  }
  bool const narrow = random.chance(0.3);
  bool const marks = random.chance(0.7);
  constexpr bool weighs = Promises.counts_weight || lockstep::weighted_batch<Batch>;
  lockstep::gradient_rules const rules = random_rules(random, narrow);
  CAPTURE(narrow);
  CAPTURE(rules.max_norm.value_or(0));
  CAPTURE(rules.loss_scale.has_value());
  std::size_t const width = 2 + random.whole(1, 6);
  lockstep::trainer<model, Optimizer, Policy> trainer{
      lockstep::devices::first(ranks),
      [&](auto& device) {
        return model{device, counts, narrow ? lockstep::element_type::f16 : lockstep::element_type::f32, marks};
      },
      Optimizer{{.learning_rate = 0.125F, .momentum = 0.5F}, ruled_reference::schedule}, rules, Setup::options()};
  ruled_reference truth{counts, rules, Promises, weighs};

  constexpr std::size_t most_rows = 60;
  struct fed {
    resident<Setup, Batch> memory;
    std::vector<std::size_t> sizes;
    std::size_t micro_batches;
  };
  std::vector<fed> batches;  // each is trained several times, with new contents: a GPU may replay its step
  for (int i = 0; i < 2; ++i) {
    batches.push_back({resident<Setup, Batch>{ranks, most_rows, width},
                       random_sizes(random, random.whole(1, random.chance(0.4) ? 7 : most_rows), ranks), random.whole(1, 4)});
  }
  double rate = 0.125;
  for (std::size_t k = 0; k < 12; ++k) {
    CAPTURE(k);
    if (k == 6) {
      for (int r = 0; r < ranks; ++r) {
        trainer.optimizer(0, rank_id{r}).learning_rate = 0.0625F;
      }
      rate = 0.0625;
      if (rules.max_norm) {
        truth.rules.max_norm = trainer.rules().max_norm = 0.25F;
      }
    }
    fed& now = batches[k % 2];
    std::size_t count = 0;
    for (std::size_t const size : now.sizes) {
      count += size;
    }
    std::vector<float> const all = random_rows(random, count, width, Promises, weighs, rules.any());
    now.memory.set(all);
    std::vector<Batch> const shards = now.memory.shards(now.sizes);
    auto const result = trainer.step_shards(std::span<Batch const>{shards}, {.micro_batches = now.micro_batches});
    check_step<Setup>(trainer, result, truth.step(all, width, rate, now.sizes), truth, narrow ? 3e-2 : 1e-5);
  }
}

// What models promise.
inline constexpr char positive[] = "positive";
inline constexpr char seen[] = "seen";
inline constexpr lockstep::metric_names metrics{positive, seen};
inline constexpr lockstep::model_promises measured{.honours_accumulate = true, .metrics = metrics};
inline constexpr lockstep::model_promises counting{.counts_weight = true, .votes = true, .metrics = metrics};
inline constexpr lockstep::model_promises reporting{.reports_unused = true, .metrics = metrics};
inline constexpr lockstep::model_promises weighing{.counts_weight = true};
inline constexpr lockstep::model_promises voting{.honours_accumulate = true, .votes = true, .counts_uses = true};

}  // namespace ruled_cases
