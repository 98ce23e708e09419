#!/bin/sh
# SPDX-FileCopyrightText: 2026 The lockstep authors
# SPDX-License-Identifier: Apache-2.0
# LOCKSTEP: a copy of the repository, or the prefix of an installed one.
set -e
# shellcheck disable=SC2086 # each holds several words
$CUDACXX -std=c++20 $CUDAFLAGS -I "$LOCKSTEP/include" line.cu -o line
