"""`make test-matrix` itself: what it reads out of reports, which rows are good, and the table of docs/install.md."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
REPORT = """<testsuites><testsuite>
<testcase classname="tests.a" name="passes"/>
<testcase classname="tests.a" name="fails"><failure message="x != y"/></testcase>
<testcase classname="tests.a" name="ends"><error message="no"/></testcase>
<testcase classname="tests.b" name="waits"><skipped message="needs a CUDA device"/></testcase>
<testcase classname="tests.b" name="waits too"><skipped message="needs a CUDA device"/></testcase>
</testsuite></testsuites>"""


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"loaded_{Path(path).stem}", ROOT / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


matrix, report = load("tests/matrix.py"), load("benchmarks/report.py")


def row(**more: Any) -> dict[str, Any]:
    suite = {"passed": 10, "failed": [], "skipped": {"needs a CUDA device": 2}}
    machine = {
        "date": "2024-02-29T00:00:00+00:00", "cpu": "a CPU", "isa": ["avx2"], "threads": 2, "load": [0.5, 0, 0],
        "torch": "2.13.0", "fastjit": "0.1.0", "llvm": "22.1", "python": "3.11.7",
    }  # fmt: skip
    return {
        "cell": "3.11+2.13.0", "date": "2024-02-29T00:00:00+00:00", "wheel": "w.whl", "bytes": 12_300_000,
        "engine": {"passed": 5, "failed": [], "skipped": {}}, "package": suite, "wheel works": True, "wheel said": [],
        "scripts": 588, "wrong scripts": [], "wrong entries": [], "entries": 900, "op_db hits": 0.92, "models": 8,
        "dispatch": 0.4567, "machine": machine,
    } | more  # fmt: skip


def test_outcomes_of_a_report(tmp_path: Path) -> None:
    path = tmp_path / "report.xml"
    path.write_text(REPORT)
    assert matrix.outcomes(path) == {
        "passed": 1,
        "failed": ["tests.a::ends", "tests.a::fails"],
        "skipped": {"needs a CUDA device": 2},
    }
    with pytest.raises(matrix.CellError, match=r"was not written; log\.txt beside it says why"):
        matrix.outcomes(tmp_path / "none.xml")


@pytest.mark.parametrize("name", ["3.13", "2.15.0", "3.13+2.15", "3.13-2.15.0", ""])
def test_a_cell_is_python_and_torch(name: str) -> None:
    with pytest.raises(SystemExit, match=r"is no cell; one is written PYTHON\+TORCH, for example 3.13\+2.15.0"):
        matrix.Cell(name)


def test_a_python_that_is_not_there_is_named() -> None:
    with pytest.raises(matrix.CellError, match=r"no CPython 3\.99 was found: neither pyenv nor the path has one"):
        matrix.interpreter("3.99")


@pytest.mark.parametrize(
    "more",
    [
        {"engine": {"passed": 5, "failed": ["a::b"], "skipped": {}}},
        {"wrong scripts": ["one"]},
        {"wrong entries": ["mul"]},
        {"wheel works": False},
        {"error": "no CPython 3.99 was found"},
    ],
)
def test_only_a_row_without_a_fault_is_good(more: dict[str, Any]) -> None:
    assert matrix.good(row())
    assert not matrix.good(row(**more))
    assert matrix.in_words(row(**more)).startswith("3.11+2.13.0: ")


def test_the_table(tmp_path: Path) -> None:
    path = tmp_path / "matrix.json"
    assert report._matrix(path) == "Not measured yet: run `make test-matrix`.\n"
    worse = row(cell="3.12+2.14.1", dispatch=0.7) | {"package": row()["package"] | {"failed": ["a::b"]}}
    unmade = {"cell": "3.14+2.15.0", "error": "no CPython 3.14 was found"}
    path.write_text(json.dumps({"cells": {"a": row(), "b": worse, "c": unmade}}))
    lines = report._matrix(path).splitlines()
    compared = "588 scripts, 900 entries of op_db, 8 models | 0 | 92.0%"
    assert f"| 3.11 + 2.13.0 | 15 | 0 | 2 | {compared} | 0.46 | 12.3 | yes | 2024-02-29 |" in lines
    assert f"| 3.12 + 2.14.1 | 15 | **1** | 2 | {compared} | 0.70 **missed** | 12.3 | yes | 2024-02-29 |" in lines
    assert "| needs a CUDA device | 2 | 2 |" in lines
    assert "3.14 + 2.15.0 was not run: no CPython 3.14 was found" in lines
