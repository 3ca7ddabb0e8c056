"""Includes point only backwards along the flow of data, and jit/ knows neither Python nor torch."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

# Folder -> folders it may include from (itself always). The order is that of the data; a folder stands for those in it.
ENGINE = {"jit/support", "jit/ir", "jit/pass", "jit/plan"}
MAY = {
    "jit/support": set(),
    "jit/ir": {"jit/support"},
    "jit/pass": {"jit/support", "jit/ir"},
    "jit/plan": {"jit/support", "jit/ir", "jit/pass"},
    "jit/codegen/math": {"jit/ir", "jit/plan", "jit/backend"},
    "jit/codegen/llvm": {"jit/ir", "jit/plan", "jit/backend", "jit/codegen/math"},
    "jit/codegen/cuda": {"jit/ir", "jit/plan", "jit/backend"},
    "jit/backend": {"jit/support", "jit/ir", "jit/plan", "jit/codegen"},
    "jit/cache": {"jit/support"},
    "jit/runtime": {"jit/support", "jit/ir", "jit/plan", "jit/codegen", "jit/backend", "jit/cache"},
    # Each stage of the observer asks the others: an event is judged, and a fact asks for the event's operands.
    "src/observe": {"jit/support", "src/observe"},
    "src/capture": {"jit/support", "jit/ir", "jit/plan", "src/capture/ops", "src/capture/record"},
    "src/capture/ops": {"jit/ir"},
    "src/capture/record": {"jit/support", "src/capture", "src/capture/ops"},
    "src/capture/lower": {"jit/ir", "jit/plan", "src/capture", "src/capture/ops"},
    "src/capture/build": {
        "jit/support",
        "jit/ir",
        "src/capture",
        "src/capture/ops",
        "src/capture/record",
        "src/capture/lower",
    },
    "src/dispatch/run": {"jit/support", "jit/ir", "jit/plan", "jit/backend", "src/capture", "src/capture/ops"},
    "src/dispatch/call": ENGINE | {"jit/runtime", "src/observe", "src/capture", "src/dispatch", "src/python"},
    "src/dispatch/learn": ENGINE
    | {"jit/backend", "jit/runtime", "src/observe", "src/capture", "src/dispatch", "src/python"},
    "src/python": ENGINE | {"jit/codegen", "jit/backend", "jit/runtime", "src/observe", "src/capture", "src/dispatch"},
}
# What starts a stage knows the next one.
STARTS = {("src/capture/record/record.cpp", "capture/build/build.h")}
FORBIDDEN_IN_JIT = re.compile(r"Python\.h|pybind11|torch/|ATen/|c10/")


def _folder(path: Path) -> str:
    return path.parent.relative_to(ROOT).as_posix()


def _permits(folder: str, target: str) -> bool:
    """`src/capture` names the files in it, and the folders in it to those who stand outside."""
    if folder.startswith("src/capture"):
        return target in MAY[folder]
    return any(target == name or target.startswith(name + "/") for name in MAY[folder])


def _includes(path: Path) -> list[str]:
    return re.findall(r'^#include [<"]([^">]+)[">]', path.read_text(), re.MULTILINE)


def test_arrows_point_backwards():
    wrong = []
    for base in ("jit", "src"):
        for path in sorted((ROOT / base).rglob("*")):
            if path.suffix not in (".h", ".cpp", ".def") or path.name in ("pch.h", "pch_torch.h"):
                continue
            folder, here = _folder(path), path.relative_to(ROOT).as_posix()
            for name in _includes(path):
                for target in (ROOT / "jit" / name, ROOT / "src" / name):
                    if not target.exists() or _folder(target) == folder or (here, name) in STARTS:
                        continue
                    if not _permits(folder if folder in MAY else folder.rpartition("/")[0], _folder(target)):
                        wrong.append(f"{here} includes {name}")
    assert not wrong


def test_what_runs_a_program_knows_no_recorder():
    paths = sorted((ROOT / "src/dispatch/run").iterdir())
    assert len(paths) > 8
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
    folders = {_folder(p) for base in ("jit", "src") for p in (ROOT / base).rglob("*.cpp")}
    assert {f for f in folders if not f.startswith("src/observe/")} <= set(MAY)


def test_every_rule_is_of_folders_that_are_there():
    named = set(MAY).union(*MAY.values())
    assert sorted(name for name in named if not (ROOT / name).is_dir()) == []
    assert sorted(path for path, _ in STARTS if not (ROOT / path).is_file()) == []
