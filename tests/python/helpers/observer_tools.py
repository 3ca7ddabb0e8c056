"""Builds the read observer as a Python module without torch, and runs calls under it."""

import fcntl
import functools
import importlib.util
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

supported = pytest.mark.skipif(
    not (3, 11) <= sys.version_info[:2] < (3, 15), reason="the read observer is for CPython 3.11 to 3.14"
)
HELPERS = Path(__file__).resolve().parent
ROOT = HELPERS.parents[2]


def build(python: Path | str = sys.executable) -> Path:
    """The observer and the test module as a library for this Python. Kept in build/; what changed is compiled again."""
    question = "import platform, sysconfig; print(platform.python_version(), sysconfig.get_paths()['include'])"
    version, include = subprocess.check_output([python, "-c", question], text=True).split(maxsplit=1)
    folder = ROOT / "build" / "observer" / version
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return compile_all(folder, include.strip())


def compile_all(folder: Path, include: str) -> Path:
    headers = [*(ROOT / "src/observe").rglob("*.h"), *(ROOT / "src/observe").rglob("*.def"), Path(__file__)]
    stamp = max(header.stat().st_mtime for header in headers)
    flags = ["-std=c++20", "-O1", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]
    flags += [f"-I{ROOT / 'src'}", f"-I{ROOT / 'jit'}", "-isystem", include]
    common = folder / "common.h"  # compiled once
    common.write_text('#include "observe/observe.h"\n#if FASTJIT_OBSERVES\n#include "observe/judge/tracer.h"\n#endif\n')
    sources = [*sorted((ROOT / "src/observe").rglob("*.cpp")), HELPERS / "observer_ext.cpp"]
    objects = {source: folder / f"{source.stem}.o" for source in sources}
    old = [s for s, o in objects.items() if not o.exists() or o.stat().st_mtime < max(stamp, s.stat().st_mtime)]
    library = folder / "fj_observe_test.so"
    if old:
        library.unlink(missing_ok=True)
        compile_some([[*flags, "-x", "c++-header", str(common), "-o", f"{common}.gch"]])
        compile_some([[*flags, "-include", str(common), "-c", str(s), "-o", str(objects[s])] for s in old])
    if not library.exists():
        subprocess.run(["c++", "-shared", *map(str, objects.values()), "-o", str(library)], check=True)
    return library


def compile_some(jobs: list[list[str]]) -> None:
    """Two compilers at a time; what fails leaves no object behind."""
    waiting, running, errors = list(jobs), [], ""
    while waiting or running:
        while waiting and len(running) < 2:
            running.append(subprocess.Popen(["c++", *waiting.pop(0)], stderr=subprocess.PIPE, text=True))
        process = running.pop(0)
        _, said = process.communicate()
        errors += said if process.returncode else ""
    assert not errors, errors


@functools.cache
def built() -> types.ModuleType:
    """The extension for this Python: the one that test_observer_versions.py built for it, or one built now."""
    library = os.environ.get("FASTJIT_OBSERVER_LIBRARY")
    return load(Path(library) if library else build())


def load(library: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("fj_observe_test", library)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Seen(NamedTuple):
    """What one observed call gave."""

    result: Any
    error: BaseException | None
    unsound: str
    symbolic: list[bool]
    tensors: list[tuple[str, Any]]
    facts: Any
    effects: list[str]
    state: str


class Tensor(timedelta):
    """Stands for torch.Tensor: a class with operators in C."""


class Module:
    """nn.Module's way of keeping attributes."""

    def __init__(self) -> None:
        for name in ("_parameters", "_buffers", "_modules", "_forward_hooks"):
            self.__dict__[name] = {}
        self.training = True

    def __setattr__(self, name, value):
        kind = "_parameters" if isinstance(value, Tensor) else "_modules" if isinstance(value, Module) else ""
        (self.__dict__[kind] if kind else self.__dict__)[name] = value

    def __getattr__(self, name):
        for kind in ("_parameters", "_buffers", "_modules"):
            found = self.__dict__[kind]
            if name in found:
                return found[name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __call__(self, *args, **kwargs):
        if self._forward_hooks:
            raise RuntimeError("hooks")
        return self.forward(*args, **kwargs)


class Host:
    tensor_types = (Tensor, timedelta)
    module_types = (Module,)

    @staticmethod
    def classify(callee: Any) -> str:
        if getattr(callee, "__objclass__", None) is timedelta or isinstance(
            getattr(callee, "__self__", None), timedelta
        ):
            return "operator"
        return "unknown"


def observe(
    ext: types.ModuleType,
    function: Any,
    *args: Any,
    scalars: tuple = (),
    host: Any = Host,
    varying: Any = None,
    **kwargs: Any,
) -> Seen:
    seen = ext.observe(host, scalars, function, args, kwargs, varying)
    assert seen is not None, "the observer did not start"
    return Seen(*seen)


def program(source: str) -> types.ModuleType:
    """The source as module `model` in file model.py."""
    module = types.ModuleType("model")
    module.__dict__.update(Tensor=Tensor, Module=Module, T=Tensor(seconds=1))
    sys.modules["model"] = module
    exec(compile(source, "model.py", "exec"), module.__dict__)
    return module


def all_code(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object and those inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from all_code(constant)
