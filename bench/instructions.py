# SPDX-FileCopyrightText: 2026 The lockstep authors
# SPDX-License-Identifier: Apache-2.0
"""Instructions a training step, counted by callgrind: the trainer beside the loop written by hand.

A run of many steps less a run of few leaves the steps alone: start-up and construction cancel.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import subprocess
import tempfile

CASES = {"by hand": "step: by hand", "trainer": "step: trainer under single_device"}
FEW, MANY = 100, 600


def instructions(program, case, steps):
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out", program, f"--test-case={case}"],
            env={**os.environ, "LOCKSTEP_BENCH_STEPS": str(steps), "OPENBLAS_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
    collected = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or not collected or not re.search(r"test cases:\s*1 \|\s*1 passed", done.stdout):
        raise SystemExit(f"{program} --test-case='{case}' failed:\n{done.stdout}{done.stderr}")
    return int(collected.group(1))


def first_line(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.machine()


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("program")
    arguments.add_argument("--out", required=True, type=pathlib.Path)
    arguments.add_argument("--commit", default="", help="what was measured, where there is no repository")
    given = arguments.parse_args()

    a_step = {
        name: (instructions(given.program, case, MANY) - instructions(given.program, case, FEW)) / (MANY - FEW)
        for name, case in CASES.items()
    }
    ratio = a_step["trainer"] / a_step["by hand"]
    given.out.write_text(
        json.dumps(
            {
                "benchmark": "digits model, batch 64, AdamW: instructions a step under single_device",
                "instructions_a_step": {name: round(count) for name, count in a_step.items()},
                "trainer_over_by_hand": round(ratio, 5),
                "commit": given.commit or first_line("git", "describe", "--always", "--dirty"),
                "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%MZ"),
                "compiler": first_line(os.environ.get("CXX", "g++").split()[0], "--version"),
                "valgrind": first_line("valgrind", "--version"),
                "processor": processor(),
            },
            indent=2,
        )
        + "\n"
    )
    print(f"{'instructions a step':<24}{'count':>12}{'to by hand':>12}")
    for name, count in a_step.items():
        print(f"{name:<24}{count:>12.0f}{count / a_step['by hand']:>12.4f}")


main()
