// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

#include "support/policies.hpp"
#include "support/pull_model.hpp"
#include "support/threads.hpp"
#include "support/thrown.hpp"

#include <lockstep/lockstep.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

using support::layout;
using support::pull_model;
using support::pull_plan;
using support::pull_samples;

using support::contains;
using support::thrown;

namespace {

lockstep::host::options with_faults(lockstep::host_faults faults, double timeout_seconds = 20) {
  return {.timeout_seconds = timeout_seconds, .faults = std::make_shared<lockstep::host_faults const>(std::move(faults))};
}

template <class Policy>
using pull_trainer = lockstep::trainer<pull_model<>, lockstep::sgd, Policy>;

template <class Policy>
void expect_healthy_trainer() {
  pull_trainer<Policy> trainer{lockstep::devices::first(4), [](auto&) { return pull_model<>{{}}; }, lockstep::sgd{}};
  tests::generator random{1};
  pull_samples const samples{random, 8, 2};
  CHECK(trainer.step(samples.view()).loss() > 0);
  CHECK(trainer.step(samples.view()).loss() > 0);
}

struct user_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace

TEST_CASE("trainer: an exception in one model's train reaches the caller with its place, and no thread is left") {
  support::for_each_parallel_policy([&]<class Policy>(std::type_identity<Policy>, std::string const& name) {
    CAPTURE(name);
    std::size_t const threads = support::thread_count();
    for (int const failing : {0, 2, 3}) {
      {
        pull_plan const plan{.counts = std::vector<std::size_t>(20, 300), .marks = support::marking::in_order};
        pull_trainer<Policy> trainer{lockstep::devices{7, 5, 3, 1}, [&](auto&) { return pull_model<>{plan}; }, lockstep::sgd{}};
        tests::generator random{1};
        pull_samples const samples{random, 8, 2};
        trainer.step(samples.view());
        trainer.model(lockstep::rank_id{failing}).before_train = [](auto&) { throw user_error("no more paper"); };
        try {
          trainer.step(samples.view());
          FAIL("the step should have failed");
        } catch (lockstep::rank_error const& e) {
          CHECK(e.rank() == lockstep::rank_id{failing});
          CHECK(std::string{e.what()} == "rank " + std::to_string(failing) + " (device " + std::to_string(7 - 2 * failing) +
                                             "), step 2, training: no more paper");
          CHECK_THROWS_AS(std::rethrow_if_nested(e), user_error);
        }
        // The trainer says that its parameters are invalid.
        CHECK(contains(thrown<lockstep::error>([&] { trainer.step(samples.view()); }), "no more paper"));
        std::vector<float> out(8);
        CHECK(contains(thrown<lockstep::error>([&] { trainer.predict(samples.view(), std::span{out}); }), "invalid"));
        CHECK(trainer.failed());
      }
      CHECK(support::comes_back_to(threads));
    }
    expect_healthy_trainer<Policy>();
  });
}

TEST_CASE("trainer: an injected fault at any step on any device ends the step everywhere") {
  support::for_each_parallel_policy([&]<class Policy>(std::type_identity<Policy>, std::string const& name) {
    CAPTURE(name);
    for (int device = 0; device < 4; ++device) {
      for (std::uint64_t step = 1; step <= 3; ++step) {
        CAPTURE(device);
        CAPTURE(step);
        pull_trainer<Policy> trainer{lockstep::devices::first(4), [](auto&) { return pull_model<>{{}}; }, lockstep::sgd{},
                                     with_faults({.exceptions = {{lockstep::device_id{device}, step}}})};
        tests::generator random{1};
        pull_samples const samples{random, 8, 2};
        for (std::uint64_t k = 1; k < step; ++k) {
          trainer.step(samples.view());
        }
        std::string const said = thrown<lockstep::injected_fault>([&] { trainer.step(samples.view()); });
        CHECK(contains(said, "rank " + std::to_string(device) + " (device " + std::to_string(device) + "), step " +
                                 std::to_string(step) + ", training"));
      }
    }
  });
}

TEST_CASE("trainer: an allocation that fails on one device unwinds all, and says which device and how much") {
  support::for_each_parallel_policy([&]<class Policy>(std::type_identity<Policy>, std::string const& name) {
    CAPTURE(name);
    std::size_t const threads = support::thread_count();
    std::size_t refused = 0;
    for (int device = 0; device < 4; ++device) {
      for (std::uint64_t from = 1; from <= 12; ++from) {  // every allocation of construction, and of the first steps
        CAPTURE(device);
        CAPTURE(from);
        std::string const said = thrown<lockstep::out_of_memory>([&] {
          pull_trainer<Policy> trainer{lockstep::devices::first(4), [](auto&) { return pull_model<>{{}}; }, lockstep::sgd{},
                                       with_faults({.allocations = {{lockstep::device_id{device}, from}}})};
          tests::generator random{1};
          pull_samples const samples{random, 8, 2};
          trainer.step(samples.view());
          trainer.step(samples.view());
        });
        if (!said.empty()) {
          ++refused;
          CHECK(contains(said, "device " + std::to_string(device) + ": out of memory allocating"));
        }
      }
    }
    CHECK(refused >= 4 * 6);
    CHECK(support::comes_back_to(threads));
    expect_healthy_trainer<Policy>();
  });
}

TEST_CASE("trainer: a device that never arrives is named within the deadline") {
  support::for_each_parallel_policy([&]<class Policy>(std::type_identity<Policy>, std::string const& name) {
    CAPTURE(name);
    std::size_t const threads = support::thread_count();
    for (int const absent : {0, 3}) {
      CAPTURE(absent);
      auto const start = std::chrono::steady_clock::now();
      {
        pull_trainer<Policy> trainer{lockstep::devices::first(4), [](auto&) { return pull_model<>{{}}; }, lockstep::sgd{},
                                     with_faults({.absences = {{lockstep::device_id{absent}, 2}}}, 0.3)};
        tests::generator random{1};
        pull_samples const samples{random, 8, 2};
        trainer.step(samples.view());
        try {
          trainer.step(samples.view());
          FAIL("the step should have failed");
        } catch (lockstep::timeout_error const& e) {
          CHECK(e.missing() == lockstep::rank_id{absent});
          CHECK(contains(e.what(), "rank " + std::to_string(absent)));
        }
      }
      CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds{30});  // and not for ever
      CHECK(support::comes_back_to(threads));
    }
    expect_healthy_trainer<Policy>();
  });
}

TEST_CASE("trainer: a model that does not return is given up, and keeps what it uses alive until it does") {
  struct sleeper : pull_model<> {
    sleeper() : pull_model<>({}) {}
    ~sleeper() {
      if (gone) {
        *gone = true;
      }
    }
    sleeper(sleeper const&) = delete;
    std::shared_ptr<std::atomic<bool>> gone;
  };
  auto const wake = std::make_shared<std::atomic<bool>>(false);
  auto const gone = std::make_shared<std::atomic<bool>>(false);
  tests::generator random{1};
  static pull_samples const samples{random, 8, 2};  // its thread may still read it
  {
    lockstep::trainer<sleeper, lockstep::sgd, lockstep::peer_all_reduce<>> trainer{
        lockstep::devices::first(2), [](auto&) { return sleeper{}; }, lockstep::sgd{},
        lockstep::host::options{.timeout_seconds = 0.2}};
    trainer.step(samples.view());
    trainer.model(lockstep::rank_id{1}).gone = gone;
    trainer.model(lockstep::rank_id{1}).before_train = [wake](auto&) {
      while (!*wake) {
        std::this_thread::sleep_for(std::chrono::milliseconds{1});
      }
    };
    std::string const said = thrown<lockstep::timeout_error>([&] { trainer.step(samples.view()); });
    CHECK(contains(said, "rank 1"));
  }
  CHECK_FALSE(*gone);
  *wake = true;
  for (int tries = 0; tries < 5000 && !*gone; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
  CHECK(*gone);
}

TEST_CASE("trainer: delays on any device change nothing but time") {
  tests::generator random{9};
  pull_samples const samples{random, 13, 3};
  auto const train = [&](lockstep::host::options const& options) {
    pull_plan const plan{.counts = {40, 300, 7, 500}, .marks = support::marking::in_order};
    pull_trainer<lockstep::peer_all_reduce<lockstep::automatic, support::small_buckets>> trainer{
        lockstep::devices::first(4), [&](auto&) { return pull_model<>{plan}; }, lockstep::sgd{}, options};
    double loss = 0;
    for (int k = 0; k < 10; ++k) {
      loss += trainer.step(samples.view()).loss();
    }
    return loss;
  };
  double const expected = train({});
  std::uint64_t const seed = tests::seed();
  CAPTURE(seed);
  CHECK(train(with_faults({.delays = {{.seed = seed, .max_microseconds = 3000}}})) == expected);
}

TEST_CASE("trainer: what a factory throws comes out, and no thread is left") {
  std::size_t const threads = support::thread_count();
  for (int const failing : {0, 1, 3}) {
    auto const build = [&] {
      pull_trainer<lockstep::peer_all_reduce<>> const trainer{lockstep::devices::first(4),
                                                              [&](lockstep::device_context<lockstep::host>& device) {
                                                                if (number(device.rank()) == failing) {
                                                                  throw user_error("no weights");
                                                                }
                                                                return pull_model<>{{}};
                                                              },
                                                              lockstep::sgd{}};
    };
    CHECK(thrown<lockstep::rank_error>(build) ==
          "rank " + std::to_string(failing) + " (device " + std::to_string(failing) + "), building the model: no weights");
  }
  CHECK(support::comes_back_to(threads));
}

TEST_CASE("trainer: ranks whose models differ are refused on every rank, naming the first difference") {
  struct variant {
    char const* expected;
    std::function<void(std::vector<lockstep::parameter>&)> change;
  };
  static float more_values[64];
  static float more_gradients[64];
  static double wide_gradients[8];
  variant const variants[] = {
      {"parameter 1 is the first difference: rank 0 has 'p1' {5} f32, gradient f32, group 0, rank 2 has no parameter",
       [](auto& list) { list.pop_back(); }},
      {"parameter 2 is the first difference: rank 0 has no parameter, rank 2 has 'more' {4} f32",
       [](auto& list) { list.emplace_back("more", more_values, more_gradients, lockstep::shape{4}); }},
      {"parameter 0 is the first difference: rank 0 has 'p0' {3} f32, gradient f32, group 0, rank 2 has 'other' {3}",
       [](auto& list) { list[0].name = "other"; }},
      {"rank 2 has 'p0' {3, 1} f32",
       [](auto& list) {
         list[0].shape = {3, 1};
       }},
      {"rank 0 has 'p0' {3} f32, gradient f32, group 0, rank 2 has 'p1' {5} f32",
       [](auto& list) { std::swap(list[0], list[1]); }},
      {"rank 2 has 'p1' {5} f32, a buffer", [](auto& list) { list[1].role = lockstep::parameter_role::buffer; }},
      {"rank 2 has 'p0' {3} f32, gradient f16",
       [](auto& list) {
         list[0].gradient = wide_gradients;
         list[0].gradient_type = lockstep::element_type::f16;
       }},
  };
  support::for_each_parallel_policy([&]<class Policy>(std::type_identity<Policy>, std::string const& name) {
    CAPTURE(name);
    std::size_t const threads = support::thread_count();
    for (variant const& v : variants) {
      CAPTURE(v.expected);
      std::string const said = thrown<lockstep::usage_error>([&] {
        pull_trainer<Policy> const trainer{lockstep::devices::first(4),
                                           [&](lockstep::device_context<lockstep::host>& device) {
                                             pull_model<> model{{}};
                                             if (number(device.rank()) == 2) {
                                               v.change(model.listed_);
                                             }
                                             return model;
                                           },
                                           lockstep::sgd{}};
      });
      CHECK_MESSAGE(contains(said, v.expected), said);
    }
    CHECK(support::comes_back_to(threads));
    expect_healthy_trainer<Policy>();
  });
}

TEST_CASE("trainer: bad use is refused before any work, and nothing is lost") {
  using policy = lockstep::peer_all_reduce<>;
  tests::generator random{1};
  pull_samples const samples{random, 8, 2};
  pull_trainer<policy> trainer{lockstep::devices::first(2), [](auto&) { return pull_model<>{{}}; }, lockstep::sgd{}};
  auto const refused = [&](auto&& work) { return thrown<lockstep::usage_error>(work); };

  CHECK(contains(refused([&] { trainer.step(lockstep::slice(samples.view(), 0, 0)); }), "no samples"));
  CHECK(contains(refused([&] { trainer.step(samples.view(), {.micro_batches = 0}); }), "micro-batch"));

  auto& listed = trainer.model(lockstep::rank_id{1}).listed_;
  auto const good = listed;
  float elsewhere[8]{};
  listed[0].value = elsewhere;
  CHECK(contains(refused([&] { trainer.step(samples.view()); }), "'p0' has changed its value's address"));
  listed = good;
  listed[1].gradient = elsewhere;
  CHECK(contains(refused([&] { trainer.step(samples.view()); }), "'p1' has changed its gradient's address"));
  listed = good;
  listed[1].shape = {4};
  CHECK(contains(refused([&] { trainer.step(samples.view()); }), "'p1' has changed its element count"));
  listed = good;
  listed.pop_back();
  CHECK(contains(refused([&] { trainer.step(samples.view()); }), "now lists 1"));
  listed = good;
  listed.push_back(good[0]);
  CHECK(contains(refused([&] { trainer.step(samples.view()); }), "now lists more"));
  listed = good;
  CHECK(trainer.step(samples.view()).step() == 1);  // none of these was a step

  auto const build = [&](lockstep::devices const& on, auto&& change) {
    return refused([&] {
      pull_trainer<policy> const built{on,
                                       [&](auto&) {
                                         pull_model<> model{{}};
                                         change(model.listed_);
                                         return model;
                                       },
                                       lockstep::sgd{}};
    });
  };
  auto const two = lockstep::devices::first(2);
  CHECK(contains(build(two, [](auto& list) { list.clear(); }), "no trainable parameter"));
  CHECK(contains(build(two, [](auto& list) { list[0].value = nullptr; }), "'p0' has no memory for its value"));
  CHECK(contains(build(two, [](auto& list) { list[1].gradient = nullptr; }), "'p1' has no memory for its gradient"));
  CHECK(contains(build(two, [](auto& list) { list[1].value_type = lockstep::element_type::i32; }), "'p1' is trainable"));
  CHECK(contains(build(two, [](auto& list) { list[1].name = "p0"; }), "two parameters are named 'p0'"));
  CHECK(contains(build(two, [](auto& list) { list[1].value = static_cast<float*>(list[0].value) + 1; }), "share memory"));
  static double wide[16];
  CHECK(contains(build(two,
                       [](auto& list) {
                         list[0].value = wide;
                         list[0].value_type = lockstep::element_type::f64;
                       }),
                 "'p0' is f64"));

  CHECK(contains(refused([&] {
                   pull_trainer<lockstep::single_device> t(
                       two, [](auto&) { return pull_model<>{{}}; }, lockstep::sgd{});
                 }),
                 "exactly one device"));
  CHECK(contains(refused([&] {
                   pull_trainer<policy> t(
                       two, [](auto&) { return pull_model<>{{}}; }, std::vector<lockstep::sgd>{});
                 }),
                 "give one optimizer"));
  CHECK(contains(refused([&] {
                   pull_trainer<policy> t(
                       two,
                       [](auto&) {
                         pull_model<> model{{}};
                         model.listed_[0].group = 3;
                         return model;
                       },
                       std::vector<lockstep::sgd>(2));
                 }),
                 "'p0' is in group 3, but there are only 2 optimizers"));
  CHECK(contains(refused([&] {
                   pull_trainer<policy> t(
                       two, [](auto&) { return pull_model<>{{}}; }, lockstep::sgd{.learning_rate = -1});
                 }),
                 "learning_rate"));
  CHECK(contains(refused([&] { static_cast<void>(trainer.model(lockstep::rank_id{2})); }), "rank 2"));
}

TEST_CASE("trainer: marks outside the model's list or memory are errors that name the call") {
  tests::generator random{1};
  pull_samples const samples{random, 8, 2};
  auto const marked_by = [&](auto mark) {
    pull_trainer<lockstep::peer_all_reduce<>> trainer{lockstep::devices::first(2), [](auto&) { return pull_model<>{{}}; },
                                                      lockstep::sgd{}};
    trainer.step(samples.view());
    trainer.model(lockstep::rank_id{1}).before_train = mark;
    return thrown<lockstep::usage_error>([&] { trainer.step(samples.view()); });
  };
  using context = lockstep::train_context<lockstep::host>;
  CHECK(contains(marked_by([](context& ctx) { ctx.gradient_ready(2); }), "gradient_ready: parameters 2 to 3"));
  CHECK(contains(marked_by([](context& ctx) { ctx.gradient_ready(1, 2); }), "gradient_ready: parameters 1 to 3"));
  CHECK(contains(marked_by([](context& ctx) { ctx.gradient_ready(0, static_cast<std::size_t>(-1)); }), "the model lists 2"));
  static float const stranger[4]{};
  CHECK(contains(marked_by([](context& ctx) { ctx.gradient_ready(std::span{stranger}); }), "holds no gradient"));
  CHECK(contains(marked_by([](context& ctx) { ctx.unused(0); }), "reports_unused"));
}

TEST_CASE("trainer: unused after gradient_ready is refused, for the gradient may be on its way") {
  constexpr lockstep::model_promises reports{.honours_accumulate = true, .reports_unused = true};
  using model = pull_model<float, reports>;
  for (int const ranks : {1, 2}) {
    lockstep::trainer<model, lockstep::sgd, lockstep::peer_all_reduce<>> trainer{
        lockstep::devices::first(ranks), [](auto&) { return model{{}}; }, lockstep::sgd{}};
    trainer.model(lockstep::rank_id{ranks - 1}).before_train = [](lockstep::train_context<lockstep::host>& ctx) {
      ctx.gradient_ready(1);
      ctx.unused(1);
    };
    tests::generator random{1};
    pull_samples const samples{random, 8, 2};
    CHECK(contains(thrown<lockstep::usage_error>([&] { trainer.step(samples.view()); }), "'p1' was marked ready before"));
  }
}

TEST_CASE("trainer: a rank that is late while buckets travel is named, not only the abort that followed") {
  pull_plan const plan{.counts = std::vector<std::size_t>(6, 512), .marks = support::marking::in_order};
  lockstep::trainer<pull_model<>, lockstep::sgd, lockstep::peer_all_reduce<lockstep::automatic, support::small_buckets>>
      trainer{lockstep::devices::first(2), [&](auto&) { return pull_model<>{plan}; }, lockstep::sgd{},
              lockstep::host::options{.timeout_seconds = 0.3}};
  tests::generator random{1};
  static pull_samples const samples{random, 8, 2};  // a thread that was given up may still read it
  trainer.step(samples.view());
  auto const sleep = [](int milliseconds) {
    return [=](auto&) { std::this_thread::sleep_for(std::chrono::milliseconds{milliseconds}); };
  };
  trainer.model(lockstep::rank_id{0}).between_marks = sleep(150);
  trainer.model(lockstep::rank_id{1}).before_train = sleep(500);
  try {
    trainer.step(samples.view());
    FAIL("the step should have failed");
  } catch (lockstep::timeout_error const& e) {
    CHECK(e.missing() == lockstep::rank_id{1});
  }
}

TEST_CASE("trainer: where every device is absent, the step ends all the same") {
  pull_trainer<lockstep::peer_all_reduce<>> trainer{
      lockstep::devices::first(2), [](auto&) { return pull_model<>{{}}; }, lockstep::sgd{},
      with_faults({.absences = {{lockstep::device_id{0}, 1}, {lockstep::device_id{1}, 1}}}, 0.2)};
  tests::generator random{1};
  pull_samples const samples{random, 8, 2};
  CHECK_THROWS_AS(trainer.step(samples.view()), lockstep::error);
}

TEST_CASE("trainer: a zero-element parameter is no trouble") {
  support::for_each_parallel_policy([&]<class Policy>(std::type_identity<Policy>, std::string const& name) {
    CAPTURE(name);
    pull_plan const plan{.counts = {0, 4, 0}, .memory = layout::scattered, .marks = support::marking::in_order};
    pull_trainer<Policy> trainer{lockstep::devices::first(3), [&](auto&) { return pull_model<>{plan}; }, lockstep::sgd{}};
    tests::generator random{1};
    pull_samples const samples{random, 8, 2};
    double const first = trainer.step(samples.view()).loss();
    CHECK(trainer.step(samples.view()).loss() < first);
  });
}
