// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../seed.hpp"

#include <lockstep/concepts.hpp>
#include <lockstep/core/element_type.hpp>
#include <lockstep/core/error.hpp>
#include <lockstep/core/host_device.hpp>
#include <lockstep/core/memory.hpp>
#include <lockstep/core/options.hpp>
#include <lockstep/core/update.hpp>
#include <lockstep/optim/adam.hpp>
#include <lockstep/optim/adamw.hpp>
#include <lockstep/optim/clip_by_value.hpp>
#include <lockstep/optim/schedule.hpp>
#include <lockstep/optim/scheduled.hpp>
#include <lockstep/optim/sgd.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// What every backend's elementwise_update must do. Its header is included by the test, beside this one.
namespace tests {

// ---- optimizers of a user's -----------------------------------------------------------------------------------------------

// Each product that is added to something is a std::fma, so that no compiler has a choice: every backend gives the same bits.

/// No slots, no `prepare`.
struct descent {
  float rate = 0.125F;
  LOCKSTEP_HOST_DEVICE float operator()(float value, float gradient) const { return std::fma(-rate, gradient, value); }
};
/// One slot, no `prepare`.
struct summing {
  float rate = 0.125F;
  static constexpr std::array<std::string_view, 1> slots{"sum"};
  LOCKSTEP_HOST_DEVICE float operator()(float value, float gradient, float& sum) const {
    sum += gradient;
    return std::fma(-rate, sum, value);
  }
};
/// Three slots, no `prepare`.
struct three_slots {
  float rate = 0.125F;
  static constexpr std::array<std::string_view, 3> slots{"sum", "sum of sums", "before"};
  LOCKSTEP_HOST_DEVICE float operator()(float value, float gradient, float& sum, float& sum_of_sums, float& before) const {
    sum += gradient;
    sum_of_sums += sum;
    before = value;
    return std::fma(-rate, sum_of_sums, value);
  }
};
/// No slots, a `prepare` whose value can't be assigned to, nor made without arguments.
struct fading {
  float learning_rate = 0.125F;
  struct prepared {
    float const rate;
    std::uint8_t const group;
    LOCKSTEP_HOST_DEVICE prepared(float r, std::uint8_t g) : rate(r), group(g) {}
  };
  LOCKSTEP_HOST_DEVICE prepared prepare(lockstep::update_info const& info) const {
    return {info.learning_rate / static_cast<float>(info.step), info.group};
  }
  LOCKSTEP_HOST_DEVICE float operator()(float value, float gradient, prepared const& p) const {
    return std::fma(-p.rate, gradient, value) + static_cast<float>(p.group);
  }
};
/// Hyperparameters of an odd number of bytes, of which a few dozen don't fit into the arguments of one kernel.
struct tabled {
  unsigned char table[401] = {};
  LOCKSTEP_HOST_DEVICE float operator()(float value, float gradient) const {
    return std::fma(-static_cast<float>(table[0]) - static_cast<float>(table[400]), gradient, value);
  }
};

// ---- what is right, in f64 ------------------------------------------------------------------------------------------------

/// A number, and the size of what was added up to it: rounding errors are small beside that.
struct expected {
  double is = 0;
  double scale = 0;
};
struct outcome {
  expected value;
  std::array<expected, 3> slots{};
};
using slot_values = std::array<double, 3>;

inline expected sum_of(double a, double b) { return {a + b, std::abs(a) + std::abs(b)}; }

inline outcome reference(descent const& o, lockstep::update_info const&, double value, double g, slot_values const&) {
  return {sum_of(value, -double{o.rate} * g)};
}
inline outcome reference(summing const& o, lockstep::update_info const&, double value, double g, slot_values const& s) {
  expected const sum = sum_of(s[0], g);
  return {{value - double{o.rate} * sum.is, std::abs(value) + double{o.rate} * sum.scale}, {sum}};
}
inline outcome reference(three_slots const& o, lockstep::update_info const&, double value, double g, slot_values const& s) {
  double const sum = s[0] + g;
  double const scale = std::abs(s[0]) + std::abs(g) + std::abs(s[1]);
  return {{value - double{o.rate} * (s[1] + sum), std::abs(value) + scale},
          {sum_of(s[0], g), {s[1] + sum, scale}, {value, std::abs(value)}}};
}
inline outcome reference(fading const& o, lockstep::update_info const& info, double value, double g, slot_values const&) {
  expected now = sum_of(value, -double{o.learning_rate} / static_cast<double>(info.step) * g);
  return {{now.is + info.group, now.scale + info.group}};
}
inline outcome reference(tabled const& o, lockstep::update_info const&, double value, double g, slot_values const&) {
  return {sum_of(value, -(double{1} * o.table[0] + o.table[400]) * g)};
}
inline outcome reference(lockstep::sgd const& o, lockstep::update_info const&, double value, double gradient,
                         slot_values const& s) {
  double const g = gradient + double{o.weight_decay} * value;
  double const b = double{o.momentum} * s[0] + g;
  double const step = o.kind == lockstep::momentum_kind::nesterov ? g + double{o.momentum} * b : b;
  double const scale = std::abs(gradient) + std::abs(value) + std::abs(s[0]);
  return {{value - double{o.learning_rate} * step, scale}, {expected{b, scale}}};
}
/// The moments, and what is subtracted for them. Errors of the second moment reach the result divided by that moment.
template <class Adam>
outcome moments(Adam const& o, lockstep::update_info const& info, expected const& g, slot_values const& s) {
  double const keep1 = double{o.beta1};
  double const keep2 = double{o.beta2};
  expected const m{keep1 * s[0] + (1 - keep1) * g.is, std::abs(keep1 * s[0]) + (1 - keep1) * g.scale};
  expected const v{keep2 * s[1] + (1 - keep2) * g.is * g.is, keep2 * s[1] + (1 - keep2) * g.scale * std::abs(g.is)};
  double const m_factor = double{o.learning_rate} / (1 - std::pow(keep1, static_cast<double>(info.step)));
  double const v_hat = v.is / (1 - std::pow(keep2, static_cast<double>(info.step)));
  double const by_m = m_factor / (std::sqrt(v_hat) + double{o.epsilon});
  return {{by_m * m.is, by_m * (m.scale + std::abs(m.is) * v.scale / (v.is + 1e-300))}, {m, v}};
}
inline outcome reference(lockstep::adam const& o, lockstep::update_info const& info, double value, double gradient,
                         slot_values const& s) {
  outcome now = moments(o, info, sum_of(gradient, double{o.weight_decay} * value), s);
  now.value = {value - now.value.is, std::abs(value) + now.value.scale};
  return now;
}
inline outcome reference(lockstep::adamw const& o, lockstep::update_info const& info, double value, double gradient,
                         slot_values const& s) {
  outcome now = moments(o, info, {gradient, std::abs(gradient)}, s);
  double const decay = double{o.learning_rate} * double{o.weight_decay} * value;
  now.value = {value - decay - now.value.is, std::abs(value) + std::abs(decay) + now.value.scale};
  return now;
}
template <class Optimizer, class Schedule>
outcome reference(lockstep::scheduled<Optimizer, Schedule> const& o, lockstep::update_info const& info, double value,
                  double gradient, slot_values const& s);
template <class Optimizer>
outcome reference(lockstep::clipped_by_value<Optimizer> const& o, lockstep::update_info const& info, double value,
                  double gradient, slot_values const& s) {
  double const limit = double{o.limit};
  return reference(static_cast<Optimizer const&>(o), info, value, (std::min)((std::max)(gradient, -limit), limit), s);
}
template <class Optimizer, class Schedule>
outcome reference(lockstep::scheduled<Optimizer, Schedule> const& o, lockstep::update_info const& info, double value,
                  double gradient, slot_values const& s) {
  Optimizer now = o;
  now.learning_rate *= o.schedule(info.step);
  return reference(now, info, value, gradient, s);
}

// ---- what is updated ------------------------------------------------------------------------------------------------------

/// One segment. Each array begins `shift` elements behind an address that is a multiple of 64.
struct piece {
  std::size_t count = 0;
  lockstep::element_type value_type = lockstep::element_type::f32;
  lockstep::element_type gradient_type = lockstep::element_type::f32;
  std::uint8_t group = 0;
  std::size_t parameter = 0;
  std::size_t bucket = 0;
  std::size_t value_shift = 0;
  std::size_t gradient_shift = 0;
  std::size_t master_shift = 0;
  std::array<std::size_t, 3> slot_shifts{};
};

inline void shift_all(piece& p, std::size_t shift) {
  p.value_shift = p.gradient_shift = p.master_shift = shift;
  p.slot_shifts.fill(shift);
}

/// A number that depends on where it is asked for only, in [-1, 1).
inline float scattered(std::uint64_t seed, std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  std::uint64_t x = seed + a * 0x9e3779b97f4a7c15U + b * 0xbf58476d1ce4e5b9U + c * 0x94d049bb133111ebU;
  for (int round = 0; round < 2; ++round) {
    x = (x ^ (x >> 31U)) * 0xd6e8feb86659fd93U;
  }
  return static_cast<float>(static_cast<double>(x >> 11U) * 0x1p-52 - 1);
}

inline float read_number(std::vector<std::byte> const& bytes, std::size_t at, lockstep::element_type type) {
  auto const as = [&]<class T>(T number) {
    std::memcpy(&number, bytes.data() + at, sizeof number);
    return static_cast<float>(number);
  };
  return type == lockstep::element_type::f32    ? as(0.0F)
         : type == lockstep::element_type::bf16 ? as(lockstep::bfloat16{})
                                                : as(lockstep::float16{});
}
inline void write_number(std::vector<std::byte>& bytes, std::size_t at, lockstep::element_type type, float number) {
  auto const put = [&](auto value) { std::memcpy(bytes.data() + at, &value, sizeof value); };
  switch (type) {
    case lockstep::element_type::bf16: put(lockstep::bfloat16{number}); break;
    case lockstep::element_type::f16: put(lockstep::float16{number}); break;
    default: put(number);
  }
}

/// Segments in one stretch of device memory, each array among bytes that nobody may touch; and the update of them.
template <class Backend, class Optimizer>
class updated {
 public:
  static constexpr std::size_t slots = lockstep::slot_count<Optimizer>;
  using segment = lockstep::update_segment<slots>;

  /// What the arrays of one piece are: where they begin in memory, in bytes.
  struct place {
    std::size_t value = 0;
    std::size_t gradient = 0;
    std::size_t master = 0;
    std::array<std::size_t, 3> slots{};
  };

  updated(typename Backend::device& device, std::vector<piece> pieces, std::uint64_t seed)
      : device_(device), pieces_(std::move(pieces)) {
    std::size_t end = 0;
    auto const reserve = [&](std::size_t count, lockstep::element_type type, std::size_t shift) {
      std::size_t const at = (end + 127) / 64 * 64 + shift * lockstep::size_of(type);
      end = at + count * lockstep::size_of(type);
      return at;
    };
    std::size_t parameters = 1;
    for (piece const& p : pieces_) {
      place& at = places_.emplace_back();
      at.value = reserve(p.count, p.value_type, p.value_shift);
      at.gradient = reserve(p.count, p.gradient_type, p.gradient_shift);
      at.master = reserve(narrow(p) ? p.count : 0, lockstep::element_type::f32, p.master_shift);
      for (std::size_t s = 0; s != slots; ++s) {
        at.slots[s] = reserve(p.count, lockstep::element_type::f32, p.slot_shifts[s]);
      }
      parameters = (std::max)(parameters, p.parameter + 1);
    }
    bytes_.resize(end + 128);
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      bytes_[i] = static_cast<std::byte>(0xa5 ^ (i * 29));  // what nobody may touch
    }
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      piece const& p = pieces_[i];
      place const& at = places_[i];
      for (std::size_t e = 0; e < p.count; ++e) {
        write_number(bytes_, at.value + e * lockstep::size_of(p.value_type), p.value_type, scattered(seed, i, 0, e));
        write_number(bytes_, at.gradient + e * lockstep::size_of(p.gradient_type), p.gradient_type, scattered(seed, i, 1, e));
        if (narrow(p)) {  // not what the value was rounded from, so that it shows which is read
          write_number(bytes_, at.master + e * sizeof(float), lockstep::element_type::f32, scattered(seed, i, 2, e));
        }
        for (std::size_t s = 0; s != slots; ++s) {  // the second is never negative: Adam draws its root
          float const number = scattered(seed, i, 3 + s, e);
          write_number(bytes_, at.slots[s] + e * sizeof(float), lockstep::element_type::f32, s == 1 ? number * number : number);
        }
      }
    }
    memory_ = device_.allocate(bytes_.size(), lockstep::memory_use::other);
    applied_ = device_.allocate(sizeof(std::uint64_t), lockstep::memory_use::other);
    decision_ = device_.allocate(sizeof(lockstep::step_decision), lockstep::memory_use::other);
    uses_ = device_.allocate(parameters * sizeof(double), lockstep::memory_use::other);
    copy_in(memory_, bytes_.data(), bytes_.size());
  }

  [[nodiscard]] std::vector<segment> segments() const {
    auto* const base = memory_.template as<std::byte>();
    std::vector<segment> all;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      segment& s = all.emplace_back();
      s.value = base + places_[i].value;
      s.gradient = base + places_[i].gradient;
      s.master = narrow(pieces_[i]) ? reinterpret_cast<float*>(base + places_[i].master) : nullptr;
      for (std::size_t slot = 0; slot != slots; ++slot) {
        s.slots[slot] = reinterpret_cast<float*>(base + places_[i].slots[slot]);
      }
      s.count = pieces_[i].count;
      s.value_type = pieces_[i].value_type;
      s.gradient_type = pieces_[i].gradient_type;
      s.group = pieces_[i].group;
      s.parameter = pieces_[i].parameter;
      s.bucket = pieces_[i].bucket;
    }
    return all;
  }

  [[nodiscard]] std::uint64_t const* applied_memory() const { return applied_.template as<std::uint64_t>(); }
  // Device memory, each set to what is given.
  std::uint64_t* applied(std::uint64_t count) {
    copy_in(applied_, &count, sizeof count);
    return applied_.template as<std::uint64_t>();
  }
  lockstep::step_decision const* decision(lockstep::step_sums const& sums) {
    lockstep::step_decision const given = sums.decision();
    copy_in(decision_, &given, sizeof given);
    return decision_.template as<lockstep::step_decision>();
  }
  double* uses(std::vector<double> const& given) {
    copy_in(uses_, given.data(), given.size() * sizeof(double));
    return uses_.template as<double>();
  }

  /// What lies in memory behind all that was enqueued.
  [[nodiscard]] std::vector<std::byte> memory() const {
    std::vector<std::byte> now(bytes_.size());
    Backend::copy(device_.stream(), now.data(), memory_.data(), now.size());
    device_.stream().synchronize();
    return now;
  }

  /// What is wrong with `after`, given `before` and one update number `step` with gradients times `factor`; empty when nothing
  /// is. `taking_part` says of each piece whether it was updated: everything else must be untouched.
  [[nodiscard]] std::string mistake(std::vector<std::byte> const& before, std::vector<std::byte> const& after,
                                    std::vector<Optimizer> const& optimizers, std::uint64_t step, float factor,
                                    std::vector<bool> const& taking_part) const {
    std::vector<std::byte> want = before;  // ... with what may change taken from after
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      if (!taking_part[i]) {
        continue;
      }
      piece const& p = pieces_[i];
      place const& at = places_[i];
      Optimizer const& optimizer = optimizers[optimizers.size() == 1 ? 0 : p.group];
      lockstep::update_info const info = lockstep::info_for(optimizer, step, p.group);
      std::size_t const size = lockstep::size_of(p.value_type);
      for (std::size_t e = 0; e < p.count; ++e) {
        std::size_t const weight_at = (narrow(p) ? at.master : at.value) + e * sizeof(float);
        slot_values was{};
        for (std::size_t s = 0; s != slots; ++s) {
          was[s] = f32(before, at.slots[s] + e * sizeof(float));
        }
        double const g =
            double{read_number(before, at.gradient + e * lockstep::size_of(p.gradient_type), p.gradient_type)} * double{factor};
        outcome const right = reference(optimizer, info, f32(before, weight_at), g, was);
        std::string wrong = compare("weight", f32(after, weight_at), right.value);
        std::memcpy(want.data() + weight_at, after.data() + weight_at, sizeof(float));
        for (std::size_t s = 0; s != slots; ++s) {
          std::size_t const slot_at = at.slots[s] + e * sizeof(float);
          wrong += compare("slot", f32(after, slot_at), right.slots[s]);
          std::memcpy(want.data() + slot_at, after.data() + slot_at, sizeof(float));
        }
        if (narrow(p)) {  // rounded from the new master
          write_number(want, at.value + e * size, p.value_type, static_cast<float>(f32(after, weight_at)));
        }
        if (!wrong.empty()) {
          return describe(i) + ": element " + std::to_string(e) + wrong;
        }
      }
    }
    auto const differing = std::mismatch(want.begin(), want.end(), after.begin());
    if (differing.first != want.end()) {
      return std::string("byte ") + std::to_string(differing.first - want.begin()) + " must not be what it is" +
             near(static_cast<std::size_t>(differing.first - want.begin()));
    }
    return {};
  }

  /// The numbers of piece i in `bytes`: weights, then each slot, then 16-bit values.
  [[nodiscard]] std::vector<float> numbers(std::vector<std::byte> const& bytes, std::size_t i) const {
    std::vector<float> all;
    auto const take = [&](std::size_t at, lockstep::element_type type) {
      for (std::size_t e = 0; e < pieces_[i].count; ++e) {
        all.push_back(read_number(bytes, at + e * lockstep::size_of(type), type));
      }
    };
    take(places_[i].value, pieces_[i].value_type);
    if (narrow(pieces_[i])) {
      take(places_[i].master, lockstep::element_type::f32);
    }
    for (std::size_t s = 0; s != slots; ++s) {
      take(places_[i].slots[s], lockstep::element_type::f32);
    }
    return all;
  }

  [[nodiscard]] std::vector<piece> const& pieces() const noexcept { return pieces_; }
  [[nodiscard]] std::vector<place> const& places() const noexcept { return places_; }

 private:
  static bool narrow(piece const& p) { return p.value_type != lockstep::element_type::f32; }
  static double f32(std::vector<std::byte> const& bytes, std::size_t at) {
    return read_number(bytes, at, lockstep::element_type::f32);
  }
  /// Empty, or what is wrong. Allows for a dozen roundings in f32.
  static std::string compare(char const* what, double got, expected const& right) {
    if (std::abs(got - right.is) <= 1e-6 * right.scale + 1e-30) {
      return {};
    }
    char text[160];
    std::snprintf(text, sizeof text, ": its %s is %.9g, and should be %.9g of a sum of sizes %.9g", what, got, right.is,
                  right.scale);
    return text;
  }

  [[nodiscard]] std::string describe(std::size_t i) const {
    piece const& p = pieces_[i];
    return std::string("piece ") + std::to_string(i) + ", " + std::to_string(p.count) + " of " +
           std::string{lockstep::name_of(p.value_type)} + " with gradients of " +
           std::string{lockstep::name_of(p.gradient_type)} + ", shifted by " + std::to_string(p.value_shift) + ", " +
           std::to_string(p.gradient_shift);
  }
  [[nodiscard]] std::string near(std::size_t byte) const {
    std::size_t i = 0;
    while (i + 1 < places_.size() && places_[i + 1].value <= byte) {
      ++i;
    }
    return std::string("; it lies in or behind ") + describe(i);
  }

  void copy_in(typename Backend::buffer const& to, void const* from, std::size_t bytes) const {
    Backend::copy(device_.stream(), to.data(), from, bytes);
    device_.stream().synchronize();
  }

  typename Backend::device& device_;
  std::vector<piece> pieces_;
  std::vector<place> places_;
  std::vector<std::byte> bytes_;
  typename Backend::buffer memory_;
  typename Backend::buffer applied_;
  typename Backend::buffer decision_;
  typename Backend::buffer uses_;
};

/// Pieces of every pair of types, of `sizes`, in three groups and buckets 0, 1, 2 and 4. Each array begins a few elements
/// behind an aligned address: none, equally many, or each another number.
inline std::vector<piece> every_pair(generator& random, std::vector<std::size_t> const& sizes) {
  constexpr std::array types{lockstep::element_type::f32, lockstep::element_type::f16, lockstep::element_type::bf16};
  constexpr std::array<std::size_t, 4> buckets{0, 1, 2, 4};
  std::vector<piece> all;
  for (lockstep::element_type const value : types) {
    for (lockstep::element_type const gradient : types) {
      for (std::size_t const size : sizes) {
        for (int alignment = 0; alignment < 3; ++alignment) {
          piece p{.count = size, .value_type = value, .gradient_type = gradient};
          p.group = static_cast<std::uint8_t>(random.whole(0, 2));
          p.bucket = buckets[random.whole(0, 3)];
          p.parameter = all.size() / 2;  // two segments each, as where a bucket ends within a parameter
          shift_all(p, alignment == 1 ? random.whole(1, 9) : 0);
          if (alignment == 2) {
            p.value_shift = random.whole(0, 9);
            p.gradient_shift = random.whole(0, 9);
            p.master_shift = random.whole(0, 9);
            for (std::size_t& shift : p.slot_shifts) {
              shift = random.whole(0, 9);
            }
          }
          all.push_back(p);
        }
      }
    }
  }
  return all;
}

/// Of a step that counted `weight` samples of those that each of `ranks` ranks announced.
inline lockstep::step_sums sums_of(double weight, double announced, double ranks) {
  return {.weight = weight,
          .nominal = announced * ranks,
          .nominal_squares = announced * announced * ranks,
          .ranks = ranks,
          .scale = ranks,
          .loss = 1};
}

// ---- what every backend is asked ------------------------------------------------------------------------------------------

/// Three steps over every pair of types, many sizes and alignments, with gradients that are scaled.
template <class Backend, class Optimizer>
void updates_as_the_formula_says(std::vector<Optimizer> const& optimizers, std::vector<std::size_t> const& sizes) {
  std::uint64_t const seed_value = seed();
  INFO("LOCKSTEP_TEST_SEED=", seed_value);
  generator random{seed_value};
  typename Backend::device device;
  updated<Backend, Optimizer> them{device, every_pair(random, sizes), seed_value};
  lockstep::elementwise_update<Backend, Optimizer> update{device, them.segments()};
  update.set(device.stream(), optimizers);
  std::vector<bool> const all(them.pieces().size(), true);
  std::vector<std::byte> before = them.memory();
  for (std::uint64_t applied = 0; applied < 3; ++applied) {
    lockstep::step_sums sums = sums_of(6, 4, 2);
    float factor = applied == 0 ? 1.0F : 4.0F / 6.0F;
    if (applied == 2) {  // a loss scale of 8, and a norm of 2 * 4 / 6 / 8 that may be 0.1
      sums.scale *= 8;
      sums.squares = 4;
      sums.max_norm = 2 * 0.1;
      factor = static_cast<float>(0.1 / 2);
    }
    update.prepare(device.stream(), them.applied(applied));
    update.run(device.stream(), {0, 5}, applied == 0 ? nullptr : them.decision(sums), nullptr);
    std::vector<std::byte> after = them.memory();
    CHECK(them.mistake(before, after, optimizers, applied + 1, factor, all) == "");
    before = std::move(after);
  }
}

/// Every optimizer that there is, with one object a group or one for all.
template <class Backend>
void every_optimizer_updates_as_the_formula_says() {
  std::vector<std::size_t> sizes{0, 1, 3, 4, 5, 31, 127, 128, 130, 1023, 1024, 1025, 2047, 2048, 2049, 5003};
  updates_as_the_formula_says<Backend, lockstep::sgd>(
      {{.learning_rate = 0.1F},
       {.learning_rate = 0.2F, .momentum = 0.9F, .weight_decay = 0.01F},
       {.learning_rate = 0.3F, .momentum = 0.5F, .kind = lockstep::momentum_kind::nesterov}},
      sizes);
  updates_as_the_formula_says<Backend, lockstep::adam>({{.learning_rate = 0.1F, .weight_decay = 0.1F},
                                                        {.learning_rate = 0.01F, .beta1 = 0, .beta2 = 0.5F},
                                                        {.learning_rate = 0.3F, .epsilon = 1}},
                                                       sizes);
  updates_as_the_formula_says<Backend, lockstep::adamw>(
      {{.learning_rate = 0.1F, .weight_decay = 0.1F}, {.learning_rate = 0.01F}, {.learning_rate = 0.3F, .epsilon = 0.1F}},
      sizes);
  sizes.push_back(10007);  // so many elements in all that a GPU has enough of them for two a thread and more
  updates_as_the_formula_says<Backend, lockstep::adamw>({{.learning_rate = 0.1F}}, sizes);
  updates_as_the_formula_says<Backend, descent>({{}}, sizes);
  updates_as_the_formula_says<Backend, summing>({{0.5F}, {0.25F}, {0.75F}}, sizes);
  updates_as_the_formula_says<Backend, three_slots>({{0.5F}, {0.25F}, {0.75F}}, sizes);
  updates_as_the_formula_says<Backend, fading>({{0.5F}, {0.25F}, {0.75F}}, sizes);
  updates_as_the_formula_says<Backend, lockstep::clipped_by_value<three_slots>>(
      {{{0.5F}, 0.5F}, {{0.25F}, 0.25F}, {{0.75F}, 4}}, sizes);
  using falling = lockstep::warm_up<lockstep::cosine>;
  updates_as_the_formula_says<Backend, lockstep::scheduled<lockstep::clipped_by_value<lockstep::adamw>, falling>>(
      {{{{.learning_rate = 0.1F}, 0.5F}, {2, {.steps = 3}}}}, sizes);
  updates_as_the_formula_says<Backend, lockstep::clipped_by_value<lockstep::scheduled<fading, lockstep::step_decay>>>(
      {{{{0.5F}, {1, 0.5F}}, 0.5F}}, sizes);
}

/// 100,003 elements an array; then blocks or loops have more than one piece to do.
template <class Backend>
void many_elements_are_updated_as_the_formula_says() {
  updates_as_the_formula_says<Backend, lockstep::adamw>({{.learning_rate = 0.1F}}, {100003});
}

/// A range updates the segments of its buckets and touches nothing else; so do ranges that are empty or lie beyond all buckets.
template <class Backend>
void a_range_of_buckets_touches_no_other() {
  std::uint64_t const seed_value = seed();
  INFO("LOCKSTEP_TEST_SEED=", seed_value);
  generator random{seed_value};
  typename Backend::device device;
  updated<Backend, lockstep::adamw> them{device, every_pair(random, {3, 130, 2049}), seed_value};
  lockstep::elementwise_update<Backend, lockstep::adamw> update{device, them.segments()};
  std::vector<lockstep::adamw> const optimizers{{.learning_rate = 0.1F}};
  update.set(device.stream(), optimizers);
  update.prepare(device.stream(), them.applied(6));
  std::vector<std::byte> before = them.memory();
  for (lockstep::plan::range const buckets : std::vector<lockstep::plan::range>{
           {0, 1}, {1, 2}, {2, 2}, {3, 1}, {3, 2}, {4, 1}, {4, 7}, {5, 3}, {2, 0}, {0, 0}, {1000000, 5}, {0, 5}}) {
    std::vector<bool> taking_part;
    for (piece const& p : them.pieces()) {
      taking_part.push_back(p.bucket >= buckets.first && p.bucket < buckets.end());
    }
    update.run(device.stream(), buckets, nullptr, nullptr);
    std::vector<std::byte> after = them.memory();
    INFO("buckets from ", buckets.first, ", ", buckets.count, " of them");
    CHECK(them.mistake(before, after, optimizers, 7, 1, taking_part) == "");
    before = std::move(after);
  }
}

/// Without use, or when a step is left out, nothing is touched, not even by writing what was there.
template <class Backend>
void what_is_left_out_is_not_touched() {
  std::uint64_t const seed_value = seed();
  INFO("LOCKSTEP_TEST_SEED=", seed_value);
  generator random{seed_value};
  typename Backend::device device;
  updated<Backend, lockstep::adamw> them{device, every_pair(random, {3, 130, 2049}), seed_value};
  lockstep::elementwise_update<Backend, lockstep::adamw> update{device, them.segments()};
  std::vector<lockstep::adamw> const optimizers{{.learning_rate = 0.1F}};
  update.set(device.stream(), optimizers);
  update.prepare(device.stream(), them.applied(0));
  std::vector<std::byte> before = them.memory();

  lockstep::step_sums const good = sums_of(6, 4, 2);
  lockstep::step_sums voted = good;
  voted.votes = 1;
  lockstep::step_sums uncounted = good;
  uncounted.weight = 0;
  lockstep::step_sums unlike = good;  // 3 and 5
  unlike.nominal_squares = 34;
  lockstep::step_sums overflowed = good;
  overflowed.squares = std::numeric_limits<double>::infinity();
  lockstep::step_sums no_number = good;
  no_number.squares = std::numeric_limits<double>::quiet_NaN();
  for (lockstep::step_sums const& skipped : {voted, uncounted, unlike, overflowed, no_number}) {
    REQUIRE(skipped.skipped());
    update.run(device.stream(), {0, 5}, them.decision(skipped), nullptr);
    CHECK((them.memory() == before));
  }

  std::vector<double> uses;
  std::vector<bool> taking_part;
  for (piece const& p : them.pieces()) {
    while (uses.size() <= p.parameter) {
      uses.push_back(random.chance(0.5) ? 0 : static_cast<double>(random.whole(1, 8)));
    }
    taking_part.push_back(uses[p.parameter] != 0);
  }
  update.run(device.stream(), {0, 5}, them.decision(good), them.uses(uses));
  std::vector<std::byte> const after = them.memory();
  CHECK(them.mistake(before, after, optimizers, 1, good.factor(), taking_part) == "");
  update.run(device.stream(), {0, 5}, them.decision(voted), them.uses(uses));
  CHECK((them.memory() == after));
}

/// Other hyperparameters hold from the next `prepare` on; too few, or none, are refused.
template <class Backend>
void hyperparameters_hold_for_what_is_prepared_later() {
  std::uint64_t const seed_value = seed();
  INFO("LOCKSTEP_TEST_SEED=", seed_value);
  generator random{seed_value};
  typename Backend::device device;
  updated<Backend, lockstep::sgd> them{device, every_pair(random, {5, 300}), seed_value};
  lockstep::elementwise_update<Backend, lockstep::sgd> update{device, them.segments()};
  auto const* const applied = them.applied(0);
  CHECK_THROWS_AS(update.prepare(device.stream(), applied), lockstep::usage_error);
  std::vector<lockstep::sgd> const too_few(2);
  CHECK_THROWS_AS(update.set(device.stream(), too_few), lockstep::usage_error);
  CHECK_THROWS_AS(update.set(device.stream(), {}), lockstep::usage_error);
  std::vector<bool> const all(them.pieces().size(), true);
  std::vector<lockstep::sgd> one{{.learning_rate = 0.5F}};
  std::vector<lockstep::sgd> three{{.learning_rate = 0.5F}, {.learning_rate = 0.25F}, {.learning_rate = 2}};
  std::vector<lockstep::sgd> more{{.learning_rate = 1}, {.learning_rate = 2}, {.learning_rate = 3}, {.learning_rate = 4}};
  for (std::vector<lockstep::sgd> const& optimizers : {one, three, three, more, one}) {
    std::vector<std::byte> const before = them.memory();
    update.set(device.stream(), optimizers);
    update.prepare(device.stream(), applied);
    update.run(device.stream(), {0, 5}, nullptr, nullptr);
    CHECK(them.mistake(before, them.memory(), optimizers, 1, 1, all) == "");
  }
}

/// 40 groups of 401 bytes each.
template <class Backend>
void any_number_of_hyperparameters_will_do() {
  std::uint64_t const seed_value = seed();
  INFO("LOCKSTEP_TEST_SEED=", seed_value);
  typename Backend::device device;
  std::vector<piece> pieces;
  std::vector<tabled> optimizers;
  for (std::uint8_t group = 0; group < 40; ++group) {
    pieces.push_back({.count = 9, .group = group, .parameter = group});
    optimizers.emplace_back();
    optimizers.back().table[0] = group;
    optimizers.back().table[400] = static_cast<unsigned char>(200 - group * group % 97);
  }
  updated<Backend, tabled> them{device, pieces, seed_value};
  lockstep::elementwise_update<Backend, tabled> update{device, them.segments()};
  std::vector<bool> const all(pieces.size(), true);
  for (int round = 0; round < 2; ++round) {
    std::vector<std::byte> const before = them.memory();
    update.set(device.stream(), optimizers);
    update.prepare(device.stream(), them.applied(0));
    update.run(device.stream(), {0, 1}, nullptr, nullptr);
    CHECK(them.mistake(before, them.memory(), optimizers, 1, 1, all) == "");
    optimizers.back().table[400] ^= 1U;  // the last byte of all
  }
}

/// Masters become the 16-bit values, infinities and subnormal numbers included, and nothing else changes.
template <class Backend>
void masters_are_loaded() {
  std::uint64_t const seed_value = seed();
  INFO("LOCKSTEP_TEST_SEED=", seed_value);
  generator random{seed_value};
  typename Backend::device device;
  updated<Backend, summing> them{device, every_pair(random, {0, 1, 7, 3000}), seed_value};
  lockstep::elementwise_update<Backend, summing> const update{device, them.segments()};
  std::vector<std::byte> want = them.memory();
  update.load_masters(device.stream());
  for (std::size_t i = 0; i < them.pieces().size(); ++i) {
    piece const& p = them.pieces()[i];
    for (std::size_t e = 0; p.value_type != lockstep::element_type::f32 && e < p.count; ++e) {
      write_number(want, them.places()[i].master + e * sizeof(float), lockstep::element_type::f32,
                   read_number(want, them.places()[i].value + e * 2, p.value_type));
    }
  }
  CHECK((them.memory() == want));
}

/// No segments at all, or none with elements.
template <class Backend>
void nothing_to_update_is_fine() {
  typename Backend::device device;
  for (std::vector<piece> const& pieces : {std::vector<piece>{}, std::vector<piece>{{.count = 0, .bucket = 2}}}) {
    updated<Backend, lockstep::adamw> them{device, pieces, 1};
    lockstep::elementwise_update<Backend, lockstep::adamw> update{device, them.segments()};
    std::vector<std::byte> const before = them.memory();
    std::vector<lockstep::adamw> const one(1);
    update.set(device.stream(), one);
    update.load_masters(device.stream());
    update.prepare(device.stream(), them.applied(0));
    update.run(device.stream(), {0, 3}, nullptr, nullptr);
    CHECK((them.memory() == before));
  }
}

}  // namespace tests
