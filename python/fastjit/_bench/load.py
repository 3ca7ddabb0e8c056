"""From `FILE.py::fn` and the texts of the command line to a function and its inputs."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import BenchError

TARGET = re.compile(r"^(?P<path>.+\.py)::(?P<name>[A-Za-z_][\w.]*)$")


@dataclass(frozen=True)
class CaseSpec:
    """A case as text, so that a fresh process can build it again."""

    path: str
    name: str
    args: str | None = None
    setup: str | None = None
    values: dict[str, Any] = field(default_factory=dict)
    args_name: str | None = None  # the input function, `<name>_args` unless said otherwise
    label: str | None = None  # what tables call it, instead of file and function

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def title(self) -> str:
        point = ", ".join(f"{key}={value}" for key, value in self.values.items())
        return (self.label or f"{Path(self.path).name}::{self.name}") + (f" ({point})" if point else "")


@dataclass(frozen=True)
class Case:
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def load_module(path: str) -> ModuleType:
    """The file as a module of its own name, its folder importable as when it is run."""
    file = Path(path).resolve()
    if not file.is_file():
        raise BenchError(f"no file '{path}'; give FILE.py::function")
    known = sys.modules.get(file.stem)
    if known is not None and getattr(known, "__file__", None) == str(file):
        return known
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise BenchError(f"'{path}' is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[file.stem]
        raise BenchError(f"'{path}' does not import: {type(error).__name__}: {error}") from error
    return module


def load_case(spec: CaseSpec) -> Case:
    """Builds function and inputs; the same numbers every time."""
    import torch

    module = load_module(spec.path)
    fn: Any = module
    for part in spec.name.split("."):
        if not hasattr(fn, part):
            raise BenchError(f"'{spec.path}' has no '{spec.name}'; it has {_functions_of(module)}")
        fn = getattr(fn, part)
    if inspect.isclass(fn) or not callable(fn):
        raise BenchError(f"'{spec.name}' is {type(fn).__name__}, not a function or module instance")
    namespace = {**vars(module), "torch": torch, **spec.values}
    if spec.setup:
        _run(spec.setup, namespace, "-s SETUP")
    torch.manual_seed(0)
    args, kwargs = _inputs(spec, module, namespace)
    return Case(plain(fn), args, kwargs)


def plain(fn: Any) -> Callable[..., Any]:
    """The eager function under a FastJIT decorator, or `fn` itself."""
    inner = getattr(fn, "__wrapped__", None)
    return inner if inner is not None and hasattr(fn, "stats") else fn  # type: ignore[no-any-return]


def _inputs(spec: CaseSpec, module: ModuleType, namespace: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if spec.args is not None:
        collected: tuple[tuple[Any, ...], dict[str, Any]] = _evaluate(
            f"_collect({spec.args})", {**namespace, "_collect": lambda *a, **k: (a, k)}, f"--args {spec.args!r}"
        )
        return collected
    name = spec.args_name or f"{spec.name.split('.')[-1]}_args"
    maker = getattr(module, name, None)
    if maker is None:
        raise BenchError(f"no inputs: define '{name}()' in '{spec.path}' or give --args \"torch.randn(64, 64), 2.0\"")
    wanted = inspect.signature(maker).parameters
    unknown = [key for key in spec.values if key not in wanted]
    if unknown:
        raise BenchError(f"--sweep {unknown[0]}: '{name}()' has no parameter '{unknown[0]}'; use the name in --args")
    try:
        made = maker(**spec.values)
    except Exception as error:
        raise BenchError(f"'{name}()' raised {type(error).__name__}: {error}") from error
    if isinstance(made, dict):
        return (), made
    return (tuple(made) if isinstance(made, (tuple, list)) else (made,)), {}


def _functions_of(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if inspect.isfunction(value) and not name.endswith("_args")]
    return ", ".join(names[:8]) or "no functions"


def _evaluate(source: str, namespace: dict[str, Any], option: str) -> Any:
    try:
        return eval(compile(source, option, "eval"), namespace)
    except Exception as error:
        raise BenchError(f"{option}: {type(error).__name__}: {error}") from error


def _run(source: str, namespace: dict[str, Any], option: str) -> None:
    try:
        exec(compile(source, option, "exec"), namespace)
    except Exception as error:
        raise BenchError(f"{option}: {type(error).__name__}: {error}") from error


def check_sweeps(names: Iterable[str], *sources: str | None) -> None:
    """Refuses a swept name that none of the sources reads: every point would measure the same."""
    read: set[str] = set()
    for source in filter(None, sources):
        try:
            tree = ast.parse(source)
        except SyntaxError:  # told, with its place, where the source is run
            return
        read |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for name in names:
        if name not in read:
            raise BenchError(f"--sweep {name}: nothing uses '{name}', so every point would measure the same")


def parse_sweeps(texts: list[str]) -> dict[str, list[Any]]:
    """`n=250,500` to {"n": [250, 500]}; values are Python literals, else strings."""
    sweeps: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not name.strip().isidentifier() or not values.strip():
            raise BenchError(f"--sweep {text!r}: write --sweep n=250,500,1000")
        sweeps[name.strip()] = [_literal(value.strip()) for value in values.split(",")]
    return sweeps


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def points(sweeps: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """Every combination; one empty point without sweeps."""
    for values in itertools.product(*sweeps.values()):
        yield dict(zip(sweeps, values, strict=True))
