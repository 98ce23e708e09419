// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#include <lockstep/core/work_queue.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

using lockstep::work_queue;

std::chrono::steady_clock::time_point in_milliseconds(int count) {
  return std::chrono::steady_clock::now() + std::chrono::milliseconds{count};
}

/// Blocks a task until it is opened.
class gate {
 public:
  void open() { promise_.set_value(); }
  [[nodiscard]] std::shared_future<void> future() const { return opened_; }

 private:
  std::promise<void> promise_;
  std::shared_future<void> opened_{promise_.get_future()};
};

}  // namespace

TEST_CASE("work_queue: tasks run one at a time in the order they were enqueued, all in one other thread") {
  work_queue queue{"a name longer than what the system takes"};
  std::vector<int> order;
  std::vector<std::thread::id> threads;
  for (int round = 0; round < 20; ++round) {
    for (int task = 0; task < 50; ++task) {
      queue.enqueue([&, number = 50 * round + task] {
        order.push_back(number);
        threads.push_back(std::this_thread::get_id());
      });
    }
    queue.wait();
    REQUIRE(order.size() == static_cast<std::size_t>(50 * (round + 1)));
  }
  for (std::size_t index = 0; index < order.size(); ++index) {
    REQUIRE(order[index] == static_cast<int>(index));
    REQUIRE(threads[index] == threads.front());
  }
  CHECK(threads.front() != std::this_thread::get_id());
}

TEST_CASE("work_queue: an unused queue has nothing to wait for") {
  work_queue queue;
  CHECK_NOTHROW(queue.wait());
  CHECK(queue.wait(in_milliseconds(0)));
  CHECK(queue.here().reached());
  CHECK(work_queue::ticket{}.reached());
}

TEST_CASE("work_queue: the first exception is kept, tasks after it are dropped until it is taken, and it is thrown once") {
  work_queue queue;
  int before = 0;
  int after = 0;
  queue.enqueue([&] { ++before; });
  queue.enqueue([] { throw std::runtime_error("first"); });
  queue.enqueue([&] { ++after; });
  queue.enqueue([] { throw std::runtime_error("second"); });
  auto const point = queue.here();
  CHECK_NOTHROW(point.wait());  // a ticket is reached; the failure is the queue's
  CHECK_THROWS_WITH_AS(queue.wait(), "first", std::runtime_error);
  CHECK(before == 1);
  CHECK(after == 0);
  CHECK_NOTHROW(queue.wait());
  queue.enqueue([&] { ++after; });
  queue.wait();
  CHECK(after == 1);
}

TEST_CASE("work_queue: wait with a deadline says whether the work was done, and throws what it threw") {
  work_queue queue;
  gate hold;
  queue.enqueue([opened = hold.future()] { opened.wait(); });
  auto const point = queue.here();
  CHECK_FALSE(queue.wait(in_milliseconds(5)));
  CHECK_FALSE(point.wait(in_milliseconds(5)));
  CHECK_FALSE(point.reached());
  hold.open();
  point.wait();
  CHECK(point.reached());
  CHECK(queue.wait(in_milliseconds(60000)));
  queue.enqueue([] { throw std::logic_error("late"); });
  CHECK_THROWS_WITH_AS(static_cast<void>(queue.wait(in_milliseconds(60000))), "late", std::logic_error);
}

TEST_CASE("work_queue: a ticket stands for what was enqueued before it, not after") {
  work_queue queue;
  gate hold;
  std::atomic<bool> ran{false};
  queue.enqueue([&] { ran = true; });
  auto const early = queue.here();
  queue.enqueue([opened = hold.future()] { opened.wait(); });
  early.wait();  // would never return if it waited for the second task
  CHECK(ran);
  hold.open();
}

TEST_CASE("work_queue: the destructor finishes what was enqueued and swallows a kept exception") {
  int done = 0;
  work_queue::ticket last;
  {
    work_queue queue;
    for (int task = 0; task < 100; ++task) {
      queue.enqueue([&] { ++done; });
    }
    queue.enqueue([] { throw std::runtime_error("nobody asks"); });
    last = queue.here();
  }
  CHECK(done == 100);
  CHECK(last.reached());
}

TEST_CASE("work_queue: what a task captured is destroyed before the task counts as done, dropped tasks included") {
  work_queue queue;
  std::atomic<int> destroyed_in_time{0};
  auto const probe = [&] {
    return std::shared_ptr<void>(nullptr, [&](void*) { destroyed_in_time += queue.here().reached() ? 0 : 1; });
  };
  gate hold;
  queue.enqueue([opened = hold.future()] { opened.wait(); });
  queue.enqueue([captured = probe()] { throw std::runtime_error("drop the next"); });
  queue.enqueue([captured = probe()] {});
  hold.open();
  CHECK_THROWS_AS(queue.wait(), std::runtime_error);
  CHECK(destroyed_in_time == 2);
}

TEST_CASE("work_queue: who sees a ticket reached sees what the tasks wrote") {
  work_queue queue;
  for (int round = 0; round < 200; ++round) {
    int written = 0;
    queue.enqueue([&] { written = round + 1; });
    auto const point = queue.here();
    while (!point.reached()) {
      std::this_thread::yield();
    }
    REQUIRE(written == round + 1);
  }
}

TEST_CASE("work_queue: an abandoned queue frees those who wait, drops its tasks and takes no more") {
  auto const ended = std::make_shared<gate>();  // the task may outlive this function's other variables
  gate started;
  gate hold;
  auto const token = std::make_shared<int>(0);
  {
    work_queue queue;
    queue.enqueue([&started, opened = hold.future(), ended] {
      started.open();
      opened.wait();
      ended->open();
    });
    queue.enqueue([copy = token] {});
    started.future().wait();  // a task that has not started would be dropped
    std::thread waiter([&] { CHECK_THROWS_AS(queue.wait(), lockstep::aborted_error); });
    CHECK_FALSE(queue.wait(in_milliseconds(5)));
    queue.abandon();
    waiter.join();
    CHECK(token.use_count() == 1);
    CHECK_THROWS_AS(queue.enqueue([] {}), lockstep::usage_error);
    CHECK_THROWS_AS(queue.wait(), lockstep::aborted_error);
  }
  hold.open();  // the task returns after its queue is gone
  ended->future().wait();
}

TEST_CASE("work_queue: an idle queue can be abandoned") {
  work_queue queue;
  queue.enqueue([] {});
  queue.wait();
  queue.abandon();
  CHECK_NOTHROW(queue.wait());
  work_queue unused;
  unused.abandon();
  CHECK_NOTHROW(unused.wait());
}

TEST_CASE("work_queue: several threads may enqueue and wait at once") {
  work_queue queue;
  int sum = 0;  // touched by the queue's thread alone, and after the last wait
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int task = 0; task < 200; ++task) {
        queue.enqueue([&] { ++sum; });
        if (task % 16 == 0) {
          queue.wait();
        }
      }
    });
  }
  for (std::thread& caller : callers) {
    caller.join();
  }
  queue.wait();
  CHECK(sum == 800);
}

TEST_CASE("work_queue: an empty task is refused at once") {
  work_queue queue;
  CHECK_THROWS_AS(queue.enqueue(nullptr), lockstep::usage_error);
  CHECK_NOTHROW(queue.wait());
}
