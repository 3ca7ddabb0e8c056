"""The stub names what the extension has; mypy and pyright agree with the sources and with tests/typing."""

from __future__ import annotations

import ast
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fastjit import _C

ROOT = Path(__file__).resolve().parents[3]
STUB = ast.parse((ROOT / "python/fastjit/_C.pyi").read_text())


def names(body: list[ast.stmt]) -> set[str]:
    found = set()
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            found.add(statement.name)
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            found.add(statement.target.id)
    return found


def test_the_stub_names_what_the_extension_has() -> None:
    assert names(STUB.body) == {name for name in dir(_C) if not name.startswith("__")}


def test_the_stub_names_what_a_function_has() -> None:
    function = next(s for s in STUB.body if isinstance(s, ast.ClassDef) and s.name == "Function")
    given_by_api = {"stats", "parts", "variants", "explain", "inspect", "clear", "warmup", "eager", "export"}
    assert {n for n in names(function.body) if not n.startswith("__")} - {"_options"} == {
        n for n in vars(_C.Function) if not n.startswith("__")
    } - given_by_api


def test_the_package_is_typed() -> None:
    assert (ROOT / "python/fastjit/py.typed").exists()


@pytest.mark.skipif(importlib.util.find_spec("pyright") is None, reason="pyright is not installed")
@pytest.mark.skipif(shutil.which("node") is None, reason="pyright runs on node, which is not installed")
def test_pyright_agrees() -> None:
    asked = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "tests/typing"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
def test_mypy_agrees() -> None:
    done = subprocess.run([sys.executable, "-m", "mypy"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
