// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// The NCCL communicator over all GPUs that are there, up to eight: a thread a GPU.

#include <lockstep/comm/nccl.cuh>

#include "nccl_support.cuh"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using gpu = lockstep::cuda;  // CCCL has a namespace of that name
using conformance::check_no_failure;
using conformance::collective;
using conformance::message_of;
using conformance::numbers;
using conformance::on_ranks;
using lockstep::device_id;
using lockstep::element_type;
using lockstep::nccl_communicator;
using lockstep::rank_id;
using lockstep::reduction;
using lockstep::typed_span;
using nccl_support::create;
using nccl_support::device_array;

int gpus() { return (std::min)(gpu::device_count(), 8); }

/// What ranks work with: made before their collectives begin, and destroyed after they have ended.
template <class T>
struct workplace {
  workplace(int ranks, std::size_t count) {
    for (int rank = 0; rank < ranks; ++rank) {
      streams.emplace_back(device_id{rank});
      arrays.emplace_back(device_id{rank}, count);
    }
  }

  std::vector<gpu::stream> streams;
  std::vector<device_array<T>> arrays;
};

/// Calls `task(rank, communicator, stream, array)` in a thread a rank, in which the rank's device is current.
template <class T, class Task>
std::vector<std::exception_ptr> on_gpus(std::vector<nccl_communicator>& communicators, workplace<T>& place, Task const& task) {
  return on_ranks(static_cast<int>(communicators.size()), [&](int rank) {
    auto const index = static_cast<std::size_t>(rank);
    gpu::device_guard const current{device_id{rank}};
    task(rank, communicators[index], place.streams[index].ref(), place.arrays[index]);
  });
}

/// Makes the ranks of a group connect for sums, so that later ones are enqueued without waiting for other ranks.
void connect(std::vector<nccl_communicator>& communicators, workplace<float>& place) {
  check_no_failure(
      on_gpus(communicators, place, [](int, nccl_communicator& communicator, gpu::stream_ref stream, auto const& array) {
        communicator.all_reduce(array.span(), reduction::sum, stream);
        communicator.wait(stream);
      }));
}

/// A group of all GPUs sums as it should.
void check_new_group_works() {
  int const ranks = gpus();
  workplace<int> place{ranks, 3};
  std::vector<std::vector<int>> results(static_cast<std::size_t>(ranks));
  auto communicators = create(ranks);
  check_no_failure(
      on_gpus(communicators, place, [&](int rank, nccl_communicator& communicator, gpu::stream_ref stream, auto const& array) {
        array.put({rank, 1, 10 * rank}, stream);
        communicator.all_reduce(array.span(), reduction::sum, stream);
        communicator.wait(stream);
        results[static_cast<std::size_t>(rank)] = array.get(stream);
      }));
  int const sum = ranks * (ranks - 1) / 2;
  for (std::vector<int> const& result : results) {
    CHECK(result == std::vector<int>{sum, ranks, 10 * sum});
  }
}

/// Runs examples on all ranks, each at a place of its own within 16 bytes, and again; returns what each rank says is wrong.
void check_examples(std::vector<conformance::example> const& examples, int ranks, std::mt19937_64& random) {
  std::size_t longest = 0;
  for (conformance::example const& e : examples) {
    longest = (std::max)(longest, e.count * size_of(e.type));
  }
  std::vector<std::size_t> shifts;
  for (std::size_t i = 0; i < examples.size(); ++i) {
    shifts.push_back(random() % 16);
  }
  workplace<std::byte> place{ranks, longest + 2 * conformance::guarded::margin + 16 * sizeof(double) * 2};
  std::vector<std::string> wrong(static_cast<std::size_t>(ranks));
  std::vector<std::vector<std::byte>> logs(static_cast<std::size_t>(ranks));
  auto communicators = create(ranks);
  check_no_failure(
      on_gpus(communicators, place, [&](int rank, nccl_communicator& communicator, gpu::stream_ref stream, auto const& array) {
        auto const index = static_cast<std::size_t>(rank);
        if (communicator.rank() != rank_id{rank} || communicator.size() != ranks) {
          throw lockstep::error("rank or size is wrong");
        }
        for (std::size_t i = 0; i < examples.size(); ++i) {
          conformance::example const& e = examples[i];
          conformance::guarded elements{e.inputs[index]};
          std::vector<std::byte>& memory = elements.memory();
          std::byte* const there = array.data() + (shifts[i] + index) % 16 * size_of(e.type);
          gpu::copy(stream, there, memory.data(), memory.size());
          conformance::call(e, communicator, {there + conformance::guarded::margin, e.count, e.type}, stream);
          communicator.wait(stream);
          gpu::copy(stream, memory.data(), there, memory.size());
          stream.synchronize();
          std::string problem = conformance::check_result(e, index, static_cast<std::size_t>(ranks), elements.data());
          if (!elements.intact()) {
            problem = e.text() + ": wrote beside the elements of rank " + std::to_string(rank);
          }
          if (wrong[index].empty()) {
            wrong[index] = problem;
          }
          if (conformance::same_everywhere(e)) {
            logs[index].insert(logs[index].end(), elements.data(), elements.data() + e.count * size_of(e.type));
          }
        }
      }));
  for (std::size_t rank = 0; rank < wrong.size(); ++rank) {
    CHECK(wrong[rank] == "");
    bool const same_bits_on_every_rank = logs[rank] == logs[0];
    CHECK(same_bits_on_every_rank);
  }
}

/// Destroys graphs at the end of the scope, before the communicators that they refer to.
struct graphs {
  explicit graphs(int ranks) : captured(static_cast<std::size_t>(ranks)), runnable(static_cast<std::size_t>(ranks)) {}
  graphs(graphs const&) = delete;
  graphs& operator=(graphs const&) = delete;
  ~graphs() {
    for (std::size_t i = 0; i < captured.size(); ++i) {
      if (runnable[i] != nullptr) {
        cudaGraphExecDestroy(runnable[i]);
      }
      if (captured[i] != nullptr) {
        cudaGraphDestroy(captured[i]);
      }
    }
  }

  /// Makes a rank's graph ready to be launched. The rank's device is current.
  void prepare(std::size_t rank, gpu::stream_ref stream) {
    lockstep::check(cudaGraphInstantiate(&runnable[rank], captured[rank], 0));
    lockstep::check(cudaGraphUpload(runnable[rank], stream.get()));
    stream.synchronize();
  }

  std::vector<cudaGraph_t> captured;
  std::vector<cudaGraphExec_t> runnable;
};

/// "rank 2 (device 2)"
std::string name(int rank) { return "rank " + std::to_string(rank) + " (device " + std::to_string(rank) + ")"; }

}  // namespace

TEST_CASE("nccl, several GPUs: every collective of every element type is exact, at any count and address") {
  std::uint64_t const seed = conformance::test_seed();
  INFO("LOCKSTEP_TEST_SEED=" << seed);
  std::mt19937_64 random{seed};
  for (int ranks = 2; ranks <= gpus(); ranks = ranks == gpus() ? ranks + 1 : gpus()) {
    CAPTURE(ranks);
    auto examples = conformance::make_examples(ranks, random, numbers::whole);
    for (collective const which : {collective::all_reduce, collective::reduce, collective::broadcast,
                                   collective::reduce_scatter, collective::all_gather}) {
      for (element_type const type : {element_type::f32, element_type::bf16, element_type::u8}) {
        std::size_t const count = 300'007 + random() % 64;
        examples.push_back(
            conformance::make_example(which, type, reduction::sum, count, ranks, ranks - 1, random, numbers::whole));
      }
    }
    check_examples(examples, ranks, random);
  }
}

TEST_CASE("nccl, several GPUs: on two ranks a sum of any numbers is one addition, rounded once") {
  std::uint64_t const seed = conformance::test_seed();
  INFO("LOCKSTEP_TEST_SEED=" << seed);
  std::mt19937_64 random{seed};
  auto examples = conformance::make_examples(2, random, numbers::any);
  // What a minimum makes of a NaN is NCCL's.
  examples.erase(std::remove_if(examples.begin(), examples.end(), [](auto const& e) { return e.how != reduction::sum; }),
                 examples.end());
  check_examples(examples, 2, random);
}

TEST_CASE("nccl, several GPUs: bad arguments are refused, and leave the group as it was") {
  int const ranks = gpus();
  workplace<float> place{ranks, 4};
  auto communicators = create(ranks);
  auto& first = communicators.front();
  gpu::stream_ref const stream = place.streams.front().ref();
  typed_span const good = place.arrays.front().span();
  typed_span const no_memory{nullptr, 4, element_type::f32};
  for (rank_id const root : {rank_id{-1}, rank_id{ranks}}) {
    CHECK_THROWS_AS(first.reduce(good, reduction::sum, root, stream), lockstep::usage_error);
    CHECK_THROWS_AS(first.broadcast(good, root, stream), lockstep::usage_error);
  }
  CHECK_THROWS_AS(first.all_reduce(no_memory, reduction::sum, stream), lockstep::usage_error);
  CHECK_THROWS_AS(first.all_gather(no_memory, stream), lockstep::usage_error);
  CHECK_FALSE(first.aborted());
  check_no_failure(on_gpus(communicators, place, [](int, nccl_communicator& communicator, gpu::stream_ref own, auto const&) {
    typed_span const nothing{nullptr, 0, element_type::f32};
    communicator.all_reduce(nothing, reduction::sum, own);
    communicator.reduce_scatter(nothing, reduction::sum, own);
    communicator.all_gather(nothing, own);
    communicator.wait(own);
  }));
}

TEST_CASE("nccl, several GPUs: the bytes moved are those of the policies' table") {
  int const ranks = gpus();
  std::size_t const count = static_cast<std::size_t>(ranks) * 16 * 5;  // equal parts
  std::uint64_t const bytes = count * sizeof(float);
  std::uint64_t const share = bytes * static_cast<std::uint64_t>(ranks - 1) / static_cast<std::uint64_t>(ranks);
  workplace<float> place{ranks, count};
  std::vector<std::array<std::uint64_t, 6>> moved(static_cast<std::size_t>(ranks));
  auto communicators = create(ranks);
  check_no_failure(
      on_gpus(communicators, place, [&](int rank, nccl_communicator& communicator, gpu::stream_ref stream, auto const& array) {
        auto& mine = moved[static_cast<std::size_t>(rank)];
        std::span const span = array.span();
        mine[0] = communicator.bytes_moved();
        communicator.all_reduce(span, reduction::sum, stream);
        mine[1] = communicator.bytes_moved();
        communicator.reduce_scatter(span, reduction::sum, stream);
        mine[2] = communicator.bytes_moved();
        communicator.all_gather(span, stream);
        mine[3] = communicator.bytes_moved();
        communicator.broadcast(span, rank_id{1}, stream);
        mine[4] = communicator.bytes_moved();
        communicator.reduce(span, reduction::sum, rank_id{1}, stream);
        mine[5] = communicator.bytes_moved();
        communicator.wait(stream);
      }));
  for (auto const& mine : moved) {
    CHECK(mine == std::array<std::uint64_t, 6>{0, 2 * share, 3 * share, 4 * share, 4 * share + bytes, 4 * share + 2 * bytes});
  }
}

TEST_CASE("nccl, several GPUs: collectives on two streams, ordered by events, run one after another") {
  int const ranks = gpus();
  constexpr int rounds = 6;
  workplace<std::int64_t> place{ranks, 5000};
  std::vector<gpu::stream> others;
  for (int rank = 0; rank < ranks; ++rank) {
    others.emplace_back(device_id{rank});
  }
  std::vector<std::vector<std::int64_t>> results(static_cast<std::size_t>(ranks));
  auto communicators = create(ranks);
  check_no_failure(
      on_gpus(communicators, place, [&](int rank, nccl_communicator& communicator, gpu::stream_ref stream, auto const& array) {
        auto const index = static_cast<std::size_t>(rank);
        gpu::stream_ref const other = others[index].ref();
        gpu::event done;
        array.put(std::vector<std::int64_t>(5000, rank + 1), stream);
        for (int round = 0; round < rounds; ++round) {
          communicator.all_reduce(array.span(), reduction::sum, stream);
          done.record(stream);
          other.wait(done);
          communicator.all_reduce(array.span(), reduction::sum, other);
          done.record(other);
          stream.wait(done);
        }
        communicator.wait(done);
        results[index] = array.get(stream);
      }));
  std::int64_t expected = ranks * (ranks + 1) / 2;
  for (int round = 1; round < 2 * rounds; ++round) {
    expected *= ranks;
  }
  for (auto const& result : results) {
    CHECK(result == std::vector<std::int64_t>(5000, expected));
  }
}

TEST_CASE("nccl, several GPUs: every collective can be captured, and its graph replayed") {
  std::uint64_t const seed = conformance::test_seed();
  INFO("LOCKSTEP_TEST_SEED=" << seed);
  std::mt19937_64 random{seed};
  int const ranks = gpus();
  constexpr int replays = 3;
  constexpr std::size_t count = 16 * 8 * 9 + 7;
  for (collective const which : {collective::all_reduce, collective::reduce, collective::broadcast, collective::reduce_scatter,
                                 collective::all_gather}) {
    std::vector<conformance::example> examples;  // of one shape: one a replay
    for (int replay = 0; replay < replays; ++replay) {
      examples.push_back(
          conformance::make_example(which, element_type::f32, reduction::sum, count, ranks, 1, random, numbers::whole));
    }
    CAPTURE(examples.front().text());
    std::size_t const bytes = count * sizeof(float);
    workplace<std::byte> inputs{ranks, bytes};
    workplace<std::byte> place{ranks, bytes};
    auto communicators = create(ranks);
    graphs made{ranks};
    check_no_failure(on_gpus(communicators, place,
                             [&](int rank, nccl_communicator& communicator, gpu::stream_ref stream, auto const& array) {
                               auto const index = static_cast<std::size_t>(rank);
                               typed_span const data{array.data(), count, element_type::f32};
                               conformance::call(examples.front(), communicator, data, stream);  // connects
                               communicator.wait(stream);
                               made.captured[index] = nccl_support::capture(stream, [&] {
                                 gpu::copy(stream, array.data(), inputs.arrays[index].data(), bytes);
                                 conformance::call(examples.front(), communicator, data, stream);
                               });
                             }));
    check_no_failure(on_gpus(communicators, place, [&](int rank, nccl_communicator&, gpu::stream_ref stream, auto const&) {
      made.prepare(static_cast<std::size_t>(rank), stream);
    }));
    std::vector<std::string> wrong(static_cast<std::size_t>(ranks));
    check_no_failure(on_gpus(
        communicators, place, [&](int rank, nccl_communicator& communicator, gpu::stream_ref stream, auto const& array) {
          auto const index = static_cast<std::size_t>(rank);
          for (conformance::example const& e : examples) {
            inputs.arrays[index].put(e.inputs[index], stream);
            communicator.replay();
            lockstep::check(cudaGraphLaunch(made.runnable[index], stream.get()));
            communicator.wait(stream);
            wrong[index] += conformance::check_result(e, index, static_cast<std::size_t>(ranks), array.get(stream).data());
          }
        }));
    for (std::string const& problem : wrong) {
      CHECK(problem == "");
    }
  }
}

TEST_CASE("nccl, several GPUs: collectives called together are fused, and give what they give one by one") {
  int const ranks = gpus();
  constexpr std::size_t count = 1000;
  std::size_t const part = lockstep::plan::part(count, 0, static_cast<std::size_t>(ranks)).count;
  workplace<float> place{ranks, 4 * count};
  std::vector<std::vector<float>> results(static_cast<std::size_t>(ranks));
  auto communicators = create(ranks);
  check_no_failure(
      on_gpus(communicators, place, [&](int rank, nccl_communicator& communicator, gpu::stream_ref stream, auto const& array) {
        array.put(std::vector<float>(4 * count, static_cast<float>(rank + 1)), stream);
        std::span<float> const all = array.span();
        communicator.together([&] {
          communicator.all_reduce(all.subspan(0, count), reduction::sum, stream);
          communicator.together([&] { communicator.all_reduce(all.subspan(count, count), reduction::max, stream); });
          communicator.broadcast(all.subspan(2 * count, count), rank_id{1}, stream);
          communicator.reduce_scatter(all.subspan(3 * count, count), reduction::sum, stream);
        });
        communicator.together([] {});
        communicator.wait(stream);
        results[static_cast<std::size_t>(rank)] = array.get(stream);
      }));
  auto const sum = static_cast<float>(ranks * (ranks + 1) / 2);
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    std::vector<float> const& all = results[rank];
    auto const is = [&](std::size_t first, std::size_t length, float value) {
      auto const begin = all.begin() + static_cast<std::ptrdiff_t>(first);
      return std::all_of(begin, begin + static_cast<std::ptrdiff_t>(length), [=](float each) { return each == value; });
    };
    CHECK(is(0, count, sum));
    CHECK(is(count, count, static_cast<float>(ranks)));
    CHECK(is(2 * count, count, 2));
    CHECK(is(3 * count + rank * part, part, sum));
  }
}

TEST_CASE("nccl, several GPUs: an exception within together comes out, and what was called before it is done") {
  int const ranks = gpus();
  workplace<float> place{ranks, 10};
  std::vector<std::vector<float>> results(static_cast<std::size_t>(ranks));
  auto communicators = create(ranks);
  auto const thrown =
      on_gpus(communicators, place, [&](int rank, nccl_communicator& communicator, gpu::stream_ref stream, auto const& array) {
        array.put(std::vector<float>(10, 1), stream);
        try {
          communicator.together([&] {
            communicator.all_reduce(array.span(), reduction::sum, stream);
            communicator.broadcast(array.span(), rank_id{ranks}, stream);  // outside of the group
          });
        } catch (lockstep::usage_error const&) {
          communicator.all_reduce(array.span(), reduction::sum, stream);  // the group is as it was
          communicator.wait(stream);
          results[static_cast<std::size_t>(rank)] = array.get(stream);
          throw;
        }
      });
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    CHECK(message_of<lockstep::usage_error>(thrown[rank]).find("the root must be one of this group's") != std::string::npos);
    CHECK(results[rank] == std::vector<float>(10, static_cast<float>(ranks * ranks)));
  }
}

TEST_CASE("nccl, several GPUs: a rank that never arrives is named to those that wait on the device") {
  int const ranks = gpus();
  workplace<float> place{ranks, 10};
  auto communicators = create(ranks, 10);
  connect(communicators, place);
  auto const thrown =
      on_gpus(communicators, place, [&](int rank, nccl_communicator& communicator, gpu::stream_ref stream, auto const& array) {
        if (rank != ranks - 1) {
          communicator.all_reduce(array.span(), reduction::sum, stream);
          communicator.wait(stream);
        }
      });
  std::string const sentence = name(ranks - 1) + " did not arrive at all_reduce of 10 f32 within 10 seconds";
  int timeouts = 0;
  for (int rank = 0; rank + 1 < ranks; ++rank) {
    CAPTURE(rank);
    auto const& failure = thrown[static_cast<std::size_t>(rank)];
    CHECK(message_of(failure).find(sentence) != std::string::npos);
    try {
      std::rethrow_exception(failure);
    } catch (lockstep::timeout_error const& e) {
      ++timeouts;
      CHECK(e.missing() == rank_id{ranks - 1});
    } catch (lockstep::aborted_error const&) {
    }
  }
  CHECK(timeouts == 1);
  CHECK(communicators.back().abort_reason() == sentence);
  for (std::size_t rank = 0; rank < communicators.size(); ++rank) {  // nothing waits for the rank that never came
    gpu::device_guard const current{device_id{static_cast<int>(rank)}};
    place.streams[rank].ref().synchronize();
    CHECK_THROWS_AS(communicators[rank].all_reduce(place.arrays[rank].span(), reduction::sum, place.streams[rank].ref()),
                    lockstep::aborted_error);
  }
  communicators.clear();
  check_new_group_works();
}

TEST_CASE("nccl, several GPUs: a rank that never arrives is named to those that connect for the first time") {
  int const ranks = gpus();
  workplace<float> place{ranks, 10};
  auto communicators = create(ranks, 10);
  auto const thrown =
      on_gpus(communicators, place, [&](int rank, nccl_communicator& communicator, gpu::stream_ref stream, auto const& array) {
        if (rank != 0) {
          communicator.all_reduce(array.span(), reduction::sum, stream);
          communicator.wait(stream);
        }
      });
  std::string const sentence = name(0) + " did not arrive at all_reduce of 10 f32 within 10 seconds";
  for (std::size_t rank = 1; rank < thrown.size(); ++rank) {
    CHECK(message_of(thrown[rank]).find(sentence) != std::string::npos);
  }
  CHECK(communicators.front().abort_reason() == sentence);
  communicators.clear();
  check_new_group_works();
}

TEST_CASE("nccl, several GPUs: an abort from outside ends ranks that wait") {
  int const ranks = gpus();
  workplace<float> place{ranks, 10};
  auto communicators = create(ranks);
  connect(communicators, place);
  std::thread aborting{[&] {
    std::this_thread::sleep_for(std::chrono::milliseconds{300});
    communicators.back().abort("enough");
    communicators.back().abort("another reason");
  }};
  auto const thrown =
      on_gpus(communicators, place, [&](int rank, nccl_communicator& communicator, gpu::stream_ref stream, auto const& array) {
        if (rank != ranks - 1) {
          communicator.all_reduce(array.span(), reduction::sum, stream);
          communicator.wait(stream);
        }
      });
  aborting.join();
  for (int rank = 0; rank + 1 < ranks; ++rank) {
    CHECK(message_of<lockstep::aborted_error>(thrown[static_cast<std::size_t>(rank)]) ==
          "waiting on rank " + std::to_string(rank) + " was stopped: enough");
  }
  CHECK(communicators.front().abort_reason() == "enough");
  communicators.clear();
  check_new_group_works();
}

TEST_CASE("nccl, several GPUs: an abort frees a rank that waits for its stream without the communicator") {
  int const ranks = gpus();
  workplace<float> place{ranks, 10};
  auto communicators = create(ranks);
  connect(communicators, place);
  std::atomic<bool> done_at_once{false};
  check_no_failure(
      on_gpus(communicators, place, [&](int rank, nccl_communicator& communicator, gpu::stream_ref stream, auto const& array) {
        if (rank == ranks - 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds{300});
          communicator.abort("enough");
        } else {
          communicator.all_reduce(array.span(), reduction::sum, stream);
          done_at_once = done_at_once || stream.done();
          stream.synchronize();
        }
      }));
  CHECK_FALSE(done_at_once);
  communicators.clear();
  check_new_group_works();
}

TEST_CASE("nccl, several GPUs: an exception on one rank ends the others, which say why") {
  int const ranks = gpus();
  workplace<float> place{ranks, 10};
  auto communicators = create(ranks);
  connect(communicators, place);
  auto const thrown =
      on_gpus(communicators, place, [&](int rank, nccl_communicator& communicator, gpu::stream_ref stream, auto const& array) {
        try {
          for (int round = 0;; ++round) {
            if (rank == 1 && round == 20) {
              throw std::runtime_error("no more paper");
            }
            communicator.all_reduce(array.span(), reduction::sum, stream);
            communicator.wait(stream);
          }
        } catch (std::runtime_error const& e) {
          communicator.abort(e.what());
          throw;
        }
      });
  for (std::size_t rank = 0; rank < thrown.size(); ++rank) {
    if (rank == 1) {
      CHECK(message_of<std::runtime_error>(thrown[rank]) == "no more paper");
    } else {
      CHECK(message_of<lockstep::aborted_error>(thrown[rank]).find("was stopped: no more paper") != std::string::npos);
    }
  }
  communicators.clear();
  check_new_group_works();
}

TEST_CASE("nccl, several GPUs: ranks that call different things are told which") {
  using array_type = device_array<float>;
  struct difference {
    void (*usual)(nccl_communicator&, array_type const&, gpu::stream_ref);
    void (*unusual)(nccl_communicator&, array_type const&, gpu::stream_ref);
    std::string usual_name;
    std::string unusual_name;
  };
  auto const sum_of_ten = [](nccl_communicator& c, array_type const& a, gpu::stream_ref s) {
    c.all_reduce(a.span().first(10), reduction::sum, s);
  };
  std::array<difference, 4> const differences{{
      {sum_of_ten,
       [](nccl_communicator& c, array_type const& a, gpu::stream_ref s) { c.all_reduce(a.span().first(9), reduction::sum, s); },
       "all_reduce of 10 f32", "all_reduce of 9 f32"},
      {sum_of_ten,
       [](nccl_communicator& c, array_type const& a, gpu::stream_ref s) {
         c.all_reduce(a.span().first(10), reduction::max, s);
       },
       "all_reduce of 10 f32", "all_reduce of 10 f32 by max"},
      {sum_of_ten,
       [](nccl_communicator& c, array_type const& a, gpu::stream_ref s) { c.broadcast(a.span().first(10), rank_id{0}, s); },
       "all_reduce of 10 f32", "broadcast of 10 f32 from rank 0"},
      {sum_of_ten,
       [](nccl_communicator& c, array_type const& a, gpu::stream_ref s) {
         c.replay();
         c.all_reduce(a.span().first(10), reduction::sum, s);
       },
       "all_reduce of 10 f32", "the replay of a graph"},
  }};
  int const ranks = gpus();
  for (difference const& d : differences) {
    CAPTURE(d.unusual_name);
    workplace<float> place{ranks, 16};
    auto communicators = create(ranks);
    connect(communicators, place);
    auto const thrown = on_gpus(communicators, place,
                                [&](int rank, nccl_communicator& communicator, gpu::stream_ref stream, auto const& array) {
                                  (rank == 1 ? d.unusual : d.usual)(communicator, array, stream);
                                  communicator.wait(stream);
                                });
    std::string const reason = communicators.front().abort_reason();
    CHECK(reason.find("rank 1 called " + d.unusual_name) != std::string::npos);
    CHECK(reason.find("called " + d.usual_name) != std::string::npos);
    int told = 0;
    for (std::exception_ptr const& failure : thrown) {
      CHECK(message_of(failure).find(reason) != std::string::npos);
      told += message_of<lockstep::usage_error>(failure) == "lockstep: " + reason ? 1 : 0;
    }
    CHECK(told == 1);
  }
  check_new_group_works();
}

TEST_CASE("nccl, several GPUs: a rank that does not launch its graph is named, and graphs that are left hold nobody up") {
  int const ranks = gpus();
  workplace<float> place{ranks, 10};
  auto communicators = create(ranks, 10);
  connect(communicators, place);
  {
    graphs made{ranks};
    check_no_failure(on_gpus(
        communicators, place, [&](int rank, nccl_communicator& communicator, gpu::stream_ref stream, auto const& array) {
          made.captured[static_cast<std::size_t>(rank)] =
              nccl_support::capture(stream, [&] { communicator.all_reduce(array.span(), reduction::sum, stream); });
        }));
    check_no_failure(on_gpus(communicators, place, [&](int rank, nccl_communicator&, gpu::stream_ref stream, auto const&) {
      made.prepare(static_cast<std::size_t>(rank), stream);
    }));
    auto const thrown =
        on_gpus(communicators, place, [&](int rank, nccl_communicator& communicator, gpu::stream_ref stream, auto const&) {
          if (rank != ranks - 1) {
            communicator.replay();
            lockstep::check(cudaGraphLaunch(made.runnable[static_cast<std::size_t>(rank)], stream.get()));
            communicator.wait(stream);
          }
        });
    std::string const sentence = name(ranks - 1) + " did not arrive at the replay of a graph within 10 seconds";
    for (int rank = 0; rank + 1 < ranks; ++rank) {
      CHECK(message_of(thrown[static_cast<std::size_t>(rank)]).find(sentence) != std::string::npos);
    }
  }  // the graphs go after the abort, and before the communicators
  communicators.clear();
  check_new_group_works();
}

TEST_CASE("nccl, several GPUs: groups come and go, ended by their ranks at once or by one thread") {
  int const ranks = gpus();
  workplace<float> place{ranks, 10};
  for (int round = 0; round < 20; ++round) {
    auto communicators = create(ranks);
    connect(communicators, place);
    if (round % 2 == 0) {
      check_no_failure(
          on_ranks(ranks, [&](int rank) { auto const ended = std::move(communicators[static_cast<std::size_t>(rank)]); }));
    } else {
      std::rotate(communicators.begin(), communicators.begin() + round % ranks, communicators.end());
    }
  }
  check_new_group_works();
}

TEST_CASE("nccl, several GPUs: ranks that join a group one by one work together, and each ends by itself") {
  int const ranks = gpus();
  workplace<float> place{ranks, 10};
  std::vector<std::vector<float>> results(static_cast<std::size_t>(ranks));
  ncclUniqueId id;
  lockstep::check(ncclGetUniqueId(&id));
  auto const thrown = on_ranks(ranks, [&](int rank) {
    auto const index = static_cast<std::size_t>(rank);
    gpu::device_guard const current{device_id{rank}};
    gpu::stream_ref const stream = place.streams[index].ref();
    auto const& array = place.arrays[index];
    auto communicator = nccl_communicator::join(id, rank_id{rank}, ranks, device_id{rank}, {.timeout_seconds = 10});
    array.put(std::vector<float>(10, static_cast<float>(rank + 1)), stream);
    communicator.all_reduce(array.span(), reduction::sum, stream);
    communicator.wait(stream);
    results[index] = array.get(stream);
    if (rank != 0) {  // as if rank 0's process were gone
      communicator.all_reduce(array.span(), reduction::sum, stream);
      communicator.wait(stream);
    }
  });
  for (std::vector<float> const& result : results) {
    CHECK(result == std::vector<float>(10, static_cast<float>(ranks * (ranks + 1) / 2)));
  }
  CHECK(message_of(thrown.front()) == "");
  for (int rank = 1; rank < ranks; ++rank) {
    CHECK(message_of<lockstep::timeout_error>(thrown[static_cast<std::size_t>(rank)]) ==
          name(rank) +
              ": all_reduce of 10 f32 did not complete within 10 seconds, although every rank of this process arrived");
  }
}

TEST_CASE("nccl, several GPUs: somebody else's communicators are used, and neither ended nor aborted") {
  int const ranks = gpus();
  workplace<float> place{ranks, 10};
  std::vector<int> devices;
  for (int rank = 0; rank < ranks; ++rank) {
    devices.push_back(rank);
  }
  std::vector<ncclComm_t> theirs(static_cast<std::size_t>(ranks));
  lockstep::check(ncclCommInitAll(theirs.data(), ranks, devices.data()));
  CHECK_THROWS_WITH_AS(static_cast<void>(nccl_communicator::adopt(theirs[1], device_id{0})),
                       "lockstep: nccl_communicator::adopt: the communicator is on device 1, not 0", lockstep::usage_error);
  for (int round = 0; round < 2; ++round) {
    std::vector<nccl_communicator> adopted;
    for (int rank = 0; rank < ranks; ++rank) {
      adopted.push_back(nccl_communicator::adopt(theirs[static_cast<std::size_t>(rank)], device_id{rank}));
      CHECK(adopted.back().rank() == rank_id{rank});
      CHECK(adopted.back().size() == ranks);
    }
    std::vector<std::vector<float>> results(static_cast<std::size_t>(ranks));
    check_no_failure(
        on_gpus(adopted, place, [&](int rank, nccl_communicator& communicator, gpu::stream_ref stream, auto const& array) {
          array.put(std::vector<float>(10, 1), stream);
          communicator.all_reduce(array.span(), reduction::sum, stream);
          communicator.wait(stream);
          results[static_cast<std::size_t>(rank)] = array.get(stream);
        }));
    for (std::vector<float> const& result : results) {
      CHECK(result == std::vector<float>(10, static_cast<float>(ranks)));
    }
    adopted.front().abort("only this one");
    CHECK_FALSE(adopted.back().aborted());
  }
  for (ncclComm_t const each : theirs) {
    lockstep::check(ncclCommDestroy(each));
  }
}

TEST_CASE("nccl, several GPUs: a communicator may be replaced while another rank keeps its own") {
  int const ranks = gpus();
  auto communicators = create(ranks);
  auto others = create(ranks);
  communicators.front() = std::move(others.front());  // its group goes on for the rest
  CHECK(communicators.front().size() == ranks);
  others.front().abort("nobody's group");
  communicators.back().abort("the first group");
  CHECK_FALSE(communicators.front().aborted());
  CHECK_FALSE(others.back().aborted());
}

TEST_CASE("nccl, several GPUs: a group is made while another works") {
  int const ranks = gpus();
  workplace<float> place{ranks, 100'000};
  std::atomic<bool> made{false};
  auto communicators = create(ranks);
  connect(communicators, place);
  std::thread making{[&] {
    try {
      check_new_group_works();
    } catch (std::exception const& e) {
      std::string const said = e.what();
      CHECK(said == "");
    }
    made = true;
  }};
  std::vector<int> rounds(static_cast<std::size_t>(ranks));
  check_no_failure(
      on_gpus(communicators, place, [&](int rank, nccl_communicator& communicator, gpu::stream_ref stream, auto const& array) {
        for (float go_on = 1; go_on != 0;) {  // as long as rank 0 says so
          go_on = rank == 0 && made ? 0.0F : 1.0F;
          gpu::copy(stream, array.data(), &go_on, sizeof go_on);
          communicator.broadcast(array.span(), rank_id{0}, stream);
          communicator.wait(stream);
          gpu::copy(stream, &go_on, array.data(), sizeof go_on);
          stream.synchronize();
          ++rounds[static_cast<std::size_t>(rank)];
        }
      }));
  making.join();
  CHECK(rounds.front() > 0);
  CHECK(std::all_of(rounds.begin(), rounds.end(), [&](int each) { return each == rounds.front(); }));
}
