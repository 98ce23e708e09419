#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The lockstep authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

usage() {
  cat <<'END'
Usage: bench/run.sh [--out DIR]

Builds the benchmarks in build-bench/, runs them, writes DIR/*.json (bench/results/ without --out) and ends with a table.
Installs what is missing through apt-get (through sudo when not root).
END
}

out=bench/results
while [[ $# -gt 0 ]]; do
  case $1 in
    --out) [[ $# -gt 1 ]] || { usage >&2; exit 2; }; mkdir -p "$2"; out=$(cd "$2" && pwd); shift ;;
    --help | -h) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/setup.sh
source scripts/setup.sh
install_missing bench
mkdir -p "$out"
configure build-bench -Dbench=enabled -Dtests=disabled -Dexamples=disabled -Dcuda=disabled >&2
ninja -C build-bench >&2
python3 bench/instructions.py build-bench/bench/step_bench --out "$out/step_instructions.json"
python3 bench/compile_time.py --out "$out/compile_time.json"
