// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// The transport of ranks that share one GPU, on which other tests stand. Here one thread drives all ranks.

#include "seed.hpp"
#include "support/one_gpu.cuh"

#include <lockstep/lockstep.cuh>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

using lockstep::element_type;
using lockstep::rank_id;
using lockstep::reduction;
using lockstep::comm_detail::collective;
using support::one_gpu;

namespace {

static_assert(lockstep::backend<one_gpu>);
static_assert(lockstep::transport_for<support::shared_gpu, one_gpu>);

struct ranks_on_one_gpu {
  explicit ranks_on_one_gpu(int count, double timeout_seconds = 30) {
    std::vector<lockstep::device_id> ids;
    for (int rank = 0; rank < count; ++rank) {
      ids.push_back(lockstep::device_id{rank});
    }
    lockstep::cuda::options const options{.timeout_seconds = timeout_seconds};
    communicators = lockstep::communicator_for<support::shared_gpu, one_gpu>::create(ids, options);
    for (lockstep::device_id const id : ids) {
      devices.emplace_back(id, options);
      memory.push_back(devices.back().allocate(16384, lockstep::memory_use::other));
    }
  }

  std::vector<support::shared_gpu_communicator> communicators;
  std::deque<one_gpu::device> devices;
  std::vector<one_gpu::buffer> memory;
};

template <class T>
T from_int(int value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<T>(value);
  } else {
    return T(static_cast<float>(value));
  }
}

/// One collective on small whole numbers, which every type adds exactly.
template <class T>
void check_collective(ranks_on_one_gpu& all, collective which, reduction how, std::size_t count, std::size_t root,
                      tests::generator& random) {
  std::size_t const ranks = all.devices.size();
  CAPTURE(ranks);
  CAPTURE(std::string{name_of(which)});
  CAPTURE(std::string{name_of(lockstep::element_type_of<T>::value)});
  CAPTURE(static_cast<int>(how));
  CAPTURE(count);
  CAPTURE(root);
  int const least = std::is_unsigned_v<T> ? 0 : -7;
  std::vector<std::vector<int>> numbers(ranks);
  for (std::vector<int>& own : numbers) {
    for (std::size_t i = 0; i < count; ++i) {
      own.push_back(static_cast<int>(random.whole(0, 14)) + least);
    }
  }
  for (std::size_t r = 0; r < ranks; ++r) {
    std::vector<T> elements;
    for (int const number : numbers[r]) {
      elements.push_back(from_int<T>(number));
    }
    one_gpu::copy(all.devices[r].stream(), all.memory[r].data(), elements.data(), count * sizeof(T));
  }
  for (std::size_t r = 0; r < ranks; ++r) {
    auto const stream = all.devices[r].stream();
    lockstep::typed_span const data{all.memory[r].data(), count, lockstep::element_type_of<T>::value};
    rank_id const to{static_cast<int>(root)};
    switch (which) {
      case collective::all_reduce: all.communicators[r].all_reduce(data, how, stream); break;
      case collective::reduce: all.communicators[r].reduce(data, how, to, stream); break;
      case collective::broadcast: all.communicators[r].broadcast(data, to, stream); break;
      case collective::reduce_scatter: all.communicators[r].reduce_scatter(data, how, stream); break;
      case collective::all_gather: all.communicators[r].all_gather(data, stream); break;
    }
  }
  for (std::size_t r = 0; r < ranks; ++r) {
    all.communicators[r].wait(all.devices[r].stream());
  }
  std::size_t wrong = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    std::vector<T> elements(count);
    one_gpu::copy(all.devices[r].stream(), elements.data(), all.memory[r].data(), count * sizeof(T));
    lockstep::plan::range const mine = lockstep::plan::part(count, r, ranks);
    for (std::size_t i = 0; i < count; ++i) {
      int combined = numbers[0][i];
      std::size_t owner = 0;
      for (std::size_t other = 0; other < ranks; ++other) {
        int const number = numbers[other][i];
        if (other != 0) {
          combined = how == reduction::sum   ? combined + number
                     : how == reduction::min ? (std::min)(combined, number)
                                             : (std::max)(combined, number);
        }
        lockstep::plan::range const part = lockstep::plan::part(count, other, ranks);
        owner = i >= part.first && i < part.end() ? other : owner;
      }
      int expected = numbers[r][i];
      switch (which) {
        case collective::all_reduce: expected = combined; break;
        case collective::reduce: expected = r == root ? combined : expected; break;
        case collective::broadcast: expected = numbers[root][i]; break;
        case collective::reduce_scatter: expected = combined; break;
        case collective::all_gather: expected = numbers[owner][i]; break;
      }
      bool const counts = which != collective::reduce_scatter || (i >= mine.first && i < mine.end());
      wrong += counts && !(static_cast<double>(elements[i]) == static_cast<double>(from_int<T>(expected))) ? 1 : 0;
    }
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("one_gpu: every collective of every element type is exact") {
  std::uint64_t const seed = tests::seed();
  CAPTURE(seed);
  tests::generator random{seed};
  constexpr std::array types{element_type::f32, element_type::f64, element_type::f16, element_type::bf16, element_type::i8,
                             element_type::u8,  element_type::i32, element_type::u32, element_type::i64,  element_type::u64};
  for (int const ranks : {1, 2, 3, 8}) {
    ranks_on_one_gpu all{ranks};
    for (element_type const type : types) {
      lockstep::visit(type, [&]<class T>(std::type_identity<T>) {
        for (std::size_t const count : {0, 1, 15, 33, 1000}) {
          for (collective const which : {collective::all_reduce, collective::reduce, collective::broadcast,
                                         collective::reduce_scatter, collective::all_gather}) {
            auto const how = static_cast<reduction>(random.whole(0, 2));
            check_collective<T>(all, which, how, count, random.whole(0, static_cast<std::size_t>(ranks) - 1), random);
          }
        }
      });
    }
  }
}

TEST_CASE("one_gpu: collectives that were captured do the same at each launch") {
  constexpr int ranks = 4;
  constexpr std::size_t count = 500;
  ranks_on_one_gpu all{ranks};
  std::vector<lockstep::cuda::graph> graphs;
  for (std::size_t r = 0; r < ranks; ++r) {
    auto const stream = all.devices[r].stream();
    std::vector<float> const start(count, 1.0F);
    one_gpu::copy(stream, all.memory[r].data(), start.data(), count * sizeof(float));
    graphs.push_back(lockstep::cuda::graph::capture(stream, [&] {
      lockstep::typed_span const data{all.memory[r].data(), count, element_type::f32};
      all.communicators[r].all_reduce(data, reduction::sum, stream);
      all.communicators[r].broadcast(data, rank_id{1}, stream);
    }));
  }
  for (int k = 0; k < 5; ++k) {
    for (std::size_t r = 0; r < ranks; ++r) {
      graphs[r].launch(all.devices[r].stream());
    }
  }
  for (std::size_t r = 0; r < ranks; ++r) {
    all.communicators[r].wait(all.devices[r].stream());
    std::vector<float> end(count);
    one_gpu::copy(all.devices[r].stream(), end.data(), all.memory[r].data(), count * sizeof(float));
    CHECK(std::all_of(end.begin(), end.end(), [](float v) { return v == 4.0F * 4.0F * 4.0F * 4.0F * 4.0F; }));
  }
}

TEST_CASE("one_gpu: a rank that is missing is named, and what waits for it ends") {
  ranks_on_one_gpu all{3, 0.2};
  auto const data = [&](std::size_t r) { return lockstep::typed_span{all.memory[r].data(), 100, element_type::f32}; };
  for (std::size_t const r : {0, 2}) {
    all.communicators[r].all_reduce(data(r), reduction::sum, all.devices[r].stream());
  }
  auto const start = std::chrono::steady_clock::now();
  try {
    all.communicators[2].wait(all.devices[2].stream());
    FAIL("it should have thrown");
  } catch (lockstep::timeout_error const& e) {
    CHECK(e.missing() == rank_id{1});
    CHECK(std::string{e.what()}.find("rank 1 (device 1) did not arrive") != std::string::npos);
  }
  CHECK_THROWS_AS(all.communicators[0].wait(all.devices[0].stream()), lockstep::aborted_error);
  CHECK_THROWS_AS(all.communicators[1].all_reduce(data(1), reduction::sum, all.devices[1].stream()), lockstep::aborted_error);
  for (one_gpu::device& device : all.devices) {
    CHECK(device.stream().done());
  }
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds{10});
}

TEST_CASE("one_gpu: memory is used again once all of it was given back") {
  void* first = nullptr;
  {
    ranks_on_one_gpu const all{2};
    first = all.memory[0].data();
    CHECK(support::device_pool().live() > 0);
    ranks_on_one_gpu const beside{2};
    CHECK(beside.memory[0].data() != first);
  }
  CHECK(support::device_pool().live() == 0);
  CHECK(support::pinned_pool().live() == 0);
  ranks_on_one_gpu const again{2};
  CHECK(again.memory[0].data() == first);
}
