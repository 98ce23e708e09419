// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// The elementwise update on one GPU, by optimizer and by the types of values and gradients, as a part of the bandwidth that a
// copy reaches: 8 layers of 4096 x 4096, and a perceptron of 784-128-10.

#include "../timing.cuh"

#include <lockstep/backend/cuda.cuh>
#include <lockstep/backend/cuda_update.cuh>
#include <lockstep/concepts.hpp>
#include <lockstep/core/element_type.hpp>
#include <lockstep/core/memory.hpp>
#include <lockstep/core/update.hpp>
#include <lockstep/optim/adamw.hpp>
#include <lockstep/optim/sgd.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using lockstep::element_type;

std::vector<std::size_t> const large(8, std::size_t{4096} * 4096);
std::vector<std::size_t> const perceptron{784 * 128, 128, 128 * 10, 10};

/// Numbers in [-1, 1), or [0, 1), of no pattern that matters; or 0.
template <class T>
__global__ void fill(T* to, std::size_t count, float low, float width) {
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    auto const mixed = static_cast<std::uint32_t>(i * 0x9e3779b97f4a7c15U >> 40U);
    to[i] = T(low + width * static_cast<float>(mixed) * 0x1p-24F);
  }
}

/// What an update is of.
struct shape {
  std::vector<std::size_t> counts;  // each a parameter, and a bucket
  element_type value_type = element_type::f32;
  element_type gradient_type = element_type::f32;
  bool misaligned = false;  // gradients begin one element behind where they should
  bool zero = false;        // gradients and slots are 0, as where units are dead
};

/// Parameters of that shape, and the update of them.
template <class Optimizer>
class problem {
 public:
  static constexpr std::size_t slots = lockstep::slot_count<Optimizer>;

  problem(lockstep::cuda::device& device, shape const& of) : device_(device), shape_(of) {
    std::vector<lockstep::update_segment<slots>> segments;
    for (std::size_t i = 0; i < of.counts.size(); ++i) {
      lockstep::update_segment<slots>& s = segments.emplace_back();
      s.count = of.counts[i];
      s.value_type = of.value_type;
      s.gradient_type = of.gradient_type;
      s.parameter = s.bucket = i;
      s.value = make(of.value_type, s.count, -1);
      s.gradient = static_cast<std::byte*>(make(of.gradient_type, s.count + 1, of.zero ? 0 : -1, of.zero)) +
                   (of.misaligned ? lockstep::size_of(of.gradient_type) : 0);
      s.master = of.value_type != element_type::f32 ? static_cast<float*>(make(element_type::f32, s.count, -1)) : nullptr;
      for (std::size_t slot = 0; slot != slots; ++slot) {
        s.slots[slot] = static_cast<float*>(make(element_type::f32, s.count, 0, of.zero));
      }
      elements_ += s.count;
    }
    applied_ = device.allocate(sizeof(std::uint64_t), lockstep::memory_use::other);
    decision_ = device.allocate(sizeof(lockstep::step_decision), lockstep::memory_use::other);
    std::uint64_t const applied = 100;
    lockstep::step_decision const decision{};
    lockstep::cuda::copy(device.stream(), applied_.data(), &applied, sizeof applied);
    lockstep::cuda::copy(device.stream(), decision_.data(), &decision, sizeof decision);
    device.stream().synchronize();
    update_.emplace(device, std::move(segments));
    Optimizer const optimizer{.learning_rate = 1e-6F};
    update_->set(device.stream(), {&optimizer, 1});
    prepare();
  }

  void prepare() { update_->prepare(device_.stream(), applied_.as<std::uint64_t>()); }
  void run(lockstep::plan::range buckets) {
    update_->run(device_.stream(), buckets, decision_.as<lockstep::step_decision>(), nullptr);
  }
  void run_all() { run({0, shape_.counts.size()}); }
  void run_bucket_by_bucket() {
    for (std::size_t bucket = 0; bucket < shape_.counts.size(); ++bucket) {
      run({bucket, 1});
    }
  }

  [[nodiscard]] std::size_t elements() const { return elements_; }
  /// Weight and slots are read and written, the gradient is read, a 16-bit value is written.
  [[nodiscard]] std::size_t bytes() const {
    bool const narrow = shape_.value_type != element_type::f32;
    return elements_ * (8 + 8 * slots + lockstep::size_of(shape_.gradient_type) + (narrow ? 2 : 0));
  }

 private:
  void* make(element_type type, std::size_t count, float low, bool zero = false) {
    memory_.push_back(device_.allocate(count * lockstep::size_of(type), lockstep::memory_use::other));
    void* const made = memory_.back().data();
    float const width = zero ? 0 : 1 - low;
    cudaStream_t const stream = device_.stream().get();
    if (type == element_type::f32) {
      fill<<<1024, 256, 0, stream>>>(static_cast<float*>(made), count, low, width);
    } else {
      fill<<<1024, 256, 0, stream>>>(static_cast<lockstep::bfloat16*>(made), count, low, width);
    }
    lockstep::check(cudaGetLastError());
    return made;
  }

  lockstep::cuda::device& device_;
  shape shape_;
  std::size_t elements_ = 0;
  std::vector<lockstep::cuda::buffer> memory_;
  lockstep::cuda::buffer applied_;
  lockstep::cuda::buffer decision_;
  std::optional<lockstep::elementwise_update<lockstep::cuda, Optimizer>> update_;
};

template <class Optimizer, class Enqueue>
bench::row measure(lockstep::cuda::device& device, std::string const& name, shape const& of, Enqueue enqueue, int calls = 1) {
  problem<Optimizer> them{device, of};
  return {name, them.elements(), them.bytes(),
          bench::measure(
              device.stream(), [&] { enqueue(them); }, calls)};
}

std::vector<bench::row> measure_updates(lockstep::cuda::device& device) {
  using lockstep::adamw;
  using lockstep::sgd;
  constexpr element_type bf16 = element_type::bf16;
  auto const all = [](auto& them) { them.run_all(); };
  auto const buckets = [](auto& them) { them.run_bucket_by_bucket(); };
  auto const step = [](auto& them) {
    them.prepare();
    them.run_all();
  };
  std::vector<bench::row> rows;
  rows.push_back(measure<adamw>(device, "adamw, f32", {large}, all));
  rows.push_back(measure<adamw>(device, "adamw, f32, a launch for each 64 MiB", {large}, buckets));
  rows.push_back(measure<adamw>(device, "adamw, f32, gradients misaligned", {.counts = large, .misaligned = true}, all));
  rows.push_back(measure<adamw>(device, "adamw, f32, gradients and moments 0", {.counts = large, .zero = true}, all));
  rows.push_back(measure<adamw>(device, "adamw, bf16 values, f32 gradients", {large, bf16}, all));
  rows.push_back(measure<adamw>(device, "adamw, bf16 values and gradients", {large, bf16, bf16}, all));
  rows.push_back(measure<sgd>(device, "sgd with momentum, f32", {large}, all));
  rows.push_back(measure<adamw>(device, "adamw, f32, 784-128-10", {perceptron}, all, 100));
  rows.push_back(measure<adamw>(device, "adamw, f32, 784-128-10, prepared each time", {perceptron}, step, 100));
  return rows;
}

int run(std::string const& out, std::string const& commit) {
  if (lockstep::cuda::device_count() == 0) {
    std::printf("skipped: needs GPUs: 1, found: 0\n");
    return 77;
  }
  lockstep::cuda::device device;
  std::vector<bench::row> rows = bench::measure_copies(device, std::size_t{28} * 8 * 4096 * 4096);
  double const best_copy = (std::max)(rows[0].bandwidth(), rows[1].bandwidth());
  for (bench::row& r : measure_updates(device)) {
    rows.push_back(std::move(r));
  }
  bench::print(rows, best_copy);
  if (!out.empty()) {
    bench::write_json(out, "elementwise update on one GPU", commit, rows, best_copy);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::string out;
  std::string commit;
  for (int i = 1; i < argc; ++i) {
    std::string_view const option = argv[i];
    if ((option != "--out" && option != "--commit") || i + 1 == argc) {
      std::fprintf(stderr,
                   "Usage: update_bench [--out FILE] [--commit NAME]\n\n"
                   "Prints a table; with --out also writes it as JSON, with the name of the commit that was built.\n");
      return 2;
    }
    (option == "--out" ? out : commit) = argv[++i];
  }
  try {
    return run(out, commit);
  } catch (std::exception const& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
