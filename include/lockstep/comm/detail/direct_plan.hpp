// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/comm/detail/request.hpp>
#include <lockstep/comm/direct_tuning.hpp>
#include <lockstep/concepts.hpp>
#include <lockstep/core/element_type.hpp>
#include <lockstep/core/host_device.hpp>
#include <lockstep/plan/split.hpp>

#include <cstddef>
#include <cstdint>

/// Where things lie in the memory that peers reach, and how a collective is cut: the same numbers on every rank, from the same
/// arguments. Nothing here needs a GPU.
namespace lockstep::comm_detail {

inline constexpr int most_peers = 16;  // ranks of one group

/// Each rank owns one window, of this layout. A *channel* is what blocks of one number, one a rank, share: they talk to each
/// other only. Everything in a channel counts up, and nothing is reset.
struct direct_layout {
  /// Of one channel. `of` is the sender of what lies there.
  static constexpr std::size_t header_bytes = 256;
  static constexpr std::size_t channel_bytes = 1024;

  std::uint32_t channels = 0;
  std::uint32_t words_blocks = 0;
  std::uint32_t lines_blocks = 0;
  std::uint32_t bulk_blocks = 0;
  std::uint32_t packet_slot_bytes = 0;
  std::uint32_t chunk_slot_bytes = 0;
  std::uint32_t depth = 0;          // a power of 2
  std::uint32_t words_between = 0;  // from one sender's inboxes to those of the next
  std::uint32_t lines_between = 0;
  std::uint64_t slots_between = 0;
  std::uint64_t words_at = 0;
  std::uint64_t lines_at = 0;
  std::uint64_t bulk_at = 0;
  std::uint64_t bytes = 0;

  /// In the header: how many meetings this rank has had, and which one `of` has come to last.
  [[nodiscard]] LOCKSTEP_HOST_DEVICE static constexpr std::uint64_t meetings() noexcept { return 64; }
  [[nodiscard]] LOCKSTEP_HOST_DEVICE static constexpr std::uint64_t meeting_flag(int of) noexcept {
    return 128 + 8U * static_cast<unsigned>(of);
  }
  /// {collectives begun and done, chunks of all of them}: read and written by the owner alone.
  [[nodiscard]] LOCKSTEP_HOST_DEVICE constexpr std::uint64_t record(std::uint32_t channel) const noexcept {
    return header_bytes + channel_bytes * channel;
  }
  /// How many chunks `of` has put into this rank's inbox; beside it those of the other ranks.
  [[nodiscard]] LOCKSTEP_HOST_DEVICE constexpr std::uint64_t chunk_flag(std::uint32_t channel, int of) const noexcept {
    return record(channel) + 128 + 8U * static_cast<unsigned>(of);
  }
  /// The last collective in which `of` has written all that it had to write to this rank's data.
  [[nodiscard]] LOCKSTEP_HOST_DEVICE constexpr std::uint64_t exit_flag(std::uint32_t channel, int of) const noexcept {
    return record(channel) + 256 + 8U * static_cast<unsigned>(of);
  }
  /// Where the data of `of` lies, as one word of the words format: in front of even and of odd collectives.
  [[nodiscard]] LOCKSTEP_HOST_DEVICE constexpr std::uint64_t arrival(std::uint32_t channel, unsigned parity,
                                                                     int of) const noexcept {
    return record(channel) + 384 + 256U * parity + 16U * static_cast<unsigned>(of);
  }
  /// Inboxes for packets.
  [[nodiscard]] LOCKSTEP_HOST_DEVICE constexpr std::uint64_t words(int owner, std::uint32_t channel, unsigned parity,
                                                                   int of) const noexcept {
    return words_at + place(owner, of) * words_between + packet_slot(channel, parity);
  }
  [[nodiscard]] LOCKSTEP_HOST_DEVICE constexpr std::uint64_t lines(int owner, std::uint32_t channel, unsigned parity,
                                                                   int of) const noexcept {
    return lines_at + place(owner, of) * lines_between + packet_slot(channel, parity);
  }
  /// The inbox for chunk number `chunk` of a channel.
  [[nodiscard]] LOCKSTEP_HOST_DEVICE constexpr std::uint64_t slot(int owner, std::uint32_t channel, std::uint64_t chunk,
                                                                  int of) const noexcept {
    return bulk_at + place(owner, of) * slots_between +
           std::uint64_t{channel * depth + (static_cast<std::uint32_t>(chunk) & (depth - 1))} * chunk_slot_bytes;
  }

 private:
  [[nodiscard]] LOCKSTEP_HOST_DEVICE constexpr std::uint64_t packet_slot(std::uint32_t channel,
                                                                         unsigned parity) const noexcept {
    return std::uint64_t{channel * 2 + parity} * packet_slot_bytes;
  }
  /// A rank has no inbox for itself.
  [[nodiscard]] LOCKSTEP_HOST_DEVICE static constexpr std::uint64_t place(int owner, int of) noexcept {
    return static_cast<std::uint32_t>(of < owner ? of : of - 1);
  }
};

/// `blocks` is what every GPU of the group holds at once of any kernel.
[[nodiscard]] constexpr direct_layout make_layout(direct_tuning const& t, int size, unsigned blocks) noexcept {
  auto const most = [&](unsigned wanted) { return wanted < blocks ? wanted : blocks; };
  direct_layout made;
  made.words_blocks = most(t.words_blocks);
  made.lines_blocks = most(t.lines_blocks);
  made.bulk_blocks = most(t.bulk_blocks);
  made.channels = made.words_blocks > made.lines_blocks ? made.words_blocks : made.lines_blocks;
  made.channels = made.channels > made.bulk_blocks ? made.channels : made.bulk_blocks;
  made.packet_slot_bytes = 512 * t.packet_warps * t.packet_rounds;
  made.chunk_slot_bytes = static_cast<std::uint32_t>(t.chunk_bytes) + 128;
  made.depth = t.depth;
  auto const peers = static_cast<std::uint64_t>(size - 1);
  made.words_at = (direct_layout::header_bytes + direct_layout::channel_bytes * made.channels + 1023) / 1024 * 1024;
  made.words_between = made.words_blocks * 2 * made.packet_slot_bytes;
  made.lines_between = made.lines_blocks * 2 * made.packet_slot_bytes;
  made.slots_between = std::uint64_t{made.bulk_blocks} * made.depth * made.chunk_slot_bytes;
  made.lines_at = made.words_at + peers * made.words_between;
  made.bulk_at = made.lines_at + peers * made.lines_between;
  made.bytes = made.bulk_at + peers * made.slots_between;
  return made;
}

enum class direct_algorithm : std::uint8_t { words, lines, bulk };

/// Data that a warp sends in one packet.
inline constexpr std::uint32_t words_payload = 256;
inline constexpr std::uint32_t lines_payload = 480;

/// A collective as its kernel sees it. All lengths in bytes.
struct direct_call {
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t equal = 0;         // of every part but the last
  std::uint32_t contributors = 0;  // a bit a rank: who sends something to the owners of the shares
  std::uint32_t targets = 0;       // to whom owners send what became of their shares, beside keeping it
  std::uint32_t chunk_bytes = 0;
  std::uint32_t whole_steps = 0;  // chunks of the longest share for each block,
  std::uint32_t more_steps = 0;   // and blocks that have one more
  std::uint32_t blocks = 0;
  std::uint32_t warps = 0;   // that move data, of each block
  std::uint32_t rounds = 0;  // packets of each warp
  std::int32_t root = 0;
  collective which = collective::all_reduce;
  reduction how = reduction::sum;
  element_type type = element_type::u8;
  std::uint8_t element_bytes = 1;
  direct_algorithm algorithm = direct_algorithm::words;
  bool scatter = false;  // every rank owns its part; otherwise all, or the root alone
  bool rooted = false;
  bool meets = false;  // ranks that get no data from each other exchange arrivals

  struct range {
    std::uint64_t first;
    std::uint64_t count;
  };
  /// What a rank owns: what it combines, or what it gives to the others.
  [[nodiscard]] LOCKSTEP_HOST_DEVICE constexpr range share(int rank, int size) const noexcept {
    if (scatter) {
      std::uint64_t const first = static_cast<std::uint64_t>(rank) * equal;
      return {first, rank + 1 == size ? bytes - first : equal};
    }
    return {0, rooted && rank != root ? 0 : bytes};
  }
  [[nodiscard]] LOCKSTEP_HOST_DEVICE constexpr std::uint32_t steps(std::uint32_t channel) const noexcept {
    return whole_steps + (channel < more_steps ? 1 : 0);
  }
};

/// Whether a set of ranks, a bit each, has one.
[[nodiscard]] LOCKSTEP_HOST_DEVICE constexpr bool has_rank(std::uint32_t set, int rank) noexcept {
  return ((set >> static_cast<unsigned>(rank)) & 1U) != 0;
}

[[nodiscard]] constexpr bool is_copy(collective which) noexcept {
  return which == collective::broadcast || which == collective::all_gather;
}

/// Bytes of data that a rank sends if every element travels once.
[[nodiscard]] constexpr std::uint64_t one_hop_bytes(collective which, std::uint64_t bytes, int size) noexcept {
  auto const ranks = static_cast<std::uint64_t>(size);
  switch (which) {
    case collective::all_reduce:
    case collective::broadcast: return bytes * (ranks - 1);
    case collective::reduce: return bytes;
    case collective::reduce_scatter:
    case collective::all_gather: break;
  }
  return bytes * (ranks - 1) / ranks;
}

/// How a collective of `wanted.data.count` > 0 elements is done by `size` > 1 ranks.
[[nodiscard]] constexpr direct_call make_call(request const& wanted, int size, direct_tuning const& t,
                                              direct_layout const& layout) noexcept {
  direct_call call;
  call.data = static_cast<std::byte*>(wanted.data.data);
  call.bytes = wanted.data.bytes();
  call.equal = plan::part(wanted.data.count, 0, static_cast<std::size_t>(size)).count * size_of(wanted.data.type);
  call.which = wanted.which;
  call.how = wanted.how;
  call.type = wanted.data.type;
  call.element_bytes = static_cast<std::uint8_t>(size_of(wanted.data.type));
  call.root = number(wanted.root);
  call.scatter = wanted.which == collective::reduce_scatter || wanted.which == collective::all_gather;
  call.rooted = wanted.which == collective::reduce || wanted.which == collective::broadcast;
  call.meets = wanted.which != collective::all_reduce;

  std::uint64_t const sent = one_hop_bytes(wanted.which, call.bytes, size);
  auto const longest = [&] {  // the last part
    return call.scatter ? call.bytes - static_cast<std::uint64_t>(size - 1) * call.equal : call.bytes;
  };
  auto const in_packets = [&](std::uint64_t up_to, std::uint32_t payload, std::uint32_t most) {
    std::uint64_t const packets = (longest() + payload - 1) / payload;
    if (sent > up_to || packets > std::uint64_t{most} * t.packet_warps * t.packet_rounds) {
      return false;
    }
    // Few warps a block, so that many multiprocessors send; no more blocks than have a packet each.
    auto const pieces = [](std::uint64_t all, std::uint64_t each) { return (all + each - 1) / each; };
    std::uint64_t const least_warps = t.packet_warps < 4 ? t.packet_warps : 4;
    std::uint64_t const blocks = pieces(packets, least_warps);
    std::uint64_t const warps = pieces(packets, blocks < most ? blocks : most);
    call.warps = static_cast<std::uint32_t>(warps < t.packet_warps ? warps : t.packet_warps);
    std::uint64_t const needed = pieces(packets, call.warps);
    call.blocks = static_cast<std::uint32_t>(needed < most ? needed : most);
    call.rounds = static_cast<std::uint32_t>(pieces(packets, std::uint64_t{call.blocks} * call.warps));
    return true;
  };
  if (in_packets(t.words_up_to_bytes, words_payload, layout.words_blocks)) {
    call.algorithm = direct_algorithm::words;
    return call;
  }
  if (in_packets(t.lines_up_to_bytes, lines_payload, layout.lines_blocks)) {
    call.algorithm = direct_algorithm::lines;
    return call;
  }
  call.algorithm = direct_algorithm::bulk;
  call.scatter = wanted.which != collective::all_reduce || sent > t.one_shot_up_to_bytes;
  call.warps = t.bulk_warps;
  // Four chunks a block or more, as equal as they can be.
  auto const rounded = [](std::uint64_t bytes) { return (bytes + 511) / 512 * 512; };
  std::uint64_t const a_block = (longest() + layout.bulk_blocks - 1) / layout.bulk_blocks;
  std::uint64_t steps = (a_block + t.chunk_bytes - 1) / t.chunk_bytes;
  steps = steps < 4 ? 4 : steps;
  std::uint64_t chunk = rounded((a_block + steps - 1) / steps);
  chunk = chunk < t.least_chunk_bytes ? rounded(t.least_chunk_bytes) : chunk;
  call.chunk_bytes = static_cast<std::uint32_t>(chunk < t.chunk_bytes ? chunk : t.chunk_bytes);
  std::uint64_t const chunks = (longest() + call.chunk_bytes - 1) / call.chunk_bytes;
  call.blocks = chunks < layout.bulk_blocks ? static_cast<std::uint32_t>(chunks) : layout.bulk_blocks;
  call.whole_steps = static_cast<std::uint32_t>(chunks / call.blocks);
  call.more_steps = static_cast<std::uint32_t>(chunks % call.blocks);
  std::uint32_t const all = (std::uint32_t{1} << static_cast<unsigned>(size)) - 1;
  std::uint32_t const root = std::uint32_t{1} << static_cast<unsigned>(call.root);
  switch (call.which) {
    case collective::all_reduce:
      call.contributors = all;
      call.targets = call.scatter ? all : 0;
      break;
    case collective::reduce:
      call.contributors = all;
      call.targets = root;
      break;
    case collective::reduce_scatter: call.contributors = all; break;
    case collective::broadcast:
      call.contributors = root;
      call.targets = all & ~root;
      break;
    case collective::all_gather: call.targets = all; break;
  }
  return call;
}

/// The flag that stands beside every word in collective number `epoch` >= 1 of a channel. Never 0, and none that another
/// collective of the same parity has left there, for 2^32 collectives.
[[nodiscard]] LOCKSTEP_HOST_DEVICE constexpr std::uint32_t word_flag(std::uint64_t epoch) noexcept {
  auto const low = static_cast<std::uint32_t>(epoch);
  return low != 0 ? low : 0xffffffffU;
}

}  // namespace lockstep::comm_detail
