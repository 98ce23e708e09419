# SPDX-FileCopyrightText: 2026 The lockstep authors
# SPDX-License-Identifier: Apache-2.0
"""Each tests/fail/*.cpp must not compile, and its first error must be the sentence in its lines `// expect: <sentence>`."""

import os
import re
import shutil
import subprocess
import threading

from checks import NVCC_FLAGS, Checks, Compilers, run

OLDEST_CLANG = 16
ERROR = re.compile(r"\berror\b")


def find_clang():
    """The newest clang++ on PATH that is new enough, or None."""
    for name in ["clang++", *(f"clang++-{version}" for version in range(40, OLDEST_CLANG - 1, -1))]:
        path = shutil.which(name)
        if path:
            macros = subprocess.run([path, "-E", "-dM", "-x", "c++", "/dev/null"], capture_output=True, text=True, check=False)
            version = re.search(r"__clang_major__ (\d+)", macros.stdout)
            if version and int(version.group(1)) >= OLDEST_CLANG:
                return path
    return None


def expected(source):
    """The sentence that a file must fail with, which may go on in the next comment lines, or None."""
    found = re.search(r"^// expect: (.+(?:\n// .+)*)$", source.read_text(), re.MULTILINE)
    return " ".join(found.group(1).replace("\n//", "").split()) if found else None


def first_error(lines):
    """The first error among the first 15 lines, on one line with single spaces; compilers may fold theirs."""
    lines = lines[:15]
    for i, line in enumerate(lines):
        if ERROR.search(line):
            rest = lines[i + 1 :]
            folded = next((k for k, later in enumerate(rest) if ERROR.search(later)), len(rest))
            return " ".join(" ".join([line, *rest[:folded]]).split())
    return ""


def judge(status, lines, sentence):
    """What is wrong with the way that a file failed to compile."""
    if status == 0:
        return ["it compiles, and must not"]
    if sentence not in first_error(lines):
        return [f"its first error must be: {sentence}", *lines[:15]]
    return []


class Precompiled:
    """What all of tests/fail/ includes, compiled once by each host compiler, when a program needs it: most of its time."""

    def __init__(self, tools):
        self.header = tools.root / "tests/fail/parts.hpp"
        self.scratch = tools.scratch
        self.lock = threading.Lock()  # jobs run in parallel
        self.made = {}

    def flags(self, command):
        """(what is wrong, the arguments that make a command use it)."""
        name = os.path.basename(command[0])
        with self.lock:
            if name not in self.made:
                source = self.scratch / f"{name}.hpp"
                source.write_text(f'#include "{self.header}"\n')
                compiled = source.with_suffix(".hpp.pch" if "clang" in name else ".hpp.gch")
                status, lines = run([*command, "-x", "c++-header", source, "-o", compiled])
                use = ["-include-pch", compiled] if "clang" in name else ["-Winvalid-pch", "-include", source]
                self.made[name] = (lines or [f"{name} ended with {status}"] if status else [], use)
            return self.made[name]


def main():
    tools = Compilers("fail")
    checks = Checks()
    include = f"-I{tools.root / 'include'}"
    hosts = {tools.cxx[0]: [*tools.cxx, "-std=c++20", include]}
    clang = find_clang()
    if clang:
        hosts[clang] = [clang, "-std=c++20", include]
    compilers = dict(hosts)
    if tools.nvcc:
        compilers[tools.nvcc] = [tools.nvcc, *NVCC_FLAGS, include, "-o", "/dev/null", "-c"]
    precompiled = Precompiled(tools)

    sources = sorted((tools.root / "tests/fail").glob("*.cpp"))
    headers = sorted(str(path) for path in (tools.root / "include").rglob("*") if path.is_file())
    jobs = []
    for source in sources:
        sentence = expected(source)
        if sentence is None:
            checks.check(source.name, ["it has no line: // expect: <sentence>"])
            continue
        for compiler, command in compilers.items():
            name = os.path.basename(compiler)

            def work(source=source, sentence=sentence, command=command, is_host=compiler in hosts):
                problems, use = precompiled.flags(command) if is_host else ([], [])
                if problems:
                    return problems, []
                status, lines = run([*command, *(["-fsyntax-only"] if is_host else []), *use, source])
                # Compilers write no list of what they read when they fail: take all headers.
                return judge(status, lines, sentence), [str(source), *headers]

            jobs.append((f"{source.name} | {name} | {' '.join(command)} | {tools.version(command[0])}", work))
    for name, problems in tools.run(jobs).items():
        checks.check("must not compile: " + " with ".join(name.split(" | ")[:2]), problems)
    if sources and not clang:
        checks.skip("programs that must not compile, with clang", f"no clang++ {OLDEST_CLANG} or newer is there")
    if sources and not tools.nvcc:
        checks.skip("programs that must not compile, with nvcc", "nvcc is not there")
    checks.finish()


if __name__ == "__main__":
    main()
