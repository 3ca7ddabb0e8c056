"""benchmarks/seeds: programs of two folders, run as `make bench-seeds` runs them but short. No time is looked at."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SEEDS = Path(__file__).resolve().parents[3] / "benchmarks" / "seeds"
FOLDERS = ("functional", "convnext", "fortran", "hpml", "functs", "arrays", "pyhpc")


@pytest.fixture
def targets(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(SEEDS), str(SEEDS.parent), *sys.path])
    import _targets

    return _targets


def rows_of(targets: ModuleType, folder: str) -> list[Any]:
    from _program import programs_of

    return targets.rows(folder, programs_of(folder))


def peaks(eager: int, ours: int, all_hits: bool = True) -> dict[str, Any]:
    return {"peak": {"eager": {"peak_bytes": eager}, "fastjit": {"peak_bytes": ours, "all_hits": all_hits}}}


@pytest.mark.parametrize("folder", ["arrays", "functional"])
def test_a_folder_runs_and_its_calls_are_hits(folder: str, tmp_path: Path) -> None:
    command = [sys.executable, str(SEEDS / "run.py"), folder, "--quick", "--threads", "1", "--out", str(tmp_path)]
    command += ["--sources", str(tmp_path)] + (["--plot", str(tmp_path / "p.png")] if folder == "functional" else [])
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / f"seeds-{folder}.json").read_text())
    assert document["quick"] and document["samples"]
    for name, found in document["samples"].items():
        ours = found["fastjit"]
        assert "absent" not in ours, (name, ours)  # it differs from eager, or raised
        assert ours["stats"]["hits"] > 0 and not ours["stats"]["fallbacks"], (name, ours["stats"])
        assert 0 < ours["launches"] <= found["eager"]["launches"] and ours["best_s"] > 0
        assert "absent" not in found["torch.jit"], (name, found["torch.jit"])
        assert found["peak"]["fastjit"]["all_hits"] and found["peak"]["eager"]["peak_bytes"] < 1 << 30
    sheet = next(sheet for sheet in document["tables"] if sheet["title"].startswith("Peak memory"))
    assert [row[0] for row in sheet["rows"]] == list(document["samples"])
    measured = {row["what"]: row["measured"] for row in document["targets"]}
    assert measured["peak memory of a call over eager's, largest"] is None  # of a part of the programs
    assert folder != "arrays" or measured["Jacobi, 10 sweeps of 256 x 256: times as fast as the best of the others"] > 0
    assert list(tmp_path.glob("*.py"))
    assert folder != "functional" or (tmp_path / "p.png").stat().st_size > 0


def test_launches_of_a_loop_count_each_round_and_views_do_not() -> None:
    program = "import _worker; print(_worker.launches(open(0).read(), {4}))"
    plan = "# legend\n\ns0: input\nkernel 0 (s0)\nloop 5\n    kernel 1 (s0)\n    extern 2+3*round (s0)\nfree s0\n"
    plan += "extern 4 (s0) -> s1\nproduct mm 3 (s0)\n  kernel 1 (s0)\narena 0 scratch 0\n\nkernel 0 is fj:\n"
    done = subprocess.run([sys.executable, "-c", program], cwd=SEEDS, input=plan, capture_output=True, text=True)
    assert done.stdout.strip() == str(1 + 5 * 2 + 2), done.stderr


@pytest.mark.parametrize("folder", FOLDERS)
def test_targets_name_programs_that_there_are(targets: ModuleType, folder: str) -> None:
    from _program import programs_of

    names = [program.name for program in programs_of(folder).PROGRAMS]
    for row in rows_of(targets, folder):
        assert row.programs and set(row.programs) <= set(names), row.what


def test_a_target_is_measured_where_all_its_programs_were_run(targets: ModuleType) -> None:
    row = next(row for row in rows_of(targets, "functional") if row.what.startswith("ResNet"))
    results = {name: {"eager": {"best_s": 3.0}, "fastjit": {"best_s": 2.0}} for name in row.programs}
    results["ResNet, 32 px, batch 4"]["torch.jit"] = {"best_s": 1.0}
    found = row.target(results)
    assert found.measured == 0.5 and found.detail == "ResNet, 32 px, batch 4; 1 of 3 beyond 1"
    results["ResNet, 16 px, batch 4"]["fastjit"] = {"absent": "WRONG"}
    found = row.target(results)
    assert found.measured is None and found.detail == "no figure of ResNet, 16 px, batch 4"
    del results["ResNet, 16 px, batch 4"]
    found = row.target(results)
    assert found.measured is None and not found.detail


def test_rows_of_launches_and_planning(targets: ModuleType) -> None:
    rows = {row.what: row for row in rows_of(targets, "functs")}
    results = {"YOLOv3": {"fastjit": {"launches": 186}, "counted": {"launches": 17}}}
    found = rows["YOLOv3: launches of a call over FuncTs's count"].target(results)
    assert found.measured == 0.5 and found.detail.startswith("17 over 34") and found.detail.endswith(" 186")
    results = {
        "LSTM": {"planning": {"compile_ms": 10.0, "record_ms": 20.0}},
        "LSTM, sequence 300": {"planning": {"compile_ms": 12.0, "record_ms": 100.0}},
    }
    found = rows["LSTM: planning and code generation at 300 steps over 50"].target(results)
    assert found.measured == pytest.approx(1.2) and found.detail == "recording: 5 times"


def test_a_difference_of_peaks_within_the_noise_is_none(targets: ModuleType) -> None:
    from _figures import NOISE_BYTES, peak_over_eager

    assert peak_over_eager(peaks(0, NOISE_BYTES)) == 1.0 == peak_over_eager(peaks(9 * NOISE_BYTES, 10 * NOISE_BYTES))
    assert peak_over_eager(peaks(10, 3 * NOISE_BYTES)) == 3.0
    assert peak_over_eager(peaks(4 * NOISE_BYTES, NOISE_BYTES)) == 0.25
    assert peak_over_eager(peaks(4, 4, all_hits=False)) is None and peak_over_eager({}) is None


def test_a_program_for_the_count_has_no_loop_of_nms() -> None:
    program = "from functs import detection as d; fn, args = d.without_loop(d.fcos)()\n"
    program += "assert d.greedy is d.one_step and fn(*args)[0].shape[1] == 5"
    done = subprocess.run([sys.executable, "-c", program], cwd=SEEDS, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
