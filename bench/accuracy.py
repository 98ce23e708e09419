# SPDX-FileCopyrightText: 2026 The lockstep authors
# SPDX-License-Identifier: Apache-2.0
"""Trains the example's classifier on MNIST in several precisions, with everything that stands around a step, and writes the test
accuracies of five seeds each."""

import argparse
import datetime
import json
import pathlib
import subprocess
import sys
import tempfile

from steps import machine

SETTINGS = (
    "--data mnist --policy single_device --host no --epochs 10 --batch 64 --warmup 100 --schedule cosine --clip 1"
    " --micro-batches 2 --seeds 5"
).split()
PRECISIONS = ("f32", "bf16", "f16")


def trained(program, precision):
    """What the program writes with --json; None, and a line why, where it ended otherwise than with 0."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "run.json"
        done = subprocess.run(
            [program, *SETTINGS, "--precision", precision, "--json", file], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            print(f"failed: {precision} ended with {done.returncode}: {(done.stdout + done.stderr).strip()[-200:]}")
            return None
        return json.loads(file.read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", help="examples/digits_cuda")
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--commit", required=True, help="what is measured")
    given = parser.parse_args()

    runs = {precision: trained(given.program, precision) for precision in PRECISIONS}
    lines = [
        {"precision": precision, **{key: run["runs"][0][key] for key in ("accuracies", "mean", "spread")}}
        for precision, run in runs.items()
        if run
    ]
    document = {
        "benchmark": "accuracy",
        "work": "mnist-accuracy",
        "settings": " ".join(SETTINGS),
        "machine": machine(),
        "commit": given.commit,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%MZ"),
        "lines": lines,
    }
    given.out.write_text(json.dumps(document, indent=1) + "\n")
    for line in lines:
        print(f"{line['precision']:<6}{100 * line['mean']:>8.2f} %  +- {100 * line['spread']:.2f}")
    sys.exit(0 if len(lines) == len(PRECISIONS) else 1)


if __name__ == "__main__":
    main()
