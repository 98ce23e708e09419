// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// The protocol of the direct communicator, run by threads: one stands for each warp, flags are atomics, and data is plain
// memory, so that the thread sanitizer sees every slot that would be reused too early.

#include <lockstep/comm/detail/direct_plan.hpp>
#include <lockstep/comm/detail/direct_protocol.hpp>
#include <lockstep/comm/detail/request.hpp>
#include <lockstep/concepts.hpp>
#include <lockstep/plan/split.hpp>

#include "../seed.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace lockstep::comm_detail;
using lockstep::element_type;
using lockstep::rank_id;
using lockstep::reduction;
using lockstep::typed_span;

/// Random sleeps, so that every thread is late sometimes.
class jitter {
 public:
  explicit jitter(std::uint64_t seed) : random_(seed) {}
  void now_and_then() {
    if (random_() % 64 == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds{random_() % 100});
    }
  }

 private:
  std::minstd_rand random_;
};

/// A rank's memory: flags and words as atomics, and the inboxes for chunks.
struct window {
  explicit window(direct_layout const& layout)
      : layout_(layout), atoms(layout.lines_at / 8), chunks(layout.bytes - layout.bulk_at) {}

  [[nodiscard]] std::atomic<std::uint64_t>& atom(std::uint64_t at) { return atoms[at / 8]; }
  [[nodiscard]] std::byte* slot(std::uint64_t at) { return chunks.data() + (at - layout_.bulk_at); }

  direct_layout layout_;
  std::vector<std::atomic<std::uint64_t>> atoms;
  std::vector<std::byte> chunks;
};

/// Of one channel of one rank: what the kernel boundary makes visible.
struct record {
  std::uint64_t epoch = 0;
  std::uint64_t chunks = 0;
};

struct world {
  world(int ranks, lockstep::direct_tuning const& chosen)
      : size(ranks), tuning(chosen), layout(make_layout(chosen, ranks, 8)), records(static_cast<std::size_t>(ranks)) {
    for (int rank = 0; rank < ranks; ++rank) {
      windows.push_back(std::make_unique<window>(layout));
      records[static_cast<std::size_t>(rank)].resize(layout.channels);
    }
  }
  [[nodiscard]] window& of(int rank) { return *windows[static_cast<std::size_t>(rank)]; }

  int size;
  lockstep::direct_tuning tuning;
  direct_layout layout;
  std::vector<std::unique_ptr<window>> windows;
  std::vector<std::vector<record>> records;
  std::atomic<bool> stopped{false};
};

// A word travels in two halves, each with its flag, as in the kernels. Where these have a fence in front or behind, the order
// says so, for the sanitizer does not know fences.
void push_word(window& to, std::uint64_t at, std::uint64_t word, std::uint32_t flag,
               std::memory_order order = std::memory_order_relaxed) {
  std::uint64_t const high = std::uint64_t{flag} << 32U;
  // The second half first: the order in which they come is nobody's promise.
  to.atom(at + 8).store(high | word >> 32U, order);
  to.atom(at).store(high | (word & 0xffffffffU), order);
}
struct seen_word {
  std::uint64_t halves[2];
};
seen_word peek_word(window& from, std::uint64_t at, std::memory_order order = std::memory_order_relaxed) {
  return {{from.atom(at).load(order), from.atom(at + 8).load(order)}};
}
bool has_word(seen_word const& seen, std::uint32_t flag) {
  return seen.halves[0] >> 32U == flag && seen.halves[1] >> 32U == flag;
}
std::uint64_t word_of(seen_word const& seen) { return (seen.halves[0] & 0xffffffffU) | seen.halves[1] << 32U; }

/// f32, two to a word.
struct float_sum {
  template <std::size_t Words>
  struct wide {
    float values[2 * Words];
  };

  template <std::size_t Words>
  void begin(wide<Words>& sum, std::uint64_t const (&words)[Words]) const {
    std::memcpy(sum.values, words, sizeof words);
  }
  template <std::size_t Words>
  void add(wide<Words>& sum, std::uint64_t const (&words)[Words]) const {
    wide<Words> next;
    std::memcpy(next.values, words, sizeof words);
    for (std::size_t i = 0; i < 2 * Words; ++i) {
      sum.values[i] = sum.values[i] + next.values[i];
    }
  }
  template <std::size_t Words>
  void end(wide<Words> const& sum, std::uint64_t (&words)[Words]) const {
    std::memcpy(words, sum.values, sizeof words);
  }
};

/// One lane of a warp that sends words.
class model_lane {
 public:
  static constexpr std::uint32_t payload = words_payload;
  static constexpr std::size_t piece_words = 1;
  struct piece {
    std::uint64_t words[1];
  };
  using entry = seen_word;

  model_lane(world& all, int rank, direct_call const& call, std::uint32_t channel, std::uint32_t warp, std::uint32_t lane,
             jitter& sleeps)
      : all_(all), rank_(rank), call_(call), channel_(channel), warp_(warp), lane_(lane), sleeps_(sleeps) {}

  void begin() { epoch_ = all_.records[static_cast<std::size_t>(rank_)][channel_].epoch + 1; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return all_.size; }
  [[nodiscard]] std::uint32_t packet(std::uint32_t round) const {
    return (round * call_.blocks + channel_) * call_.warps + warp_;
  }
  [[nodiscard]] piece load(std::uint64_t first, std::uint64_t at, std::uint64_t count) const {
    piece loaded{};
    at += std::uint64_t{8} * lane_;
    if (at < count) {
      std::memcpy(loaded.words, call_.data + first + at, (std::min)(count - at, std::uint64_t{8}));
    }
    return loaded;
  }
  void store(std::uint64_t first, std::uint64_t at, std::uint64_t count, piece const& stored) const {
    at += std::uint64_t{8} * lane_;
    if (at < count) {
      std::memcpy(call_.data + first + at, stored.words, (std::min)(count - at, std::uint64_t{8}));
    }
  }
  void push(int peer, std::uint32_t round, piece const& sent) {
    sleeps_.now_and_then();
    push_word(all_.of(peer), inbox(peer, rank_, round), sent.words[0], word_flag(epoch_));
  }
  [[nodiscard]] entry peek(int source, std::uint32_t round) { return peek_word(all_.of(rank_), inbox(rank_, source, round)); }
  [[nodiscard]] bool is_complete(entry const& seen) const { return has_word(seen, word_flag(epoch_)); }
  [[nodiscard]] static bool agree(bool complete) { return complete; }
  void send_arrivals() {
    for (int peer = 0; meets() && peer < all_.size; ++peer) {
      if (peer != rank_) {
        push_word(all_.of(peer), all_.layout.arrival(channel_, epoch_ % 2, rank_), 0, word_flag(epoch_));
      }
    }
  }
  [[nodiscard]] bool await_arrivals() const {
    for (int peer = 0; meets() && peer < all_.size; ++peer) {
      while (peer != rank_ &&
             !has_word(peek_word(all_.of(rank_), all_.layout.arrival(channel_, epoch_ % 2, peer)), word_flag(epoch_))) {
        std::this_thread::yield();
        if (all_.stopped) {
          return false;
        }
      }
    }
    return true;
  }
  [[nodiscard]] static piece open(entry const& seen, int, std::uint32_t) { return {{word_of(seen)}}; }
  template <std::size_t Count>
  [[nodiscard]] bool go_on(entry const (&)[Count], int) const {
    std::this_thread::yield();
    return !all_.stopped;
  }

 private:
  /// The first lane of a block does it for all.
  [[nodiscard]] bool meets() const { return call_.meets && warp_ == 0 && lane_ == 0; }
  [[nodiscard]] std::uint64_t inbox(int owner, int of, std::uint32_t round) const {
    return all_.layout.words(owner, channel_, epoch_ % 2, of) + 512 * (round * call_.warps + warp_) + 16 * lane_;
  }

  world& all_;
  int rank_;
  direct_call const& call_;
  std::uint32_t channel_;
  std::uint32_t warp_;
  std::uint32_t lane_;
  jitter& sleeps_;
  std::uint64_t epoch_ = 0;
};

/// A block that exchanges words: its lanes one after the other, for none waits for another of its block.
void run_packets(world& all, int rank, direct_call const& call, std::uint32_t channel, std::uint64_t seed) {
  jitter sleeps{seed};
  record& own = all.records[static_cast<std::size_t>(rank)][channel];
  std::uint64_t const epoch = own.epoch + 1;
  bool done = true;
  for (std::uint32_t warp = 0; warp < call.warps; ++warp) {
    for (std::uint32_t lane = 0; lane < 32; ++lane) {
      model_lane one{all, rank, call, channel, warp, lane, sleeps};
      done = (is_copy(call.which) ? copy_packets(one, call) : reduce_packets(one, call, float_sum{})) && done;
    }
  }
  if (done) {
    own.epoch = epoch;
  }
}

/// What the threads of a block share.
struct block_shared {
  std::atomic<std::uint32_t> ready{0};
  std::array<std::atomic<std::uint32_t>, 16> pushed{};
  std::atomic<std::uint32_t> finished{0};
  std::array<std::byte*, most_peers> data{};  // written before ready is
};

/// One warp of a block that exchanges chunks.
class model_block {
 public:
  model_block(world& all, int rank, direct_call const& call, std::uint32_t channel, std::uint32_t warp, record const& begin,
              block_shared& shared, std::uint64_t seed)
      : all_(all), rank_(rank), call_(call), channel_(channel), warp_(warp), begin_(begin), shared_(shared), sleeps_(seed) {}

  [[nodiscard]] std::uint32_t steps() const { return call_.steps(channel_); }
  [[nodiscard]] std::uint32_t lag() const { return all_.layout.depth / 2 - 1; }
  [[nodiscard]] bool contributes() const { return has_rank(call_.contributors, rank_); }
  [[nodiscard]] bool sends_into_data() const { return is_copy(call_.which); }
  [[nodiscard]] bool has_targets() const {
    for (int peer = 0; peer < all_.size; ++peer) {
      if (peer != rank_ && has_rank(call_.targets, peer)) {
        return true;
      }
    }
    return false;
  }

  void push(std::uint32_t step) {
    sleeps_.now_and_then();
    std::uint64_t const at = chunk_at(step);
    each_peer([&](int peer) {
      direct_call::range const share = call_.share(peer, all_.size);
      each_element(share, at, warp_, [&](std::uint64_t byte) {
        std::byte* const to = sends_into_data() ? shared_.data[static_cast<std::size_t>(peer)] + share.first + at + byte
                                                : inbox(peer, step, rank_) + byte;
        std::memcpy(to, call_.data + share.first + at + byte, sizeof(float));
      });
    });
  }
  void combine(std::uint32_t step) {
    sleeps_.now_and_then();
    std::uint64_t const at = chunk_at(step);
    direct_call::range const share = call_.share(rank_, all_.size);
    each_element(share, at, call_.warps - 1 - warp_, [&](std::uint64_t byte) {
      std::uint64_t const first = share.first + at + byte;
      float sum = 0;
      for (int source = 0; source < all_.size; ++source) {
        if (is_copy(call_.which) && source != rank_) {
          continue;
        }
        float next = 0;
        std::memcpy(&next, source == rank_ ? call_.data + first : inbox(rank_, step, source) + byte, sizeof next);
        sum = source == 0 || is_copy(call_.which) ? next : sum + next;
      }
      for (int target = 0; target < all_.size; ++target) {
        bool const gets = target == rank_ ? !is_copy(call_.which) && (call_.which != collective::reduce || rank_ == call_.root)
                                          : has_rank(call_.targets, target);
        if (gets) {
          std::memcpy((target == rank_ ? call_.data : shared_.data[static_cast<std::size_t>(target)]) + first, &sum,
                      sizeof sum);
        }
      }
    });
  }
  void mark_pushed(std::uint32_t chunks) { shared_.pushed[warp_].store(chunks, std::memory_order_release); }
  void mark_finished() { shared_.finished.fetch_add(1, std::memory_order_release); }
  [[nodiscard]] bool wait_ready(std::uint32_t value) { return wait(shared_.ready, value); }

  void send_arrivals() {
    each_peer([&](int peer) {
      push_word(all_.of(peer), all_.layout.arrival(channel_, epoch() % 2, rank_),
                static_cast<std::uint64_t>(std::bit_cast<std::uintptr_t>(call_.data)), word_flag(epoch()),
                std::memory_order_release);
    });
  }
  [[nodiscard]] bool wait_pushed(std::uint32_t chunks) {
    bool all = true;
    for (std::uint32_t warp = 0; warp < call_.warps; ++warp) {
      all = all && wait(shared_.pushed[warp], chunks);
    }
    return all;
  }
  [[nodiscard]] bool wait_finished() { return wait(shared_.finished, call_.warps); }
  void send_chunk_flags(std::uint32_t chunks) {
    sleeps_.now_and_then();
    each_peer([&](int peer) {
      all_.of(peer).atom(all_.layout.chunk_flag(channel_, rank_)).store(begin_.chunks + chunks, std::memory_order_release);
    });
  }
  void send_exit_flags() {
    each_peer([&](int peer) {
      if (has_rank(call_.targets, peer)) {
        all_.of(peer).atom(all_.layout.exit_flag(channel_, rank_)).store(epoch(), std::memory_order_release);
      }
    });
  }

  [[nodiscard]] bool await_arrivals() {
    bool heard = true;
    each_peer([&](int peer) {
      seen_word seen{};
      do {
        seen = peek_word(all_.of(rank_), all_.layout.arrival(channel_, epoch() % 2, peer), std::memory_order_acquire);
        heard = heard && go_on();
      } while (heard && !has_word(seen, word_flag(epoch())));
      shared_.data[static_cast<std::size_t>(peer)] = std::bit_cast<std::byte*>(static_cast<std::uintptr_t>(word_of(seen)));
    });
    return heard;
  }
  [[nodiscard]] bool await_chunk_flags(std::uint32_t chunks) {
    bool heard = true;
    each_peer([&](int peer) {
      heard = heard &&
              (!has_rank(call_.contributors, peer) || await(all_.layout.chunk_flag(channel_, peer), begin_.chunks + chunks));
    });
    return heard;
  }
  [[nodiscard]] bool await_exit_flags() {
    bool heard = true;
    each_peer([&](int peer) {
      heard = heard && (!has_rank(call_.targets, rank_) || await(all_.layout.exit_flag(channel_, peer), epoch()));
    });
    return heard;
  }
  void publish_ready(std::uint32_t value) { shared_.ready.store(value, std::memory_order_release); }

 private:
  [[nodiscard]] std::uint64_t epoch() const { return begin_.epoch + 1; }
  [[nodiscard]] std::uint64_t chunk_at(std::uint32_t step) const {
    return (std::uint64_t{step} * call_.blocks + channel_) * call_.chunk_bytes;
  }
  [[nodiscard]] std::byte* inbox(int owner, std::uint32_t step, int of) {
    return all_.of(owner).slot(all_.layout.slot(owner, channel_, begin_.chunks + step, of));
  }
  template <class F>
  void each_peer(F const& f) {
    for (int i = 1; i < all_.size; ++i) {
      f((rank_ + i) % all_.size);
    }
  }
  /// Those of one warp, of the chunk that begins `at` bytes into a share. A warp need not combine what it has sent itself.
  template <class F>
  void each_element(direct_call::range share, std::uint64_t at, std::uint32_t warp, F const& f) const {
    std::uint64_t const end = at < share.count ? (std::min)(share.count - at, std::uint64_t{call_.chunk_bytes}) : 0;
    for (std::uint64_t byte = warp * sizeof(float); byte < end; byte += call_.warps * sizeof(float)) {
      f(byte);
    }
  }
  [[nodiscard]] bool go_on() const {
    std::this_thread::yield();
    return !all_.stopped;
  }
  [[nodiscard]] bool wait(std::atomic<std::uint32_t> const& counter, std::uint32_t value) const {
    while (counter.load(std::memory_order_acquire) < value) {
      if (!go_on()) {
        return false;
      }
    }
    return true;
  }
  [[nodiscard]] bool await(std::uint64_t at, std::uint64_t value) const {
    while (all_.of(rank_).atom(at).load(std::memory_order_acquire) < value) {
      if (!go_on()) {
        return false;
      }
    }
    return true;
  }

  world& all_;
  int rank_;
  direct_call const& call_;
  std::uint32_t channel_;
  std::uint32_t warp_;
  record begin_;
  block_shared& shared_;
  jitter sleeps_;
};

/// One kernel of one rank; returns when it has ended.
void run_kernel(world& all, int rank, direct_call const& call, std::mt19937_64& random) {
  std::vector<std::thread> threads;
  std::vector<std::unique_ptr<block_shared>> shared;
  for (std::uint32_t channel = 0; channel < call.blocks; ++channel) {
    if (call.algorithm == direct_algorithm::words) {
      threads.emplace_back([&all, rank, &call, channel, seed = random()] { run_packets(all, rank, call, channel, seed); });
      continue;
    }
    block_shared& its = *shared.emplace_back(std::make_unique<block_shared>());
    record& own = all.records[static_cast<std::size_t>(rank)][channel];
    for (std::uint32_t warp = 0; warp < call.warps + 2; ++warp) {
      model_block block{all, rank, call, channel, warp, own, its, random()};
      if (warp < call.warps) {
        threads.emplace_back([block]() mutable { move_data(block); });
      } else if (warp == call.warps) {
        threads.emplace_back([block]() mutable { tell_peers(block); });
      } else {
        threads.emplace_back([block, &own]() mutable {
          if (hear_peers(block)) {
            own = {own.epoch + 1, own.chunks + block.steps()};
          }
        });
      }
    }
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

/// What a rank puts into its data: sums of these depend on their order.
float value_of(std::size_t i, int rank, int round) {
  auto const bits = static_cast<std::uint32_t>((i + 1) * 2654435761U ^ static_cast<std::uint32_t>(rank * 40503 + round * 9973));
  return std::ldexp(static_cast<float>(static_cast<std::int32_t>(bits)) * 0x1p-31F, static_cast<int>(bits % 9));
}

/// "" when rank holds what it must.
std::string problem_of(std::vector<float> const& data, request const& wanted, int rank, int size, int round) {
  auto const ranks = static_cast<std::size_t>(size);
  for (std::size_t i = 0; i < data.size(); ++i) {
    std::size_t owner = 0;
    while (i >= lockstep::plan::part(data.size(), owner, ranks).end()) {
      ++owner;
    }
    float sum = value_of(i, 0, round);
    for (int r = 1; r < size; ++r) {
      sum = sum + value_of(i, r, round);
    }
    float expected = sum;
    switch (wanted.which) {
      case collective::all_reduce: break;
      case collective::reduce: expected = wanted.root == rank_id{rank} ? sum : value_of(i, rank, round); break;
      case collective::broadcast: expected = value_of(i, number(wanted.root), round); break;
      case collective::reduce_scatter: expected = owner == static_cast<std::size_t>(rank) ? sum : data[i]; break;
      case collective::all_gather: expected = value_of(i, static_cast<int>(owner), round); break;
    }
    if (std::bit_cast<std::uint32_t>(data[i]) != std::bit_cast<std::uint32_t>(expected)) {
      return to_string(wanted) + ", round " + std::to_string(round) + ", rank " + std::to_string(rank) + ", element " +
             std::to_string(i);
    }
  }
  return {};
}

lockstep::direct_tuning small_tuning(unsigned depth) {
  lockstep::direct_tuning t;
  t.words_up_to_bytes = 2000;
  t.lines_up_to_bytes = 0;
  t.one_shot_up_to_bytes = 6000;
  t.packet_warps = 2;
  t.packet_rounds = 4;
  t.words_blocks = 3;
  t.lines_blocks = 1;
  t.bulk_warps = 2;
  t.bulk_blocks = 2;
  t.chunk_bytes = 512;
  t.least_chunk_bytes = 512;
  t.depth = depth;
  return t;
}

/// Collectives one behind the other: no rank waits for another but within them.
void run_rounds(int size, unsigned depth, int rounds, std::uint64_t seed) {
  world all{size, small_tuning(depth)};
  std::vector<std::string> problems(static_cast<std::size_t>(size));
  std::vector<std::thread> ranks;
  std::array<std::atomic<int>, 2> chosen{};  // by algorithm
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      std::mt19937_64 random{seed};  // the same on every rank
      std::mt19937_64 own{seed + 1 + static_cast<std::uint64_t>(rank)};
      for (int round = 0; round < rounds; ++round) {
        constexpr std::array counts{1, 3, 100, 400, 700, 1500, 3000};
        auto const count = static_cast<std::size_t>(counts[random() % counts.size()]) + random() % 40;
        std::vector<float> data(count);
        for (std::size_t i = 0; i < count; ++i) {
          data[i] = value_of(i, rank, round);
        }
        request wanted;
        wanted.which = random() % 2 == 0 ? collective::all_reduce : static_cast<collective>(random() % 5);
        wanted.data = {data.data(), count, element_type::f32};
        wanted.root = rank_id{static_cast<int>(random() % static_cast<unsigned>(size))};
        if (wanted.which != collective::reduce && wanted.which != collective::broadcast) {
          wanted.root = rank_id{0};
        }
        direct_call const call = make_call(wanted, size, all.tuning, all.layout);
        ++chosen[call.algorithm == direct_algorithm::bulk ? 1 : 0];
        run_kernel(all, rank, call, own);
        std::string const problem = problem_of(data, wanted, rank, size, round);
        if (problems[static_cast<std::size_t>(rank)].empty()) {
          problems[static_cast<std::size_t>(rank)] = problem;
        }
      }
    });
  }
  for (std::thread& thread : ranks) {
    thread.join();
  }
  for (std::string const& problem : problems) {
    CHECK(problem == "");
  }
  CHECK(chosen[0] > 0);
  CHECK(chosen[1] > 0);
}

}  // namespace

TEST_CASE("direct, the protocol: collectives one behind the other give the sums in rank order, for 2 to 8 ranks") {
  std::uint64_t const seed = tests::seed();
  INFO("LOCKSTEP_TEST_SEED=" << seed);
  for (int size = 2; size <= 8; ++size) {
    CAPTURE(size);
    run_rounds(size, 4, 240 / size, seed + static_cast<std::uint64_t>(size));
  }
}

TEST_CASE("direct, the protocol: inboxes of any depth are enough") {
  std::uint64_t const seed = tests::seed();
  INFO("LOCKSTEP_TEST_SEED=" << seed);
  for (unsigned const depth : {2U, 4U, 8U}) {
    CAPTURE(depth);
    run_rounds(3, depth, 60, seed + depth);
  }
}

TEST_CASE("direct, the protocol: ranks that wait for one that never arrives end when they give up") {
  for (collective const which : {collective::all_reduce, collective::reduce, collective::broadcast, collective::reduce_scatter,
                                 collective::all_gather}) {
    for (std::size_t const count : {std::size_t{64}, std::size_t{3000}}) {
      constexpr int size = 4;
      world all{size, small_tuning(4)};
      std::vector<std::thread> ranks;
      std::atomic<int> ended{0};
      for (int rank = 0; rank + 1 < size; ++rank) {
        ranks.emplace_back([&, rank] {
          std::mt19937_64 random{1};
          std::vector<float> data(count);
          request wanted;
          wanted.which = which;
          wanted.data = {data.data(), count, element_type::f32};
          direct_call const call = make_call(wanted, size, all.tuning, all.layout);
          run_kernel(all, rank, call, random);
          ++ended;
        });
      }
      std::this_thread::sleep_for(std::chrono::milliseconds{20});
      CHECK(ended == 0);
      all.stopped = true;
      for (std::thread& thread : ranks) {
        thread.join();
      }
      CHECK(ended == size - 1);
      for (int rank = 0; rank + 1 < size; ++rank) {
        CHECK(all.records[static_cast<std::size_t>(rank)][0].epoch == 0);
      }
    }
  }
}

TEST_CASE("direct, the plan: windows have room for every call, and calls agree over ranks") {
  std::uint64_t const seed = tests::seed();
  INFO("LOCKSTEP_TEST_SEED=" << seed);
  std::mt19937_64 random{seed};
  for (int i = 0; i < 20'000; ++i) {
    int const size = 2 + static_cast<int>(random() % 15);
    lockstep::direct_tuning t = random() % 2 == 0 ? lockstep::direct_tuning{} : small_tuning(2U << random() % 3);
    REQUIRE(in_range(t));
    auto const blocks = static_cast<unsigned>(1 + random() % 300);
    direct_layout const layout = make_layout(t, size, blocks);
    request wanted;
    wanted.which = static_cast<collective>(random() % 5);
    constexpr std::array types{element_type::f32, element_type::u8, element_type::f64, element_type::bf16};
    std::uint64_t const bits = random() % 31;
    wanted.data = {&t, 1 + random() % (std::uint64_t{1} << bits), types[random() % types.size()]};
    wanted.root = rank_id{static_cast<int>(random() % static_cast<unsigned>(size))};
    direct_call const call = make_call(wanted, size, t, layout);
    CAPTURE(to_string(wanted));
    CAPTURE(size);
    std::uint64_t owned = 0;
    std::uint64_t longest = 0;
    for (int rank = 0; rank < size; ++rank) {
      direct_call::range const share = call.share(rank, size);
      REQUIRE(share.first + share.count <= call.bytes);
      owned += share.count;
      longest = (std::max)(longest, share.count);
    }
    REQUIRE(owned == call.bytes * (call.scatter || call.rooted ? 1 : static_cast<unsigned>(size)));
    REQUIRE(call.blocks > 0);
    REQUIRE(call.blocks <= blocks);
    REQUIRE(call.warps > 0);
    if (call.algorithm == direct_algorithm::bulk) {
      REQUIRE(call.chunk_bytes <= t.chunk_bytes);
      REQUIRE(call.chunk_bytes % 512 == 0);
      REQUIRE(call.blocks <= layout.bulk_blocks);
      std::uint64_t steps = 0;
      for (std::uint32_t channel = 0; channel < call.blocks; ++channel) {
        REQUIRE(call.steps(channel) > 0);
        steps += call.steps(channel);
      }
      REQUIRE(steps * call.chunk_bytes >= longest);
      REQUIRE((steps - 1) * call.chunk_bytes < longest);
    } else {
      bool const words = call.algorithm == direct_algorithm::words;
      std::uint64_t const packets = std::uint64_t{call.blocks} * call.warps * call.rounds;
      REQUIRE(packets * (words ? words_payload : lines_payload) >= longest);
      REQUIRE(call.blocks <= (words ? layout.words_blocks : layout.lines_blocks));
      REQUIRE(512 * call.warps * call.rounds <= layout.packet_slot_bytes);
      // Every block has something to send, so that all hear from it.
      REQUIRE(std::uint64_t{call.blocks - 1} * call.warps * (words ? words_payload : lines_payload) < longest);
    }
    int const last = size - 1;
    REQUIRE(layout.words(last, layout.words_blocks - 1, 1, last - 1) + layout.packet_slot_bytes <= layout.lines_at);
    REQUIRE(layout.lines(last, layout.lines_blocks - 1, 1, last - 1) + layout.packet_slot_bytes <= layout.bulk_at);
    REQUIRE(layout.slot(last, layout.bulk_blocks - 1, t.depth - 1, last - 1) + layout.chunk_slot_bytes <= layout.bytes);
    REQUIRE(layout.slot(0, 0, 0, 1) == layout.bulk_at);
    REQUIRE(layout.arrival(layout.channels - 1, 1, most_peers - 1) + 16 <= layout.words_at);
  }
}
