// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

// expect: lockstep: Model::batch must have a free function sample_count(batch); see docs/concepts.md#batch-count

#include "parts.hpp"

struct samples {
  std::span<float const> x;
  std::size_t sample_count() const { return x.size(); }
  samples slice(std::size_t first, std::size_t count) const { return {x.subspan(first, count)}; }
};

struct bad : tensors {
  using backend = lockstep::host;
  using batch = samples;
  void train(lockstep::train_context<backend>&, batch const&) {}
};

int main() {
  std::vector<float> x(8), y(8);
  lockstep::trainer<bad, lockstep::sgd, lockstep::peer_all_reduce<>> trainer{
      lockstep::devices::first(2), [](auto&) { return bad{}; }, lockstep::sgd{.learning_rate = 0.5F}};
  trainer.step(samples{.x = x});
  return 0;
}
