#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The lockstep authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

usage() {
  cat <<'END'
Usage: bench/run.sh [OPTION...]

Builds the benchmarks, runs them, writes DIR/*.json and prints tables. Where nvidia-smi lists GPUs, measures training steps on
them beside PyTorch's, which must be installed; elsewhere, instructions of a step on the host, and compile time. Takes at most
8 minutes on GPUs: what does not fit is left out, by name. Installs what is missing through apt-get (through sudo when not
root). bench/summary.py then merges what lies in bench/results/ into its table and docs/benchmarks.md.

  --only WORK,...  measures only these. On GPUs: simplenet-64, mlp4096-1024, mlp4096-8192, mlp4096-8192-tf32,
                   mlp4096-8192-f32, mlp4096-8192-pinned, all-reduce, mnist-accuracy. Anywhere: instructions,
                   compile-time
  --out DIR        where results go; bench/results/ without it
  --commit ID      what is measured, where that can't be asked of git
  --skip-peers     measures ours alone
  --seconds N      the most that a rival gets for one work (default: 90)
  --help           prints this

LOCKSTEP_NO_INSTALL=1 installs nothing, and goes on with what is there.
END
}

wrong_use() {
  echo "bench/run.sh: $1; --help lists the options" >&2
  exit 2
}

begin=$SECONDS
only='' out=bench/results commit='' seconds=90 peers=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --only | --out | --commit | --seconds) [[ $# -gt 1 ]] || wrong_use "$1 needs a value" ;;&
    --only) only=$2; shift ;;
    --out) mkdir -p "$2"; out=$(cd "$2" && pwd); shift ;;
    --commit) commit=$2; shift ;;
    --seconds) seconds=$2; shift ;;
    --skip-peers) peers=(--skip-peers) ;;
    --help | -h) usage; exit 0 ;;
    *) wrong_use "unknown option $1" ;;
  esac
  shift
done
[[ $seconds =~ ^[1-9][0-9]*$ ]] || wrong_use "--seconds needs a number from 1"

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/setup.sh
source scripts/setup.sh
mkdir -p "$out"
commit=${commit:-$(git describe --always --dirty 2>/dev/null || echo unknown)}
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ' || true)

on_gpus='simplenet-64 mlp4096-1024 mlp4096-8192 mlp4096-8192-tf32 mlp4096-8192-f32 mlp4096-8192-pinned mnist-accuracy'
if [[ $gpus -gt 1 ]]; then
  on_gpus+=' all-reduce'
fi
if [[ -z $only ]]; then
  only=$([[ $gpus -gt 0 ]] && echo "${on_gpus// /,}" || echo instructions,compile-time)
fi
works=() instructions=no compile_time=no accuracy=no
for work in ${only//,/ }; do
  case " instructions compile-time $on_gpus " in
    *" $work "*) ;;
    *) wrong_use "$work is not something to measure here (GPUs found: $gpus)" ;;
  esac
  case $work in
    instructions) instructions=yes ;;
    compile-time) compile_time=yes ;;
    mnist-accuracy) accuracy=yes ;;
    *) works+=("$work") ;;
  esac
done
[[ $gpus -gt 0 || ${#works[@]} -eq 0 ]] || wrong_use "${works[0]} needs a GPU, and none is there"
[[ $gpus -gt 0 || $accuracy == no ]] || wrong_use "mnist-accuracy needs a GPU, and none is there"

if [[ $instructions == yes ]]; then
  install_missing bench
  configure build-bench -Dbench=enabled -Dtests=disabled -Dexamples=disabled -Dcuda=disabled >&2
  ninja -C build-bench >&2
  python3 bench/instructions.py build-bench/bench/step_bench --commit "$commit" --out "$out/step_instructions.json"
fi
if [[ $compile_time == yes ]]; then
  install_missing
  python3 bench/compile_time.py --commit "$commit" --out "$out/compile_time.json"
fi
if [[ ${#works[@]} -gt 0 || $accuracy == yes ]]; then
  install_missing
  configure build-bench-cuda -Dbench=enabled -Dtests=disabled -Dexamples=enabled -Dcuda=enabled -Dgpu_arch=native >&2
fi
if [[ $accuracy == yes ]]; then
  echo "== mnist-accuracy"
  ninja -C build-bench-cuda examples/digits_cuda >&2
  python3 bench/accuracy.py build-bench-cuda/examples/digits_cuda --commit "$commit" --out "$out/mnist-accuracy.json"
fi
if [[ ${#works[@]} -gt 0 ]]; then
  targets=()
  for work in "${works[@]}"; do
    case $work in
      all-reduce)
        ninja -C build-bench-cuda bench/all_reduce_bench >&2 || echo "all-reduce could not be built: is NCCL there?" ;;
      simplenet-64 | *-f32) targets+=(bench/cuda_step_bench_f32) ;;
      *-tf32) targets+=(bench/cuda_step_bench_tf32) ;;
      *) targets+=(bench/cuda_step_bench_bf16) ;;
    esac
  done
  if [[ ${#targets[@]} -gt 0 ]]; then
    ninja -C build-bench-cuda "${targets[@]}" >&2
  fi
  only=$(IFS=,; echo "${works[*]}")
  python3 bench/steps.py --build build-bench-cuda --out "$out" --only "$only" --commit "$commit" --seconds "$seconds" \
    --total-seconds $((470 - SECONDS + begin)) "${peers[@]}"
fi
