"""What `fastjit bench` says while it runs, what it refuses before, and when it names a winner."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.cells import cell_len

from bench_tools import MACHINE, PACKAGES
from fastjit import _tables
from fastjit._bench import check, machine, plot, steady, table
from fastjit._bench.progress import Progress
from fastjit._bench.result import Result, Row
from fastjit._bench.verdict import noise
from fastjit.bench import compare
from fastjit.bench_cli import main

pytestmark = pytest.mark.usefixtures("own_caches")
TIMES = [1.0, 1.01, 0.99, 1.02, 0.98] * 6


def result(machine_of: dict[str, Any] | None = None, **factors: float) -> Result:
    rows = [Row(name, samples=[factor * 1e-6 * t for t in TIMES]) for name, factor in factors.items()]
    return Result("case", rows, "eager", {**MACHINE, **(machine_of or {})})


# while it runs


def test_a_pipe_gets_plain_lines_that_name_the_stage(case_file: Path) -> None:
    program = f"import sys; sys.path.insert(0, {PACKAGES!r})\n"
    program += "from fastjit.bench_cli import main; sys.exit(main(sys.argv[1:]))"
    options = ["--rounds", "3", "--min-time", "0", "--variants", "jit"]
    command = [sys.executable, "-c", program, "bench", f"{case_file}::scale", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "fastjit: " not in done.stdout and "\x1b" not in done.stdout + done.stderr and "\r" not in done.stderr
    title = f"fastjit: {case_file.name}::scale"
    lines = done.stderr.splitlines()
    assert all(line.startswith(title) for line in lines)
    for said in (": building and checking torch.jit.trace", ", tiny input: building and checking eager"):
        assert title + said in lines
    # The stage after the tiny inputs is not called one of them.
    assert lines[-1] == f"{title}: first call of torch.jit.trace, fresh process, full caches"


def test_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    monkeypatch.setattr("fastjit._bench.progress.time.monotonic", lambda: now)
    with Progress(True) as progress:
        progress.say("timing")
        for now in range(1, 31):
            progress.say(f"round {now}", detail=True)
    assert capsys.readouterr().err.splitlines() == [
        f"fastjit: {text}" for text in ("timing", "round 10", "round 20", "round 30")
    ]


@pytest.mark.parametrize("show", [False, None])
def test_functions_are_silent_on_a_pipe(show: bool | None, capsys: pytest.CaptureFixture[str]) -> None:
    compare({"eager": torch.relu}, args=(torch.ones(4),), rounds=3, min_time=0, progress=show)
    assert capsys.readouterr().err == ""


# before it runs


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["CASE::scale", "--args", "torch.ones(4)", "--sweep", "m=1,2"], "--sweep m: nothing uses 'm'"),
        (["CASE::scale", "--args", "torch.ones(n)", "--sweep", "n=1,2", "--sweep", "m=1"], "--sweep m: nothing uses"),
        (["x * 2", "-s", "x = 1", "--sweep", "n=1,2"], "--sweep n: nothing uses 'n'"),
        (["compare", "-s", "import torch; x = torch.ones(2)", "x * 2", "--sweep", "n=1"], "--sweep n: nothing uses"),
        (["CASE::scale", "--args", "torch.ones(n)", "--sweep", "n=4,-1"], "RuntimeError"),
        (["CASE::scale", "--args", "torch.ones(n)", "--tiny-args", "oops", "--sweep", "n=4"], "name 'oops'"),
        (["CASE::scale", "--plot", "FOLDER/missing/out.png"], "there is no folder 'FOLDER/missing'"),
        (["CASE::scale", "--plot", "FOLDER"], "the name must end with one of .eps"),
        (["CASE::scale", "--plot", "FOLDER/out.txt"], "the name must end with one of .eps"),
        (["CASE::scale", "--plot", "FOLDER/folder.png"], "is a folder"),
        (["CASE::scale", "--min-time", "inf"], "--min-time inf: give a finite number"),
        (["CASE::scale", "--min-time", "nan"], "--min-time nan: give a finite number"),
    ],
)
def test_all_input_is_checked_before_anything_is_timed(
    arguments: list[str],
    words: str,
    case_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def timed(*_: Any) -> None:
        raise AssertionError("something was timed")

    monkeypatch.setattr(steady, "compare_in_process", timed)
    monkeypatch.setattr("fastjit._bench.timeit_form.measure", timed)
    (tmp_path / "folder.png").mkdir()
    given = [word.replace("CASE", str(case_file)).replace("FOLDER", str(tmp_path)) for word in arguments]
    assert main(given if given[0] == "compare" else ["bench", *given]) == 2
    captured = capsys.readouterr()
    assert words.replace("FOLDER", str(tmp_path)) in captured.err and captured.err.count("\n") == 1
    assert captured.out == ""


# what it comes to


def test_the_headline_has_interval_and_load() -> None:
    assert result(eager=3.0, fastjit=1.0).verdict() == (
        "fastjit is 3.00 times as fast as the best other, eager (95 % interval 3.00 to 3.00, load 0.1 on 2 cores)."
    )
    assert result(eager=1.0, fastjit=2.0).verdict() == (
        "fastjit is slower: eager is 2.00 times as fast (95 % interval 2.00 to 2.00, load 0.1 on 2 cores)."
    )
    assert result(eager=1.0, fastjit=1.0).verdict().startswith("fastjit ≈ eager: the ratio of their times may be 1 (")
    assert result(eager=1.0, other=0.5).verdict().startswith("other is fastest with 500 ns a call, 2.00 times as fast")


def test_no_winner_on_a_machine_that_others_use() -> None:
    said = result({"others": 1.3, "load": [14.8, 9, 9]}, eager=3.0, fastjit=1.0).verdict()
    assert said == (
        "No winner: other programs kept 1.3 of 2 cores busy meanwhile. eager 3.00 µs / fastjit 1.00 µs = "
        "3.00 (95 % interval 3.00 to 3.00, load 14.8 on 2 cores). Measure again on a quiet machine."
    )
    assert result({"others": 0.1}, eager=3.0, fastjit=1.0).verdict().startswith("fastjit is 3.00 times as fast")
    assert result({"others": None}, eager=3.0, fastjit=1.0).verdict().startswith("fastjit is 3.00 times as fast")
    assert result({"others": 1.3}, eager=3.0, other=1.0).verdict().startswith("No winner: other programs")
    unknown = result({"others": None, "load": [14.8, 9, 9]}, eager=3.0, fastjit=1.0)
    assert unknown.verdict().startswith("No winner: the load was 14.8 on 2 cores. ")


def test_no_winner_where_times_spread() -> None:
    found = result(eager=3.0, fastjit=1.0)
    found.rows[1].samples = [1e-6, 2e-6] * 15
    assert found.verdict().startswith("No winner: the times of fastjit spread by 67 % (middle half of the rounds). ")


def test_first_calls_paid_back_is_counted_in_english() -> None:
    found = result(eager=3.0, fastjit=1.0)
    found.rows[1].first_cold = 4.5e-6
    assert found.verdict().endswith(" Its first call is paid back after 1 call.")
    assert "1 call" in found.table() and "1 calls" not in found.table()


def test_work_of_other_processes_is_noticed() -> None:
    watched = machine.Neighbours()
    script = "import time; end = time.process_time() + 1.0\nwhile time.process_time() < end: pass"
    other = subprocess.Popen([sys.executable, "-c", script])  # its time is a child's only once it is waited for
    while other.poll() is None and (watched.cores_busy() or 0) == 0:
        pass
    busy = watched.cores_busy()
    other.kill()
    other.wait()
    assert busy is not None and busy > 0


def test_own_work_is_not_others(monkeypatch: pytest.MonkeyPatch) -> None:
    stamps = iter([(10.0, 100.0, 50.0), (12.0, 103.5, 53.0), (12.05, 103.5, 53.0), None])
    monkeypatch.setattr(machine.Neighbours, "_now", staticmethod(lambda: next(stamps)))
    assert machine.Neighbours().cores_busy() == pytest.approx(0.25)
    assert machine.Neighbours().cores_busy() is None  # it began and ended at once: nothing can be told


def test_a_row_that_was_not_timed_makes_no_noise() -> None:
    assert noise(result(eager=1.0)) is None


# how it is printed


def test_errors_near_zero_are_explained() -> None:
    found = result(eager=3.0, fastjit=1.0)
    found.rows[0].errors = check.Errors(1.2e-7, 2.0)
    found.rows[1].errors = check.Errors(2.4e-7, 6.4e8)
    text = found.table()
    assert "1.2e-07 (2)" in text and "2.4e-07 (over 10,000)" in text and "e+08" not in text
    assert "Over 10,000 units in the last place (ulp) means that an exact result is almost zero" in text
    found.rows[1].errors = check.Errors(2.4e-7, 8912.0)
    assert "means that" not in found.table() and "2.4e-07 (8,900)" in found.table()


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_tables_fit_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = result(**{"eager": 3.0, "torch.jit.trace": 2.0, "fastjit": 1.0})
    for row in found.rows:
        row.first_cold, row.first_warm, row.peak_bytes, row.kernels, row.steps = 0.5, 0.25, 3 << 29, 1, 2
        row.errors, row.tiny_samples = check.Errors(1e-7, 2.0), TIMES
    header, cells = table.grid(found)
    assert max(map(cell_len, table.align(header, cells).splitlines())) > 120
    lines = table.align(header, cells, columns).splitlines()
    assert max(map(cell_len, lines)) <= columns
    monkeypatch.setattr(_tables, "terminal_width", lambda: columns)
    assert set(lines) <= set(found.table().splitlines())


def test_plots_have_ticks_where_was_measured_and_name_the_machine() -> None:
    results = [result(eager=3.0, fastjit=1.0) for _ in range(3)]
    for found, n in zip(results, (250, 500, 3000), strict=True):
        found.values = {"n": n}
    figure = plot.picture(results)
    (axes,) = figure.axes
    assert list(axes.get_xticks()) == [250, 500, 3000] and list(axes.get_xticks(minor=True)) == []
    assert [label.get_text() for label in axes.get_xticklabels()] == ["250", "500", "3000"]
    assert "a CPU" in figure.get_supxlabel() and "load 0.1" in figure.get_supxlabel()
    words = plot.picture(results[:1]).get_supxlabel()
    assert "torch 2.13.0" in words
    named = [result(eager=3.0, fastjit=1.0) for _ in range(2)]
    for found, kind in zip(named, ("cos", "sin"), strict=True):
        found.values = {"kind": kind}
    assert [label.get_text() for label in plot.picture(named).axes[0].get_xticklabels()] == ["cos", "sin"]
