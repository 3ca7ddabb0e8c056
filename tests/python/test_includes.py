"""Includes point only backwards along the flow of data, and jit/ knows neither Python nor torch."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Folder -> folders it may include from (itself always). The order is that of the data.
MAY = {
    "jit/support": set(),
    "jit/ir": {"jit/support"},
    "jit/pass": {"jit/support", "jit/ir"},
    "jit/plan": {"jit/support", "jit/ir", "jit/pass"},
    "jit/codegen": {"jit/support", "jit/ir", "jit/plan", "jit/backend"},
    "jit/backend": {"jit/support", "jit/ir", "jit/plan", "jit/codegen"},
    "jit/cache": {"jit/support"},
    "jit/runtime": {"jit/support", "jit/ir", "jit/plan", "jit/codegen", "jit/backend", "jit/cache"},
    "src/observe": {"jit/support"},
    "src/capture": {"jit/support", "jit/ir", "jit/plan"},
    "src/dispatch": {
        "jit/support",
        "jit/ir",
        "jit/pass",
        "jit/plan",
        "jit/backend",
        "jit/runtime",
        "src/observe",
        "src/capture",
    },
}
FORBIDDEN_IN_JIT = re.compile(r"Python\.h|pybind11|torch/|ATen/|c10/")


def _folder(path: Path) -> str:
    return "/".join(path.relative_to(ROOT).parts[:2])


def _includes(path: Path) -> list[str]:
    return re.findall(r'^#include [<"]([^">]+)[">]', path.read_text(), re.MULTILINE)


def test_arrows_point_backwards():
    wrong = []
    for folder, allowed in MAY.items():
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in (".h", ".cpp", ".def"):
                continue
            for name in _includes(path):
                for base in ("jit", "src"):
                    target = ROOT / base / name
                    if target.exists() and _folder(target) != folder and _folder(target) not in allowed:
                        wrong.append(f"{path.relative_to(ROOT)} includes {name}")
    assert not wrong


# What runs a program, and all that it may know of the recording.
RUNS = ("executor", "run", "undo", "pool", "parallel", "cuda_device")


def test_what_runs_a_program_knows_no_recorder():
    paths = [p for name in RUNS for p in (ROOT / "src/dispatch").glob(f"{name}*.*")]
    assert len(paths) >= 2 * len(RUNS) - 2
    known = {name for path in paths for name in _includes(path) if name.startswith(("capture/", "observe/"))}
    assert known == {"capture/calls.h", "capture/ops/aten.h"}


def test_the_engine_knows_neither_python_nor_torch():
    wrong = [
        f"{p.relative_to(ROOT)}: {i}"
        for p in (ROOT / "jit").rglob("*.[hc]*")
        for i in _includes(p)
        if FORBIDDEN_IN_JIT.search(i)
    ]
    assert not wrong


def test_every_folder_is_ruled():
    folders = {
        _folder(p)
        for base in ("jit", "src")
        for p in (ROOT / base).rglob("*.cpp")
        if len(p.relative_to(ROOT).parts) > 2
    }
    assert folders <= set(MAY)
