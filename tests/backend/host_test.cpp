// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#include <lockstep/backend/host.hpp>
#include <lockstep/concepts.hpp>

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

using lockstep::device_id;
using lockstep::host;
using lockstep::host_faults;
using lockstep::memory_use;

static_assert(lockstep::backend<host>);
static_assert(!std::is_copy_constructible_v<host::device> && !std::is_move_constructible_v<host::device>);
static_assert(std::is_nothrow_move_constructible_v<host::buffer> && !std::is_copy_constructible_v<host::buffer>);
static_assert(std::is_nothrow_move_constructible_v<host::stream> && !std::is_copy_constructible_v<host::stream>);

namespace {

host::options with_faults(host_faults faults) { return {.faults = std::make_shared<host_faults const>(std::move(faults))}; }

constexpr auto never_aborted = [] { return false; };

}  // namespace

TEST_CASE("host: there is at least one device, and a device knows its number and options") {
  CHECK(host::device_count() >= 1);
  host::device const first;
  CHECK(first.id() == device_id{0});
  CHECK(first.options().timeout_seconds == 60);
  host::device const other{device_id{7}, {.timeout_seconds = 0.5}};
  CHECK(other.id() == device_id{7});
  CHECK(other.options().timeout_seconds == 0.5);
  CHECK(other.stream() == host::stream_ref{});
}

TEST_CASE("host: a negative device and a timeout that is not above zero are refused") {
  CHECK_THROWS_AS(host::device{device_id{-1}}, lockstep::usage_error);
  for (double const seconds : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    CHECK_THROWS_AS((host::device{device_id{0}, {.timeout_seconds = seconds}}), lockstep::usage_error);
  }
}

TEST_CASE("host: buffers are aligned, accounted by use, and give their bytes back") {
  host::device device;
  CHECK(device.memory().total() == 0);
  {
    host::buffer const values = device.allocate(1000, memory_use::parameters);
    host::buffer const gradients = device.allocate(24, memory_use::gradients);
    CHECK(reinterpret_cast<std::uintptr_t>(values.data()) % 64 == 0);
    CHECK(reinterpret_cast<std::uintptr_t>(gradients.data()) % 64 == 0);
    CHECK(values.bytes() == 1000);
    CHECK(gradients.as<float>() == gradients.data());
    CHECK(device.memory()[memory_use::parameters] == 1000);
    CHECK(device.memory()[memory_use::gradients] == 24);
    CHECK(device.memory().total() == 1024);
  }
  CHECK(device.memory().total() == 0);
  CHECK(device.memory().peak_bytes == 1024);
  device.account().add(memory_use::staging, 10);
  CHECK(device.memory()[memory_use::staging] == 10);
}

TEST_CASE("host: a buffer moves, and an empty one holds nothing") {
  host::device device;
  host::buffer empty;
  CHECK(empty.data() == nullptr);
  CHECK(empty.bytes() == 0);
  host::buffer first = device.allocate(100, memory_use::other);
  host::buffer second = device.allocate(50, memory_use::staging);
  void* const memory = first.data();
  second = std::move(first);
  CHECK(second.data() == memory);
  CHECK(second.bytes() == 100);
  CHECK(first.data() == nullptr);  // NOLINT(bugprone-use-after-move): what a moved-from buffer holds is promised
  CHECK(first.bytes() == 0);
  CHECK(device.memory()[memory_use::staging] == 0);
  CHECK(device.memory()[memory_use::other] == 100);
  second = host::buffer{};
  CHECK(device.memory().total() == 0);
}

TEST_CASE("host: zero bytes can be allocated, and a buffer may outlive its device") {
  std::optional<host::device> device{std::in_place};
  host::buffer none = device->allocate(0, memory_use::other);
  CHECK(none.bytes() == 0);
  host::buffer survivor = device->allocate(8, memory_use::other);
  device.reset();
  survivor.as<double>()[0] = 4;
  CHECK(survivor.as<double>()[0] == 4);
}

TEST_CASE("host: an impossible allocation throws out_of_memory with device, bytes and use, and accounts nothing") {
  host::device device{device_id{3}};
  std::size_t const impossible = std::numeric_limits<std::size_t>::max() - 100;
  CHECK_THROWS_WITH_AS(static_cast<void>(device.allocate(impossible, memory_use::optimizer_state)),
                       "device 3: out of memory allocating 18446744073709551515 bytes of optimizer state",
                       lockstep::out_of_memory);
  CHECK(device.memory().total() == 0);
}

TEST_CASE("host_faults: allocations of the chosen device fail from the chosen one on") {
  auto const options = with_faults({.allocations = {{.device = device_id{1}, .from = 3}}});
  host::device healthy{device_id{0}, options};
  host::device failing{device_id{1}, options};
  std::vector<host::buffer> kept;
  for (int count = 1; count <= 4; ++count) {
    kept.push_back(healthy.allocate(16, memory_use::other));
  }
  kept.push_back(failing.allocate(16, memory_use::other));
  kept.push_back(failing.allocate(16, memory_use::other));
  CHECK_THROWS_AS(static_cast<void>(failing.allocate(16, memory_use::other)), lockstep::out_of_memory);
  CHECK_THROWS_AS(static_cast<void>(failing.allocate(0, memory_use::other)), lockstep::out_of_memory);
  CHECK(failing.memory().total() == 32);
}

TEST_CASE("host_faults: allocations for one use fail, the others don't") {
  host::device device{device_id{0}, with_faults({.allocations = {{.use = memory_use::staging}}})};
  CHECK_NOTHROW(static_cast<void>(device.allocate(16, memory_use::parameters)));
  try {
    static_cast<void>(device.allocate(16, memory_use::staging));
    FAIL("the fault did not act");
  } catch (lockstep::out_of_memory const& failure) {
    CHECK(failure.device() == device_id{0});
    CHECK(failure.bytes() == 16);
  }
}

TEST_CASE("host_faults: the chosen device throws at the chosen step only") {
  auto const options = with_faults({.exceptions = {{.device = device_id{2}, .step = 5}}});
  host::device healthy{device_id{1}, options};
  host::device failing{device_id{2}, options};
  for (std::uint64_t step = 1; step <= 8; ++step) {
    CHECK_NOTHROW(healthy.begin_step(step, never_aborted));
    if (step == 5) {
      CHECK_THROWS_WITH_AS(failing.begin_step(step, never_aborted), "device 2: injected fault at step 5",
                           lockstep::injected_fault);
    } else {
      CHECK_NOTHROW(failing.begin_step(step, never_aborted));
    }
  }
}

TEST_CASE("host_faults: delays are drawn from seed, device and step, and stay in their range") {
  host_faults const plan{.delays = {{.seed = 4, .max_microseconds = 50}}};
  host_faults const other_seed{.delays = {{.seed = 5, .max_microseconds = 50}}};
  std::set<std::int64_t> seen;
  int differing = 0;
  for (int id = 0; id < 4; ++id) {
    for (std::uint64_t step = 1; step <= 500; ++step) {
      auto const drawn = plan.delay_of(device_id{id}, step);
      CHECK(drawn == plan.delay_of(device_id{id}, step));
      CHECK(drawn.count() >= 0);
      CHECK(drawn.count() <= 50);
      seen.insert(drawn.count());
      differing += drawn == other_seed.delay_of(device_id{id}, step) ? 0 : 1;
    }
  }
  CHECK(seen.size() == 51);  // 2,000 draws from 51 values
  CHECK(differing > 1800);

  host_faults const one{.delays = {{.device = device_id{1}, .max_microseconds = 0}, {.device = device_id{2}}}};
  for (std::uint64_t step = 1; step <= 50; ++step) {
    CHECK(one.delay_of(device_id{0}, step).count() == 0);
    CHECK(one.delay_of(device_id{1}, step).count() == 0);
  }
  host::device device{device_id{0}, with_faults(plan)};
  CHECK_NOTHROW(device.begin_step(1, never_aborted));
}

TEST_CASE("host_faults: an absent device comes back when the step is aborted, and only from its step") {
  host::device device{device_id{1}, with_faults({.absences = {{.device = device_id{1}, .step = 2}}})};
  CHECK_NOTHROW(device.begin_step(1, never_aborted));
  std::atomic<bool> aborted{false};
  std::atomic<int> asked{0};
  std::thread rank([&] {
    CHECK_THROWS_AS(device.begin_step(2,
                                      [&] {
                                        ++asked;
                                        return aborted.load();
                                      }),
                    lockstep::aborted_error);
  });
  while (asked < 3) {
    std::this_thread::yield();
  }
  aborted = true;
  rank.join();
  CHECK_NOTHROW(device.begin_step(3, never_aborted));
}

TEST_CASE("host stream: without one, work runs at once in the calling thread") {
  host::device const device;
  auto const caller = std::this_thread::get_id();
  bool ran = false;
  device.stream().enqueue([&] { ran = std::this_thread::get_id() == caller; });
  CHECK(ran);
  CHECK_THROWS_AS(device.stream().enqueue([] { throw std::runtime_error("at once"); }), std::runtime_error);
  CHECK_NOTHROW(device.stream().synchronize());
  CHECK(device.stream().synchronize(std::chrono::steady_clock::now()));
}

TEST_CASE("host stream: enqueued work runs in order in another thread, and its exception comes out of synchronize") {
  host::device const device;
  host::stream const stream{device};
  std::vector<int> order;
  std::thread::id worker;
  for (int task = 0; task < 10; ++task) {
    stream.enqueue([&, task] {
      order.push_back(task);
      worker = std::this_thread::get_id();
    });
  }
  stream.synchronize();
  CHECK(order.size() == 10);
  CHECK(order.back() == 9);
  CHECK(worker != std::this_thread::get_id());
  stream.enqueue([] { throw std::runtime_error("from the stream"); });
  CHECK_THROWS_WITH_AS(stream.synchronize(), "from the stream", std::runtime_error);
  CHECK_NOTHROW(stream.synchronize());
}

TEST_CASE("host stream: a stream moves while work refers to it") {
  std::promise<void> gate;
  int done = 0;
  host::stream first;
  host::stream_ref const ref = first;
  first.enqueue([&] {
    gate.get_future().wait();
    ++done;
  });
  host::stream second = std::move(first);
  CHECK(second.ref() == ref);
  gate.set_value();
  ref.enqueue([&] { ++done; });
  second.synchronize();
  CHECK(done == 2);
}

TEST_CASE("host stream: zero and copy run on the stream or at once, and nothing of nothing is allowed") {
  host::stream const queued;
  for (host::stream_ref const stream : {host::stream_ref{}, queued.ref()}) {
    std::array<int, 8> from{};
    std::array<int, 8> to{};
    std::iota(from.begin(), from.end(), 1);
    host::copy(stream, to.data(), from.data(), sizeof to);
    host::zero(stream, from.data(), 4 * sizeof(int));
    host::copy(stream, &to[1], &to[0], 7 * sizeof(int));  // overlapping
    host::copy(stream, nullptr, nullptr, 0);
    host::zero(stream, nullptr, 0);
    stream.synchronize();
    CHECK(to == std::array{1, 1, 2, 3, 4, 5, 6, 7});
    CHECK(from == std::array{0, 0, 0, 0, 5, 6, 7, 8});
  }
}

TEST_CASE("host event: work of one stream waits for work of another, and so does the caller") {
  host::stream const producer;
  host::stream const consumer;
  for (int round = 0; round < 200; ++round) {
    std::promise<void> gate;
    int value = 0;
    int seen = -1;
    host::event produced;
    CHECK(produced.complete());
    producer.enqueue([&, opened = gate.get_future().share()] {
      opened.wait();
      value = 42;
    });
    produced.record(producer);
    CHECK_FALSE(produced.complete());
    consumer.wait(produced);
    consumer.enqueue([&] { seen = value; });
    host::event consumed;
    consumed.record(consumer);
    gate.set_value();
    host::stream_ref{}.wait(consumed);  // the calling thread
    CHECK(seen == 42);
    CHECK(produced.complete());
  }
}

TEST_CASE("host event: recorded again it stands for the later point, and an earlier wait keeps the earlier one") {
  host::stream const producer;
  host::stream const consumer;
  std::promise<void> gate;
  bool ran = false;
  host::event event;
  producer.enqueue([] {});
  event.record(producer);
  consumer.wait(event);
  consumer.enqueue([&] { ran = true; });
  producer.enqueue([opened = gate.get_future().share()] { opened.wait(); });
  event.record(producer);
  consumer.synchronize();  // would never return if the wait had moved to the later point
  CHECK(ran);
  CHECK_FALSE(event.complete());
  gate.set_value();
  event.synchronize();
  CHECK(event.complete());
  producer.enqueue([] {});
  event.record(host::stream_ref{});
  CHECK(event.complete());
}

TEST_CASE("host event: completes although work before it failed, and the failure stays with its stream") {
  host::stream const producer;
  host::stream const consumer;
  bool ran = false;
  host::event event;
  producer.enqueue([] { throw std::runtime_error("broken"); });
  event.record(producer);
  consumer.wait(event);
  consumer.enqueue([&] { ran = true; });
  CHECK_NOTHROW(event.synchronize());
  CHECK_NOTHROW(consumer.synchronize());
  CHECK(ran);
  CHECK_THROWS_WITH_AS(producer.synchronize(), "broken", std::runtime_error);
}

TEST_CASE("host event: those who wait for an abandoned stream get an error, and the event outlives the stream") {
  std::promise<void> started;
  std::promise<void> gate;
  auto const ended = std::make_shared<std::promise<void>>();  // the task may outlive this function's other variables
  host::event event;
  host::stream const consumer;
  {
    host::stream const stuck;
    stuck.enqueue([&started, opened = gate.get_future().share(), ended] {
      started.set_value();
      opened.wait();
      ended->set_value();
    });
    started.get_future().wait();  // a task that has not started would be dropped
    event.record(stuck);
    consumer.wait(event);
    CHECK_FALSE(stuck.synchronize(std::chrono::steady_clock::now()));
    stuck.abandon();
  }
  CHECK_THROWS_AS(consumer.synchronize(), lockstep::aborted_error);
  CHECK_THROWS_AS(event.synchronize(), lockstep::aborted_error);
  gate.set_value();
  ended->get_future().wait();
}
