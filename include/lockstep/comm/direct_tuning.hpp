// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace lockstep {

/// How the transport `direct` chooses among its algorithms, and what it takes of a GPU. Speed and memory only, never results.
///
/// An algorithm is chosen by the bytes that one rank would send if every element travelled once: with N ranks and a collective
/// of B bytes, B * (N - 1) for all_reduce and broadcast, B for reduce, B * (N - 1) / N for reduce_scatter and all_gather.
///
/// | algorithm | up to | bytes of data that a rank sends in an all_reduce | hops | beside the data |
/// | --- | --- | --- | --- | --- |
/// | words | words_up_to_bytes | B * (N - 1) | 1 | a flag of 4 bytes to every 4 |
/// | lines | lines_up_to_bytes | B * (N - 1) | 1 | a flag of 8 bytes to every 120 |
/// | one shot | one_shot_up_to_bytes | B * (N - 1) | 1 | a flag to every chunk |
/// | two shots | | 2 * B * (N - 1) / N | 2 | a flag to every chunk |
///
/// The inboxes take, on each device, and for each of its N - 1 peers:
/// 1 KiB * packet_warps * packet_rounds * (words_blocks + lines_blocks) + bulk_blocks * depth * (chunk_bytes + 128).
struct direct_tuning {
  std::size_t words_up_to_bytes = std::size_t{48} << 10;
  /// Lines travel between GPUs that are linked by NVLink only.
  std::size_t lines_up_to_bytes = std::size_t{2} << 20;
  std::size_t one_shot_up_to_bytes = std::size_t{8} << 20;

  /// Words and lines: warps of a block (1 to 16), packets that a warp may send in one collective, and blocks.
  unsigned packet_warps = 16;
  unsigned packet_rounds = 2;
  unsigned words_blocks = 64;
  unsigned lines_blocks = 256;

  /// Chunks: warps that move data in a block (1 to 16; two more send and await flags), blocks, bytes of a chunk (a multiple of
  /// 512), and chunks in an inbox for each block (2, 4 or 8). A block is depth / 2 - 1 chunks ahead of what it combines.
  unsigned bulk_warps = 16;
  unsigned bulk_blocks = 264;
  std::size_t chunk_bytes = std::size_t{32} << 10;
  std::size_t least_chunk_bytes = std::size_t{8} << 10;
  unsigned depth = 4;

  /// The most blocks of any launch, below what the GPU holds at once.
  unsigned max_blocks = 264;

  /// Launch small collectives before the kernel in front of them has ended (programmatic dependent launch).
  bool programmatic_launch = false;

  /// A pair of GPUs that is slower at the checked start is refused.
  double least_gigabytes_per_second = 2;
};

/// Whether every value lies within its documented range.
[[nodiscard]] constexpr bool in_range(direct_tuning const& t) noexcept {
  auto const within = [](std::size_t value, std::size_t low, std::size_t high) { return low <= value && value <= high; };
  return within(t.packet_warps, 1, 16) && within(t.packet_rounds, 1, 64) && within(t.words_blocks, 1, 1024) &&
         within(t.lines_blocks, 1, 1024) && within(t.bulk_warps, 1, 16) && within(t.bulk_blocks, 1, 1024) &&
         within(t.chunk_bytes, 512, std::size_t{16} << 20) && t.chunk_bytes % 512 == 0 &&
         within(t.least_chunk_bytes, 512, t.chunk_bytes) && (t.depth == 2 || t.depth == 4 || t.depth == 8) &&
         within(t.max_blocks, 1, 1024) && t.least_gigabytes_per_second >= 0;
}

}  // namespace lockstep
