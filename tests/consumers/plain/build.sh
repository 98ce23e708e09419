#!/bin/sh
# SPDX-FileCopyrightText: 2026 The lockstep authors
# SPDX-License-Identifier: Apache-2.0
# LOCKSTEP: a copy of the repository, or the prefix of an installed one.
set -e
# shellcheck disable=SC2086 # each holds several words
$CXX -std=c++20 $CXXFLAGS -pthread -I "$LOCKSTEP/include" line.cpp -o line
