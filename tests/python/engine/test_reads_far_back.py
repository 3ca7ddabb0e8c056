"""A loop that goes over what another loop wrote part by part: its rounds are alike, and read it where it lies."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import check, loop_trips

N = 60


def back_over(a: Tensor, b: Tensor) -> Tensor:
    b = b.clone()
    for i in range(1, N):
        b[..., i] -= a[..., i] * b[..., i - 1]
    x = torch.empty_like(b)
    x[..., -1] = b[..., -1]
    for i in range(N - 2, -1, -1):
        x[..., i] = b[..., i] - a[..., i] * x[..., i + 1]
    return x


def forth_over(a: Tensor, b: Tensor) -> Tensor:
    b = b.clone()
    for i in range(1, N):
        b[..., i] -= a[..., i] * b[..., i - 1]
    total = torch.zeros_like(b[..., 0])
    for i in range(N):
        total = total * 0.5 + b[..., i]
    return total


@pytest.mark.parametrize(("fn", "trips"), [(back_over, [57, 59]), (forth_over, [57])])
def test_rounds_are_alike(fn: Callable[..., Any], trips: list[int]) -> None:
    fast = check(fn, torch.rand(8, N), torch.rand(8, N))
    assert loop_trips(fast) == trips


def test_no_list_stands_beside_the_memory() -> None:
    """The arena holds `b`, and no second copy of its parts for the rounds that come first."""
    fast = check(back_over, torch.rand(64, N), torch.rand(64, N))
    arena = int(re.search(r"^arena (\d+)", fast.inspect("plan"), re.MULTILINE)[1])
    assert arena < 64 * N * 4 * 1.2
