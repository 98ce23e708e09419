// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

#include "update_conformance.hpp"

#include <lockstep/backend/host.hpp>
#include <lockstep/backend/host_update.hpp>

#include <cstdint>
#include <vector>

TEST_CASE("host update: every optimizer, type, size and alignment gives what the formula says") {
  tests::every_optimizer_updates_as_the_formula_says<lockstep::host>();
}

TEST_CASE("host update: many elements are updated as the formula says") {
  tests::many_elements_are_updated_as_the_formula_says<lockstep::host>();
}

TEST_CASE("host update: a range of buckets touches no other") { tests::a_range_of_buckets_touches_no_other<lockstep::host>(); }

TEST_CASE("host update: what is left out is not touched") { tests::what_is_left_out_is_not_touched<lockstep::host>(); }

TEST_CASE("host update: hyperparameters hold for what is prepared later") {
  tests::hyperparameters_hold_for_what_is_prepared_later<lockstep::host>();
}

TEST_CASE("host update: any number of hyperparameters will do") {
  tests::any_number_of_hyperparameters_will_do<lockstep::host>();
}

TEST_CASE("host update: masters are loaded") { tests::masters_are_loaded<lockstep::host>(); }

TEST_CASE("host update: nothing to update is fine") { tests::nothing_to_update_is_fine<lockstep::host>(); }

TEST_CASE("host update: in a stream, memory and hyperparameters are those of the moment when a task runs") {
  lockstep::host::device device;
  float value = 0;
  float const gradient = 1;
  float sum = 0;
  lockstep::update_segment<1> segment;
  segment.value = &value;
  segment.gradient = &gradient;
  segment.slots[0] = &sum;
  segment.count = 1;
  lockstep::elementwise_update<lockstep::host, tests::summing> update{device, {segment}};
  std::uint64_t applied = 0;
  lockstep::step_decision decision{.skipped = 1};
  {
    lockstep::host::stream const stream{device};
    std::vector<tests::summing> optimizers{{.rate = 1}};
    update.set(stream, optimizers);
    optimizers[0].rate = 1000;  // a copy was taken
    update.prepare(stream, &applied);
    stream.enqueue([&] { decision = {.factor = 2}; });
    update.run(stream, {0, 1}, &decision, nullptr);  // sum = 2, value = -2
    optimizers[0].rate = 10;
    update.set(stream, optimizers);
    update.run(stream, {0, 1}, &decision, nullptr);  // sum = 4; `rate` is read by the call: value = -42
    stream.synchronize();
  }
  CHECK(sum == 4.0F);
  CHECK(value == -42.0F);
}
