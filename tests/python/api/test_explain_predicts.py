"""What explain() says before a call is what the call then does, as stats() shows."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fastjit as fj
from fastjit import FastFunction, fastjit, of

X = torch.arange(4.0) + 1
MANY = torch.arange(12.0)
Calls = list[tuple[Any, ...]]
quiet = functools.partial(fastjit, on_unsupported="eager")


def kind_of(fast: FastFunction[..., Any], call: Callable[[], object]) -> tuple[str, str]:
    """What one call did, and why."""
    before = fast.stats()
    error = None
    try:
        call()
    except Exception as raised:  # eager's own
        error = raised
    after = fast.stats()
    reasons = [r for r, n in after.fallbacks.items() if n > before.fallbacks.get(r, 0)]
    assert after.calls == before.calls + 1 and len(reasons) <= 1
    if error and not reasons:
        return "an error", str(error)
    if after.hits > before.hits:
        return "a hit", ""
    if reasons:
        return "eager", reasons[0]
    assert after.record_ms > before.record_ms
    return "a new variant", ""


def agree(fast: FastFunction[..., Any], *args: Any, **kwargs: Any) -> str:
    """Asserts that explain() and the call agree; gives the kind."""
    before = fast.stats()
    said = fast.explain(*args, **kwargs)
    assert fast.stats() == before  # nothing ran
    kind, reason = kind_of(fast, lambda: fast(*args, **kwargs))
    head, _, rest = said.partition(": ")
    expected = "eager" if head == "eager, unless the function turns gradients off itself" else head
    assert kind == expected, f"{said!r} was said; the call was {kind} {reason}"
    if kind == "eager":
        assert rest.split(": x.size(")[0] == reason, said  # what fixes the size is told as well
    return kind


def needs_grad(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, requires_grad=True)


class Point:
    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


def branches(x: torch.Tensor, a: float) -> torch.Tensor:
    return x * 2 if x.sum() > a else x - 1


def writes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * y


Y = torch.zeros(8)
# Function, calls that come before, and per later call: its arguments and what it is.
TABLE: dict[str, tuple[Callable[..., Any], Calls, list[tuple[tuple[Any, ...], str]]]] = {
    "first call and hit": (lambda x: x + 1, [], [((X,), "a new variant"), ((X,), "a hit")]),
    "new dtype": (lambda x: x + 1, [(X,)], [((X.double(),), "a new variant"), ((X.double(),), "a hit")]),
    "new size": (
        lambda x: x + 1,
        [(X,)],
        [((X[:3].clone(),), "a new variant"), ((X[:3].clone(),), "a hit")],
    ),
    "new size after many that did not come again": (
        lambda x: x + int(str(len(x))),
        [(torch.ones(n + 1),) for n in range(8)],
        [
            ((torch.ones(9),), "eager"),
            ((torch.ones(10),), "eager"),
            ((torch.ones(9),), "a new variant"),
            ((torch.ones(9),), "a hit"),
            ((torch.ones(11),), "a new variant"),
            ((torch.ones(3),), "a hit"),
        ],
    ),
    "new rank": (lambda x: x + 1, [(X,)], [((X.reshape(2, 2),), "a new variant")]),
    "strides": (lambda x: x + 1, [(X,)], [((torch.ones(8)[::2],), "a new variant")]),
    "a number of another value": (lambda x, a: x * a, [(X, 2.0)], [((X, 3.0), "a hit"), ((X, 1e300), "a hit")]),
    "a number that is too large": (
        lambda x, a: torch.full_like(x, a),
        [(X, 2.0)],
        [((X, 3.0), "a hit"), ((X, 1e300), "eager")],
    ),
    "a number by value": (lambda x, n: x.roll(n), [(X, 1)], [((X, 2), "a new variant"), ((X, 2), "a hit")]),
    "a number of another type": (
        lambda x, a: x * a,
        [(X, 2.0)],
        [((X, 2), "a new variant"), ((X, True), "a new variant")],
    ),
    "a derived number that raises": (
        lambda x, a, b: x * (a / b),
        [(X, 1.0, 2.0)],
        [((X, 1.0, 4.0), "a hit"), ((X, 1.0, 0.0), "eager")],
    ),
    "a derived number of another type": (
        lambda x, a: x * a**0.5,
        [(X, 2.0)],
        [((X, 3.0), "a hit"), ((X, -2.0), "eager")],
    ),
    "a branch on a tensor": (
        branches,
        [(X, 1.0)],
        [((X + 1, 1.0), "a hit"), ((-X, 1.0), "a new variant"), ((-X - 1, 1.0), "a hit")],
    ),
    "an argument too many": (lambda x: x + 1, [(X,)], [((X, X), "an error"), ((), "an error"), ((X,), "a hit")]),
    "shared memory": (writes, [(Y[:4], Y[4:])], [((Y[:4], Y[4:]), "a hit"), ((Y[:4], Y[2:6]), "eager")]),
    "not supported": (lambda x: x * 2, [(X,)], [((X.to_sparse(),), "eager"), ((X,), "a hit")]),
    "a list": (lambda xs: xs[0] + 1, [([X],)], [(([X],), "a hit"), (([X, X],), "a new variant")]),
    "as many as data says": (
        lambda x: x[x > 2],
        [(X,)],
        [((X,), "a hit"), ((X + 1,), "a hit"), ((X - 9,), "a new variant")],
    ),
    "a size that Python reads": (
        lambda x: x * len(x[x > 2]),
        [(X,)],
        [((X,), "a hit"), ((X + 1,), "a hit"), ((X - 99,), "a new variant"), ((X - 99,), "a hit")],
    ),
    "a size that Python compares": (
        lambda x: x * 2 if len(x[x > 2]) > len(x[x <= 2]) else x,
        [(MANY,)],
        [((MANY + 1,), "a hit"), ((MANY - 5,), "a new variant"), ((MANY - 4,), "a hit"), ((MANY,), "a hit")],
    ),
    "the digits of a size": (
        lambda x: x * len(str(len(x[x > 2]))),
        [(X,)],
        [((X,), "a hit"), ((X + 1,), "a new variant"), ((X + 1,), "a hit"), ((X,), "a hit")],
    ),
    "a list as long as data": (lambda x: x[x > 2].split(2), [(X,)], [((X,), "eager"), ((X + 1,), "eager")]),
    "a number read out and computed with": (
        lambda x: x * (x.max().item() * 2 + 1),
        [(X,)],
        [((X + 1,), "a hit"), ((X * 3,), "a hit")],
    ),
    "a side effect": (lambda x: open("/dev/null").close() or x + 1, [(X,)], [((X,), "eager")]),
    "no tensor": (lambda n: n + 1, [(3,)], [((3,), "eager")]),
    "instances of a class": (
        lambda p: p.x * 2,
        [(Point(X),) for _ in range(4)],  # of which each is a variant of its own
        [((Point(X),), "a new variant"), ((Point(X),), "a hit"), ((Point(X.double()),), "a new variant")],
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_a_call_does_what_was_said(name: str) -> None:
    function, before, later = TABLE[name]
    fast = quiet(function)
    for args in before:
        fast(*args)
    assert [agree(fast, *args) for args, _ in later] == [kind for _, kind in later], fast.stats()


def test_gradients() -> None:
    wants, plain = needs_grad(4), torch.ones(4)
    with torch.enable_grad():
        fast = quiet(lambda x: x * 2)
        assert [agree(fast, x) for x in (wants, wants, plain, plain, wants)] == [
            "a new variant", "a hit", "a new variant", "a hit", "a hit",
        ]  # fmt: skip
        net = quiet(nn.Linear(4, 4))
        assert [agree(of(net), plain) for _ in range(2)] == ["a new variant", "a hit"]
        with torch.no_grad():
            assert [agree(of(net), plain) for _ in range(2)] == ["a new variant", "a hit"]
        assert agree(of(net), plain) == "a hit"
        net.requires_grad_(False)
        assert [agree(of(net), plain) for _ in range(2)] == ["a new variant", "a hit"]


def test_a_function_that_turns_gradients_off() -> None:
    @fastjit(on_unsupported="eager")
    def fast(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return x * 2

    with torch.enable_grad():
        assert [agree(fast, needs_grad(4)) for _ in range(2)] == ["a new variant", "a hit"]


def test_modules_methods_and_wrong_arguments() -> None:
    net = quiet(nn.Linear(4, 4))
    assert agree(of(net)) == "an error"
    assert agree(of(net), X, X) == "an error"
    assert [agree(of(net), X) for _ in range(2)] == ["a new variant", "a hit"]
    assert of(net).explain() == "an error: TypeError: missing a required argument: 'input'"

    class Model:
        @fastjit(on_unsupported="eager")
        def step(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    model = Model()
    kinds = [agree(Model.step, *args) for args in [(model, X), (model, X), (X,)]]
    assert kinds == ["a new variant", "a hit", "an error"]
    name = Model.step.__qualname__
    hint = f"(of a method, ask its class: {name}.explain(instance, ...))"
    assert model.step.explain(X) == f"an error: TypeError: missing a required argument: 'x' {hint}"

    @functools.wraps(branches)
    def takes_any(*args: Any) -> torch.Tensor:
        return args[0] + 1

    assert agree(quiet(takes_any), X) == "a new variant"


def test_state_and_modes() -> None:
    scale = [2.0]
    fast = quiet(lambda x: x * scale[0])
    assert [agree(fast, X) for _ in range(2)] == ["a new variant", "a hit"]
    scale[0] = 3.0
    assert [agree(fast, X) for _ in range(2)] == ["a new variant", "a hit"]
    with torch.enable_grad():
        assert agree(fast, X) == "a new variant"
    with torch.inference_mode():
        assert agree(fast, X) == "a new variant"
    with torch.device("cpu"):
        assert agree(fast, X) == "eager"
    with fj.stance("eager"):
        assert agree(fast, X) == "eager"
    assert agree(fast, X) == "a hit"


def test_the_limit_of_variants_and_retries() -> None:
    fast = quiet(lambda x, n: x.roll(n), max_variants=2)
    kinds = [agree(fast, X, n) for n in (1, 2, 1, 2, 3, 1, 3, 3, 1)]
    assert kinds == ["a new variant"] * 2 + ["a hit"] * 2 + ["eager", "a hit", "a new variant", "a hit", "a hit"]

    blocked = [True]

    @fastjit(on_unsupported="eager")
    def sometimes(x: torch.Tensor) -> torch.Tensor:
        if blocked:
            with contextlib.suppress(IndexError), open("/dev/null"):
                pass
        return x + 1

    sometimes(X)
    blocked.clear()
    kinds = [agree(sometimes, X) for _ in range(18)]
    assert kinds == ["eager"] * 15 + ["a new variant", "a hit", "a hit"]


def test_recordings_that_no_call_uses() -> None:
    class Passing:
        __slots__ = ("__weakref__",)

    fast = quiet(lambda x, passing: x + 1)
    kinds = [agree(fast, X, Passing()) for n in range(70)]
    recorded = [n for n, kind in enumerate(kinds) if kind == "a new variant"]
    assert recorded == [*range(8), 8 + 16, 8 + 16 + 1 + 32] and set(kinds) == {"a new variant", "eager"}
    assert all(r.startswith("its last recordings served no second call") for r in fast.stats().fallbacks)
