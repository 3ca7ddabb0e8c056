"""Parts of tensors that are written, at sizes that change: which parts a write reaches may depend on sizes.

Where the parts are regions of the tensor, or nothing touches them any more once a write comes, the program is for any
size; else each size is recorded.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import fastjit
from helpers import assert_same

SIZES = (6, 9, 4, 13, 5, 9, 30, 7)
Function = Callable[[Tensor], tuple[Tensor, ...]]


def read_before(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    part = y[1:, :2] * 3
    y.mul_(5)
    return part, y + 1


def view_of_a_part_before(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    part = y[1:].t().unsqueeze(0) + 1
    y.add_(1)
    return part, y * 2


def read_behind(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    y.mul_(5)
    return y[2:] * 3, y


def expanded_behind(x: Tensor) -> tuple[Tensor, ...]:
    y = torch.zeros_like(x).masked_fill_(x > 0, 2.0)
    return (y.unsqueeze(1).expand(-1, 3, -1) + x.unsqueeze(1),)


def between_two_writes(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    y.mul_(5)
    part = y[:-1] * 3
    y.sub_(1)
    return part, y


def argument(x: Tensor) -> tuple[Tensor, ...]:
    part = x[1:, 1:] * 2
    x.add_(1)
    return (part,)


def used_behind_the_write(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    part = y[1:]
    y.mul_(5)
    return part * 3, y


def view_used_behind_the_write(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    part = y[1:].unsqueeze(0)
    y.mul_(5)
    return (part * 3,)


def returned(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    part = y[1:]
    y.mul_(5)
    return part, y


def part_written(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    y[1:].mul_(5)
    return (y + 1,)


def diagonal_written(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    part = y.diagonal()
    y.mul_(5)
    return (part + 1,)


ANY_SIZE = [read_before, view_of_a_part_before, read_behind, expanded_behind, between_two_writes, argument]
TOUCHED = [used_behind_the_write, view_used_behind_the_write, returned, part_written]


def play(fn: Function) -> fastjit.Stats:
    fast = fastjit.jit(fn)
    for size in SIZES:
        x = torch.randn(size, 4)
        mine = x.clone()
        for got, want in zip(fast(mine), fn(x), strict=True):
            assert_same(got, want)
        assert_same(mine, x)
    stats = fast.stats()
    assert stats.fallbacks == {}
    assert stats.hits == len(SIZES) - stats.misses
    return stats


@pytest.mark.parametrize("fn", ANY_SIZE, ids=lambda f: f.__name__)
def test_parts_that_nothing_touches_behind_a_write(fn: Function) -> None:
    assert play(fn).misses == 2


@pytest.mark.parametrize("fn", TOUCHED, ids=lambda f: f.__name__)
def test_parts_that_are_touched_behind_a_write(fn: Function) -> None:
    assert play(fn).misses == 2


def test_diagonals_are_for_one_size() -> None:
    assert play(diagonal_written).misses == len(set(SIZES))
