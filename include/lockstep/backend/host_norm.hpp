// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/backend/host.hpp>
#include <lockstep/core/element_type.hpp>
#include <lockstep/core/update.hpp>
#include <lockstep/plan/split.hpp>

#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep {

/// Element after element. Every call enqueues a task that refers to this object.
template <>
class squared_norm<host> {
 public:
  squared_norm(host::device&, std::vector<gradient_stretch> stretches) : stretches_(std::move(stretches)) {}
  squared_norm(squared_norm const&) = delete;  // tasks know its address
  squared_norm& operator=(squared_norm const&) = delete;

  void run(host::stream_ref stream, plan::range buckets, double* sum) const {
    stream.enqueue([=, this] {
      for (gradient_stretch const& s : stretches_) {
        if (s.bucket >= buckets.first && s.bucket < buckets.end()) {
          *sum += squares(s.gradients);
        }
      }
    });
  }

 private:
  [[nodiscard]] static double squares(typed_span gradients) {
    return visit(gradients.type, [&]<class T>(std::type_identity<T>) {
      auto const* const all = static_cast<T const*>(gradients.data);
      double sum = 0;
      for (std::size_t i = 0; i < gradients.count; ++i) {
        auto const g = static_cast<double>(static_cast<wide<T>>(all[i]));
        sum += g * g;
      }
      return sum;
    });
  }
  // 16-bit types convert to float only.
  template <class T>
  using wide = std::conditional_t<sizeof(T) == 2, float, T>;

  std::vector<gradient_stretch> stretches_;
};

}  // namespace lockstep
