// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

#include "support/policies.hpp"
#include "support/pull_model.hpp"
#include "support/thrown.hpp"

#include <lockstep/lockstep.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

using lockstep::host;

using support::contains;

namespace {

host::options const checked{.checking = lockstep::checking::marks};

/// Two chained weights, y = second * (first * x), with a backward pass that the test writes.
template <class Value>
struct chain {
  using backend = host;
  using batch = std::span<float const>;
  Value first{1.5F};
  Value second{0.5F};
  Value unused[3]{Value{1.0F}, Value{1.0F}, Value{1.0F}};
  float first_gradient = 0;
  float second_gradient = 0;
  float unused_gradient[3]{};
  std::function<void(chain&, lockstep::train_context<host>&, float)> backward;

  std::array<lockstep::parameter, 3> parameters() {
    return {{{"unused", unused, unused_gradient, {3}},
             {"first", &first, &first_gradient, {1}},
             {"second", &second, &second_gradient, {1}}}};
  }
  void train(lockstep::train_context<host>& ctx, batch const& shard) {
    for (std::size_t i = 0; i < shard.size(); ++i) {
      bool const last = i + 1 == shard.size();
      backward(*this, ctx, last ? shard[i] : 0.0F);
    }
  }
};

template <class Value, class Policy>
std::string complaint(std::function<void(chain<Value>&, lockstep::train_context<host>&, float)> const& backward, int ranks) {
  std::vector<float> const samples(static_cast<std::size_t>(ranks), 2.0F);
  lockstep::trainer<chain<Value>, lockstep::sgd, Policy> trainer{lockstep::devices::first(ranks),
                                                                 [&](auto&) {
                                                                   chain<Value> made;
                                                                   made.backward = backward;
                                                                   return made;
                                                                 },
                                                                 lockstep::sgd{.learning_rate = 0.5F}, checked};
  float const before = static_cast<float>(trainer.model().first);
  try {
    trainer.step(samples);
    trainer.step(samples);
  } catch (lockstep::usage_error const& e) {
    return e.what();
  }
  CHECK(static_cast<float>(trainer.model().first) != before);  // values came back, and were updated
  CHECK(static_cast<float>(trainer.model().first) == static_cast<float>(trainer.model().first));
  return {};
}

template <class Value, class Policy>
void check_chain(int ranks) {
  using model = chain<Value>;
  using context = lockstep::train_context<host>;
  auto const as_float = [](Value v) { return static_cast<float>(v); };
  CHECK(complaint<Value, Policy>(
            [&](model& m, context& ctx, float x) {
              m.second_gradient += ctx.sample_weight() * as_float(m.first) * x;
              m.first_gradient += ctx.sample_weight() * as_float(m.second) * x;
              ctx.gradient_ready(2);
              ctx.gradient_ready(1, 1);
              ctx.gradient_ready(2);
            },
            ranks)
            .empty());
  std::string const written = complaint<Value, Policy>(
      [&](model& m, context& ctx, float x) {
        ctx.gradient_ready(2);
        m.second_gradient += ctx.sample_weight() * as_float(m.first) * x;
        m.first_gradient += ctx.sample_weight() * x;
      },
      ranks);
  CHECK_MESSAGE(contains(written, "gradient_ready was called too early for parameter 'second': its gradient was written"),
                written);
  std::string const read = complaint<Value, Policy>(
      [&](model& m, context& ctx, float x) {
        m.second_gradient += ctx.sample_weight() * as_float(m.first) * x;
        ctx.gradient_ready(std::span{&m.second_gradient, 1});
        m.first_gradient += ctx.sample_weight() * as_float(m.second) * x;  // its value, too late
      },
      ranks);
  bool const named = std::is_same_v<Value, float>;  // NaNs keep their number while their type stays
  CHECK_MESSAGE(
      contains(read, named ? "too early for parameter 'second': its value was read afterwards, for the gradient of 'first'"
                           : "its value was read afterwards, for the gradient of 'first'"),
      read);
}

}  // namespace

TEST_CASE("checking::marks: a gradient written, or a value read, after its mark is named; good marks pass") {
  check_chain<float, lockstep::single_device>(1);
  check_chain<lockstep::bfloat16, lockstep::single_device>(1);
  support::for_each_parallel_policy([&]<class Policy>(std::type_identity<Policy>, std::string const& name) {
    CAPTURE(name);
    check_chain<float, Policy>(3);
    check_chain<lockstep::float16, Policy>(2);
  });
}

TEST_CASE("checking::marks: however good marks come, the result has the same bits as without") {
  support::for_each_parallel_policy([&]<class Policy>(std::type_identity<Policy>, std::string const& name) {
    CAPTURE(name);
    for (int way = 0; way <= static_cast<int>(support::marking::shuffled); ++way) {
      CAPTURE(way);
      support::pull_plan const plan{.counts = {40, 300, 0, 7, 500},
                                    .memory = support::layout::arena,
                                    .marks = static_cast<support::marking>(way),
                                    .tied = {1}};
      auto const end_of = [&](host::options const& options) {
        lockstep::trainer<support::pull_model<>, lockstep::sgd, Policy> trainer{
            lockstep::devices::first(3), [&](auto&) { return support::pull_model<>{plan}; }, lockstep::sgd{.momentum = 0.5F},
            options};
        tests::generator random{8};
        support::pull_samples const samples{random, 10, 3};
        double loss = 0;
        for (int k = 0; k < 4; ++k) {
          loss += trainer.step(samples.view(), {.micro_batches = 2}).loss();
        }
        return loss;
      };
      CHECK(end_of(checked) == end_of({}));
    }
  });
}
