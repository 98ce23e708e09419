// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// What optim/ has for host and device, called in kernels.

#include "../seed.hpp"

#include <lockstep/backend/cuda.cuh>
#include <lockstep/core/memory.hpp>
#include <lockstep/optim/loss_scale.hpp>
#include <lockstep/optim/schedule.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

using lockstep::gradient_range;
using lockstep::loss_scale;
using lockstep::loss_scale_state;

namespace {

template <class Schedule>
__global__ void evaluate(Schedule schedule, std::uint64_t const* steps, float* factors, unsigned count) {
  unsigned const i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) {
    factors[i] = schedule(steps[i]);
  }
}

/// One thread: the states behind each of the steps.
__global__ void follow(loss_scale options, gradient_range const* gradients, loss_scale_state* states, unsigned count) {
  loss_scale_state state = options.first();
  for (unsigned i = 0; i < count; ++i) {
    state = options.next(state, gradients[i]);
    states[i] = state;
  }
}

/// `work(in, out)` on device memory, from `in` to as many results.
template <class Out, class In, class Work>
std::vector<Out> on_device(std::vector<In> const& in, Work work) {
  lockstep::cuda::device device;
  auto const from = device.allocate(in.size() * sizeof(In), lockstep::memory_use::other);
  auto const to = device.allocate(in.size() * sizeof(Out), lockstep::memory_use::other);
  std::vector<Out> out(in.size());
  lockstep::cuda::copy(device.stream(), from.data(), in.data(), in.size() * sizeof(In));
  work(device.stream().get(), from.template as<In>(), to.template as<Out>());
  lockstep::check(cudaGetLastError());
  lockstep::cuda::copy(device.stream(), out.data(), to.data(), out.size() * sizeof(Out));
  device.stream().synchronize();
  return out;
}

/// Steps around `turns`, where schedules change, and anywhere.
std::vector<std::uint64_t> steps_around(tests::generator& random, std::vector<std::uint64_t> const& turns) {
  std::vector<std::uint64_t> steps{1, 2, std::numeric_limits<std::uint64_t>::max()};
  for (std::uint64_t const turn : turns) {
    for (std::uint64_t const step : {turn - 1, turn, turn + 1, turn + 2}) {
      steps.push_back((std::max)(step, std::uint64_t{1}));
    }
  }
  while (steps.size() < 1000) {
    steps.push_back(random.whole(1, std::uint64_t{1} << random.whole(0, 63)));
  }
  return steps;
}

template <class Schedule>
void same_as_on_the_host(Schedule const& schedule, std::vector<std::uint64_t> const& steps) {
  auto const count = static_cast<unsigned>(steps.size());
  std::vector<float> const got = on_device<float>(steps, [&](cudaStream_t stream, std::uint64_t const* from, float* to) {
    evaluate<<<(count + 127) / 128, 128, 0, stream>>>(schedule, from, to, count);
  });
  for (std::size_t i = 0; i < steps.size(); ++i) {
    float const right = schedule(steps[i]);
    CAPTURE(steps[i]);
    REQUIRE(std::abs(got[i] - right) <= 0x1p-22F * right + std::numeric_limits<float>::denorm_min());
  }
}

}  // namespace

TEST_CASE("schedule on a GPU: factors are the host's, to the last places") {
  auto const seed = tests::seed();
  INFO("LOCKSTEP_TEST_SEED=", seed);
  tests::generator random{seed};
  for (int i = 0; i < 20; ++i) {
    std::uint64_t const n = random.whole(2, std::uint64_t{1} << random.whole(1, 62));
    std::uint64_t const w = random.whole(1, n - 1);
    float const floor = random.once_in(2) ? 0 : random.real(0, 1);
    std::vector<std::uint64_t> const steps = steps_around(random, {n, w, n + w});
    lockstep::cosine const wave{n, floor};
    lockstep::milestone_decay const milestones{{w, n}, random.real(0.1F, 1)};
    same_as_on_the_host(lockstep::constant{random.real(0, 2)}, steps);
    same_as_on_the_host(lockstep::step_decay{w, random.real(0.1F, 1)}, steps);
    same_as_on_the_host(milestones, steps);
    same_as_on_the_host(wave, steps);
    same_as_on_the_host(lockstep::polynomial{n, random.real(0.3F, 3), floor}, steps);
    same_as_on_the_host(lockstep::one_cycle{n, w, random.real(0, 1), floor}, steps);
    same_as_on_the_host(lockstep::warm_up{w, wave, random.real(0, 1)}, steps);
    same_as_on_the_host(lockstep::product{lockstep::warm_up<>{.steps = w}, milestones}, steps);
  }
}

TEST_CASE("loss_scale on a GPU: states are the host's, bit for bit") {
  auto const seed = tests::seed();
  INFO("LOCKSTEP_TEST_SEED=", seed);
  tests::generator random{seed};
  for (loss_scale const& o :
       {loss_scale{.growth_interval = 20},
        loss_scale{.initial = 100, .growth = 1.7F, .growth_interval = 3, .backoff = 0.3F, .highest = 5000}}) {
    std::vector<gradient_range> gradients;
    for (int i = 0; i < 5000; ++i) {
      gradients.push_back(random.once_in(o.growth_interval * 2) ? gradient_range::overflowed : gradient_range::finite);
    }
    auto const got =
        on_device<loss_scale_state>(gradients, [&](cudaStream_t stream, gradient_range const* from, loss_scale_state* to) {
          follow<<<1, 1, 0, stream>>>(o, from, to, static_cast<unsigned>(gradients.size()));
        });
    loss_scale_state state = o.first();
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      state = o.next(state, gradients[i]);
      REQUIRE((got[i] == state));
    }
  }
}
