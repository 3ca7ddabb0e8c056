"""Sizes that Python puts into containers and objects of its own: those that only move are any size, and what C code
looks at is part of the program."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import itertools
import math
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fastjit import fastjit
from helpers import assert_same

CALLS = 8


def cube(i: int) -> Tensor:
    return torch.randn(3 + i, 4 + 2 * i, 6, dtype=torch.float64)


def listed(x: Tensor) -> list[int]:
    sizes = [0, 0]
    sizes[0] = x.shape[0]
    sizes[1] = x.shape[1]
    return sizes


def named(x: Tensor) -> dict[str, int]:
    sizes = {}
    sizes["a"] = x.shape[0]
    sizes["b"] = x.shape[1]
    return sizes


@dataclasses.dataclass
class Settings:
    a: int
    b: float = 1.0


class Plain:
    pass


class Slots:
    __slots__ = ("n",)


class Doubles:
    @property
    def n(self) -> int:
        return self.held

    @n.setter
    def n(self, value: int) -> None:
        self.held = value * 2


def with_n(o: Any, n: Any) -> Any:
    o.n = n
    return o


def adds(x: Tensor) -> Tensor:
    sizes = [1]
    other = sizes
    sizes += [x.shape[0]]
    return x * other[1] + len(other)


def both(x: Tensor) -> Tensor:
    d: dict[str, int] = {}
    d["k"] = d["j"] = x.shape[0]
    d["k"] += 1
    return x * (d["k"] + d["j"])


def in_a_closure(x: Tensor) -> Tensor:
    total = [0]

    def add() -> None:
        total[0] = total[0] + x.shape[0]

    add()
    add()
    return x * total[0]


def deleted(x: Tensor) -> Tensor:
    o = with_n(Plain(), x.shape[0])
    o.m = o.n + 1
    del o.n
    return x * o.m


MOVES: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda x: x * listed(x)[0] + listed(x)[1],
    "key": lambda x: x * named(x)["a"] + named(x).get("b"),
    "joined": lambda x: x.reshape([x.shape[0]] + list(x.shape[1:]) + [1]),  # noqa: RUF005
    "joined and viewed": lambda x: x.view([x.shape[0]] + [x.shape[1] * x.shape[2]]),  # noqa: RUF005
    "added in place": adds,
    "comprehension": lambda x: x * {k: n for k, n in zip("abc", x.shape, strict=True)}["a"],
    "two names": both,
    "closure": in_a_closure,
    "attribute": lambda x: x * with_n(Plain(), x.shape[0]).n,
    "attribute of a dictionary": lambda x: x * with_n(Plain(), x.shape[0]).__dict__["n"],
    "deleted attribute": deleted,
    "namespace": lambda x: x * with_n(types.SimpleNamespace(), x.shape[0]).n,
    "slot": lambda x: x * with_n(Slots(), x.shape[0]).n,
    "data class": lambda x: x * dataclasses.replace(Settings(x.shape[0]), b=2.0).a,
    "copy": lambda x: x * copy.copy(with_n(Plain(), x.shape[0])).n,
    "partial": lambda x: x * with_n(functools.partial(operator.mul, 2), x.shape[0]).n,
    "deque": lambda x: x * collections.deque(listed(x))[0],
    "reversed": lambda x: x * list(reversed(listed(x)))[1],
    "unpacked": lambda x: (lambda a, *b: x * a + b[0])(*listed(x)),
    "zip": lambda x: x * dict(zip("ab", listed(x)))["a"],  # noqa: B905
}


def keys(x: Tensor) -> Tensor:
    d: dict[int, float] = {}
    d[x.shape[0]] = 5.0
    d[4] = 6.0
    return x * sum(d.values()) + len(d)


def sliced(x: Tensor) -> Tensor:
    sizes = [1, 2]
    sizes[0:1] = [x.shape[0]]
    return x * sum(sizes)


def inserted(x: Tensor) -> Tensor:
    sizes = [1, 2, 3, 4]
    sizes.insert(x.shape[0] - 3, 9)
    return x * sizes[0]


def raised(x: Tensor) -> Tensor:
    try:
        raise ValueError(x.shape[0])
    except ValueError as error:
        return x * int(str(error))


def placed(x: Tensor) -> Tensor:
    places = list(range(40))
    places[x.shape[0]] = 0
    return x * sum(places)


# Where C code looks at what a container holds: each size is a program of its own.
LOOKS: dict[str, Callable[[Tensor], Any]] = {
    "sum": lambda x: x * sum(listed(x)),
    "min": lambda x: x * min(listed(x)),
    "max of two": lambda x: x * max(*listed(x), 5),
    "sorted": lambda x: x * sorted(listed(x))[1],
    "sorted by a key": lambda x: x * sorted(named(x).items(), key=lambda p: p[1] % 5)[0][1],
    "by a getter": lambda x: x * sorted(named(x).items(), key=operator.itemgetter(1))[0][1],
    "text": lambda x: x * len(str(listed(x))),
    "text of an item": lambda x: x * int(f"{listed(x)[0]}"),
    "percent": lambda x: x * int("%d%d" % tuple(listed(x))),  # noqa: UP031
    "repr": lambda x: x * len(repr(named(x))),
    "key": lambda x: x * {3: 1, 4: 2, 5: 3}.get(listed(x)[0], 9),
    "key of two": lambda x: x * {(3, 4): 1, (4, 6): 2}.get((*listed(x),), 9),  # type: ignore[arg-type]
    "its own key": keys,
    "values": lambda x: x * sum(named(x).values()),
    "joined": lambda x: x * sum(listed(x) + [x.shape[2]]),  # noqa: RUF005
    "repeated": lambda x: x * sum(listed(x) * 2),
    "product": lambda x: x * math.prod(listed(x)),
    "reduce": lambda x: x * functools.reduce(operator.mul, listed(x), 1),
    "chain": lambda x: x * sum(itertools.chain(listed(x), [1])),
    "accumulate": lambda x: x * list(itertools.accumulate(listed(x)))[-1],
    "starmap": lambda x: x * sum(itertools.starmap(operator.mul, [listed(x)])),
    "index": lambda x: x * list(range(3, 40)).index(listed(x)[0]),
    "count": lambda x: x * [*listed(x), 9].count(4),
    "in": lambda x: x * (2 if 6 in listed(x) else 3),
    "equal": lambda x: x * (2 if listed(x) == [4, 6] else 3),
    "equal dictionaries": lambda x: x * (2 if named(x) == {"a": 4, "b": 6} else 3),
    "less": lambda x: x * (2 if listed(x) < [5, 1] else 3),
    "range": lambda x: x * len(range(*listed(x))),
    "bytes": lambda x: x * bytes(listed(x))[0],
    "set": lambda x: x * len({*listed(x), 4}),
    "frozenset": lambda x: x * (frozenset(listed(x)) == frozenset([4, 6])),
    "counter": lambda x: x * collections.Counter(listed(x))[4],
    "any": lambda x: x * (any([listed(x)[0] - 4]) + 2 * all([listed(x)[0] - 4])),
    "tensor": lambda x: x * torch.tensor(listed(x)).sum(),
    "comprehension": lambda x: x * sum({k: n for k, n in zip("abc", x.shape, strict=True)}.values()),
    "text of a comprehension": lambda x: x * len(str({k: n * 30 for k, n in zip("abc", x.shape, strict=True)})),
    "key of a comprehension": lambda x: x * dict(zip(x.shape, (1.0, 2.0, 3.0), strict=True))[6],
    "slice": sliced,
    "insert": inserted,
    "place": placed,
    "pop": lambda x: x * list(range(40)).pop(x.shape[0]),
    "error": raised,
    "vars": lambda x: x * sum(vars(with_n(Plain(), x.shape[0])).values()),
    "text of attributes": lambda x: x * len(str(with_n(Plain(), x.shape[0] * 30).__dict__)),
    "equal data classes": lambda x: x * (2 if Settings(x.shape[0]) == Settings(4) else 3),
    "a tuple of a data class": lambda x: x * sum(dataclasses.astuple(Settings(x.shape[0]))),
    "property": lambda x: x * with_n(Doubles(), x.shape[0]).n,
    "get, in C": lambda x: x * sum(map(named(x).get, "ab")),
    "get of a literal, in C": lambda x: x * sum(map({"a": x.shape[0], "b": 2}.get, "ab")),
    "pop, in C": lambda x: x * max(map(named(x).pop, "ab")),
    "item, in C": lambda x: x * sum(map(named(x).__getitem__, "ab")),
}


def later(make: Callable[[list[int]], Any], read: Callable[[Any], int], store: str = "item") -> Callable[[Tensor], Any]:
    """C code that looks at a list when its iterator comes to an item, which a size became meanwhile."""

    def function(x: Tensor) -> Tensor:
        sizes = [1, 2]
        iterator = make(sizes)
        if store == "item":
            sizes[0] = x.shape[0]
        elif store == "append":
            sizes.append(x.shape[0])
        elif store == "extend":
            sizes.extend([x.shape[0]])
        elif store == "insert":
            sizes.insert(0, x.shape[0])
        elif store == "slice":
            sizes[0:1] = [x.shape[0]]
        else:
            sizes += [x.shape[0]]
        return x * read(iterator)

    return function


def negative(sizes: list[int]) -> Any:
    return map(operator.neg, sizes)


def meanwhile(x: Tensor) -> Tensor:
    sizes = [1, 2, 3]
    for i, n in enumerate(map(operator.neg, sizes)):
        x = x * n
        if i == 0:
            sizes[2] = x.shape[0]
    return x


def by_a_callback(x: Tensor) -> Tensor:
    """What sum() comes to last is put there by the function that it calls first."""
    sizes = [1]
    return x * sum(itertools.chain(map(lambda n: sizes.append(x.shape[0]) or n, [1]), sizes))  # type: ignore[func-returns-value]


def pairs(x: Tensor) -> Tensor:
    rows = [[1, 2]]
    products = itertools.starmap(operator.mul, rows)
    rows[0][1] = x.shape[0]
    return x * sum(products)


LATER: dict[str, Callable[[Tensor], Any]] = {
    "list": later(negative, lambda m: list(m)[-2]),
    "sum": later(negative, sum),
    "next": later(negative, next),
    "loop": later(negative, lambda m: [n + 1 for n in m][-2]),
    "through a zip": later(lambda s: zip(negative(s), s, strict=True), lambda m: list(m)[-2][0]),
    "append": later(negative, lambda m: list(m)[2], "append"),
    "extend": later(negative, lambda m: list(m)[2], "extend"),
    "insert": later(negative, lambda m: list(m)[-3], "insert"),
    "slice": later(negative, lambda m: list(m)[-2], "slice"),
    "in place": later(negative, lambda m: list(m)[2], "add"),
    "accumulate": later(itertools.accumulate, lambda m: list(m)[1]),
    "filter": later(lambda s: filter(None, s), lambda m: list(m)[-3] % 4 + 1, "insert"),
    "compress": later(lambda s: itertools.compress([5, 6], s), lambda m: len(list(m))),
    "while a loop runs": meanwhile,
    "by a callback": by_a_callback,
    "nested": pairs,
}


def play(function: Callable[[Tensor], Any]) -> Any:
    fast = fastjit(function)
    for i in (*range(CALLS), 1, 2):
        x = cube(i)
        assert_same(fast(x), function(x))
    return fast


@pytest.mark.parametrize("name", MOVES)
def test_a_size_that_moves_is_any_size(name: str) -> None:
    stats = play(MOVES[name]).stats()
    assert (stats.misses, stats.hits, stats.fallbacks) == (2, CALLS, {})


@pytest.mark.parametrize("name", LOOKS)
def test_a_size_that_c_code_looks_at_is_one_size(name: str) -> None:
    stats = play(LOOKS[name]).stats()
    # Since 3.13 data classes are compared by Python code: a branch, of which each side is recorded at any size.
    misses = 3 if name == "equal data classes" and sys.version_info >= (3, 13) else CALLS
    assert (stats.misses, stats.hits, stats.fallbacks) == (misses, CALLS + 2 - misses, {})


@pytest.mark.parametrize("name", LATER)
def test_a_size_that_c_code_comes_to_later_is_one_size(name: str) -> None:
    stats = play(LATER[name]).stats()
    assert (stats.misses, stats.hits, stats.fallbacks) == (CALLS, 2, {})


IDENTITY: dict[str, Callable[[Tensor], Any]] = {
    "two reads": lambda x: x * (2 if x.shape[0] is x.shape[0] else 3),
    "a stored one": lambda x: x * (2 if listed(x)[0] is x.shape[0] else 3),
    "a constant": lambda x: x * (2 if x.shape[0] is [4][0] else 3),
    "a sum": lambda x: x * (2 if x.shape[0] + 1 is not [5][0] else 3),
}


@pytest.mark.parametrize("name", IDENTITY)
def test_small_sizes_are_the_ints_that_python_shares(name: str) -> None:
    function = IDENTITY[name]
    fast = fastjit(function, on_unsupported="eager")
    for i in (*range(CALLS), 1, 2):
        x = cube(i)
        assert_same(fast(x), function(x))
    assert all("identity of int" in reason for reason in fast.stats().fallbacks)


def test_none_and_others_are_told_apart() -> None:
    stats = play(lambda x: x * (2 if listed(x)[0] is None else listed(x)[1])).stats()
    assert (stats.misses, stats.hits, stats.fallbacks) == (2, CALLS, {})
