"""Calls that find numbers in places which change from call to call: what the tests of them have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from fastjit import fastjit
from helpers import assert_same


def x8() -> torch.Tensor:
    return torch.linspace(-3, 3, 8)


class Box:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Slots:
    __slots__ = ("k",)


def play(make: Callable[[], Any], values: Iterable[Any], *, misses: int, fallbacks: int = 0) -> Any:
    """Calls with each value in the place; compares with eager, then the number of recordings."""
    (plain, change), (function, change_fast) = make(), make()
    fast = fastjit(function)
    values = list(values)
    for value in values:
        change(value), change_fast(value)
        x = x8()
        assert_same(fast(x), plain(x), exact=True)
    stats = fast.stats()
    assert stats.misses == misses, (stats, fast.inspect("guards"))
    assert sum(stats.fallbacks.values()) == fallbacks, stats.fallbacks
    assert stats.hits == len(values) - misses - fallbacks
    return fast
