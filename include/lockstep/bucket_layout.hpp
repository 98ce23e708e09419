// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/comm/agreement.hpp>
#include <lockstep/comm/bucket_memory.hpp>
#include <lockstep/concepts.hpp>
#include <lockstep/core/element_type.hpp>
#include <lockstep/core/options.hpp>
#include <lockstep/core/parameter_list.hpp>
#include <lockstep/plan/buckets.hpp>
#include <lockstep/plan/order.hpp>
#include <lockstep/plan/readiness.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace lockstep {

/// Which parts of a rank's parameters travel together, in the order in which all ranks send them. Laid out twice: at the
/// meeting, for parameters that become ready backwards; and in the first step, before anything is sent, in the order in which
/// rank 0's gradients became ready.
template <class Backend>
class bucket_layout {
 public:
  /// Requires: device and `parameters` outlive this object.
  bucket_layout(typename Backend::device& device, parameter_list const& parameters, tuning const& sizes)
      : device_(&device), parameters_(&parameters), sizes_(sizes) {}

  /// Collective. The buckets of parameters without gradients are laid out once.
  template <class Communicator>
  void meet(agreement<Backend, Communicator> const& meeting) {
    lay_out({}, meeting);
    std::vector<plan::piece> pieces;
    for (std::size_t p = 0; p < parameters_->distinct_count(); ++p) {
      if (!parameters_->distinct(p).trainable()) {
        pieces.push_back(piece_of(p, 0, parameters_->distinct(p).count()));
      }
    }
    if (!pieces.empty()) {
      buffers_ = memory_of(std::move(pieces), meeting);
    }
  }

  /// What became ready in the first step, in order.
  void record(plan::mark const& part) { recorded_.push_back(part); }

  /// Collective, with nothing pending: rank 0's order is everyone's from now on. False when rank 0 has marked nothing, and
  /// everything stays as it is.
  template <class Communicator>
  bool adopt_order(agreement<Backend, Communicator> const& meeting) {
    std::vector<std::uint64_t> words;
    for (plan::mark const& m : recorded_) {
      words.insert(words.end(), {m.parameter, m.first, m.count});
    }
    recorded_ = {};
    words = meeting.from_root(std::move(words));
    std::vector<plan::mark> marks;
    for (std::size_t i = 0; i + 2 < words.size(); i += 3) {
      marks.push_back({words[i], words[i + 1], words[i + 2]});
    }
    if (!marks.empty()) {
      lay_out(marks, meeting);
    }
    return !marks.empty();
  }

  [[nodiscard]] bucket_memory<Backend> const& gradients() const noexcept { return *gradients_; }
  [[nodiscard]] plan::readiness& readiness() noexcept { return readiness_; }

  /// The buckets of the parameters that have no gradients; null where there are none.
  [[nodiscard]] bucket_memory<Backend> const* buffers() const noexcept { return buffers_ ? &*buffers_ : nullptr; }

  /// The stretches of distinct parameters that remain when each span of gradients is cut to `owned(elements of the span)`.
  template <class Owned>
  [[nodiscard]] plan::owned_stretches owned(Owned&& owned) const {
    plan::owned_stretches mine;
    for (std::size_t b = 0; b < gradients_->size(); ++b) {
      gradients_->each_owned(b, owned, [&](std::size_t p, std::size_t first, std::size_t count) {
        mine.stretches.push_back({p, first, count});
        mine.buckets.push_back(b);
      });
    }
    return mine;
  }

 private:
  template <class Communicator>
  void lay_out(std::span<plan::mark const> marks, agreement<Backend, Communicator> const& meeting) {
    std::vector<std::size_t> counts(parameters_->distinct_count());
    for (std::size_t p = 0; p < counts.size(); ++p) {
      counts[p] = parameters_->distinct(p).count();
    }
    std::vector<plan::piece> pieces;
    for (plan::mark const& part : plan::cut_and_order(counts, marks)) {
      if (parameters_->distinct(part.parameter).trainable()) {
        pieces.push_back(piece_of(part.parameter, part.first, part.count));
      }
    }
    retired_ = std::move(gradients_);  // kept: giving its memory back may have to wait for other ranks' devices
    gradients_ = memory_of(std::move(pieces), meeting);
    if (!Backend::asynchronous) {
      retired_.reset();
    }
    readiness_ = gradients_->readiness();
  }

  template <class Communicator>
  std::optional<bucket_memory<Backend>> memory_of(std::vector<plan::piece> pieces,
                                                  agreement<Backend, Communicator> const& meeting) const {
    meeting.find_neighbours(pieces, *parameters_);
    std::vector<plan::bucket> buckets = plan::plan_buckets(pieces, sizes_.bucket_bytes, sizes_.stage_below_bytes);
    return std::optional<bucket_memory<Backend>>{std::in_place, *device_, *parameters_, std::move(pieces), std::move(buckets)};
  }

  [[nodiscard]] plan::piece piece_of(std::size_t p, std::size_t first, std::size_t count) const {
    parameter const& described = parameters_->distinct(p);
    element_type const travels = described.trainable() ? described.gradient_type : described.value_type;
    auto const kind = static_cast<std::uint32_t>(described.sync) << 16U |
                      static_cast<std::uint32_t>(described.value_type) << 8U | static_cast<std::uint32_t>(travels);
    return {p, first, count, kind, static_cast<std::uint32_t>(size_of(travels)), plan::none};
  }

  typename Backend::device* device_;
  parameter_list const* parameters_;
  tuning sizes_;
  std::optional<bucket_memory<Backend>> gradients_;
  std::optional<bucket_memory<Backend>> buffers_;
  std::optional<bucket_memory<Backend>> retired_;
  plan::readiness readiness_;
  std::vector<plan::mark> recorded_;
};

}  // namespace lockstep
