// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#include <lockstep/comm/shared_memory.hpp>

#include "conformance.hpp"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using conformance::message_of;
using conformance::on_ranks;
using lockstep::device_id;
using lockstep::host;
using lockstep::rank_id;
using lockstep::reduction;
using group = lockstep::communicator_for<lockstep::shared_memory, host>;

static_assert(lockstep::communicator<group::type, host>);
static_assert(lockstep::transport_for<lockstep::automatic, host>);
static_assert(std::is_same_v<lockstep::communicator_for<lockstep::automatic, host>::type, group::type>);

auto create(int ranks) { return group::create(conformance::first_devices(ranks), {}); }
auto create_with_timeout(int ranks, double seconds) {
  return group::create(conformance::first_devices(ranks), {.timeout_seconds = seconds});
}

/// A group of four sums as it should.
void check_new_group_works() {
  auto communicators = create(4);
  std::array<std::array<int, 3>, 4> elements{};
  conformance::check_no_failure(on_ranks(4, [&](int rank) {
    auto& mine = elements[static_cast<std::size_t>(rank)];
    mine = {rank, 1, 10 * rank};
    communicators[static_cast<std::size_t>(rank)].all_reduce(std::span{mine}, reduction::sum, {});
  }));
  for (auto const& mine : elements) {
    CHECK(mine == std::array{6, 4, 60});
  }
}

}  // namespace

TEST_CASE("shared_memory: every collective of every element type gives the reference's elements, on 1 to 8 ranks") {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    conformance::gives_reference_results(create, ranks);
  }
}

TEST_CASE("shared_memory: bad arguments are refused before anything is enqueued") {
  for (int const ranks : {1, 3}) {
    conformance::refuses_bad_arguments(create, ranks);
  }
}

TEST_CASE("shared_memory: after an abort every rank's collectives throw the first reason") {
  for (int const ranks : {1, 3}) {
    conformance::stays_aborted(create, ranks);
  }
}

TEST_CASE("shared_memory: no devices, or a timeout that is not above zero, are refused") {
  CHECK_THROWS_AS(create(0), lockstep::usage_error);
  CHECK_THROWS_AS(create_with_timeout(2, 0), lockstep::usage_error);
  CHECK_THROWS_AS(create_with_timeout(2, -1), lockstep::usage_error);
  CHECK_NOTHROW(create_with_timeout(2, 1e300));
}

TEST_CASE("shared_memory: the bytes moved are those of the policies' table") {
  constexpr std::size_t count = 4 * 16 * 5;  // four equal parts
  constexpr std::uint64_t bytes = count * sizeof(float);
  auto communicators = create(4);
  std::array<std::array<std::uint64_t, 6>, 4> moved{};
  conformance::check_no_failure(on_ranks(4, [&](int rank) {
    auto& communicator = communicators[static_cast<std::size_t>(rank)];
    auto& mine = moved[static_cast<std::size_t>(rank)];
    std::vector<float> elements(count);
    std::span const span{elements};
    mine[0] = communicator.bytes_moved();
    communicator.all_reduce(span, reduction::sum, {});
    mine[1] = communicator.bytes_moved();
    communicator.reduce_scatter(span, reduction::sum, {});
    mine[2] = communicator.bytes_moved();
    communicator.all_gather(span, {});
    mine[3] = communicator.bytes_moved();
    communicator.broadcast(span, rank_id{1}, {});
    mine[4] = communicator.bytes_moved();
    communicator.reduce(span, reduction::sum, rank_id{1}, {});
    mine[5] = communicator.bytes_moved();
  }));
  for (std::size_t rank = 0; rank < 4; ++rank) {
    CAPTURE(rank);
    auto const& mine = moved[rank];
    CHECK(mine[0] == 0);
    CHECK(mine[1] - mine[0] == 2 * bytes * 3 / 4);
    CHECK(mine[2] - mine[1] == bytes * 3 / 4);
    CHECK(mine[3] - mine[2] == bytes * 3 / 4);
    CHECK(mine[4] - mine[3] == (rank == 1 ? 0 : bytes));
    CHECK(mine[5] - mine[4] == (rank == 1 ? bytes * 3 / 4 : bytes));  // the parts of three, and one part to the root
  }
}

TEST_CASE("shared_memory: 16-bit sums are rounded once, not once a rank") {
  auto communicators = create(5);
  std::array<lockstep::float16, 5> elements{};
  conformance::check_no_failure(on_ranks(5, [&](int rank) {
    auto& mine = elements[static_cast<std::size_t>(rank)];
    mine = lockstep::float16{rank == 0 ? 2048.0F : 1.0F};  // 2048 + 1 is no float16
    communicators[static_cast<std::size_t>(rank)].all_reduce(std::span{&mine, 1}, reduction::sum, {});
  }));
  for (lockstep::float16 const sum : elements) {
    CHECK(static_cast<float>(sum) == 2052.0F);
  }
}

TEST_CASE("shared_memory: a rank that never arrives is named, with its device, to all others") {
  std::array const devices{device_id{5}, device_id{3}, device_id{9}, device_id{1}};
  auto communicators = group::create(devices, {.timeout_seconds = 0.2});
  auto const thrown = on_ranks(4, [&](int rank) {
    if (rank != 2) {
      std::vector<float> elements(10);
      communicators[static_cast<std::size_t>(rank)].all_reduce(std::span{elements}, reduction::sum, {});
    }
  });
  std::string const sentence = "rank 2 (device 9) did not arrive at all_reduce of 10 f32 within 0.2 seconds";
  int timeouts = 0;
  for (std::size_t const rank : {std::size_t{0}, std::size_t{1}, std::size_t{3}}) {
    CAPTURE(rank);
    CHECK(message_of(thrown[rank]).find(sentence) != std::string::npos);
    try {
      std::rethrow_exception(thrown[rank]);
    } catch (lockstep::timeout_error const& failure) {
      ++timeouts;
      CHECK(failure.missing() == rank_id{2});
    } catch (lockstep::aborted_error const& failure) {
      CHECK(std::string{failure.what()}.find("all_reduce of 10 f32 on rank " + std::to_string(rank)) == 0);
    }
  }
  CHECK(timeouts == 1);
  CHECK(communicators[2].abort_reason() == sentence);
  std::vector<float> late(10);
  CHECK_THROWS_WITH_AS(communicators[2].all_reduce(std::span{late}, reduction::sum, {}), doctest::Contains(sentence.c_str()),
                       lockstep::aborted_error);
  check_new_group_works();
}

TEST_CASE("shared_memory: a timeout on a stream comes out of its synchronize") {
  auto communicators = create_with_timeout(2, 0.05);
  std::vector<float> elements(10);
  host::stream const stream;
  communicators[0].all_reduce(std::span{elements}, reduction::sum, stream);
  CHECK_THROWS_WITH_AS(stream.synchronize(), doctest::Contains("rank 1 (device 1) did not arrive"), lockstep::timeout_error);
}

TEST_CASE("shared_memory: an abort frees the ranks that wait, with its reason") {
  auto communicators = create(4);
  std::atomic<int> waiting{0};
  auto const thrown = on_ranks(4, [&](int rank) {
    auto& communicator = communicators[static_cast<std::size_t>(rank)];
    if (rank == 1) {
      while (waiting < 3) {
        std::this_thread::yield();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds{2});  // most of them sleep by now; correct if they don't
      communicator.abort("rank 1 ran out of paper");
      communicator.abort("later");
    } else {
      std::vector<float> elements(10);
      ++waiting;
      communicator.broadcast(std::span{elements}, rank_id{3}, {});
    }
  });
  CHECK(thrown[1] == nullptr);
  for (std::size_t const rank : {std::size_t{0}, std::size_t{2}, std::size_t{3}}) {
    CHECK(message_of<lockstep::aborted_error>(thrown[rank]) ==
          "broadcast of 10 f32 from rank 3 on rank " + std::to_string(rank) + " was stopped: rank 1 ran out of paper");
  }
  CHECK(communicators[0].abort_reason() == "rank 1 ran out of paper");
  check_new_group_works();
}

TEST_CASE("shared_memory: ranks that call different things all get the same sentence, naming two ranks and both calls") {
  using communicator = group::type;
  struct difference {
    std::function<void(communicator&, lockstep::typed_span)> usual;
    std::function<void(communicator&, lockstep::typed_span)> unusual;
    std::string sentence;
  };
  auto const all_reduce = [](reduction how, std::size_t count, lockstep::element_type type) {
    return [=](communicator& c, lockstep::typed_span memory) { c.all_reduce({memory.data, count, type}, how, {}); };
  };
  using lockstep::element_type;
  auto const usual = all_reduce(reduction::sum, 10, element_type::f32);
  std::vector<difference> const differences{
      {usual,
       [](communicator& c, lockstep::typed_span m) {
         c.reduce({m.data, 12, element_type::f32}, reduction::sum, rank_id{0}, {});
       },
       "rank 2 called reduce of 12 f32 to rank 0 while rank 0 called all_reduce of 10 f32"},
      {usual, all_reduce(reduction::sum, 11, element_type::f32),
       "rank 2 called all_reduce of 11 f32 while rank 0 called all_reduce of 10 f32"},
      {usual, all_reduce(reduction::sum, 10, element_type::i32),
       "rank 2 called all_reduce of 10 i32 while rank 0 called all_reduce of 10 f32"},
      {usual, all_reduce(reduction::max, 10, element_type::f32),
       "rank 2 called all_reduce of 10 f32 by max while rank 0 called all_reduce of 10 f32"},
      {usual, all_reduce(reduction::sum, 0, element_type::f32),
       "rank 2 called all_reduce of 0 f32 while rank 0 called all_reduce of 10 f32"},
      {[](communicator& c, lockstep::typed_span m) { c.broadcast(m.part(0, 10), rank_id{0}, {}); },
       [](communicator& c, lockstep::typed_span m) { c.broadcast(m.part(0, 10), rank_id{1}, {}); },
       "rank 2 called broadcast of 10 f32 from rank 1 while rank 0 called broadcast of 10 f32 from rank 0"},
      {[](communicator& c, lockstep::typed_span m) { c.all_gather(m.part(0, 10), {}); },
       [](communicator& c, lockstep::typed_span m) { c.reduce_scatter(m.part(0, 10), reduction::min, {}); },
       "rank 2 called reduce_scatter of 10 f32 by min while rank 0 called all_gather of 10 f32"},
  };
  for (difference const& d : differences) {
    CAPTURE(d.sentence);
    auto communicators = create(4);
    std::vector<std::vector<float>> memory(4, std::vector<float>(16, 7.0F));
    auto const thrown = on_ranks(4, [&](int rank) {
      auto const index = static_cast<std::size_t>(rank);
      (rank == 2 ? d.unusual : d.usual)(communicators[index], std::span{memory[index]});
    });
    for (std::size_t rank = 0; rank < 4; ++rank) {
      CHECK(message_of<lockstep::usage_error>(thrown[rank]) == "lockstep: " + d.sentence);
      CHECK(memory[rank] == std::vector<float>(16, 7.0F));  // nothing was moved
      CHECK(communicators[rank].abort_reason() == d.sentence);
      CHECK_THROWS_AS(d.usual(communicators[rank], std::span{memory[rank]}), lockstep::aborted_error);
    }
  }
  check_new_group_works();
}

TEST_CASE("shared_memory: on a stream the caller goes on while the group waits for the last rank") {
  auto communicators = create(3);
  std::array<std::promise<void>, 2> ahead;
  std::array<int, 3> sums{};
  conformance::check_no_failure(on_ranks(3, [&](int rank) {
    auto const index = static_cast<std::size_t>(rank);
    host::stream const stream{host::device{device_id{rank}}};
    host::event done;
    sums[index] = rank + 1;
    if (rank == 2) {  // arrives only after the others went on: a blocking call would end in the deadline
      ahead[0].get_future().wait();
      ahead[1].get_future().wait();
    }
    communicators[index].all_reduce(std::span{&sums[index], 1}, reduction::sum, stream);
    communicators[index].all_reduce(std::span{&sums[index], 1}, reduction::max, stream);
    done.record(stream);
    if (rank != 2) {
      ahead[index].set_value();
    }
    host::stream_ref{}.wait(done);
    if (sums[index] != 6) {
      throw lockstep::error("the event completed before the collectives did");
    }
  }));
}

TEST_CASE("shared_memory: a communicator may move or go while its collectives are enqueued") {
  auto communicators = create(3);
  std::array<int, 3> sums{1, 2, 3};
  std::array<host::stream, 3> streams;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    auto moved = std::move(communicators[rank]);
    moved.all_reduce(std::span{&sums[rank], 1}, reduction::sum, streams[rank]);
  }
  communicators.clear();
  for (host::stream const& stream : streams) {
    stream.synchronize();
  }
  CHECK(sums == std::array{6, 6, 6});

  auto again = create(1);
  auto const taken = std::move(again[0]);
  int element = 0;
  CHECK_THROWS_AS(again[0].all_reduce(std::span{&element, 1}, reduction::sum, {}), lockstep::usage_error);
  again[0].abort("nobody's group");
  CHECK_FALSE(taken.aborted());
}

TEST_CASE("shared_memory: whenever an abort comes, a collective succeeds on every rank or on none") {
  auto const seed = conformance::test_seed();
  INFO("LOCKSTEP_TEST_SEED=" << seed);
  std::mt19937_64 random{seed};
  for (int round = 0; round < 60; ++round) {
    int const ranks = 2 + static_cast<int>(random() % 4);
    auto const pause = std::chrono::microseconds{random() % 400};
    auto communicators = create(ranks);
    std::vector<int> succeeded(static_cast<std::size_t>(ranks));
    auto const thrown = on_ranks(ranks + 1, [&](int rank) {
      if (rank == ranks) {  // somebody outside of the group
        std::this_thread::sleep_for(pause);
        communicators[0].abort("enough");
        return;
      }
      auto const index = static_cast<std::size_t>(rank);
      for (;;) {
        std::vector<int> elements(600, 1);  // gone as soon as this rank fails: nobody may touch it any more
        communicators[index].all_reduce(std::span{elements}, reduction::sum, {});
        if (elements.front() != ranks || elements.back() != ranks) {
          throw lockstep::error("a wrong sum");
        }
        ++succeeded[index];
      }
    });
    for (std::size_t rank = 0; rank < succeeded.size(); ++rank) {
      CHECK(message_of<lockstep::aborted_error>(thrown[rank]).find("enough") != std::string::npos);
      CHECK(succeeded[rank] == succeeded[0]);
    }
  }
}

TEST_CASE("shared_memory: a rank that arrives about when the deadline passes is in for every rank or for none") {
  auto const seed = conformance::test_seed();
  INFO("LOCKSTEP_TEST_SEED=" << seed);
  std::mt19937_64 random{seed};
  for (int round = 0; round < 60; ++round) {
    auto communicators = create_with_timeout(3, 0.001);
    auto const pause = std::chrono::microseconds{random() % 2000};
    std::array<int, 3> sums{};
    auto const thrown = on_ranks(3, [&](int rank) {
      if (rank == 1) {
        std::this_thread::sleep_for(pause);
      }
      auto const element = std::make_unique<int>(1);
      communicators[static_cast<std::size_t>(rank)].all_reduce(std::span{element.get(), 1}, reduction::sum, {});
      sums[static_cast<std::size_t>(rank)] = *element;
    });
    bool const failed = thrown[0] != nullptr;
    for (std::size_t rank = 0; rank < 3; ++rank) {
      CHECK((thrown[rank] != nullptr) == failed);
      CHECK(sums[rank] == (failed ? 0 : 3));
    }
    CHECK(communicators[0].aborted() == failed);
  }
}

TEST_CASE("shared_memory: a device that is absent from a step fails the others and is freed by their abort") {
  lockstep::host_faults const faults{.absences = {{.device = device_id{1}, .step = 2}}};
  host::options const options{.timeout_seconds = 0.2, .faults = std::make_shared<lockstep::host_faults const>(faults)};
  auto communicators = group::create(conformance::first_devices(3), options);
  auto const thrown = on_ranks(3, [&](int rank) {
    auto& communicator = communicators[static_cast<std::size_t>(rank)];
    host::device device{device_id{rank}, options};
    for (std::uint64_t step = 1; step <= 2; ++step) {
      device.begin_step(step, [&] { return communicator.aborted(); });
      float element = 1;
      communicator.all_reduce(std::span{&element, 1}, reduction::sum, device.stream());
    }
  });
  CHECK(message_of<lockstep::aborted_error>(thrown[1]).find("device 1 was absent from step 2") == 0);
  CHECK(message_of(thrown[0]).find("rank 1 (device 1) did not arrive") != std::string::npos);
  CHECK(message_of(thrown[2]).find("rank 1 (device 1) did not arrive") != std::string::npos);
}
