"""Numbers in what a call is given: items of tuples, lists and dictionaries, fields of named tuples and data classes.

The first value is part of the key, the second one makes the place a parameter. Every test plays its calls in two
worlds, eager and compiled, with equal containers, and compares what the calls leave in them too.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fastjit import fastjit
from helpers import assert_same

Pair = collections.namedtuple("Pair", "a b")


@dataclasses.dataclass
class Settings:
    a: float
    b: float


def x8() -> torch.Tensor:
    return torch.linspace(-3, 3, 8)


def scaled(x: torch.Tensor, a: float = 1, b: float = 2) -> torch.Tensor:
    return x * a + b


def loop(x: torch.Tensor, items: Any) -> torch.Tensor:
    for i, value in items:
        x = x * value + (i if isinstance(i, int) else 0)
    return x


def store(x: torch.Tensor, c: Any) -> torch.Tensor:
    c["step"] += 1
    c["a"] = c["a"] * 0.5
    return x * c["a"] / c["step"]


def fields(x: torch.Tensor, c: Any) -> torch.Tensor:
    c.a = c.a * 0.5
    return x * c.a + c.b


# name: what is done with the container, and how it is made of two numbers
FOLLOWED: dict[str, tuple[Callable[..., Any], Callable[[float, float], Any]]] = {
    "tuple": (lambda x, c: x * c[0] + c[1], lambda a, b: (a, b)),
    "unpacked": (lambda x, c: (lambda a, b: x * a + b)(*c), lambda a, b: [a, b]),
    "keywords": (lambda x, c: scaled(x, **c), lambda a, b: {"a": a, "b": b}),
    "nested": (lambda x, c: x * c["o"]["a"] + c["o"]["b"][0], lambda a, b: {"o": {"a": a, "b": (b, "text")}}),
    "tuple in a list": (lambda x, c: x * c[0][1] + c[1], lambda a, b: [("k", a), b]),
    "named tuple": (lambda x, c: x * c.a + c.b, Pair),
    "named tuple by place": (lambda x, c: x * c[0] + c[1], Pair),
    "data class": (lambda x, c: x * c.a + c.b, Settings),
    "fields that are stored": (fields, Settings),
    "items that are stored": (store, lambda a, b: {"a": a, "step": int(b * 100)}),
    "loop": (lambda x, c: loop(x, enumerate(c)), lambda a, b: [a, b]),
    "zip": (lambda x, c: loop(x, zip([1, 2], c, strict=True)), lambda a, b: (a, b)),
    "items()": (lambda x, c: loop(x, c.items()), lambda a, b: {"a": a, "b": b}),
    "copies": (lambda x, c: x * dict(c)["a"] + list(c.values())[1], lambda a, b: {"a": a, "b": b}),
    "comprehension": (lambda x, c: [x * (v + 1) for v in reversed(c)], lambda a, b: [a, b]),
    "scalar list": (lambda x, c: torch._foreach_mul([x, x], c), lambda a, b: [a, b]),
    "in the result": (lambda x, c: (x * c[0], {"b": c[1]}), lambda a, b: [a, b]),
    "the container in the result": (lambda x, c: (x * c["a"], c), lambda a, b: {"a": a, "b": b}),
    "not read": (lambda x, c: x + len(c), lambda a, b: [a, b]),
}

# Where Python looks at the value itself: right in each call, and another recording for each value.
LOOKED_AT: dict[str, tuple[Callable[..., Any], Callable[[float, float], Any]]] = {
    "sum": (lambda x, c: x * sum(c), lambda a, b: [a, b]),
    "max": (lambda x, c: x * max(c), lambda a, b: [a, b]),
    "sorted": (lambda x, c: x * sorted(c)[0], lambda a, b: [b, a]),
    "text": (lambda x, c: x * len(str(c)), lambda a, b: [a, b]),
    "compared": (lambda x, c: x + (1.0 if c == [1.5, 2.5] else 2.0), lambda a, b: [a, b]),
    "searched": (lambda x, c: x + (1.0 if 2.5 in c else 2.0), lambda a, b: (a, b)),
    "zip in C": (lambda x, c: x * max(zip(c, [1, 2], strict=True))[0], lambda a, b: (a, b)),
    "enumerate in C": (lambda x, c: x * dict(enumerate(c))[1] + sum(v for _, v in enumerate(c)), lambda a, b: (a, b)),
    "sorted items": (lambda x, c: x * sorted(c.items())[0][1], lambda a, b: {"a": a, "b": b}),
    "values in C": (lambda x, c: x * sum(c.values()), lambda a, b: {"a": a, "b": b}),
    "a copy in C": (lambda x, c: x * sum(list(c)), lambda a, b: (a, b)),
    "a dict's copy in C": (lambda x, c: x * sum(dict(c).values()), lambda a, b: {"a": a, "b": b}),
    "pairs in C": (lambda x, c: x * max(dict([("k", c[0]), ("l", c[1])]).values()), lambda a, b: (a, b)),
    "constant": (lambda x, c: x + torch.tensor(c).to(x.dtype).sum(), lambda a, b: [a, b]),
    "math": (lambda x, c: x * math.fsum(c), lambda a, b: (a, b)),
}

VALUES = [(1.5, 2.5), (0.5, 300.0), (-0.0, 1.0), (2.5, 1.5), (1e10, 1e-40), (1.5, 2.5), (7.0, 2.5)]


def content(container: Any) -> Any:
    return container.__dict__ if hasattr(container, "__dict__") else container


def play(function: Callable[..., Any], make: Callable[[float, float], Any]) -> Any:
    f = fastjit(function)
    for a, b in VALUES:
        own, other = make(a, b), make(a, b)
        before = copy.deepcopy(content(own))
        assert repr(before) == repr(content(other))
        assert_same(f(x8(), own), function(x8(), other))
        assert repr(content(own)) == repr(content(other))
    return f


@pytest.mark.parametrize("name", FOLLOWED)
def test_another_number_in_a_container_is_a_hit(name: str) -> None:
    stats = play(*FOLLOWED[name]).stats()
    by_identity = "data class" in name or "fields" in name  # the second instance shows that they differ
    assert (stats.misses, stats.fallbacks) == (3 if by_identity else 2, {})
    assert stats.hits == len(VALUES) - stats.misses


@pytest.mark.parametrize("name", LOOKED_AT)
def test_a_number_whose_value_python_looks_at_is_part_of_the_key(name: str) -> None:
    stats = play(*LOOKED_AT[name]).stats()
    assert (stats.hits, stats.misses, stats.fallbacks) == (1, len(VALUES) - 1, {})  # one pair comes twice


def test_a_number_of_another_type_is_another_variant() -> None:
    f = fastjit(lambda x, c: x * c[0])
    for value in (1.5, 2.5, 3, 4, True, 5.5, 6, False):
        assert_same(f(x8(), [value]), x8() * value)
    assert (f.stats().misses, f.stats().hits) == (6, 2)  # by value, any float, by value, any int, True, False


def test_the_caller_keeps_its_own_objects() -> None:
    """While a call is recorded, containers hold numbers of the call's own."""
    f = fastjit(lambda x, c, t: x * c["a"] * c["l"][0] * c["t"][0] * t[0])
    for i in range(4):
        numbers = [float(f"{i}.{k}5") for k in range(4)]
        inner, pair, outer = [numbers[1]], (numbers[2],), (numbers[3],)
        c = {"a": numbers[0], "l": inner, "t": pair}
        f(x8(), c, outer)
        assert c["a"] is numbers[0] and c["l"] is inner and inner[0] is numbers[1]
        assert c["t"] is pair and pair[0] is numbers[2] and outer[0] is numbers[3]
    assert (f.stats().misses, f.stats().hits) == (2, 2)


def test_an_error_puts_the_numbers_back() -> None:
    def refuse(x: torch.Tensor, c: Any) -> torch.Tensor:
        if c["a"] > 2:
            raise ValueError("too large")
        return x * c["a"]

    f = fastjit(refuse)
    f(x8(), {"a": 1.5})
    number = float("2.5")
    c = {"a": number}
    with pytest.raises(ValueError, match="too large"):
        f(x8(), c)
    assert c["a"] is number


def test_one_container_in_two_places() -> None:
    """Its numbers stay part of the key: they are one number of the call, and two of the arguments."""
    function = lambda x, c, d: x * c["a"] + d["a"]  # noqa: E731
    f = fastjit(function)
    for i in range(4):
        c = {"a": 1.5 + i}
        assert_same(f(x8(), c, c), function(x8(), c, c))
        assert_same(f(x8(), {"a": 0.5 + i}, {"a": 2.5}), function(x8(), {"a": 0.5 + i}, {"a": 2.5}))
    assert f.stats().fallbacks == {} and f.stats().hits >= 1


def test_a_caller_that_changes_its_container_meanwhile() -> None:
    """Another thread's store stays: only what is still there as the recording put it is put back."""
    shared = {"a": 1.5}
    inside, changed = threading.Event(), threading.Event()
    waits = [False]

    def wait(x: torch.Tensor, c: Any) -> torch.Tensor:
        y = x * c["a"]
        if waits[0]:
            inside.set()
            changed.wait(30)
        return y

    f = fastjit(wait, on_unsupported="eager")
    f(x8(), shared)
    shared["a"] = 2.5
    waits[0] = True
    worker = threading.Thread(target=f, args=(x8(), shared))
    worker.start()
    assert inside.wait(30)
    shared["a"] = 9.5
    changed.set()
    worker.join()
    assert shared == {"a": 9.5}


def test_what_differs_is_named() -> None:
    f = fastjit(lambda x, c: x * sum(c["w"]))
    f(x8(), {"w": [1.5]})
    f(x8(), {"w": [2.5]})
    assert "something in argument 1 was 2.5, is 3.5" in f.explain(x8(), {"w": [3.5]})
    g = fastjit(lambda x, c: x * c["w"][0])
    g(x8(), {"w": [1.5]})
    g(x8(), {"w": [2.5]})
    assert g.explain(x8(), {"w": [3.5]}).startswith("a hit: f32[8], dict(1), list(1), float")
