"""Steps and counts that are looked for among a few numbers: `step in (100, 200)`, milestones, bisect.

The program asks each comparison that Python makes. Where all turn out as they did, a number that never came is a hit.
Every test plays its calls in two worlds, eager and compiled.
"""

from __future__ import annotations

import bisect
import collections
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fastjit import fastjit
from helpers import hits_as_eager

LIST, COUNTS = [3, 9, 20], collections.Counter([4, 4, 10])
TABLES: dict[int, torch.Tensor] = {}
VALUES = (2, 5, 6, 8, 10, 13, 14, 15, 16, 17, 18, 19, 21, 22, 23, 24, 25, 4, 7, 9, 12, 20, 3, 30, 31, 4, 11, 1, 0, -3)
X = torch.arange(3.0)


def away(x: torch.Tensor, t: int, found: bool) -> torch.Tensor:
    return x * 2 if found else x + t


AMONG: dict[str, Callable[..., Any]] = {
    "a tuple": lambda x, t: away(x, t, t in (4, 7)),
    "a set": lambda x, t: away(x, t, t in {4, 7}),
    "a list": lambda x, t: away(x, t, t in [4, 7]),
    "a list that is found": lambda x, t: away(x, t, t not in LIST),
    "floats": lambda x, t: away(x, t, t / 2 in (2.5, 3.0)),
    "a counter": lambda x, t: x * COUNTS[t] if t in COUNTS else x + t,
    "bisect": lambda x, t: x * (bisect.bisect(LIST, t) + 1) + t,
    "bisect_left": lambda x, t: x * (bisect.bisect_left(LIST, t) + 1) + t,
    "bisect of what follows": lambda x, t: x * (bisect.bisect_right((0.5, 4.5, 40), t / 2) + 1) + t,
}


@pytest.mark.parametrize("name", AMONG)
def test_numbers_that_never_came_are_hits(name: str) -> None:
    fast = fastjit(AMONG[name])
    hits = [hits_as_eager(fast, AMONG[name], (X, t), (X, t)) for t in VALUES]
    assert sum(hits) >= 16 and fast.stats().fallbacks == {}, (hits, fast.stats())


@pytest.mark.parametrize("change", [lambda: LIST.insert(0, 1), lambda: LIST.append(27), lambda: LIST.reverse()])
@pytest.mark.parametrize("name", ["a list that is found", "bisect", "bisect_left"])
def test_what_is_searched_is_a_fact(name: str, change: Callable[[], None]) -> None:
    fast = fastjit(AMONG[name])
    try:
        for turn in range(3):
            for t in range(2, 30, 3):
                hits_as_eager(fast, AMONG[name], (X, t + turn), (X, t + turn))
            if turn == 0:
                change()
    finally:
        LIST[:] = [3, 9, 20]
    assert fast.stats().hits >= 6, fast.stats()


def test_a_counter_that_changes() -> None:
    fast = fastjit(AMONG["a counter"])
    try:
        for t in (2, 5, 6, 8, 11, 12):
            hits_as_eager(fast, AMONG["a counter"], (X, t), (X, t))
        COUNTS[12] += 3
        for t in (13, 12, 14, 12):
            hits_as_eager(fast, AMONG["a counter"], (X, t), (X, t))
    finally:
        del COUNTS[12]
    assert fast.stats().hits >= 2, fast.stats()


def test_a_cache_that_grows() -> None:
    """Tables by their length, as of positions: each is a program, which a new one leaves as it is."""

    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        if n not in TABLES:
            TABLES[n] = torch.arange(float(n))
        return TABLES[n][:3] * x

    fast = fastjit(f)
    for _ in range(3):
        for n in (5, 9, 7, 12):
            assert torch.equal(fast(X, n), X * torch.arange(float(n))[:3])
    assert fast.stats().hits >= 4, fast.stats()
