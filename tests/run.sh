#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The lockstep authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

usage() {
  cat <<'END'
Usage: tests/run.sh [OPTION...]

Builds lockstep's tests in build/ and runs them. Installs what is missing through apt-get (through sudo when not root).
The last line printed is `N passed, N failed, N skipped`; the exit status is 0 when nothing failed.

  --sanitize   also runs the host tests under the address and undefined behaviour sanitizers (in build-asan/) and under
               the thread sanitizer (in build-tsan/)
  --gpu        runs the tests that need one GPU or several, and no others
  --out DIR    writes the results to DIR/tests.json
  -j N         runs N compilers or tests at a time; as many as there are processors without it
  --help       prints this

LOCKSTEP_NO_INSTALL=1 installs nothing, and goes on with what is there.
LOCKSTEP_TEST_SEED=N repeats the property tests with a seed that they printed.
END
}

wrong_use() {
  echo "tests/run.sh: $1; --help lists the options" >&2
  exit 2
}

sanitize=no gpu=no out='' jobs=$(nproc)
while [[ $# -gt 0 ]]; do
  case $1 in
    --sanitize) sanitize=yes ;;
    --gpu) gpu=yes ;;
    --out) [[ $# -gt 1 ]] || wrong_use "--out needs a folder"; out=$2; shift ;;
    -j) [[ $# -gt 1 ]] || wrong_use "-j needs a number"; jobs=$2; shift ;;
    -j*) jobs=${1#-j} ;;
    --help | -h) usage; exit 0 ;;
    *) wrong_use "unknown option $1" ;;
  esac
  shift
done
[[ $jobs =~ ^[1-9][0-9]*$ ]] || wrong_use "-j needs a number from 1"
[[ $sanitize$gpu != yesyes ]] || wrong_use "--sanitize and --gpu do not go together"
report=()
if [[ -n $out ]]; then
  mkdir -p "$out"
  report=(--json "$(cd "$out" && pwd)/tests.json")
fi

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/setup.sh
source scripts/setup.sh
export LOCKSTEP_TEST_JOBS=$jobs
install_missing || { echo "0 passed, 1 failed, 0 skipped"; exit 1; }

logs=() wrapper=() build_all=yes
# Builds a folder, or with build_all=no what its suites need, and runs suites of its tests. What fails is counted, not fatal.
run_tests() {  # LABEL FOLDER 'SUITE...' MESON_OPTION...
  local label=$1 folder=$2 suites
  read -r -a suites <<<"$3"
  shift 3
  echo "== $label"
  rm -f "$folder/meson-logs/testlog.json"
  if configure "$folder" "$@"; then
    if [[ $build_all == no ]]; then
      meson test -C "$folder" --num-processes "$jobs" "${suites[@]/#/--suite=}" || true
    elif ninja -C "$folder" -j "$jobs"; then
      "${wrapper[@]}" meson test -C "$folder" --no-rebuild --num-processes "$jobs" "${suites[@]/#/--suite=}" || true
    fi
  fi
  logs+=("$label=$folder/meson-logs/testlog.json")
}

if [[ $gpu == yes ]]; then
  arch=()
  if nvidia-smi -L >/dev/null 2>&1; then
    arch=(-Dgpu_arch=native)
  fi
  build_all=no
  run_tests gpu build-gpu 'gpu multi_gpu' -Dcuda=enabled "${arch[@]}"
else
  if [[ $sanitize == yes ]]; then
    lean=(-Doptimization=1 -Ddebug=false -Dcuda=disabled -Dblas=disabled -Dexamples=disabled)
    run_tests address build-asan 'host processes' "${lean[@]}" \
      -Db_sanitize=address,undefined '-Dcpp_args=-g1 -fno-sanitize-recover=undefined'
    # Some kernels draw addresses from a range wider than older thread sanitizers know: do without, where that is allowed.
    if setarch -R true 2>/dev/null; then
      wrapper=(setarch -R)
    fi
    run_tests thread build-tsan 'host processes' "${lean[@]}" -Db_sanitize=thread -Dcpp_args=-g1
    wrapper=()
  fi
  run_tests plain build 'host processes structure gpu multi_gpu'
fi
python3 tests/count.py "${report[@]}" "${logs[@]}"
