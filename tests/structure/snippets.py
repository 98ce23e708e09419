# SPDX-FileCopyrightText: 2026 The lockstep authors
# SPDX-License-Identifier: Apache-2.0
"""The code on the pages is true: a whole program compiles and prints what the page says, anything else is quoted from a file.

A ```cpp block with `int main` is a program; a ```text block right behind it is its output. The programs of README.md print the
same under every policy. Every other ```cpp block is some lines of a file below examples/, tests/ or include/, indentation
aside, and a ```cmake or ```meson block is some lines of a build file there. A ```diff block is the whole difference of the two
files that its first lines name, with one line of context.
"""

import hashlib
import os
import re

from checks import NVCC_FLAGS, WARNINGS, Checks, Compilers, run
from fail import OLDEST_CLANG, find_clang

# Which files each language is quoted from, by the ends of their names.
QUOTED_FROM = {
    "cpp": (".hpp", ".cuh", ".cpp", ".cu"),
    "cmake": ("CMakeLists.txt", ".cmake"),
    "meson": ("meson.build",),
}
FENCE = re.compile(r"^ *(`{3,})(.*)$")
PROGRAM = re.compile(r"^int main\b", re.MULTILINE)
# The policy that README.md names, and the others, each with the devices that it takes where it can't take several.
POLICY = "lockstep::peer_all_reduce<>"
OTHER_POLICIES = {"lockstep::single_device": "lockstep::devices::first(1)", "lockstep::replicate_and_gather<>": None}
DEVICES = re.compile(r"lockstep::devices::(first\(\d+\)|all\(\))")


class Block:
    """What stands between two fences: its language, the number of its first line, its lines without common indentation."""

    def __init__(self, language, line, lines):
        self.language = language
        self.line = line
        depth = min((len(text) - len(text.lstrip()) for text in lines if text.strip()), default=0)
        self.lines = [text[depth:].rstrip() for text in lines]
        self.text = "".join(text + "\n" for text in self.lines)
        self.is_program = language == "cpp" and PROGRAM.search(self.text) is not None
        self.output = None  # of a program, where the page shows it


def blocks_of(text):
    """The fenced blocks of a page, each program with the output that is shown right behind it."""
    blocks = []
    fence = None
    before = None  # the program that a block at this line would show the output of
    for number, line in enumerate(text.splitlines(), 1):
        match = FENCE.match(line)
        if fence is None and match:
            fence, start, lines = match.group(1), number + 1, []
            language = match.group(2).strip()
        elif fence is not None and match and match.group(1) == fence and not match.group(2).strip():
            block = Block(language, start, lines)
            if before and language == "text":
                before.output = block.lines
            before = block if block.is_program else None
            blocks.append(block)
            fence = None
        elif fence is not None:
            lines.append(line)
        elif line.strip():
            before = None
    if fence is not None:
        blocks.append(Block("a fence that is not closed", start, []))
    return blocks


def bare(lines):
    """Lines without indentation, as one text that begins and ends at a line end."""
    return "\n" + "".join(line.strip() + "\n" for line in lines)


def sources_of(root):
    """{language: the text of every file that may be quoted}."""
    folders = (root / folder for folder in ("examples", "tests", "include"))
    files = [path for folder in folders for path in sorted(folder.rglob("*"))]
    return {
        language: [bare(path.read_text().splitlines()) for path in files if path.name.endswith(ends)]
        for language, ends in QUOTED_FROM.items()
    }


def not_quoted(block, sources):
    """What is wrong with a block that is no program."""
    if block.language == "a fence that is not closed":
        return [block.language]
    if not block.language:
        return ["a fence must name its language: cpp, text, sh, cmake, ..."]
    if block.language in ("c++", "cxx", "cc", "hpp", "cuda"):
        return [f"write cpp instead of {block.language}: such a block is checked"]
    if block.language not in QUOTED_FROM:
        return []
    sources = sources[block.language]
    wanted = bare(block.lines)
    if not wanted.strip():
        return ["it is empty"]
    if any(wanted in source for source in sources):
        return []
    # Name the line up to which some file agrees.
    known = max(
        (n for n in range(len(block.lines)) if any(bare(block.lines[:n]) in source for source in sources)), default=0
    )
    return [
        "it is neither a program nor quoted from a file below examples/, tests/ or include/; no file goes on with:",
        block.lines[known].strip(),
    ]


def not_the_difference(block, root):
    """What is wrong with a diff block."""
    named = [line.split()[1:] for line in block.lines[:2]]
    if [line[:4] for line in block.lines[:2]] != ["--- ", "+++ "] or any(len(words) != 1 for words in named):
        return ["a diff begins with two lines: --- and a file, +++ and a file"]
    status, lines = run(["diff", "-U1", named[0][0], named[1][0]], root)
    if status not in (0, 1):
        return lines
    return difference(block.lines[2:], [line.rstrip() for line in lines[2:]], "shown")


def other_policies(text):
    """A program of README.md under each policy that it doesn't name: {policy: text}."""
    programs = {policy: text.replace(POLICY, policy) for policy in OTHER_POLICIES if POLICY in text}
    return {p: DEVICES.sub(OTHER_POLICIES[p], t) if OTHER_POLICIES[p] else t for p, t in programs.items()}


def difference(printed, wanted, verb="printed"):
    """What is wrong with the lines that a program printed, or a page shows; any are right where none are wanted."""
    printed = [line.rstrip() for line in printed]
    if wanted is None or printed == wanted:
        return []
    return [f"it must have {verb}:", *wanted, f"it has {verb}:", *printed]


def main():
    tools = Compilers("snippets")
    checks = Checks()
    include = f"-I{tools.root / 'include'}"
    host_flags = ["-std=c++20", *WARNINGS, include]
    hosts = {tools.cxx[0]: [*tools.cxx, *host_flags]}
    clang = find_clang()
    if clang:
        hosts[clang] = [clang, *host_flags]
    sources = sources_of(tools.root)
    jobs = []

    def add(name, text, command, work):
        stamp = hashlib.sha256(text.encode()).hexdigest()
        compiler = os.path.basename(command[0])
        jobs.append((f"{name} | {compiler} | {' '.join(command)} | {tools.version(command[0])} | {stamp}", work))

    def add_program(name, text, output, command):
        def work():
            stem = re.sub(r"\W+", "_", f"{name} {os.path.basename(command[0])}")
            problems, files, compiled = tools.compile(stem, text, command)
            program = compiled.with_suffix("")
            if not problems:
                status, problems = run([*command, "-pthread", compiled, "-o", program])
                problems = problems or ([f"the linker ended with {status}"] if status else [])
            if not problems:
                status, printed = run([program])
                problems = [f"it ended with {status}", *printed] if status else difference(printed, output)
            return problems, files

        add(name, f"{text}\n{output}", command, work)

    def add_cuda(name, text):
        command = [tools.nvcc, *NVCC_FLAGS, include]

        def work():
            problems, files, _ = tools.compile(re.sub(r"\W+", "_", name), text, command, ".cu")
            return problems, files

        add(name, text, command, work)

    for page in [tools.root / "README.md", *sorted((tools.root / "docs").rglob("*.md"))]:
        if not page.exists():
            checks.check("pages", [f"{page} is missing"])
            continue
        title = page.relative_to(tools.root)
        programs = 0
        for block in blocks_of(page.read_text()):
            if not block.is_program:
                problems = not_the_difference(block, tools.root) if block.language == "diff" else not_quoted(block, sources)
                checks.check(f"{title}:{block.line}", problems)
                continue
            programs += 1
            name = f"{title}, program {programs}"
            for command in hosts.values():
                add_program(name, block.text, block.output, command)
            if tools.nvcc:
                add_cuda(name, block.text)
            for policy, text in other_policies(block.text).items() if title.name == "README.md" else ():
                add_program(f"{name} under {policy}", text, block.output, hosts[tools.cxx[0]])

    for name, problems in tools.run(jobs).items():
        checks.check(" with ".join(name.split(" | ")[:2]), problems[:40])
    if jobs and not clang:
        checks.skip("the programs of the pages, with clang", f"no clang++ {OLDEST_CLANG} or newer is there")
    if jobs and not tools.nvcc:
        checks.skip("the programs of the pages, with nvcc", "nvcc is not there")
    checks.finish()


if __name__ == "__main__":
    main()
