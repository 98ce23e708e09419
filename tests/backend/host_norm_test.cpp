// SPDX-FileCopyrightText: 2026 The lockstep authors
// SPDX-License-Identifier: Apache-2.0

#include "norm_conformance.hpp"

#include <lockstep/backend/host_norm.hpp>

TEST_CASE("host norm: squares are added up, whatever types, sizes and alignments") {
  tests::squares_are_added_up<lockstep::host>();
}

TEST_CASE("host norm: what is not finite is found, wherever it lies") { tests::what_is_not_finite_is_found<lockstep::host>(); }
