"""First calls and peak memory, each in a process of its own: empty caches, then the caches that run left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .load import CaseSpec
from .progress import Progress
from .result import Row

TIMEOUT_S = 600
# Every cache a variant might fill, as folders below one root.
CACHE_FOLDERS = {"FASTJIT_CACHE_DIR": "fastjit", "TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}


@dataclass(frozen=True)
class FirstCall:
    """Seconds of building plus the first call, of the calls after it, and of eager's call in the same process."""

    first_s: float
    later_s: float
    eager_s: float
    peak_bytes: int | None
    disk_hits: int | None


class FirstCallError(Exception):
    """The process ended without a figure."""


def cache_environment(root: str) -> dict[str, str]:
    return {name: str(Path(root, folder)) for name, folder in CACHE_FOLDERS.items()}


def first_call(spec: CaseSpec, variant: str, cache_root: str, threads: int | None = None) -> FirstCall:
    """One fresh process with the caches below `cache_root`."""
    packages = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, **cache_environment(cache_root)}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [packages, environment.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory(prefix="fastjit-bench-") as folder:
        report = Path(folder, "report.json")
        order = {"spec": spec.to_dict(), "variant": variant, "threads": threads, "report": str(report)}
        done = subprocess.run(
            [sys.executable, "-m", "fastjit._bench.worker", json.dumps(order)],
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
        )
        if not report.exists():
            last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
            raise FirstCallError(last[:160])
        answer: Mapping[str, Any] = json.loads(report.read_text())
    if "error" in answer:
        raise FirstCallError(str(answer["error"]))
    return FirstCall(**answer)


def fill(rows: list[Row], spec: CaseSpec, baseline: str, threads: int | None, progress: Progress) -> None:
    """Cold and warm first calls and peak memory of every row that was built."""
    for row in rows:
        if row.status in ("absent", "failed"):
            continue
        with tempfile.TemporaryDirectory(prefix="fastjit-bench-cache-") as root:
            try:
                progress.say(f"first call of {row.name}, fresh process, empty caches")
                cold = first_call(spec, row.name, root, threads)
                progress.say(f"first call of {row.name}, fresh process, full caches")
                warm = cold if row.name == baseline else first_call(spec, row.name, root, threads)
            except (FirstCallError, subprocess.TimeoutExpired) as error:
                row.note = "; ".join(filter(None, [row.note, f"no first call: {error}"]))
                continue
        row.first_cold, row.first_warm, row.peak_bytes = cold.first_s, warm.first_s, warm.peak_bytes
