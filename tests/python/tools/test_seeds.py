"""benchmarks/seeds: programs of two folders, run as `make bench-seeds` runs them but short. No time is looked at."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SEEDS = Path(__file__).resolve().parents[3] / "benchmarks" / "seeds"


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
    assert list(tmp_path.glob("*.py"))
    assert folder != "functional" or (tmp_path / "p.png").stat().st_size > 0


def test_launches_of_a_loop_count_each_round() -> None:
    program = "import _worker; print(_worker.launches(open(0).read()))"
    plan = "# legend\n\ns0: input\nkernel 0 (s0)\nloop 5\n    kernel 1 (s0)\n    extern 2 (s0)\nfree s0\n"
    plan += "product mm 3 (s0)\n  kernel 1 (s0)\narena 0 scratch 0\n\nkernel 0 is fj:\n"
    done = subprocess.run([sys.executable, "-c", program], cwd=SEEDS, input=plan, capture_output=True, text=True)
    assert done.stdout.strip() == str(1 + 5 * 2 + 2), done.stderr
