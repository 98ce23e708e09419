#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The lockstep authors
# SPDX-License-Identifier: Apache-2.0
#
# Builds the examples in build/ and runs build/examples/digits with the options given here; --help lists them.
# Installs what is missing through apt-get (through sudo when not root). What it says of that goes to standard error.
# Exit status 77: the example cannot be built here, and why stands on standard error.
set -euo pipefail

# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/setup.sh"

prepare() {
  install_missing
  configure "$root/build"
  if ! ninja -C "$root/build" -t query examples/digits >/dev/null 2>&1; then
    echo "skipped: build/examples/digits is not part of the build here; it needs examples/digits.cpp and libcli11-dev"
    exit 77
  fi
  ninja -C "$root/build" examples/digits
}
prepare >&2
exec "$root/build/examples/digits" "$@"
