// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// The time of an all-reduce of f32 over all GPUs, from 1 KiB to 1 GiB: through the communicators `direct` and `nccl`, and by
// ncclAllReduce on communicators of our own making, each called and replayed from a CUDA graph. A thread a GPU. Prints one line
// of JSON for each. With --ranks-on-one, `direct` alone, between ranks that share GPU 0: to see what waits for what, no claim.

#include "../../tests/support/one_gpu.cuh"
#include "../line.hpp"
#include "../timing.hpp"

#include <lockstep/comm/direct.cuh>
#include <lockstep/comm/nccl.cuh>
#include <lockstep/core/work_queue.hpp>
#include <lockstep/lockstep.cuh>

#include <cuda_runtime.h>
#include <nccl.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using lockstep::check;

struct settings {
  double seconds = 20;
  int gpus = 0;
  int ranks_on_one = 0;
  std::size_t least_bytes = std::size_t{1} << 10;
  std::size_t most_bytes = std::size_t{1} << 30;
  std::size_t factor = 4;
  bool rivals = true;
  lockstep::direct_tuning tuning;
};

constexpr std::size_t in_one_graph = 10;  // a graph of one would measure the launch of graphs

struct destroy_graph {
  void operator()(cudaGraphExec_t graph) const noexcept { static_cast<void>(cudaGraphExecDestroy(graph)); }
};
using unique_graph = std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, destroy_graph>;

struct destroy_communicator {
  void operator()(ncclComm_t communicator) const noexcept { static_cast<void>(ncclCommDestroy(communicator)); }
};
using unique_communicator = std::unique_ptr<std::remove_pointer_t<ncclComm_t>, destroy_communicator>;

/// Enqueues one all-reduce of the first `count` elements.
using all_reduce = std::function<void(float* data, std::size_t count, cudaStream_t stream)>;

/// One GPU, in a thread of its own.
class rank {
 public:
  rank(int device, std::size_t bytes) : device_(device) {
    call([this, bytes] {
      check(cudaSetDevice(device_));
      void* memory = nullptr;
      check(cudaMalloc(&memory, bytes));
      data_.reset(memory);
      check(cudaMemset(memory, 1, bytes));  // small numbers, that grow with every sum
      stream_ = std::make_unique<lockstep::cuda::stream>(lockstep::device_id{device_});
      check(cudaDeviceSynchronize());
    });
  }
  ~rank() {
    thread_.enqueue([this] {
      stream_.reset();
      data_.reset();
    });
  }

  void enqueue(std::function<void()> work) { thread_.enqueue(std::move(work)); }
  void wait() { thread_.wait(); }

  void run(all_reduce const& one, std::size_t count, std::size_t times) {
    for (std::size_t i = 0; i < times; ++i) {
      one(data(), count, stream());
    }
    check(cudaStreamSynchronize(stream()));
  }

  unique_graph capture(all_reduce const& one, std::size_t count, std::size_t times) {
    check(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal));
    for (std::size_t i = 0; i < times; ++i) {
      one(data(), count, stream());
    }
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream(), &graph));
    cudaGraphExec_t made = nullptr;
    cudaError_t const status = cudaGraphInstantiate(&made, graph, 0);
    check(cudaGraphDestroy(graph));
    check(status);
    unique_graph result{made};
    check(cudaGraphUpload(made, stream()));
    check(cudaStreamSynchronize(stream()));
    return result;
  }

  void replay(unique_graph const& many, unique_graph const& one, std::size_t times) {
    for (std::size_t i = 0; i < times / in_one_graph; ++i) {
      check(cudaGraphLaunch(many.get(), stream()));
    }
    for (std::size_t i = 0; i < times % in_one_graph; ++i) {
      check(cudaGraphLaunch(one.get(), stream()));
    }
    check(cudaStreamSynchronize(stream()));
  }

 private:
  void call(std::function<void()> work) {
    thread_.enqueue(std::move(work));
    thread_.wait();
  }
  [[nodiscard]] float* data() const { return static_cast<float*>(data_.get()); }
  [[nodiscard]] cudaStream_t stream() const { return stream_->ref().get(); }

  int device_;
  std::unique_ptr<void, lockstep::cuda::give_back> data_;
  std::unique_ptr<lockstep::cuda::stream> stream_;
  lockstep::work_queue thread_;  // last: it runs what uses the rest
};

using ranks = std::vector<std::unique_ptr<rank>>;

/// `work(rank, its number)` on all ranks at once; returns when all are done.
template <class Work>
void on_all(ranks& all, Work work) {
  for (std::size_t r = 0; r < all.size(); ++r) {
    all[r]->enqueue([&work, &all, r] { work(*all[r], r); });
  }
  std::exception_ptr failure;
  for (auto const& one : all) {
    try {
      one->wait();
    } catch (...) {  // the others use what the caller owns: none may be left behind
      failure = std::current_exception();
    }
  }
  if (failure != nullptr) {
    std::rethrow_exception(failure);
  }
}

/// One way to reduce: what each rank calls, and its graphs for the size at hand.
struct way {
  char const* mode = nullptr;
  std::vector<all_reduce> calls;
  std::vector<std::array<unique_graph, 2>> graphs;
};

void measure(ranks& all, std::vector<way>& ways, std::size_t bytes, double seconds) {
  std::size_t const count = bytes / sizeof(float);
  std::vector<bench::block> blocks;
  for (way& one : ways) {
    one.graphs.resize(all.size());
    on_all(all, [&](rank& self, std::size_t r) { self.run(one.calls[r], count, 1); });  // loads and connects
    on_all(all, [&](rank& self, std::size_t r) {
      one.graphs[r] = {self.capture(one.calls[r], count, in_one_graph), self.capture(one.calls[r], count, 1)};
    });
    blocks.emplace_back([&all, &one, count](std::size_t times) {
      on_all(all, [&](rank& self, std::size_t r) { self.run(one.calls[r], count, times); });
    });
    blocks.emplace_back([&all, &one](std::size_t times) {
      on_all(all, [&](rank& self, std::size_t r) { self.replay(one.graphs[r][0], one.graphs[r][1], times); });
    });
  }
  std::vector<bench::timing> const timed = bench::time_in_turn(blocks, seconds);
  for (std::size_t i = 0; i < timed.size(); ++i) {
    bench::line line;
    line.add("work", "all-reduce").add("mode", ways[i / 2].mode).add("gpus", all.size());
    line.add("settings", bench::line{}.add("captured", i % 2 == 1)).add("bytes", bytes);
    line.add("median_ms", timed[i].median_ms).add("spread", timed[i].spread).add("iterations", timed[i].steps);
    line.print();
  }
  for (way& one : ways) {  // before the communicators that they hold
    on_all(all, [&](rank&, std::size_t r) { one.graphs[r] = {}; });
  }
}

template <class Communicator>
way way_of(char const* mode, std::vector<Communicator>& communicators) {
  way made;
  made.mode = mode;
  for (Communicator& one : communicators) {
    made.calls.emplace_back([&one](float* data, std::size_t count, cudaStream_t stream) {
      one.all_reduce({data, count, lockstep::element_type::f32}, lockstep::reduction::sum, stream);
    });
  }
  return made;
}

void measure_sizes(ranks& all, std::vector<way>& ways, settings const& chosen) {
  std::size_t sizes = 0;
  for (std::size_t bytes = chosen.least_bytes; bytes <= chosen.most_bytes; bytes *= chosen.factor) {
    ++sizes;
  }
  for (std::size_t bytes = chosen.least_bytes; bytes <= chosen.most_bytes; bytes *= chosen.factor) {
    measure(all, ways, bytes, chosen.seconds / static_cast<double>(sizes));
  }
}

std::vector<lockstep::device_id> first_devices(int count) {
  std::vector<lockstep::device_id> ids;
  for (int device = 0; device < count; ++device) {
    ids.push_back(lockstep::device_id{device});
  }
  return ids;
}

void measure_on_one(settings const& chosen) {
  support::settle();
  ranks all;
  for (int r = 0; r < chosen.ranks_on_one; ++r) {
    all.push_back(std::make_unique<rank>(0, chosen.most_bytes));
  }
  auto communicators =
      lockstep::basic_direct_communicator<support::one_gpu>::create(first_devices(chosen.ranks_on_one), {}, chosen.tuning);
  std::vector<way> ways;
  ways.push_back(way_of("direct, sharing a GPU", communicators));
  measure_sizes(all, ways, chosen);
}

void measure_all(settings const& chosen) {
  std::vector<lockstep::device_id> const ids = first_devices(chosen.gpus);
  ranks all;
  for (int device = 0; device < chosen.gpus; ++device) {
    all.push_back(std::make_unique<rank>(device, chosen.most_bytes));
  }
  auto direct = lockstep::direct_communicator::create(ids, {}, chosen.tuning);
  std::vector<way> ways;
  ways.push_back(way_of("direct", direct));
  if (!chosen.rivals) {
    measure_sizes(all, ways, chosen);
    return;
  }
  auto ours = lockstep::communicator_for<lockstep::nccl, lockstep::cuda>::create(ids, {});
  std::vector<ncclComm_t> handles(ids.size());
  check(ncclCommInitAll(handles.data(), chosen.gpus, nullptr));
  std::vector<unique_communicator> by_hand;
  for (ncclComm_t const handle : handles) {
    by_hand.emplace_back(handle);
  }
  ways.push_back(way_of("nccl", ours));
  ways.emplace_back().mode = "by hand";
  for (ncclComm_t const handle : handles) {
    ways.back().calls.emplace_back([handle](float* data, std::size_t count, cudaStream_t stream) {
      check(ncclAllReduce(data, data, count, ncclFloat32, ncclSum, handle, stream));
    });
  }
  measure_sizes(all, ways, chosen);
  // Each in its rank's thread, all at once, for they may say goodbye to each other.
  std::vector<std::unique_ptr<lockstep::nccl_communicator>> ending;
  for (auto& one : ours) {
    ending.push_back(std::make_unique<lockstep::nccl_communicator>(std::move(one)));
  }
  on_all(all, [&](rank&, std::size_t r) {
    ending[r].reset();
    by_hand[r].reset();
  });
}

/// "name=value", of direct_tuning.
bool set(lockstep::direct_tuning& tuning, std::string const& text) {
  std::size_t const equal = text.find('=');
  if (equal == std::string::npos) {
    return false;
  }
  std::string const name = text.substr(0, equal);
  double const value = std::stod(text.substr(equal + 1));
  auto const to = [&](char const* known, auto& member) {
    if (name == known) {
      member = static_cast<std::remove_reference_t<decltype(member)>>(value);
    }
    return name == known;
  };
  return to("words_up_to_bytes", tuning.words_up_to_bytes) || to("lines_up_to_bytes", tuning.lines_up_to_bytes) ||
         to("one_shot_up_to_bytes", tuning.one_shot_up_to_bytes) || to("packet_warps", tuning.packet_warps) ||
         to("packet_rounds", tuning.packet_rounds) || to("words_blocks", tuning.words_blocks) ||
         to("lines_blocks", tuning.lines_blocks) || to("bulk_warps", tuning.bulk_warps) ||
         to("bulk_blocks", tuning.bulk_blocks) || to("chunk_bytes", tuning.chunk_bytes) ||
         to("least_chunk_bytes", tuning.least_chunk_bytes) || to("depth", tuning.depth) ||
         to("max_blocks", tuning.max_blocks) || to("programmatic_launch", tuning.programmatic_launch);
}

}  // namespace

int main(int count, char** arguments) try {
  settings chosen;
  chosen.gpus = lockstep::cuda::device_count();
  for (int i = 1; i < count; i += 2) {
    std::string const option = arguments[i];
    std::string const value = i + 1 < count ? arguments[i + 1] : "";
    if (!value.empty() && option == "--seconds") {
      chosen.seconds = std::stod(value);
    } else if (!value.empty() && option == "--gpus") {
      chosen.gpus = (std::min)(chosen.gpus, std::stoi(value));
    } else if (!value.empty() && option == "--ranks-on-one") {
      chosen.ranks_on_one = std::stoi(value);
    } else if (!value.empty() && option == "--least-bytes") {
      chosen.least_bytes = std::stoull(value);
    } else if (!value.empty() && option == "--most-bytes") {
      chosen.most_bytes = std::stoull(value);
    } else if (!value.empty() && option == "--factor") {
      chosen.factor = (std::max)(std::stoull(value), 2ULL);
    } else if (!value.empty() && option == "--rivals") {
      chosen.rivals = value != "no";
    } else if (value.empty() || option != "--set" || !set(chosen.tuning, value)) {
      std::fprintf(stderr,
                   "Usage: all_reduce_bench [--gpus N] [--seconds S] [--least-bytes B] [--most-bytes B] [--factor F]\n"
                   "                        [--rivals no] [--ranks-on-one N] [--set NAME=VALUE]...   (of direct_tuning)\n");
      return 2;
    }
  }
  if (chosen.ranks_on_one > 0 && chosen.gpus > 0) {
    measure_on_one(chosen);
    return 0;
  }
  if (chosen.gpus < 2) {
    std::printf("skipped: needs 2 GPUs, found %d\n", chosen.gpus);
    return 77;
  }
  measure_all(chosen);
  return 0;
} catch (std::exception const& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
