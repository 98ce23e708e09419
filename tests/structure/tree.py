# SPDX-FileCopyrightText: 2026 The lockstep authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of the source tree that need no compiler: who includes whom, umbrellas, first lines, versions, test lists."""

import argparse
import pathlib
import re
import shlex
import subprocess

from checks import ROOT, Checks, headers_of, includes_of

# What each folder, or file beside the folders, may include. The umbrellas and version.hpp stand outside of it.
ABOVE_COMM = {"core", "plan", "backend", "comm", "concepts.hpp"}
MAY_INCLUDE = {
    "core": {"core"},
    "plan": {"plan"},
    "concepts.hpp": {"core", "plan"},
    "backend": {"core", "plan", "backend", "concepts.hpp"},
    "comm": ABOVE_COMM,
    "policy": ABOVE_COMM | {"policy"},
    "arena.hpp": {"core", "plan"},
    "optimizer_state.hpp": {"core", "plan", "concepts.hpp"},
    "mark_check.hpp": {"core"},
    "bucket_layout.hpp": ABOVE_COMM,
    "step_calls.hpp": {"core", "optim"},
    "step_totals.hpp": {"core", "concepts.hpp", "optim", "step_calls.hpp"},
    "bucket_pipeline.hpp": ABOVE_COMM | {"bucket_layout.hpp", "optimizer_state.hpp", "step_totals.hpp"},
    "replica.hpp": ABOVE_COMM
    | {
        "bucket_layout.hpp",
        "bucket_pipeline.hpp",
        "composes.hpp",
        "mark_check.hpp",
        "optim",
        "optimizer_state.hpp",
        "step_totals.hpp",
    },
    "captured_steps.hpp": {"core"},
    "input_slots.hpp": {"core", "concepts.hpp"},
    "composes.hpp": {"core", "plan", "concepts.hpp", "optim"},
    "trainer.hpp": ABOVE_COMM | {"captured_steps.hpp", "composes.hpp", "input_slots.hpp", "optim", "replica.hpp"},
    "gradient_check.hpp": {"core", "concepts.hpp", "policy", "trainer.hpp"},
    "largest_batch.hpp": {"core"},
    "optim": {"core", "concepts.hpp", "optim"},
    "data": {"core", "plan", "data"},
    "observe": {"core", "observe"},
    "io": {"core", "backend", "io"},
    "version.hpp": set(),
}
# A .cuh file beside the folders obeys the row of its .hpp.
UMBRELLAS = {"lockstep.hpp", "lockstep.cuh"}
NEEDS_ZLIB = {"lockstep/data/gzip.hpp"}
NEEDS_NCCL = {"lockstep/comm/nccl.cuh", "lockstep/comm/nccl_error.cuh", "lockstep/comm/detail/nccl_group.cuh"}
NOT_IN_UMBRELLA = NEEDS_ZLIB | NEEDS_NCCL
CUDA_HEADER = re.compile(r"<(cuda|cub/|thrust/|nccl|nv|cooperative_groups|curand|cusparse|cusolver|device_)|\.cuh")
STANDARD_HEADER = re.compile(r"<[a-z_0-9]+>")


def unit_of(header):
    """lockstep/core/error.hpp -> core; lockstep/replica.cuh -> replica.hpp."""
    first = header.split("/")[1]
    return first.removesuffix(".cuh") + ".hpp" if first.endswith(".cuh") else first


def folder_of(header):
    return header.rsplit("/", 1)[0]


def in_detail(header):
    return folder_of(header).endswith("/detail")


def lockstep_includes(root, header):
    """(line, lockstep header) for each lockstep header that `header` includes."""
    return [(n, i[1:-1]) for n, i in includes_of(root / "include" / header) if i.startswith("<lockstep/")]


def directions(root, header):
    """What breaks the rules among the includes of one header."""
    problems = []
    name = header.removeprefix("lockstep/")
    unit = unit_of(header)
    if name not in UMBRELLAS and unit not in MAY_INCLUDE:
        return [f"{header}: {unit} has no row in the table of tests/structure/tree.py"]
    for line, text in includes_of(root / "include" / header):
        place = f"include/{header}:{line}: "
        target = text[1:-1]
        if not text.startswith("<"):
            problems.append(f"{place}{text} must be included by its full name in angle brackets")
        elif header.endswith(".hpp") and CUDA_HEADER.search(text):
            problems.append(f"{place}{text} needs CUDA, and a .hpp must do without")
        elif text.startswith("<lockstep/"):
            if not (root / "include" / target).exists():
                problems.append(f"{place}{text} does not exist")
            if in_detail(target) and folder_of(header) not in (folder_of(target), folder_of(target).removesuffix("/detail")):
                problems.append(f"{place}{text} is a detail of another folder")
            if name in UMBRELLAS:
                continue
            if unit_of(target) not in MAY_INCLUDE[unit]:
                problems.append(f"{place}{unit} must not include {text}")
            elif unit == unit_of(target) == "policy" and not in_detail(target):
                problems.append(f"{place}policies must not include each other: {text}")
        elif unit == "plan" and not STANDARD_HEADER.fullmatch(text):
            problems.append(f"{place}plan includes standard headers only, not {text}")
    return problems


def cycles(root, headers):
    """Each chain of includes that comes back to where it began, once."""
    graph = {h: [t for _, t in lockstep_includes(root, h)] for h in headers}
    problems = []
    state = {}  # header: "open" while on the path, then "done"
    path = []

    def visit(header):
        state[header] = "open"
        path.append(header)
        for target in graph.get(header, []):
            if state.get(target) == "open":
                problems.append(" includes ".join([*path[path.index(target) :], target]))
            elif target not in state:
                visit(target)
        path.pop()
        state[header] = "done"

    for header in headers:
        if header not in state:
            visit(header)
    return problems


def umbrella(root, name, headers):
    """Whether an umbrella includes exactly `headers`, and holds nothing else."""
    path = root / "include/lockstep" / name
    if not path.exists():
        return [f"include/lockstep/{name} is missing, and there are headers for it"]
    included = [target for _, target in lockstep_includes(root, f"lockstep/{name}")]
    problems = [f"{name} does not include <{h}>" for h in headers if h not in included]
    problems += [f"{name} must not include <{h}>" for h in included if h not in headers]
    problems += [f"{name} includes <{h}> twice" for h in sorted(set(included)) if included.count(h) > 1]
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line and not line.startswith("//") and line != "#pragma once" and not re.fullmatch(r"#include <lockstep/\S+>", line):
            problems.append(f"include/lockstep/{name}:{number}: an umbrella holds nothing but includes")
    return problems


def first_lines(path):
    """Whether a source file begins with the SPDX lines, a header with #pragma once after them."""
    mark = "//" if path.suffix in (".hpp", ".cuh", ".cpp", ".cu") else "#"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#!")]
    wanted = [mark + r" SPDX-FileCopyrightText: \d{4} The lockstep authors", mark + " SPDX-License-Identifier: Apache-2.0"]
    if path.suffix in (".hpp", ".cuh"):
        wanted.append("#pragma once")
    return [
        f"line {i + 1} must be: {want}"
        for i, want in enumerate(wanted)
        if i >= len(lines) or not re.fullmatch(want, lines[i])
    ]


def versions(root):
    """Whether every place that states the version states the same one."""
    header = (root / "include/lockstep/version.hpp").read_text()
    parts = [re.search(rf"#define LOCKSTEP_VERSION_{part} (\d+)", header) for part in ("MAJOR", "MINOR", "PATCH")]
    if None in parts:
        return ["version.hpp lacks one of LOCKSTEP_VERSION_MAJOR, _MINOR, _PATCH"]
    version = ".".join(part.group(1) for part in parts)
    problems = []
    for name, pattern in {
        "meson.build": r"^  version: '([^']*)'",
        "CMakeLists.txt": r"^project\(\s*lockstep\s+VERSION (\S+)",
        "CHANGELOG.md": r"^## \[(\d[^\]]*)\]",
    }.items():
        found = re.search(pattern, (root / name).read_text(), re.MULTILINE)
        if not found or found.group(1) != version:
            problems.append(f"{name} says {found.group(1) if found else 'nothing'}, version.hpp says {version}")
    return problems


def listed_tests(root):
    """Whether every test file is listed in tests/meson.build, and what is listed exists."""
    tests = root / "tests"
    listed = re.findall(r"^\s*'(\S+_test\.(?:cpp|cu))',", (tests / "meson.build").read_text(), re.MULTILINE)
    there = sorted(str(p.relative_to(tests)) for p in tests.rglob("*_test.*") if p.suffix in (".cpp", ".cu"))
    return [f"tests/{name} is not listed in tests/meson.build" for name in there if name not in listed] + [
        f"tests/meson.build lists {name} twice or without its file"
        for name in sorted(set(listed))
        if name not in there or listed.count(name) > 1
    ]


def container(root):
    """Whether the Containerfile installs exactly the packages of scripts/packages.txt: its command that reads them is run."""
    lines = (root / "scripts/packages.txt").read_text().splitlines()
    wanted = [line.split()[0] for line in lines if line and not line.startswith("#")]
    command = re.search(r"\b(grep [^|;&]*) scripts/packages\.txt \| xargs", (root / "Containerfile").read_text())
    if not command:
        return ["the Containerfile has no command that reads scripts/packages.txt"]
    words = [*shlex.split(command.group(1)), root / "scripts/packages.txt"]
    found = subprocess.run(words, capture_output=True, text=True, check=False).stdout.split()
    return [] if found == wanted else [f"the Containerfile installs {' '.join(found)}", f"must be {' '.join(wanted)}"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="the source tree to check")
    root = parser.parse_args().root.resolve()
    checks = Checks()
    headers = headers_of(root)

    for header in headers:
        checks.check(f"directions: {header}", directions(root, header))
    checks.check("no header includes itself through others", cycles(root, headers))

    shown = [h for h in headers if not in_detail(h) and h not in NOT_IN_UMBRELLA]
    plain = [h for h in shown if h.endswith(".hpp") and h != "lockstep/lockstep.hpp"]
    checks.check("umbrella: lockstep.hpp", umbrella(root, "lockstep.hpp", plain))
    cuda = [h for h in shown if h.endswith(".cuh") and h != "lockstep/lockstep.cuh"]
    if cuda:
        checks.check("umbrella: lockstep.cuh", umbrella(root, "lockstep.cuh", ["lockstep/lockstep.hpp", *cuda]))

    named = ("meson.build", "CMakeLists.txt", "Containerfile", "run")
    files = [path for path in root.iterdir() if path.is_file()]
    for folder in ("include", "tests", "examples", "bench", "packaging", "scripts", ".ci"):
        files += (root / folder).rglob("*")
    for path in sorted(files):
        if path.suffix in (".hpp", ".cuh", ".cpp", ".cu", ".py", ".sh", ".cmake", ".in") or path.name in named:
            checks.check(f"first lines: {path.relative_to(root)}", first_lines(path))
    checks.check("the versions agree", versions(root))
    checks.check("the container installs the listed packages", container(root))
    checks.check("every test file is listed", listed_tests(root))
    checks.finish()


if __name__ == "__main__":
    main()
