"""What is installed: symbols, libraries, refusals at import, the command line, switches."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fastjit
from fastjit import _C, _docs, _load

ROOT = Path(__file__).resolve().parents[3]
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


# The newest of each library that manylinux_2_34 has; of LLVM, GCC and glibc, whichever built the extension.
NEWEST = {"GLIBC": (2, 34), "GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13), "GCC": (7, 0, 0)}
LIBRARIES = {
    *("libtorch_python.so", "libtorch_cpu.so", "libtorch.so", "libc10.so", "libgomp.so.1"),  # torch's own
    *("libz.so.1", "libstdc++.so.6", "libgcc_s.so.1", "libm.so.6", "libc.so.6", "ld-linux-x86-64.so.2"),
    *("libdl.so.2", "libpthread.so.0", "librt.so.1"),
}


def test_nothing_newer_than_manylinux_2_34_is_asked_for() -> None:
    built_on = tuple(map(int, os.confstr("CS_GNU_LIBC_VERSION").split()[1].split(".")))  # type: ignore[union-attr]
    if built_on > (2, 36):
        pytest.skip("built on a newer system than Debian 12: wheels are built in the manylinux container there")
    asked = {
        (library, tuple(map(int, version.split("."))))
        for library, version in re.findall(r"\b([A-Z]+)_([0-9.]+)\b", tool("readelf", "-W", "-V"))
    }
    assert {library for library, _ in asked} >= set(NEWEST)  # the others have no newer versions: zlib, OpenMP
    assert not [each for each in asked if each[0] in NEWEST and each[1] > NEWEST[each[0]]]


def test_every_system_has_the_libraries_that_are_needed() -> None:
    assert set(re.findall(r"NEEDED.*\[(.*)\]", tool("readelf", "-d"))) <= LIBRARIES


INSTALLED_BY = {  # what pip notes of it, and what the import then tells the user to type
    "wheel": (
        {"archive_info": {}, "url": "file:///w/fastjit.whl"},
        f'"fastjit=={fastjit.__version__}+torch{{series}}"',
    ),
    "an index": (None, f'pip install --force-reinstall --no-deps "fastjit=={fastjit.__version__}+torch{{series}}"'),
    "a folder": ({"dir_info": {}, "url": "file:///a%20folder"}, "pip install '/a folder'"),
    "a folder, -e": ({"dir_info": {"editable": True}, "url": "file:///src"}, "pip install -e /src"),
    "git": ({"vcs_info": {"vcs": "git"}, "url": "https://host/f.git"}, "pip install git+https://host/f.git"),
    "make": (None, f"make -C {Path(_load.__file__).parents[2]} build PY={sys.executable}"),
}


@pytest.fixture(params=INSTALLED_BY)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    note, command = INSTALLED_BY[request.param]
    text = json.dumps(note) if note else None
    monkeypatch.setattr("importlib.metadata.distribution", lambda _: SimpleNamespace(read_text=lambda _: text))
    monkeypatch.setattr(_load.build, "INPLACE", request.param == "make")
    return command


def refusal() -> str:
    with pytest.raises(ImportError) as refused:
        _load._check()
    return str(refused.value)


def test_another_torch_is_refused(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_load.build, "TORCH", "2.1.0+cpu")
    here = torch.__version__.split("+")[0]
    words = refusal()
    assert words.startswith(f"fastjit was built for torch 2.1.0, and this is torch {torch.__version__}; type: ")
    assert way.format(series=".".join(here.split(".")[:2])) in words
    assert words.endswith(" (or, for the torch that it was built for: pip install torch==2.1.0)")


def test_another_python_is_refused(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_load.build, "PYTHON", "3.9")
    words = refusal()
    running = "{}.{}".format(*sys.version_info[:2])
    assert words.startswith(f"fastjit was built for Python 3.9, and this is Python {running}; type: ")
    assert words.endswith(way.format(series=".".join(torch.__version__.split(".")[:2])))


def test_a_torch_that_cannot_be_built_for_is_refused(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.99.0+cpu")
    built_for = _load.build.TORCH.split("+")[0]
    assert refusal() == (
        f"fastjit was built for torch {built_for}, and this is torch 2.99.0+cpu; type: pip install torch=={built_for} "
        f"(fastjit can be built for torch {', '.join(supported())})"
    )


def test_a_local_version_of_torch_is_no_other_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_load.build, "TORCH", torch.__version__.split("+")[0] + "+cu999")
    _load._check()


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def supported() -> list[str]:
    return pyproject()["tool"]["fastjit"]["torch"]


def test_the_metadata_say_what_import_demands() -> None:
    project = pyproject()["project"]
    assert _load.build.TORCH.split("+")[0] in supported()
    assert list(_load.build.SUPPORTED) == supported()
    first, end = map(int, re.fullmatch(r">=3\.(\d+),<3\.(\d+)", project["requires-python"]).groups())  # type: ignore[union-attr]
    pythons = [f"3.{minor}" for minor in range(first, end)]
    assert _load.build.PYTHON in pythons
    classified = [text.removeprefix("Programming Language :: Python :: ") for text in project["classifiers"]]
    assert [text for text in classified if re.fullmatch(r"3\.\d+", text)] == pythons
    assert pyproject()["tool"]["cibuildwheel"]["build"] == [f"cp{each.replace('.', '')}-*" for each in pythons]


@pytest.mark.parametrize("page", ["README.md", "docs/install.md", "docs/limits.md"])
def test_pages_name_the_releases(page: str) -> None:
    assert all(release in (ROOT / page).read_text() for release in supported())


def test_one_release_of_a_series() -> None:
    """The version of a wheel has the series only."""
    series = [release.rsplit(".", 1)[0] for release in supported()]
    assert sorted(set(series), key=lambda text: [int(part) for part in text.split(".")]) == series


def test_versions_stand_once() -> None:
    """The package's in __init__.py, torch's in pyproject.toml; the builds read them there."""
    assert _C.version == fastjit.__version__
    workflows = [str(path.relative_to(ROOT)) for path in (ROOT / ".github/workflows").glob("*.yml")]
    builds = [str(path.relative_to(ROOT)) for path in (ROOT / "cmake").glob("*.*")]
    for name in ("CMakeLists.txt", "Makefile", "pyproject.toml", *builds, *workflows):
        text = (ROOT / name).read_text()
        assert fastjit.__version__ not in text, name
        for release in supported():
            assert text.count(release) == (name == "pyproject.toml"), name
    made = subprocess.run(["make", "-n", "-B", "setup"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert f'"torch=={supported()[0]}+cpu"' in made


def test_make_installs_what_the_extras_name() -> None:
    found = re.search(r"^PIP := (.*?[^\\])$", (ROOT / "Makefile").read_text(), re.MULTILINE | re.DOTALL)
    assert found
    extras = pyproject()["project"]["optional-dependencies"]
    own = ["xxhash", "rich>=13", "pybind11>=2.13,<4", "scikit-build-core>=1.1"]
    assert sorted(shlex.split(found[1].replace("\\\n", " "))) == sorted([*own, *extras["test"], *extras["lint"]])
    # The libraries of models, without their dependencies: torchvision is the one of the torch that make installs.
    setup = subprocess.run(["make", "-n", "-B", "setup"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    bare = next(line for line in setup.splitlines() if "--no-deps" in line).partition("--no-deps")[2]
    minor = int(supported()[0].split(".")[1])
    vision = {text for text in extras["models"] if text.startswith("torchvision")}
    assert (
        set(shlex.split(bare)) - {f"torchvision==0.{minor + 15}.*"} == {*extras["models"]} - {*extras["test"]} - vision
    )
    required = [*pyproject()["build-system"]["requires"], *pyproject()["tool"]["dynamic-metadata"][1]["dependencies"]]
    assert {re.split("[<>=]", text)[0] for text in required} == {re.split("[<>=]", text)[0] for text in own}


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(ROOT / "cmake")
    return pytest.importorskip("fastjit_build", reason="scikit-build-core is not installed")


def test_a_build_finds_the_torch_that_isolation_hides(backend: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    hides = "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]"
    (tmp_path / "sitecustomize.py").write_text(hides)  # as pip's isolated build does
    here = torch.__version__.split("+")[0]
    assert backend._found().split("+")[0] == here
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert run("-c", "import torch").returncode != 0
    assert backend._found().split("+")[0] == here
    assert backend._need_torch() == here


WHEEL_STATES = ("wheel", "editable", "metadata_wheel", "metadata_editable")
HOOKS = {
    "requires": lambda backend: backend.get_requires_for_build_wheel(),
    "requires, -e": lambda backend: backend.get_requires_for_build_editable(),
    "wheel": lambda backend: backend.build_wheel("nowhere"),
    "wheel, -e": lambda backend: backend.build_editable("nowhere"),
    "metadata": lambda backend: metadata(backend, "metadata_wheel"),
}


@pytest.mark.parametrize("found", ["", "2.1.0+cpu"])
@pytest.mark.parametrize("hook", HOOKS.values(), ids=HOOKS)
def test_a_build_without_a_known_torch_says_what_to_type(
    backend: Any, hook: Callable[[Any], object], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_found", lambda: found)
    with pytest.raises(SystemExit) as end:
        hook(backend)
    *others, newest = supported()
    assert end.value.code == (
        f"fastjit is built against torch {', '.join(others)} or {newest}, and this environment has "
        f"{'torch 2.1.0+cpu' if found else 'none'}. Type: pip install torch=={newest} && pip install . "
        "(python -m build needs --no-isolation for it, and uv --no-build-isolation)"
    )


def test_another_release_of_a_known_series_is_told_its_neighbour(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = supported()[0]
    monkeypatch.setattr(backend, "_found", lambda: f"{first.rsplit('.', 1)[0]}.99")
    with pytest.raises(SystemExit, match=re.escape(f"Type: pip install torch=={first} && ")):
        backend._need_torch()


@pytest.mark.parametrize("python", ["3.10", "3.15"])
def test_a_build_under_another_python_says_so(backend: Any, python: str) -> None:
    bounds = pyproject()["project"]["requires-python"]
    with pytest.raises(SystemExit, match=re.escape(f"fastjit needs CPython {bounds}, and this is Python {python}")):
        backend._need_python(python)


def test_a_free_threaded_python_builds_nothing(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend.sysconfig, "get_config_var", lambda name: name == "Py_GIL_DISABLED")
    with pytest.raises(SystemExit, match="is a free-threaded one"):
        backend._need_python("3.13")


def metadata(backend: Any, state: str) -> dict[str, Any]:
    """What the provider makes of the entries that pyproject.toml has for it."""
    settings = dict(pyproject()["tool"]["dynamic-metadata"][1])
    assert settings.pop("provider") == {"path": "cmake", "module": "fastjit_build:Metadata"}
    provider = backend.Metadata()
    provider.build_state(state)
    return provider.dynamic_metadata(settings, {"version": "1.2.3"})


@pytest.mark.parametrize("state", WHEEL_STATES)
def test_a_wheel_names_the_torch_that_it_was_built_with(
    backend: Any, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_found", lambda: f"{supported()[1]}+cu130")
    made = metadata(backend, state)
    assert made["version"] == f"1.2.3+torch{supported()[1].rsplit('.', 1)[0]}"
    assert made["dependencies"] == [f"torch=={supported()[1]}", "xxhash>=3", "rich>=13"]


def test_an_sdist_needs_no_torch_and_its_wheels_have_its_version(
    backend: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """pip refuses a wheel whose version is not that of the sdist which it was made of."""
    monkeypatch.setattr(backend, "_found", lambda: "")
    assert metadata(backend, "sdist") == {"dependencies": ["torch", "xxhash>=3", "rich>=13"]}
    assert backend.Metadata().dynamic_wheel({}) == {"dependencies": True}
    monkeypatch.setattr(backend, "_need_torch", lambda: supported()[0])
    monkeypatch.chdir(tmp_path)
    assert metadata(backend, "wheel")["version"] != "1.2.3"
    (tmp_path / "PKG-INFO").touch()
    assert metadata(backend, "wheel")["version"] == "1.2.3"


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
    installed = importlib.metadata.version("torch")  # wheels of an index have no +cu132 there
    assert rows["torch"].startswith(installed) and torch.__version__.startswith(installed)
    assert f"(built with {_C.torch_version})" in rows["torch"]


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
