// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "images.hpp"
#include "settings.hpp"

#include <lockstep/lockstep.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <span>
#include <string>
#include <utility>
#include <vector>

/// The training that digits.cpp and digits.cu share. What differs between the host and GPUs is the model, and where samples
/// lie.
namespace examples {

/// Where samples lie. This is the host's; GPUs have another.
template <class Backend>
struct placement {
  static constexpr char const* where = "host";
  static constexpr std::size_t prefetch = 2;  // of the loader

  /// Told of each device that a model is built on.
  void meet(lockstep::device_context<Backend> const&) {}
  /// A data set for the loader.
  image_table const& put(image_table const& all, std::size_t) { return all; }

  template <class Trainer>
  std::vector<float> predict(Trainer& trainer, image_table const& test, std::size_t classes) {
    std::vector<float> probabilities(test.rows() * classes);
    lockstep::sample_view<float> const predicted{probabilities.data(), test.rows(), classes};
    trainer.predict(test.view(), predicted);
    return probabilities;
  }
  /// Copies from a device's memory.
  static void read(void* to, void const* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
};

// ---- how it is trained ----------------------------------------------------------------------------------------------------

using optimizer = lockstep::scheduled<lockstep::adamw, lockstep::warm_up<lockstep::cosine>>;

/// One for weights, and one for biases, which don't decay. A cosine that goes down to 1 stays where it begins: so one type has
/// both schedules.
inline std::vector<optimizer> optimizers(settings const& s, std::uint64_t steps) {
  lockstep::warm_up<lockstep::cosine> const schedule{
      .steps = s.warm_up_steps,
      .then = {.steps = steps > s.warm_up_steps ? steps - s.warm_up_steps : 1, .floor = s.schedule == "cosine" ? 0.0F : 1.0F}};
  return {{lockstep::adamw{.learning_rate = s.rate, .weight_decay = 0.01F}, schedule},
          {lockstep::adamw{.learning_rate = s.rate, .weight_decay = 0.0F}, schedule}};
}

/// Derivatives in f16 underflow without a loss scale.
inline lockstep::gradient_rules rules(settings const& s) {
  lockstep::gradient_rules chosen;
  if (s.clip > 0) {
    chosen.max_norm = s.clip;
  }
  if (s.precision == "f16") {
    chosen.loss_scale = lockstep::loss_scale{};
  }
  return chosen;
}

/// One step on a batch that the trainer cuts, or on batches that are cut already, one a device.
template <class Trainer>
auto take_step(Trainer& trainer, typename Trainer::batch_type const& batch, lockstep::step_options options) {
  return trainer.step(batch, options);
}
template <class Trainer>
auto take_step(Trainer& trainer, std::vector<typename Trainer::batch_type> const& shards, lockstep::step_options options) {
  return trainer.step_shards(shards, options);
}

/// What steps came to, until it is printed. A GPU is asked two steps later: by then the answer is there.
class tally {
 public:
  void add(lockstep::step_result result) {
    unread_.push_back(std::move(result));
    if (unread_.size() > 2) {
      read(unread_.front());
      unread_.pop_front();
    }
  }

  /// Prints means over the steps that were applied, the last loss scale, and how many steps were skipped; then begins anew.
  void print(int epoch, lockstep::gradient_rules const& rules) {
    for (lockstep::step_result const& result : unread_) {
      read(result);
    }
    double const samples = (std::max)(samples_, 1.0);
    std::printf("  epoch %4d  loss %.4f  accuracy %.4f", epoch, loss_ / samples, correct_ / samples);
    if (rules.any()) {
      std::printf("  gradient norm %.4f", norm_ / (std::max)(applied_, 1.0));
    }
    if (rules.loss_scale) {
      std::printf("  loss scale %.0f  skipped %d", scale_, skipped_);
    }
    std::printf("\n");
    std::fflush(stdout);
    *this = {};
  }

 private:
  void read(lockstep::step_result const& result) {
    scale_ = result.loss_scale();
    if (result.skipped()) {
      ++skipped_;
      return;
    }
    ++applied_;
    samples_ += result.weight();
    loss_ += result.loss() * result.weight();
    correct_ += result.metric("correct");
    norm_ += result.gradient_norm();
  }

  std::deque<lockstep::step_result> unread_;
  double applied_ = 0;
  double samples_ = 0;
  double loss_ = 0;     // summed over samples
  double correct_ = 0;  // samples
  double norm_ = 0;     // summed over steps
  double scale_ = 1;
  int skipped_ = 0;
};

// ---- training -------------------------------------------------------------------------------------------------------------

/// What one policy came to, with all seeds.
struct outcome {
  std::string where;
  std::string policy;
  int devices = 0;
  std::vector<double> accuracies;  // on the test set, one a seed
  double seconds = 0;
  double samples = 0;
  double steps = 0;
  double bytes_moved = 0;
  std::vector<float> parameters;  // of the first seed
};

/// The part of `test` whose class the model finds most probable.
inline double accuracy(image_table const& test, std::span<float const> probabilities) {
  std::size_t const classes = probabilities.size() / test.rows();
  std::size_t right = 0;
  for (std::size_t i = 0; i < test.rows(); ++i) {
    auto const row = probabilities.subspan(i * classes, classes);
    auto const guess = std::max_element(row.begin(), row.end()) - row.begin();
    right += guess == test.values<1>()[i] ? 1U : 0U;
  }
  return static_cast<double>(right) / static_cast<double>(test.rows());
}

/// Trains with one seed, and tests.
template <class Model, class Policy>
void train(settings const& s, std::uint64_t seed, task const& t, outcome& done) {
  using backend = typename Model::backend;
  placement<backend> memory;
  std::uint64_t const batches = (t.train.rows() + s.batch - 1) / s.batch;
  lockstep::gradient_rules const rules = examples::rules(s);

  lockstep::trainer<Model, optimizer, Policy> trainer{lockstep::devices::first(done.devices),
                                                      [&](lockstep::device_context<backend>& device) {
                                                        memory.meet(device);
                                                        return Model{device, t.widths, seed};
                                                      },
                                                      optimizers(s, static_cast<std::uint64_t>(s.epochs) * batches), rules};

  auto const& data = memory.put(t.train, s.batch);
  lockstep::loader loader{data, {.batch = s.batch, .seed = seed, .prefetch = memory.prefetch}};
  std::uint64_t const moved_before = trainer.bytes_moved();
  auto const start = std::chrono::steady_clock::now();
  tally shown;
  int const epochs_a_line = (s.epochs + 4) / 5;
  for (int epoch = 1; epoch <= s.epochs; ++epoch) {
    for (auto const& batch : loader.epoch(static_cast<std::uint64_t>(epoch) - 1)) {
      shown.add(take_step(trainer, batch, {.micro_batches = s.micro_batches}));
    }
    if (epoch % epochs_a_line == 0 || epoch == s.epochs) {
      shown.print(epoch, rules);
    }
  }
  trainer.synchronize();
  std::chrono::duration<double> const spent = std::chrono::steady_clock::now() - start;

  done.seconds += spent.count();
  done.samples += static_cast<double>(s.epochs) * static_cast<double>(t.train.rows());
  done.steps += static_cast<double>(s.epochs) * static_cast<double>(batches);
  done.bytes_moved += static_cast<double>(trainer.bytes_moved() - moved_before);
  done.accuracies.push_back(accuracy(t.test, memory.predict(trainer, t.test, t.widths.back())));
  if (done.parameters.empty()) {
    for (lockstep::parameter const& p : trainer.model().parameters()) {
      std::vector<typename Model::value_type> values(p.count());
      memory.read(values.data(), p.value, values.size() * sizeof(values[0]));
      done.parameters.insert(done.parameters.end(), values.begin(), values.end());
    }
  }
}

/// Trains once a seed.
template <class Model, class Policy>
outcome run(std::string const& policy, int devices, settings const& s, task const& t) {
  outcome done;
  done.where = placement<typename Model::backend>::where;
  done.policy = policy;
  done.devices = devices;
  for (std::uint64_t seed = s.seed; seed < s.seed + s.seeds; ++seed) {
    std::printf("%s: %s on %d %s, %s, seed %llu\n", done.where.c_str(), policy.c_str(), devices,
                devices == 1 ? "device" : "devices", s.precision.c_str(), static_cast<unsigned long long>(seed));
    train<Model, Policy>(s, seed, t, done);
  }
  return done;
}

/// Which policies a program holds code for, of one model: each is compiled by itself.
enum class policies { single_device, with_peer_all_reduce, all };

/// single_device, against which the others are measured, and what `s.policy` asks for beside it.
template <class Model, policies Built>
void run_policies(settings const& s, task const& t, std::vector<outcome>& outcomes) {
  [[maybe_unused]] auto const asked = [&s](std::string const& policy) { return s.policy == "all" || s.policy == policy; };
  outcomes.push_back(run<Model, lockstep::single_device>("single_device", 1, s, t));
  if constexpr (Built == policies::all) {
    if (asked("replicate_and_gather")) {
      outcomes.push_back(run<Model, lockstep::replicate_and_gather<>>("replicate_and_gather", s.devices, s, t));
    }
  }
  if constexpr (Built != policies::single_device) {
    if (asked("peer_all_reduce")) {
      outcomes.push_back(run<Model, lockstep::peer_all_reduce<>>("peer_all_reduce", s.devices, s, t));
    }
  }
  if constexpr (Built == policies::all) {
    if (asked("sharded_optimizer")) {
      outcomes.push_back(run<Model, lockstep::sharded_optimizer<>>("sharded_optimizer", s.devices, s, t));
    }
  }
}

}  // namespace examples
