// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/backend/cuda.cuh>
#include <lockstep/backend/elementwise.hpp>
#include <lockstep/concepts.hpp>
#include <lockstep/core/update.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep {

namespace cuda_detail {

/// A few thousand elements of one segment: what one block updates.
template <std::size_t Slots>
struct update_chunk {
  update_segment<Slots> segment;  // cut to the chunk
};

inline constexpr int update_threads = 256;
inline constexpr std::size_t update_elements = 2048;  // a chunk, at most

/// Element i of a segment. V and G are the types of value and gradient.
template <class V, class G, class Optimizer, std::size_t... S>
__device__ void update_element(update_segment<sizeof...(S)> const& s, std::size_t i, float factor, Optimizer const& optimizer,
                               prepared_type<Optimizer> const& prepared, std::index_sequence<S...>) {
  auto* const value = static_cast<V*>(s.value);
  float const gradient = static_cast<float>(static_cast<G const*>(s.gradient)[i]) * factor;
  if constexpr (std::is_same_v<V, float>) {
    value[i] = elementwise::call(optimizer, prepared, value[i], gradient, s.slots[S][i]...);
  } else {
    s.master[i] = elementwise::call(optimizer, prepared, s.master[i], gradient, s.slots[S][i]...);
    value[i] = V(s.master[i]);
  }
}

/// One block a chunk. `used` is null, or says for each parameter whether it takes part.
template <class V, class G, class Optimizer>
__global__ void update(update_chunk<slot_count<Optimizer>> const* chunks, cuda::weight factor, Optimizer const optimizer,
                       prepared_type<Optimizer> const prepared, std::uint8_t const* used) {
  update_segment<slot_count<Optimizer>> const segment = chunks[blockIdx.x].segment;
  if (used != nullptr && used[segment.parameter] == 0) {
    return;
  }
  for (std::size_t i = threadIdx.x; i < segment.count; i += blockDim.x) {
    update_element<V, G>(segment, i, factor, optimizer, prepared, std::make_index_sequence<slot_count<Optimizer>>{});
  }
}

template <class V, std::size_t Slots>
__global__ void load_masters(update_chunk<Slots> const* chunks) {
  update_segment<Slots> const segment = chunks[blockIdx.x].segment;
  for (std::size_t i = threadIdx.x; i < segment.count; i += blockDim.x) {
    segment.master[i] = static_cast<float>(static_cast<V const*>(segment.value)[i]);
  }
}

}  // namespace cuda_detail

/// One launch for each group and pair of element types.
template <elementwise_optimizer Optimizer>
class elementwise_update<cuda, Optimizer> {
 public:
  static constexpr std::size_t slots = slot_count<Optimizer>;
  using segment = update_segment<slots>;
  using chunk = cuda_detail::update_chunk<slots>;

  /// Synchronizes: the host waits until the list of chunks is on the device.
  elementwise_update(cuda::device& device, std::vector<segment> segments) {
    auto const kind = [](segment const& s) { return std::tuple{s.group, s.value_type, s.gradient_type}; };
    std::stable_sort(segments.begin(), segments.end(), [&](segment const& a, segment const& b) { return kind(a) < kind(b); });
    std::vector<chunk> chunks;
    std::size_t parameters = 0;
    for (std::size_t i = 0; i < segments.size(); ++i) {
      if (i == 0 || kind(segments[i]) != kind(segments[i - 1])) {
        launches_.push_back({segments[i].group, segments[i].value_type, segments[i].gradient_type, chunks.size(), 0});
      }
      cut(segments[i], chunks);
      launches_.back().chunks = chunks.size() - launches_.back().first;
      parameters = (std::max)(parameters, segments[i].parameter + 1);
    }
    chunks_ = device.allocate(chunks.size() * sizeof(chunk), memory_use::staging);
    used_ = device.allocate(parameters, memory_use::staging);
    cuda::copy(device.stream(), chunks_.data(), chunks.data(), chunks.size() * sizeof(chunk));
    device.stream().synchronize();
  }

  void load_masters(cuda::stream_ref stream) const {
    for (launch const& l : launches_) {
      if (l.chunks != 0 && l.value_type != element_type::f32) {
        elementwise::visit(l.value_type, [&]<class V>(std::type_identity<V>) {
          cuda_detail::load_masters<V, slots>
              <<<static_cast<unsigned>(l.chunks), cuda_detail::update_threads, 0, stream.get()>>>(chunks_.as<chunk>() +
                                                                                                  l.first);
        });
        check(cudaGetLastError());
      }
    }
  }

  void run(cuda::stream_ref stream, std::span<Optimizer const> optimizers, std::uint64_t step, float factor,
           std::span<std::uint8_t const> used) const {
    if (!used.empty()) {
      cuda::copy(stream, used_.data(), used.data(), (std::min)(used.size(), used_.bytes()));
    }
    for (launch const& l : launches_) {
      if (l.chunks != 0) {
        Optimizer const& optimizer = optimizers[optimizers.size() == 1 ? 0 : l.group];
        update_info const info = info_for(optimizer, step, l.group);
        elementwise::visit(l.value_type, [&]<class V>(std::type_identity<V>) {
          elementwise::visit(l.gradient_type, [&]<class G>(std::type_identity<G>) {
            cuda_detail::update<V, G><<<static_cast<unsigned>(l.chunks), cuda_detail::update_threads, 0, stream.get()>>>(
                chunks_.as<chunk>() + l.first, cuda::weight{factor}, optimizer, elementwise::prepare(optimizer, info),
                used.empty() ? nullptr : used_.as<std::uint8_t>());
          });
        });
        check(cudaGetLastError());
      }
    }
  }

 private:
  struct launch {
    std::uint8_t group;
    element_type value_type;
    element_type gradient_type;
    std::size_t first;
    std::size_t chunks;
  };

  static void cut(segment const& whole, std::vector<chunk>& chunks) {
    for (std::size_t first = 0; first < whole.count; first += cuda_detail::update_elements) {
      segment part = whole;
      part.value = static_cast<std::byte*>(whole.value) + first * size_of(whole.value_type);
      part.gradient = static_cast<std::byte const*>(whole.gradient) + first * size_of(whole.gradient_type);
      part.master = whole.master != nullptr ? whole.master + first : nullptr;
      for (std::size_t slot = 0; slot < slots; ++slot) {
        part.slots[slot] += first;
      }
      part.count = (std::min)(whole.count - first, cuda_detail::update_elements);
      chunks.push_back({part});
    }
  }

  cuda::buffer chunks_;
  cuda::buffer used_;
  std::vector<launch> launches_;
};

}  // namespace lockstep
