# SPDX-FileCopyrightText: 2026 The lockstep authors
# SPDX-License-Identifier: Apache-2.0
"""Each sentence of a failed static_assert in include/ has its own anchor and a program in tests/fail; each anchor of
docs/concepts.md that a sentence may name is named by one."""

import argparse
import pathlib
import re

import fail
from checks import ROOT, Checks

PAGE = "docs/concepts.md"
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"(?:\s*"((?:[^"\\\n]|\\.)*)")*')
FORM = re.compile(r"lockstep: \S.* must .*; see docs/concepts\.md#([a-z0-9-]+)")
ANCHOR = re.compile(r'<a id="([^"]*)"></a>')


def sentences_of(root):
    """Every sentence in include/ that names a page below docs/."""
    found = []
    for path in sorted((root / "include").rglob("*.[hc][pu]*")):
        for literal in LITERAL.finditer(path.read_text()):
            text = "".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', literal.group(0)))
            if "docs/" in text:
                found.append(text)
    return found


def judge(sentences, page, expectations):
    """What is wrong, as (name of the rule, problems)."""
    named = {}
    malformed = []
    for sentence in sentences:
        match = FORM.fullmatch(sentence)
        if match:
            named.setdefault(match.group(1), set()).add(sentence)
        else:
            malformed.append(sentence)
    anchors = ANCHOR.findall(page)
    twice = sorted({anchor for anchor in anchors if anchors.count(anchor) > 1})
    return [
        ("sentences say `lockstep: <parameter> must <requirement>; see docs/concepts.md#<anchor>`", malformed),
        ("an anchor stands once", twice),
        ("every anchor that a sentence names exists", sorted(set(named) - set(anchors))),
        ("every anchor is named by a sentence", sorted(set(anchors) - set(named))),
        (
            "requirements that differ have anchors that differ",
            [f"{anchor}: {texts}" for anchor, texts in named.items() if len({t.split(" must ", 1)[1] for t in texts}) > 1],
        ),
        ("every sentence has a program in tests/fail", sorted({s for s in sentences if s not in expectations})),
        (
            "every sentence that a program expects exists",
            sorted(e for e in expectations if e.startswith("lockstep: ") and e not in sentences),
        ),
    ]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="the source tree to check")
    root = parser.parse_args().root.resolve()
    checks = Checks()
    sentences = sentences_of(root)
    checks.check("there are sentences", [] if sentences else ["none was found in include/"])
    expectations = {fail.expected(source) for source in (root / "tests/fail").glob("*.cpp")} - {None}
    for name, problems in judge(sentences, (root / PAGE).read_text(), expectations):
        checks.check(name, problems)
    checks.finish()


if __name__ == "__main__":
    main()
