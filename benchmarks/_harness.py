"""What every benchmark shares: options, isolated caches, targets, the result file."""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fastjit._bench import check, machine, measure, table
from fastjit._bench.load import CaseSpec, load_case
from fastjit._bench.progress import Progress
from fastjit._bench.variants import Absent, build, quiet
from fastjit.bench import isolate_caches

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
QUICK_RESULTS = HERE.parent / "build" / "bench-quick"
CASES = str(HERE / "cases.py")
SCHEMA = "fastjit.benchmark/1"


@dataclass
class Target:
    """One figure beside what it must (None: only an aim) and should be; `measured` is None when not taken."""

    what: str
    must: float | None
    aim: float | None
    measured: float | None
    better: str = "lower"  # or "higher"
    unit: str = "ratio"  # "ratio" or "s"
    detail: str = ""

    def reaches(self, bar: float | None) -> bool:
        if self.measured is None or bar is None or math.isnan(self.measured):
            return False
        return self.measured <= bar if self.better == "lower" else self.measured >= bar


@dataclass
class Sheet:
    """A table as it is printed: written once, from the samples beside it."""

    title: str
    columns: list[str]
    rows: list[list[str]]


@dataclass
class Outcome:
    targets: list[Target] = field(default_factory=list)
    sheets: list[Sheet] = field(default_factory=list)
    samples: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Options:
    quick: bool
    rounds: int
    progress: Progress
    only: str = ""  # parts of the names of the cases to run, comma-separated; such a run is no figure
    given: argparse.Namespace = field(default_factory=argparse.Namespace)  # with the options of the one benchmark

    def wants(self, case: str) -> bool:
        return any(part in case for part in self.only.split(","))

    def done(self, line: list[str]) -> None:
        """One finished case, for whoever waits: a long benchmark is not silent."""
        print("  ".join(line), file=sys.stderr, flush=True)


def run(
    name: str,
    title: str,
    question: str,
    body: Callable[[Options], Outcome],
    more: Callable[[argparse.ArgumentParser], None] = lambda parser: None,
    apart: Callable[[argparse.Namespace], bool] = lambda given: False,
) -> int:
    """The main function of a benchmark file: `more` adds its options, `apart` says which of them make no figures."""
    parser = argparse.ArgumentParser(description=question)
    parser.add_argument("--quick", action="store_true", help="a small run, kept apart from the figures")
    parser.add_argument("--rounds", type=int, help="interleaved rounds (default 30, quick 5)")
    parser.add_argument("--threads", type=int, help="torch.set_num_threads")
    parser.add_argument(
        "--only", default="", help="cases whose name contains this (or one of: a,b), kept apart from the figures"
    )
    parser.add_argument("--out", type=Path, help="folder of the result file")
    more(parser)
    given = parser.parse_args()
    folder = given.out or (QUICK_RESULTS if given.quick or given.only or apart(given) else RESULTS)
    with tempfile.TemporaryDirectory(prefix=f"fastjit-{name}-", ignore_cleanup_errors=True) as caches:
        isolate_caches(caches)
        import torch

        if given.threads:
            torch.set_num_threads(given.threads)
        before = machine.describe()
        with Progress() as progress, torch.no_grad(), quiet():
            progress.title(name)
            rounds = given.rounds or (5 if given.quick else measure.MIN_ROUNDS)
            outcome = body(Options(given.quick, rounds, progress, given.only, given))
    document = {
        "schema": SCHEMA,
        "name": name,
        "title": title,
        "question": question,
        "quick": given.quick,
        "machine": before,
        "targets": [asdict(target) for target in outcome.targets],
        "tables": [asdict(sheet) for sheet in outcome.sheets],
        "samples": outcome.samples,
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    show(document)
    print(f"written to {path}", file=sys.stderr)
    return 0


def show(document: dict[str, Any]) -> None:
    print(f"{document['title']}\n{document['question']}\n{machine.in_words(document['machine'])}")
    for sheet in document["tables"]:
        print(f"\n{sheet['title']}\n{table.align(sheet['columns'], sheet['rows'])}")
    if document["targets"]:
        header, rows = target_rows([Target(**target) for target in document["targets"]])
        print("\n" + table.align(header, rows))


def target_rows(targets: list[Target]) -> tuple[list[str], list[list[str]]]:
    header = ["what", "must", "aim", "measured", ""]
    return header, [_target_row(target) for target in targets]


def _target_row(target: Target) -> list[str]:
    sign = "≤" if target.better == "lower" else "≥"

    def text(value: float | None, lead: str = "") -> str:
        if value is None or math.isnan(value):
            return "-"
        return lead + (table.seconds(value) if target.unit == "s" else table.figures(value))

    if target.measured is None:
        word = "not measured"
    elif target.reaches(target.aim):
        word = "aim met"
    else:
        word = "short of the aim" if target.must is None else "met" if target.reaches(target.must) else "missed"
    said = f"{word} ({target.detail})" if target.detail else word
    return [target.what, text(target.must, f"{sign} "), text(target.aim, f"{sign} "), text(target.measured), said]


def short(samples: list[float]) -> list[float]:
    """Raw samples with the digits that mean something."""
    return [float(f"{value:.4g}") for value in samples]


def ready(case: str, variants: list[str], **values: Any) -> tuple[dict[str, measure.Timer], dict[str, str]]:
    """Warm timers of the variants that are there and right, and a word on each one that is not."""
    loaded = load_case(CaseSpec(CASES, case, values=values))
    eager = check.run_once(loaded.fn, loaded.args, loaded.kwargs)
    exact = check.reference(loaded.fn, loaded.args, loaded.kwargs)
    timers: dict[str, measure.Timer] = {}
    missing: dict[str, str] = {}
    for name in variants:
        try:
            built = build(name, loaded.fn, loaded.args, loaded.kwargs)
            outcomes = [check.run_once(built.call, loaded.args, loaded.kwargs) for _ in range(3)]
        except Absent as reason:
            missing[name] = str(reason)
            continue
        problems = [check.explain_difference(outcome, eager, exact) for outcome in outcomes]
        wrong = next((problem for problem in problems if problem is not None), None)
        if wrong is not None:
            missing[name] = f"WRONG: {wrong}"
            continue
        timers[name] = measure.make_timer(built.call, loaded.args, loaded.kwargs)
        timers[name](20)
    return timers, missing


def rounds_of(timers: dict[str, measure.Timer], options: Options) -> dict[str, list[float]]:
    loops = {name: measure.calibrate(timer) for name, timer in timers.items()}
    return measure.interleave(timers, loops, options.rounds)


def worst(what: str, values: dict[str, Any], must: float, aim: float | None, **fields: Any) -> Target:
    """The figure of the one of `values` that is worst, and how many of them miss."""
    pick = min if fields.get("better") == "higher" else max
    name = pick(values, key=lambda key: values[key]) if values else ""
    bad = sum(v < must if fields.get("better") == "higher" else v > must for v in values.values())
    detail = (
        f"{name}; {bad} of {len(values)} beyond {must:g}{' s' if fields.get('unit') == 's' else ''}" if name else ""
    )
    return Target(what, must, aim, values.get(name), detail=detail, **fields)


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan
