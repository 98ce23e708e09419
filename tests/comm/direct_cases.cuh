// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/comm/direct.cuh>
#include <lockstep/concepts.hpp>
#include <lockstep/core/element_type.hpp>
#include <lockstep/core/memory.hpp>
#include <lockstep/plan/split.hpp>

#include "../seed.hpp"
#include "conformance.hpp"

#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

/// What a direct communicator must do, for ranks on GPUs of their own and for ranks that share one: functions of the backend.
/// Memory, streams and graphs are made and destroyed while no collective runs.
namespace direct_cases {

using conformance::check_no_failure;
using conformance::collective;
using conformance::example;
using conformance::message_of;
using conformance::numbers;
using conformance::on_ranks;
using lockstep::device_id;
using lockstep::direct_tuning;
using lockstep::element_type;
using lockstep::rank_id;
using lockstep::reduction;
using lockstep::typed_span;

template <class Backend>
using communicator = lockstep::basic_direct_communicator<Backend>;

/// Called while nothing runs, before a group is made. Specialised for backends that need it.
template <class Backend>
void prepare() {}

/// Tunings that bring every algorithm to small sizes.
struct named_tuning {
  char const* name;
  direct_tuning tuning;
};
inline std::vector<named_tuning> tunings() {
  direct_tuning lines;
  lines.words_up_to_bytes = 0;
  direct_tuning one_shot = lines;
  one_shot.lines_up_to_bytes = 0;
  one_shot.bulk_blocks = 3;
  one_shot.chunk_bytes = 1024;
  one_shot.least_chunk_bytes = 512;
  direct_tuning two_shots = one_shot;
  two_shots.one_shot_up_to_bytes = 0;
  two_shots.bulk_warps = 3;
  direct_tuning shallow = two_shots;
  shallow.depth = 2;
  shallow.bulk_blocks = 1;
  direct_tuning deep = two_shots;
  deep.depth = 8;
  deep.bulk_blocks = 7;
  direct_tuning narrow;  // packets in rounds
  narrow.packet_warps = 2;
  narrow.packet_rounds = 64;
  narrow.words_blocks = 1;
  narrow.lines_blocks = 1;
  return {{"as it comes", {}},
          {"lines", lines},
          {"one shot", one_shot},
          {"two shots", two_shots},
          {"two shots, shallow", shallow},
          {"two shots, deep", deep},
          {"in rounds", narrow}};
}

/// Ranks with a device, a stream and memory each.
template <class Backend>
struct place {
  explicit place(int ranks, std::size_t bytes) {
    prepare<Backend>();
    for (int rank = 0; rank < ranks; ++rank) {
      devices.push_back(std::make_unique<typename Backend::device>(device_id{rank}));
      memory.push_back(devices.back()->allocate(bytes, lockstep::memory_use::other));
      auto const current = devices.back()->activate();
      Backend::zero(stream(static_cast<std::size_t>(rank)), memory.back().data(), bytes);
      stream(static_cast<std::size_t>(rank)).synchronize();
    }
  }

  /// Copies between host and device. Where nothing runs: on a shared GPU, others might wait for what this waits for.
  void put(std::size_t rank, void const* from, std::size_t bytes) const {
    auto const current = devices[rank]->activate();
    lockstep::check(cudaMemcpy(data(rank), from, bytes, cudaMemcpyHostToDevice));
    lockstep::check(cudaDeviceSynchronize());
  }
  void get(std::size_t rank, void* to, std::byte const* from, std::size_t bytes) const {
    auto const current = devices[rank]->activate();
    stream(rank).synchronize();
    lockstep::check(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
  }

  [[nodiscard]] typename Backend::stream_ref stream(std::size_t rank) const { return devices[rank]->stream(); }
  [[nodiscard]] std::byte* data(std::size_t rank) const { return memory[rank].template as<std::byte>(); }

  std::vector<std::unique_ptr<typename Backend::device>> devices;
  std::vector<typename Backend::buffer> memory;
};

template <class Backend>
std::vector<communicator<Backend>> create(int ranks, direct_tuning const& tuning = {}, double timeout_seconds = 60) {
  typename Backend::options options;
  options.timeout_seconds = timeout_seconds;
  return communicator<Backend>::create(conformance::first_devices(ranks), options, tuning);
}

/// Calls `task(rank, communicator, stream, data)` in a thread a rank, in which the rank's device is current.
template <class Backend, class Task>
std::vector<std::exception_ptr> on_gpus(std::vector<communicator<Backend>>& communicators, place<Backend> const& where,
                                        Task const& task) {
  return on_ranks(static_cast<int>(communicators.size()), [&](int rank) {
    auto const index = static_cast<std::size_t>(rank);
    auto const current = where.devices[index]->activate();
    task(rank, communicators[index], where.stream(index), where.data(index));
  });
}

/// A group of `ranks` sums as it should.
template <class Backend>
void check_new_group_works(int ranks) {
  place<Backend> const where{ranks, 4096};
  for (int rank = 0; rank < ranks; ++rank) {
    std::array const values{rank, 1, 10 * rank};
    where.put(static_cast<std::size_t>(rank), values.data(), sizeof values);
  }
  std::vector<std::vector<int>> results(static_cast<std::size_t>(ranks), std::vector<int>(3));
  auto communicators = create<Backend>(ranks);
  check_no_failure(on_gpus(communicators, where, [&](int, auto& one, auto stream, std::byte* data) {
    one.all_reduce({data, 3, element_type::i32}, reduction::sum, stream);
    one.wait(stream);
  }));
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    where.get(rank, results[rank].data(), where.data(rank), 12);
  }
  int const sum = ranks * (ranks - 1) / 2;
  for (std::vector<int> const& result : results) {
    CHECK(result == std::vector<int>{sum, ranks, 10 * sum});
  }
}

// ---- results -------------------------------------------------------------------------------------------------------------

/// Runs examples on all ranks, each in memory of its own, at places within 16 bytes that are the same for all ranks or differ,
/// and checks every result.
template <class Backend>
void check_examples(std::vector<example> const& examples, int ranks, direct_tuning const& tuning, std::mt19937_64& random) {
  constexpr std::size_t margin = conformance::guarded::margin;
  auto const count = static_cast<std::size_t>(ranks);
  std::vector<std::size_t> begins(1);  // of each example, divisible by 512
  std::vector<std::vector<std::size_t>> shifts(count);
  for (example const& e : examples) {
    std::size_t const all = random() % 2 == 0 ? 0 : random() % 16;
    bool const spread = random() % 3 == 0;
    for (std::size_t rank = 0; rank < count; ++rank) {
      shifts[rank].push_back((all + (spread ? rank : 0)) * size_of(e.type));
    }
    begins.push_back(begins.back() + (e.count * size_of(e.type) + 2 * margin + 32 * 8 + 511) / 512 * 512);
  }
  place<Backend> const where{ranks, begins.back()};
  std::vector<std::vector<std::byte>> memory(count);
  for (std::size_t rank = 0; rank < count; ++rank) {
    memory[rank].resize(begins.back());
    for (std::size_t i = 0; i < examples.size(); ++i) {
      std::vector<std::byte> const elements = conformance::guarded{examples[i].inputs[rank]}.memory();
      std::copy(elements.begin(), elements.end(),
                memory[rank].begin() + static_cast<std::ptrdiff_t>(begins[i] + shifts[rank][i]));
    }
    where.put(rank, memory[rank].data(), memory[rank].size());
  }
  auto communicators = create<Backend>(ranks, tuning);
  REQUIRE(communicators.size() == count);
  check_no_failure(on_gpus(communicators, where, [&](int rank, auto& shared, auto stream, std::byte* data) {
    auto const index = static_cast<std::size_t>(rank);
    communicator<Backend> moved = std::move(shared);
    if (moved.rank() != rank_id{rank} || moved.size() != ranks || shared.size() != 0) {
      throw lockstep::error("rank or size is wrong");
    }
    for (std::size_t i = 0; i < examples.size(); ++i) {
      example const& e = examples[i];
      conformance::call(e, moved, {data + begins[i] + shifts[index][i] + margin, e.count, e.type}, stream);
      if (i % 32 == 31) {
        moved.wait(stream);
      }
    }
    moved.wait(stream);
  }));
  std::vector<std::vector<std::byte>> logs(count);
  for (std::size_t rank = 0; rank < count; ++rank) {
    where.get(rank, memory[rank].data(), where.data(rank), memory[rank].size());
    std::string wrong;
    for (std::size_t i = 0; i < examples.size(); ++i) {
      example const& e = examples[i];
      conformance::guarded elements{e.inputs[rank]};
      std::memcpy(elements.memory().data(), memory[rank].data() + begins[i] + shifts[rank][i], elements.memory().size());
      std::string problem = conformance::check_result(e, rank, count, elements.data());
      if (!elements.intact()) {
        problem = e.text() + ": wrote beside the elements of rank " + std::to_string(rank);
      }
      if (wrong.empty() && !problem.empty()) {
        wrong = problem + ", " + std::to_string(shifts[rank][i]) + " bytes behind an aligned address, rank 0 " +
                std::to_string(shifts[0][i]);
      }
      if (conformance::same_everywhere(e)) {
        logs[rank].insert(logs[rank].end(), elements.data(), elements.data() + e.count * size_of(e.type));
      }
    }
    CHECK(wrong == "");
    bool const same_bits_on_every_rank = logs[rank] == logs[0];
    CHECK(same_bits_on_every_rank);
  }
}

template <class Backend>
void gives_reference_results(int ranks) {
  std::uint64_t const seed = conformance::test_seed();
  INFO("LOCKSTEP_TEST_SEED=" << seed);
  std::mt19937_64 random{seed};
  for (named_tuning const& each : tunings()) {
    CAPTURE(ranks);
    CAPTURE(each.name);
    check_examples<Backend>(conformance::make_examples(ranks, random), ranks, each.tuning, random);
  }
}

/// Sizes at which each algorithm is chosen as it comes, and the borders between them.
template <class Backend>
void gives_reference_results_when_large(int ranks) {
  std::uint64_t const seed = conformance::test_seed();
  INFO("LOCKSTEP_TEST_SEED=" << seed);
  std::mt19937_64 random{seed};
  constexpr std::array all{collective::all_reduce, collective::reduce, collective::broadcast, collective::reduce_scatter,
                           collective::all_gather};
  std::vector<example> examples;
  for (std::size_t const bytes : {std::size_t{40} << 10, std::size_t{300} << 10, std::size_t{3} << 20, std::size_t{9} << 20}) {
    for (collective const which : all) {
      for (element_type const type : {element_type::f32, element_type::bf16, element_type::f64, element_type::u8}) {
        if (bytes < (std::size_t{9} << 20) || type == element_type::f32 || type == element_type::bf16) {
          std::size_t const count = bytes / size_of(type) + random() % 64;
          int const root = static_cast<int>(random() % static_cast<unsigned>(ranks));
          examples.push_back(conformance::make_example(which, type, reduction::sum, count, ranks, root, random));
        }
      }
    }
  }
  check_examples<Backend>(examples, ranks, {}, random);
}

// ---- collectives in a row, which check themselves on the device ------------------------------------------------------------

/// What a rank puts into element i of collective number `round`: small whole numbers, so that sums are exact.
__host__ __device__ inline int value_of(std::uint64_t i, int rank, std::uint64_t round) {
  return static_cast<int>((i * 7 + static_cast<std::uint64_t>(rank) * 13 + round * 5) % 31);
}

template <class T>
__global__ void fill(T* data, std::size_t count, int rank, std::uint64_t const* round) {
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    int const value = value_of(i, rank, *round);
    if constexpr (std::is_integral_v<T>) {
      data[i] = static_cast<T>(value);
    } else {
      data[i] = T{static_cast<float>(value)};
    }
  }
}

/// One collective of a row, as the kernels that check it see it.
struct row_entry {
  collective which;
  element_type type;
  reduction how;
  int root;
  std::size_t count;
  std::size_t equal;  // of plan::part
};

/// Counts elements that are not what they must be.
template <class T>
__global__ void look(T const* data, row_entry const entry, int rank, int ranks, std::uint64_t const* round,
                     unsigned long long* wrong) {
  unsigned long long found = 0;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < entry.count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    int const owner =
        entry.equal == 0 ? ranks - 1 : static_cast<int>(min(i / entry.equal, static_cast<std::size_t>(ranks - 1)));
    int expected = 0;
    bool matters = true;
    int all = 0;
    for (int r = 0; r < ranks; ++r) {
      int const value = value_of(i, r, *round);
      all = entry.how == reduction::sum ? all + value : max(all, value);
    }
    switch (entry.which) {
      case collective::all_reduce: expected = all; break;
      case collective::reduce: expected = rank == entry.root ? all : value_of(i, rank, *round); break;
      case collective::broadcast: expected = value_of(i, entry.root, *round); break;
      case collective::reduce_scatter:
        expected = all;
        matters = owner == rank;
        break;
      case collective::all_gather: expected = value_of(i, owner, *round); break;
    }
    bool same = false;
    if constexpr (std::is_integral_v<T>) {
      same = data[i] == static_cast<T>(expected);
    } else {
      same = static_cast<float>(data[i]) == static_cast<float>(expected);
    }
    found += matters && !same ? 1 : 0;
  }
  if (found != 0) {
    atomicAdd(wrong, found);
  }
}

template <class = void>
__global__ void advance(std::uint64_t* round) {
  ++*round;
}

/// Keeps a stream busy.
template <class = void>
__global__ void spin(std::uint64_t nanoseconds) {
  std::uint64_t const begin = lockstep::clock_ns();
  while (lockstep::clock_ns() - begin < nanoseconds) {
  }
}

/// Runs until the host sets `*released`, or for some ten seconds.
template <class = void>
__global__ void hold(int const volatile* released) {
  std::uint64_t const begin = lockstep::clock_ns();
  while (*released == 0 && lockstep::clock_ns() - begin < 10'000'000'000ULL) {
  }
}

/// What a rank needs to run a row.
struct row_memory {
  std::byte* data;
  std::uint64_t* round;
  unsigned long long* wrong;

  static constexpr std::size_t extra_bytes = 256;
  /// Behind `bytes` of data.
  static row_memory at(std::byte* memory, std::size_t bytes) {
    std::size_t const end = (bytes + 255) / 256 * 256;
    return {memory, reinterpret_cast<std::uint64_t*>(memory + end), reinterpret_cast<unsigned long long*>(memory + end + 8)};
  }
};

template <class F>
void with_type(element_type type, F const& f) {
  switch (type) {
    case element_type::f32: return f(std::type_identity<float>{});
    case element_type::bf16: return f(std::type_identity<lockstep::bfloat16>{});
    case element_type::f16: return f(std::type_identity<lockstep::float16>{});
    case element_type::i32: return f(std::type_identity<std::int32_t>{});
    default: return f(std::type_identity<std::uint8_t>{});
  }
}

/// Enqueues one collective of a row between kernels that make its data and look at its result.
template <class Communicator>
void enqueue_entry(row_entry const& entry, std::size_t shift, Communicator& one, cudaStream_t stream,
                   row_memory const& memory) {
  int const rank = number(one.rank());
  with_type(entry.type, [&]<class T>(std::type_identity<T>) {
    T* const data = reinterpret_cast<T*>(memory.data) + shift;
    unsigned const blocks = static_cast<unsigned>((std::min)(entry.count / 256 + 1, std::size_t{16}));
    fill<T><<<blocks, 256, 0, stream>>>(data, entry.count, rank, memory.round);
    typed_span const span{data, entry.count, entry.type};
    switch (entry.which) {
      case collective::all_reduce: one.all_reduce(span, entry.how, stream); break;
      case collective::reduce: one.reduce(span, entry.how, rank_id{entry.root}, stream); break;
      case collective::broadcast: one.broadcast(span, rank_id{entry.root}, stream); break;
      case collective::reduce_scatter: one.reduce_scatter(span, entry.how, stream); break;
      case collective::all_gather: one.all_gather(span, stream); break;
    }
    look<T><<<blocks, 256, 0, stream>>>(data, entry, rank, one.size(), memory.round, memory.wrong);
    advance<><<<1, 1, 0, stream>>>(memory.round);
    lockstep::check(cudaGetLastError());
  });
}

/// What ranks launch must have been loaded before they wait for each other.
template <class Backend>
void load_kernels(device_id id) {
  typename Backend::device device{id};
  auto const current = device.activate();
  auto const memory = device.allocate(1024, lockstep::memory_use::other);
  cudaStream_t const stream = device.stream().get();
  Backend::zero(stream, memory.data(), 1024);
  auto const row = row_memory::at(memory.template as<std::byte>(), 16);
  for (element_type const type :
       {element_type::f32, element_type::bf16, element_type::f16, element_type::i32, element_type::u8}) {
    with_type(type, [&]<class T>(std::type_identity<T>) {
      fill<T><<<1, 32, 0, stream>>>(reinterpret_cast<T*>(row.data), 1, 0, row.round);
      look<T><<<1, 32, 0, stream>>>(reinterpret_cast<T*>(row.data), {.count = 1}, 0, 1, row.round, row.wrong);
    });
  }
  advance<><<<1, 1, 0, stream>>>(row.round);
  spin<><<<1, 1, 0, stream>>>(1);
  auto const released = device.allocate_pinned(sizeof(int));
  *released.template as<int>() = 1;
  hold<><<<1, 1, 0, stream>>>(released.template as<int>());
  lockstep::check(cudaGetLastError());
  device.stream().synchronize();
}

template <class Backend>
void load_kernels(int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    load_kernels<Backend>(device_id{rank});
  }
}

inline row_entry random_entry(int ranks, std::size_t most_bytes, std::mt19937_64& random) {
  constexpr std::array types{element_type::f32, element_type::f32, element_type::bf16,
                             element_type::f16, element_type::i32, element_type::u8};
  row_entry entry;
  entry.which = random() % 2 == 0 ? collective::all_reduce : static_cast<collective>(random() % 5);
  entry.type = types[random() % types.size()];
  entry.how = random() % 8 == 0 ? reduction::max : reduction::sum;
  entry.root = static_cast<int>(random() % static_cast<unsigned>(ranks));
  // As many of every magnitude.
  double const magnitude = std::uniform_real_distribution<double>{0, std::log(static_cast<double>(most_bytes))}(random);
  entry.count = static_cast<std::size_t>(std::exp(magnitude)) / size_of(entry.type);
  entry.equal = lockstep::plan::part(entry.count, 0, static_cast<std::size_t>(ranks)).count;
  return entry;
}

/// No rank has counted a wrong element. Where nothing runs.
template <class Backend>
void check_none_wrong(place<Backend> const& where, std::size_t bytes) {
  for (std::size_t rank = 0; rank < where.devices.size(); ++rank) {
    CAPTURE(rank);
    unsigned long long wrong = 1;
    where.get(rank, &wrong, reinterpret_cast<std::byte const*>(row_memory::at(where.data(rank), bytes).wrong), sizeof wrong);
    CHECK(wrong == 0);
  }
}

/// Random collectives one behind the other, without waiting, some ranks late at some of them.
template <class Backend>
void runs_in_a_row(int ranks, int collectives, std::size_t most_bytes, direct_tuning const& tuning) {
  std::uint64_t const seed = conformance::test_seed();
  INFO("ranks " << ranks << ", LOCKSTEP_TEST_SEED=" << seed);
  std::size_t const bytes = most_bytes + 16 * sizeof(double);
  place<Backend> const where{ranks, bytes + 256 + row_memory::extra_bytes};
  load_kernels<Backend>(ranks);
  auto communicators = create<Backend>(ranks, tuning);
  check_no_failure(on_gpus(communicators, where, [&](int rank, auto& one, auto stream, std::byte* data) {
    std::mt19937_64 random{seed};                                                          // the same on every rank
    std::mt19937_64 late{seed ^ (0x9E3779B97F4A7C15U * static_cast<unsigned>(rank + 1))};  // its own
    row_memory const memory = row_memory::at(data, bytes);
    for (int i = 0; i < collectives; ++i) {
      row_entry const entry = random_entry(ranks, most_bytes, random);
      std::size_t const shift = random() % 4 == 0 ? random() % 16 : 0;
      if (late() % 16 == 0) {
        spin<><<<1, 1, 0, stream.get()>>>(late() % 100'000);
      }
      enqueue_entry(entry, shift, one, stream.get(), memory);
      if (i % 64 == 63) {
        one.wait(stream);
      }
    }
    one.wait(stream);
  }));
  check_none_wrong(where, bytes);
}

/// A graph of several collectives, replayed with other data each time.
template <class Backend>
void can_be_replayed(int ranks, int replays, std::size_t most_bytes) {
  std::uint64_t const seed = conformance::test_seed();
  INFO("ranks " << ranks << ", LOCKSTEP_TEST_SEED=" << seed);
  std::mt19937_64 random{seed};
  std::vector<row_entry> row;
  for (std::size_t bytes = 64; bytes <= most_bytes; bytes *= 8) {
    row.push_back(random_entry(ranks, bytes, random));
    row.push_back({collective::all_reduce, element_type::f32, reduction::sum, 0, bytes / 4, 0});
  }
  std::size_t const bytes = most_bytes + 256;
  place<Backend> const where{ranks, bytes + 256 + row_memory::extra_bytes};
  load_kernels<Backend>(ranks);
  auto communicators = create<Backend>(ranks);
  std::vector<typename Backend::graph> graphs(static_cast<std::size_t>(ranks));
  check_no_failure(on_gpus(communicators, where, [&](int rank, auto& one, auto stream, std::byte* data) {
    row_memory const memory = row_memory::at(data, bytes);
    graphs[static_cast<std::size_t>(rank)] = Backend::graph::capture(stream, [&] {
      for (row_entry const& entry : row) {
        enqueue_entry(entry, 0, one, stream.get(), memory);
      }
    });
    stream.synchronize();
  }));
  check_no_failure(on_gpus(communicators, where, [&](int rank, auto& one, auto stream, std::byte* data) {
    for (int i = 0; i < replays; ++i) {
      if (i % 2 == 0) {  // telling is optional
        one.replay();
      }
      graphs[static_cast<std::size_t>(rank)].launch(stream);
      if (i % 16 == 15) {
        one.wait(stream);
      }
    }
    enqueue_entry(row.front(), 0, one, stream.get(), row_memory::at(data, bytes));  // and called again
    one.wait(stream);
  }));
  check_none_wrong(where, bytes);
}

/// Two streams of a rank, ordered by events.
template <class Backend>
void runs_on_two_streams(int ranks) {
  place<Backend> const where{ranks, 5000 * sizeof(std::int64_t)};
  std::vector<std::unique_ptr<typename Backend::stream>> others;
  for (int rank = 0; rank < ranks; ++rank) {
    others.push_back(std::make_unique<typename Backend::stream>(*where.devices[static_cast<std::size_t>(rank)]));
    std::vector<std::int64_t> const begin(5000, rank + 1);
    where.put(static_cast<std::size_t>(rank), begin.data(), 5000 * sizeof(std::int64_t));
  }
  std::vector<std::vector<std::int64_t>> results(static_cast<std::size_t>(ranks), std::vector<std::int64_t>(5000));
  auto communicators = create<Backend>(ranks);
  constexpr int rounds = 6;
  check_no_failure(on_gpus(communicators, where, [&](int rank, auto& one, auto stream, std::byte* data) {
    typename Backend::stream_ref const other = others[static_cast<std::size_t>(rank)]->ref();
    typename Backend::event done;
    for (int round = 0; round < rounds; ++round) {
      one.all_reduce({data, 5000, element_type::i64}, reduction::sum, stream);
      done.record(stream);
      other.wait(done);
      one.all_reduce({data, 5000, element_type::i64}, reduction::sum, other);
      done.record(other);
      stream.wait(done);
    }
    one.wait(done);
  }));
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    where.get(rank, results[rank].data(), where.data(rank), 5000 * sizeof(std::int64_t));
  }
  std::int64_t expected = ranks * (ranks + 1) / 2;
  for (int round = 1; round < 2 * rounds; ++round) {
    expected *= ranks;
  }
  for (auto const& result : results) {
    CHECK(result == std::vector<std::int64_t>(5000, expected));
  }
}

template <class Backend>
void counts_bytes(int ranks) {
  std::size_t const count = static_cast<std::size_t>(ranks) * 16 * 5;  // equal parts
  std::uint64_t const bytes = count * sizeof(float);
  auto const others = static_cast<std::uint64_t>(ranks - 1);
  std::uint64_t const share = bytes * others / static_cast<std::uint64_t>(ranks);
  direct_tuning two_shots;
  two_shots.words_up_to_bytes = two_shots.lines_up_to_bytes = two_shots.one_shot_up_to_bytes = 0;
  for (bool const one_hop : {true, false}) {
    place<Backend> const where{ranks, bytes};
    auto communicators = create<Backend>(ranks, one_hop ? direct_tuning{} : two_shots);
    std::vector<std::array<std::uint64_t, 5>> moved(static_cast<std::size_t>(ranks));
    check_no_failure(on_gpus(communicators, where, [&](int rank, auto& one, auto stream, std::byte* data) {
      typed_span const span{data, count, element_type::f32};
      std::uint64_t before = one.bytes_moved();
      auto const since = [&] { return one.bytes_moved() - std::exchange(before, one.bytes_moved()); };
      auto& mine = moved[static_cast<std::size_t>(rank)];
      one.all_reduce(span, reduction::sum, stream);
      mine[0] = since();
      one.reduce_scatter(span, reduction::sum, stream);
      mine[1] = since();
      one.all_gather(span, stream);
      mine[2] = since();
      one.broadcast(span, rank_id{0}, stream);
      mine[3] = since();
      one.reduce(span, reduction::sum, rank_id{0}, stream);
      mine[4] = since();
      one.wait(stream);
    }));
    std::array<std::uint64_t, 5> const expected =
        one_hop ? std::array<std::uint64_t, 5>{bytes * others, share, share, bytes * others, bytes}
                : std::array<std::uint64_t, 5>{2 * share, share, share, 2 * share, 2 * share};
    for (auto const& mine : moved) {
      CHECK(mine == expected);
    }
  }
}

// ---- bad use and failures ------------------------------------------------------------------------------------------------

template <class Backend>
void refuses_bad_arguments(int ranks) {
  place<Backend> const where{ranks, 64};
  auto communicators = create<Backend>(ranks);
  auto& first = communicators.front();
  auto const stream = where.stream(0);
  typed_span const good{where.data(0), 4, element_type::f32};
  typed_span const no_memory{nullptr, 4, element_type::f32};
  for (rank_id const root : {rank_id{-1}, rank_id{ranks}}) {
    CHECK_THROWS_AS(first.reduce(good, reduction::sum, root, stream), lockstep::usage_error);
    CHECK_THROWS_AS(first.broadcast(good, root, stream), lockstep::usage_error);
  }
  CHECK_THROWS_AS(first.all_reduce(no_memory, reduction::sum, stream), lockstep::usage_error);
  CHECK_THROWS_AS(first.all_gather(no_memory, stream), lockstep::usage_error);
  CHECK_FALSE(first.aborted());
  check_no_failure(on_gpus(communicators, where, [](int, auto& one, auto own, std::byte*) {
    typed_span const nothing{nullptr, 0, element_type::f32};
    one.all_reduce(nothing, reduction::sum, own);
    one.reduce_scatter(nothing, reduction::sum, own);
    one.all_gather(nothing, own);
    one.wait(own);
  }));

  auto const making = [](std::vector<device_id> const& ids, double timeout_seconds = 60, direct_tuning const& tuning = {}) {
    typename Backend::options options;
    options.timeout_seconds = timeout_seconds;
    static_cast<void>(communicator<Backend>::create(ids, options, tuning));
  };
  auto const ids = conformance::first_devices(ranks);
  direct_tuning odd;
  odd.depth = 3;
  CHECK_THROWS_AS(making({}), lockstep::usage_error);
  CHECK_THROWS_WITH_AS(making({device_id{0}, device_id{0}}),
                       "lockstep: ranks 0 and 1 are both on device 0: list each device once", lockstep::usage_error);
  if (std::is_same_v<Backend, lockstep::cuda>) {  // others may take any number for a GPU that is there
    CHECK_THROWS_AS(making({device_id{0}, device_id{1000}}), lockstep::usage_error);
  }
  CHECK_THROWS_AS(making(ids, 60, odd), lockstep::usage_error);
  CHECK_THROWS_AS(making(ids, 0), lockstep::usage_error);
}

/// Peers may not reach the memory of a pool: where they would write to it, it is refused; where they would not, it serves.
template <class Backend>
void refuses_memory_of_a_pool(int ranks) {
  constexpr std::size_t count = 5000;
  place<Backend> const where{ranks, 64};
  std::vector<void*> pooled(static_cast<std::size_t>(ranks));
  for (std::size_t rank = 0; rank < pooled.size(); ++rank) {
    auto const current = where.devices[rank]->activate();
    lockstep::check(cudaMallocAsync(&pooled[rank], count * sizeof(float), where.stream(rank).get()));
    Backend::zero(where.stream(rank), pooled[rank], count * sizeof(float));
    where.stream(rank).synchronize();
  }
  direct_tuning two_shots;
  two_shots.words_up_to_bytes = two_shots.lines_up_to_bytes = two_shots.one_shot_up_to_bytes = 0;
  auto communicators = create<Backend>(ranks, two_shots);
  check_no_failure(on_gpus(communicators, where, [&](int rank, auto& one, auto stream, std::byte*) {
    typed_span const data{pooled[static_cast<std::size_t>(rank)], count, element_type::f32};
    std::string said;
    try {
      one.all_reduce(data, reduction::sum, stream);
    } catch (lockstep::usage_error const& e) {
      said = e.what();
    }
    if (said.find("must be plain device memory") == std::string::npos) {
      throw lockstep::error("not refused: " + said);
    }
    one.reduce_scatter(data, reduction::sum, stream);
    one.wait(stream);
  }));
  communicators.clear();
  for (std::size_t rank = 0; rank < pooled.size(); ++rank) {
    auto const current = where.devices[rank]->activate();
    lockstep::check(cudaFreeAsync(pooled[rank], where.stream(rank).get()));
    where.stream(rank).synchronize();
  }
}

/// Ranks that differ are told which.
template <class Backend>
void names_differing_calls(int ranks) {
  place<Backend> const where{ranks, 64};
  auto communicators = create<Backend>(ranks, {}, 20);
  auto const thrown = on_gpus(communicators, where, [&](int rank, auto& one, auto stream, std::byte* data) {
    one.all_reduce({data, rank == 1 ? std::size_t{9} : std::size_t{10}, element_type::f32}, reduction::sum, stream);
    one.wait(stream);
  });
  std::string const reason = communicators.front().abort_reason();
  CHECK(reason.find("all_reduce of 9 f32") != std::string::npos);
  CHECK(reason.find("all_reduce of 10 f32") != std::string::npos);
  int disputes = 0;
  for (auto const& failure : thrown) {
    std::string const text = message_of(failure);
    CHECK(text.find(reason) != std::string::npos);
    disputes += message_of<lockstep::usage_error>(failure).find("lockstep: ") == 0 ? 1 : 0;
  }
  CHECK(disputes == 1);
  communicators.clear();
  check_new_group_works<Backend>(ranks);
}

/// "rank 2 (device 2)"
inline std::string name(int rank) { return "rank " + std::to_string(rank) + " (device " + std::to_string(rank) + ")"; }

/// What ranks throw that waited for `missing`: one a timeout that names it, the others that they were stopped.
inline void check_missing(std::vector<std::exception_ptr> const& thrown, int missing, std::string const& sentence) {
  int timeouts = 0;
  for (std::size_t rank = 0; rank < thrown.size(); ++rank) {
    if (static_cast<int>(rank) == missing) {
      continue;
    }
    CAPTURE(rank);
    CHECK(message_of(thrown[rank]).find(sentence) != std::string::npos);
    try {
      std::rethrow_exception(thrown[rank]);
    } catch (lockstep::timeout_error const& e) {
      ++timeouts;
      CHECK(e.missing() == rank_id{missing});
    } catch (lockstep::aborted_error const&) {
    } catch (...) {
      FAIL_CHECK("neither a timeout nor an abort");
    }
  }
  CHECK(timeouts == 1);
}

/// A rank never calls: the others end, and say who.
template <class Backend>
void names_a_rank_that_never_calls(int ranks, direct_tuning const& tuning) {
  place<Backend> const where{ranks, 1 << 16};
  auto communicators = create<Backend>(ranks, tuning, 2);
  int const missing = ranks - 1;
  auto const thrown = on_gpus(communicators, where, [&](int rank, auto& one, auto stream, std::byte* data) {
    if (rank != missing) {
      for (int i = 0; i < 5; ++i) {  // those behind the first do not wait as long again
        one.all_reduce({data, 10'000, element_type::f32}, reduction::sum, stream);
      }
      one.wait(stream);
    }
  });
  check_missing(thrown, missing, name(missing) + " did not arrive at all_reduce of 10000 f32 within 2 seconds");
  for (std::size_t rank = 0; rank < communicators.size(); ++rank) {
    where.stream(rank).synchronize();
    CHECK_THROWS_AS(
        communicators[rank].all_reduce({where.data(rank), 10, element_type::f32}, reduction::sum, where.stream(rank)),
        lockstep::aborted_error);
  }
  communicators.clear();
  check_new_group_works<Backend>(ranks);
}

/// A rank calls, but its device is busy with something else: the kernels of the others say who.
template <class Backend>
void names_a_rank_whose_device_is_late(int ranks, direct_tuning const& tuning) {
  place<Backend> const where{ranks, 1 << 16};
  load_kernels<Backend>(ranks);
  auto const released = where.devices.front()->allocate_pinned(sizeof(int));
  *released.template as<int>() = 0;
  auto communicators = create<Backend>(ranks, tuning, 2);
  int const missing = 0;
  auto const thrown = on_gpus(communicators, where, [&](int rank, auto& one, auto stream, std::byte* data) {
    if (rank == missing) {
      hold<><<<1, 1, 0, stream.get()>>>(released.template as<int>());
      lockstep::check(cudaGetLastError());
    }
    one.all_reduce({data, 10'000, element_type::f32}, reduction::sum, stream);
    if (rank != missing) {
      one.wait(stream);
    }
  });
  *static_cast<int volatile*>(released.template as<int>()) = 1;
  check_missing(thrown, missing,
                ranks == 2 ? name(missing) + " did not arrive on its device at all_reduce of 10000 f32 within 2 seconds"
                           : "within 2 seconds");
  where.stream(0).synchronize();
  communicators.clear();
  check_new_group_works<Backend>(ranks);
}

/// An abort ends ranks that wait in a kernel, however they wait on the host.
template <class Backend>
void ends_when_aborted(int ranks, direct_tuning const& tuning) {
  place<Backend> const where{ranks, 1 << 16};
  auto communicators = create<Backend>(ranks, tuning, 30);
  auto const begin = std::chrono::steady_clock::now();
  auto const thrown = on_gpus(communicators, where, [&](int rank, auto& one, auto stream, std::byte* data) {
    if (rank == ranks - 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds{200});
      one.abort("enough");
      one.abort("another reason");
      return;
    }
    one.all_reduce({data, 10'000, element_type::f32}, reduction::sum, stream);
    if (rank == 0) {
      stream.synchronize();
    } else {
      one.wait(stream);
    }
  });
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds{20});
  CHECK(message_of(thrown.front()) == "");
  for (int rank = 1; rank + 1 < ranks; ++rank) {
    CHECK(message_of<lockstep::aborted_error>(thrown[static_cast<std::size_t>(rank)]) ==
          "waiting on rank " + std::to_string(rank) + " was stopped: enough");
  }
  CHECK(communicators.front().aborted());
  CHECK(communicators.front().abort_reason() == "enough");
  communicators.clear();
  check_new_group_works<Backend>(ranks);
}

/// Groups come and go, healthy or not.
template <class Backend>
void comes_and_goes(int ranks, int times) {
  for (int i = 0; i < times; ++i) {
    check_new_group_works<Backend>(ranks);
    if (i % 2 == 1) {
      place<Backend> const where{ranks, 64};
      auto communicators = create<Backend>(ranks);
      communicators.back().abort("on purpose");
    }
  }
}

}  // namespace direct_cases
