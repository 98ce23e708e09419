// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Loops of the caller's own whose ranks don't have the same to do: other numbers of batches, steps that one of them leaves out,
// gradients that overflow on one of them.

#include "seed.hpp"
#include "support/policies.hpp"
#include "support/ruled_cases.hpp"
#include "support/ruled_model.hpp"
#include "support/threads.hpp"
#include "support/thrown.hpp"

#include <lockstep/lockstep.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

using support::contains;

namespace {

using lockstep::host;
using support::rows;
using support::ruled_model;
using support::ruled_reference;
using support::weighed_rows;

using optimizer = lockstep::scheduled<lockstep::sgd, lockstep::step_decay>;

/// What one rank has to train on in one step.
struct planned_batch {
  std::vector<float> data;  // rows of ruled_model
  std::size_t micro_batches = 1;
  enum class way { finish, skip_at_once, skip_half_way } ends = way::finish;
};

/// What all ranks do.
struct plan {
  int ranks = 1;
  std::size_t width = 3;
  std::vector<std::size_t> counts;  // elements of each parameter
  lockstep::gradient_rules rules;
  bool knows_totals = false;
  lockstep::updates updates = lockstep::updates::held;
  std::vector<std::vector<planned_batch>> batches;  // by rank, then in order: not as many on every rank

  [[nodiscard]] std::size_t steps() const {
    std::size_t most = 0;
    for (auto const& mine : batches) {
      most = std::max(most, mine.size());
    }
    return most;
  }
  /// The rows of all ranks in step k.
  [[nodiscard]] std::vector<float> rows_of(std::size_t k) const {
    std::vector<float> all;
    for (auto const& mine : batches) {
      if (k < mine.size()) {
        all.insert(all.end(), mine[k].data.begin(), mine[k].data.end());
      }
    }
    return all;
  }
  [[nodiscard]] bool skips(std::size_t k) const {
    return std::any_of(batches.begin(), batches.end(),
                       [k](auto const& mine) { return k < mine.size() && mine[k].ends != planned_batch::way::finish; });
  }
};

/// What a random plan may have in it.
struct wishes {
  bool skips = false;
  bool rules = false;
};

plan random_plan(tests::generator& random, bool weighs, wishes const& wanted) {
  plan made;
  made.ranks = static_cast<int>(random.whole(1, 8));
  made.width = 2 + random.whole(1, 4);
  for (std::size_t p = random.whole(1, support::most_ruled); p > 0; --p) {
    made.counts.push_back(random.whole(1, random.chance(0.3) ? 400 : 20));
  }
  made.knows_totals = random.chance(0.5);
  if (made.knows_totals && !wanted.skips && random.chance(0.5)) {
    made.updates = lockstep::updates::as_reduced;
  }
  if (wanted.rules) {
    do {
      made.rules = ruled_cases::random_rules(random, false);
    } while (!made.rules.any());
  }
  for (int r = 0; r < made.ranks; ++r) {
    std::vector<planned_batch> mine(random.chance(0.2) ? 0 : random.whole(1, 9));
    for (planned_batch& one : mine) {
      one.data =
          ruled_cases::random_rows(random, random.whole(1, 9), made.width, {}, weighs, wanted.rules && random.chance(0.5));
      one.micro_batches = random.whole(1, 3);
      if (wanted.skips && random.chance(0.15)) {
        one.ends = random.chance(0.5) ? planned_batch::way::skip_at_once : planned_batch::way::skip_half_way;
      }
    }
    made.batches.push_back(std::move(mine));
  }
  return made;
}

/// What a rank saw of a step.
struct seen_step {
  double loss = 0;
  double weight = 0;
  double norm = 0;
  double scale = 0;
  bool skipped = false;
  bool overflowed = false;
  std::uint64_t applied = 0;
  std::uint64_t asked_applied = 0;
  std::vector<float> values;

  /// What is no number, of a step that overflowed, is the same as itself.
  friend bool operator==(seen_step const& a, seen_step const& b) {
    auto const same = [](double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); };
    return same(a.loss, b.loss) && same(a.norm, b.norm) && a.weight == b.weight && a.scale == b.scale &&
           a.skipped == b.skipped && a.overflowed == b.overflowed && a.applied == b.applied &&
           a.asked_applied == b.asked_applied && a.values == b.values;
  }
};

constexpr optimizer scheduled_sgd() { return {{.learning_rate = 0.125F, .momentum = 0.5F}, ruled_reference::schedule}; }

std::vector<lockstep::device_id> first_devices(int count) {
  std::vector<lockstep::device_id> ids;
  for (int r = 0; r < count; ++r) {
    ids.push_back(lockstep::device_id{r});
  }
  return ids;
}

/// One rank's loop: as many steps as the rank with most batches has.
template <class Batch, class Replica, class Model>
std::vector<seen_step> run_rank(plan const& all, std::size_t rank, Replica& replica, Model& model) {
  using way = planned_batch::way;
  std::vector<planned_batch> const& mine = all.batches[rank];
  std::vector<seen_step> seen;
  std::uint64_t const steps = replica.longest(mine.size());
  for (std::size_t k = 0; k < steps; ++k) {
    planned_batch const batch = k < mine.size() ? mine[k] : planned_batch{};
    rows const whole{batch.data.data(), batch.data.data(), batch.data.size() / all.width, all.width};
    Batch shard{};
    static_cast<rows&>(shard) = whole;
    std::vector<float> const of_all = all.rows_of(k);
    lockstep::step_info info{.samples = whole.count, .updates = all.updates};
    info.total_samples = all.knows_totals ? of_all.size() / all.width : 0;
    if constexpr (lockstep::weighted_batch<Batch>) {
      if (whole.count != 0 || all.updates == lockstep::updates::as_reduced) {
        info.weight = lockstep::batch_weight(shard);
      }
      if (all.updates == lockstep::updates::as_reduced) {
        double total = 0;
        for (std::size_t i = 0; i < of_all.size(); i += all.width) {
          total += static_cast<double>(of_all[i]);
        }
        info.total_weight = total;
      }
    }
    auto step = replica.begin(info);
    lockstep::step_result result;
    if (batch.ends == way::skip_at_once) {
      result = step.skip();
    } else {
      std::size_t const pieces = std::min(batch.micro_batches, whole.count);
      for (std::size_t i = 0; i < pieces; ++i) {
        auto const piece = lockstep::plan::split(whole.count, pieces, i);
        auto ctx = step.micro_batch(piece.count);
        model.train(ctx, lockstep::slice(shard, piece.first, piece.count));
        if (batch.ends == way::skip_half_way) {
          break;
        }
      }
      result = batch.ends == way::skip_half_way ? step.skip() : step.finish();
    }
    seen_step now{.loss = result.loss(),
                  .weight = result.weight(),
                  .norm = result.gradient_norm(),
                  .scale = result.loss_scale(),
                  .skipped = result.skipped(),
                  .overflowed = result.overflowed(),
                  .applied = result.applied_steps(),
                  .asked_applied = replica.applied_steps(),
                  .values = {}};
    for (lockstep::parameter const& p : model.parameters()) {
      auto const* const value = static_cast<float const*>(p.value);
      now.values.insert(now.values.end(), value, value + p.count());
    }
    seen.push_back(std::move(now));
  }
  return seen;
}

template <class Policy, class Batch>
std::vector<std::vector<seen_step>> run(plan const& all) {
  std::vector<lockstep::device_id> const ids = first_devices(all.ranks);
  host::options const options{.timeout_seconds = 30};
  auto communicators = lockstep::communicator_for<typename Policy::transport, host>::create(ids, options);
  std::vector<std::vector<seen_step>> seen(ids.size());
  auto const said = support::on_ranks(all.ranks, [&](int rank) {
    auto const r = static_cast<std::size_t>(rank);
    host::device device{ids[r], options};
    lockstep::device_context<host> const context{device, lockstep::rank_id{rank}, all.ranks};
    using model_type = ruled_model<host, Batch, lockstep::model_promises{}>;
    model_type model{context, all.counts, lockstep::element_type::f32, true};
    lockstep::replica<Policy, optimizer, host> replica{device,          std::move(communicators[r]), model.parameters(),
                                                       scheduled_sgd(), model_type::promises,        all.rules};
    seen[r] = run_rank<Batch>(all, r, replica, model);
  });
  CHECK(said == std::vector<std::string>(ids.size()));
  return seen;
}

/// Runs a plan, and compares each step with one device's that has all samples at once.
template <class Policy, class Batch>
void check_plan(plan const& all) {
  constexpr double tolerance = 1e-5;
  std::vector<std::vector<seen_step>> const seen = run<Policy, Batch>(all);
  for (auto const& of_rank : seen) {
    REQUIRE(of_rank.size() == all.steps());
    CHECK(of_rank == seen[0]);
  }
  ruled_reference truth{all.counts, all.rules, {}, lockstep::weighted_batch<Batch>};
  std::uint64_t applied = 0;
  std::vector<float> before;
  for (std::size_t k = 0; k < all.steps(); ++k) {
    CAPTURE(k);
    seen_step const& now = seen[0][k];
    if (all.skips(k)) {
      CHECK(now.skipped);
      CHECK((before.empty() || now.values == before));
    } else {
      std::vector<float> const of_all = all.rows_of(k);
      auto const expected = truth.step(of_all, all.width, 0.125, {of_all.size() / all.width});
      applied = expected.applied;
      CHECK(now.skipped == expected.skipped);
      CHECK(now.overflowed == expected.overflowed);
      CHECK(now.scale == expected.scale);
      CHECK(now.weight == doctest::Approx(expected.weight));
      if (!expected.overflowed) {
        CHECK(std::abs(now.loss - expected.loss) <= tolerance * (1 + expected.loss));
        CHECK(std::abs(now.norm - expected.norm) <= tolerance * (1 + expected.norm));
      }
    }
    CHECK(now.applied == applied);
    CHECK(now.asked_applied == applied);
    double worst = 0;
    std::size_t at = 0;
    for (auto const& of_parameter : truth.values) {
      for (double const value : of_parameter) {
        double const off = std::abs(static_cast<double>(now.values[at++]) - value);
        worst = off <= worst ? worst : off;  // what is no number is worst
      }
    }
    CHECK(worst < tolerance);
    before = now.values;
  }
}

void check_random_plans(wishes const& wanted) {
  std::uint64_t const first = tests::seed();
  support::for_each_tuned_policy([&]<class Policy>(std::type_identity<Policy>, std::string const& name) {
    CAPTURE(name);
    for (std::uint64_t seed = first; seed < first + 12; ++seed) {
      CAPTURE(seed);
      tests::generator random{seed};
      check_plan<Policy, rows>(random_plan(random, false, wanted));
      check_plan<Policy, weighed_rows>(random_plan(random, true, wanted));
    }
  });
}

/// One parameter with one element, for tests of who calls what.
struct single_value {
  float value = 0;
  float gradient = 0;
  std::vector<lockstep::parameter> parameters() { return {{"value", &value, &gradient, {1}}}; }

  template <class Replica>
  void take_step(Replica& replica) {
    auto step = replica.begin({.samples = 1, .total_samples = static_cast<std::size_t>(replica.size())});
    auto ctx = step.micro_batch(1);
    gradient += ctx.sample_weight();
    static_cast<void>(step.finish());
  }
};

/// A thread a rank, each with a replica of a single_value; returns what each threw.
template <class Policy = lockstep::peer_all_reduce<>, class Work>
std::vector<std::string> with_single_values(int size, Work work, double timeout_seconds = 30) {
  std::vector<lockstep::device_id> const ids = first_devices(size);
  host::options const options{.timeout_seconds = timeout_seconds};
  auto communicators = lockstep::communicator_for<typename Policy::transport, host>::create(ids, options);
  return support::on_ranks(size, [&](int rank) {
    auto const r = static_cast<std::size_t>(rank);
    host::device device{ids[r], options};
    single_value mine;
    lockstep::replica<Policy, lockstep::sgd, host> replica{device, std::move(communicators[r]), mine.parameters(),
                                                           lockstep::sgd{.learning_rate = 1.0F}};
    work(rank, replica, mine);
  });
}

}  // namespace

TEST_CASE("replica rules: ranks with other numbers of batches step as often as the longest, with one device's result") {
  check_random_plans({});
}

TEST_CASE("replica rules: steps that any rank leaves out are left out everywhere, and schedules don't count them") {
  check_random_plans({.skips = true});
}

TEST_CASE("replica rules: gradients that overflow on one rank skip the step and lower the loss scale on all") {
  check_random_plans({.rules = true});
  check_random_plans({.skips = true, .rules = true});
}

TEST_CASE("replica rules: an infinity on each rank in turn halves the loss scale everywhere, and nothing else moves") {
  support::for_each_parallel_policy([&]<class Policy>(std::type_identity<Policy>, std::string const& name) {
    CAPTURE(name);
    plan all;
    all.ranks = 4;
    all.counts = {5, 300};
    all.rules.max_norm = 0.5F;
    all.rules.loss_scale = lockstep::loss_scale{.initial = 1024, .growth_interval = 100};
    all.batches.resize(4);
    for (std::size_t k = 0; k < 8; ++k) {
      for (std::size_t r = 0; r < 4; ++r) {
        bool const infinite = k % 2 == 1 && k / 2 == r;
        all.batches[r].push_back({{1, 31, infinite ? std::numeric_limits<float>::infinity() : 0.5F}, 1});
      }
    }
    std::vector<std::vector<seen_step>> const seen = run<Policy, rows>(all);
    for (auto const& of_rank : seen) {
      CHECK(of_rank == seen[0]);
      for (std::size_t k = 0; k < 8; ++k) {
        CAPTURE(k);
        CHECK(of_rank[k].skipped == (k % 2 == 1));
        CHECK(of_rank[k].overflowed == (k % 2 == 1));
        CHECK(of_rank[k].scale == 1024 / std::pow(2.0, static_cast<double>(k / 2)));
        CHECK(of_rank[k].applied == k / 2 + 1);
        CHECK((k == 0 || (of_rank[k].values == of_rank[k - 1].values) == (k % 2 == 1)));
      }
    }
    check_plan<Policy, rows>(all);
  });
}

TEST_CASE("replica rules: longest gives every rank the largest number, between steps too") {
  std::uint64_t const seed = tests::seed();
  CAPTURE(seed);
  for (int ranks = 1; ranks <= 8; ++ranks) {
    CAPTURE(ranks);
    tests::generator random{seed + static_cast<std::uint64_t>(ranks)};
    std::vector<std::vector<std::uint64_t>> numbers(10);
    for (auto& of_ranks : numbers) {
      for (int r = 0; r < ranks; ++r) {
        of_ranks.push_back(random.chance(0.2) ? SIZE_MAX - random.whole(0, 1)
                                              : random.whole(0, random.chance(0.5) ? 3 : SIZE_MAX));
      }
    }
    std::atomic<int> wrong{0};
    auto const said = with_single_values(ranks, [&](int rank, auto& replica, single_value& mine) {
      for (auto const& of_ranks : numbers) {
        std::uint64_t const most = *std::max_element(of_ranks.begin(), of_ranks.end());
        wrong += replica.longest(of_ranks[static_cast<std::size_t>(rank)]) != most ? 1 : 0;
        mine.take_step(replica);
      }
      wrong += mine.value != -10.0F || replica.applied_steps() != 10 ? 1 : 0;
    });
    CHECK(said == std::vector<std::string>(static_cast<std::size_t>(ranks)));
    CHECK(wrong == 0);
  }
}

TEST_CASE("replica rules: longest is refused while a step is open, which can still be finished; after a failure it throws") {
  std::atomic<int> wrong{0};
  auto said = with_single_values(3, [&](int, auto& replica, single_value& mine) {
    auto step = replica.begin({.samples = 1, .total_samples = 3});
    try {
      static_cast<void>(replica.longest(1));
      ++wrong;
    } catch (lockstep::usage_error const& e) {
      wrong += e.what() != std::string("lockstep: longest: the step before has not ended") ? 1 : 0;
    }
    auto ctx = step.micro_batch(1);
    mine.gradient += ctx.sample_weight();
    wrong += step.finish().samples() != 3 || replica.longest(1) != 1 || replica.failed() ? 1 : 0;
  });
  CHECK(said == std::vector<std::string>(3));
  CHECK(wrong == 0);
  said = with_single_values(3, [&](int rank, auto& replica, single_value& mine) {
    if (rank == 1) {
      static_cast<void>(replica.begin({.samples = 1, .total_samples = 3}));  // left unfinished
    } else {
      try {
        mine.take_step(replica);
      } catch (lockstep::error const&) {  // goes on, as no loop should
      }
    }
    static_cast<void>(replica.longest(7));
  });
  for (std::string const& one : said) {
    CHECK_MESSAGE(contains(one, "rank 1 (device 1), step 1, step left unfinished"), one);
  }
}

TEST_CASE("replica rules: a step that is done lets the next begin, though it is still in scope, and is counted") {
  std::atomic<int> wrong{0};
  auto const said = with_single_values(2, [&](int, auto& replica, single_value& mine) {
    auto const train = [&mine](auto& step) {
      auto ctx = step.micro_batch(1);
      mine.gradient += ctx.sample_weight();
    };
    {
      auto first = replica.begin({.samples = 1, .total_samples = 2});
      train(first);
      static_cast<void>(first.finish());
      wrong += replica.applied_steps() != 1 ? 1 : 0;
      auto second = replica.begin({.samples = 1, .total_samples = 2});
      train(second);
      wrong += replica.applied_steps() != 1 ? 1 : 0;
      static_cast<void>(second.finish());
      wrong += replica.applied_steps() != 2 || mine.value != -2.0F ? 1 : 0;
    }
    mine.take_step(replica);
    wrong += replica.failed() || replica.applied_steps() != 3 ? 1 : 0;
  });
  CHECK(said == std::vector<std::string>(2));
  CHECK(wrong == 0);
}

TEST_CASE("replica rules: a rank that forgets a step is named within the deadline, in the last step of the others") {
  std::uint64_t const seed = tests::seed();
  CAPTURE(seed);
  tests::generator random{seed};
  support::for_each_parallel_policy([&]<class Policy>(std::type_identity<Policy>, std::string const& name) {
    CAPTURE(name);
    int const ranks = static_cast<int>(random.whole(2, 4));
    int const forgetful = static_cast<int>(random.whole(0, static_cast<std::size_t>(ranks) - 1));
    std::size_t const steps = random.whole(1, 5);
    std::size_t const forgotten = random.whole(0, steps - 1);
    CAPTURE(ranks);
    CAPTURE(forgetful);
    CAPTURE(steps);
    std::atomic<int> timeouts{0};
    auto const said = with_single_values<Policy>(
        ranks,
        [&](int rank, auto& replica, single_value& mine) {
          std::uint64_t const all = replica.longest(steps);
          for (std::uint64_t k = 0; k < all; ++k) {
            if (rank == forgetful && k == forgotten) {
              continue;
            }
            try {
              mine.take_step(replica);
            } catch (lockstep::timeout_error const& e) {
              bool const in_last = contains(e.what(), "step " + std::to_string(steps) + ", ");
              timeouts += in_last && e.missing() == lockstep::rank_id{forgetful} ? 1 : 0;
              throw;
            }
          }
        },
        1);
    CHECK(timeouts >= 1);
    for (int r = 0; r < ranks; ++r) {
      std::string const& one = said[static_cast<std::size_t>(r)];
      if (r == forgetful) {
        CHECK(one.empty());
      } else {
        std::string const who = std::to_string(forgetful);
        CHECK_MESSAGE(contains(one, "rank " + who + " (device " + who + ") did not arrive at "), one);
      }
    }
  });
}

TEST_CASE("replica rules: a rank that steps while the others agree on the longest is told so") {
  auto const said = with_single_values(3, [&](int rank, auto& replica, single_value& mine) {
    mine.take_step(replica);
    if (rank != 2) {
      static_cast<void>(replica.longest(4));
    }
    mine.take_step(replica);
  });
  for (std::string const& one : said) {
    CHECK_MESSAGE(contains(one, " called all_gather of "), one);
    CHECK_MESSAGE(contains(one, " called all_reduce of "), one);
  }
}

TEST_CASE("replica rules: ranks whose rules or promises differ are refused when they meet, and the difference is named") {
  struct difference {
    lockstep::gradient_rules rules;
    lockstep::model_promises promises;
    std::string words;
    std::string usual_words;
  };
  lockstep::gradient_rules const usual{.max_norm = 2.0F, .loss_scale = lockstep::loss_scale{}};
  lockstep::gradient_rules other_scale = usual;
  other_scale.loss_scale->backoff = 0.25F;
  lockstep::gradient_rules other_start = usual;
  other_start.loss_scale->initial = 1024.0F;
  static constexpr char correct[] = "correct";
  std::vector<difference> const differences{
      {{.loss_scale = lockstep::loss_scale{}}, {}, "max_norm no", "max_norm 2"},
      {{.max_norm = 2.5F, .loss_scale = lockstep::loss_scale{}}, {}, "max_norm 2.5", "max_norm 2,"},
      {{.max_norm = 2.0F}, {}, "loss_scale no", "loss_scale initial 65536"},
      {other_scale, {}, "backoff 0.25", "backoff 0.5"},
      {other_start, {}, "initial 1024", "initial 65536"},
      {usual, {.reports_unused = true}, "reports_unused yes", "reports_unused no"},
      {usual, {.counts_uses = true}, "counts_uses yes", "counts_uses no"},
      {usual, {.counts_weight = true}, "counts_weight yes", "counts_weight no"},
      {usual, {.votes = true}, "votes yes", "votes no"},
      {usual, {.communicates = true}, "communicates yes", "communicates no"},
      {usual, {.metrics = {correct}}, "metrics 'correct',", "metrics none,"},
  };
  std::vector<lockstep::device_id> const ids = first_devices(3);
  for (difference const& one : differences) {
    CAPTURE(one.words);
    for (int different = 0; different < 3; different += 2) {
      host::options const options{.timeout_seconds = 30};
      auto communicators = lockstep::shared_memory_communicator::create(ids, options);
      auto const said = support::on_ranks(3, [&](int rank) {
        host::device device{lockstep::device_id{rank}, options};
        single_value mine;
        bool const differs = rank == different;
        lockstep::replica<lockstep::peer_all_reduce<>, lockstep::sgd, host> const replica{
            device,          std::move(communicators[static_cast<std::size_t>(rank)]), mine.parameters(),
            lockstep::sgd{}, differs ? one.promises : lockstep::model_promises{},      differs ? one.rules : usual};
      });
      std::string const& usual_or_not = different == 0 ? one.words : one.usual_words;
      std::string const& other = different == 0 ? one.usual_words : one.words;
      for (std::string const& text : said) {
        std::size_t const first = text.find("settings is the first difference: rank 0 has ");
        std::size_t const second = text.find(different == 0 ? ", rank 1 has " : ", rank 2 has ");
        CHECK_MESSAGE((first != std::string::npos && second != std::string::npos && first < second), text);
        CHECK_MESSAGE(contains(text.substr(first, second - first) + ",", usual_or_not), text);
        CHECK_MESSAGE(contains(text.substr(second), other), text);
      }
    }
  }
}

TEST_CASE("replica rules: ranks that were promised different weights, wrong ones or none are found out") {
  for (int way = 0; way < 3; ++way) {
    CAPTURE(way);
    auto const said = with_single_values(3, [&](int rank, auto& replica, single_value& model) {
      bool const other = rank == 1;
      lockstep::step_info info{.samples = 1, .total_samples = 3, .updates = lockstep::updates::as_reduced};
      if (way != 1 || !other) {
        info.weight = 2.0;
        info.total_weight = way == 0 && other ? 7.0 : way == 2 ? 5.0 : 6.0;  // it is 6
      }
      auto step = replica.begin(info);
      auto ctx = step.micro_batch(1);
      model.gradient += ctx.sample_weight();
      static_cast<void>(step.finish());
    });
    for (std::string const& what : said) {
      CHECK(contains(what, "every rank gives its weight, and the same total_weight"));
    }
  }
}
