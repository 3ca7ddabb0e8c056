"""Sizes that a C function asks for, one of a list of tensors after the other, and that Python gets only in sum."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import fastjit
from helpers import assert_same

ONE = torch.ones(3)
COUNTS = [(60, 60), (60, 60), (40, 40), (41, 45), (70, 70), (0, 0), (101, 10), (10, 101)]


def by_sum(xs: list[Tensor]) -> bool:
    return sum(map(torch.numel, xs)) > 100


def by_most(xs: list[Tensor]) -> bool:
    return max(map(Tensor.numel, xs)) > 100


def by_any(xs: list[Tensor]) -> bool:
    return any(map(torch.numel, xs))


def by_order(xs: list[Tensor]) -> bool:
    return sorted(xs, key=torch.numel)[0] is xs[0]


def by_python(xs: list[Tensor]) -> bool:
    return functools.reduce(lambda known, x: known + x.numel(), xs, 0) > 100


def by_one(xs: list[Tensor]) -> bool:
    return xs[0].numel() > 50


ASKS = [by_sum, by_most, by_any, by_order, by_python, by_one]


@pytest.mark.parametrize("asks", ASKS, ids=lambda f: f.__name__)
def test_of_what_a_mask_leaves(asks: Callable[[list[Tensor]], bool]) -> None:
    def f(a: Tensor, b: Tensor) -> Tensor:
        return ONE * 2 if asks([a[a > 0], b[b > 0]]) else ONE * 3

    check(f, asks, [tuple(torch.arange(200) < n for n in counts) for counts in COUNTS])


@pytest.mark.parametrize("asks", ASKS, ids=lambda f: f.__name__)
def test_of_arguments(asks: Callable[[list[Tensor]], bool]) -> None:
    def f(a: Tensor, b: Tensor) -> Tensor:
        return ONE * 2 + (a.sum() + b.sum()) if asks([a, b]) else ONE * 3

    check(f, asks, [tuple(torch.ones(n) for n in counts) for counts in COUNTS])


def check(f: Callable[..., Tensor], asks: Callable[..., bool], calls: list[tuple[Tensor, ...]]) -> None:
    fast = fastjit.jit(f, on_unsupported="eager")
    for _ in range(2):
        for args in calls:
            assert_same(fast(*args), f(*args))
    if asks in (by_python, by_one):
        assert fast.stats().hits > 0 and fast.stats().fallbacks == {}
