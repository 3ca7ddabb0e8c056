"""warnings.warn() inside a call: given again at each hit, by Python's own rules."""
# ruff: noqa: B028  warnings without a stack level are among what is tested

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import fastjit
from helpers import OldName, assert_same

X = torch.arange(6.0)


def helper(level: int) -> None:
    warnings.warn("from the helper", OldName, stacklevel=level)


def plain(x: Tensor) -> Tensor:
    warnings.warn("plain")
    return x * 2 + 1


def category(x: Tensor) -> Tensor:
    y = x * 2
    warnings.warn("old", DeprecationWarning, stacklevel=1)
    return y + 1


def instance(x: Tensor) -> Tensor:
    warnings.warn(OldName("an instance"))
    return x * 3


def of_caller(x: Tensor) -> Tensor:
    warnings.warn("of the caller", OldName, 2)
    return x * 3


def of_helper(x: Tensor) -> Tensor:
    helper(1)
    helper(2)
    helper(3)
    return x + 1


FUNCTIONS = [plain, category, instance, of_caller, of_helper]


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Registries of this module, which say what was shown, are as if nothing had been."""
    globals().pop("__warningregistry__", None)
    with warnings.catch_warnings():
        yield
    globals().pop("__warningregistry__", None)


def seen(run: Callable[..., Any], action: str, calls: int, args: tuple[Any, ...] = (X,)) -> list[tuple[Any, ...]]:
    out = []
    for _ in range(calls):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter(action)  # type: ignore[arg-type]
            run(*args)
        out.append(tuple((str(w.message), w.category, w.filename, w.lineno, type(w.message)) for w in caught))
    return out


@pytest.mark.parametrize("fn", FUNCTIONS)
@pytest.mark.parametrize("action", ["always", "default", "module", "once", "ignore"])
def test_each_call_warns_as_eager(fn: Callable[..., Any], action: str) -> None:
    expected = seen(fn, action, 4)
    globals().pop("__warningregistry__", None)
    fast = fastjit.jit(fn)
    assert seen(fast, action, 4) == expected
    assert fast.stats().hits == 3, fast.stats()
    assert fast.stats().fallbacks == {}


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_shown_once_a_place(fn: Callable[..., Any]) -> None:
    """Without resetting the filters, which forgets what was shown."""

    def shown(run: Callable[..., Any]) -> list[str]:
        globals().pop("__warningregistry__", None)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            for _ in range(4):
                run(X)
        return [str(w.message) for w in caught]

    expected = shown(fn)
    fast = fastjit.jit(fn)
    assert shown(fast) == expected != []
    assert fast.stats().hits == 3
    registry = dict(globals()["__warningregistry__"])
    shown(fn)
    assert registry.keys() == globals()["__warningregistry__"].keys()
    fast(X)
    assert fast.stats().hits == 4


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_an_error_filter_raises_as_eager(fn: Callable[..., Any]) -> None:
    fast = fastjit.jit(fn)
    warnings.simplefilter("ignore")
    for _ in range(3):
        fast(X)
    hits = fast.stats().hits
    assert hits == 2
    warnings.simplefilter("error")
    with pytest.raises(Warning) as expected:
        fn(X)
    with pytest.raises(Warning) as got:
        fast(X)
    assert (got.type, str(got.value)) == (expected.type, str(expected.value))
    assert any("warnings.warn" in why and "error" in why for why in fast.stats().fallbacks)
    warnings.simplefilter("ignore")
    assert_same(fast(X), fn(X), exact=True)
    assert fast.stats().hits == hits + 1


def test_nothing_is_written_before_the_error() -> None:
    def write(x: Tensor) -> Tensor:
        warnings.warn("stop", OldName)
        x.add_(1)
        return x * 2

    fast = fastjit.jit(write)
    warnings.simplefilter("ignore")
    x = X.clone()
    for _ in range(3):
        fast(x)
    assert fast.stats().hits == 2
    warnings.filterwarnings("error", message="st.p", category=OldName)
    with pytest.raises(OldName):
        fast(x)
    assert torch.equal(x, X + 3)


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []


def test_order_among_other_effects(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()

    def mixed(x: Tensor) -> Tensor:
        log.lines.append("first")
        warnings.warn("between")
        log.lines.append("second")
        return x * 2

    shown: list[str] = []

    def show(warning: Any) -> None:
        shown.append(f"{warning.message} after {log.lines[-1]}")

    monkeypatch.setattr(warnings, "_showwarnmsg_impl", show)
    warnings.simplefilter("always")
    fast = fastjit.jit(mixed)
    for _ in range(3):
        fast(X)
    assert fast.stats().hits == 2
    assert shown == ["between after first"] * 3
    assert log.lines == ["first", "second"] * 3


def test_code_of_the_user_that_shows_warnings_runs_in_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    at_that_time: list[Tensor] = []
    x = X.clone()

    def write(x: Tensor) -> Tensor:
        warnings.warn("look")
        x.add_(1)
        return x * 2

    fast = fastjit.jit(write, on_unsupported="eager")
    warnings.simplefilter("ignore")
    for _ in range(3):
        fast(x)
    assert fast.stats().hits == 2
    warnings.simplefilter("always")
    monkeypatch.setattr(warnings, "showwarning", lambda *a, **k: at_that_time.append(x.clone()))
    fast(x)
    assert torch.equal(at_that_time[0], X + 3)
    assert any("showwarning is replaced" in why for why in fast.stats().fallbacks)


def test_text_that_differs_is_another_variant() -> None:
    def named(x: Tensor, name: str) -> Tensor:
        warnings.warn(f"{name} is old", OldName)
        return x * 2

    fast = fastjit.jit(named)
    for name in ("a", "b", "a", "b"):
        assert [w[0][0] for w in seen(fast, "always", 1, (X, name))] == [f"{name} is old"]
    assert fast.stats().hits == 2


def test_a_warning_with_code_of_its_own_stays_eager() -> None:
    class Told(UserWarning):
        made = 0

        def __init__(self, text: str) -> None:
            super().__init__(text + "!")
            Told.made += 1

    def told(x: Tensor) -> Tensor:
        warnings.warn("own", Told)
        return x * 2

    fast = fastjit.jit(told, on_unsupported="eager")
    assert [w[0][0] for w in seen(fast, "always", 3)] == ["own!"] * 3
    assert Told.made == 3 and fast.stats().hits == 0
