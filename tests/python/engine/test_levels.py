"""The numeric tests where eager's kernels, MKL, oneDNN or fastjit's compiler work at another level of the CPU.

Each level is chosen by its variable in a process of its own, so that a machine of another make is no surprise
(docs/numerics.md says for which functions eager's own bits differ). A selection is played at each level;
FASTJIT_LEVELS_FULL=1 (`make test-levels`) plays every numeric test.
"""

from __future__ import annotations

import concurrent.futures
import functools
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

TESTS = Path(__file__).parents[1]
FULL = os.environ.get("FASTJIT_LEVELS_FULL") == "1"
LEVELS = {
    "torch avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "torch avx512": {"ATEN_CPU_CAPABILITY": "avx512"},
    "MKL AVX2": {"MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "MKL SSE4.2": {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
    "all avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "FASTJIT_ISA": "avx2",
    },
}
# Both kinds of level change functions; those of torch and of fastjit loops, vectors and fused steps too.
FUNCTIONS = "test_eager_cpu or special_values or powers_that or power_in_place or overflows"
LOOPS = FUNCTIONS + " or zero or steps_that or half_and_one or test_kernels"
FILES = "eager_cpu edges kernels lowering scripts"
EVERY = FILES + " math_lowprec error_bounds mutation transposed values scalars capture models random_programs "
EVERY += "random_scripts opinfo opinfo_forms"


def why_not(level: dict[str, str]) -> str:
    """Why a level needs no process of its own here."""
    capability = level.get("ATEN_CPU_CAPABILITY", "").upper()
    if len(level) == 1 and capability == torch.backends.cpu.get_cpu_capability():
        return "the other tests run at this level"
    lacks = capability == "AVX512" and "avx512f" not in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    return "this CPU lacks AVX-512" if lacks else ""


def play(name: str) -> subprocess.CompletedProcess[str]:
    paths = {path.name: str(path) for path in TESTS.glob("*/test_*.py")}
    files = [paths[f"test_{file}.py"] for file in (EVERY if FULL else FILES).split()]
    chosen = LOOPS if "ATEN_CPU_CAPABILITY" in LEVELS[name] else FUNCTIONS
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *files, *([] if FULL else ["-k", chosen])]
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, **LEVELS[name], "FASTJIT_CACHE_DIR": cache, "FASTJIT_LEVELS_FULL": "0"}
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=TESTS.parents[1])


@functools.cache
def played() -> dict[str, subprocess.CompletedProcess[str]]:
    """Every level, two at a time: nothing else of a test run needs the other core."""
    names = [name for name, level in LEVELS.items() if not why_not(level)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return dict(zip(names, pool.map(play, names), strict=True))


@pytest.mark.parametrize("name", LEVELS)
def test_numeric_tests_pass_at(name):
    if reason := why_not(LEVELS[name]):
        pytest.skip(reason)
    done = played()[name]
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    assert failed == [] and done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    dots = re.findall(r"^([.sx]+) *\[ *\d+%\]$", done.stdout, re.M)
    assert sum(line.count(".") for line in dots) >= 200, done.stdout
