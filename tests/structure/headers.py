# SPDX-FileCopyrightText: 2026 The lockstep authors
# SPDX-License-Identifier: Apache-2.0
"""Every header stands alone, macros of other people do not break it, and two units that include all of them link.

A header that reads the same through g++ and nvcc is compiled alone by the first and with the others by the second.
"""

import os
import pathlib
import re

from checks import NVCC_FLAGS, WARNINGS, Checks, Compilers, headers_of, includes_of, run
from tree import NEEDS_NCCL, NEEDS_ZLIB, in_detail

# Names that other people's headers define as macros. Each becomes something that compiles nowhere. The headers of C++, POSIX
# and zlib come through all of them, those of CUDA and NCCL not through the last.
POISONED = """I small near far IN OUT OPTIONAL ERROR DEBUG TRUE FALSE ASSERT LOG PI Bool None Status Success Always linux unix
verify DIM BLOCK_SIZE WARP_SIZE CEIL_DIV CUDA_CHECK cudaCheck""".split()
HOST_POISONED = "N MIN MAX SIZE major minor".split()
CUDA_POISON = [f"-D{name}=@{name}_is_a_macro_of_somebody" for name in POISONED]
POISON = CUDA_POISON + [f"-D{name}=@{name}_is_a_macro_of_somebody" for name in HOST_POISONED]
# Standard headers do not come through these two, so they are defined behind them: (std::min)(a, b) is what works.
FUNCTION_POISON = "#define min(a, b) @min_is_a_macro_of_somebody\n#define max(a, b) @max_is_a_macro_of_somebody\n"
CUDA_CONDITION = re.compile(r"^\s*#.*__CUDA", re.MULTILINE)
CUDA_FILE = re.compile(r"/cuda[^/]*/|/(cuda|nccl|driver_types|vector_types)[^/]*$")


def main():
    tools = Compilers("headers")
    checks = Checks()
    jobs = []
    include = f"-I{tools.root / 'include'}"
    plain = [*tools.cxx, "-std=c++20", *WARNINGS, include]
    cuda = [tools.nvcc, *NVCC_FLAGS, include]

    headers = headers_of(tools.root)
    for needing, there, what in (NEEDS_ZLIB, tools.zlib, "zlib"), (NEEDS_NCCL, tools.nccl, "NCCL"):
        for header in sorted(needing & set(headers)) if not there else []:
            headers.remove(header)
            checks.skip(f"{header} stands alone", f"{what} is not there")
    hosts = [h for h in headers if h.endswith(".hpp")]

    def add(name, command, work):
        # The command and the compiler's version are part of the name, so that another of either runs again.
        jobs.append((f"{name} | {' '.join(command)} | {tools.version(command[0])}", work))

    def add_alone(header, command, suffix):
        def work():
            text = f"#include <{header}>\n#include <{header}>\n"
            stem = header.replace("/", "_") + suffix[1:]
            problems, files, _ = tools.compile(stem, text, command, suffix)
            if not problems and suffix == ".cpp":
                problems = [
                    f"{header} reads {file}, which is CUDA's"
                    for file in files
                    if not pathlib.Path(file).is_relative_to(tools.root)
                    and (CUDA_FILE.search(file) or CUDA_FILE.search(os.path.realpath(file)))
                ]
            return problems, files

        add(f"{header} stands alone, {os.path.basename(command[0])}", command, work)

    def add_all(name, command, prologue, suffix):
        def work():
            text = prologue + "".join(f"#include <{h}>\n" for h in hosts)
            problems, files, _ = tools.compile(f"all_{suffix[1:]}", text, command, suffix)
            return problems, files

        add(name, command, work)

    def add_two_units(command, header, extra, suffix):
        def work():
            text = f"#include <{header}>\n" + extra
            first, files, one = tools.compile(f"unit_one_{suffix[1:]}", text + "int main() {}\n", command, suffix)
            second, _, two = tools.compile(f"unit_two_{suffix[1:]}", text, command, suffix)
            if first or second:
                return first or second, []
            linker = [*tools.cxx, "-pthread"] if suffix == ".cpp" else [command[0], "-Xcompiler=-pthread"]
            libraries = [flag for flag, name in (("-lz", "gzip"), ("-lnccl", "nccl")) if name in extra]
            status, lines = run([*linker, one, two, "-o", one.with_suffix(""), *libraries])
            return (lines or [f"the linker ended with {status}"]) if status else [], files

        add(f"two units that include {header} link", command, work)

    for header in hosts:
        add_alone(header, [*plain, *POISON], ".cpp")
    standard = sorted({i for h in hosts for _, i in includes_of(tools.root / "include" / h) if not i.startswith("<lockstep/")})
    standard_includes = "".join(f"#include {name}\n" for name in standard)
    add_all("headers come through macros min(a, b) and max(a, b)", plain, standard_includes + FUNCTION_POISON, ".cpp")
    gzip = "#include <lockstep/data/gzip.hpp>\n" if "lockstep/data/gzip.hpp" in hosts else ""
    add_two_units(plain, "lockstep/lockstep.hpp", gzip, ".cpp")

    if tools.nvcc:
        add_all("headers come through nvcc", [*cuda, *CUDA_POISON], "", ".cu")
        for header in headers:
            if header.endswith(".cuh") or CUDA_CONDITION.search((tools.root / "include" / header).read_text()):
                add_alone(header, [*cuda, *CUDA_POISON], ".cu")
        if "lockstep/lockstep.cuh" in headers:
            beside = sorted(h for h in NEEDS_NCCL & set(headers) if not in_detail(h))
            add_two_units(cuda, "lockstep/lockstep.cuh", "".join(f"#include <{h}>\n" for h in beside), ".cu")
    else:
        checks.skip("headers stand alone through nvcc", "nvcc is not there")

    for name, problems in tools.run(jobs).items():
        checks.check(name.split(" | ")[0], problems[:40])
    checks.finish()


if __name__ == "__main__":
    main()
