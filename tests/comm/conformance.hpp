// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/backend/host.hpp>
#include <lockstep/concepts.hpp>
#include <lockstep/core/element_type.hpp>
#include <lockstep/core/error.hpp>
#include <lockstep/plan/split.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

/// What every communicator over host memory must do, whatever its transport. A suite is a function of `create`, which makes N
/// communicators that know each other.
namespace conformance {

using lockstep::element_type;
using lockstep::rank_id;
using lockstep::reduction;
using lockstep::typed_span;

inline std::uint64_t test_seed() {
  char const* const given = std::getenv("LOCKSTEP_TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
}

inline std::vector<lockstep::device_id> first_devices(int count) {
  std::vector<lockstep::device_id> ids;
  for (int id = 0; id < count; ++id) {
    ids.push_back(lockstep::device_id{id});
  }
  return ids;
}

/// Calls `task(rank)` in a thread a rank, and returns what each threw.
template <class Task>
std::vector<std::exception_ptr> on_ranks(int ranks, Task const& task) {
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        task(rank);
      } catch (...) {
        thrown[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return thrown;
}

/// The message of an exception of type E; "" for no exception, "another type: ..." for another.
template <class E = lockstep::error>
std::string message_of(std::exception_ptr const& thrown) {
  if (thrown == nullptr) {
    return {};
  }
  try {
    std::rethrow_exception(thrown);
  } catch (E const& failure) {
    return failure.what();
  } catch (std::exception const& failure) {
    return std::string{"another type: "} + failure.what();
  }
}

inline void check_no_failure(std::vector<std::exception_ptr> const& thrown) {
  for (std::size_t rank = 0; rank < thrown.size(); ++rank) {
    CAPTURE(rank);
    CHECK(message_of(thrown[rank]) == "");
  }
}

enum class collective { all_reduce, reduce, broadcast, reduce_scatter, all_gather };

/// One collective with the inputs of all ranks, and what each rank must hold afterwards where it is promised.
struct example {
  collective which;
  element_type type;
  reduction how;
  std::size_t count;
  int root;
  bool queued;  // on a stream of the rank, or at once
  std::vector<std::vector<std::byte>> inputs;
  std::vector<std::byte> combined;  // over all ranks, every element

  [[nodiscard]] std::string text() const {
    constexpr std::array names{"all_reduce", "reduce", "broadcast", "reduce_scatter", "all_gather"};
    return std::string{names[static_cast<std::size_t>(which)]} + " of " + std::to_string(count) + " " +
           std::string{name_of(type)} + ", reduction " + std::to_string(static_cast<int>(how)) + ", root " +
           std::to_string(root) + (queued ? ", queued" : ", at once");
  }
};

template <class T>
inline constexpr bool is_floating = !std::is_integral_v<T>;

/// Which floating-point numbers to draw: of one magnitude, and some special values; or whole numbers so near to 0 that sums
/// over up to 16 ranks are exact in every type, in whatever order they are made.
enum class numbers { any, whole };

/// Integers: any bits, so that sums overflow.
template <class T>
T random_element(std::mt19937_64& random, numbers drawn) {
  std::uint64_t const bits = random();
  if constexpr (!is_floating<T>) {
    return static_cast<T>(bits);
  } else {
    using wide = std::conditional_t<sizeof(T) == 2, float, T>;
    if (drawn == numbers::whole) {
      return T{static_cast<wide>(static_cast<int>(bits % 31) - 15)};
    }
    if (bits % 32 == 0) {
      constexpr wide infinity = std::numeric_limits<wide>::infinity();
      std::array const special{infinity, -infinity, std::numeric_limits<wide>::quiet_NaN(), wide{0}, -wide{0}, wide{60000}};
      return T{special[(bits >> 8) % special.size()]};
    }
    return T{static_cast<wide>(static_cast<double>(static_cast<std::int32_t>(bits >> 32)) * 0x1p-28)};
  }
}

/// Elements of all ranks combined in the order of the ranks, computed as plainly as possible.
template <class T>
T reference(reduction how, std::span<T const> elements) {
  if constexpr (!is_floating<T>) {
    T result = elements[0];
    std::uint64_t sum = 0;
    for (T const element : elements) {
      sum += static_cast<std::uint64_t>(element);
      result = (how == reduction::min) == (element < result) ? element : result;
    }
    return how == reduction::sum ? static_cast<T>(sum) : result;
  } else {
    using wide = std::conditional_t<sizeof(T) == 2, float, T>;
    auto result = static_cast<wide>(elements[0]);
    for (std::size_t rank = 1; rank < elements.size(); ++rank) {
      auto const element = static_cast<wide>(elements[rank]);
      if (how == reduction::sum) {
        result = result + element;
      } else if (std::isnan(result) || std::isnan(element)) {
        result = std::numeric_limits<wide>::quiet_NaN();
      } else if (how == reduction::min ? element < result : element > result) {
        result = element;
      }
    }
    return T{result};
  }
}

/// The same bits; of NaNs, any bits, since the sign and payload of a computed one are the machine's choice.
template <class T>
bool same(T a, T b) {
  if constexpr (is_floating<T>) {
    using wide = std::conditional_t<sizeof(T) == 2, float, T>;
    if (std::isnan(static_cast<wide>(a)) && std::isnan(static_cast<wide>(b))) {
      return true;
    }
  }
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

inline bool same_elements(element_type type, std::byte const* a, std::byte const* b, std::size_t count) {
  return lockstep::visit(type, [&]<class T>(std::type_identity<T>) {
    for (std::size_t index = 0; index < count; ++index) {
      T left;
      T right;
      std::memcpy(&left, a + index * sizeof(T), sizeof(T));
      std::memcpy(&right, b + index * sizeof(T), sizeof(T));
      if (!same(left, right)) {
        return false;
      }
    }
    return true;
  });
}

inline example make_example(collective which, element_type type, reduction how, std::size_t count, int ranks, int root,
                            std::mt19937_64& random, numbers drawn = numbers::any) {
  example made{which, type, how, count, root, random() % 2 == 0, {}, {}};
  lockstep::visit(type, [&]<class T>(std::type_identity<T>) {
    std::vector<std::vector<T>> inputs(static_cast<std::size_t>(ranks));
    for (std::vector<T>& input : inputs) {
      for (std::size_t index = 0; index < count; ++index) {
        input.push_back(random_element<T>(random, drawn));
      }
      auto const bytes = std::as_bytes(std::span{input});
      made.inputs.emplace_back(bytes.begin(), bytes.end());
    }
    std::vector<T> combined;
    std::vector<T> column(inputs.size());
    for (std::size_t index = 0; index < count; ++index) {
      for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
        column[rank] = inputs[rank][index];
      }
      combined.push_back(reference<T>(how, column));
    }
    auto const bytes = std::as_bytes(std::span{combined});
    made.combined.assign(bytes.begin(), bytes.end());
  });
  return made;
}

/// Every collective, element type and count, as a sum and as a minimum or maximum, with a random root; then every root.
inline std::vector<example> make_examples(int ranks, std::mt19937_64& random, numbers drawn = numbers::any) {
  constexpr std::array types{element_type::f32, element_type::f64, element_type::f16, element_type::bf16, element_type::i8,
                             element_type::u8,  element_type::i32, element_type::u32, element_type::i64,  element_type::u64};
  constexpr std::array all{collective::all_reduce, collective::reduce, collective::broadcast, collective::reduce_scatter,
                           collective::all_gather};
  std::vector<example> examples;
  for (element_type const type : types) {
    for (std::size_t const count : {std::size_t{0}, std::size_t{1}, std::size_t{2}, std::size_t{15}, std::size_t{16},
                                    std::size_t{17}, std::size_t{1000}, static_cast<std::size_t>(random() % 3000)}) {
      for (collective const which : all) {
        bool const reduces = which != collective::broadcast && which != collective::all_gather;
        for (reduction const how : {reduction::sum, random() % 2 == 0 ? reduction::min : reduction::max}) {
          if (how == reduction::sum || reduces) {
            int const root = static_cast<int>(random() % static_cast<unsigned>(ranks));
            examples.push_back(make_example(which, type, how, count, ranks, root, random, drawn));
          }
        }
      }
    }
  }
  for (int root = 0; root < ranks; ++root) {
    examples.push_back(make_example(collective::reduce, element_type::f32, reduction::sum, 130, ranks, root, random, drawn));
    examples.push_back(make_example(collective::broadcast, element_type::u8, reduction::sum, 130, ranks, root, random, drawn));
  }
  return examples;
}

/// Calls the collective of an example on `span`.
template <class Communicator, class Stream>
void call(example const& e, Communicator& communicator, typed_span span, Stream const& stream) {
  rank_id const root{e.root};
  switch (e.which) {
    case collective::all_reduce: communicator.all_reduce(span, e.how, stream); break;
    case collective::reduce: communicator.reduce(span, e.how, root, stream); break;
    case collective::broadcast: communicator.broadcast(span, root, stream); break;
    case collective::reduce_scatter: communicator.reduce_scatter(span, e.how, stream); break;
    case collective::all_gather: communicator.all_gather(span, stream); break;
  }
}

/// Whether every rank must hold the same afterwards.
inline bool same_everywhere(example const& e) {
  return e.which == collective::all_reduce || e.which == collective::broadcast || e.which == collective::all_gather;
}

/// What is wrong with `data`, what `rank` holds after an example; "" when nothing is.
inline std::string check_result(example const& e, std::size_t rank, std::size_t size, std::byte const* data) {
  std::size_t const element = size_of(e.type);
  std::vector<std::byte> expected = e.combined;
  lockstep::plan::range checked{0, e.count};
  switch (e.which) {
    case collective::all_reduce: break;
    case collective::reduce: expected = static_cast<std::size_t>(e.root) == rank ? e.combined : e.inputs[rank]; break;
    case collective::broadcast: expected = e.inputs[static_cast<std::size_t>(e.root)]; break;
    case collective::reduce_scatter: checked = lockstep::plan::part(e.count, rank, size); break;
    case collective::all_gather:
      for (std::size_t owner = 0; owner < size; ++owner) {
        auto const part = lockstep::plan::part(e.count, owner, size);
        auto const from = e.inputs[owner].begin();
        std::copy(from + static_cast<std::ptrdiff_t>(part.first * element),
                  from + static_cast<std::ptrdiff_t>(part.end() * element),
                  expected.begin() + static_cast<std::ptrdiff_t>(part.first * element));
      }
  }
  if (!same_elements(e.type, data + checked.first * element, expected.data() + checked.first * element, checked.count)) {
    return e.text() + ": wrong elements on rank " + std::to_string(rank);
  }
  return {};
}

/// Elements of a rank between two stretches of marked bytes, which must stay.
class guarded {
 public:
  static constexpr std::size_t margin = 64;

  explicit guarded(std::vector<std::byte> const& elements) : memory_(margin + elements.size() + margin, mark) {
    for (std::size_t i = 0; i < elements.size(); ++i) {  // g++ 12 sees an overflow in std::copy
      memory_[margin + i] = elements[i];
    }
  }

  [[nodiscard]] std::vector<std::byte>& memory() { return memory_; }
  [[nodiscard]] std::byte* data() { return memory_.data() + margin; }
  [[nodiscard]] bool intact() const {
    auto const marked = [](std::byte each) { return each == mark; };
    return std::all_of(memory_.begin(), memory_.begin() + margin, marked) &&
           std::all_of(memory_.end() - margin, memory_.end(), marked);
  }

 private:
  static constexpr std::byte mark{0xa5};

  std::vector<std::byte> memory_;
};

/// Runs one example on one rank; returns what is wrong with the result. Appends what must be the same on all ranks to `log`.
template <class Communicator>
std::string run_example(example const& e, Communicator& communicator, lockstep::host::stream const& own_stream,
                        std::vector<std::byte>& log) {
  auto const rank = static_cast<std::size_t>(communicator.rank());
  guarded elements{e.inputs[rank]};
  lockstep::host::stream_ref const stream = e.queued ? own_stream.ref() : lockstep::host::stream_ref{};
  call(e, communicator, {elements.data(), e.count, e.type}, stream);
  stream.synchronize();

  if (same_everywhere(e)) {
    log.insert(log.end(), elements.data(), elements.data() + e.count * size_of(e.type));
  }
  if (!elements.intact()) {
    return e.text() + ": wrote beside the elements of rank " + std::to_string(rank);
  }
  return check_result(e, rank, static_cast<std::size_t>(communicator.size()), elements.data());
}

/// Collectives give the reference's elements on every rank, the same bits everywhere and again in a second run.
template <class Create>
void gives_reference_results(Create const& create, int ranks) {
  std::uint64_t const seed = test_seed();
  INFO("ranks " << ranks << ", LOCKSTEP_TEST_SEED=" << seed);
  std::mt19937_64 random{seed};
  auto const examples = make_examples(ranks, random);
  std::vector<std::byte> first_log;
  for (int run = 0; run < 2; ++run) {
    auto communicators = create(ranks);
    REQUIRE(communicators.size() == static_cast<std::size_t>(ranks));
    std::vector<std::string> wrong(communicators.size());
    std::vector<std::vector<std::byte>> logs(communicators.size());
    check_no_failure(on_ranks(ranks, [&](int rank) {
      auto const index = static_cast<std::size_t>(rank);
      auto communicator = std::move(communicators[index]);
      if (communicator.rank() != rank_id{rank} || communicator.size() != ranks) {
        throw lockstep::error("rank or size is wrong");
      }
      lockstep::host::stream const stream;
      for (example const& e : examples) {
        std::string const problem = run_example(e, communicator, stream, logs[index]);
        if (wrong[index].empty()) {
          wrong[index] = problem;
        }
      }
    }));
    for (std::size_t rank = 0; rank < wrong.size(); ++rank) {
      CHECK(wrong[rank] == "");
      bool const same_bits_on_every_rank = logs[rank] == logs[0];
      CHECK(same_bits_on_every_rank);
    }
    if (run == 0) {
      first_log = logs[0];
    } else {
      bool const same_bits_in_every_run = logs[0] == first_log;
      CHECK(same_bits_in_every_run);
    }
  }
}

/// Bad arguments are refused in the calling thread, by this rank alone, and leave the group as it was.
template <class Create>
void refuses_bad_arguments(Create const& create, int ranks) {
  INFO("ranks " << ranks);
  auto communicators = create(ranks);
  auto& first = communicators.front();
  lockstep::host::stream const stream;
  std::vector<float> elements(4);
  typed_span const good = std::span{elements};
  typed_span const no_memory{nullptr, 4, element_type::f32};
  for (rank_id const root : {rank_id{-1}, rank_id{ranks}}) {
    CHECK_THROWS_AS(first.reduce(good, reduction::sum, root, stream), lockstep::usage_error);
    CHECK_THROWS_AS(first.broadcast(good, root, stream), lockstep::usage_error);
  }
  CHECK_THROWS_AS(first.all_reduce(no_memory, reduction::sum, stream), lockstep::usage_error);
  CHECK_THROWS_AS(first.reduce(no_memory, reduction::sum, rank_id{0}, stream), lockstep::usage_error);
  CHECK_THROWS_AS(first.broadcast(no_memory, rank_id{0}, stream), lockstep::usage_error);
  CHECK_THROWS_AS(first.reduce_scatter(no_memory, reduction::sum, stream), lockstep::usage_error);
  CHECK_THROWS_AS(first.all_gather(no_memory, stream), lockstep::usage_error);
  CHECK_FALSE(first.aborted());
  check_no_failure(on_ranks(ranks, [&](int rank) {
    typed_span const nothing{nullptr, 0, element_type::f32};
    communicators[static_cast<std::size_t>(rank)].all_reduce(nothing, reduction::sum, {});
  }));
}

/// After `abort` every rank's collectives throw at once, with the first reason.
template <class Create>
void stays_aborted(Create const& create, int ranks) {
  INFO("ranks " << ranks);
  auto communicators = create(ranks);
  CHECK_FALSE(communicators.front().aborted());
  CHECK(communicators.front().abort_reason() == "");
  communicators.back().abort("the first reason");
  communicators.front().abort("another reason");
  std::vector<float> elements(4);
  lockstep::host::stream const stream;
  for (auto& communicator : communicators) {
    CHECK(communicator.aborted());
    CHECK(communicator.abort_reason() == "the first reason");
    CHECK_THROWS_WITH_AS(communicator.all_reduce(std::span{elements}, reduction::sum, stream),
                         doctest::Contains("the first reason"), lockstep::aborted_error);
    CHECK_THROWS_AS(communicator.reduce(std::span{elements}, reduction::sum, rank_id{0}, stream), lockstep::aborted_error);
    CHECK_THROWS_AS(communicator.broadcast(std::span{elements}, rank_id{0}, stream), lockstep::aborted_error);
    CHECK_THROWS_AS(communicator.reduce_scatter(std::span{elements}, reduction::sum, stream), lockstep::aborted_error);
    CHECK_THROWS_AS(communicator.all_gather(std::span{elements}, stream), lockstep::aborted_error);
  }
}

}  // namespace conformance
