# SPDX-FileCopyrightText: 2026 The lockstep authors
# SPDX-License-Identifier: Apache-2.0
"""The checkers are checked: each rule is broken once, in a small tree of its own or by hand, and must be noticed."""

import pathlib
import subprocess
import sys
import tempfile

import benchmarks
import consumers
import existing_code
import fail
import sentences
import snippets
import tree
from checks import ROOT, Checks, headers_of

sys.path.insert(0, str(ROOT / "tests"))
import count  # noqa: E402

SPDX = "// SPDX-FileCopyrightText: 2026 The lockstep authors\n// SPDX-License-Identifier: Apache-2.0\n"

# What a header holds below its first lines, and the words that its check must say; no words for what is allowed.
DIRECTIONS = {
    ("core/a.hpp", "#include <lockstep/comm/b.hpp>"): "core must not include <lockstep/comm/b.hpp>",
    ("core/a.hpp", "#include <lockstep/core/b.hpp>"): "",
    ("core/a.hpp", "#  include <cuda_runtime.h>"): "needs CUDA",
    ("core/a.hpp", "#include <nccl.h>"): "needs CUDA",
    ("core/a.hpp", "#include <lockstep/core/c.cuh>"): "needs CUDA",
    ("core/a.hpp", '#include "b.hpp"'): "angle brackets",
    ("core/a.hpp", "#include <lockstep/core/none.hpp>"): "does not exist",
    ("core/a.hpp", "#include <lockstep/comm/detail/d.hpp>"): "a detail of another folder",
    ("plan/a.hpp", "#include <lockstep/core/b.hpp>"): "plan must not include",
    ("plan/a.hpp", "#include <zlib.h>"): "standard headers only",
    ("plan/a.hpp", "#include <vector>"): "",
    ("concepts.hpp", "#include <lockstep/backend/host.hpp>"): "concepts.hpp must not include",
    ("backend/a.hpp", "#include <lockstep/comm/b.hpp>"): "backend must not include",
    ("comm/a.hpp", "#include <lockstep/policy/b.hpp>"): "comm must not include",
    ("comm/a.hpp", "#include <lockstep/comm/detail/d.hpp>"): "",
    ("policy/a.hpp", "#include <lockstep/policy/b.hpp>"): "policies must not include each other",
    ("policy/a.hpp", "#include <lockstep/policy/detail/d.hpp>"): "",
    ("policy/a.hpp", "#include <lockstep/replica.hpp>"): "policy must not include",
    ("replica.hpp", "#include <lockstep/policy/b.hpp>"): "replica.hpp must not include",
    ("replica.cuh", "#include <lockstep/policy/b.hpp>"): "replica.hpp must not include",
    ("trainer.hpp", "#include <lockstep/replica.hpp>"): "",
    ("optim/a.hpp", "#include <lockstep/plan/b.hpp>"): "optim must not include",
    ("data/a.hpp", "#include <lockstep/backend/host.hpp>"): "data must not include",
    ("io/a.hpp", "#include <lockstep/backend/host.hpp>"): "",
    ("io/a.hpp", "#include <lockstep/optim/b.hpp>"): "io must not include",
    ("utils/a.hpp", ""): "has no row",
}
OTHERS = ["core/b.hpp", "core/c.cuh", "comm/b.hpp", "comm/detail/d.hpp", "plan/b.hpp", "policy/b.hpp", "policy/detail/d.hpp"]
OTHERS += ["backend/host.hpp", "optim/b.hpp", "replica.hpp"]

# Headers that do not stand alone, and what the compiler must be unhappy with; {} must stand.
HEADERS = {
    "core/good.hpp": ("#include <vector>\ninline std::vector<int> f() { return {}; }", ""),
    "core/lacks_an_include.hpp": ("inline std::vector<int> g() { return {}; }", "vector"),
    "core/warns.hpp": ("inline int h(unsigned long n) { return n; }", "conversion"),
    "core/poisoned.hpp": ("template <class I> I i(I x) { return x; }", "core/poisoned.hpp stands alone"),
    "core/calls_max.hpp": ("#include <limits>\ninline int j() { return std::numeric_limits<int>::max(); }", "max_is_a_macro"),
    "core/two_definitions.hpp": ("int k() { return 1; }", "multiple definition"),
}

# What a project that asked the CMake package printed, for requests with these answers, and the words that the check must say.
ANSWERS = {"": True, "0.2": False, "COMPONENTS/tpu": "no component tpu"}
ANSWERED = ["-- : 1 ", "-- 0.2: 0 ", "-- COMPONENTS/tpu: 0 lockstep has no component tpu", "-- targets: as without CUDA"]
ANSWERED += ["-- headers: there", "CMake Error", "  The component cuda needs", "  the CUDA toolkit, which was not found"]
WRONG_ANSWERS = [
    (ANSWERED, ""),
    (["-- : 0 ", *ANSWERED[1:]], "find_package(lockstep ) must give True"),
    ([*ANSWERED[:1], "-- 0.2: 1 ", *ANSWERED[2:]], "find_package(lockstep 0.2) must give False"),
    ([*ANSWERED[:2], "-- COMPONENTS/tpu: 0 ", *ANSWERED[3:]], "must give no component tpu"),
    ([line for line in ANSWERED if "targets" not in line], "must print: -- targets"),
    ([line for line in ANSWERED if "headers" not in line], "must print: -- headers"),
    (ANSWERED[:-2], "must end with"),
    ([], "find_package(lockstep 0.2) must give False: nothing"),
]

SUMMARY = "[doctest] doctest version is \"2.4.9\"\n[doctest] test cases:  9 |  {} passed | {} failed | {} skipped\n"
# Output, Meson's result and status, and the counts that they must come to.
COUNTS = [
    (SUMMARY.format(9, 0, 0), "OK", 0, (9, 0, 0)),
    (SUMMARY.format(7, 1, 1), "FAIL", 1, (7, 1, 1)),
    (SUMMARY.format(9, 0, 0), "FAIL", 66, (9, 1, 0)),
    (SUMMARY.format(0, 0, 0), "OK", 0, (0, 1, 0)),
    ("\x1b[0m" + SUMMARY.format(9, 0, 0), "OK", 0, (9, 0, 0)),
    ("[doctest] doctest version is \"2.4.9\"\n", "OK", 0, (0, 1, 0)),
    ("", "FAIL", -11, (0, 1, 0)),
    (SUMMARY.format(3, 0, 0), "TIMEOUT", -9, (3, 1, 0)),
    ("", "ERROR", 99, (0, 1, 0)),
    ("hello\n", "OK", 0, (1, 0, 0)),
    ("x\n5 passed, 2 failed, 1 skipped\n", "FAIL", 1, (5, 2, 1)),
    ("5 passed, 0 failed, 1 skipped\n", "FAIL", 1, (5, 1, 1)),
    ("skipped: needs GPUs: 1, found: 0\n", "SKIP", 77, (0, 0, 1)),
]

SENTENCE = "lockstep: a trainer needs a model; see docs/concepts.md#model"
# Status and output of a compiler, and whether that is the failure that SENTENCE asks for.
FAILURES = [
    (1, [f"a.cpp:1:2: error: static assertion failed: {SENTENCE}"], True),
    (1, ["a.cu(7): error: static assertion failed with", f'    "{SENTENCE[:25]}', f'    {SENTENCE[26:]}"'], True),
    (0, [], False),
    (1, ["a.cpp:1:2: error: something else", f"a.cpp:2:2: error: {SENTENCE}"], False),
    (1, ["In file included"] * 15 + [f"a.cpp:1:2: error: {SENTENCE}"], False),
    (1, [f"a.cpp:1:2: note: {SENTENCE}", "a.cpp:1:2: error: other"], False),
]

# Pages, and the words that the check of their snippets must say; no words where nothing is wrong.
QUOTED = "  int twice(int x) {\n    return 2 * x;\n  }\n"
PROGRAM = "#include <cstdio>\nint main() {{ std::printf(\"{}\\n\"); }}\n"
DIFFERENCE = "--- examples/a.cu\n+++ examples/b.cu\n@@ -1,2 +1,2 @@\n int z;\n"
PAGES = {
    "quotes.md": ("```cpp\nint twice(int x) {\n  return 2 * x;\n}\n```\n", ""),
    "quotes_a_part.md": ("- a list\n\n  ```cpp\n  return 2 * x;\n  ```\n", ""),
    "changes_a_quote.md": ("```cpp\nint twice(int x) {\n  return x + x;\n}\n```\n", "no file goes on with:\n  return x + x;"),
    "quotes_half_a_line.md": ("```cpp\nreturn 2\n```\n", "nor quoted"),
    "quotes_nothing.md": ("```cpp\n\n```\n", "it is empty"),
    "quotes_a_build_file.md": ("```cmake\nproject(x)\n```\n\n```meson\nproject('x', 'cpp')\n```\n", ""),
    "changes_a_build_file.md": ("```cmake\nproject(y)\n```\n", "no file goes on with:\n  project(y)"),
    "quotes_another_language.md": ("```meson\nproject(x)\n```\n", "nor quoted"),
    "names_no_language.md": ("```\nint i;\n```\n", "must name its language"),
    "names_another.md": ("```c++\nint i;\n```\n", "write cpp instead"),
    "shows_a_difference.md": (f"```diff\n{DIFFERENCE}-int a;\n+int b;\n```\n", ""),
    "shows_another.md": (f"```diff\n{DIFFERENCE}-int a;\n+int c;\n```\n", "it must have shown:"),
    "names_no_files.md": ("```diff\n-int a;\n+int b;\n```\n", "a diff begins with two lines"),
    "names_a_file_that_is_missing.md": ("```diff\n--- examples/none.cu\n+++ examples/b.cu\n```\n", "No such file"),
    "is_not_closed.md": ("```cpp\nint i;\n", "not closed"),
    "is_no_code.md": ("```sh\nwhatever\n```\n", ""),
    "prints.md": ("```cpp\n" + PROGRAM.format("right") + "```\n\n```text\nright\n```\n", ""),
    "prints_something.md": ("```cpp\n" + PROGRAM.format("any") + "```\n\nProse.\n\n```text\nother\n```\n", ""),
    "prints_else.md": ("```cpp\n" + PROGRAM.format("wrong") + "```\n\n```text\nright\n```\n", "it has printed:\n  wrong"),
    "warns.md": ("```cpp\nint main() { int x; }\n```\n", "unused variable"),
    "fails.md": ("```cpp\nint main() { return 3; }\n```\n", "it ended with 3"),
}
README_PROGRAM = """```cpp
#include <cstdio>
namespace lockstep {
template <class = void> struct peer_all_reduce {};
template <class = void> struct replicate_and_gather {};
struct single_device {};
template <class> constexpr bool works = true;
template <> constexpr bool works<single_device> = false;
}
int main() { std::puts(lockstep::works<lockstep::peer_all_reduce<>> ? "yes" : "no"); }
```

```text
yes
```
"""
ANCHORED = "lockstep: Model must train; see docs/concepts.md#train"
OTHER = "lockstep: Model must rest; see docs/concepts.md#train"
LAX = "lockstep: Model should train; see docs/concepts.md#train"
# Sentences, page and expectations, and the rule that they break; none for what is allowed.
SENTENCES = [
    ([ANCHORED], '<a id="train"></a>', {ANCHORED, "deleted"}, None),
    ([LAX], "", {LAX}, "sentences say"),
    ([ANCHORED], '<a id="train"></a><a id="train"></a>', {ANCHORED}, "an anchor stands once"),
    ([ANCHORED], "", {ANCHORED}, "every anchor that a sentence names exists"),
    ([ANCHORED], '<a id="train"></a><a id="other"></a>', {ANCHORED}, "every anchor is named"),
    ([ANCHORED, OTHER], '<a id="train"></a>', {ANCHORED, OTHER}, "requirements"),
    ([ANCHORED], '<a id="train"></a>', set(), "every sentence has a program"),
    ([ANCHORED], '<a id="train"></a>', {ANCHORED, OTHER}, "every sentence that a program expects"),
]

# Of bench/steps.py: two policies, a loop by hand, and a rival that could be slower and leaner.
MEASURED = {
    "benchmark": "training step",
    "work": "simplenet-64",
    "machine": {"name": "G"},
    "date": "2026-01-02T03:04Z",
    "commit": "c",
    "lines": [
        {"mode": "by hand", "gpus": 1, "settings": {"captured": True}, "median_ms": 2},
        {"mode": "by hand", "gpus": 1, "settings": {"captured": True, "part": "forward and backward"}, "median_ms": 1},
        {"mode": "by hand", "gpus": 1, "settings": {"captured": True, "part": "update"}, "median_ms": 0.5},
        {"mode": "one GPU", "gpus": 1, "settings": {"captured": True}, "median_ms": 3, "peak_bytes": 3 << 20},
        {"mode": "one GPU", "gpus": 1, "settings": {"captured": False}, "median_ms": 4, "peak_bytes": 1 << 20},
        {"mode": "DDP", "gpus": 2, "settings": {"bucket_cap_mb": 25}, "median_ms": 6},
        {"mode": "DDP", "gpus": 2, "settings": {"bucket_cap_mb": 64}, "failed": "it hung"},
        {"mode": "single_device", "gpus": 1, "settings": {}, "median_ms": 2, "peak_bytes": 2 << 20},
        {"mode": "peer_all_reduce", "gpus": 2, "settings": {}, "median_ms": 3},
        {"mode": "replicate_and_gather", "gpus": 2, "settings": {}, "skipped": "no"},
    ],
}
CLAIMS = [
    "simplenet-64,single_device,1,step,ms,2,2,\"by hand, captured\",1.000,G,2026-01-02,c",
    "simplenet-64,single_device,1,step,ms,2,3,\"PyTorch one GPU, captured\",1.500,G,2026-01-02,c",
    "simplenet-64,single_device,1,peak memory,MiB,2,1,\"PyTorch one GPU, called\",0.500,G,2026-01-02,c",
    "simplenet-64,peer_all_reduce,2,step,ms,3,6,\"PyTorch DDP, 25 MB buckets (1 of 2 settings ran)\",2.000,G,2026-01-02,c",
    "simplenet-64,peer_all_reduce,2,communication not hidden,ms,1.5,3,"
    "\"PyTorch DDP, 25 MB buckets (1 of 2 settings ran), less PyTorch one GPU, captured\",2.000,G,2026-01-02,c",
]


def write(root, name, text):
    path = root / "include/lockstep" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SPDX + "#pragma once\n" + text + "\n")
    return path


def wrong(said, words):
    """Whether what a check said fits the words that it must say."""
    if not words:
        return [f"must be allowed, but: {line}" for line in said]
    return [] if any(words in line for line in said) else [f"must say: {words}", f"said: {said}"]


def check_tree(checks):
    for (name, text), words in DIRECTIONS.items():
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for other in OTHERS:
                write(root, other, "")
            write(root, name, text)
            checks.check(f"directions notice: {name}: {text}", wrong(tree.directions(root, f"lockstep/{name}"), words))

    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, other in ("a", "b"), ("b", "c"), ("c", "a"), ("d", "a"):
            write(root, f"core/{name}.hpp", f"#include <lockstep/core/{other}.hpp>")
        checks.check("cycles are noticed", [] if len(tree.cycles(root, headers_of(root))) == 1 else ["must find one cycle"])

        wanted = ["lockstep/core/a.hpp", "lockstep/core/b.hpp"]
        lines = [f"#include <{name}>" for name in wanted]
        for text, words in {
            "\n".join(lines): "",
            lines[0]: "does not include <lockstep/core/b.hpp>",
            "\n".join([*lines, "#include <lockstep/core/c.hpp>"]): "must not include <lockstep/core/c.hpp>",
            "\n".join([*lines, lines[0]]): "twice",
            "\n".join([*lines, "#include <vector>"]): "nothing but includes",
            "\n".join([*lines, "#define X"]): "nothing but includes",
        }.items():
            write(root, "lockstep.hpp", text)
            checks.check(f"umbrella notices: {text!r}", wrong(tree.umbrella(root, "lockstep.hpp", wanted), words))

        for name, text, words in (
            ("a.hpp", SPDX + "#pragma once\n", ""),
            ("b.hpp", SPDX + "\n#pragma once\n", "#pragma once"),
            ("c.cpp", SPDX.replace("Apache-2.0", "MIT"), "Apache"),
            ("d.py", "#!/usr/bin/env python3\n" + SPDX.replace("//", "#"), ""),
            ("e.cpp", "", "SPDX"),
        ):
            (root / name).write_text(text)
            checks.check(f"first lines notice: {name}", wrong(tree.first_lines(root / name), words))

        write(root, "version.hpp", "".join(f"#define LOCKSTEP_VERSION_{p} 1\n" for p in ("MAJOR", "MINOR", "PATCH")))
        for meson, words in ("1.1.1", ""), ("1.1.0", "meson.build says 1.1.0"):
            (root / "meson.build").write_text(f"project(\n  version: '{meson}',\n)\n")
            (root / "CMakeLists.txt").write_text("project(lockstep VERSION 1.1.1 LANGUAGES CXX)\n")
            (root / "CHANGELOG.md").write_text("## [1.1.1] - unreleased\n")
            checks.check(f"versions notice: {meson}", wrong(tree.versions(root), words))

        (root / "scripts").mkdir()
        (root / "scripts/packages.txt").write_text("# package  probe  need\ng++  g++  needed\nzlib1g-dev  <z>  optional\n")
        for command, words in (
            ("grep -o '^[a-z][^ ]*' scripts/packages.txt", ""),
            ("grep -o '^[a-z][a-z+]*' scripts/packages.txt", "the Containerfile installs g++ zlib"),
            ("echo g++ zlib1g-dev", "no command that reads scripts/packages.txt"),
        ):
            (root / "Containerfile").write_text(f"FROM x\nRUN {command} | xargs apt-get install -y\n")
            checks.check(f"container notices: {command}", wrong(tree.container(root), words))

        (root / "tests/core").mkdir(parents=True)
        for name in "one_test.cpp", "two_test.cu":
            (root / "tests/core" / name).touch()
        for listed, words in (["one_test.cpp", "two_test.cu"], ""), (["one_test.cpp"], "two_test.cu is not listed"):
            (root / "tests/meson.build").write_text("".join(f"  'core/{name}',\n" for name in listed))
            checks.check(f"test lists notice: {listed}", wrong(tree.listed_tests(root), words))


def check_headers(checks, cxx):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, (text, _) in HEADERS.items():
            write(root, name, text)
        # One umbrella with a fault that only the linker sees.
        write(root, "lockstep.hpp", "#include <lockstep/core/two_definitions.hpp>")
        script = ROOT / "tests/structure/headers.py"
        answer = subprocess.run(
            [sys.executable, script, "--root", root, *(["--cxx", cxx] if cxx else [])],
            capture_output=True,
            text=True,
            check=False,
        )
        for name, (_, words) in HEADERS.items():
            said = words in answer.stdout if words else f"FAILED: lockstep/{name}" not in answer.stdout
            checks.check(f"headers notice: {name}", [] if said else [f"must say: {words}", *answer.stdout.splitlines()[:60]])
        checks.check("headers end with a failure", [] if answer.returncode == 1 else [f"ended with {answer.returncode}"])


def check_snippets(checks, cxx):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "docs").mkdir()
        (root / "examples").mkdir()
        (root / "examples/quoted.cpp").write_text(QUOTED)
        (root / "examples/a.cu").write_text("int z;\nint a;\n")
        (root / "examples/b.cu").write_text("int z;\nint b;\n")
        (root / "examples/CMakeLists.txt").write_text("project(x)\n")
        (root / "examples/meson.build").write_text("project('x', 'cpp')\n")
        (root / "README.md").write_text(README_PROGRAM)
        for name, (text, _) in PAGES.items():
            (root / "docs" / name).write_text(text)
        answer = subprocess.run(
            [sys.executable, pathlib.Path(snippets.__file__), "--root", root, *(["--cxx", cxx] if cxx else [])],
            capture_output=True,
            text=True,
            check=False,
        )
        reports = answer.stdout.split("FAILED: ")
        for name, (_, words) in PAGES.items():
            mine = [report for report in reports if report.startswith(f"docs/{name}")]
            good = any(words in report for report in mine) if words else not mine
            checks.check(f"snippets notice: {name}", [] if good else [f"must say: {words}", *answer.stdout.splitlines()[:60]])
        readme = [report.split(" with ")[0] for report in reports if report.startswith("README.md")]
        wanted = ["README.md, program 1 under lockstep::single_device"]
        checks.check("snippets notice: README.md under one policy", [] if readme == wanted else [f"said: {readme}"])
        checks.check("snippets end with a failure", [] if answer.returncode == 1 else [f"ended with {answer.returncode}"])


def check_consumers(checks):
    wanted = {"include/a.hpp": b"a", "share/a.pc": None}
    for found, words in (
        ({"include/a.hpp": b"a", "share/a.pc": b"x"}, ""),
        ({"include/a.hpp": b"b", "share/a.pc": b"x"}, "include/a.hpp has other contents"),
        ({"include/a.hpp": b"a"}, "share/a.pc is missing"),
        ({**wanted, "include/a.hpp": b"a", "include/b.hpp": b""}, "include/b.hpp is there"),
    ):
        checks.check(f"installed trees notice: {found}", wrong(consumers.differences(found, wanted), words))
    for text, words in ("${pcfiledir}/../..", ""), ("prefix=/opt/here", "a.pc names /opt/here"):
        checks.check(f"places notice: {text}", wrong(consumers.named_folders({"a.pc": text.encode()}, ["/opt/here"]), words))
    script = "#!/bin/sh\nset -e\n$CXX line.cpp -o line\n"
    for page, words in ("Say:\n\n    $CXX line.cpp -o line\n", ""), ("$CXX line.cpp -o lines\n", "must show: $CXX"):
        checks.check(f"lines of scripts: {page!r}", wrong(consumers.not_shown(script, page), words))
    for lines, words in WRONG_ANSWERS:
        checks.check(f"answers notice: {words}", wrong(consumers.answered_wrongly(lines, ANSWERS), words))
    with tempfile.TemporaryDirectory() as folder:
        ended = consumers.run_all([["true"], ["false"], ["touch", "late"]], folder, {})
        checks.check("a command that fails is the last", wrong(ended, "false ended with 1"))
        checks.check("nothing runs after it", [str(p) for p in pathlib.Path(folder).iterdir()])


def check_benchmarks(checks):
    summary = benchmarks.summary
    table = summary.as_csv(summary.merged([MEASURED]))
    wanted = [",".join(summary.FIELDS), *CLAIMS]
    checks.check("claims are made from results", [] if table.splitlines() == wanted else ["made:", *table.splitlines()])
    later = {**MEASURED, "date": "2026-01-03T00:00Z", "commit": "d"}
    rows = summary.merged([later, MEASURED])
    checks.check("the last measured stays", [] if {r["commit"] for r in rows} == {"d"} else [f"{rows}"])
    page = summary.with_tables(f"a\n{summary.BEGIN}\nold\n{summary.END}\nb\n", summary.read_rows(table))
    lacking = "`simplenet-64` under `replicate_and_gather` on several GPUs"
    checks.check("the page says what was not measured", [] if lacking in page else [page])
    for name, documents, text, words in (
        ("nothing wrong", [MEASURED], page, ""),
        ("an old table", [later], page, "summary.csv is made from the results"),
        ("an old page", [MEASURED], page.replace("1.500", "1.600"), "docs/benchmarks.md is made from summary.csv"),
        ("a page without tables", [MEASURED], "a\n", "docs/benchmarks.md is made from summary.csv"),
    ):
        broken = [rule for rule, problems in benchmarks.judge(documents, table, text) if problems]
        checks.check(f"benchmarks notice: {name}", wrong(broken, words))


def check_existing_code(checks):
    with tempfile.TemporaryDirectory() as folder:
        before, after = (pathlib.Path(folder) / name for name in ("before.cu", "after.cu"))
        before.write_text("int a;\nint b;\n")
        after.write_text("// why\n\nint a;\n  // why\nint c;\n")
        changed = existing_code.changed_lines(before, after)
        checks.check("changed lines are counted", [] if changed == ["< int b;", "> int c;"] else [f"counted {changed}"])
    for lines, page, words in (
        (25, "25 lines", ""),
        (26, "26 lines", "at most 25"),
        (0, "0 lines", "at most 25"),
        (25, "25 changed lines", ""),
        (25, "24 lines", "a.md must say that 25 lines"),
    ):
        checks.check(f"changed lines: {lines}, {page}", wrong(existing_code.judge(["> int x;"] * lines, {"a.md": page}), words))


def check_reading(checks):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        cut = ANCHORED.index("must")
        pieces = f'static_assert(false,\n  "{ANCHORED[:cut]}"\n  "{ANCHORED[cut:]}");\n'
        write(root, "a.hpp", pieces + 'char const* other = "lockstep: no anchor";')
        found = sentences.sentences_of(root)
        checks.check("a sentence in pieces is read", [] if found == [ANCHORED] else [f"read {found}"])
        source = root / "a.cpp"
        for text, wanted in (
            (f"// expect: {ANCHORED}\n\n// more\n", ANCHORED),
            (f"// expect: {ANCHORED[:cut].strip()}\n// {ANCHORED[cut:]}\n\n#include <a>\n", ANCHORED),
            ("// nothing\n", None),
        ):
            source.write_text(SPDX + "\n" + text)
            found = fail.expected(source)
            checks.check(f"an expectation is read: {text!r}", [] if found == wanted else [f"read {found}"])


def main():
    checks = Checks()
    check_consumers(checks)
    check_tree(checks)
    check_headers(checks, sys.argv[1] if len(sys.argv) > 1 else None)
    check_snippets(checks, sys.argv[1] if len(sys.argv) > 1 else None)
    for i, (output, result, status, counts) in enumerate(COUNTS):
        test = {"stdout": output, "result": result, "returncode": status}
        found = count.count(test)[:3]
        checks.check(f"count {i}", [] if found == counts else [f"{test} must count as {counts}, not {found}"])
    for i, (status, lines, good) in enumerate(FAILURES):
        problems = fail.judge(status, lines, SENTENCE)
        checks.check(f"failure {i}", [] if (not problems) == good else [f"{lines} was judged {problems}"])
    for i, (said, page, expectations, broken) in enumerate(SENTENCES):
        rules = [rule for rule, problems in sentences.judge(said, page, expectations) if problems]
        good = len(rules) == 1 and rules[0].startswith(broken) if broken else not rules
        checks.check(f"sentences {i}", [] if good else [f"must break {broken}, and broke {rules}"])
    check_existing_code(checks)
    check_reading(checks)
    check_benchmarks(checks)
    checks.finish()


if __name__ == "__main__":
    main()
