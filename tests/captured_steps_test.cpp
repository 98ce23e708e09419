// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#include "seed.hpp"

#include <lockstep/captured_steps.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <set>
#include <span>
#include <tuple>
#include <vector>

namespace {

using batch = std::tuple<lockstep::sample_view<float const>, std::span<int const>, lockstep::replicated<int>>;

float const memory[64]{};
int const labels[64]{};

std::vector<batch> shards(std::size_t first, std::size_t count, int argument = 0) {
  return {{{memory + first, count, 1}, std::span{labels}.subspan(first, count), {argument}}};
}

}  // namespace

TEST_CASE("captured_steps: a step is known by its memory, its sizes, its arguments and its micro-batches") {
  lockstep::captured_steps<batch> steps{8};
  CHECK(steps.find_or_add(shards(0, 8), 1) == steps.capacity());
  CHECK(steps.find_or_add(shards(0, 8), 1) == 0);
  CHECK(steps.find_or_add(shards(1, 8), 1) == steps.capacity());
  CHECK(steps.find_or_add(shards(0, 7), 1) == steps.capacity());
  CHECK(steps.find_or_add(shards(0, 8), 2) == steps.capacity());
  CHECK(steps.find_or_add(shards(0, 8, 1), 1) == steps.capacity());
  CHECK(steps.find_or_add(shards(0, 8), 1) == 0);
  std::vector<batch> two = shards(0, 8);
  two.push_back(two[0]);
  CHECK(steps.find_or_add(two, 1) == steps.capacity());
}

TEST_CASE("captured_steps: a batch that can't be compared is never the same") {
  struct opaque {};
  lockstep::captured_steps<opaque> steps{2};
  for (int i = 0; i < 10; ++i) {
    CHECK(steps.find_or_add({opaque{}}, 1) == steps.capacity());
  }
}

TEST_CASE("captured_steps: no more graphs are kept than asked for, and those in use stay") {
  lockstep::captured_steps<batch> none{0};
  CHECK(none.find_or_add(shards(0, 8), 1) == none.capacity());
  CHECK(none.find_or_add(shards(0, 8), 1) == none.capacity());

  std::uint64_t const seed = tests::seed();
  CAPTURE(seed);
  tests::generator random{seed};
  for (int round = 0; round < 50; ++round) {
    std::size_t const graphs = random.whole(1, 4);
    lockstep::captured_steps<batch> steps{graphs};
    std::set<std::size_t> held;
    for (int k = 0; k < 200; ++k) {
      std::size_t const at = steps.find_or_add(shards(random.whole(0, 12), 4), 1);
      if (at != steps.capacity() && !steps.recorded(at)) {
        std::size_t const dropped = steps.set_recorded(at);
        if (dropped != steps.capacity()) {
          CHECK(held.erase(dropped) == 1);
        }
        held.insert(at);
      }
      CHECK(held.size() <= graphs);
      for (std::size_t const one : held) {
        CHECK(steps.recorded(one));
      }
    }
  }
}
