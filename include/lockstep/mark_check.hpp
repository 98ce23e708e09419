// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/core/error.hpp>
#include <lockstep/core/fnv1a.hpp>
#include <lockstep/core/parameter_list.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

/// Catches a gradient_ready that comes too early. From the mark to the end of backward the marked values are NaN, so that
/// whoever reads them spoils what it computes, and the marked gradients are hashed, so that whoever writes them is found out.
/// The NaN carries the number of its parameter in its low bits, which the arithmetic of processors passes on: so the culprit
/// has a name. That of GPUs does not: there only writes are found out, for a NaN of the model's own looks the same as a value
/// read. For debugging: every mark waits for the device, and copies values to the host and back.
template <class Backend>
class mark_check {
 public:
  using stream_ref = typename Backend::stream_ref;

  /// Requires: `parameters` outlives this object.
  explicit mark_check(parameter_list const& parameters) : parameters_(&parameters), covered_(parameters.distinct_count()) {}

  /// Elements [first, first + count) of a distinct parameter were marked. Those that were marked before keep their first mark.
  void mark(std::size_t p, std::size_t first, std::size_t count, stream_ref stream) {
    std::vector<std::uint8_t>& covered = covered_[p];
    covered.resize(parameters_->distinct(p).count(), 0);
    for (std::size_t begin = first, end = first; begin < first + count; begin = end) {
      for (end = begin; end < first + count && covered[end] == covered[begin]; ++end) {
      }
      if (covered[begin] == 0) {
        poison(p, begin, end - begin, stream);
      }
    }
    std::fill_n(covered.begin() + static_cast<std::ptrdiff_t>(first), count, std::uint8_t{1});
  }

  /// Backward has ended: puts the values back. Throws usage_error naming a parameter that was touched after its mark.
  void finish(stream_ref stream) {
    std::string written;
    for (marked const& m : marked_) {
      parameter const& p = parameters_->distinct(m.parameter);
      typed_span const values = p.values().part(m.first, m.count);
      Backend::copy(stream, values.data, m.values.data(), values.bytes());
      if (written.empty() && fnv1a(read(p.gradients().part(m.first, m.count), stream)) != m.gradient_hash) {
        written = p.name;
      }
    }
    stream.synchronize();
    marked_.clear();
    for (auto& covered : covered_) {
      covered.clear();
    }
    if (!written.empty()) {
      refuse(std::string("gradient_ready was called too early for parameter '") + written +
             "': its gradient was written afterwards");
    }
    for (std::size_t p = 0; p < parameters_->distinct_count(); ++p) {
      if (parameters_->distinct(p).trainable()) {
        find_poison(p, stream);
      }
    }
  }

 private:
  struct marked {
    std::size_t parameter;
    std::size_t first;
    std::size_t count;
    std::vector<std::byte> values;
    std::uint64_t gradient_hash;
  };

  // Quiet NaNs whose highest payload bit says that they are ours; what is below is the parameter's number plus one, as far as
  // it fits. 0 in place of a number that doesn't fit.
  template <class Bits>
  struct poison_bits {
    Bits base;
    Bits payload;
  };
  static constexpr poison_bits<std::uint64_t> f64_poison{0x7ffc000000000000U, 0x3ffffffffffffU};
  static constexpr poison_bits<std::uint32_t> f32_poison{0x7fe00000U, 0x1fffffU};
  static constexpr poison_bits<std::uint16_t> f16_poison{0x7f00U, 0xffU};
  static constexpr poison_bits<std::uint16_t> bf16_poison{0x7fe0U, 0x1fU};

  /// Calls `f` with the poison of a type of value or gradient.
  template <class F>
  static decltype(auto) with_poison(element_type type, F&& f) {
    switch (type) {
      case element_type::f64: return f(f64_poison);
      case element_type::f16: return f(f16_poison);
      case element_type::bf16: return f(bf16_poison);
      default: return f(f32_poison);
    }
  }

  static std::vector<std::byte> read(typed_span memory, stream_ref stream) {
    std::vector<std::byte> bytes(memory.bytes());
    Backend::copy(stream, bytes.data(), memory.data, bytes.size());
    stream.synchronize();
    return bytes;
  }

  void poison(std::size_t p, std::size_t first, std::size_t count, stream_ref stream) {
    parameter const& described = parameters_->distinct(p);
    typed_span const values = described.values().part(first, count);
    marked_.push_back({p, first, count, read(values, stream), fnv1a(read(described.gradients().part(first, count), stream))});
    with_poison(values.type, [&]<class Bits>(poison_bits<Bits> poison) {
      bool const fits = p + 1 < poison.payload;
      std::vector<Bits> const nans(count, static_cast<Bits>(poison.base | (fits ? p + 1 : 0)));
      Backend::copy(stream, values.data, nans.data(), values.bytes());
      stream.synchronize();
    });
  }

  /// Throws when the gradient of `p` holds a NaN of ours: something was computed from a marked value.
  void find_poison(std::size_t p, stream_ref stream) const {
    parameter const& described = parameters_->distinct(p);
    std::vector<std::byte> const bytes = read(described.gradients(), stream);
    with_poison(described.gradient_type, [&]<class Bits>(poison_bits<Bits> own) {
      for (std::size_t i = 0; i < bytes.size(); i += sizeof(Bits)) {
        Bits element;
        std::memcpy(&element, bytes.data() + i, sizeof(Bits));
        bool const canonical = (element & own.payload) == own.payload;  // what a GPU makes of every NaN
        if ((element & own.base) == own.base && !canonical) {
          std::size_t const number = origin(element, own, described);
          refuse(std::string("gradient_ready was called too early for ") +
                 (number < parameters_->distinct_count() ? std::string("parameter '") + parameters_->distinct(number).name + "'"
                                                         : std::string("a parameter")) +
                 ": its value was read afterwards, for the gradient of '" + described.name + "'");
        }
      }
    });
  }

  /// The parameter whose NaN this is; distinct_count() when it can't be told, as after a conversion between types.
  template <class Bits>
  [[nodiscard]] std::size_t origin(Bits element, poison_bits<Bits> own, parameter const& described) const {
    std::size_t const number = static_cast<std::size_t>(element & own.payload);
    bool const same_type = described.value_type == described.gradient_type;
    return same_type && number != 0 && number <= parameters_->distinct_count() ? number - 1 : parameters_->distinct_count();
  }

  parameter_list const* parameters_;
  std::vector<std::vector<std::uint8_t>> covered_;  // by distinct parameter and element
  std::vector<marked> marked_;
};

}  // namespace lockstep
