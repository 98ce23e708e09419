# SPDX-FileCopyrightText: 2026 The lockstep authors
# SPDX-License-Identifier: Apache-2.0
"""Measures training steps on this machine's GPUs, ours and then PyTorch's, work by work. Writes OUT/<work>.json and prints
tables.

The programs of ours must have been built: see bench/run.sh.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import time

import summary
from peers.pytorch_step import WORKS, count_gpus

# Variables that change what is measured.
SETTINGS = ("NCCL_", "TORCH_NCCL_", "TORCH_SYMM_MEM_", "CUDA_DEVICE_MAX_", "CUDA_MODULE_LOADING")
ROOT = pathlib.Path(__file__).resolve().parent.parent
ALL_REDUCE = "all-reduce"
# What ours takes at most, starting and choosing algorithms included, and what it usually takes.
OUR_SECONDS = 60
USUAL_SECONDS = 25


def output_of(*command):
    """What a command prints; nothing where it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def lines_of(command, seconds):
    """The JSON lines that a program prints, and why there are none where it printed none."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=seconds, check=False)
        text, ended = done.stdout, f"it ended with {done.returncode}"
    except FileNotFoundError:
        return [], f"{command[0]} was not built"
    except subprocess.TimeoutExpired as late:
        text, ended = (late.stdout or b"").decode(), f"it took longer than {seconds:.0f} s"
        done = None
    lines = []
    for line in text.splitlines():
        if line.startswith("{"):
            lines.append(json.loads(line))
        elif line.startswith("skipped: "):
            ended = line.removeprefix("skipped: ")
    return lines, "" if done and done.returncode == 0 else ended


def machine():
    """The machine and the versions on it, as far as it says."""
    first = (output_of("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").splitlines() or [","])[0]
    name, driver = [part.strip() for part in first.split(",")]
    nvcc = re.search(r"release (\S+), ", output_of("nvcc", "--version"))
    compiler = output_of(*os.environ.get("CXX", "g++").split(), "--version").splitlines()
    return {
        "name": name,
        "gpus": count_gpus(),
        "driver": driver,
        "nvcc": nvcc.group(1) if nvcc else "",
        "compiler": compiler[0] if compiler else "",
        "environment": {key: value for key, value in sorted(os.environ.items()) if key.startswith(SETTINGS)},
    }


def ours_of(build, work, seconds):
    """What our programs print for a work."""
    if work == ALL_REDUCE:
        command = [str(build / "bench/all_reduce_bench")]
    else:
        command = [str(build / f"bench/cuda_step_bench_{WORKS[work].precision}"), "--work", work]
    lines, trouble = lines_of(command, min(seconds, OUR_SECONDS))
    if trouble:
        lines.append({"work": work, "mode": "ours", "gpus": count_gpus(), "settings": {}, "failed": trouble})
    return lines


def rivals_of(work, seconds):
    command = [sys.executable, str(ROOT / "bench/peers/pytorch_step.py"), "--work", work, "--seconds", f"{seconds:.0f}"]
    lines, trouble = lines_of(command, seconds + 15)
    if trouble:
        lines.append({"work": work, "mode": "PyTorch", "gpus": count_gpus(), "settings": {}, "failed": trouble})
    return lines


def print_claims(document):
    rows = summary.rows_of(document)
    if rows:
        print(f"{'policy':<22}{'GPUs':>4}  {'quantity':<24}{'ours':>10}{'rival':>10} {'unit':<4}{'ratio':>7}  rival's best")
    for r in rows:
        print(
            f"{r['policy']:<22}{r['gpus']:>4}  {r['quantity']:<24}{r['ours']:>10}{r['rival']:>10} {r['unit']:<4}{r['ratio']:>7}"
            f"  {r['rival_name']}"
        )
    reasons = {}
    for line in document["lines"]:
        for how in ("failed", "skipped"):
            if how in line:
                settings = ", ".join(f"{key} {value}" for key, value in line["settings"].items())
                reasons.setdefault((how, line["mode"], line["gpus"], line[how]), []).append(settings)
    for (how, mode, gpus, reason), settings in reasons.items():
        which = f", {len(settings)} times" if settings[1:] else f" ({settings[0]})" if settings[0] else ""
        print(f"{how}: {mode}{which}, {gpus} GPUs: {reason}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, type=pathlib.Path, help="the folder that Meson built in")
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--only", required=True, help="works, with commas")
    parser.add_argument("--commit", required=True, help="what is measured")
    parser.add_argument("--seconds", type=float, required=True, help="the most that a rival gets for one work")
    parser.add_argument("--total-seconds", type=float, required=True, help="what does not fit is left out, by name")
    parser.add_argument("--skip-peers", action="store_true", help="measure ours alone")
    given = parser.parse_args()

    end = time.monotonic() + given.total_seconds
    works = given.only.split(",")
    here = machine()
    troubles = 0
    for number, work in enumerate(works):
        print(f"== {work}")
        left = end - time.monotonic()
        if left < USUAL_SECONDS:
            print(f"left out: no time was left for it; name fewer with --only, {work} among them")
            troubles += 1
            continue
        lines = ours_of(given.build, work, left)
        if work != ALL_REDUCE and not given.skip_peers:
            others = len(works) - number - 1
            share = (end - time.monotonic() - others * USUAL_SECONDS) / (others + 1)
            lines += rivals_of(work, max(1.0, min(given.seconds, share)))
        document = {
            "benchmark": "all-reduce" if work == ALL_REDUCE else "training step",
            "work": work,
            "machine": here,
            "commit": given.commit,
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%MZ"),
            "lines": lines,
        }
        (given.out / f"{work}.json").write_text(json.dumps(document, indent=1) + "\n")
        print_claims(document)
        troubles += any("failed" in line and line["mode"] in ("ours", "PyTorch") for line in lines)
    sys.exit(1 if troubles else 0)


if __name__ == "__main__":
    main()
