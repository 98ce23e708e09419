# SPDX-FileCopyrightText: 2026 The lockstep authors
# SPDX-License-Identifier: Apache-2.0
"""Counted checks, and compiler runs that are remembered while nothing they read has changed."""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Wsign-conversion", "-Werror"]
NVCC_FLAGS = ["-std=c++20", "-x", "cu", "-Werror", "all-warnings"]


class Checks:
    """Counts what passed, failed and was skipped; says why for the last two."""

    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def check(self, name, problems):
        """One check: passes if `problems` is empty, else prints each of its lines."""
        if not problems:
            self.passed += 1
            return
        self.failed += 1
        print(f"FAILED: {name}")
        for problem in problems:
            print(f"  {problem}")

    def skip(self, name, reason):
        self.skipped += 1
        print(f"skipped: {name}: {reason}")

    def finish(self):
        print(f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped")
        sys.exit(1 if self.failed else 0)


class Compilers:
    """The command line that the compiling checks share, and their runs of compilers."""

    def __init__(self, name):
        parser = argparse.ArgumentParser()
        parser.add_argument("--cxx", default=os.environ.get("CXX", "g++"), help="C++ compiler, with its arguments")
        parser.add_argument("--nvcc", help="CUDA compiler; without it what needs one is skipped")
        parser.add_argument("--zlib", action="store_true", help="zlib's header is there")
        parser.add_argument("--nccl", action="store_true", help="NCCL's header and library are there")
        parser.add_argument("--cache", type=pathlib.Path, help="folder that remembers what passed")
        parser.add_argument("--jobs", type=int, default=int(os.environ.get("LOCKSTEP_TEST_JOBS", os.cpu_count() or 1)))
        parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="the source tree to check")
        options = parser.parse_args()
        self.cxx = options.cxx.split()
        self.nvcc = options.nvcc
        self.zlib = options.zlib
        self.nccl = options.nccl
        self.root = options.root.resolve()
        self.jobs = max(1, options.jobs)
        self.folder = tempfile.TemporaryDirectory(prefix="lockstep-")  # removed with this object
        self.scratch = pathlib.Path(self.folder.name)
        self.cache_file = options.cache / f"{name}.json" if options.cache else None
        self.cache = {}
        if self.cache_file and self.cache_file.exists():
            try:
                self.cache = json.loads(self.cache_file.read_text())
            except ValueError:
                pass  # cut short when last written: everything runs again
        self.versions = {}

    def version(self, command):
        if command not in self.versions:
            answer = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
            self.versions[command] = answer.stdout
        return self.versions[command]

    def run(self, jobs):
        """Runs every (name, work) pair, `work()` returning (problems, files read). Returns {name: problems}. A job is
        left out while its name passed before and each file that it read then has the same time and size."""
        results = {}
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            pending = {}
            for name, work in jobs:
                stamp = self.cache.get(name)
                if stamp and all(stamp_of(file) == seen for file, seen in stamp.items()):
                    results[name] = []
                else:
                    self.cache.pop(name, None)
                    pending[pool.submit(work)] = name
            for future in concurrent.futures.as_completed(pending):
                problems, files = future.result()
                results[pending[future]] = problems
                if not problems:
                    self.cache[pending[future]] = {file: stamp_of(file) for file in files}
        if self.cache_file:
            self.cache_file.parent.mkdir(parents=True, exist_ok=True)
            partial = self.cache_file.with_suffix(".part")
            partial.write_text(json.dumps(self.cache))
            partial.replace(self.cache_file)
        return {name: results[name] for name, _ in jobs}

    def compile(self, stem, text, command, suffix=".cpp"):
        """Compiles `text`; returns (output lines, files read, object). No lines mean that it compiled."""
        source = self.scratch / (stem + suffix)
        source.write_text(text)
        output = source.with_suffix(".o")
        dependencies = source.with_suffix(".d")
        status, lines = run([*command, "-c", source, "-o", output, "-MD", "-MF", dependencies])
        if status != 0:
            return lines or [f"{command[0]} ended with {status}"], [], output
        return [], [file for file in read_dependencies(dependencies) if file != str(source)], output


def run(command, folder=None, environment=None):
    """Runs a command, in a folder and with some variables of its own; returns its status and what it printed, as lines."""
    answer = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        cwd=folder,
        env={**os.environ, "LC_ALL": "C", **(environment or {})},
        check=False,
    )
    return answer.returncode, answer.stdout.splitlines()


def stamp_of(file):
    try:
        state = os.stat(file)
    except OSError:
        return None
    return [state.st_mtime_ns, state.st_size]


def read_dependencies(file):
    """The absolute paths in a compiler's .d file."""
    text = file.read_text().replace("\\\n", " ").split(": ", 1)[1]
    return [os.path.abspath(name.replace("\\ ", " ")) for name in re.findall(r"(?:\\ |\S)+", text)]


def headers_of(root):
    """Paths of all headers below include/, as they are included: lockstep/core/error.hpp."""
    include = root / "include"
    return sorted(str(p.relative_to(include)) for p in include.rglob("*") if p.suffix in (".hpp", ".cuh"))


def includes_of(path):
    """What a file includes: (line number, text with its brackets or quotes)."""
    found = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = re.match(r'\s*#\s*include\s*(<[^>]*>|"[^"]*"|\S+)', line)
        if match:
            found.append((number, match.group(1)))
    return found
