#!/bin/sh
# SPDX-FileCopyrightText: 2026 The lockstep authors
# SPDX-License-Identifier: Apache-2.0
set -e
# shellcheck disable=SC2046,SC2086 # each holds several words
$CXX -std=c++20 $CXXFLAGS line.cpp $(pkg-config --cflags --libs lockstep) -o line
