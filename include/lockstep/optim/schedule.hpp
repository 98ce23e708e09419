// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/error.hpp>
#include <lockstep/core/host_device.hpp>
#include <lockstep/optim/detail/hyperparameter.hpp>

#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

/// Learning-rate schedules: what the learning rate of an optimizer is multiplied by, as functions of the applied step t, which
/// counts from 1 as update_info::step does. Plain aggregates of numbers, called on host and device; `scheduled` joins one to an
/// optimizer. Step 1 gets what a schedule begins with, and one of n steps has reached its end in step n + 1 and stays there:
/// the end's factor is none of the n. Factors are worked out in f64 and rounded once; host and device agree to the last places
/// of an f32. Every t from 1 to 2^64 - 1 will do; 0 will not.
namespace lockstep {

/// A trivially copyable function object with `float operator()(std::uint64_t step) const`. Marked LOCKSTEP_HOST_DEVICE to run
/// on a GPU. Where it has a `validate() const`, that throws usage_error for fields out of range.
template <class T>
concept learning_rate_schedule = std::is_trivially_copyable_v<T> && requires(T const& schedule, std::uint64_t step) {
  { schedule(step) } -> std::same_as<float>;
};

namespace optim_detail {

/// How much of `steps` is left in step `step`: 1 in the first, 1 / steps in the last, 0 in all later ones.
[[nodiscard]] LOCKSTEP_HOST_DEVICE inline double part_left(std::uint64_t step, std::uint64_t steps) {
  std::uint64_t const done = step - 1;
  return done < steps ? static_cast<double>(steps - done) / static_cast<double>(steps) : 0;
}

/// `low` where part = 0, `high` where part = 1, a line between.
[[nodiscard]] LOCKSTEP_HOST_DEVICE inline float between(double low, double high, double part) {
  return static_cast<float>(low + (high - low) * part);
}

/// Half a wave from 0 where part = 0 to 1 where part = 1: (1 - cos(pi part)) / 2, without its cancellation near 0.
[[nodiscard]] LOCKSTEP_HOST_DEVICE inline double half_wave(double part) {
  double const root = std::sin(1.5707963267948966 * part);
  return root * root;
}

template <class Schedule>
void validate_schedule(Schedule const& schedule) {
  if constexpr (requires { schedule.validate(); }) {
    schedule.validate();
  }
}

}  // namespace optim_detail

/// The same factor in every step.
struct constant {
  /// Finite and not negative.
  float factor = 1;

  /// Throws usage_error naming the field that is out of range.
  void validate() const { optim_detail::expects_not_negative("constant.factor", factor); }

  [[nodiscard]] LOCKSTEP_HOST_DEVICE float operator()(std::uint64_t) const { return factor; }
};

/// Lower by a factor once every so many steps, n = every:
///
///     gamma^floor((t - 1) / n)
///
/// So steps 1 to n get 1, steps n + 1 to 2 n get gamma, and so on without end; what is too small for f32 becomes 0.
///
/// Example: `step_decay{.every = 10000, .gamma = 0.5f}`.
struct step_decay {
  /// At least 1.
  std::uint64_t every = 1;
  /// In (0, 1].
  float gamma = 0.1f;

  /// Throws usage_error naming the first field that is out of range.
  void validate() const {
    optim_detail::expects_at_least_one("step_decay.every", every);
    optim_detail::expects_positive_part("step_decay.gamma", gamma);
  }

  [[nodiscard]] LOCKSTEP_HOST_DEVICE float operator()(std::uint64_t step) const {
    return static_cast<float>(std::pow(static_cast<double>(gamma), static_cast<double>((step - 1) / every)));
  }
};

/// Lower by a factor after each of up to eight steps:
///
///     gamma^(how many of `after` are less than t)
///
/// So steps 1 to after[0] get 1, the next gamma, those behind after[1] gamma^2, and those behind the last one keep its factor.
/// He, Zhang, Ren and Sun, "Deep residual learning for image recognition" (2016), section 4.2, train so, with the example's
/// numbers.
///
/// Example: `milestone_decay{.after = {32000, 48000}}`.
struct milestone_decay {
  /// Each greater than the one before; those that are 0, at the end, are not used.
  std::uint64_t after[8] = {};
  /// In (0, 1].
  float gamma = 0.1f;

  /// Throws usage_error naming the first field that is out of range.
  void validate() const {
    bool ended = false;
    std::uint64_t last = 0;
    for (std::uint64_t const milestone : after) {
      if (milestone != 0 && (ended || milestone <= last)) {
        refuse(std::string("milestone_decay.after must rise, with nothing behind a 0, and has ") + std::to_string(milestone) +
               (ended ? " behind a 0" : " behind " + std::to_string(last)));
      }
      ended = milestone == 0;
      last = milestone;
    }
    optim_detail::expects_positive_part("milestone_decay.gamma", gamma);
  }

  [[nodiscard]] LOCKSTEP_HOST_DEVICE float operator()(std::uint64_t step) const {
    double factor = 1;
    for (std::uint64_t const milestone : after) {
      factor *= milestone != 0 && milestone < step ? static_cast<double>(gamma) : 1;
    }
    return static_cast<float>(factor);
  }
};

/// Down half a wave of the cosine, over n = steps:
///
///     floor + (1 - floor) (1 + cos(pi (t - 1) / n)) / 2        for t <= n
///     floor                                                    for t > n
///
/// Loshchilov and Hutter, "SGDR: stochastic gradient descent with warm restarts" (2017), equation 5, with the first of its runs
/// only. Step 1 gets 1, step n little more than the floor.
///
/// Example: `cosine{.steps = 100000, .floor = 0.1f}`.
struct cosine {
  /// At least 1.
  std::uint64_t steps = 1;
  /// In [0, 1].
  float floor = 0;

  /// Throws usage_error naming the first field that is out of range.
  void validate() const {
    optim_detail::expects_at_least_one("cosine.steps", steps);
    optim_detail::expects_part("cosine.floor", floor);
  }

  [[nodiscard]] LOCKSTEP_HOST_DEVICE float operator()(std::uint64_t step) const {
    double const part = optim_detail::half_wave(optim_detail::part_left(step, steps));
    return optim_detail::between(static_cast<double>(floor), 1, part);
  }
};

/// Down a power of what is left of n = steps; a line where power = 1:
///
///     floor + (1 - floor) (1 - (t - 1) / n)^power              for t <= n
///     floor                                                    for t > n
///
/// With floor 0, the "poly" policy of Chen, Papandreou, Kokkinos, Murphy and Yuille, "DeepLab" (2018), section 4.1. Step 1 gets
/// 1, step n floor + (1 - floor) / n^power.
///
/// Example: `polynomial{.steps = 100000, .power = 0.9f}`.
struct polynomial {
  /// At least 1.
  std::uint64_t steps = 1;
  /// Finite and greater than 0.
  float power = 1;
  /// In [0, 1].
  float floor = 0;

  /// Throws usage_error naming the first field that is out of range.
  void validate() const {
    optim_detail::expects_at_least_one("polynomial.steps", steps);
    optim_detail::expects_positive("polynomial.power", power);
    optim_detail::expects_part("polynomial.floor", floor);
  }

  [[nodiscard]] LOCKSTEP_HOST_DEVICE float operator()(std::uint64_t step) const {
    double const part = std::pow(optim_detail::part_left(step, steps), static_cast<double>(power));
    return optim_detail::between(static_cast<double>(floor), 1, part);
  }
};

/// Up half a wave of the cosine to the optimizer's own learning rate, and down another, over n = steps of which w =
/// warm_up_steps rise:
///
///     start + (1 - start) (1 - cos(pi (t - 1) / w)) / 2        for t <= w
///     floor + (1 - floor) (1 + cos(pi (t - 1 - w) / (n - w))) / 2    for w < t <= n
///     floor                                                    for t > n
///
/// Smith and Topin, "Super-convergence: very fast training of neural networks using large learning rates" (2019). Their
/// cycle has straight sides, which `warm_up<polynomial>` has too. Step 1 gets start, step w + 1 gets 1, step n little more than
/// the floor.
///
/// Example: `one_cycle{.steps = 10000, .warm_up_steps = 3000, .start = 0.04f, .floor = 4e-6f}`.
struct one_cycle {
  /// At least 1.
  std::uint64_t steps = 1;
  /// Less than `steps`; 0 begins at the peak.
  std::uint64_t warm_up_steps = 0;
  /// Both in [0, 1].
  float start = 0.04f;
  float floor = 0;

  /// Throws usage_error naming the first field that is out of range.
  void validate() const {
    optim_detail::expects_at_least_one("one_cycle.steps", steps);
    if (warm_up_steps >= steps) {
      refuse(std::string("one_cycle.warm_up_steps must be less than one_cycle.steps, ") + std::to_string(steps) + ", and is " +
             std::to_string(warm_up_steps));
    }
    optim_detail::expects_part("one_cycle.start", start);
    optim_detail::expects_part("one_cycle.floor", floor);
  }

  [[nodiscard]] LOCKSTEP_HOST_DEVICE float operator()(std::uint64_t step) const {
    if (step <= warm_up_steps) {
      double const part_done = static_cast<double>(step - 1) / static_cast<double>(warm_up_steps);
      return optim_detail::between(static_cast<double>(start), 1, optim_detail::half_wave(part_done));
    }
    double const part_left = optim_detail::part_left(step - warm_up_steps, steps - warm_up_steps);
    return optim_detail::between(static_cast<double>(floor), 1, optim_detail::half_wave(part_left));
  }
};

// Without these, a call of a schedule of the user's that lacks LOCKSTEP_HOST_DEVICE would be a warning, and do nothing on a
// GPU.
#if defined(__CUDACC__)
#pragma nv_diagnostic push
#pragma nv_diag_error 20011, 20013, 20014, 20015
#endif

/// Up a line to where another schedule begins, over w = steps, then that schedule, which counts from behind the warm-up:
///
///     (start + (1 - start) t / w) then(1)                      for t <= w
///     then(t - w)                                              for t > w
///
/// Goyal et al., "Accurate, large minibatch SGD: training ImageNet in 1 hour" (2017), section 2.2, have start = (reference
/// batch) / (batch). Step 1 is already a w-th of the way up,
/// steps w and w + 1 get then(1), and a `then` of n steps is at its end behind step w + n. With 0 steps there is no warm-up.
///
/// A schedule that is to count from step 1 is multiplied instead: `product<warm_up<>, milestone_decay>`.
///
/// Example: `warm_up<cosine>{.steps = 500, .then = {.steps = 9500}}`, or `warm_up{500, cosine{.steps = 9500}}`.
template <learning_rate_schedule Then = constant>
struct warm_up {
  std::uint64_t steps = 0;
  Then then{};
  /// In [0, 1]: where the line begins, before step 1.
  float start = 0;

  /// Throws usage_error naming the first field that is out of range, those of `then` included.
  void validate() const {
    optim_detail::expects_part("warm_up.start", start);
    optim_detail::validate_schedule(then);
  }

  [[nodiscard]] LOCKSTEP_HOST_DEVICE float operator()(std::uint64_t step) const {
    if (step > steps) {
      return then(step - steps);
    }
    double const part_done = static_cast<double>(step) / static_cast<double>(steps);
    double const peak = static_cast<double>(then(std::uint64_t{1}));
    return optim_detail::between(static_cast<double>(start) * peak, peak, part_done);
  }
};
template <class Then>
warm_up(std::uint64_t, Then) -> warm_up<Then>;
template <class Then>
warm_up(std::uint64_t, Then, float) -> warm_up<Then>;

/// Two schedules, multiplied in f32: first(t) second(t). Both count from step 1.
///
/// Example: `product<warm_up<>, milestone_decay>{{.steps = 500}, {.after = {30000, 60000}}}`.
template <learning_rate_schedule First, learning_rate_schedule Second>
struct product {
  First first{};
  Second second{};

  /// Throws usage_error naming the first field that is out of range.
  void validate() const {
    optim_detail::validate_schedule(first);
    optim_detail::validate_schedule(second);
  }

  [[nodiscard]] LOCKSTEP_HOST_DEVICE float operator()(std::uint64_t step) const { return first(step) * second(step); }
};
template <class First, class Second>
product(First, Second) -> product<First, Second>;

#if defined(__CUDACC__)
#pragma nv_diagnostic pop
#endif

/// The samples of one step over all devices and micro-batches: that for which a learning rate was found, and that to train
/// with.
struct batch_sizes {
  /// Both at least 1.
  std::uint64_t reference = 256;
  std::uint64_t batch = 256;
};

/// The linear scaling rule of Goyal et al., "Accurate, large minibatch SGD: training ImageNet in 1 hour" (2017), section 2.1:
///
///     learning_rate * batch / reference
///
/// It was found for SGD, and holds with a warm-up and up to some batch size only; section 5 of the paper shows where.
/// Throws usage_error for a batch of 0, and a learning rate that is, or becomes, negative, infinite or not a number.
///
/// Example: `sgd{.learning_rate = linearly_scaled(0.1f, {.reference = 256, .batch = 8192})}`.
[[nodiscard]] constexpr float linearly_scaled(float learning_rate, batch_sizes const& sizes) {
  constexpr float largest = (std::numeric_limits<float>::max)();
  expects(sizes.reference >= 1, "linearly_scaled: batch_sizes.reference must be at least 1, and is 0");
  expects(sizes.batch >= 1, "linearly_scaled: batch_sizes.batch must be at least 1, and is 0");
  expects(learning_rate >= 0 && learning_rate <= largest, "linearly_scaled: learning_rate must be finite and not negative");
  double const scaled =
      static_cast<double>(learning_rate) * (static_cast<double>(sizes.batch) / static_cast<double>(sizes.reference));
  expects(scaled <= static_cast<double>(largest), "linearly_scaled: the learning rate must stay finite, and becomes too large");
  return static_cast<float>(scaled);
}

}  // namespace lockstep
