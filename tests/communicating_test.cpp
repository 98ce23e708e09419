// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Models that add up over the ranks within train: who calls what, what an empty micro-batch does, and what happens when ranks
// don't do the same.

#include "seed.hpp"
#include "support/policies.hpp"
#include "support/replicas.hpp"
#include "support/threads.hpp"
#include "support/thrown.hpp"

#include <lockstep/lockstep.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

using support::contains;
using support::thrown;

namespace {

using lockstep::rank_id;
using context = lockstep::train_context<lockstep::host>;

constexpr lockstep::model_promises communicating{.communicates = true};
constexpr lockstep::model_promises overwriting{.honours_accumulate = true, .communicates = true};
constexpr lockstep::model_promises reporting{.reports_unused = true, .communicates = true};
constexpr lockstep::model_promises both{.honours_accumulate = true, .reports_unused = true, .communicates = true};

/// y = a (x - the mean of x over all ranks), squared error.
template <lockstep::model_promises Promises = communicating>
struct centred_line {
  using backend = lockstep::host;
  using batch = std::tuple<std::span<float const>, std::span<float const>>;
  static constexpr lockstep::model_promises promises = Promises;

  std::array<lockstep::parameter, 2> parameters() { return {{{"a", &a, &da, {1}}, {"idle", &idle, &idle_gradient, {1}}}}; }

  void train(context& ctx, batch const& shard) {
    auto const& [x, y] = shard;
    calls.push_back(x.size());
    if (before) {
      before(ctx);
    }
    std::array<double, 2> sums{0, static_cast<double>(x.size())};
    for (float const one : x) {
      sums[0] += static_cast<double>(one);
    }
    if (!leaves_out) {
      ctx.all_reduce(std::span{sums});
    }
    auto const mean = static_cast<float>(sums[0] / (std::max)(sums[1], 1.0));
    if (Promises.honours_accumulate && !ctx.accumulate()) {
      da = 0;
      if (!Promises.reports_unused) {
        idle_gradient = 0;
      }
    }
    for (std::size_t i = 0; i < x.size(); ++i) {
      float const error = a * (x[i] - mean) - y[i];
      *ctx.loss() += ctx.sample_weight() * error * error / 2;
      da += ctx.sample_weight() * error * (x[i] - mean);
    }
    if (x.empty() && Promises.reports_unused) {
      ctx.unused(0);
    } else {
      ctx.gradient_ready(std::span{&da, 1});
      ctx.gradient_ready(0);
    }
    if (Promises.reports_unused) {
      ctx.unused(1);
    }
  }

  float a = 1, da = 0;
  float idle = 3, idle_gradient = 0;
  std::vector<std::size_t> calls;  // samples of each call

  // Changed by tests between steps.
  std::function<void(context&)> before;
  bool leaves_out = false;
};

/// What one micro-batch of all ranks together adds to loss and gradient, times the number of samples of the step.
struct centred_sums {
  double loss = 0;
  double gradient = 0;
};
centred_sums centred(double a, std::vector<float> const& x, std::vector<float> const& y) {
  double mean = 0;
  for (float const one : x) {
    mean += static_cast<double>(one) / static_cast<double>(x.size());
  }
  centred_sums sums;
  for (std::size_t i = 0; i < x.size(); ++i) {
    double const error = a * (static_cast<double>(x[i]) - mean) - static_cast<double>(y[i]);
    sums.loss += error * error / 2;
    sums.gradient += error * (static_cast<double>(x[i]) - mean);
  }
  return sums;
}

template <class Policy, class Model = centred_line<>>
struct trainer_of : lockstep::trainer<Model, lockstep::sgd, Policy> {
  explicit trainer_of(int ranks, double timeout_seconds = 20)
      : lockstep::trainer<Model, lockstep::sgd, Policy>{lockstep::devices::first(ranks), [](auto&) { return Model{}; },
                                                        lockstep::sgd{.learning_rate = 0.5F},
                                                        lockstep::host::options{.timeout_seconds = timeout_seconds}} {}
};

std::vector<float> const eight_x{1, 5, 2, 7, 3, 0, 4, 2};
std::vector<float> const eight_y{0, 1, 1, 2, 0, 1, 1, 0};

/// After a failure: the trainer refuses, its threads end, and a new one trains.
template <class Policy>
void expect_healthy_trainer() {
  trainer_of<Policy> trainer{3};
  double const first = trainer.step({eight_x, eight_y}).loss();
  CHECK(first > 0);
  CHECK(trainer.step({eight_x, eight_y}).loss() != first);
}

}  // namespace

TEST_CASE("communicating: train runs on every rank in every micro-batch, with empty shards too, and sees all ranks' samples") {
  std::uint64_t const seed = tests::seed();
  CAPTURE(seed);
  tests::generator random{seed};
  auto const check = [&]<class Model>(std::type_identity<Model>, lockstep::checking checking) {
    support::for_each_tuned_policy([&]<class Policy>(std::type_identity<Policy>, std::string const& name) {
      CAPTURE(name);
      int const ranks = static_cast<int>(random.whole(2, 8));
      lockstep::trainer<Model, lockstep::sgd, Policy> trainer{lockstep::devices::first(ranks), [](auto&) { return Model{}; },
                                                              lockstep::sgd{.learning_rate = 0.125F},
                                                              lockstep::host::options{.checking = checking}};
      double a = 1;
      for (int k = 0; k < 5; ++k) {
        std::size_t const micro_batches = random.whole(1, 4);
        std::vector<std::vector<float>> x(static_cast<std::size_t>(ranks)), y(x.size());
        std::vector<typename Model::batch> shards;
        std::size_t most = 0;
        std::size_t count = 0;
        for (std::size_t r = 0; r < x.size(); ++r) {
          std::size_t const samples = r == 0 ? random.whole(1, 3) : random.whole(0, 6);
          for (std::size_t s = 0; s < samples; ++s) {
            x[r].push_back(random.real(-1, 1));
            y[r].push_back(random.real(-1, 1));
          }
          shards.emplace_back(x[r], y[r]);
          most = (std::max)(most, samples);
          count += samples;
        }
        std::size_t const pieces = (std::min)(most, micro_batches);
        centred_sums expected;
        for (std::size_t i = 0; i < pieces; ++i) {
          std::vector<float> together_x, together_y;
          for (std::size_t r = 0; r < x.size(); ++r) {
            lockstep::plan::range const piece = lockstep::plan::split(x[r].size(), pieces, i);
            for (std::size_t s = piece.first; s < piece.end(); ++s) {
              together_x.push_back(x[r][s]);
              together_y.push_back(y[r][s]);
            }
          }
          centred_sums const one = centred(a, together_x, together_y);
          expected.loss += one.loss;
          expected.gradient += one.gradient;
        }
        double const loss = trainer.step_shards(shards, {.micro_batches = micro_batches}).loss();
        a -= 0.125 * expected.gradient / static_cast<double>(count);
        CHECK(loss == doctest::Approx(expected.loss / static_cast<double>(count)).epsilon(1e-5));
        for (int r = 0; r < ranks; ++r) {
          Model& model = trainer.model(rank_id{r});
          CHECK(model.a == trainer.model().a);
          CHECK(model.idle == 3.0F);
          CHECK(model.calls.size() == pieces);
          model.calls.clear();
        }
        CHECK(static_cast<double>(trainer.model().a) == doctest::Approx(a).epsilon(1e-5));
      }
    });
  };
  check(std::type_identity<centred_line<>>{}, lockstep::checking::none);
  check(std::type_identity<centred_line<>>{}, lockstep::checking::marks);
  check(std::type_identity<centred_line<overwriting>>{}, lockstep::checking::none);
  check(std::type_identity<centred_line<reporting>>{}, lockstep::checking::none);
  check(std::type_identity<centred_line<both>>{}, lockstep::checking::marks);
}

TEST_CASE("communicating: in a loop of the caller's own, ranks without samples run micro-batches of none, at any place") {
  support::for_each_tuned_policy([&]<class Policy>(std::type_identity<Policy>, std::string const& name) {
    CAPTURE(name);
    using model_type = centred_line<overwriting>;
    std::atomic<int> wrong{0};
    // Samples of each rank in each of three micro-batches: the second has none at all.
    static constexpr std::size_t plan[4][3] = {{0, 0, 2}, {3, 0, 1}, {0, 0, 0}, {1, 0, 1}};
    auto const said = support::on_replicas<Policy>(
        4, [](auto&) { return model_type{}; },
        [&](int rank, auto& replica, model_type& mine) {
          double a = 1;
          for (int k = 0; k < 3; ++k) {
            centred_sums expected;
            std::size_t const samples = plan[rank][0] + plan[rank][1] + plan[rank][2];
            auto step = replica.begin({.samples = samples, .total_samples = 8});
            std::size_t used = 0;
            for (std::size_t i = 0; i < 3; ++i) {
              std::vector<float> all_x, all_y, x, y;
              for (int r = 0; r < 4; ++r) {
                for (std::size_t s = 0; s < plan[r][i]; ++s) {
                  std::size_t const sample = used++;
                  (r == rank ? x : all_x).push_back(eight_x[sample]);
                  (r == rank ? y : all_y).push_back(eight_y[sample]);
                }
              }
              {
                auto ctx = step.micro_batch(plan[rank][i]);
                mine.train(ctx, {x, y});
              }
              all_x.insert(all_x.end(), x.begin(), x.end());
              all_y.insert(all_y.end(), y.begin(), y.end());
              centred_sums const one = centred(a, all_x, all_y);
              expected.loss += one.loss;
              expected.gradient += one.gradient;
            }
            auto const result = step.finish();
            a -= 0.5 * expected.gradient / 8;
            wrong += std::abs(result.loss() - expected.loss / 8) > 1e-4 * expected.loss || result.samples() != 8 ? 1 : 0;
            wrong += std::abs(static_cast<double>(mine.a) - a) > 1e-4 * std::abs(a) ? 1 : 0;
          }
        });
    for (std::string const& one : said) {
      CHECK(one == "");
    }
    CHECK(wrong == 0);
  });
}

TEST_CASE("communicating: statistics of any element type add up, several in one call of train") {
  std::atomic<int> wrong{0};
  auto const said = support::on_replicas<lockstep::peer_all_reduce<>>(
      5, [](auto&) { return centred_line<>{}; },
      [&](int rank, auto& replica, centred_line<>& mine) {
        mine.before = [&](context& ctx) {
          std::vector<std::int64_t> whole(1000, rank);
          std::vector<float> real(3, static_cast<float>(rank) / 2);
          ctx.all_reduce(std::span{whole});
          ctx.all_reduce(std::span{real});
          wrong += whole != std::vector<std::int64_t>(1000, 10) || real != std::vector<float>(3, 5.0F) ? 1 : 0;
        };
        auto step = replica.begin({.samples = 1, .total_samples = 5});
        auto ctx = step.micro_batch(1);
        float const x = 1;
        mine.train(ctx, {std::span{&x, 1}, std::span{&x, 1}});
        static_cast<void>(step.finish());
      });
  for (std::string const& one : said) {
    CHECK(one == "");
  }
  CHECK(wrong == 0);
}

TEST_CASE("communicating: a rank that leaves out an all_reduce ends the step on every rank, with both calls named") {
  support::for_each_tuned_policy([&]<class Policy>(std::type_identity<Policy>, std::string const& name) {
    CAPTURE(name);
    for (int const silent : {0, 1, 2}) {
      CAPTURE(silent);
      auto const said = support::on_replicas<Policy>(
          3, [](auto&) { return centred_line<>{}; },
          [&](int rank, auto& replica, centred_line<>& mine) {
            mine.leaves_out = rank == silent;
            auto step = replica.begin({.samples = 1, .total_samples = 3});
            auto ctx = step.micro_batch(1);
            float const x = 1;
            mine.train(ctx, {std::span{&x, 1}, std::span{&x, 1}});
            static_cast<void>(step.finish());
          });
      for (int rank = 0; rank < 3; ++rank) {
        std::string const& one = said[static_cast<std::size_t>(rank)];
        CHECK_MESSAGE(contains(one, silent == 1   ? "rank 1 called "
                                    : silent == 2 ? "rank 2 called "
                                                  : "while rank 0 called "),
                      one);
        CHECK_MESSAGE(contains(one, "all_reduce of 2 f64"), one);
        CHECK_MESSAGE(contains(one, rank == silent ? "reducing gradients" : "adding up over the ranks within train"), one);
      }

      std::size_t const threads = support::thread_count();
      {
        trainer_of<Policy> trainer{3};
        trainer.step({eight_x, eight_y});
        trainer.model(rank_id{silent}).leaves_out = true;
        std::string const first = thrown<lockstep::usage_error>([&] {
          trainer.step({eight_x, eight_y}, {.micro_batches = 2});
        });
        CHECK_MESSAGE(contains(first, "all_reduce of 2 f64"), first);
        CHECK_MESSAGE(first.find("step 2, ") == first.rfind("step 2, "), first);  // one place, the nearest
        CHECK(contains(thrown<lockstep::error>([&] { trainer.step({eight_x, eight_y}); }), "an earlier step failed"));
      }
      CHECK(support::comes_back_to(threads));
    }
    expect_healthy_trainer<Policy>();
  });
}

TEST_CASE("communicating: a rank that runs one micro-batch too few ends the step on every rank") {
  auto const said = support::on_replicas<lockstep::peer_all_reduce<>>(
      3, [](auto&) { return centred_line<>{}; },
      [&](int rank, auto& replica, centred_line<>& mine) {
        auto step = replica.begin({.samples = 2, .total_samples = 6});
        for (std::size_t const samples : rank == 2 ? std::vector<std::size_t>{2} : std::vector<std::size_t>{1, 1}) {
          auto ctx = step.micro_batch(samples);
          mine.train(ctx, {std::span{eight_x}.first(samples), std::span{eight_y}.first(samples)});
        }
        static_cast<void>(step.finish());
      });
  for (std::string const& one : said) {
    CHECK_MESSAGE(contains(one, "rank 2 called "), one);
    CHECK_MESSAGE(contains(one, "while rank 0 called all_reduce of 2 f64"), one);
  }
}

TEST_CASE("communicating: a rank that does not come to an all_reduce is named within the deadline, on every rank") {
  auto const said = support::on_replicas<lockstep::peer_all_reduce<>>(
      3, [](auto&) { return centred_line<>{}; },
      [&](int rank, auto& replica, centred_line<>& mine) {
        if (rank == 1) {
          mine.before = [](context&) { std::this_thread::sleep_for(std::chrono::milliseconds{900}); };
        }
        auto step = replica.begin({.samples = 1, .total_samples = 3});
        auto ctx = step.micro_batch(1);
        float const x = 1;
        mine.train(ctx, {std::span{&x, 1}, std::span{&x, 1}});
        static_cast<void>(step.finish());
      },
      {.timeout_seconds = 0.3});
  for (std::string const& one : said) {
    CHECK_MESSAGE(contains(one, "rank 1 (device 1) did not arrive at all_reduce of 2 f64 within 0.3 seconds"), one);
  }

  trainer_of<lockstep::peer_all_reduce<>> trainer{3, 0.3};
  trainer.step({eight_x, eight_y});
  trainer.model(rank_id{1}).before = [](context&) { std::this_thread::sleep_for(std::chrono::milliseconds{450}); };
  try {
    trainer.step({eight_x, eight_y});
    FAIL("the step should have failed");
  } catch (lockstep::timeout_error const& e) {
    CHECK(e.missing() == rank_id{1});
  }
  expect_healthy_trainer<lockstep::peer_all_reduce<>>();
}

TEST_CASE("communicating: an exception on one rank comes out while the others wait for its statistics, and no thread is left") {
  support::for_each_tuned_policy([&]<class Policy>(std::type_identity<Policy>, std::string const& name) {
    CAPTURE(name);
    std::size_t const threads = support::thread_count();
    for (int const failing : {0, 1, 2}) {
      {
        trainer_of<Policy> trainer{3};
        trainer.step({eight_x, eight_y});
        trainer.model(rank_id{failing}).before = [](context&) {
          std::this_thread::sleep_for(std::chrono::milliseconds{2});
          throw std::runtime_error("no more paper");
        };
        try {
          trainer.step({eight_x, eight_y}, {.micro_batches = 2});
          FAIL("the step should have failed");
        } catch (lockstep::rank_error const& e) {
          std::string const rank = std::to_string(failing);
          CHECK(std::string{e.what()} == "rank " + rank + " (device " + rank + "), step 2, training: no more paper");
        }
        CHECK(trainer.failed());
      }
      CHECK(support::comes_back_to(threads));
    }
    expect_healthy_trainer<Policy>();
  });
}

TEST_CASE("communicating: without the promise all_reduce is refused, and an empty micro-batch too") {
  using silent_line = centred_line<lockstep::model_promises{}>;
  for (int const ranks : {1, 3}) {
    trainer_of<lockstep::peer_all_reduce<>, silent_line> trainer{ranks};
    CHECK(contains(thrown<lockstep::usage_error>([&] {
                     trainer.step({eight_x, eight_y});
                   }),
                   "ctx.all_reduce was called by a model that does not promise communicates"));
  }
  // Nor does train run where there is nothing to train on.
  trainer_of<lockstep::peer_all_reduce<>, silent_line> trainer{3};
  for (int r = 0; r < 3; ++r) {
    trainer.model(rank_id{r}).leaves_out = true;
  }
  trainer.step({std::span{eight_x}.first(2), std::span{eight_y}.first(2)}, {.micro_batches = 2});
  CHECK(trainer.model(rank_id{0}).calls == std::vector<std::size_t>{1});
  CHECK(trainer.model(rank_id{2}).calls.empty());
}

TEST_CASE("communicating: ranks that don't all promise it are refused when they meet") {
  auto communicators = lockstep::communicator_for<lockstep::automatic, lockstep::host>::create(
      std::vector<lockstep::device_id>{lockstep::device_id{0}, lockstep::device_id{1}}, {});
  auto const said = support::on_ranks(2, [&](int rank) {
    lockstep::host::device device{lockstep::device_id{rank}};
    centred_line<> mine;
    lockstep::replica<lockstep::peer_all_reduce<>, lockstep::sgd, lockstep::host> const replica{
        device, std::move(communicators[static_cast<std::size_t>(rank)]), mine.parameters(), lockstep::sgd{},
        lockstep::model_promises{.communicates = rank == 0}};
  });
  for (std::string const& one : said) {
    CHECK_MESSAGE(contains(one, "communicates no"), one);
  }
}
