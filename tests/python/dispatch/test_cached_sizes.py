"""Cached functions that are asked with sizes: what eager's cache would give is what a program gives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import einops
import pytest
import torch
from torch import Tensor

from fastjit import fastjit
from helpers import assert_same


class World:
    """Cached functions, what they read and what they change: one for eager and one for the compiled function."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.runs = 0
        self.scale = 2
        self.shared = [1, 2]
        self.made: list[Any] = []

        def count(n: int) -> int:
            self.runs += 1
            return n + 1

        @functools.lru_cache
        def fib(n: int) -> int:
            return n if n < 2 else fib(n - 1) + fib(n - 2)

        @functools.lru_cache
        def odd(n: int) -> int:
            if n % 2:
                raise ValueError(f"odd: {n}")
            return n

        self.fib, self.odd = fib, odd
        self.counts, self.single = functools.lru_cache(count), functools.lru_cache(maxsize=1)(count)
        self.appends = functools.lru_cache(lambda n: (self.asked.append(n), n * 2)[1])
        self.scaled = functools.lru_cache(lambda n: n * self.scale)
        self.pair = functools.lru_cache(lambda n: [n, n + 1])
        self.gives_shared = functools.lru_cache(lambda n: self.shared)
        self.parts = functools.lru_cache(lambda n: ([n, 1], {"n": n}))
        self.text = functools.lru_cache(lambda n: f"{n * 1000}")
        self.ratio = functools.lru_cache(lambda n, k: n * k)


def changes_list(w: Any, x: Tensor) -> Tensor:
    sizes = w.pair(x.shape[0])
    sizes[1] += 1
    return x * sizes[0] + sizes[1]


def adds_in_place(w: Any, x: Tensor) -> Tensor:
    sizes = w.pair(x.shape[0])
    sizes += [5]
    return x * len(sizes)


def changes_shared(w: Any, x: Tensor) -> Tensor:
    y = x * w.gives_shared(x.shape[0])[0]
    w.shared[0] += 1
    return y


def joins(w: Any, x: Tensor) -> Tensor:
    sizes = w.pair(x.shape[0]) + [3]  # noqa: RUF005
    sizes[0] = 7
    return x * sizes[0] + sizes[1]


def in_parts(w: Any, x: Tensor) -> Tensor:
    sizes, named = w.parts(x.shape[0])
    named["n"] += 1
    sizes.append(2)
    return x * named["n"] + sum(sizes)


def in_a_result(w: Any, x: Tensor) -> Any:
    sizes = w.pair(x.shape[0])
    return x * sizes[0], sizes


def kept(w: Any, x: Tensor) -> Tensor:
    w.made = w.pair(x.shape[0])
    return x * w.made[1]


def caught(w: Any, x: Tensor) -> Tensor:
    try:
        return x * w.odd(x.shape[0])
    except ValueError:
        return x - 1


CASES: dict[str, Callable[[Any, Tensor], Any]] = {
    "appends to a list": lambda w, x: x * w.appends(x.shape[0]),
    "counts its runs": lambda w, x: x * w.counts(x.shape[0]),
    "asked twice": lambda w, x: x * w.counts(x.shape[0]) + w.counts(x.shape[0]),
    "two sizes": lambda w, x: x * w.counts(x.shape[0]) + w.counts(x.shape[1]),
    "a cache of one": lambda w, x: x * w.single(x.shape[0]) + w.single(x.shape[1]),
    "reads an attribute": lambda w, x: x * w.scaled(x.shape[0]),
    "asks itself": lambda w, x: x * w.fib(x.shape[0] + 20),
    "raises": lambda w, x: x * w.odd(x.shape[0]),
    "raises, caught": caught,
    "text": lambda w, x: x * len(w.text(x.shape[0])),
    "equal keys": lambda w, x: (x > 0).long() * w.ratio(x.shape[0], 2),
    "one list": lambda w, x: x + (1 if w.pair(x.shape[0]) is w.pair(x.shape[0]) else 2),
    "one object": lambda w, x: x + (1 if w.text(x.shape[0]) is w.text(x.shape[0]) else 2),
    "changes its list": changes_list,
    "adds to its list": adds_in_place,
    "a list from elsewhere": changes_shared,
    "joins its list": joins,
    "changes what is in it": in_parts,
    "in the result": in_a_result,
    "kept": kept,
}

# Of twelve calls, four come at sizes that were there before. What changes with each call has no program.
HITS = dict.fromkeys(("a cache of one", "one object", "changes its list", "adds to its list"), 0)
HITS |= dict.fromkeys(("changes what is in it", "in the result", "kept"), 0)
HITS |= {"raises": 1, "raises, caught": 1, "a list from elsewhere": 3}


def called(function: Any, w: World, x: Tensor) -> Any:
    try:
        return function(w, x)
    except ValueError as error:
        return str(error)


def state(w: World) -> Any:
    return w.asked, w.runs, w.scale, w.shared, w.made


@pytest.mark.parametrize("name", CASES)
def test_a_cached_function_that_is_asked_with_sizes(name: str) -> None:
    """Its caller changes what it reads, and what it gave, between the calls."""
    function = CASES[name]
    eager, own = World(), World()
    fast = fastjit(lambda x: function(own, x), on_unsupported="eager")
    for call, size in enumerate((4, 5, 6, 7, 8, 4, 7, 9, 5, 11, 9, 10)):
        x = torch.linspace(-1, 1, size * 3).view(size, 3)
        wanted = called(function, eager, x)
        got = called(lambda _, x: fast(x), own, x)
        assert type(got) is type(wanted), call
        assert_same(got, wanted) if not isinstance(wanted, str) else None
        assert got == wanted if isinstance(wanted, str) else True
        assert state(own) == state(eager), call
        for given, w in ((wanted, eager), (got, own)):  # what the caller does
            w.ratio(size + 1.0, 2)
            if isinstance(given, tuple):
                given[1].append(0)
            if w.made:
                w.made[0] += 1
            w.scale = call
    stats = fast.stats()
    assert stats.hits == HITS.get(name, 4)
    assert bool(stats.fallbacks) == (stats.hits < 3), stats


EINOPS: dict[str, Any] = {
    "rows": lambda x: einops.rearrange(x, "b c h w -> b (h w) c"),
    "groups": lambda x: einops.rearrange(x, "b (g c) h w -> b g c (h w)", g=2) * 2,
    "means": lambda x: einops.reduce(x, "b c (h p) (w q) -> b c h w", "mean", p=2, q=2),
    "repeated": lambda x: einops.repeat(x, "b c h w -> b c h (w r)", r=3) + 1,
    "repeated by a size": lambda x: einops.repeat(x[:, 0, 0, 0], "b -> b n", n=x.shape[3]) * 2,
    "by a size": lambda x: einops.rearrange(x, "b c (p q) w -> b c p (q w)", p=x.shape[2] // 2),
    "layers": lambda x: [x := einops.rearrange(x, "b c h w -> b c w h") * 2 for _ in range(4)][-1],
}


@pytest.mark.parametrize("name", EINOPS)
@pytest.mark.parametrize("first", ["eager", "compiled"])
def test_einops_at_any_size(name: str, first: str) -> None:
    """Also where its cache has these sizes already."""
    einops.rearrange(torch.ones(2, 2), "a b -> b a")  # it looks for its backend once in a process
    function = EINOPS[name]
    fast = fastjit(function)
    for i in range(8):
        x = torch.randn(2 + i, 4, 6 + 2 * i, 8 + 2 * i, dtype=torch.float64)
        wanted = function(x) if first == "eager" else None
        got = fast(x)
        assert_same(got, function(x) if wanted is None else wanted)
    assert (fast.stats().misses, fast.stats().hits, fast.stats().fallbacks) == (2, 6, {}), fast.inspect("guards")


def test_einops_refuses_what_it_refuses() -> None:
    fast = fastjit(lambda x: einops.rearrange(x, "b (h p) -> b h p", p=4) * 2)
    for n in (4, 8, 12, 16):
        x = torch.randn(n, 2 * n)
        assert_same(fast(x), einops.rearrange(x, "b (h p) -> b h p", p=4) * 2)
    for _ in range(2):
        with pytest.raises(einops.EinopsError, match="can't divide axis of length 18 in chunks of 4"):
            fast(torch.randn(5, 18))
    assert fast.stats().hits == 2
