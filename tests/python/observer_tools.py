"""Builds the read observer as a Python module without torch, and runs calls under it."""

import importlib.util
import subprocess
import sys
import sysconfig
import types
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]


def build(folder: Path, include: str = sysconfig.get_paths()["include"]) -> Path:
    """Compiles src/observe and the test module against the headers in `include`; two compilers at a time."""
    sources = [*sorted((ROOT / "src/observe").glob("*.cpp")), ROOT / "tests/python/observer_ext.cpp"]
    flags = ["-std=c++20", "-O1", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]
    waiting, running, objects = list(sources), [], []
    while waiting or running:
        while waiting and len(running) < 2:
            source = waiting.pop()
            objects.append(folder / f"{source.stem}.o")
            command = [
                "c++",
                *flags,
                f"-I{ROOT / 'src'}",
                "-isystem",
                include,
                "-c",
                str(source),
                "-o",
                str(objects[-1]),
            ]
            running.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        process = running.pop(0)
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    library = folder / "fj_observe_test.so"
    subprocess.run(["c++", "-shared", *map(str, objects), "-o", str(library)], check=True)
    return library


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
    ext: types.ModuleType, function: Any, *args: Any, scalars: tuple = (), host: Any = Host, **kwargs: Any
) -> Seen:
    seen = ext.observe(host, scalars, function, args, kwargs)
    assert seen is not None, "the observer did not start"
    return Seen(*seen)


def program(source: str) -> types.ModuleType:
    """The source as module `model` in file model.py."""
    module = types.ModuleType("model")
    module.__dict__.update(Tensor=Tensor, Module=Module, T=Tensor(seconds=1))
    sys.modules["model"] = module
    exec(compile(source, "model.py", "exec"), module.__dict__)
    return module
