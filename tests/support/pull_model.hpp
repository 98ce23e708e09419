// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../seed.hpp"

#include <lockstep/lockstep.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <tuple>
#include <vector>

namespace support {

/// How a model lays out its memory, and how it calls gradient_ready.
enum class layout { arena, scattered, backwards };
enum class marking { none, in_order, some, twice, by_span, split_span, whole_span, shuffled };

/// What a pull_model is made of.
struct pull_plan {
  std::vector<std::size_t> counts{3, 5};  // elements of each parameter
  layout memory = layout::arena;
  marking marks = marking::none;
  std::vector<std::size_t> tied{};  // parameters that are listed a second time, at the end
  std::uint64_t seed = 1;
};

/// What element `e` of a parameter of `count` elements starts from: exact in 16 bits.
inline float pull_start(std::size_t count, std::size_t e) { return 0.25F * static_cast<float>((e * 7 + count) % 9) - 1.0F; }

/// Pulls every element towards the samples: loss = weight * sum (value - sample)^2 / 2, so that every gradient is known
/// exactly. Element e of parameter p is pulled towards sample[(p + e) % width]. A tied parameter is used by both of its
/// listings.
template <lockstep::element Value = float, lockstep::model_promises Promises = lockstep::model_promises{}>
class pull_model {
 public:
  using backend = lockstep::host;
  using batch = std::tuple<lockstep::sample_view<float const>>;
  using output = std::span<float>;  // sum of value * sample, for each sample
  static constexpr lockstep::model_promises promises = Promises;

  explicit pull_model(pull_plan plan) : plan_(std::move(plan)), random_(plan_.seed) {
    std::size_t const total = std::accumulate(plan_.counts.begin(), plan_.counts.end(), std::size_t{0});
    values_.resize(plan_.memory == layout::scattered ? 0 : total + 1);
    gradients_.assign(plan_.memory == layout::scattered ? 0 : total + 1, poison());
    std::size_t offset = 0;
    for (std::size_t p = 0; p < plan_.counts.size(); ++p) {
      std::size_t const count = plan_.counts[p];
      if (plan_.memory == layout::scattered) {
        own_values_.push_back(std::make_unique<Value[]>(count + 1));
        own_gradients_.push_back(std::make_unique<float[]>(count + 1));
        std::fill_n(own_gradients_.back().get(), count + 1, poison());
        add(p, own_values_.back().get(), own_gradients_.back().get());
      } else {
        std::size_t const at = plan_.memory == layout::arena ? offset : total - offset - count;
        add(p, values_.data() + at, gradients_.data() + at);
      }
      offset += count;
    }
    for (lockstep::parameter const& p : listed_) {
      for (std::size_t e = 0; e < p.count(); ++e) {
        static_cast<Value*>(p.value)[e] = Value(pull_start(p.count(), e));
      }
    }
    for (std::size_t const p : plan_.tied) {
      lockstep::parameter again = listed_[p];
      again.name += ".again";
      listed_.push_back(again);
    }
  }

  std::vector<lockstep::parameter> const& parameters() const { return listed_; }

  void train(lockstep::train_context<backend>& ctx, batch const& shard) {
    if (before_train) {
      before_train(ctx);
    }
    auto const& samples = std::get<0>(shard);
    float const weight = ctx.sample_weight();
    double loss = 0;
    std::vector<std::uint8_t> started(plan_.counts.size(), 0);
    for (std::size_t i = 0; i < listed_.size(); ++i) {
      std::size_t const p = i < plan_.counts.size() ? i : plan_.tied[i - plan_.counts.size()];
      if (std::find(leave_out.begin(), leave_out.end(), p) != leave_out.end()) {
        ctx.unused(i);
        continue;
      }
      auto* const gradient = static_cast<float*>(listed_[i].gradient);
      if (Promises.honours_accumulate && !ctx.accumulate() && started[p] == 0) {
        std::fill_n(gradient, listed_[i].count(), 0.0F);
      }
      started[p] = 1;
      auto const* const value = static_cast<Value const*>(listed_[i].value);
      for (std::size_t s = 0; s < samples.count(); ++s) {
        for (std::size_t e = 0; e < listed_[i].count(); ++e) {
          float const error = static_cast<float>(value[e]) - samples[s][(p + e) % samples.width()];
          gradient[e] += weight * error;
          loss += 0.5 * static_cast<double>(error) * static_cast<double>(error);
        }
      }
    }
    *ctx.loss() += static_cast<float>(static_cast<double>(weight) * loss);
    mark(ctx);
  }

  void infer(lockstep::infer_context<backend>&, batch const& shard, output const& out) {
    auto const& samples = std::get<0>(shard);
    for (std::size_t s = 0; s < samples.count(); ++s) {
      out[s] = 0;
      for (std::size_t e = 0; e < listed_[0].count(); ++e) {
        out[s] += static_cast<float>(static_cast<Value const*>(listed_[0].value)[e]) * samples[s][e % samples.width()];
      }
    }
  }

  // Changed by tests between steps.
  std::function<void(lockstep::train_context<backend>&)> before_train;
  std::function<void(lockstep::train_context<backend>&)> between_marks;
  std::vector<std::size_t> leave_out;
  std::vector<lockstep::parameter> listed_;

 private:
  static float poison() { return std::numeric_limits<float>::quiet_NaN(); }

  void add(std::size_t p, Value* value, float* gradient) {
    listed_.emplace_back("p" + std::to_string(p), value, gradient, lockstep::shape{plan_.counts[p]});
  }

  void mark(lockstep::train_context<backend>& ctx) {
    std::vector<std::size_t> order(listed_.size());
    std::iota(order.rbegin(), order.rend(), std::size_t{0});
    switch (plan_.marks) {
      case marking::none: break;
      case marking::in_order:
        for (std::size_t const i : order) {
          if (between_marks) {
            between_marks(ctx);
          }
          ctx.gradient_ready(i);
        }
        break;
      case marking::some:
        for (std::size_t const i : order) {
          if (random_.chance(0.5)) {
            ctx.gradient_ready(i);
          }
        }
        break;
      case marking::twice:
        for (std::size_t const i : order) {
          ctx.gradient_ready(i);
          ctx.gradient_ready(i, listed_.size() - i);
        }
        break;
      case marking::by_span:
        for (std::size_t const i : order) {
          ctx.gradient_ready(std::span<float const>{static_cast<float const*>(listed_[i].gradient), listed_[i].count()});
        }
        break;
      case marking::split_span:
        for (std::size_t const i : order) {
          auto const whole = std::span<float const>{static_cast<float const*>(listed_[i].gradient), listed_[i].count()};
          ctx.gradient_ready(whole.subspan(whole.size() / 2));
          ctx.gradient_ready(whole.first(whole.size() / 2));
        }
        break;
      case marking::whole_span:
        if (plan_.memory != layout::scattered) {
          ctx.gradient_ready(std::span<float const>{gradients_.data(), gradients_.size() - 1});
        }
        break;
      case marking::shuffled:
        std::shuffle(order.begin(), order.end(), random_.engine());
        for (std::size_t const i : order) {
          if (random_.chance(0.5)) {
            ctx.gradient_ready(i);
          } else {
            ctx.gradient_ready(std::span<float const>{static_cast<float const*>(listed_[i].gradient), listed_[i].count()});
          }
        }
        break;
    }
  }

  pull_plan plan_;
  tests::generator random_;
  std::vector<Value> values_;
  std::vector<float> gradients_;
  std::vector<std::unique_ptr<Value[]>> own_values_;
  std::vector<std::unique_ptr<float[]>> own_gradients_;
};

/// Samples for a pull_model.
struct pull_samples {
  pull_samples(tests::generator& random, std::size_t samples, std::size_t sample_width) : count(samples), width(sample_width) {
    for (std::size_t i = 0; i < count * width; ++i) {
      data.push_back(random.real(-1.0F, 1.0F));
    }
  }
  [[nodiscard]] std::tuple<lockstep::sample_view<float const>> view() const {
    return {lockstep::sample_view<float const>{data.data(), count, width}};
  }

  std::size_t count;
  std::size_t width;
  std::vector<float> data;
};

}  // namespace support
