# SPDX-FileCopyrightText: 2026 The lockstep authors
# SPDX-License-Identifier: Apache-2.0
"""Seconds of processor time to compile one program with one trainer, for each compiler that is there."""

import argparse
import datetime
import json
import os
import pathlib
import platform
import resource
import shutil
import statistics
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "tests/consumers/line.cpp"
RUNS = 5
# The budget in CONTRIBUTING.md, in seconds.
BUDGET = {"g++": 3.4, "nvcc": 9.2}


def seconds(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def version_of(compiler):
    """g++ says it in its first line, nvcc in its last."""
    lines = output_of(compiler, "--version")
    return lines[-1] if "nvcc" in compiler else lines[0]


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.machine()


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--out", required=True, type=pathlib.Path)
    arguments.add_argument("--commit", default="", help="what was measured, where there is no repository")
    given = arguments.parse_args()

    flags = ["-std=c++20", "-O2", f"-I{ROOT / 'include'}", "-c", str(PROGRAM), "-o"]
    compilers = {"g++": [os.environ.get("CXX", "g++"), "-pthread"], "nvcc": ["nvcc", "-x", "cu"]}
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, command in compilers.items():
            if shutil.which(command[0]):
                times = [seconds([*command, *flags, f"{folder}/out.o"]) for _ in range(RUNS)]
                rows[name] = {
                    "median_seconds": round(statistics.median(times), 2),
                    "least_seconds": round(min(times), 2),
                    "budget_seconds": BUDGET[name],
                    "version": version_of(command[0]),
                }
    commit = given.commit or output_of("git", "-C", str(ROOT), "describe", "--always", "--dirty")[0]
    document = {
        "benchmark": "compile one trainer, -O2",
        "processor_time": rows,
        "commit": commit,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%MZ"),
        "processor": processor(),
    }
    given.out.write_text(json.dumps(document, indent=2) + "\n")
    print(f"{'compile one trainer':<24}{'median s':>12}{'least s':>12}{'budget s':>12}")
    for name, row in rows.items():
        print(f"{name:<24}{row['median_seconds']:>12}{row['least_seconds']:>12}{row['budget_seconds']:>12}")


main()
