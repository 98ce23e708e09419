// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/backend/cuda.cuh>
#include <lockstep/core/batch.hpp>
#include <lockstep/core/memory.hpp>
#include <lockstep/data/table.hpp>
#include <lockstep/plan/split.hpp>

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

namespace examples {

namespace device_table_kernels {

inline constexpr std::size_t rows_a_launch = 960;  // 3,840 bytes of kernel arguments, of the 4 KiB that every GPU takes

struct row_list {
  std::uint32_t row[rows_a_launch];
};

/// Copies the listed rows of {..., width} values and of labels, one block a row.
template <class = void>
__global__ void gather(row_list const list, float const* values, std::int32_t const* labels, std::size_t width,
                       float* values_to, std::int32_t* labels_to) {
  std::size_t const row = list.row[blockIdx.x];
  for (std::size_t i = threadIdx.x; i < width; i += blockDim.x) {
    values_to[blockIdx.x * width + i] = values[row * width + i];
  }
  if (threadIdx.x == 0) {
    labels_to[blockIdx.x] = labels[row];
  }
}

}  // namespace device_table_kernels

/// A data set for lockstep::loader that lies whole on each of several GPUs, which gather their shards of a batch themselves.
/// A batch is one shard a device, in memory that the next batch takes again: every step sees the same addresses.
///
/// Gathering is enqueued on the streams that train, behind the step before, so the loader must not gather ahead in a thread of
/// its own: give it `.prefetch = 0`.
class device_table {
 public:
  using shard = std::tuple<lockstep::sample_view<float const>, lockstep::sample_view<std::int32_t const>>;
  using batch = std::vector<shard>;
  struct storage {};

  /// Copies the table to each device, for batches of up to `most` rows. The devices must outlive it. Throws out_of_memory.
  /// Synchronizes: returns when the copies are there.
  device_table(lockstep::table<float, int> const& all, std::vector<lockstep::cuda::device*> const& devices, std::size_t most)
      : rows_(all.rows()), width_(std::get<0>(all.view()).width()) {
    for (std::size_t rank = 0; rank < devices.size(); ++rank) {
      std::size_t const largest = lockstep::plan::split(most, devices.size(), rank).count;
      lockstep::cuda::device& device = *devices[rank];
      lockstep::cuda::device_guard const current = device.activate();
      auto const allocate = [&](std::size_t bytes) { return device.allocate(bytes, lockstep::memory_use::other); };
      place made{&device, allocate(rows_ * width_ * sizeof(float)), allocate(rows_ * sizeof(std::int32_t)),
                 allocate(largest * width_ * sizeof(float)), allocate(largest * sizeof(std::int32_t))};
      lockstep::cuda::copy(device.stream(), made.values.data(), all.values<0>().data(), made.values.bytes());
      lockstep::cuda::copy(device.stream(), made.labels.data(), all.values<1>().data(), made.labels.bytes());
      device.stream().synchronize();
      places_.push_back(std::move(made));
    }
  }

  [[nodiscard]] std::size_t rows() const noexcept { return rows_; }

  /// Requires: `rows` are below rows(), and not more than announced.
  batch gather(std::span<std::size_t const> rows, storage&) const {
    batch shards;
    for (std::size_t rank = 0; rank < places_.size(); ++rank) {
      lockstep::plan::range const mine = lockstep::plan::split(rows.size(), places_.size(), rank);
      gather(places_[rank], rows.subspan(mine.first, mine.count));
      shards.push_back({{places_[rank].values_to.as<float>(), mine.count, width_},
                        {places_[rank].labels_to.as<std::int32_t>(), mine.count, 1}});
    }
    return shards;
  }

 private:
  struct place {
    lockstep::cuda::device* device;
    lockstep::cuda::buffer values, labels;        // all
    lockstep::cuda::buffer values_to, labels_to;  // of a shard
  };

  void gather(place const& p, std::span<std::size_t const> rows) const {
    lockstep::cuda::device_guard const current = p.device->activate();
    for (std::size_t done = 0; done < rows.size(); done += device_table_kernels::rows_a_launch) {
      std::span<std::size_t const> const part =
          rows.subspan(done, (std::min)(rows.size() - done, device_table_kernels::rows_a_launch));
      device_table_kernels::row_list list;
      std::transform(part.begin(), part.end(), list.row, [](std::size_t row) { return static_cast<std::uint32_t>(row); });
      device_table_kernels::gather<><<<static_cast<unsigned>(part.size()), 128, 0, p.device->stream().get()>>>(
          list, p.values.as<float>(), p.labels.as<std::int32_t>(), width_, p.values_to.as<float>() + done * width_,
          p.labels_to.as<std::int32_t>() + done);
      lockstep::check(cudaGetLastError());
    }
  }

  std::size_t rows_;
  std::size_t width_;
  std::vector<place> places_;
};

}  // namespace examples
