# SPDX-FileCopyrightText: 2026 The lockstep authors
# SPDX-License-Identifier: Apache-2.0
"""Merges bench/results/*.json into bench/results/summary.csv, one row a claim, and writes its tables into docs/benchmarks.md.

A claim is one quantity of ours beside the best that a rival reached, on the same machine in the same run. Of claims about the
same, the last measured stays.
"""

import csv
import io
import json
import pathlib

from peers.pytorch_step import WORKS

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench/results"
TABLE = RESULTS / "summary.csv"
PAGE = ROOT / "docs/benchmarks.md"
FIELDS = "work,policy,gpus,quantity,unit,ours,rival,rival_name,ratio,machine,date,commit".split(",")
# What the page gets between these lines.
BEGIN = "<!-- made by bench/summary.py: begin -->"
END = "<!-- made by bench/summary.py: end -->"

BY_HAND = "by hand"
# What does the same job in PyTorch.
PYTORCH = {"single_device": "one GPU", "replicate_and_gather": "DataParallel", "peer_all_reduce": "DDP", "sharded_optimizer": "DDP"}
PARALLEL = ("replicate_and_gather", "peer_all_reduce", "sharded_optimizer")
SETTINGS = {
    "compiled": lambda on: "compiled" if on else "",
    "captured": lambda on: "captured" if on else "called",
    "bucket_cap_mb": lambda size: f"{size} MB buckets",
    "loss": lambda where: f"loss {where}",
}


# ---- rows of one document ----------------------------------------------------------------------------------------------------


def rounded(value):
    """Whole numbers above 1,000, four digits below."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def row(document, work, policy, gpus, quantity, unit, ours, rival, rival_name):
    ratio = f"{rival / ours:.3f}" if rival is not None and rival > 0 and ours > 0 else ""
    values = [work, policy, gpus, quantity, unit, rounded(ours), "" if rival is None else rounded(rival), rival_name, ratio]
    values += [document["machine"]["name"], document.get("date", "")[:10], document["commit"]]
    return dict(zip(FIELDS, map(str, values)))


def name_of(line):
    """PyTorch DDP, compiled, captured, 64 MB buckets"""
    settings = [SETTINGS[key](value) for key, value in line["settings"].items() if key in SETTINGS]
    title = "by hand" if line["mode"] == BY_HAND else f"PyTorch {line['mode']}"
    return ", ".join([title, *filter(None, settings)])


def best(lines, mode, gpus, of="median_ms", **settings):
    """The line with the least `of`; None when there is none."""
    fitting = [
        line
        for line in lines
        if line["mode"] == mode
        and line["gpus"] == gpus
        and of in line
        and all(line["settings"].get(key) == value for key, value in settings.items())
    ]
    return min(fitting, key=lambda line: line[of], default=None)


def step_rows(document):
    """Of a document of bench/steps.py: its lines are ours and PyTorch's, {mode, gpus, settings, median_ms, ...}."""
    work, lines = document["work"], document["lines"]
    rows = []

    def add(line, quantity, unit, ours, rival, rival_name):
        rows.append(row(document, work, line["mode"], line["gpus"], quantity, unit, ours, rival, rival_name))

    hand = best(lines, BY_HAND, 1, part=None)
    parts = [best(lines, BY_HAND, 1, part=part) for part in ("forward and backward", "update")]
    alone = best(lines, "one GPU", 1)
    for line in lines:
        if line["mode"] not in PYTORCH or "median_ms" not in line:
            continue
        if "rules" in line["settings"]:
            plain = best(lines, line["mode"], line["gpus"], rules=None)
            if plain:
                add(line, f"step with {line['settings']['rules']}", "ms", line["median_ms"], plain["median_ms"], "without them")
            continue
        mode = PYTORCH[line["mode"]]
        rival = best(lines, mode, line["gpus"])
        settings = [other for other in lines if other["mode"] == mode and other["gpus"] == line["gpus"]]
        ran = sum("median_ms" in other for other in settings)
        partly = f" ({ran} of {len(settings)} settings ran)" if ran < len(settings) else ""
        if line["mode"] == "single_device" and hand:
            add(line, "step", "ms", line["median_ms"], hand["median_ms"], name_of(hand))
        if rival:
            add(line, "step", "ms", line["median_ms"], rival["median_ms"], name_of(rival) + partly)
        if line["mode"] in PARALLEL and None not in parts:
            left = line["median_ms"] - sum(part["median_ms"] for part in parts)
            theirs = rival["median_ms"] - alone["median_ms"] if rival and alone else None
            title = f"{name_of(rival)}{partly}, less {name_of(alone)}" if theirs is not None else ""
            add(line, "communication not hidden", "ms", left, theirs, title)
        least = best(lines, mode, line["gpus"], of="peak_bytes")
        if "peak_bytes" in line and least:
            add(line, "peak memory", "MiB", line["peak_bytes"] / 2**20, least["peak_bytes"] / 2**20, name_of(least) + partly)
    return rows


def precision_rows(documents):
    """Of one work in several precisions, measured together: the step in bf16 beside those in f32, with and without TF32, and the
    memory of activations."""
    rows = []
    narrow = documents.get("mlp4096-8192")
    for work, title in (("mlp4096-8192-f32", "f32"), ("mlp4096-8192-tf32", "f32 in TF32")):
        wide = documents.get(work)
        if not narrow or not wide or narrow["commit"] != wide["commit"] or narrow["date"][:10] != wide["date"][:10]:
            continue
        ours, theirs = (best(one["lines"], "single_device", 1, rules=None) for one in (narrow, wide))
        if not ours or not theirs:
            continue
        what = (narrow["work"], "single_device", 1)
        rows.append(row(narrow, *what, "step in bf16", "ms", ours["median_ms"], theirs["median_ms"], f"ours in {title}"))
        activations = [line["memory"]["activations"] / 2**20 for line in (ours, theirs)]
        rows.append(row(narrow, *what, "activations in bf16", "MiB", *activations, f"ours in {title}"))
    return rows


def all_reduce_rows(document):
    """Of bench/comm/all_reduce_bench.cu: lines of a communicator and of calls by hand, {mode, gpus, bytes, median_ms, ...}."""
    rows = []
    for line in document["lines"]:
        if line["mode"] == BY_HAND or "median_ms" not in line:
            continue
        same = [other for other in document["lines"] if other.get("bytes") == line["bytes"] and other["gpus"] == line["gpus"]]
        hand = best(same, BY_HAND, line["gpus"], captured=line["settings"]["captured"])
        if hand:
            how = "captured" if line["settings"]["captured"] else "called"
            quantity = f"{size_of(line['bytes'])}, {how}"
            times = [1000 * one["median_ms"] for one in (line, hand)]
            rows.append(row(document, "all-reduce", line["mode"], line["gpus"], quantity, "us", *times, name_of(hand)))
    return rows


def accuracy_rows(document):
    """Of bench/accuracy.py: the mean test accuracy of each precision beside that of f32. The ratio is theirs to ours."""
    lines = {line["precision"]: line for line in document["lines"]}
    rows = []
    for precision, line in lines.items():
        if precision != "f32" and "f32" in lines:
            quantity = f"test accuracy in {precision}, {len(line['accuracies'])} seeds"
            means = [100 * one["mean"] for one in (line, lines["f32"])]
            rows.append(row(document, document["work"], "single_device", 1, quantity, "%", *means, "ours in f32"))
    return rows


def size_of(count):
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:g} {unit}"
    return f"{count} B"


def update_rows(document):
    """Of bench/update/update_bench.cu: the time of an update beside that of copying as many bytes, in the same run."""
    whole = {**document, "machine": {"name": document["gpu"]}}
    rows = []
    for line in document["rows"]:
        if not line["name"].startswith("copy") and line["elements"] > 1 << 24:
            copying = line["bytes"] / document["copy_gb_per_second"] / 1000
            what = ("update-134M", "single_device", 1, line["name"], "us")
            rows.append(row(whole, *what, line["median_us"], copying, "copying as many bytes"))
    return rows


def instruction_rows(document):
    counts = document["instructions_a_step"]
    whole = {**document, "machine": {"name": document["processor"]}}
    what = ("digits-64 on the host", "single_device", 0, "instructions a step", "instructions")
    return [row(whole, *what, counts["trainer"], counts["by hand"], BY_HAND)]


def compile_rows(document):
    whole = {**document, "machine": {"name": document.get("processor", "")}}
    rows = []
    for compiler, times in document["processor_time"].items():
        what = ("one trainer, -O2", "peer_all_reduce", 0, f"compile with {compiler}", "s")
        rows.append(row(whole, *what, times["median_seconds"], times["budget_seconds"], "its budget"))
    return rows


def rows_of(document):
    """The claims of one result file; none of a report of tests."""
    if "tests" in document:
        return []
    if "instructions_a_step" in document:
        return instruction_rows(document)
    if "processor_time" in document:
        return compile_rows(document)
    kinds = {
        "training step": step_rows,
        "all-reduce": all_reduce_rows,
        "elementwise update on one GPU": update_rows,
        "accuracy": accuracy_rows,
    }
    return kinds[document["benchmark"]](document)


# ---- the table and the page --------------------------------------------------------------------------------------------------


def merged(documents):
    """All rows, in the order of works; of rows about the same, the last measured."""
    order = [*WORKS, "update-134M", "all-reduce", "mnist-accuracy"]
    last = {}
    documents = list(documents)
    for document in sorted(documents, key=lambda one: one.get("date", "")):
        rows = rows_of(document)
        about = {(r["work"], r["policy"], r["gpus"]) for r in rows}
        last = {key: r for key, r in last.items() if (r["work"], r["policy"], r["gpus"]) not in about}
        for r in rows:
            last[(r["work"], r["policy"], r["gpus"], r["quantity"], r["rival_name"])] = r
    for r in precision_rows({d["work"]: d for d in documents if d.get("benchmark") == "training step"}):
        last[(r["work"], r["policy"], r["gpus"], r["quantity"], r["rival_name"])] = r
    return sorted(
        last.values(), key=lambda r: (order.index(r["work"]) if r["work"] in order else len(order), r["work"], int(r["gpus"]))
    )


def as_csv(rows):
    text = io.StringIO()
    writer = csv.DictWriter(text, FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def not_measured(rows):
    """Sentences about what has no row."""
    lacking = []
    for work in WORKS:
        here = [r for r in rows if r["work"] == work]
        if not here:
            lacking.append(f"`{work}`, on any number of GPUs")
            continue
        if not any(r["gpus"] == "1" for r in here):
            lacking.append(f"`{work}` on one GPU")
        lacking += [
            f"`{work}` under `{policy}` on several GPUs" for policy in PARALLEL if not any(r["policy"] == policy for r in here)
        ]
    if not any(r["work"] == "all-reduce" for r in rows):
        lacking.append("all-reduce against size")
    return lacking


def tables(rows):
    """What stands between the two lines of the page."""
    text = []
    for work in dict.fromkeys(r["work"] for r in rows):
        text += [f"### {work}", ""]
        text += ["| policy | GPUs | quantity | ours | rival's best | rival | ratio | measured |"]
        text += ["| --- | --- | --- | --- | --- | --- | --- | --- |"]
        for r in (r for r in rows if r["work"] == work):
            gpus = r["gpus"] if r["gpus"] != "0" else "none"
            rival = f"{r['rival']} {r['unit']}" if r["rival"] else ""
            measured = ", ".join(filter(None, (r["machine"], r["date"], r["commit"])))
            cells = [r["policy"], gpus, r["quantity"], f"{r['ours']} {r['unit']}", rival, r["rival_name"], r["ratio"], measured]
            text.append("| " + " | ".join(cells) + " |")
        text.append("")
    lacking = not_measured(rows)
    if lacking:
        text += ["### Not measured yet", "", *(f"- {one}" for one in lacking), ""]
    return "\n".join(text)


def with_tables(page, rows):
    """The page with the tables of `rows` between its two lines. Throws ValueError for a page without these lines."""
    before, _, rest = page.partition(BEGIN + "\n")
    _, end, after = rest.partition(END + "\n")
    if not end:
        raise ValueError(f"the page must hold the lines\n{BEGIN}\n{END}")
    return f"{before}{BEGIN}\n\n{tables(rows)}\n{END}\n{after}"


def read_rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def main():
    rows = merged(json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json")))
    TABLE.write_text(as_csv(rows))
    PAGE.write_text(with_tables(PAGE.read_text(), rows))
    print(f"{TABLE.relative_to(ROOT)}: {len(rows)} rows; {PAGE.relative_to(ROOT)} holds its tables")


if __name__ == "__main__":
    main()
