"""What was measured on: written beside every figure."""

from __future__ import annotations

import os
import platform
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

LEAST_WATCH_S = 0.2  # the kernel counts in hundredths of a second
ISA_FLAGS = ("avx2", "fma", "avx512f", "avx512bw", "avx512_bf16", "avx512_fp16", "amx_tile")


def describe() -> dict[str, Any]:
    """Date, CPU, ISA, GPU, versions, threads and load, as plain JSON values."""
    import torch

    cpu = _cpuinfo()
    flags = set(cpu.get("flags", "").split())
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu.get("model name", platform.processor() or "unknown"),
        "cores": os.cpu_count(),
        "isa": [flag for flag in ISA_FLAGS if flag in flags],
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "fastjit": _fastjit_version(),
        "llvm": _llvm(),
        "threads": torch.get_num_threads(),
        **({"gpu": _gpu()} if torch.cuda.is_available() else {}),
        "load": [round(value, 2) for value in os.getloadavg()],
    }


class Neighbours:
    """How many cores other programs keep busy between the making of this object and `cores_busy()`."""

    def __init__(self) -> None:
        self._start = self._now()

    def cores_busy(self) -> float | None:
        """None where the kernel does not say, or too little time has passed to tell."""
        end = self._now()
        if self._start is None or end is None or end[0] - self._start[0] < LEAST_WATCH_S:
            return None
        wall, busy, own = (after - before for before, after in zip(self._start, end, strict=True))
        return max(0.0, (busy - own) / wall)

    @staticmethod
    def _now() -> tuple[float, float, float] | None:
        """Seconds: of the clock, that all cores worked, that this process and its children worked."""
        fields = _read("/proc/stat").partition("\n")[0].split()
        if len(fields) < 9 or fields[0] != "cpu":
            return None
        user, nice, system, _idle, _wait, irq, softirq, steal = map(int, fields[1:9])
        busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
        own = os.times()
        return time.monotonic(), busy, own.user + own.system + own.children_user + own.children_system


def in_words(machine: dict[str, Any]) -> str:
    level = "AVX-512" if "avx512f" in machine["isa"] else "AVX2" if "avx2" in machine["isa"] else "baseline x86-64"
    if "amx_tile" in machine["isa"]:
        level += " and AMX"
    llvm = f", LLVM {machine['llvm']}" if machine["llvm"] else ""
    others = f", other programs {machine['others']:.1f} cores" if machine.get("others") is not None else ""
    gpu = f", {machine['gpu']}" if machine.get("gpu") else ""
    return (
        f"{machine['date'][:10]}, {machine['cpu']} ({level}){gpu}, {machine['threads']} of {machine['cores']} cores, "
        f"load {machine['load'][0]:g}{others}, torch {machine['torch']}, "
        f"fastjit {machine['fastjit'] or 'absent'}{llvm}, Python {machine['python']}"
    )


def _cpuinfo() -> dict[str, str]:
    found: dict[str, str] = {}
    for line in _read("/proc/cpuinfo").splitlines():
        key, colon, value = line.partition(":")
        if not colon:
            break
        found[key.strip()] = value.strip()
    return found


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _gpu() -> str:
    """The current device, its memory and CUDA's version: "NVIDIA A100 (80 GB), CUDA 13.0"."""
    import torch

    facts = torch.cuda.get_device_properties(torch.cuda.current_device())
    return f"{facts.name} ({facts.total_memory / 1e9:.0f} GB), CUDA {torch.version.cuda}"


def _fastjit_version() -> str | None:
    """None when the extension is not there: nothing of FastJIT's was measured then."""
    try:
        from fastjit import _C, __version__  # noqa: F401
    except ImportError:
        return None
    return str(__version__)


def _llvm() -> str | None:
    """The version the extension says it was built with; None when there is no extension."""
    try:
        from fastjit import _C
    except ImportError:
        return None
    value = getattr(_C, "llvm_version", None)
    value = value() if callable(value) else value
    return str(value) if value else None
