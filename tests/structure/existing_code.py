# SPDX-FileCopyrightText: 2026 The lockstep authors
# SPDX-License-Identifier: Apache-2.0
"""What lockstep takes of a program that is there already: examples/existing_code/after.cu differs from before.cu in few lines.

Counted are the lines that `diff` says were removed and those it says were added, without blank lines and comments.
"""

import argparse
import pathlib
import re

from checks import ROOT, Checks, run

MOST = 25
UNCOUNTED = re.compile(r"\s*(//.*)?")


def changed_lines(before, after):
    """The lines of `diff before after` that count."""
    status, lines = run(["diff", before, after])
    if status not in (0, 1):
        return lines
    return [line for line in lines if line[:2] in ("< ", "> ") and not UNCOUNTED.fullmatch(line[2:])]


def judge(changed, pages):
    """What is wrong with the number of changed lines, or with what pages, {name: text}, say of it."""
    problems = []
    if not 0 < len(changed) <= MOST:
        problems += [f"{len(changed)} lines were changed, and at most {MOST} may be:", *changed]
    for name, text in pages.items():
        if not re.search(rf"\b{len(changed)} (changed )?lines", text):
            problems.append(f"{name} must say that {len(changed)} lines were changed")
    return problems


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="the source tree to check")
    root = parser.parse_args().root.resolve()
    checks = Checks()
    programs = root / "examples/existing_code"
    changed = changed_lines(programs / "before.cu", programs / "after.cu")
    pages = {name: (root / name).read_text() for name in ("README.md", "docs/existing_code.md")}
    checks.check("changed lines of existing code", judge(changed, pages))
    checks.finish()


if __name__ == "__main__":
    main()
