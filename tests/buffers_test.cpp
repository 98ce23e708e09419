// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// What buffers hold after a step: rank 0's, or the mean over all ranks, of every element type, side by side.

#include "support/policies.hpp"
#include "support/replicas.hpp"
#include "support/thrown.hpp"

#include <lockstep/lockstep.hpp>

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

using support::contains;
using support::refused;

namespace {

using lockstep::buffer_sync;
using lockstep::element_type;
using lockstep::rank_id;

struct kind {
  element_type type;
  buffer_sync sync;
  std::size_t count;
};

/// Small and large, staged and in place, none, and of all kinds in turn, so that no bucket could take neighbours in the list.
constexpr kind kinds[] = {
    {element_type::f32, buffer_sync::mean, 5},   {element_type::i64, buffer_sync::root, 1},
    {element_type::f16, buffer_sync::mean, 7},   {element_type::u8, buffer_sync::root, 3},
    {element_type::f32, buffer_sync::root, 5},   {element_type::f64, buffer_sync::mean, 2},
    {element_type::f32, buffer_sync::mean, 700}, {element_type::bf16, buffer_sync::mean, 4},
    {element_type::f16, buffer_sync::root, 7},   {element_type::i32, buffer_sync::root, 600},
    {element_type::f32, buffer_sync::mean, 0},   {element_type::f16, buffer_sync::mean, 500},
    {element_type::i8, buffer_sync::root, 1},    {element_type::f32, buffer_sync::mean, 9},
    {element_type::u64, buffer_sync::root, 2},   {element_type::u32, buffer_sync::root, 2},
};

/// What a rank leaves in element `e` of buffer `b` in step `step`: exact in every type, and different on every rank.
double left(std::size_t b, std::size_t e, int rank, int step) {
  return static_cast<double>((7 * b + 5 * e + 3 * static_cast<std::size_t>(rank) + 11 * static_cast<std::size_t>(step)) % 100);
}

/// One parameter, and a buffer of each of `kinds`.
struct buffered {
  using backend = lockstep::host;
  using batch = std::tuple<std::span<float const>>;

  buffered() {
    for (kind const& k : kinds) {
      memory.push_back(std::make_unique<std::array<double, 700>>());
      lockstep::parameter described;
      described.name = "buffer" + std::to_string(listed.size());
      described.value = memory.back()->data();
      described.value_type = k.type;
      described.role = lockstep::parameter_role::buffer;
      described.sync = k.sync;
      described.shape = {k.count};
      listed.push_back(described);
    }
    listed.emplace_back("value", value.get(), gradient.get(), lockstep::shape{1});
  }

  std::vector<lockstep::parameter> parameters() const { return listed; }

  void leave(int rank, int step) {
    for (std::size_t b = 0; b < std::size(kinds); ++b) {
      lockstep::visit(kinds[b].type, [&]<class T>(std::type_identity<T>) {
        for (std::size_t e = 0; e < kinds[b].count; ++e) {
          static_cast<T*>(listed[b].value)[e] = T(static_cast<float>(left(b, e, rank, step)));
        }
      });
    }
  }
  double read(std::size_t b, std::size_t e) const {
    double value_there = 0;
    lockstep::visit(kinds[b].type, [&]<class T>(std::type_identity<T>) {
      value_there = static_cast<double>(static_cast<T const*>(listed[b].value)[e]);
    });
    return value_there;
  }
  /// How many elements are not what they must be after a step of `ranks` ranks.
  int wrong(int ranks, int step) const {
    int found = 0;
    for (std::size_t b = 0; b < std::size(kinds); ++b) {
      for (std::size_t e = 0; e < kinds[b].count; ++e) {
        double wanted = left(b, e, 0, step);
        double rounding = 0;
        if (kinds[b].sync == buffer_sync::mean) {
          wanted = 0;
          for (int r = 0; r < ranks; ++r) {
            wanted += left(b, e, r, step) / ranks;
          }
          // Twice: of the sum, and of its quotient.
          rounding = kinds[b].type == element_type::bf16  ? 0x1p-7
                     : kinds[b].type == element_type::f16 ? 0x1p-10
                     : kinds[b].type == element_type::f32 ? 0x1p-22
                                                          : 0x1p-50;
        }
        found += std::abs(read(b, e) - wanted) > rounding * wanted ? 1 : 0;
      }
    }
    return found;
  }
  /// All bytes of all buffers.
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> all;
    for (std::size_t b = 0; b < std::size(kinds); ++b) {
      auto const* const first = static_cast<std::byte const*>(listed[b].value);
      all.insert(all.end(), first, first + listed[b].values().bytes());
    }
    return all;
  }

  std::vector<std::unique_ptr<std::array<double, 700>>> memory;  // aligned for every type
  std::unique_ptr<float> value = std::make_unique<float>(1.0F);
  std::unique_ptr<float> gradient = std::make_unique<float>(0.0F);
  std::vector<lockstep::parameter> listed;
};

/// One buffer beside one parameter; `left` is what train leaves in it.
template <class T>
struct one_buffer {
  using backend = lockstep::host;
  using batch = std::tuple<std::span<float const>>;

  explicit one_buffer(buffer_sync how) : sync(how) {}

  std::array<lockstep::parameter, 2> parameters() {
    return {lockstep::buffer("seen", &seen, {}, {.sync = sync}), {"value", &value, &gradient, {}}};
  }
  void train(lockstep::train_context<backend>&, batch const&) { seen = left; }

  buffer_sync sync;
  float value = 1, gradient = 0;
  T seen{};
  T left{};
};

template <class T>
using one_buffer_trainer = lockstep::trainer<one_buffer<T>, lockstep::sgd, lockstep::peer_all_reduce<>>;

}  // namespace

TEST_CASE("buffers: means and rank 0's of all types side by side, after updates, skipped steps and steps without samples") {
  support::for_each_tuned_policy([&]<class Policy>(std::type_identity<Policy>, std::string const& name) {
    CAPTURE(name);
    for (int const ranks : {1, 3, 4, 5, 6, 7, 8}) {
      CAPTURE(ranks);
      std::atomic<int> wrong{0};
      std::vector<std::vector<std::byte>> bytes(static_cast<std::size_t>(ranks));
      auto const said = support::on_replicas<Policy>(
          ranks, [](auto&) { return buffered{}; },
          [&](int rank, auto& replica, buffered& mine) {
            for (int k = 0; k < 4; ++k) {
              mine.leave(rank, k);
              std::size_t const samples = rank == ranks - 1 ? 1 : 0;
              auto step = replica.begin({.samples = samples, .total_samples = 1});
              if (samples != 0) {
                auto ctx = step.micro_batch(1);
                *mine.gradient += ctx.sample_weight();
              }
              bool const skips = k == 2 && rank == ranks / 2;
              auto const result = skips ? step.skip() : step.finish();
              wrong += result.skipped() != (k == 2) ? 1 : 0;
              wrong += mine.wrong(ranks, k);
            }
            bytes[static_cast<std::size_t>(rank)] = mine.bytes();
          });
      for (std::string const& one : said) {
        CHECK(one == "");
      }
      CHECK(wrong == 0);
      for (auto const& of_rank : bytes) {
        CHECK(of_rank == bytes[0]);
      }
    }
  });
}

TEST_CASE("buffers: an f16 mean is right where the sum would overflow, and where it is subnormal") {
  for (int const ranks : {2, 3, 4, 5, 6, 8}) {
    CAPTURE(ranks);
    one_buffer_trainer<lockstep::float16> trainer{lockstep::devices::first(ranks),
                                                  [](auto&) { return one_buffer<lockstep::float16>{buffer_sync::mean}; },
                                                  lockstep::sgd{}};
    std::vector<float> const samples(8, 1.0F);
    for (float const value : {64000.0F, -60000.0F, 40000.0F, 1000.5F, 1e-4F, 0.0F}) {
      for (int r = 0; r < ranks; ++r) {
        trainer.model(rank_id{r}).left = lockstep::float16(value);
      }
      trainer.step({samples});
      // Within the rounding of each part, and of their sum; parts of small values are multiples of 2^-24.
      float const rounding = 0x1p-10F * std::abs(value) + static_cast<float>(ranks) * 0x1p-25F;
      CHECK(std::abs(static_cast<float>(trainer.model().seen) - value) <= rounding);
    }
  }
}

TEST_CASE("buffers: a mean is over all ranks, those without samples too, and models start from rank 0's") {
  one_buffer_trainer<float> trainer{lockstep::devices::first(4),
                                    [](lockstep::device_context<lockstep::host>& device) {
                                      one_buffer<float> made{buffer_sync::mean};
                                      made.seen = static_cast<float>(8 + number(device.rank()));
                                      made.left = 4;
                                      return made;
                                    },
                                    lockstep::sgd{}};
  for (int r = 0; r < 4; ++r) {
    CHECK(trainer.model(rank_id{r}).seen == 8.0F);
  }
  std::vector<float> const samples(2, 1.0F);
  trainer.step({samples});
  for (int r = 0; r < 4; ++r) {
    CHECK(trainer.model(rank_id{r}).seen == 6.0F);  // (4 + 4 + 8 + 8) / 4
  }
}

TEST_CASE("buffers: booleans are rank 0's") {
  one_buffer_trainer<bool> trainer{lockstep::devices::first(3), [](auto&) { return one_buffer<bool>{buffer_sync::root}; },
                                   lockstep::sgd{}};
  std::vector<float> const samples(3, 1.0F);
  for (bool const root : {true, false}) {
    for (int r = 0; r < 3; ++r) {
      trainer.model(rank_id{r}).left = r == 0 ? root : !root;
    }
    trainer.step({samples});
    for (int r = 0; r < 3; ++r) {
      CHECK(trainer.model(rank_id{r}).seen == root);
    }
  }
}

TEST_CASE("buffers: the mean of integers is refused at construction, and ranks must agree on what is averaged") {
  for (int const ranks : {1, 3}) {
    std::string const said = refused([&] {
      one_buffer_trainer<std::int64_t> const trainer{
          lockstep::devices::first(ranks), [](auto&) { return one_buffer<std::int64_t>{buffer_sync::mean}; }, lockstep::sgd{}};
    });
    CHECK_MESSAGE(contains(said, "buffer 'seen' is i64, and only floating-point buffers can be averaged over the ranks"), said);
  }
  std::string const said = refused([&] {
    one_buffer_trainer<float> const trainer{
        lockstep::devices::first(3),
        [](lockstep::device_context<lockstep::host>& device) {
          return one_buffer<float>{number(device.rank()) == 2 ? buffer_sync::mean : buffer_sync::root};
        },
        lockstep::sgd{}};
  });
  CHECK_MESSAGE(contains(said, "rank 0 has 'seen' {} f32, a buffer, rank 2 has 'seen' {} f32, a buffer that is averaged"),
                said);
}

TEST_CASE("buffers: tied listings are averaged once, and must agree on it") {
  struct tied {
    using backend = lockstep::host;
    using batch = std::tuple<std::span<float const>>;
    explicit tied(buffer_sync second) : how(second) {}
    std::vector<lockstep::parameter> parameters() {
      return {{"value", &value, &gradient, {}},
              lockstep::buffer("below", &seen, {}, {.sync = buffer_sync::mean}),
              lockstep::buffer("above", &seen, {}, {.sync = how})};
    }
    void train(lockstep::train_context<backend>& ctx, batch const&) { seen = static_cast<float>(number(ctx.rank())); }
    buffer_sync how;
    float value = 1, gradient = 0, seen = 0;
  };
  using trainer_type = lockstep::trainer<tied, lockstep::sgd, lockstep::peer_all_reduce<>>;
  trainer_type trainer{lockstep::devices::first(3), [](auto&) { return tied{buffer_sync::mean}; }, lockstep::sgd{}};
  std::vector<float> const samples(3, 1.0F);
  trainer.step({samples});
  CHECK(trainer.model(rank_id{0}).seen == 1.0F);
  CHECK(trainer.model(rank_id{2}).seen == 1.0F);
  std::string const said = refused([] {
    trainer_type const differing{lockstep::devices::first(3), [](auto&) { return tied{buffer_sync::root}; }, lockstep::sgd{}};
  });
  CHECK_MESSAGE(contains(said, "buffers 'below' and 'above' are tied but synchronised differently"), said);
}
