// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

#include "seed.hpp"
#include "support/threads.hpp"
#include "support/thrown.hpp"

#include <lockstep/lockstep.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

using support::contains;

namespace {

using lockstep::find_largest_batch;
using lockstep::host;
using lockstep::largest_batch_options;
using lockstep::largest_batch_report;

/// What a model does when it is built (call 0) and in its calls of `train`, counted from 1; it may throw.
using habit = std::function<void(lockstep::rank_id rank, std::size_t call, std::size_t samples)>;

/// A model whose memory grows with its samples: it keeps `bytes_a_sample` of the largest micro-batch so far.
struct growing_model {
  using backend = host;
  using batch = std::span<float const>;
  static inline std::atomic<int> alive{0};
  static constexpr std::size_t bytes_a_sample = 24;

  growing_model(lockstep::device_context<host> const& device, habit does)
      : device_(device.device()), rank_(device.rank()), does_(std::move(does)) {
    does_(rank_, 0, 0);
    ++alive;
  }
  growing_model(growing_model const&) = delete;
  growing_model& operator=(growing_model const&) = delete;
  ~growing_model() { --alive; }

  std::vector<lockstep::parameter> parameters() { return {{"value", &value_, &gradient_, {1}}}; }

  void train(lockstep::train_context<host>& ctx, batch const& shard) {
    does_(rank_, ++calls_, shard.size());
    if (activations_.bytes() < shard.size() * bytes_a_sample) {
      activations_ = device_.allocate(shard.size() * bytes_a_sample, lockstep::memory_use::other);
    }
    for (float const x : shard) {
      gradient_ += ctx.sample_weight() * (value_ - x);
    }
  }

 private:
  host::device& device_;
  lockstep::rank_id rank_;
  habit does_;
  std::size_t calls_ = 0;
  host::buffer activations_;
  float value_ = 0;
  float gradient_ = 0;
};

using parallel = lockstep::trainer<growing_model, lockstep::sgd, lockstep::peer_all_reduce<>>;

std::size_t index(lockstep::rank_id rank) { return static_cast<std::size_t>(number(rank)); }

/// Searches with models that do as they are told. `data` is where batches are cut from.
largest_batch_report search(int ranks, habit const& does, largest_batch_options const& options,
                            host::options const& backend = {.timeout_seconds = 30}) {
  std::vector<float> const data(options.limit * static_cast<std::size_t>(ranks), 1.0F);
  return find_largest_batch(
      [&] {
        if (growing_model::alive != 0) {
          throw std::logic_error("the models of the try before are still there");
        }
        return parallel{lockstep::devices::first(ranks),
                        [&](auto& device) {
                          return growing_model{device, does};
                        },
                        lockstep::sgd{}, backend};
      },
      [&](std::size_t samples) { return std::span{data}.first(samples); }, options);
}

/// The most tries that a search may take, as documented.
std::size_t most_tries(largest_batch_options const& options) {
  return static_cast<std::size_t>(2 +
                                  2 * std::log2(static_cast<double>(options.limit) / static_cast<double>(options.multiple_of)));
}

enum class lack { library, own_code, nested_twice };

/// Throws as memory runs out.
void run_out(lack how, int device) {
  switch (how) {
    case lack::library: throw lockstep::out_of_memory(lockstep::device_id{device}, 1000, "activations");
    case lack::own_code: throw std::bad_alloc();
    case lack::nested_twice:
      try {
        try {
          throw std::bad_alloc();
        } catch (...) {
          std::throw_with_nested(std::runtime_error("no room for the layer"));
        }
      } catch (...) {
        std::throw_with_nested(std::runtime_error("no room for the model"));
      }
  }
}

template <class Exception, class Work>
std::string thrown(Work&& work) {
  try {
    work();
  } catch (Exception const& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("largest batch: with random budgets on several devices, the largest that fits is found in few tries") {
  std::uint64_t const first_seed = tests::seed();
  std::size_t const threads = support::thread_count();
  for (std::uint64_t seed = first_seed; seed < first_seed + 40; ++seed) {
    CAPTURE(seed);
    tests::generator random{seed};
    int const ranks = static_cast<int>(random.whole(1, 4));
    largest_batch_options options;
    options.multiple_of = random.chance(0.5) ? 1 : random.whole(2, 16);
    options.first = random.whole(1, 40);
    options.limit = options.first + random.whole(2 * options.multiple_of, 2000);
    options.steps = random.whole(1, 4);
    options.step.micro_batches = random.whole(1, 3);
    // A device has room for its model and a number of samples; they may be taken in any step.
    std::size_t const fixed = random.whole(0, 100);
    std::size_t const per_sample = random.whole(1, 20);
    std::size_t const at_step = random.chance(0.8) ? random.whole(1, options.steps) : options.steps + 1;
    auto const how = static_cast<lack>(random.whole(0, 2));
    std::vector<std::size_t> budgets;
    for (int r = 0; r < ranks; ++r) {
      budgets.push_back(random.whole(random.chance(0.1) ? 0 : fixed, fixed + 1500 * per_sample));
    }

    auto const fits = [&](std::size_t samples) {
      std::size_t const in_a_piece = (samples + options.step.micro_batches - 1) / options.step.micro_batches;
      return std::all_of(budgets.begin(), budgets.end(), [&](std::size_t budget) {
        return fixed + (at_step <= options.steps ? in_a_piece * per_sample : 0) <= budget;
      });
    };
    std::size_t expected = 0;
    for (std::size_t samples = options.first; samples <= options.limit; ++samples) {
      expected = samples % options.multiple_of == 0 && fits(samples) ? samples : expected;
    }

    largest_batch_report const found = search(
        ranks,
        [&](lockstep::rank_id rank, std::size_t call, std::size_t samples) {
          bool const is_due = call >= (at_step - 1) * options.step.micro_batches + 1;
          if (fixed + (is_due ? samples * per_sample : 0) > budgets[index(rank)]) {
            run_out(how, number(rank));
          }
        },
        options);

    CHECK(found.samples == expected);
    CHECK(found.step_samples == expected * static_cast<std::size_t>(ranks));
    CHECK(found.tries <= most_tries(options));
    if (expected + options.multiple_of <= options.limit) {
      std::size_t const fewest = (options.first + options.multiple_of - 1) / options.multiple_of * options.multiple_of;
      CHECK(found.too_many == (expected == 0 ? fewest : expected + options.multiple_of));
      CHECK(!found.reason.empty());
    } else {
      CHECK(found.too_many == 0);
      CHECK(found.reason.empty());
    }
    CHECK(found.memory.size() == (expected == 0 ? 0 : static_cast<std::size_t>(ranks)));
    std::size_t const largest_piece = (expected + options.step.micro_batches - 1) / options.step.micro_batches;
    for (lockstep::memory_usage const& held : found.memory) {
      CHECK(held[lockstep::memory_use::other] >= largest_piece * growing_model::bytes_a_sample);
      CHECK(held.peak_bytes >= held.total());
    }
    CHECK(growing_model::alive == 0);
    CHECK(support::comes_back_to(threads));
  }
}

TEST_CASE("largest batch: where sizes hold without any order, the one that is told held, and the next did not") {
  std::uint64_t const first_seed = tests::seed();
  for (std::uint64_t seed = first_seed; seed < first_seed + 40; ++seed) {
    CAPTURE(seed);
    tests::generator random{seed};
    int const ranks = static_cast<int>(random.whole(1, 3));
    largest_batch_options options;
    options.multiple_of = random.whole(1, 3);
    options.limit = options.multiple_of * random.whole(1, 400);
    options.steps = 2;
    double const share = static_cast<double>(random.real(0.3F, 1.0F));
    std::vector<char> fits(options.limit + 1, 0);
    for (char& one : fits) {
      one = random.chance(share) ? 1 : 0;
    }
    std::size_t const failing = random.whole(0, static_cast<std::size_t>(ranks) - 1);
    std::vector<std::size_t> calls(options.limit + 1, 0);  // of the rank that may fail, by size
    largest_batch_report const found = search(
        ranks,
        [&](lockstep::rank_id rank, std::size_t call, std::size_t samples) {
          if (index(rank) == failing && call != 0) {
            ++calls[samples];
            if (fits[samples] == 0) {
              run_out(lack::own_code, number(rank));
            }
          }
        },
        options);
    CHECK(found.tries <= most_tries(options));
    CHECK(static_cast<std::size_t>(std::count_if(calls.begin(), calls.end(), [](std::size_t n) { return n != 0; })) ==
          found.tries);
    if (found.samples == 0) {
      CHECK(found.too_many == options.multiple_of);
    } else {
      CHECK(fits[found.samples] == 1);
      CHECK(calls[found.samples] == options.steps);
      CHECK(found.too_many == (found.samples == options.limit ? 0 : found.samples + options.multiple_of));
    }
    if (found.too_many != 0) {
      CHECK(fits[found.too_many] == 0);
      CHECK(calls[found.too_many] == 1);
    }
  }
}

TEST_CASE("largest batch: a size that runs out in its third step only does not hold, unless no third step is asked for") {
  auto const late = [](lockstep::rank_id rank, std::size_t call, std::size_t samples) {
    if (call == 3 && samples > 37 && number(rank) == 1) {
      run_out(lack::library, 1);
    }
  };
  largest_batch_report const found = search(2, late, {.limit = 100});
  CHECK(found.samples == 37);
  CHECK(found.step_samples == 74);
  CHECK(found.too_many == 38);
  CHECK(found.reason == "rank 1 (device 1), step 3, training: device 1: out of memory allocating 1000 bytes of activations");
  CHECK(search(2, late, {.limit = 100, .steps = 2}).samples == 100);
}

TEST_CASE("largest batch: a report says in words what held and what did not") {
  auto const more_than = [](std::size_t most) {
    return [most](lockstep::rank_id, std::size_t, std::size_t samples) {
      if (samples > most) {
        run_out(lack::own_code, 0);
      }
    };
  };
  largest_batch_report found = search(1, more_than(0), {.limit = 100});
  CHECK(found.samples == 0);
  CHECK(found.memory.empty());
  CHECK(found.tries == 1);
  CHECK(to_string(found) == "not even 1 sample a device fits: rank 0 (device 0), step 1, training: std::bad_alloc");
  found = search(1, more_than(20), {.first = 30, .limit = 100, .multiple_of = 8});
  CHECK(to_string(found) == "not even 32 samples a device fit: rank 0 (device 0), step 1, training: std::bad_alloc");
  found = search(1, more_than(1), {.limit = 100});
  std::string const bytes = std::to_string(found.memory[0].peak_bytes);
  CHECK(to_string(found) == "1 sample a device fits, with at most " + bytes +
                                " bytes on rank 0; 2 did not: rank 0 (device 0), step 1, training: std::bad_alloc");
  found = search(2, more_than(200), {.limit = 100});
  CHECK(found.tries == 8);  // 1, 2, 4, ..., 64, 100
  CHECK(to_string(found).find("100 samples a device fit, with at most ") == 0);
  CHECK(contains(to_string(found), "; more were not tried"));
  found.memory[1].peak_bytes = 1U << 30U;
  CHECK(contains(to_string(found), "1073741824 bytes on rank 1"));
}

TEST_CASE("largest batch: devices that refuse the library's own memory, or a factory's, hold nothing") {
  std::size_t const threads = support::thread_count();
  auto const nothing = [](lockstep::rank_id, std::size_t, std::size_t) {};
  for (std::uint64_t from = 1; from <= 3; ++from) {
    auto const faults = std::make_shared<lockstep::host_faults const>(
        lockstep::host_faults{.allocations = {{.device = lockstep::device_id{1}, .from = from}}});
    largest_batch_report const found = search(3, nothing, {.limit = 100}, {.timeout_seconds = 30, .faults = faults});
    CHECK(found.samples == 0);
    CHECK(found.tries == 1);
    CHECK_MESSAGE(contains(found.reason, "rank 1 (device 1), step 0, meeting the other ranks: device 1: out of memory"),
                  found.reason);
  }
  for (lack const how : {lack::library, lack::own_code, lack::nested_twice}) {
    largest_batch_report const found = search(3,
                                              [how](lockstep::rank_id rank, std::size_t call, std::size_t) {
                                                if (number(rank) == 2 && call == 0) {
                                                  run_out(how, 2);
                                                }
                                              },
                                              {.limit = 100});
    CHECK(found.samples == 0);
    CHECK(found.tries == 1);
    CHECK_MESSAGE(contains(found.reason, "rank 2 (device 2), building the model: "), found.reason);
  }
  CHECK(support::comes_back_to(threads));
}

TEST_CASE("largest batch: a search is a few lines") {
  std::vector<float> const data(8192, 1.0F);
  auto const factory = [](lockstep::device_context<host>& device) {
    return growing_model{device, [](lockstep::rank_id, std::size_t, std::size_t samples) {
                           if (samples > 1234) {
                             run_out(lack::library, 0);
                           }
                         }};
  };
  using trainer_type = parallel;

  auto const make_trainer = [&] { return trainer_type{lockstep::devices::first(2), factory, lockstep::sgd{}}; };
  auto const make_batch = [&](std::size_t samples) { return std::span{data}.first(samples); };
  auto const found = lockstep::find_largest_batch(make_trainer, make_batch, {.limit = 4096, .multiple_of = 8});
  std::string const words = to_string(found);

  CHECK(found.samples == 1232);
  CHECK(words.find("1232 samples a device fit, with at most ") == 0);
  CHECK(contains(words, "; 1240 did not: rank "));
}

TEST_CASE("largest batch: making a trainer or a batch may run out too") {
  std::vector<float> const data(200, 1.0F);
  auto const does = [](lockstep::rank_id, std::size_t, std::size_t) {};
  auto const make_trainer = [&] {
    return parallel{lockstep::devices::first(2), [&](auto& device) { return growing_model{device, does}; }, lockstep::sgd{}};
  };
  auto const make_batch = [&](std::size_t samples) {
    if (samples > 100) {
      throw std::bad_alloc();
    }
    return std::span{data}.first(samples);
  };
  largest_batch_report found = find_largest_batch(make_trainer, make_batch, {.limit = 100});
  CHECK(found.samples == 50);
  CHECK(found.step_samples == 100);
  CHECK(found.reason == "std::bad_alloc");
  auto const never = []() -> parallel { throw std::bad_alloc(); };
  found = find_largest_batch(never, make_batch, {.limit = 100});
  CHECK(to_string(found) == "not even 1 sample a device fits: std::bad_alloc");
}

TEST_CASE("largest batch: batches may own their data, or come one a device") {
  struct columns_model : growing_model {
    using batch = std::tuple<std::span<float const>, std::span<float const>>;
    using growing_model::growing_model;
    void train(lockstep::train_context<host>& ctx, batch const& shard) { growing_model::train(ctx, std::get<0>(shard)); }
  };
  auto const at_most_21 = [](lockstep::rank_id, std::size_t, std::size_t samples) {
    if (samples > 21) {
      run_out(lack::library, 0);
    }
  };
  auto const make_trainer = [&] {
    return lockstep::trainer<columns_model, lockstep::sgd, lockstep::peer_all_reduce<>>{
        lockstep::devices::first(3),
        [&](auto& device) {
          return columns_model{device, at_most_21};
        },
        lockstep::sgd{}};
  };
  largest_batch_report const owned =
      find_largest_batch(make_trainer,
                         [](std::size_t samples) {
                           return std::tuple{std::vector<float>(samples, 1.0F), std::vector<float>(samples, 2.0F)};
                         },
                         {.limit = 64});
  CHECK(owned.samples == 21);
  CHECK(owned.step_samples == 63);
  std::vector<float> const data(64, 1.0F);
  auto const cut = [&](std::size_t samples) { return std::span{data}.first(samples); };
  largest_batch_report const sharded =
      find_largest_batch(make_trainer,
                         [&](std::size_t samples) {
                           return std::vector(3, columns_model::batch{cut(samples / 3), cut(samples / 3)});
                         },
                         {.limit = 64});
  CHECK(sharded.samples == 21);
  CHECK(thrown<lockstep::usage_error>([&] {
          auto const uneven = [&](std::size_t samples) {
            std::vector shards(3, columns_model::batch{cut(samples / 3), cut(samples / 3)});
            shards[1] = {cut(samples / 3 - 1), cut(samples / 3 - 1)};
            return shards;
          };
          static_cast<void>(find_largest_batch(make_trainer, uneven, {.limit = 64}));
        }) ==
        "lockstep: find_largest_batch: make_batch was asked for 1 samples for each device and made 0; where there are no more, "
        "give a lower limit");
}

TEST_CASE("largest batch: what is no lack of memory comes straight out, and nothing is left") {
  std::size_t const threads = support::thread_count();
  auto const at_three = [](auto const& raise) {
    return [raise](lockstep::rank_id rank, std::size_t call, std::size_t samples) {
      if (number(rank) == 1 && call == 2 && samples >= 3) {
        raise();
      }
    };
  };
  std::string const place = "rank 1 (device 1), step 2, training: ";
  CHECK(thrown<lockstep::rank_error>([&] {
          static_cast<void>(search(2, at_three([] { throw std::runtime_error("the data is wrong"); }), {.limit = 100}));
        }) == place + "the data is wrong");
  CHECK(thrown<lockstep::usage_error>([&] {
          static_cast<void>(search(2, at_three([] { lockstep::refuse("never so"); }), {.limit = 100}));
        }) == place + "lockstep: never so");
  CHECK(thrown<lockstep::rank_error>([&] { static_cast<void>(search(2, at_three([] { throw 42; }), {.limit = 100})); }) ==
        place + "an exception that is no std::exception");
  CHECK(thrown<lockstep::rank_error>([&] {
          static_cast<void>(search(2, at_three([] {
                                     try {
                                       throw std::length_error("too long");
                                     } catch (...) {
                                       std::throw_with_nested(std::runtime_error("no list"));
                                     }
                                   }),
                                   {.limit = 100}));
        }) == place + "no list");
  auto const faults = std::make_shared<lockstep::host_faults const>(
      lockstep::host_faults{.exceptions = {{.device = lockstep::device_id{0}, .step = 4}}});
  CHECK(contains(thrown<lockstep::injected_fault>([&] {
                   static_cast<void>(
                       search(2, [](lockstep::rank_id, std::size_t, std::size_t) {}, {.limit = 100}, {.faults = faults}));
                 }),
                 "injected fault at step 4"));
  CHECK(growing_model::alive == 0);
  CHECK(support::comes_back_to(threads));
}

TEST_CASE("largest batch: bad options are refused before any trainer is made, and a batch of another size as it is made") {
  int made = 0;
  auto const make_trainer = [&] {
    ++made;
    return parallel{lockstep::devices::first(1),
                    [](auto& device) {
                      return growing_model{device, [](lockstep::rank_id, std::size_t, std::size_t) {}};
                    },
                    lockstep::sgd{}};
  };
  std::vector<float> const data(10, 1.0F);
  auto const make_batch = [&](std::size_t samples) { return std::span{data}.first(std::min<std::size_t>(samples, 10)); };
  auto const said = [&](largest_batch_options const& options) {
    return thrown<lockstep::usage_error>([&] { static_cast<void>(find_largest_batch(make_trainer, make_batch, options)); });
  };
  CHECK(contains(said({.first = 0}), "are at least 1"));
  CHECK(contains(said({.multiple_of = 0}), "are at least 1"));
  CHECK(contains(said({.steps = 0}), "are at least 1"));
  CHECK(contains(said({.step = {.micro_batches = 0}}), "are at least 1"));
  CHECK(contains(said({.limit = SIZE_MAX}), "more than can be counted"));
  CHECK(said({.first = 9, .limit = 15, .multiple_of = 8}) ==
        "lockstep: find_largest_batch: there is no multiple of 8 from first, 9, to limit, 15");
  CHECK(contains(said({.first = 5, .limit = 4}), "there is no multiple of 1 from first, 5, to limit, 4"));
  CHECK(contains(said({.limit = 0}), "there is no multiple of 1"));
  CHECK(made == 0);
  CHECK(said({.first = 4, .limit = 100}) ==
        "lockstep: find_largest_batch: make_batch was asked for 16 samples and made 10; where there are no more, give a lower "
        "limit");
  CHECK(made == 3);
  CHECK(find_largest_batch(make_trainer, make_batch, {.first = 4, .limit = 10}).samples == 10);
}
