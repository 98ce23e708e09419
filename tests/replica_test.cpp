// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// A replica inside a loop of the caller's own: a thread a rank, the caller's memory, no trainer.

#include "seed.hpp"
#include "support/policies.hpp"
#include "support/threads.hpp"

#include <lockstep/lockstep.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using lockstep::host;

/// One rank's own memory: a tensor-major arena of `layers` weights and `layers` biases, listed by tensor (all weights, then all
/// biases), so that one layer's gradients are two separate slices.
struct tensor_major {
  static constexpr std::size_t layers = 6;
  static constexpr std::size_t weights = 200;
  static constexpr std::size_t biases = 8;

  std::vector<float> values = std::vector<float>(layers * (weights + biases), 1.0F);
  std::vector<float> gradients = std::vector<float>(layers * (weights + biases), 0.0F);

  std::vector<lockstep::parameter> parameters() {
    return {{"weights", values.data(), gradients.data(), {layers, weights}},
            {"biases", values.data() + layers * weights, gradients.data() + layers * weights, {layers, biases}}};
  }
  std::span<float> weight_gradient(std::size_t layer) { return std::span{gradients}.subspan(layer * weights, weights); }
  std::span<float> bias_gradient(std::size_t layer) {
    return std::span{gradients}.subspan(layers * weights + layer * biases, biases);
  }

  /// A backward pass of the caller's own: every gradient gets `pull` times the weight of the samples.
  void backward(lockstep::train_context<host>& ctx, float pull) {
    for (std::size_t layer = layers; layer-- > 0;) {
      for (std::span<float> const slice : {weight_gradient(layer), bias_gradient(layer)}) {
        for (float& g : slice) {
          g += ctx.host_sample_weight() * pull;
        }
        ctx.gradient_ready(slice);
      }
    }
    *ctx.loss() += ctx.sample_weight() * pull;
  }
};

template <class Policy, class Work>
std::vector<std::string> with_replicas(int size, Work work, double timeout_seconds = 20) {
  using transport = lockstep::communicator_for<typename Policy::transport, host>;
  std::vector<lockstep::device_id> ids;
  for (int r = 0; r < size; ++r) {
    ids.push_back(lockstep::device_id{r});
  }
  host::options const options{.timeout_seconds = timeout_seconds};
  auto communicators = transport::create(ids, options);
  return support::on_ranks(size, [&](int rank) {
    auto const r = static_cast<std::size_t>(rank);
    host::device device{ids[r], options};
    tensor_major mine;
    lockstep::replica<Policy, lockstep::sgd, host> replica{device, std::move(communicators[r]), mine.parameters(),
                                                           lockstep::sgd{.learning_rate = 1.0F}};
    work(rank, replica, mine);
  });
}

bool all_silent(std::vector<std::string> const& said) {
  for (std::string const& one : said) {
    if (!one.empty()) {
      MESSAGE(one);
      return false;
    }
  }
  return true;
}

}  // namespace

TEST_CASE("replica: a loop of the caller's own, marking slices of a tensor-major arena, trains like one device") {
  support::for_each_tuned_policy([&]<class Policy>(std::type_identity<Policy>, std::string const& name) {
    CAPTURE(name);
    std::atomic<int> wrong{0};
    auto const said = with_replicas<Policy>(4, [&](int rank, auto& replica, tensor_major& mine) {
      for (int k = 1; k <= 4; ++k) {
        // Rank r has r samples, each pulling by r: rank 0 has none. The mean is (1 + 4 + 9) / 6.
        auto const samples = static_cast<std::size_t>(rank);
        auto step = replica.begin({.samples = samples, .total_samples = 6});
        for (std::size_t i = 0; i < samples; ++i) {
          auto ctx = step.micro_batch(1);
          mine.backward(ctx, static_cast<float>(rank));
        }
        auto const result = step.finish();
        float const expected = 1.0F - static_cast<float>(k) * 14.0F / 6.0F;
        for (float const value : mine.values) {
          wrong += std::abs(value - expected) > 1e-4F ? 1 : 0;
        }
        wrong += std::abs(result.loss() - 14.0 / 6.0) > 1e-5 || result.samples() != 6 ? 1 : 0;
      }
    });
    CHECK(all_silent(said));
    CHECK(wrong == 0);
  });
}

TEST_CASE("replica: with the total not known, the update divides by the samples that were counted") {
  support::for_each_parallel_policy([&]<class Policy>(std::type_identity<Policy>, std::string const& name) {
    CAPTURE(name);
    std::atomic<int> wrong{0};
    auto const said = with_replicas<Policy>(3, [&](int rank, auto& replica, tensor_major& mine) {
      auto const samples = static_cast<std::size_t>(rank) + 1;
      auto step = replica.begin({.samples = samples});
      for (std::size_t i = 0; i < samples; ++i) {
        auto ctx = step.micro_batch(1);
        mine.backward(ctx, static_cast<float>(rank));
      }
      auto const result = step.finish();
      wrong += std::abs(result.loss() - 8.0 / 6.0) > 1e-5 ? 1 : 0;  // (0 + 2 * 1 + 3 * 2) / 6
      wrong += std::abs(mine.values[7] - (1.0F - 8.0F / 6.0F)) > 1e-5F ? 1 : 0;
    });
    CHECK(all_silent(said));
    CHECK(wrong == 0);
  });
}

TEST_CASE("replica: ranks that were told different totals are all refused, the one that was told the mean too") {
  auto const said = with_replicas<lockstep::peer_all_reduce<>>(3, [&](int rank, auto& replica, tensor_major& mine) {
    auto step = replica.begin({.samples = 1, .total_samples = static_cast<std::size_t>(rank) + 2});
    auto ctx = step.micro_batch(1);
    mine.backward(ctx, 1.0F);
    static_cast<void>(step.finish());
  });
  for (std::string const& one : said) {
    CHECK_MESSAGE(one.find("the ranks disagree about total_samples; here it is") != std::string::npos, one);
  }
}

TEST_CASE("replica: buckets may be updated as they are reduced, with the same values; then no rank may skip") {
  support::for_each_parallel_policy([&]<class Policy>(std::type_identity<Policy>, std::string const& name) {
    CAPTURE(name);
    std::atomic<int> wrong{0};
    auto const said = with_replicas<Policy>(3, [&](int rank, auto& replica, tensor_major& mine) {
      for (int k = 1; k <= 3; ++k) {
        auto step = replica.begin({.samples = 1, .total_samples = 3, .updates = lockstep::updates::as_reduced});
        auto ctx = step.micro_batch(1);
        mine.backward(ctx, static_cast<float>(rank));
        static_cast<void>(step.finish());
        for (float const value : mine.values) {
          wrong += std::abs(value - (1.0F - static_cast<float>(k))) > 1e-5F ? 1 : 0;  // the mean gradient is 1
        }
      }
      auto last = replica.begin({.samples = 1, .total_samples = 3, .updates = lockstep::updates::as_reduced});
      static_cast<void>(last.skip());
    });
    CHECK(wrong == 0);
    for (std::string const& one : said) {
      CHECK_MESSAGE(one.find("can't be left out") != std::string::npos, one);
    }
  });
  auto const said = with_replicas<lockstep::peer_all_reduce<>>(2, [&](int, auto& replica, tensor_major&) {
    static_cast<void>(replica.begin({.samples = 1, .updates = lockstep::updates::as_reduced}));
  });
  for (std::string const& one : said) {
    CHECK_MESSAGE(one.find("only where total_samples is given") != std::string::npos, one);
  }
}

TEST_CASE("replica: what is asked between begin and finish is of the steps before") {
  auto const said = with_replicas<lockstep::peer_all_reduce<>>(2, [&](int rank, auto& replica, tensor_major& mine) {
    for (std::uint64_t k = 0; k < 3; ++k) {
      auto step = replica.begin({.samples = 1, .total_samples = 2});
      auto ctx = step.micro_batch(1);
      lockstep::expects(replica.applied_steps() == k, "applied_steps counts the step that is open");
      replica.synchronize();
      mine.backward(ctx, static_cast<float>(rank));
      auto const result = step.finish();
      lockstep::expects(!result.skipped() && result.samples() == 2 && result.step() == k + 1, "the result is another step's");
    }
    lockstep::expects(replica.applied_steps() == 3, "applied_steps misses a step");
  });
  CHECK(all_silent(said));
}

TEST_CASE("replica: one rank's vote skips the step everywhere, and values stay") {
  support::for_each_parallel_policy([&]<class Policy>(std::type_identity<Policy>, std::string const& name) {
    CAPTURE(name);
    std::atomic<int> wrong{0};
    auto const said = with_replicas<Policy>(3, [&](int rank, auto& replica, tensor_major& mine) {
      for (int k = 0; k < 4; ++k) {
        auto const before = mine.values;
        auto step = replica.begin({.samples = 2, .total_samples = 6});
        lockstep::step_result result;
        if (k % 2 == 1 && rank == 1) {
          if (k == 3) {
            auto ctx = step.micro_batch(1);  // half way, and then no
            mine.backward(ctx, 100.0F);
          }
          result = step.skip();
        } else {
          auto ctx = step.micro_batch(2);
          mine.backward(ctx, 1.0F);
          result = step.finish();
        }
        wrong += result.skipped() != (k % 2 == 1) ? 1 : 0;
        wrong += (mine.values == before) != (k % 2 == 1) ? 1 : 0;
      }
      wrong += replica.applied_steps() != 2 ? 1 : 0;
    });
    CHECK(all_silent(said));
    CHECK(wrong == 0);
  });
}

TEST_CASE("replica: a step left unfinished ends the step on every rank, naming the rank") {
  support::for_each_parallel_policy([&]<class Policy>(std::type_identity<Policy>, std::string const& name) {
    CAPTURE(name);
    auto const said = with_replicas<Policy>(3, [&](int rank, auto& replica, tensor_major& mine) {
      auto step = replica.begin({.samples = 1, .total_samples = 3});
      auto ctx = step.micro_batch(1);
      mine.backward(ctx, 1.0F);
      if (rank != 2) {
        static_cast<void>(step.finish());
      }
    });
    CHECK(said[0].find("rank 2 (device 2), step 1, step left unfinished") != std::string::npos);
    CHECK(said[1].find("rank 2 (device 2), step 1, step left unfinished") != std::string::npos);
    CHECK(said[2].empty());
  });
}

TEST_CASE("replica: the phases of a step come in order, and counts must add up") {
  auto const said = with_replicas<lockstep::peer_all_reduce<>>(1, [&](int, auto& replica, tensor_major& mine) {
    {
      auto step = replica.begin({.samples = 3});
      CHECK_THROWS_AS(static_cast<void>(replica.begin({.samples = 1})), lockstep::usage_error);
      CHECK_THROWS_AS(step.update(), lockstep::usage_error);
      CHECK_THROWS_AS(step.publish(), lockstep::usage_error);
      CHECK_THROWS_AS(static_cast<void>(step.done()), lockstep::usage_error);
      CHECK_THROWS_AS(static_cast<void>(step.micro_batch(0)), lockstep::usage_error);
      CHECK_THROWS_AS(static_cast<void>(step.micro_batch(4)), lockstep::usage_error);
      {
        auto ctx = step.micro_batch(2);
        mine.backward(ctx, 1.0F);
      }
      CHECK_THROWS_AS(static_cast<void>(step.micro_batch(2)), lockstep::usage_error);  // the running one counts
      CHECK_THROWS_WITH_AS(step.reduce(), "lockstep: reduce: 3 samples were announced to begin, but only 2 were trained",
                           lockstep::usage_error);
      auto ctx = step.micro_batch(1);
      mine.backward(ctx, 1.0F);
      step.reduce();
      CHECK_THROWS_AS(step.reduce(), lockstep::usage_error);
      CHECK(step.owned().size() == 2);
      step.update();
      step.publish();
      CHECK(step.done().loss() == doctest::Approx(2.0 / 3.0));  // two calls, each with one sample's loss
    }
    auto unfinished = [&] { auto step = replica.begin({.samples = 3}); };
    unfinished();
    CHECK_THROWS_AS(static_cast<void>(replica.begin({.samples = 1})), lockstep::error);
  });
  CHECK(all_silent(said));
}

TEST_CASE("replica: gradients can be looked at, or changed alike on every rank, between reduce and update") {
  std::atomic<int> wrong{0};
  auto const said = with_replicas<lockstep::peer_all_reduce<>>(3, [&](int rank, auto& replica, tensor_major& mine) {
    auto step = replica.begin({.samples = 1, .total_samples = 3});
    auto ctx = step.micro_batch(1);
    mine.backward(ctx, static_cast<float>(rank));
    step.reduce();
    for (float& g : mine.gradients) {
      wrong += std::abs(g - 1.0F) > 1e-6F ? 1 : 0;  // (0 + 1 + 2) / 3
      g = 0.25F;
    }
    step.update();
    step.publish();
    static_cast<void>(step.done());
    wrong += mine.values[5] != 0.75F ? 1 : 0;
  });
  CHECK(all_silent(said));
  CHECK(wrong == 0);
}

TEST_CASE("replica: a rank that is missing at the meeting is named within the deadline") {
  using transport = lockstep::communicator_for<lockstep::automatic, host>;
  std::vector<lockstep::device_id> const ids{lockstep::device_id{0}, lockstep::device_id{1}, lockstep::device_id{2}};
  host::options const options{.timeout_seconds = 0.2};
  auto communicators = transport::create(ids, options);
  auto const said = support::on_ranks(3, [&](int rank) {
    if (rank == 1) {
      return;
    }
    host::device device{lockstep::device_id{rank}, options};
    tensor_major mine;
    lockstep::replica<lockstep::peer_all_reduce<>, lockstep::sgd, host> const replica{
        device, std::move(communicators[static_cast<std::size_t>(rank)]), mine.parameters(), lockstep::sgd{}};
  });
  CHECK(said[0].find("rank 1") != std::string::npos);
  CHECK(said[2].find("rank 1") != std::string::npos);
}

TEST_CASE("replica: a rank whose parameters are refused releases the others at once") {
  auto communicators = lockstep::communicator_for<lockstep::automatic, host>::create(
      std::vector<lockstep::device_id>{lockstep::device_id{0}, lockstep::device_id{1}}, {});
  auto const said = support::on_ranks(2, [&](int rank) {
    host::device device{lockstep::device_id{rank}};
    tensor_major mine;
    auto parameters = mine.parameters();
    if (rank == 1) {
      parameters[0].value = nullptr;
    }
    lockstep::replica<lockstep::peer_all_reduce<>, lockstep::sgd, host> const replica{
        device, std::move(communicators[static_cast<std::size_t>(rank)]), parameters, lockstep::sgd{}};
  });
  CHECK(said[0].find("rank 1 (device 1), step 0, meeting the other ranks: lockstep: parameter 'weights' has no memory") !=
        std::string::npos);
  CHECK(said[1].find("parameter 'weights' has no memory") != std::string::npos);
}

TEST_CASE("replica: a communicator that was moved from is refused, and an element type outside its enumeration too") {
  auto communicators =
      lockstep::shared_memory_communicator::create(std::vector<lockstep::device_id>{lockstep::device_id{0}}, {});
  auto taken = std::move(communicators[0]);
  host::device device;
  tensor_major mine;
  CHECK_THROWS_AS((lockstep::replica<lockstep::peer_all_reduce<>, lockstep::sgd, host>{device, std::move(communicators[0]),
                                                                                       mine.parameters(), lockstep::sgd{}}),
                  lockstep::usage_error);
  float data[4]{};
  CHECK_THROWS_AS(taken.all_reduce({data, 4, static_cast<lockstep::element_type>(42)}, lockstep::reduction::sum, {}),
                  lockstep::usage_error);
}
