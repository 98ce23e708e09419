// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// What the NCCL communicator does on one GPU; tests/comm/nccl_group_test.cu has what takes several.

#include <lockstep/comm/nccl.cuh>

#include "nccl_support.cuh"

#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using conformance::message_of;
using gpu = lockstep::cuda;  // CCCL has a namespace of that name
using lockstep::device_id;
using lockstep::element_type;
using lockstep::nccl_communicator;
using lockstep::rank_id;
using lockstep::reduction;
using lockstep::typed_span;
using nccl_support::create;

static_assert(lockstep::communicator<nccl_communicator, gpu>);
static_assert(lockstep::transport_for<lockstep::nccl, gpu>);
static_assert(std::is_same_v<lockstep::communicator_for<lockstep::automatic, gpu>::type, nccl_communicator>);

/// Calls everything that a rank may call, one after another.
void call_all(nccl_communicator& communicator, typed_span data, gpu::stream_ref stream) {
  communicator.all_reduce(data, reduction::sum, stream);
  communicator.reduce(data, reduction::min, rank_id{0}, stream);
  communicator.broadcast(data, rank_id{0}, stream);
  communicator.reduce_scatter(data, reduction::max, stream);
  communicator.all_gather(data, stream);
  communicator.together([&] { communicator.all_reduce(data, reduction::sum, stream); });
  communicator.replay();
}

/// What `call` throws, if anything.
template <class Call>
std::exception_ptr thrown_by(Call&& call) {
  try {
    call();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

}  // namespace

TEST_CASE("nccl: no devices, devices that are not there or listed twice, and a timeout that is not above zero are refused") {
  auto const with = [](std::vector<device_id> const& devices, double seconds) {
    static_cast<void>(nccl_communicator::create(devices, {.timeout_seconds = seconds}));
  };
  CHECK_THROWS_WITH_AS(with({}, 60), "lockstep: a communicator needs at least one device", lockstep::usage_error);
  CHECK_THROWS_WITH_AS(with({device_id{0}, device_id{4096}}, 60), doctest::Contains("GPU 4096 is not there"),
                       lockstep::usage_error);
  CHECK_THROWS_WITH_AS(with({device_id{-1}}, 60), doctest::Contains("GPU -1 is not there"), lockstep::usage_error);
  CHECK_THROWS_WITH_AS(with({device_id{0}, device_id{0}}, 60),
                       "lockstep: ranks 0 and 1 are both on device 0: list each device once", lockstep::usage_error);
  CHECK_THROWS_WITH_AS(with({device_id{0}}, 0), doctest::Contains("timeout_seconds must be above 0"), lockstep::usage_error);
  CHECK_THROWS_WITH_AS(with({device_id{0}}, -1), doctest::Contains("timeout_seconds must be above 0"), lockstep::usage_error);
  CHECK_NOTHROW(with({device_id{0}}, 1e300));
}

TEST_CASE("nccl: in a group of one nothing is enqueued, and the data is its own result") {
  auto communicators = create(1);
  auto& communicator = communicators.front();
  CHECK(communicator.rank() == rank_id{0});
  CHECK(communicator.size() == 1);
  gpu::stream const stream{device_id{0}};
  nccl_support::device_array<float> const memory{device_id{0}, 4};
  std::vector<float> const values{1, -2, 3.5F, 0};
  memory.put(values, stream);
  call_all(communicator, memory.span(), stream);
  communicator.wait(stream.ref());
  CHECK(memory.get(stream) == values);

  cudaGraph_t const graph = nccl_support::capture(stream, [&] { call_all(communicator, memory.span(), stream); });
  std::size_t nodes = 7;
  lockstep::check(cudaGraphGetNodes(graph, nullptr, &nodes));
  CHECK(nodes == 0);
  lockstep::check(cudaGraphDestroy(graph));
  CHECK(communicator.bytes_moved() == 0);
}

TEST_CASE("nccl: bad arguments are refused, and leave the group as it was") {
  auto communicators = create(1);
  auto& communicator = communicators.front();
  gpu::stream const stream{device_id{0}};
  nccl_support::device_array<float> const memory{device_id{0}, 4};
  typed_span const good = memory.span();
  typed_span const no_memory{nullptr, 4, element_type::f32};
  for (rank_id const root : {rank_id{-1}, rank_id{1}}) {
    CHECK_THROWS_AS(communicator.reduce(good, reduction::sum, root, stream), lockstep::usage_error);
    CHECK_THROWS_AS(communicator.broadcast(good, root, stream), lockstep::usage_error);
  }
  CHECK_THROWS_AS(communicator.all_reduce(no_memory, reduction::sum, stream), lockstep::usage_error);
  CHECK_THROWS_AS(communicator.reduce(no_memory, reduction::sum, rank_id{0}, stream), lockstep::usage_error);
  CHECK_THROWS_AS(communicator.broadcast(no_memory, rank_id{0}, stream), lockstep::usage_error);
  CHECK_THROWS_AS(communicator.reduce_scatter(no_memory, reduction::sum, stream), lockstep::usage_error);
  CHECK_THROWS_AS(communicator.all_gather(no_memory, stream), lockstep::usage_error);
  CHECK_FALSE(communicator.aborted());
  CHECK_NOTHROW(call_all(communicator, typed_span{nullptr, 0, element_type::f32}, stream));

  auto const taken = std::move(communicator);
  CHECK(communicator.size() == 0);
  CHECK_THROWS_AS(communicator.all_reduce(good, reduction::sum, stream), lockstep::usage_error);
  CHECK_THROWS_AS(communicator.wait(stream.ref()), lockstep::usage_error);
  communicator.abort("nobody's group");
  CHECK_FALSE(taken.aborted());
}

TEST_CASE("nccl: after an abort every call throws the first reason") {
  auto communicators = create(1);
  auto& communicator = communicators.front();
  CHECK_FALSE(communicator.aborted());
  CHECK(communicator.abort_reason() == "");
  communicator.abort("the first reason");
  communicator.abort("another reason");
  CHECK(communicator.aborted());
  CHECK(communicator.abort_reason() == "the first reason");
  gpu::stream const stream{device_id{0}};
  nccl_support::device_array<float> const memory{device_id{0}, 4};
  typed_span const data = memory.span();
  auto const said = [](std::exception_ptr const& thrown) { return message_of<lockstep::aborted_error>(thrown); };
  CHECK(said(thrown_by([&] { communicator.all_reduce(data, reduction::sum, stream); })) ==
        "all_reduce of 4 f32 on rank 0 was stopped: the first reason");
  CHECK(said(thrown_by([&] { communicator.reduce(data, reduction::max, rank_id{0}, stream); })) ==
        "reduce of 4 f32 by max to rank 0 on rank 0 was stopped: the first reason");
  CHECK(said(thrown_by([&] { communicator.broadcast(data, rank_id{0}, stream); })) ==
        "broadcast of 4 f32 from rank 0 on rank 0 was stopped: the first reason");
  CHECK(said(thrown_by([&] { communicator.reduce_scatter(data, reduction::sum, stream); })) ==
        "reduce_scatter of 4 f32 on rank 0 was stopped: the first reason");
  CHECK(said(thrown_by([&] { communicator.all_gather(data, stream); })) ==
        "all_gather of 4 f32 on rank 0 was stopped: the first reason");
  CHECK(said(thrown_by([&] { communicator.together([] {}); })) == "together on rank 0 was stopped: the first reason");
  CHECK(said(thrown_by([&] { communicator.replay(); })) == "the replay of a graph on rank 0 was stopped: the first reason");
  CHECK(said(thrown_by([&] { communicator.wait(stream.ref()); })) == "waiting on rank 0 was stopped: the first reason");
}

TEST_CASE("nccl: waiting for a stream and for an event returns when they are complete") {
  auto communicators = create(1);
  auto& communicator = communicators.front();
  gpu::event never;
  communicator.wait(never);
  nccl_support::held_stream held{device_id{0}};
  gpu::event recorded;
  recorded.record(held.ref());
  CHECK_FALSE(held.ref().done());
  CHECK_FALSE(recorded.done());
  std::thread releasing{[&] {
    std::this_thread::sleep_for(std::chrono::milliseconds{50});
    held.release();
  }};
  communicator.wait(recorded);
  CHECK(recorded.done());
  communicator.wait(held.ref());
  CHECK(held.ref().done());
  releasing.join();
  CHECK(cudaGetLastError() == cudaSuccess);  // "not ready" is no error that a later check may find
}

TEST_CASE("nccl: waiting ends at the deadline, and ends the group") {
  auto communicators = create(1, 0.2);
  auto& communicator = communicators.front();
  nccl_support::held_stream const held{device_id{0}};
  std::string const sentence = "rank 0 (device 0): what it waited for did not complete within 0.2 seconds";
  auto const thrown = thrown_by([&] { communicator.wait(held.ref()); });
  CHECK(message_of<lockstep::timeout_error>(thrown) == sentence);
  CHECK(communicator.abort_reason() == sentence);
}

TEST_CASE("nccl: an abort from another thread ends a wait") {
  auto communicators = create(1);
  auto& communicator = communicators.front();
  nccl_support::held_stream const held{device_id{0}};
  std::thread aborting{[&] {
    std::this_thread::sleep_for(std::chrono::milliseconds{50});
    communicator.abort("enough");
  }};
  auto const thrown = thrown_by([&] { communicator.wait(held.ref()); });
  aborting.join();
  CHECK(message_of<lockstep::aborted_error>(thrown) == "waiting on rank 0 was stopped: enough");
}

TEST_CASE("nccl: somebody else's communicator is used, and neither ended nor aborted") {
  ncclComm_t theirs = nullptr;
  int const device = 0;
  lockstep::check(ncclCommInitAll(&theirs, 1, &device));
  gpu::stream const stream{device_id{0}};
  nccl_support::device_array<float> const memory{device_id{0}, 4};
  {
    auto adopted = nccl_communicator::adopt(theirs, device_id{0});
    CHECK(adopted.rank() == rank_id{0});
    CHECK(adopted.size() == 1);
    call_all(adopted, memory.span(), stream);
    adopted.wait(stream.ref());
    auto moved = std::move(adopted);
    moved.abort("enough");
    CHECK_THROWS_AS(moved.all_reduce(memory.span(), reduction::sum, stream), lockstep::aborted_error);
  }
  std::vector<float> const values{1, 2, 3, 4};
  memory.put(values, stream);
  lockstep::check(ncclAllReduce(memory.data(), memory.data(), 4, ncclFloat32, ncclSum, theirs, stream.ref().get()));
  CHECK(memory.get(stream) == values);

  CHECK_THROWS_WITH_AS(static_cast<void>(nccl_communicator::adopt(nullptr, device_id{0})),
                       "lockstep: nccl_communicator::adopt: there is no communicator", lockstep::usage_error);
  CHECK_THROWS_WITH_AS(static_cast<void>(nccl_communicator::adopt(theirs, device_id{4096})),
                       doctest::Contains("GPU 4096 is not there"), lockstep::usage_error);
  CHECK_THROWS_AS(static_cast<void>(nccl_communicator::adopt(theirs, device_id{0}, {.timeout_seconds = 0})),
                  lockstep::usage_error);
  lockstep::check(ncclCommDestroy(theirs));
}

TEST_CASE("nccl: a group over processes may have one rank; ranks outside of it are refused") {
  ncclUniqueId const id{};
  auto communicator = nccl_communicator::join(id, rank_id{0}, 1, device_id{0});
  CHECK(communicator.rank() == rank_id{0});
  CHECK(communicator.size() == 1);
  auto const with = [&](int rank, int size) {
    static_cast<void>(nccl_communicator::join(id, rank_id{rank}, size, device_id{0}));
  };
  CHECK_THROWS_WITH_AS(with(2, 2), "lockstep: nccl_communicator::join: rank 2 is none of 2 ranks", lockstep::usage_error);
  CHECK_THROWS_AS(with(-1, 2), lockstep::usage_error);
  CHECK_THROWS_AS(with(0, 0), lockstep::usage_error);
  CHECK_THROWS_AS(static_cast<void>(nccl_communicator::join(id, rank_id{0}, 2, device_id{4096})), lockstep::usage_error);
}

TEST_CASE("nccl: when other processes don't join in time, starting ends with an error that names rank and device") {
  ncclUniqueId id;
  lockstep::check(ncclGetUniqueId(&id));
  auto const thrown =
      thrown_by([&] { static_cast<void>(nccl_communicator::join(id, rank_id{0}, 2, device_id{0}, {.timeout_seconds = 1})); });
  CHECK(message_of<lockstep::timeout_error>(thrown) ==
        "rank 0 (device 0), starting NCCL: not all 2 ranks took part within 1 seconds");
}

TEST_CASE("nccl: errors carry NCCL's code and text, and the place") {
  CHECK_NOTHROW(lockstep::check(ncclSuccess));
  CHECK_NOTHROW(lockstep::check(ncclInProgress));
  try {
    lockstep::check(ncclInvalidUsage);
    FAIL("it should have thrown");
  } catch (lockstep::nccl_error const& e) {
    CHECK(e.code() == ncclInvalidUsage);
    CHECK(std::string{e.what()}.find("NCCL: invalid usage") == 0);
    CHECK(std::string{e.what()}.find("nccl_test.cu") != std::string::npos);
  }
}
