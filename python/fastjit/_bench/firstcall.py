"""First calls and peak memory, each in a process of its own: empty caches, then the caches that run left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
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
    stats: dict[str, Any] | None  # fastjit's, after the later calls


class FirstCallError(Exception):
    """The process ended without a figure."""


def cache_environment(root: str) -> dict[str, str]:
    return {name: str(Path(root, folder)) for name, folder in CACHE_FOLDERS.items()}


def first_call(
    spec: CaseSpec, variant: str, cache_root: str, threads: int | None = None, limit_s: float = TIMEOUT_S
) -> FirstCall:
    """One fresh process with the caches below `cache_root`; subprocess.TimeoutExpired after `limit_s`."""
    order = {"spec": spec.to_dict(), "variant": variant, "threads": threads}
    return FirstCall(**ask(["-m", "fastjit._bench.worker"], order, cache_root, limit_s))


def ask(program: list[str], order: dict[str, Any], cache_root: str, limit_s: float = TIMEOUT_S) -> dict[str, Any]:
    """What a fresh Python answers to `order`, a JSON argument whose "report" names the file for the answer."""
    packages = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, **cache_environment(cache_root)}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [packages, environment.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory(prefix="fastjit-bench-") as folder:
        report = Path(folder, "report.json")
        command = [sys.executable, *program, json.dumps({**order, "report": str(report)})]
        status, said = _run(command, environment, limit_s)
        if not report.exists():
            raise FirstCallError((said.strip().splitlines() or [f"exit status {status}"])[-1][:160])
        answer: dict[str, Any] = json.loads(report.read_text())
    if "error" in answer:
        raise FirstCallError(str(answer["error"]))
    return answer


def _run(command: list[str], environment: dict[str, str], limit_s: float) -> tuple[int, str]:
    """Exit status and standard error. A process that is late ends with the compilers that it started."""
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        _, said = process.communicate(timeout=limit_s)
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return process.returncode, said


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
