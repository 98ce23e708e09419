#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The lockstep authors
# SPDX-License-Identifier: Apache-2.0
#
# Trains a classifier of handwritten digits with the options given here; --help lists them. Without options, with the defaults,
# and then for a few epochs in f16, with all that people set around a step. Where nvcc and a GPU are there, on the GPUs, and
# beside them on the host; elsewhere on the host. The first line says which.
# Builds the example in build-gpu/ or build/. Installs what is missing through apt-get (through sudo when not root). What it
# says of that goes to standard error.
# Exit status 77: the example cannot be built here, and why stands on standard error.
set -euo pipefail

# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/setup.sh"

folder=$root/build program=digits options=()
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true)
if ! command -v nvcc >/dev/null; then
  echo "On the host: nvcc is not there"
elif [[ $gpus -eq 0 ]]; then
  echo "On the host: nvcc is there, a GPU is not"
else
  echo "On the GPUs ($gpus), and beside them on the host"
  folder=$root/build-gpu program=digits_cuda options=(-Dcuda=enabled -Dgpu_arch=native)  # the folder of tests/run.sh --gpu
fi

prepare() {
  install_missing
  configure "$folder" "${options[@]}"
  if ! ninja -C "$folder" -t query "examples/$program" >/dev/null 2>&1; then
    echo "skipped: examples/$program is not part of the build here; digits_cuda needs cuBLASLt"
    exit 77
  fi
  ninja -C "$folder" "examples/$program"
}
prepare >&2
if [[ $# -eq 0 ]]; then
  "$folder/examples/$program"
  set -- --precision f16 --epochs 5 --warmup 20 --schedule cosine --clip 1 --micro-batches 2 --seeds 2
  printf '\nWith %s\n' "$*"
fi
exec "$folder/examples/$program" "$@"
