"""What is installed: symbols, libraries, refusals at import, the command line, switches."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fastjit
from fastjit import _C, _docs, _load

ROOT = Path(__file__).resolve().parents[2]
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
            r"fastjit was built for Python 3\.9, and this is Python 3\.\d+; install fastjit under Python 3\.9 "
            r"\(or build it again for this one: make build in its source folder\)",
        ),
        (
            {"TORCH": "2.1.0+cpu"},
            r"fastjit was built for torch 2\.1\.0, and this is torch \S+; type: pip install torch==2\.1\.0 "
            r"\(or build it again for this one: make build in its source folder\)",
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


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pinned_torch() -> str:
    return next(text.removeprefix("torch==") for text in project()["dependencies"] if text.startswith("torch=="))


def test_the_metadata_says_what_import_demands() -> None:
    assert _load.build.TORCH.split("+")[0] == pinned_torch()
    assert project()["requires-python"] == f"=={_load.build.PYTHON}.*"
    assert f"Programming Language :: Python :: {_load.build.PYTHON}" in project()["classifiers"]


def test_versions_stand_once() -> None:
    """The package's in __init__.py, torch's in pyproject.toml; the builds read them there."""
    assert _C.version == fastjit.__version__
    for name in ("CMakeLists.txt", "Makefile", "pyproject.toml", "cmake/extension.cmake", "cmake/fastjit_build.py"):
        text = (ROOT / name).read_text()
        assert fastjit.__version__ not in text, name
        assert text.count(pinned_torch()) == (name == "pyproject.toml"), name
    made = subprocess.run(["make", "-n", "-B", "setup"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert f'"torch=={pinned_torch()}+cpu"' in made


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(ROOT / "cmake")
    return pytest.importorskip("fastjit_build", reason="scikit-build-core is not installed")


def test_a_build_finds_the_torch_that_isolation_hides(backend: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    hides = "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]"
    (tmp_path / "sitecustomize.py").write_text(hides)  # as pip's isolated build does
    assert backend._found().split("+")[0] == pinned_torch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert run("-c", "import torch").returncode != 0
    assert backend._found().split("+")[0] == pinned_torch()
    backend._need_torch()


@pytest.mark.parametrize("found", ["", "2.1.0+cpu"])
@pytest.mark.parametrize(
    "hook",
    [
        lambda backend: backend.get_requires_for_build_wheel(),
        lambda backend: backend.get_requires_for_build_editable(),
        lambda backend: backend.build_wheel("nowhere"),
        lambda backend: backend.build_editable("nowhere"),
    ],
)
def test_a_build_without_the_pinned_torch_says_what_to_type(
    backend: Any, hook: Callable[[Any], object], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_found", lambda: found)
    with pytest.raises(SystemExit) as end:
        hook(backend)
    torch_version = pinned_torch()
    assert end.value.code == (
        f"fastjit is built against torch {torch_version}, and this environment has "
        f"{'torch 2.1.0+cpu' if found else 'none'}. Type: pip install torch=={torch_version} && pip install . "
        "(other front ends than pip: without build isolation)"
    )


def test_pages_of_the_documentation_are_printed() -> None:
    names = {path.stem for path in (ROOT / "docs").glob("*.md")}
    listed = run("-m", "fastjit", "docs")
    assert {line.split()[2] for line in listed.stdout.splitlines()} == names
    assert run("-m", "fastjit", "docs", "limits").stdout == (ROOT / "docs/limits.md").read_text()
    missing = run("-m", "fastjit", "docs", "limit")
    assert missing.returncode == 2 and missing.stdout == ""
    assert missing.stderr.startswith("fastjit docs: there is no page 'limit'; the pages are architecture, ")


def test_an_installed_package_has_its_own_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "lib" / "fastjit"
    (package / "docs").mkdir(parents=True)
    (package / "docs" / "limits.md").write_text("# Limits of the wheel\n")
    monkeypatch.setattr(_docs, "_PACKAGE", package)
    assert _docs.text("limits") == "# Limits of the wheel\n"
    assert "DESTINATION fastjit/docs" in (ROOT / "cmake/extension.cmake").read_text()


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
    assert not list(tmp_path.rglob("*.fj"))  # what was compiled to see whether it works is not kept


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
