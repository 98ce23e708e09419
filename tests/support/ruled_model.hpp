// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../seed.hpp"

#include <lockstep/lockstep.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace support {

/// Samples of `width` numbers: a weight, a mask of the parameters that take part, and what values are pulled towards. They lie
/// on the device that trains on them, and on the host.
struct rows {
  float const* data = nullptr;
  float const* on_host = nullptr;
  std::size_t count = 0;
  std::size_t width = 0;

  friend bool operator==(rows const&, rows const&) = default;
};
inline std::size_t sample_count(rows const& batch) { return batch.count; }
inline rows slice(rows const& batch, std::size_t first, std::size_t count) {
  return {batch.data + first * batch.width, batch.on_host + first * batch.width, count, batch.width};
}

/// The same, whose weight the host knows before the step.
struct weighed_rows : rows {
  friend bool operator==(weighed_rows const&, weighed_rows const&) = default;
};
inline weighed_rows slice(weighed_rows const& batch, std::size_t first, std::size_t count) {
  return {slice(static_cast<rows const&>(batch), first, count)};
}
inline double batch_weight(weighed_rows const& batch) {
  double sum = 0;
  for (std::size_t s = 0; s < batch.count; ++s) {
    sum += static_cast<double>(batch.on_host[s * batch.width]);
  }
  return sum;
}

inline constexpr std::size_t most_ruled = 5;

/// Forward and backward of one micro-batch, in one thread: runs on every backend.
template <class Weight>
struct ruled_call {
  struct listed {
    float const* value;
    void* gradient;
    std::size_t count;
  };
  rows samples;
  listed parameters[most_ruled];
  std::size_t parameter_count;
  lockstep::element_type gradient_type;  // f32 or f16
  Weight weight;
  bool weighs;
  bool overwrites;
  float* loss;     // null: does nothing
  float* counted;  // this and the rest may be null
  float* vote;
  float* metrics;
  float* uses;

  LOCKSTEP_HOST_DEVICE void operator()() const {
    if (loss == nullptr) {
      return;
    }
    float const w = weight;
    std::size_t const pulls = samples.width - 2;
    double all = 0;
    for (std::size_t p = 0; p < parameter_count; ++p) {
      listed const& mine = parameters[p];
      for (std::size_t e = 0; e < mine.count; ++e) {
        float sum = 0;
        for (std::size_t s = 0; s < samples.count; ++s) {
          float const* const row = samples.data + s * samples.width;
          if (takes_part(row, p)) {
            float const error = mine.value[e] - row[2 + (p + e) % pulls];
            sum += w * of(row) * error;
            all += 0.5 * static_cast<double>(of(row)) * static_cast<double>(error) * static_cast<double>(error);
          }
        }
        add(mine.gradient, e, sum);
      }
    }
    *loss += static_cast<float>(static_cast<double>(w) * all);
    for (std::size_t s = 0; s < samples.count; ++s) {
      count(samples.data + s * samples.width);
    }
  }

 private:
  LOCKSTEP_HOST_DEVICE bool takes_part(float const* row, std::size_t p) const {
    return row[0] == row[0] && ((static_cast<unsigned>(row[1]) >> p) & 1U) != 0;
  }
  LOCKSTEP_HOST_DEVICE float of(float const* row) const { return weighs ? row[0] : 1.0F; }
  LOCKSTEP_HOST_DEVICE void add(void* gradient, std::size_t e, float sum) const {
    if (gradient_type == lockstep::element_type::f32) {
      float& g = static_cast<float*>(gradient)[e];
      g = overwrites ? sum : g + sum;
    } else {
      lockstep::float16& g = static_cast<lockstep::float16*>(gradient)[e];
      g = lockstep::float16(overwrites ? sum : static_cast<float>(g) + sum);
    }
  }
  LOCKSTEP_HOST_DEVICE void count(float const* row) const {
    if (row[0] != row[0]) {  // a sample that nobody wants to learn from
      if (vote != nullptr) {
        *vote = 1;
      }
      return;
    }
    if (counted != nullptr) {
      *counted += of(row);
    }
    if (metrics != nullptr) {
      metrics[0] += of(row) * (row[2] > 0 ? 1.0F : 0.0F);
      metrics[1] += 1;
    }
    for (std::size_t p = 0; uses != nullptr && p < parameter_count; ++p) {
      uses[p] += takes_part(row, p) ? 1.0F : 0.0F;
    }
  }
};

/// Pulls its parameters towards samples, of which each has a weight and concerns some of the parameters only.
template <class Backend, class Batch, lockstep::model_promises Promises>
class ruled_model {
 public:
  using backend = Backend;
  using batch = Batch;
  static constexpr lockstep::model_promises promises = Promises;

  ruled_model(lockstep::device_context<Backend> const& device, std::vector<std::size_t> const& counts,
              lockstep::element_type gradient_type, bool marks)
      : gradient_type_(gradient_type), marks_(marks) {
    std::size_t total = 1;
    for (std::size_t const count : counts) {
      total += count;
    }
    values_ = device.allocate(total * sizeof(float), lockstep::memory_use::parameters);
    gradients_ = device.allocate(total * sizeof(float), lockstep::memory_use::gradients);
    std::vector<std::byte> const poison(total * sizeof(float), std::byte{0xff});  // no number
    Backend::copy(device.stream(), gradients_.data(), poison.data(), poison.size());
    std::vector<float> start;
    for (std::size_t const count : counts) {
      lockstep::parameter described;
      described.name = "p" + std::to_string(listed_.size());
      described.value = values_.template as<float>() + start.size();
      described.gradient = gradients_.template as<std::byte>() + start.size() * lockstep::size_of(gradient_type);
      described.gradient_type = gradient_type;
      described.shape = {count};
      listed_.push_back(described);
      for (std::size_t e = 0; e < count; ++e) {
        start.push_back(starts_from(count, e));
      }
    }
    Backend::copy(device.stream(), values_.data(), start.data(), start.size() * sizeof(float));
    device.stream().synchronize();
  }

  static float starts_from(std::size_t count, std::size_t e) { return 0.25F * static_cast<float>((e * 7 + count) % 9) - 1.0F; }

  std::vector<lockstep::parameter> const& parameters() const { return listed_; }

  void train(lockstep::train_context<Backend>& ctx, batch const& shard) {
    ruled_call<typename Backend::weight> call{};
    call.samples = shard;
    call.parameter_count = listed_.size();
    for (std::size_t p = 0; p < listed_.size(); ++p) {
      call.parameters[p] = {static_cast<float const*>(listed_[p].value), listed_[p].gradient, listed_[p].count()};
    }
    call.gradient_type = gradient_type_;
    call.weight = ctx.sample_weight();
    call.weighs = Promises.counts_weight || lockstep::weighted_batch<batch>;
    call.overwrites = Promises.honours_accumulate && !ctx.accumulate();
    call.loss = ctx.loss();
    call.counted = Promises.counts_weight ? ctx.counted() : nullptr;
    call.vote = Promises.votes ? ctx.skip_vote() : nullptr;
    call.metrics = lockstep::count_of(Promises.metrics) != 0 ? ctx.metric(0) : nullptr;
    call.uses = Promises.counts_uses ? ctx.use_counts() : nullptr;
    Backend::invoke(ctx.stream(), call);
    for (std::size_t p = listed_.size(); p-- > 0;) {
      if (Promises.reports_unused && !used(shard, p)) {
        ctx.unused(p);
      } else if (marks_) {
        ctx.gradient_ready(p);
      }
    }
  }

 private:
  static bool used(rows const& shard, std::size_t p) {
    for (std::size_t s = 0; s < shard.count; ++s) {
      if (((static_cast<unsigned>(shard.on_host[s * shard.width + 1]) >> p) & 1U) != 0) {
        return true;
      }
    }
    return false;
  }

  lockstep::element_type gradient_type_;
  bool marks_;
  std::vector<lockstep::parameter> listed_;
  typename Backend::buffer values_;
  typename Backend::buffer gradients_;
};

/// What a step of a ruled_model comes to, in double precision, on one device with all samples at once: SGD with momentum 0.5,
/// whose rate is halved after every second update.
struct ruled_reference {
  struct outcome {
    double loss = 0;
    double weight = 0;
    double positive = 0;
    double seen = 0;
    double norm = 0;
    double scale = 1;
    bool voted = false;
    bool skipped = false;
    bool overflowed = false;
    std::uint64_t applied = 0;
  };

  ruled_reference(std::vector<std::size_t> const& counts, lockstep::gradient_rules const& rules_then,
                  lockstep::model_promises const& promised, bool weighs)
      : rules(rules_then), promises(promised), weighs_(weighs) {
    for (std::size_t const count : counts) {
      values.emplace_back();
      for (std::size_t e = 0; e < count; ++e) {
        values.back().push_back(0.25 * static_cast<double>((e * 7 + count) % 9) - 1.0);
      }
      momentum.emplace_back(count, 0.0);
    }
    if (rules.loss_scale) {
      scale_ = rules.loss_scale->first();
    }
  }

  /// `sizes` says how many of the samples are whose: a rank that votes counts nothing.
  outcome step(std::vector<float> const& all, std::size_t width, double rate, std::vector<std::size_t> const& sizes) {
    outcome now;
    std::vector<bool> withdrawn;
    for (std::size_t rank = 0, first = 0; rank < sizes.size(); first += sizes[rank++]) {
      bool votes = false;
      for (std::size_t s = first; s < first + sizes[rank]; ++s) {
        votes = votes || (promises.votes && std::isnan(all[s * width]));
      }
      withdrawn.insert(withdrawn.end(), sizes[rank], votes);
      now.voted = now.voted || votes;
    }
    now.scale = rules.loss_scale ? static_cast<double>(scale_.scale) : 1.0;
    std::size_t const count = all.size() / width;
    std::vector<std::vector<double>> gradients;
    std::vector<bool> used(values.size(), false);
    for (auto const& of_parameter : values) {
      gradients.emplace_back(of_parameter.size(), 0.0);
    }
    for (std::size_t s = 0; s < count; ++s) {
      float const* const row = all.data() + s * width;
      bool const wanted = !std::isnan(row[0]);
      double const w = weighs_ ? static_cast<double>(row[0]) : 1.0;
      bool const counts = !withdrawn[s];
      now.weight += !counts || (promises.counts_weight && !wanted) ? 0 : w;
      if (!wanted) {
        continue;
      }
      now.positive += counts && row[2] > 0 ? w : 0;
      now.seen += counts ? 1 : 0;
      for (std::size_t p = 0; p < values.size(); ++p) {
        if (((static_cast<unsigned>(row[1]) >> p) & 1U) == 0) {
          continue;
        }
        used[p] = true;
        for (std::size_t e = 0; e < values[p].size(); ++e) {
          double const error = values[p][e] - static_cast<double>(row[2 + (p + e) % (width - 2)]);
          gradients[p][e] += w * error;
          now.loss += counts ? 0.5 * w * error * error : 0;
        }
      }
    }
    double squares = 0;
    for (auto const& of_parameter : gradients) {
      for (double const g : of_parameter) {
        squares += g * g;
      }
    }
    bool const looked_at = rules.any();
    now.overflowed = looked_at && !std::isfinite(squares);
    now.skipped = now.voted || !(now.weight > 0) || now.overflowed;
    if (rules.loss_scale && !now.voted && now.weight > 0) {
      scale_ = rules.loss_scale->next(scale_,
                                      now.overflowed ? lockstep::gradient_range::overflowed : lockstep::gradient_range::finite);
    }
    if (now.weight > 0) {
      now.loss /= now.weight;
      now.norm = looked_at ? std::sqrt(squares) / now.weight : 0;
    }
    if (!now.skipped) {
      ++applied_;
      double const bound = rules.max_norm ? static_cast<double>(*rules.max_norm) : HUGE_VAL;
      double const factor = now.norm > bound ? bound / now.norm : 1.0;
      bool const spares = promises.reports_unused || promises.counts_uses;
      double const scheduled = rate * static_cast<double>(schedule(applied_));
      for (std::size_t p = 0; p < values.size(); ++p) {
        for (std::size_t e = 0; e < values[p].size() && (used[p] || !spares); ++e) {
          momentum[p][e] = 0.5 * momentum[p][e] + factor * gradients[p][e] / now.weight;
          values[p][e] -= scheduled * momentum[p][e];
        }
      }
    }
    now.applied = applied_;
    return now;
  }

  static constexpr lockstep::step_decay schedule{.every = 2, .gamma = 0.5F};  // of applied steps
  lockstep::gradient_rules rules;
  lockstep::model_promises promises;
  std::vector<std::vector<double>> values;
  std::vector<std::vector<double>> momentum;

 private:
  bool weighs_;
  lockstep::loss_scale_state scale_{};
  std::uint64_t applied_ = 0;
};

}  // namespace support
