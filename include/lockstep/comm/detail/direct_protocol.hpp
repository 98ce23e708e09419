// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/comm/detail/direct_plan.hpp>
#include <lockstep/core/host_device.hpp>

#include <cstdint>

#if defined(__CUDACC__)
#define LOCKSTEP_DIRECT_UNCHECKED _Pragma("nv_exec_check_disable")  // what is called there may be of the device alone
#else
#define LOCKSTEP_DIRECT_UNCHECKED
#endif
#if defined(__CUDA_ARCH__)
#define LOCKSTEP_DIRECT_ROLLED _Pragma("unroll 1")  // a loop that runs once between two ranks: short code is sooner there
#else
#define LOCKSTEP_DIRECT_ROLLED
#endif

/// Who sends what to whom, and waits for what, in the collectives over peer memory: one source for kernels, and for a model of
/// them on the host in which threads stand for warps. What touches memory is a member of the argument.
///
/// The invariant. On every channel, a rank that begins its collective number e has seen that all ranks began e - 1; so they
/// have done e - 2, for a rank begins one after the other. Each collective sees to it that no rank ends it before it has heard
/// from every other on every channel that it uses. Therefore
/// - an inbox for packets, and one for an arrival, is free again after two collectives: there are two of each, used in turn;
/// - a flag that counts up may be overwritten by a later number, since the reader asks for "at least".
namespace lockstep::comm_detail {

/// One result of a lane: its own piece and those of all others, in the order of the ranks. Returns false when it gave up.
LOCKSTEP_DIRECT_UNCHECKED
template <class Lane, class Arithmetic>
LOCKSTEP_HOST_DEVICE bool combine_pieces(Lane& lane, std::uint32_t round, Arithmetic const& arithmetic,
                                         typename Lane::piece const& own, typename Lane::piece& result) {
  int const me = lane.rank();
  int const size = lane.size();
  typename Arithmetic::template wide<Lane::piece_words> sum{};
  if (size == 2) {
    typename Lane::entry entries[1] = {lane.peek(1 - me, round)};
    while (!lane.agree(lane.is_complete(entries[0]))) {
      if (!lane.go_on(entries, 1 - me)) {
        return false;
      }
      entries[0] = lane.peek(1 - me, round);
    }
    typename Lane::piece const other = lane.open(entries[0], 1 - me, round);
    arithmetic.begin(sum, me == 0 ? own.words : other.words);
    arithmetic.add(sum, me == 0 ? other.words : own.words);
    arithmetic.end(sum, result.words);
    return true;
  }
  constexpr int batch = 4;  // loads in flight
  LOCKSTEP_DIRECT_ROLLED
  for (int first = 0; first < size; first += batch) {
    typename Lane::entry entries[batch];
    for (bool complete = false; !complete;) {
      complete = true;
      for (int i = 0; i < batch; ++i) {
        if (first + i < size && first + i != me) {
          entries[i] = lane.peek(first + i, round);
          complete = lane.is_complete(entries[i]) && complete;
        }
      }
      complete = lane.agree(complete);
      if (!complete && !lane.go_on(entries, first)) {
        return false;
      }
    }
    for (int i = 0; i < batch; ++i) {
      if (first + i < size) {
        typename Lane::piece const next = first + i == me ? own : lane.open(entries[i], first + i, round);
        if (first + i == 0) {
          arithmetic.begin(sum, next.words);
        } else {
          arithmetic.add(sum, next.words);
        }
      }
    }
  }
  arithmetic.end(sum, result.words);
  return true;
}

/// Sends and receives one lane's pieces of a collective that reduces, by words or lines. All lanes of a warp call it together.
/// Returns false when it gave up.
///
/// A piece is sent with its flag, so it needs neither barrier nor fence. The sum begins with rank 0's element and goes on in
/// the order of the ranks.
LOCKSTEP_DIRECT_UNCHECKED
template <class Lane, class Arithmetic>
LOCKSTEP_HOST_DEVICE bool reduce_packets(Lane& lane, direct_call const& call, Arithmetic const& arithmetic) {
  int const me = lane.rank();
  int const size = lane.size();
  typename Lane::piece first{};  // loaded before it is known how to send it
  if (!call.scatter) {
    first = lane.load(0, lane.packet(0) * Lane::payload, call.bytes);
  }
  lane.begin();
  LOCKSTEP_DIRECT_ROLLED
  for (std::uint32_t round = 0; round < call.rounds; ++round) {
    std::uint32_t const at = lane.packet(round) * Lane::payload;
    if (!call.scatter && at < call.bytes) {  // the same for all who combine it
      typename Lane::piece const own = round == 0 ? first : lane.load(0, at, call.bytes);
      LOCKSTEP_DIRECT_ROLLED
      for (int i = 1; i < size; ++i) {
        int const peer = me + i < size ? me + i : me + i - size;
        if (!call.rooted || peer == call.root) {
          lane.push(peer, round, own);
        }
      }
    }
    LOCKSTEP_DIRECT_ROLLED
    for (int i = 1; call.scatter && i < size; ++i) {
      int const peer = me + i < size ? me + i : me + i - size;
      direct_call::range const share = call.share(peer, size);
      if (at < share.count) {
        lane.push(peer, round, lane.load(share.first, at, share.count));
      }
    }
  }
  lane.send_arrivals();
  direct_call::range const mine = call.share(me, size);
  LOCKSTEP_DIRECT_ROLLED
  for (std::uint32_t round = 0; round < call.rounds; ++round) {
    std::uint32_t const at = lane.packet(round) * Lane::payload;
    if (at >= mine.count) {
      break;
    }
    typename Lane::piece const own = round == 0 && !call.scatter ? first : lane.load(mine.first, at, mine.count);
    typename Lane::piece result;
    if (!combine_pieces(lane, round, arithmetic, own, result)) {
      return false;
    }
    lane.store(mine.first, at, mine.count, result);
  }
  return lane.await_arrivals();
}

/// The same for a collective that copies each rank's share to all others.
LOCKSTEP_DIRECT_UNCHECKED
template <class Lane>
LOCKSTEP_HOST_DEVICE bool copy_packets(Lane& lane, direct_call const& call) {
  int const me = lane.rank();
  int const size = lane.size();
  direct_call::range const mine = call.share(me, size);
  typename Lane::piece const first = lane.load(mine.first, lane.packet(0) * Lane::payload, mine.count);
  lane.begin();
  LOCKSTEP_DIRECT_ROLLED
  for (std::uint32_t round = 0; round < call.rounds; ++round) {
    std::uint32_t const at = lane.packet(round) * Lane::payload;
    if (at < mine.count) {
      typename Lane::piece const own = round == 0 ? first : lane.load(mine.first, at, mine.count);
      LOCKSTEP_DIRECT_ROLLED
      for (int i = 1; i < size; ++i) {
        lane.push(me + i < size ? me + i : me + i - size, round, own);
      }
    }
  }
  lane.send_arrivals();
  LOCKSTEP_DIRECT_ROLLED
  for (std::uint32_t round = 0; round < call.rounds; ++round) {
    std::uint32_t const at = lane.packet(round) * Lane::payload;
    LOCKSTEP_DIRECT_ROLLED
    for (int source = 0; source < size; ++source) {
      direct_call::range const share = call.share(source, size);
      if (source == me || at >= share.count) {
        continue;
      }
      typename Lane::entry entries[1] = {lane.peek(source, round)};
      while (!lane.agree(lane.is_complete(entries[0]))) {
        if (!lane.go_on(entries, source)) {
          return false;
        }
        entries[0] = lane.peek(source, round);
      }
      lane.store(share.first, at, share.count, lane.open(entries[0], source, round));
    }
  }
  return lane.await_arrivals();
}

// ---- chunks --------------------------------------------------------------------------------------------------------------
//
// A block has three roles that run side by side: warps that move data, a warp that tells the peers, and a warp that hears from
// them. In step i a block sends chunk i of every peer's share to that peer, and then combines chunk i - lag of its own, whose
// result it writes straight to all that need it. Chunks of all collectives of a channel are numbered on, and chunk k lies in
// slot k % depth of an inbox.
//
// No credits are needed. A rank sends chunk i after it combined chunk i - 1 - lag, so after every peer sent that one, so after
// every peer combined chunk i - 2 - 2 * lag: slots of chunks up to that are free, and depth = 2 * lag + 2. A collective ends
// when all its chunks are combined, so the next begins with more of them free than it needs.
//
// Results may be written to a peer's data without asking: it has sent the chunk that they replace. So has this rank, all of its
// warps, before a chunk counts as ready.

/// What the warps that move data do.
LOCKSTEP_DIRECT_UNCHECKED
template <class Block>
LOCKSTEP_HOST_DEVICE void move_data(Block& block) {
  std::uint32_t const steps = block.steps();
  std::uint32_t const lag = block.lag();
  if (block.sends_into_data() && !block.wait_ready(1)) {
    return;
  }
  for (std::uint32_t step = 0; step < steps + lag; ++step) {
    if (step < steps && block.contributes()) {
      block.push(step);
      block.mark_pushed(step + 1);
    }
    if (step >= lag) {
      if (!block.wait_ready(step - lag + 2)) {
        return;
      }
      block.combine(step - lag);
    }
  }
  block.mark_finished();
}

/// What the warp that tells the peers does.
LOCKSTEP_DIRECT_UNCHECKED
template <class Block>
LOCKSTEP_HOST_DEVICE void tell_peers(Block& block) {
  block.send_arrivals();
  if (block.contributes()) {
    for (std::uint32_t step = 0; step < block.steps(); ++step) {
      if (!block.wait_pushed(step + 1)) {
        return;
      }
      block.send_chunk_flags(step + 1);
    }
  }
  if (block.has_targets()) {
    if (!block.wait_finished()) {
      return;
    }
    block.send_exit_flags();
  }
}

/// What the warp that hears from the peers does. Returns false when it gave up.
LOCKSTEP_DIRECT_UNCHECKED
template <class Block>
LOCKSTEP_HOST_DEVICE bool hear_peers(Block& block) {
  if (!block.await_arrivals()) {
    return false;
  }
  block.publish_ready(1);
  for (std::uint32_t step = 0; step < block.steps(); ++step) {
    if (!block.await_chunk_flags(step + 1)) {
      return false;
    }
    // A warp may combine in place what another of its block has not sent yet.
    if (block.contributes() && !block.wait_pushed(step + 1)) {
      return false;
    }
    block.publish_ready(step + 2);
  }
  return block.await_exit_flags();
}

}  // namespace lockstep::comm_detail
