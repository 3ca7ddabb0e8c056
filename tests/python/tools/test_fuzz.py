"""`make fuzz`: which seeds it plays, what it counts, and what it says when a process dies."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
MACHINE = {"date": "2024-02-29T00:00:00+00:00"}


@pytest.fixture
def fuzz(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import fuzz

    monkeypatch.setattr(fuzz, "PATH", tmp_path / "fuzz.json")
    return fuzz


def chunk(first: int, last: int, wrong: int = 0) -> dict[str, object]:
    return {"first": first, "last": last, "wrong": ["seed"] * wrong, "fallbacks": {"why": 2}}


def test_seeds_are_named_by_the_date(fuzz):
    first, last = (int(n) for n in fuzz.seeds_of_today().split(":"))
    assert len(str(first)) == 12 and last - first == 2000
    assert first // 10_000 == int(f"{fuzz.date.today():%Y%m%d}")


def test_chunks_are_counted_once_and_join(fuzz):
    for first, last in ((0, 10), (20, 30), (10, 20), (5, 15)):
        fuzz.keep(chunk(first, last), MACHINE)
    kept = json.loads(fuzz.PATH.read_text())
    assert kept["samples"]["ranges"] == [[0, 30]]
    assert kept["samples"]["fallbacks"] == {"why": 6}
    assert [target["measured"] for target in kept["targets"]] == [30, 0]
    assert kept["tables"][0]["rows"] == [["0", "29", "30"]]
    assert kept["tables"][1]["rows"][0][1] == "24"


def test_wrong_programs_are_counted(fuzz):
    fuzz.keep(chunk(0, 10, wrong=3), MACHINE)
    kept = json.loads(fuzz.PATH.read_text())
    assert kept["targets"][1]["measured"] == 3


def test_another_checker_starts_anew(fuzz, monkeypatch):
    fuzz.keep(chunk(0, 10), MACHINE)
    monkeypatch.setattr(fuzz, "checker", lambda: "another")
    fuzz.keep(chunk(50, 60), MACHINE)
    assert json.loads(fuzz.PATH.read_text())["samples"]["ranges"] == [[50, 60]]


def test_a_process_that_dies_is_a_failure(fuzz, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert fuzz.played(7, 9)["wrong"] == ["seeds 7:9: the process ended with 1\n"]


def test_seeds_that_are_no_range_are_refused(fuzz, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fuzz.py", "12"])
    with pytest.raises(SystemExit):
        fuzz.main()
    assert "seeds are first:last, two whole numbers, not '12'" in capsys.readouterr().err


def test_a_run_prints_its_seeds_and_its_count(fuzz, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fuzz.py", "3:5", "--save"])
    assert fuzz.main() == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "fuzz: seeds 3:5" and out[-1] == "fuzz: seeds 3:5: 0 wrong"
    assert json.loads(fuzz.PATH.read_text())["samples"]["ranges"] == [[3, 5]]
