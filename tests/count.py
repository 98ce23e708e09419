# SPDX-FileCopyrightText: 2026 The lockstep authors
# SPDX-License-Identifier: Apache-2.0
"""Counts what Meson's test logs say, down to single doctest cases, prints the output of what failed, and ends with the line
`N passed, N failed, N skipped`. Exit status: 0 when nothing failed."""

import argparse
import json
import pathlib
import re
import subprocess
import sys

DOCTEST = re.compile(
    r"^\[doctest\] test cases:\s*(\d+)\s*\|\s*(\d+) passed\s*\|\s*(\d+) failed\s*(?:\|\s*(\d+) skipped)?", re.MULTILINE
)
COUNTS = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", re.MULTILINE)
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def count(test):
    """(passed, failed, skipped, why) of one test of Meson's log. A program that prints no counts is one check."""
    output = COLOURS.sub("", test["stdout"])
    result = test["result"]
    if result == "SKIP":
        reasons = [line for line in output.splitlines() if line.startswith("skipped")]
        return 0, 0, 1, reasons[0] if reasons else "skipped, without a reason"
    good = result == "OK"
    doctest, counts = DOCTEST.findall(output), COUNTS.findall(output)
    if doctest:
        _, passed, failed, skipped = (int(n or 0) for n in doctest[-1])
        if good and passed + skipped == 0:
            return 0, 1, 0, "it has no test case"
    elif "[doctest] doctest version" in output:
        return 0, 1, 0, "it ended before its summary"
    elif counts:
        passed, failed, skipped = map(int, counts[-1])
    else:
        passed, failed, skipped = (1, 0, 0) if good else (0, 0, 0)
    why = "" if good else f"{result.lower()}, status {test['returncode']}"
    if not good and failed == 0:
        failed = 1  # it crashed, ran too long, or a sanitizer spoke after the last case
    return passed, failed, skipped, why


def machine(root):
    """What a reader of results from a GPU wants to know of where they come from."""

    def answer(*command):
        try:
            return subprocess.run(command, capture_output=True, text=True, check=True, cwd=root).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return ""

    return {
        "commit": answer("git", "describe", "--always", "--dirty", "--abbrev=40"),
        "gpus": answer("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").splitlines(),
        "nvcc": answer("nvcc", "--version").split("\n")[-1],
        "compiler": answer("c++", "--version").split("\n")[0],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("logs", nargs="*", help="LABEL=build/meson-logs/testlog.json; missing, it counts as failed")
    parser.add_argument("--json", type=pathlib.Path, help="write the results to this file")
    options = parser.parse_args()

    totals = [0, 0, 0]
    results = []
    for argument in options.logs:
        label, _, log = argument.partition("=")
        log = pathlib.Path(log)
        tests = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        if not tests:
            reason = f"no test ran: {log} is empty or missing; what came before says why\n"
            tests = [{"name": "build", "result": "FAIL", "returncode": 1, "duration": 0, "stdout": reason}]
        for test in sorted(tests, key=lambda test: test["name"]):
            passed, failed, skipped, why = count(test)
            for i, n in enumerate((passed, failed, skipped)):
                totals[i] += n
            name = f"{label}: {test['name'].split(' / ')[-1].removeprefix('lockstep:')}"
            results.append(
                {"name": name, "passed": passed, "failed": failed, "skipped": skipped, "why": why, "seconds": test["duration"]}
            )
            if failed:
                results[-1]["output"] = test["stdout"][-20000:]
                print(f"\n==== {name} ====\n{test['stdout']}{test.get('stderr', '')}")
            elif skipped:
                for line in test["stdout"].splitlines():
                    if line.startswith("skipped"):
                        print(f"{name}: {line}")

    print()
    for result in results:
        counts = f"{result['passed']} passed, {result['failed']} failed, {result['skipped']} skipped"
        print(f"{result['name']:<40} {counts:<40} {result['why']}")
    if options.json:
        names = ("passed", "failed", "skipped")
        root = pathlib.Path(__file__).resolve().parents[1]
        document = {**machine(root), **dict(zip(names, totals)), "tests": results}
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    print(f"{totals[0]} passed, {totals[1]} failed, {totals[2]} skipped")
    sys.exit(1 if totals[1] else 0)


if __name__ == "__main__":
    main()
