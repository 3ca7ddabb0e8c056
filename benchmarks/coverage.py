"""How much public PyTorch code runs as programs: functions and models of many packages, held to eager call by call.

`coverage_cases` lists the programs. Each is called four times with fresh inputs, three times with a second batch size,
and again after changes of state: what the case changes, weights written in place, the other of train and eval.
Functions without state get f64 inputs instead. A program counts as captured if its third call is a hit.

With --gradients each call is followed by backward(): of the same programs those that give something to go back from.

Nothing is downloaded. The packages are in the `coverage` extra. One process plays the cases of a package, so that a
crash costs one case.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import queue
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import _harness as harness
from _harness import Outcome, Sheet, Target
from coverage_cases import CASES, Case, packages
from coverage_cases.optimizers import FOREACH, LOOP, OF_TORCH, name_of
from fastjit._bench import table

sys.path.insert(0, str(harness.HERE.parent / "tests" / "python" / "helpers"))

WORKER = str(Path(__file__).resolve().parent / "_coverage_worker.py")
LIMIT_S = 180.0  # for one case
SPEEDUP = 2.0  # of an optimizer's step over eager's foreach form
Row = dict[str, Any]


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--package", default="", help="cases of these packages, comma-separated")
    parser.add_argument("--list", action="store_true", help="name the cases and end")
    parser.add_argument("--eager", action="store_true", help="hold eager to eager: every result must be the same bits")
    parser.add_argument("--gradients", action="store_true", help="each call with backward()")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for one case (180)")
    parser.set_defaults(threads=1)  # small programs: with more, the time of a call is that of waking threads


def chosen(options: harness.Options) -> list[Case]:
    of_packages = set(filter(None, options.given.package.split(",")))
    if unknown := of_packages - set(packages()):
        raise SystemExit(f"coverage: no package {', '.join(sorted(unknown))}; there are {', '.join(packages())}")
    found = [case for case in CASES.values() if options.wants(case.name)]
    found = [case for case in found if not of_packages or case.package in of_packages]
    if options.quick:
        found = list({case.package: case for case in reversed(found)}.values())[::-1]
    return found


def play(cases: list[Case], given: argparse.Namespace) -> Iterator[Row]:
    """The rows of some cases, of which one process plays as many as it lives for."""
    from child_lines import lines_of

    left = list(cases)
    while left:
        flags = [
            "--threads",
            str(given.threads),
            *(f"--{one}" for one in ("eager", "gradients") if getattr(given, one)),
        ]
        order = [sys.executable, WORKER, *flags, *(case.name for case in left)]
        process = subprocess.Popen(order, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        said = _drained(process)
        try:
            for line in lines_of(process, given.limit):
                left.pop(0)
                yield json.loads(line)
            if left:
                code = process.wait()
                yield lost(left.pop(0), f"the process ended with {code}: {' '.join(said[-3:])[-300:]}", grade="wrong")
        except queue.Empty:
            yield lost(left.pop(0), f"not done after {given.limit:g} s")
        finally:
            process.kill()
            process.wait()


def _drained(process: subprocess.Popen[str]) -> list[str]:
    said: list[str] = []

    def read() -> None:
        assert process.stderr is not None
        said.extend(line.strip() for line in process.stderr)

    threading.Thread(target=read, daemon=True).start()
    return said


def lost(case: Case, why: str, grade: str = "broken") -> Row:
    return {"name": case.name, "package": case.package, "hit": False, "reason": why, "grade": grade, "differs": why}


def take(options: harness.Options) -> list[Row]:
    found = []
    cases, given = chosen(options), options.given
    for package in dict.fromkeys(case.package for case in cases):
        options.progress.say(package)
        for row in play([case for case in cases if case.package == package], given):
            found.append(row)
            options.done([row["package"], row["name"], "hit" if row["hit"] else f"eager: {row['reason']}"])
            if row["grade"] in ("wrong", "unjudged", "once", "far", "broken"):
                options.done([row["package"], row["name"], f"{row['grade'].upper()}: {row['differs']}"])
    return found


def split_by_gradients(rows: list[Row]) -> tuple[list[Row], Sheet]:
    """Those that were played, and why others were not."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row["grade"] == "broken":
            reasons.setdefault(words(row["reason"]), []).append(row["name"])
        elif not row.get("goes_back"):
            reasons.setdefault("nothing that it gives requires grad", []).append(row["name"])
    left_out = {name for names in reasons.values() for name in names}
    lines = [[why, str(len(names)), ", ".join(names)] for why, names in reasons.items()]
    return [row for row in rows if row["name"] not in left_out], Sheet(
        "Programs without gradients, which are not counted", ["why", "programs", "which"], lines
    )


def words(reason: str) -> str:
    """A reason without its places, so that equal ones meet."""
    parts = [part.removeprefix("an earlier recording was unsound: ") for part in reason.split("; ")]
    return "; ".join(dict.fromkeys(re.sub(r" at (<[^>]+>|[^ ]+):\d+.*", "", part) for part in parts))


def versions() -> dict[str, str]:
    found = {}
    for package in packages():
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "absent"
    return found


def inside(row: Row) -> float:
    """ATen calls of the second call that ran inside programs."""
    return row.get("aten", 0) * row.get("second", 0.0)


def total(rows: list[Row], key: str) -> float:
    return sum(row.get(key) or 0 for row in rows)


def package_sheet(rows: list[Row], of: dict[str, str]) -> Sheet:
    lines = []
    for package in [*dict.fromkeys(row["package"] for row in rows), "all"]:
        own = [row for row in rows if package in (row["package"], "all")]
        aten = total(own, "aten")
        lines.append([
            package, of.get(package, ""), str(len(own)), str(sum(row["hit"] for row in own)), f"{aten:.0f}",
            f"{sum(map(inside, own)) / aten:.0%}" if aten else "-", str(sum(row["grade"] == "wrong" for row in own)),
        ])  # fmt: skip
    columns = ["package", "version", "programs", "hit on the third call", "ATen calls of a call"]
    return Sheet("Packages", [*columns, "inside programs in the second", "wrong"], lines)


def reason_sheet(rows: list[Row]) -> Sheet:
    programs: dict[str, list[str]] = {}
    for row in rows:
        if not row["hit"]:
            programs.setdefault(words(row["reason"]), []).append(row["name"])
    lines = [[why, str(len(names)), ", ".join(names)] for why, names in programs.items()]
    lines.sort(key=lambda line: -int(line[1]))
    return Sheet("Why programs ran eagerly on the third call", ["reason", "programs", "which"], lines)


def equal(rows: list[Row]) -> Sheet:
    meanings = {
        "bits": "every result, argument, state and generator is eager's, bit for bit",
        "ulps": "within two units in the last place of a run in f64",
        "rounding": "at most twice as far from a run in f64 as rounding takes eager",
        "far": "at most eight times as far",
        "once": "more, in one call alone: a ReLU or maximum whose argument is a rounding from a tie",
        "unjudged": "close to eager (1e-5 of the largest value); no run in f64 to judge it",
        "broken": "the case could not be played",
        "wrong": "something else",
    }
    counts = Counter(row["grade"] for row in rows)
    lines = [[meaning, str(counts[grade])] for grade, meaning in meanings.items()]
    return Sheet("How equal they are, by the worst of all calls", ["", "programs"], lines)


def speedup(row: Row) -> float:
    """Eager's time over a hit's; 0 where the third call was none."""
    eager = row.get("peer_ms") or row.get("eager_ms")
    return eager / row["hit_ms"] if row["hit"] and eager else 0.0


def milliseconds(value: float | None) -> str:
    return "-" if value is None else table.figures(value)


def case_sheet(rows: list[Row]) -> Sheet:
    lines = []
    for row in rows:
        times = [milliseconds(row.get(key)) for key in ("first_ms", "eager_ms", "hit_ms")]
        times[2:] = [times[2], f"{row['eager_ms'] / row['hit_ms']:.2f}"] if row["hit"] else ["-", "-"]
        counts = [str(row.get("aten", "-")), f"{row.get('second', 0):.0%}"]
        third = "hit" if row["hit"] else row["reason"]
        lines.append([row["name"], row["package"], row["grade"], *counts, *times, third])
    columns = ["program", "package", "equal", "ATen calls", "inside in the second", "first call, ms", "eager, ms"]
    return Sheet("Programs", [*columns, "hit, ms", "times as fast", "third call"], lines)


def optimizer_rows(rows: list[Row]) -> list[Row]:
    names = [name_of(optimizer, form) for optimizer in OF_TORCH for form in (FOREACH, LOOP)]
    return [row for row in rows if row["name"] in names]


def optimizer_sheet(rows: list[Row]) -> Sheet:
    lines = []
    for row in rows:
        times = [milliseconds(row.get(key)) for key in ("eager_ms", "peer_ms", "hit_ms")]
        fast = f"{speedup(row):.2f}" if row["hit"] else "no hit"
        lines.append([row["name"], *times, fast])
    columns = ["step", "eager, ms", "eager's foreach form, ms", "fastjit, ms", "times as fast as that form"]
    return Sheet("Steps of torch.optim, constant lr", columns, lines)


def targets(rows: list[Row]) -> list[Target]:
    wrong = [row["name"] for row in rows if row["grade"] == "wrong"]
    hits, aten = [row for row in rows if row["hit"]], total(rows, "aten")
    steps = optimizer_rows(rows)
    fast = sum(speedup(row) >= SPEEDUP for row in steps)
    share, covered = len(hits) / max(len(rows), 1), sum(map(inside, rows)) / max(aten, 1)
    gain = harness.geometric_mean([speedup(row) for row in hits if not row.get("peer_ms")])
    halved = f"steps of torch.optim that hit and take at most half of eager's foreach form, of {len(steps)}"
    return [
        Target("programs of public packages", 150, None, len(rows), "higher"),
        Target("packages that they are from", 15, None, len({row["package"] for row in rows}), "higher"),
        Target("of these programs: wrong", 0, None, len(wrong), detail=", ".join(wrong)),
        Target("of these: hit on the third call", 0.85, None, share, "higher", detail=f"{len(hits)} of {len(rows)}"),
        Target("of the ATen calls of their second call: inside programs", 0.9, None, covered, "higher"),
        Target(halved, 10, None, fast, "higher"),
        Target("a hit of theirs, times as fast as eager, geometric mean", None, 1.0, gain, "higher"),
    ]


def targets_with_gradients(rows: list[Row]) -> list[Target]:
    wrong, hits = [row["name"] for row in rows if row["grade"] == "wrong"], [row for row in rows if row["hit"]]
    gain = harness.geometric_mean([speedup(row) for row in hits])
    share = len(hits) / max(len(rows), 1)
    return [
        Target(
            f"of {len(rows)} programs of public packages, with gradients: wrong",
            0,
            None,
            len(wrong),
            detail=", ".join(wrong),
        ),
        Target("of these: hit on the third call", None, 0.85, share, "higher", detail=f"{len(hits)} of {len(rows)}"),
        Target("a hit and its way back, times as fast as eager, geometric mean", None, 1.0, gain, "higher"),
    ]


def is_apart(given: argparse.Namespace) -> bool:
    return bool(given.package) or given.eager


def body(options: harness.Options) -> Outcome:
    if options.given.list:
        for case in chosen(options):
            print(f"{case.package:30} {case.name}")
        raise SystemExit(0)
    rows = played = take(options)
    of = versions()
    more = []
    if options.given.gradients:
        played, without = split_by_gradients(rows)
        more.append(without)
    elif steps := optimizer_rows(rows):
        more.append(optimizer_sheet(steps))
    sheets = [package_sheet(played, of), reason_sheet(played), equal(played), *more, case_sheet(played)]
    wanted = targets_with_gradients if options.given.gradients else targets
    return Outcome(wanted(played), sheets, {"versions": of, "programs": rows})


if __name__ == "__main__":
    question = (__doc__ or "").partition("\n")[0]
    with_gradients = "--gradients" in sys.argv
    name = "coverage_gradients" if with_gradients else "coverage"
    question = f"The same with gradients: {question[0].lower()}{question[1:]}" if with_gradients else question
    title = "Coverage, with gradients" if with_gradients else "Coverage"
    sys.exit(harness.run(name, title, question, body, options_of, is_apart))
