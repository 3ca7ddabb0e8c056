"""`make test-matrix`: the whole of the tests for several pairs of Python and torch, each as a wheel's user has them.

A cell, such as `3.13+2.15.0`, has a folder build/matrix/cp313-torch2.15.0 with two environments. `tools` has what a
build needs and sees the torch of the other; it makes the wheel, and runs the engine's own tests. `env` has torch, what
the tests need, and the wheel. What was found goes into benchmarks/results/matrix.json, and from there into install.md.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "matrix"
RESULT = ROOT / "benchmarks" / "results" / "matrix.json"
CELLS = ("3.11+2.13.0", "3.12+2.14.1", "3.13+2.15.0")
TOOLS = ("pybind11>=2.13,<4", "scikit-build-core>=1.1", "numpy")
CPU_TORCH = "https://download.pytorch.org/whl/cpu"  # a bare `torch` brings gigabytes of CUDA: only where this has none
FIRST_CALLS = """
import torch, fastjit
f = fastjit.fastjit(lambda x, y: torch.tanh(x * y + 1))
x, y = torch.randn(64), torch.randn(64)
same = [torch.allclose(f(x, y), torch.tanh(x * y + 1), atol=1e-6) for _ in range(3)]
found = f.stats()
print(all(same), found.hits, found.compiles, found.disk_hits)
"""


class CellError(Exception):
    """A cell that could not be made; the text says why."""


class Cell:
    """One pair of Python and torch."""

    def __init__(self, name: str) -> None:
        matched = re.fullmatch(r"(3\.\d+)\+(\d+\.\d+\.\d+)", name)
        if not matched:
            raise SystemExit(f"matrix: {name} is no cell; one is written PYTHON+TORCH, for example 3.13+2.15.0")
        self.name, self.python, self.torch = name, matched[1], matched[2]
        self.folder = FOLDER / f"cp{self.python.replace('.', '')}-torch{self.torch}"
        self.tools, self.env = self.folder / "tools", self.folder / "env"

    def play(self) -> dict[str, Any]:
        """Every step of the cell, each with its seconds; what it found is a row of the result."""
        self.folder.mkdir(parents=True, exist_ok=True)
        found: dict[str, Any] = {"cell": self.name, "date": datetime.now(UTC).isoformat(timespec="seconds")}
        steps: list[Callable[[], dict[str, Any]]] = [
            self.make_environments,
            self.build,
            self.test_engine,
            self.use_without_compiler,
            self.test_package,
            self.compare_with_eager,
            self.time_a_call,
        ]
        for step in steps:
            start = time.monotonic()
            found |= step()
            said = step.__name__.replace("_", " ")
            print(f"matrix: {self.name}: {said}, {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
        return found

    def make_environments(self) -> dict[str, Any]:
        for environment in (self.tools, self.env):
            if not (environment / "bin" / "python").exists():
                self.do([interpreter(self.python), "-m", "venv", environment])
        running = self.ask(self.env, "import torch; print(torch.__version__)")
        if running.partition("+")[0] != self.torch:
            self.install_torch()
        self.pip(self.tools, *TOOLS)
        (packages(self.tools) / "torch_of_the_cell.pth").write_text(f"{packages(self.env)}\n")
        return {}

    def install_torch(self) -> None:
        for arguments in ([f"torch=={self.torch}+cpu"], [f"torch=={self.torch}+cpu", "--index-url", CPU_TORCH]):
            if self.run([self.env / "bin" / "python", "-m", "pip", "install", "-q", *arguments]).returncode == 0:
                return
        self.pip(self.env, f"torch=={self.torch}")

    def build(self) -> dict[str, Any]:
        wheels, build = self.folder / "wheels", self.folder / "build"
        shutil.rmtree(wheels, ignore_errors=True)
        defined = [f"cmake.define.FASTJIT_{option}=ON" for option in ("TESTS", "WERROR")]
        settings = [word for setting in (f"build-dir={build}", *defined) for word in ("-C", setting)]
        command = ["wheel", "-q", "--no-build-isolation", "--no-deps", "-w", wheels, *settings, ROOT]
        compilers = {"CC": "cc", "CXX": "c++"}  # as in `make build`: ccache asks for the name
        self.do([self.tools / "bin" / "python", "-m", "pip", *command], os.environ | compilers)
        (wheel,) = wheels.glob("*.whl")
        self.do([self.env / "bin" / "python", "-m", "pip", "uninstall", "-q", "-y", "fastjit"])
        self.pip(self.env, f"{wheel}[test]")
        return {"wheel": wheel.name, "bytes": wheel.stat().st_size}

    def test_engine(self) -> dict[str, Any]:
        report = self.folder / "gtest.xml"
        self.run(["ctest", "--test-dir", self.folder / "build", "-j", os.cpu_count(), "--output-junit", report])
        return {"engine": outcomes(report)}

    def use_without_compiler(self) -> dict[str, Any]:
        """The wheel in two processes that see no program but the environment's: the second one compiles nothing."""
        cache = self.folder / "cache"
        shutil.rmtree(cache, ignore_errors=True)
        bare = {"PATH": str(self.env / "bin"), "FASTJIT_CACHE_DIR": str(cache), "HOME": str(self.folder)}
        lines = [self.do([self.env / "bin" / "python", "-c", FIRST_CALLS], bare).split() for _ in range(2)]
        return {"wheel works": lines == [["True", "2", "1", "0"], ["True", "2", "0", "1"]], "wheel said": lines}

    def test_package(self) -> dict[str, Any]:
        report = self.folder / "pytest.xml"
        self.run([self.env / "bin" / "python", "-m", "pytest", f"--junitxml={report}"], self.variables())
        return {"package": outcomes(report)}

    def compare_with_eager(self) -> dict[str, Any]:
        """Scripts, op_db and models, as benchmarks/correctness.py counts them; a model that differs ends the cell."""
        out = self.folder / "correctness.json"
        program = ROOT / "benchmarks" / "correctness.py"
        self.do(
            [self.env / "bin" / "python", program, "--parts", "scripts,opinfo,models", "--out", out], self.variables()
        )
        document = json.loads(out.read_text())
        parts = {name: document["samples"][name]["found"] for name in ("scripts", "opinfo", "models")}
        entries = parts["opinfo"]["forms"]
        kinds = collections.Counter(kind for kind, _ in entries["call"].values())
        hits = sum(kinds[kind] for kind in ("kernels", "extern", "views"))
        return {
            "scripts": len(parts["scripts"]),
            "wrong scripts": [name for name, row in parts["scripts"].items() if row[1] != "passed"],
            "wrong entries": [name for of in entries.values() for name, (kind, _) in of.items() if kind == "wrong"],
            "entries": sum(map(len, entries.values())),
            "op_db hits": hits / max(kinds.total() - kinds["refused"], 1),
            "models": len({row["model"] for row in parts["models"]}),
        }

    def time_a_call(self) -> dict[str, Any]:
        program = ROOT / "benchmarks" / "dispatch.py"
        self.do([self.env / "bin" / "python", program, "--out", self.folder], self.variables())
        document = json.loads((self.folder / "dispatch.json").read_text())
        return {"dispatch": document["targets"][0]["measured"], "machine": document["machine"]}

    def variables(self) -> dict[str, str]:
        """What the steps' processes see: a cache of their own, the environment first on the path."""
        cache = self.folder / "cache"
        shutil.rmtree(cache, ignore_errors=True)
        path = f"{self.env / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "FASTJIT_CACHE_DIR": str(cache), "PATH": path}

    def pip(self, environment: Path, *what: Any) -> None:
        self.do([environment / "bin" / "python", "-m", "pip", "install", "-q", *what])

    def ask(self, environment: Path, program: str) -> str:
        return self.run([environment / "bin" / "python", "-c", program]).stdout.strip()

    def do(self, command: list[Any], variables: dict[str, str] | None = None) -> str:
        done = self.run(command, variables)
        if done.returncode:
            raise CellError(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def run(self, command: list[Any], variables: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Standard input is closed and what is written is kept beside the cell."""
        words = [str(word) for word in command]
        done = subprocess.run(
            words, env=variables, cwd=ROOT, text=True, stdin=subprocess.DEVNULL, capture_output=True, errors="replace"
        )
        with (self.folder / "log.txt").open("a") as log:
            log.write(f"$ {' '.join(words)}\n{done.stdout}{done.stderr}[{done.returncode}]\n")
        return done


def packages(environment: Path) -> Path:
    return next((environment / "lib").glob("python3*")) / "site-packages"


def interpreter(minor: str) -> Path:
    """The newest Python of that minor version that pyenv has, or the one on the path."""
    candidates = sorted((Path.home() / ".pyenv" / "versions").glob(f"{minor}.*/bin/python"), key=release)
    if candidates:
        return candidates[-1]
    if found := shutil.which(f"python{minor}"):
        return Path(found)
    raise CellError(f"no CPython {minor} was found: neither pyenv nor the path has one")


def release(python: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", python.parents[1].name)]


def outcomes(report: Path) -> dict[str, Any]:
    """Of a JUnit report: how many passed, which failed, how many were skipped for which reason."""
    if not report.exists():
        raise CellError(f"{report} was not written; log.txt beside it says why")
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skips = [skip for case in cases if (skip := case.find("skipped")) is not None]
    reasons = collections.Counter(skip.get("message", "") for skip in skips)
    return {
        "passed": len(cases) - len(failed) - len(skips),
        "failed": sorted({f"{case.get('classname')}::{case.get('name')}" for case in failed}),
        "skipped": dict(reasons.most_common()),
    }


def good(row: dict[str, Any]) -> bool:
    """No failing test, no wrong result, and a wheel that works."""
    if "error" in row:
        return False
    failed = row["engine"]["failed"] + row["package"]["failed"] + row["wrong scripts"] + row["wrong entries"]
    return not failed and row["wheel works"]


def keep(rows: list[dict[str, Any]]) -> None:
    """Puts each row in the place of its cell's last one. When all cells are done: their tests read the file too."""
    document = json.loads(RESULT.read_text()) if RESULT.exists() else {"schema": "fastjit.matrix/1", "cells": {}}
    document["cells"] |= {row["cell"]: row for row in rows}
    document["cells"] = dict(sorted(document["cells"].items()))
    RESULT.write_text(json.dumps(document, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cells", nargs="*", default=CELLS, help=f"such as 3.13+2.15.0; by default {' '.join(CELLS)}")
    parser.add_argument("--save", action="store_true", help=f"keep the rows in {RESULT.name}, for docs/install.md")
    given = parser.parse_args()
    rows = []
    for cell in [Cell(name) for name in given.cells]:
        try:
            row = cell.play()
        except CellError as error:
            row = {"cell": cell.name, "error": str(error)}
        rows.append(row)
        (cell.folder / "row.json").write_text(json.dumps(row, indent=1) + "\n")
        print(in_words(row), flush=True)
    if given.save:
        keep(rows)
    return 0 if all(map(good, rows)) else 1


def in_words(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"{row['cell']}: {row['error']}"
    failed = [*row["engine"]["failed"], *row["package"]["failed"], *row["wrong scripts"], *row["wrong entries"]]
    skipped = sum(row["package"]["skipped"].values()) + sum(row["engine"]["skipped"].values())
    passed = row["engine"]["passed"] + row["package"]["passed"]
    wheel = "works without a compiler" if row["wheel works"] else f"does not work: {row['wheel said']}"
    lines = [
        f"{row['cell']}: {passed} passed, {len(failed)} failed or wrong, {skipped} skipped; op_db hits "
        f"{row['op_db hits']:.1%}; a call over one eager mul {row['dispatch']:.3g}; {row['wheel']} {wheel}",
        *(f"  failed: {name}" for name in failed),
        *(f"  skipped {count}: {why}" for why, count in row["package"]["skipped"].items()),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
