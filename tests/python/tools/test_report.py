"""The tables of README.md and docs/performance.md are what benchmarks/results says."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


def load_report() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_report", ROOT / "benchmarks" / "report.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


report = load_report()


def document(name: str = "dispatch", **target: Any) -> dict[str, Any]:
    figure = {
        "what": "a call",
        "must": 0.8,
        "aim": 0.4,
        "measured": 0.5,
        "better": "lower",
        "unit": "ratio",
        "detail": "",
    }
    return {
        "schema": "fastjit.benchmark/1",
        "name": name,
        "title": "Dispatch",
        "question": "How much?",
        "quick": False,
        "machine": {
            "date": "2024-02-29T00:00:00+00:00", "cpu": "a CPU", "isa": ["avx2"], "threads": 2, "load": [0.5, 0, 0],
            "torch": "2.13.0", "fastjit": "0.1.0", "llvm": "22.1", "python": "3.11.7",
        },
        "targets": [figure | target],
        "tables": [{"title": "T", "columns": ["a", "b"], "rows": [["x|y", "1"]]}],
        "samples": {},
    }  # fmt: skip


@pytest.mark.parametrize("name", report.TEXTS)
def test_text_is_what_the_results_say(name: str) -> None:
    path = ROOT / name
    assert path.exists(), f"{name} holds the figures and must be there"
    text = path.read_text()
    assert report.PLACE.search(text), f"{name} has no <!-- bench:NAME --> place"
    assert report.fill(text, report.load()) == text, "run make bench-report"


def test_filling_is_stable_and_keeps_the_rest() -> None:
    text = "before\n<!-- bench:dispatch -->\nold\n<!-- /bench -->\nafter\n<!-- bench:figures -->\n<!-- /bench -->\n"
    documents = {"dispatch": document()}
    once = report.fill(text, documents)
    assert once.startswith("before\n<!-- bench:dispatch -->\nHow much?") and "\nafter\n" in once and "old" not in once
    assert "Taken 2024-02-29 on a CPU" in once and r"| x\|y | 1 |" in once
    assert report.fill(once, documents) == once
    documents["dispatch"]["targets"][0]["measured"] = 0.6
    assert report.fill(once, documents) != once


@pytest.mark.parametrize(
    ("figure", "word"),
    [
        ({"measured": 0.39}, "aim met"),
        ({"measured": 0.5}, "met"),
        ({"measured": 0.81}, "**missed**"),
        ({"measured": None, "detail": "no extension"}, "**not measured** (no extension)"),
        ({"measured": 2.0, "must": 1.5, "aim": 2.5, "better": "higher"}, "met"),
        ({"measured": 1.4, "must": 1.5, "aim": 2.5, "better": "higher"}, "**missed**"),
        ({"measured": 1.3, "must": None, "aim": 1.2}, "short of the aim"),
    ],
)
def test_a_missed_figure_stands_there_as_missed(figure: dict[str, Any], word: str) -> None:
    line = report.block("figures", {"dispatch": document(**figure)}).splitlines()[2]
    assert line.endswith(f"| {word} |")


def test_seconds_carry_their_unit() -> None:
    line = report.block("figures", {"d": document(measured=0.0042, must=0.005, aim=0.001, unit="s")}).splitlines()[2]
    assert line == "| a call | ≤ 5 ms | ≤ 1 ms | 4.2 ms | met |"


def test_a_benchmark_that_was_not_run_says_so() -> None:
    assert "Not measured yet" in report.block("chains", {}) and "Not measured yet" in report.block("figures", {})
    with pytest.raises(report.ReportError, match="no such benchmark"):
        report.block("chain", {})


def test_quick_runs_and_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "dispatch.json"
    path.write_text(json.dumps(document() | {"quick": True}))
    with pytest.raises(report.ReportError, match="quick run"):
        report.load(tmp_path)
    path.write_text("{}")
    with pytest.raises(report.ReportError, match="schema"):
        report.load(tmp_path)
