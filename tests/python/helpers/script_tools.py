"""Plays a script twice, in eager and under @fastjit, in two worlds built from nothing, and compares what can be seen.

A script is a function of a `World`: it builds its state, calls through `world.call(what must run, f, *args)`, and says
`world.change(text)` after each change of state. Compared after each call: result and arguments (values bit for bit,
square roots as eager_cpu.py says, unless the script has a tolerance; dtype, sizes, strides, offset, version, view or
not, which tensors are one object, which share a storage), the watched state, the error's type and text, and what was
printed. What ran under @fastjit:
"hit", "new" (recorded and kept), "again" (recorded and kept in the place of a variant that is gone), "raised" (an
error: nothing is kept), "passing" (recorded, and not kept: the call replaced what it had read), "interrupted" (nothing
is kept: the call changed a container that it had reached; the next call is recorded), a part of the reason for eager,
or a tuple of these for several calls in one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import io
import linecache
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from eager_cpu import TYPES, RoundedRoots, at_least_as_near
from fastjit import fastjit

SCRIPTS: dict[str, Script] = {}
_RECORDS = os.environ.get("FASTJIT_CHECK") == "record"
_PLAIN = (str, int, float, complex, bool, bytes, type(None), torch.dtype, torch.device, torch.Size, type, range)


@dataclasses.dataclass
class Script:
    item: int
    play: Callable[[World], None]
    rtol: float
    xfail: str | None


def script(item: int, rtol: float = 0.0, xfail: str | None = None) -> Callable[[Callable[[World], None]], None]:
    """Registers a script of one item of the list; `xfail` names the defect that it shows."""

    def add(play: Callable[[World], None]) -> None:
        assert play.__name__ not in SCRIPTS, play.__name__
        SCRIPTS[play.__name__] = Script(item, play, rtol, xfail)

    return add


def load() -> None:
    """Registers every script of tests/python/scripts."""
    tests = Path(__file__).resolve().parents[1]
    if str(tests) not in sys.path:
        sys.path.insert(0, str(tests))
    for file in sorted((tests / "scripts").glob("item*.py")):
        importlib.import_module(f"scripts.{file.stem}")


def _leaf(t: torch.Tensor) -> bool | str:
    try:
        return t.is_leaf
    except RuntimeError as error:  # a view made under no_grad whose base was written with grad mode on
        return str(error)


class Form:
    """What is seen of values: one text for everything but contents, and the contents of the tensors in order."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.contents: list[torch.Tensor] = []
        self.numbers: dict[int, int] = {}
        self.storages: dict[int, int] = {}
        self.keep: list[Any] = []

    def add(self, name: str, value: Any) -> None:
        if isinstance(value, float) and value != value:
            self.text.append(f"{name}: nan")
        elif isinstance(value, _PLAIN):
            self.text.append(f"{name}: {type(value).__name__} {value!r}")
        elif id(value) in self.numbers:
            self.text.append(f"{name}: is #{self.numbers[id(value)]}")
        else:
            self.numbers[id(value)] = len(self.numbers)
            self.keep.append(value)
            self.text.append(f"{name}: #{self.numbers[id(value)]} {type(value).__qualname__}")
            self.inside(name, value)

    def inside(self, name: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self.tensor(name, value)
        elif isinstance(value, torch.nn.Module):
            for key, entry in value.state_dict(keep_vars=True).items():
                self.add(f"{name}.{key}", entry)
            self.text.append(f"{name}.training: {value.training}")
        elif isinstance(value, (types.FunctionType, types.ModuleType)):
            self.text.append(f"{name}: {value.__name__}")
        else:
            self.parts(name, value)

    def parts(self, name: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, entry in value.items():
                self.add(f"{name}[{key!r}]", entry)
        if isinstance(value, (list, tuple)):
            for index, entry in enumerate(value):
                self.add(f"{name}[{index}]", entry)
        if isinstance(value, (set, frozenset)):
            self.text.append(f"{name}: {sorted(map(repr, value))}")
        for key, entry in getattr(value, "__dict__", {}).items():
            self.add(f"{name}.{key}", entry)
        for key in getattr(type(value), "__slots__", ()):
            if key != "__weakref__" and hasattr(value, key):
                self.add(f"{name}.{key}", getattr(value, key))

    def tensor(self, name: str, t: torch.Tensor) -> None:
        facts = [str(t.dtype), str(tuple(t.shape)), f"requires_grad={t.requires_grad}", f"leaf={_leaf(t)}"]
        facts += [f"inference={t.is_inference()}", f"layout={t.layout}", f"conj={t.is_conj()} neg={t.is_neg()}"]
        if t.layout == torch.strided and type(t) in (torch.Tensor, torch.nn.Parameter) and not t.is_nested:
            storage = t.untyped_storage()
            group = self.storages.setdefault(storage._cdata, len(self.storages))
            if not t.is_inference():
                facts.append(f"version={t._version}")
            facts += [
                f"stride={t.stride()}",
                f"offset={t.storage_offset()}",
                f"view={t._is_view()}",
                f"storage={group}",
            ]
            facts.append(f"bytes={storage.nbytes()}")
        self.text.append(f"{name}: " + " ".join(facts))
        with torch.no_grad():
            self.contents.append((t.to_dense() if t.layout != torch.strided else t).detach().clone().resolve_conj())
        if _leaf(t) is True and t.grad is not None:
            self.add(f"{name}.grad", t.grad)


@dataclasses.dataclass
class _Entry:
    """What one call showed."""

    error: str | None
    printed: str
    form: Form


def foretold(said: str, before: Any, after: Any, error: str | None) -> None:
    """Asserts that explain() said before a call what it then did. What operators raise for values in tensors, and what
    a call does that is recorded for the first time, it cannot know."""
    kind, _, why = said.partition(": ")
    reasons = [r for r, n in after.fallbacks.items() if n > before.fallbacks.get(r, 0)]
    ran = f"{said!r} was said; {after.hits - before.hits} hits, eager: {reasons}, error: {error}"
    if kind == "a hit" and error and _RECORDS:  # the hit is recorded again, and eager raises by itself
        return
    assert (after.hits > before.hits) == (kind == "a hit" and not reasons), ran
    if kind == "a hit":
        assert not reasons or reasons[0] == "an operator raised" or " than when it was recorded" in reasons[0], ran
    elif kind == "eager":
        assert reasons == [why], ran
    elif kind == "an error":
        assert error and error.startswith("TypeError") and not reasons, ran
    else:
        assert kind in ("a new variant", "eager, unless the function turns gradients off itself"), ran
        assert reasons or error or after.record_ms > before.record_ms, ran


class World:
    """One playing of a script; `decorate` makes its functions fast (None: as written); fastjit is asked what ran."""

    def __init__(self, decorate: Callable[..., Any] | None = None) -> None:
        self.decorate = decorate
        self.fast = decorate is fastjit
        self.records = _RECORDS  # FASTJIT_CHECK=record: hits are recorded again
        self.log: list[_Entry] = []
        self.changes: list[str] = []
        self.hits_after_change = 0
        self.watched: dict[str, Any] = {}
        self.current: Any = None

    def jit(self, fn: Callable[..., Any]) -> Any:
        """The function as this world calls it; the last one decorated is whose stats the calls are held against."""
        if self.decorate is None:
            return fn
        self.current = self.decorate(fn)
        return self.current

    def source(self, text: str) -> dict[str, Any]:
        """The globals of a fresh module with this source, `torch` imported."""
        name = f"<script {id(self)} {len(text)}>"
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        scope: dict[str, Any] = {"torch": torch, "__name__": "script_module"}
        exec(compile(text, name, "exec"), scope)
        return scope

    def watch(self, **values: Any) -> None:
        """State that is compared after each call."""
        self.watched.update(values)

    def change(self, text: str) -> None:
        self.changes.append(text)

    def call(self, expected: Any, f: Callable[..., Any], *args: Any, of: Any = None, **kwargs: Any) -> Any:
        """Calls `f`, keeps what can be seen, and holds what ran against `expected`; errors are part of what is seen."""
        watched = of if of is not None else (f if hasattr(f, "stats") else self.current)
        before = watched.stats() if self.fast else None
        said = f.explain(*args, **kwargs) if self.fast and watched is f else None
        out, error = None, None
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            try:
                out = f(*args, **kwargs)
            except Exception as e:
                error = f"{type(e).__name__}: {e}"
        after = watched.stats() if self.fast else None
        form = Form()
        for name, value in {**self.watched, "args": args, "kwargs": kwargs, "result": out}.items():
            form.add(name, value)
        self.log.append(_Entry(error, printed.getvalue(), form))
        if self.fast:
            self.held(expected, before, after)
        if said is not None:
            foretold(said, before, after, error)
        return out

    def learn(self, f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls `f` twice: the first call is recorded, the second a hit, whose result is returned."""
        self.call("new", f, *args, **kwargs)
        return self.call("hit", f, *args, **kwargs)

    def held(self, expected: Any, before: Any, after: Any) -> None:
        wanted = list(expected) if isinstance(expected, tuple) else [expected]
        where = f"call {len(self.log)}" + (f" (after: {self.changes[-1]})" if self.changes else "")
        fresh = [r for r, n in after.fallbacks.items() for _ in range(n - before.fallbacks.get(r, 0))]
        ran = f"{after.hits - before.hits} hits, {after.variants - before.variants} new, eager: {fresh}"
        assert after.hits - before.hits == wanted.count("hit"), f"{where}: expected {expected}, ran {ran}"
        assert after.variants - before.variants == wanted.count("new"), f"{where}: expected {expected}, ran {ran}"
        reasons = [w for w in wanted if w not in ("hit", "new", "again", "raised", "passing", "interrupted")]
        if _RECORDS and self.log[-1].error:  # the hit is recorded again, and eager raises by itself
            reasons = [reason for reason in reasons if reason != "an operator raised"]
        assert len(fresh) == len(reasons), f"{where}: expected {expected}, ran {ran}"
        assert all(any(r in f for f in fresh) for r in reasons), f"{where}: expected {expected}, ran {ran}"
        assert bool(self.log[-1].error) or "raised" not in wanted, f"{where}: expected an error"
        assert after.calls - before.calls == len(wanted), f"{where}: expected {expected}, ran {ran}"
        if self.changes and "hit" in wanted:
            self.hits_after_change += 1


def _same(got: torch.Tensor, expected: torch.Tensor, rtol: float, truth: Callable[[], torch.Tensor]) -> None:
    got, expected = got.as_subclass(torch.Tensor), expected.as_subclass(torch.Tensor)
    try:
        torch.testing.assert_close(got, expected, rtol=rtol, atol=rtol, equal_nan=True)
        if rtol == 0 and got.is_floating_point():  # signs of zeros too
            assert torch.equal(torch.signbit(got) & ~got.isnan(), torch.signbit(expected) & ~expected.isnan())
    except AssertionError:
        alike = got.dtype == expected.dtype and got.shape == expected.shape
        if rtol != 0 or not alike or got.dtype not in TYPES:
            raise
        if not at_least_as_near(got, expected, truth().as_subclass(torch.Tensor)).all():
            raise


@contextlib.contextmanager
def _module_class_kept() -> Iterator[None]:
    """torch.compile replaces nn.Module.__init__ for good: what a later test runs must not depend on that."""
    cls = torch.nn.Module
    kept = dict(vars(cls))
    try:
        yield
    finally:
        for name in [name for name, value in vars(cls).items() if kept.get(name) is not value]:
            setattr(cls, name, kept[name]) if name in kept else delattr(cls, name)


def _world(which: Script, decorate: Callable[..., Any] | None) -> World:
    torch.manual_seed(0)
    world = World(decorate)
    with _module_class_kept():
        which.play(world)
    return world


def play(which: Script) -> World:
    """Both worlds, compared; returns the fast one."""
    eager, fast_world = _world(which, None), _world(which, fastjit)
    assert len(eager.log) == len(fast_world.log) > 0

    @functools.cache
    def rounded() -> World:
        with RoundedRoots():
            return _world(which, None)

    for number, (e, f) in enumerate(zip(eager.log, fast_world.log, strict=True)):
        assert f.error == e.error, f"call {number + 1}"
        assert f.printed == e.printed, f"call {number + 1}"
        assert f.form.text == e.form.text, f"call {number + 1}"
        for k, (got, expected) in enumerate(zip(f.form.contents, e.form.contents, strict=True)):
            _same(got, expected, which.rtol, lambda n=number, k=k: rounded().log[n].form.contents[k])  # type: ignore[misc]
    return fast_world
