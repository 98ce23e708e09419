# SPDX-FileCopyrightText: 2026 The lockstep authors
# SPDX-License-Identifier: Apache-2.0
"""The table of benchmarks holds what the result files say, and docs/benchmarks.md what the table says."""

import argparse
import json
import pathlib
import sys

from checks import ROOT, Checks

sys.path.insert(0, str(ROOT / "bench"))
import summary  # noqa: E402

REPAIR = "run python3 bench/summary.py"


def judge(documents, table, page):
    """What is wrong, as (name of the rule, problems)."""
    rows = summary.read_rows(table)
    try:
        right = page == summary.with_tables(page, rows)
        problems = [] if right else [f"docs/benchmarks.md does not hold the tables of bench/results/summary.csv; {REPAIR}"]
    except ValueError as error:
        problems = str(error).splitlines()
    current = table == summary.as_csv(summary.merged(documents))
    return [
        ("summary.csv is made from the results", [] if current else [f"bench/results/summary.csv is out of date; {REPAIR}"]),
        ("docs/benchmarks.md is made from summary.csv", problems),
    ]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="the source tree to check")
    root = parser.parse_args().root.resolve()
    checks = Checks()
    results = root / "bench/results"
    documents = [json.loads(path.read_text()) for path in sorted(results.glob("*.json"))]
    for name, problems in judge(documents, (results / "summary.csv").read_text(), (root / "docs/benchmarks.md").read_text()):
        checks.check(name, problems)
    checks.finish()


if __name__ == "__main__":
    main()
