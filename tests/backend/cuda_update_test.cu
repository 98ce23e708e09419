// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

#include "update_conformance.hpp"

#include <lockstep/backend/cuda.cuh>
#include <lockstep/backend/cuda_update.cuh>
#include <lockstep/backend/host.hpp>
#include <lockstep/backend/host_update.hpp>

#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

/// What `record` enqueues on a stream, as a graph.
class recorded {
 public:
  template <class Record>
  recorded(lockstep::cuda::stream_ref stream, Record record) {
    lockstep::check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
    record();
    lockstep::check(cudaStreamEndCapture(stream.get(), &graph_));
    lockstep::check(cudaGraphInstantiate(&ready_, graph_, 0));
  }
  recorded(recorded const&) = delete;
  recorded& operator=(recorded const&) = delete;
  ~recorded() {
    static_cast<void>(cudaGraphExecDestroy(ready_));
    static_cast<void>(cudaGraphDestroy(graph_));
  }

  [[nodiscard]] std::size_t launches() const {
    std::size_t count = 0;
    lockstep::check(cudaGraphGetNodes(graph_, nullptr, &count));
    return count;
  }
  void replay(lockstep::cuda::stream_ref stream) const { lockstep::check(cudaGraphLaunch(ready_, stream.get())); }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t ready_ = nullptr;
};

/// Two steps with the optimizer on both backends, from the same numbers; the bytes that they leave must be the same. Factors
/// are powers of two, so that it does not matter whether a compiler rounds behind them.
template <class Optimizer>
void same_bits_as_on_the_host(std::vector<Optimizer> const& optimizers) {
  std::uint64_t const seed = tests::seed();
  INFO("LOCKSTEP_TEST_SEED=", seed);
  tests::generator random{seed};
  std::vector<tests::piece> const pieces = tests::every_pair(random, {1, 3, 130, 1025, 3000});
  lockstep::cuda::device gpu;
  lockstep::host::device cpu;
  tests::updated<lockstep::cuda, Optimizer> on_gpu{gpu, pieces, seed};
  tests::updated<lockstep::host, Optimizer> on_cpu{cpu, pieces, seed};
  lockstep::elementwise_update<lockstep::cuda, Optimizer> update_gpu{gpu, on_gpu.segments()};
  lockstep::elementwise_update<lockstep::host, Optimizer> update_cpu{cpu, on_cpu.segments()};
  std::vector<std::byte> const start = on_cpu.memory();
  REQUIRE((on_gpu.memory() == start));
  update_gpu.set(gpu.stream(), optimizers);
  update_cpu.set(cpu.stream(), optimizers);
  for (std::uint64_t applied = 0; applied < 2; ++applied) {
    lockstep::step_sums const sums = tests::sums_of(8, applied == 0 ? 8 : 2, 2);
    update_gpu.prepare(gpu.stream(), on_gpu.applied(applied));
    update_cpu.prepare(cpu.stream(), on_cpu.applied(applied));
    update_gpu.run(gpu.stream(), {0, 5}, on_gpu.decision(sums), nullptr);
    update_cpu.run(cpu.stream(), {0, 5}, on_cpu.decision(sums), nullptr);
    CHECK((on_gpu.memory() == on_cpu.memory()));
  }
  CHECK((on_cpu.memory() != start));
}

/// Equal numbers get the same bits wherever they lie: replicas may lie at different addresses on different ranks.
template <class Optimizer>
void same_bits_at_every_alignment(Optimizer const& optimizer) {
  std::uint64_t const seed = tests::seed();
  INFO("LOCKSTEP_TEST_SEED=", seed);
  tests::generator random{seed};
  lockstep::cuda::device device;
  std::vector<tests::piece> aligned = tests::every_pair(random, {1, 130, 1025, 5000});
  std::vector<tests::piece> shifted = aligned;
  std::vector<tests::piece> apart = aligned;
  for (std::size_t i = 0; i < aligned.size(); ++i) {
    tests::shift_all(aligned[i], 0);
    tests::shift_all(shifted[i], random.whole(1, 3));
    tests::shift_all(apart[i], 0);
    apart[i].gradient_shift = random.whole(1, 3);
  }
  std::vector<std::vector<float>> first;
  for (std::vector<tests::piece> const& pieces : {aligned, shifted, apart}) {
    tests::updated<lockstep::cuda, Optimizer> them{device, pieces, seed};
    lockstep::elementwise_update<lockstep::cuda, Optimizer> update{device, them.segments()};
    update.set(device.stream(), {&optimizer, 1});
    update.prepare(device.stream(), them.applied(2));
    update.run(device.stream(), {0, 5}, them.decision(tests::sums_of(6, 4, 2)), nullptr);
    std::vector<std::byte> const after = them.memory();
    bool same = true;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      std::vector<float> const numbers = them.numbers(after, i);
      if (first.size() == i) {
        first.push_back(numbers);
      }
      same = same && std::memcmp(numbers.data(), first[i].data(), numbers.size() * sizeof(float)) == 0;
    }
    CHECK(same);
  }
}

}  // namespace

TEST_CASE("cuda update: every optimizer, type, size and alignment gives what the formula says") {
  tests::every_optimizer_updates_as_the_formula_says<lockstep::cuda>();
}

TEST_CASE("cuda update: many elements are updated as the formula says") {
  tests::many_elements_are_updated_as_the_formula_says<lockstep::cuda>();
}

TEST_CASE("cuda update: a range of buckets touches no other") { tests::a_range_of_buckets_touches_no_other<lockstep::cuda>(); }

TEST_CASE("cuda update: what is left out is not touched") { tests::what_is_left_out_is_not_touched<lockstep::cuda>(); }

TEST_CASE("cuda update: hyperparameters hold for what is prepared later") {
  tests::hyperparameters_hold_for_what_is_prepared_later<lockstep::cuda>();
}

TEST_CASE("cuda update: any number of hyperparameters will do") {
  tests::any_number_of_hyperparameters_will_do<lockstep::cuda>();
}

TEST_CASE("cuda update: masters are loaded") { tests::masters_are_loaded<lockstep::cuda>(); }

TEST_CASE("cuda update: nothing to update is fine") { tests::nothing_to_update_is_fine<lockstep::cuda>(); }

TEST_CASE("cuda update: an optimizer that leaves the compiler no choice gives the same bits as on the host") {
  same_bits_as_on_the_host<tests::descent>({{}});
  same_bits_as_on_the_host<tests::summing>({{0.3F}, {0.7F}, {0.1F}});
  same_bits_as_on_the_host<tests::three_slots>({{0.3F}, {0.7F}, {0.1F}});
  same_bits_as_on_the_host<tests::fading>({{0.3F}, {0.7F}, {0.1F}});
}

TEST_CASE("cuda update: equal numbers get the same bits at every alignment") {
  same_bits_at_every_alignment(lockstep::sgd{.learning_rate = 0.1F, .momentum = 0.9F, .weight_decay = 0.01F});
  same_bits_at_every_alignment(lockstep::adam{.learning_rate = 0.1F, .weight_decay = 0.1F});
  same_bits_at_every_alignment(lockstep::adamw{.learning_rate = 0.1F, .weight_decay = 0.1F});
}

TEST_CASE("cuda update: infinities, numbers that are none, and subnormal ones go through as on the host") {
  constexpr std::array types{lockstep::element_type::f32, lockstep::element_type::f16, lockstep::element_type::bf16};
  std::vector<tests::piece> pieces;
  for (lockstep::element_type const value : types) {
    for (lockstep::element_type const gradient : types) {
      pieces.push_back({.count = 64, .value_type = value, .gradient_type = gradient});
    }
  }
  lockstep::cuda::device gpu;
  lockstep::host::device cpu;
  tests::updated<lockstep::cuda, tests::descent> on_gpu{gpu, pieces, 1};
  tests::updated<lockstep::host, tests::descent> on_cpu{cpu, pieces, 1};
  constexpr std::array<std::uint32_t, 8> special{0,           0x80000000U, 0x7f800000U, 0xff800000U,
                                                 0x7fc00000U, 1,           0x80007fffU, 0x00400000U};
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    std::size_t const size = lockstep::size_of(pieces[i].gradient_type);
    for (std::size_t e = 0; e < pieces[i].count; ++e) {
      std::uint32_t const bits = special[e % 8];
      std::uint32_t f32 = bits;
      std::uint16_t narrow = static_cast<std::uint16_t>(bits >> 16U);
      if (pieces[i].gradient_type == lockstep::element_type::f16) {
        constexpr std::array<std::uint16_t, 8> halves{0, 0x8000, 0x7c00, 0xfc00, 0x7e00, 1, 0x83ff, 0x0200};
        narrow = halves[e % 8];
      }
      void const* const from = size == 4 ? static_cast<void const*>(&f32) : &narrow;
      for (void const* to : {on_gpu.segments()[i].gradient, on_cpu.segments()[i].gradient}) {
        lockstep::check(cudaMemcpy(static_cast<std::byte*>(const_cast<void*>(to)) + e * size, from, size, cudaMemcpyDefault));
      }
      float const weight = static_cast<float>(e) * 1000 - 20000;  // some beyond what f16 holds
      for (auto const& segments : {on_gpu.segments(), on_cpu.segments()}) {
        void* const to = segments[i].master != nullptr ? static_cast<void*>(segments[i].master + e)
                                                       : static_cast<float*>(segments[i].value) + e;
        float const put = e >= 32 ? weight * 10 : 0;  // 0: subnormal gradients reach the result
        lockstep::check(cudaMemcpy(to, &put, sizeof put, cudaMemcpyDefault));
      }
    }
  }
  std::vector<tests::descent> const one{{.rate = 1}};
  lockstep::elementwise_update<lockstep::cuda, tests::descent> update_gpu{gpu, on_gpu.segments()};
  lockstep::elementwise_update<lockstep::host, tests::descent> update_cpu{cpu, on_cpu.segments()};
  update_gpu.set(gpu.stream(), one);
  update_cpu.set(cpu.stream(), one);
  update_gpu.prepare(gpu.stream(), on_gpu.applied(0));
  update_cpu.prepare(cpu.stream(), on_cpu.applied(0));
  update_gpu.run(gpu.stream(), {0, 1}, nullptr, nullptr);
  update_cpu.run(cpu.stream(), {0, 1}, nullptr, nullptr);
  std::vector<std::byte> const got = on_gpu.memory();
  std::vector<std::byte> const want = on_cpu.memory();
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    std::vector<float> const a = on_gpu.numbers(got, i);
    std::vector<float> const b = on_cpu.numbers(want, i);
    bool same = true;
    for (std::size_t e = 0; e < a.size(); ++e) {  // which of the numbers that are none does not matter
      bool const none = a[e] != a[e] && b[e] != b[e];
      same = same && (none || std::memcmp(&a[e], &b[e], sizeof(float)) == 0);
    }
    INFO("piece ", i);
    CHECK(same);
  }
}

TEST_CASE(
    "cuda update: recorded once, each replay takes hyperparameters, the decision, uses and the count of steps as they are "
    "then") {
  std::uint64_t const seed = tests::seed();
  INFO("LOCKSTEP_TEST_SEED=", seed);
  tests::generator random{seed};
  lockstep::cuda::device device;
  tests::updated<lockstep::cuda, lockstep::adamw> them{device, tests::every_pair(random, {3, 130, 2049}), seed};
  lockstep::elementwise_update<lockstep::cuda, lockstep::adamw> update{device, them.segments()};
  std::vector<lockstep::adamw> optimizers(3);
  update.set(device.stream(), optimizers);
  std::uint64_t const* const applied = them.applied(0);
  lockstep::step_decision const* const decision = them.decision({});
  std::vector<double> uses(them.pieces().back().parameter + 1, 1);
  double const* const used = them.uses(uses);
  auto const enqueue = [&] {
    update.prepare(device.stream(), applied);
    update.run(device.stream(), {0, 2}, decision, used);
    update.run(device.stream(), {2, 3}, decision, used);
  };
  enqueue();  // loads the kernels
  recorded const step{device.stream(), enqueue};
  std::vector<std::byte> before = them.memory();
  for (std::uint64_t k = 0; k < 5; ++k) {
    for (lockstep::adamw& optimizer : optimizers) {
      optimizer.learning_rate = random.real(0.01F, 0.1F);
    }
    lockstep::step_sums now = tests::sums_of(static_cast<double>(1 + k), 4, 2);
    now.votes = k == 3 ? 1 : 0;
    std::vector<bool> taking_part;
    for (double& count : uses) {
      count = random.chance(0.3) ? 0 : 2;
    }
    for (tests::piece const& p : them.pieces()) {
      taking_part.push_back(k != 3 && uses[p.parameter] != 0);
    }
    static_cast<void>(them.applied(10 * k));
    static_cast<void>(them.decision(now));
    static_cast<void>(them.uses(uses));
    update.set(device.stream(), optimizers);
    step.replay(device.stream());
    std::vector<std::byte> after = them.memory();
    CHECK(them.mistake(before, after, optimizers, 10 * k + 1, now.factor(), taking_part) == "");
    before = std::move(after);
  }
}

TEST_CASE("cuda update: a range of buckets is one launch, and hyperparameters that did not change are none") {
  tests::generator random{1};
  lockstep::cuda::device device;
  tests::updated<lockstep::cuda, lockstep::adamw> them{device, tests::every_pair(random, {130, 2049}), 1};
  lockstep::elementwise_update<lockstep::cuda, lockstep::adamw> update{device, them.segments()};
  std::vector<lockstep::adamw> optimizers(3);
  lockstep::cuda::stream_ref const stream = device.stream();
  update.set(stream, optimizers);
  update.prepare(stream, them.applied(0));
  update.run(stream, {0, 5}, nullptr, nullptr);
  stream.synchronize();  // the kernels are loaded
  auto const launches = [&](auto record) { return recorded{stream, record}.launches(); };
  CHECK(launches([&] { update.run(stream, {0, 5}, nullptr, nullptr); }) == 1);
  CHECK(launches([&] { update.run(stream, {1, 2}, nullptr, nullptr); }) == 1);
  CHECK(launches([&] { update.run(stream, {3, 1}, nullptr, nullptr); }) == 0);  // no segment is in bucket 3
  CHECK(launches([&] { update.prepare(stream, them.applied_memory()); }) == 1);
  CHECK(launches([&] { update.set(stream, optimizers); }) == 0);
  optimizers[2].beta1 = 0.5F;
  CHECK(launches([&] { update.set(stream, optimizers); }) == 1);
}
