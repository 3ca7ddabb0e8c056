"""What is installed: symbols, libraries, refusals at import, the command line, switches."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fastjit import _C, _load

NEIGHBOURS = ("numpy", "numba", "triton", "jax", "matplotlib")


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=os.environ | environment, timeout=120
    )


def tool(name: str, *arguments: str) -> str:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    return subprocess.run([name, *arguments, _C.__file__], capture_output=True, text=True, check=True).stdout


def test_one_symbol_is_exported() -> None:
    assert [line.split()[-1] for line in tool("nm", "-D", "--defined-only").splitlines()] == ["PyInit__C"]


def test_nothing_of_llvm_or_cuda_is_needed_at_run_time() -> None:
    needed = re.findall(r"NEEDED.*\[(.*)\]", tool("readelf", "-d"))
    assert "libtorch_python.so" in needed
    assert not [name for name in needed if re.search("LLVM|cuda|nvrtc|pybind|python3", name)]


def test_libraries_are_looked_for_beside_torch_only() -> None:
    paths = re.findall(r"R(?:UN)?PATH.*\[(.*)\]", tool("readelf", "-d"))
    assert paths == ["$ORIGIN/../torch/lib"]


@pytest.mark.parametrize("first", [True, False], ids=["fastjit first", "fastjit last"])
def test_other_compilers_live_beside_it(first: bool) -> None:
    present = [name for name in NEIGHBOURS if importlib.util.find_spec(name)]
    assert "numpy" in present
    ours = (
        "import torch, fastjit; f = fastjit.jit(lambda x: x * 2 + 1); x = torch.ones(4); f(x); assert f(x).sum() == 12"
    )
    parts = [ours, *[f"import {name}" for name in present]]
    done = run("-c", "\n".join(parts if first else parts[::-1]))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("built_for", "sentence"),
    [
        (
            {"PYTHON": "3.9"},
            r"fastjit was built for Python 3\.9, and this is Python 3\.\d+; build it again .*: pip install .*",
        ),
        (
            {"TORCH": "2.1.0"},
            r"fastjit was built for torch 2\.1\.0, and this is torch \S+; build it again .*: pip install .*",
        ),
    ],
)
def test_another_python_or_torch_is_refused(
    built_for: dict[str, str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in built_for.items():
        monkeypatch.setattr(_load.build, name, value)
    with pytest.raises(ImportError) as refusal:
        _load._check()
    assert re.fullmatch(sentence, str(refusal.value))


def test_a_local_version_of_torch_is_no_other_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_load.build, "TORCH", torch.__version__.split("+")[0] + "+cu999")
    _load._check()


def test_version() -> None:
    done = run("-m", "fastjit", "--version")
    assert done.returncode == 0, done.stderr
    rows = dict(line.split(None, 1) for line in done.stdout.splitlines())
    assert list(rows) == ["fastjit", "torch", "LLVM", "Python"]
    assert rows["Python"] == sys.version.split()[0]
    assert rows["LLVM"] == _C.llvm_version()
    assert rows["torch"].startswith(torch.__version__) and f"(built with {_C.torch_version})" in rows["torch"]


def test_doctor(tmp_path: Path) -> None:
    done = run("-m", "fastjit", "doctor", "--json", FASTJIT_CACHE_DIR=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stdout + done.stderr
    found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert found["compile"]["state"] == "ok" and found["cache folder"]["state"] == "ok"


@pytest.mark.parametrize(("value", "hits"), [("1", 0), ("0", 1), (" Off ", 1), ("True", 0)])
def test_the_whole_process_can_be_eager(value: str, hits: int) -> None:
    script = (
        "import torch, fastjit; f = fastjit.jit(lambda x: x + 1); x = torch.ones(4); f(x); f(x); print(f.stats().hits)"
    )
    done = run("-W", "error", "-c", script, FASTJIT_DISABLE=value)
    assert done.stdout == f"{hits}\n", done.stderr


def test_a_disabled_process_leaves_modules_alone() -> None:
    script = (
        "import torch, fastjit; m = torch.nn.Linear(2, 2); assert fastjit.jit(m) is m; print(m._compiled_call_impl)"
    )
    assert run("-c", script, FASTJIT_DISABLE="1").stdout == "None\n"
