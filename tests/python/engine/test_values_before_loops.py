"""What a round hands on may begin as a part of memory that the rounds write to: it is read before that."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers import check, loop_trips

N = 60


def swapped(a: Tensor, b: Tensor) -> Tensor:
    for i in range(1, N - 2):
        a[..., i].sub_(torch.where(a[..., i] > 2, a[..., i - 1], a[..., i + 1]))
        b[i + 2] = b[i] * a[..., i] + 1
        old = b[i].clone()
        b[i] = a[..., i + 1]
        a[..., i + 1] = old
    return a


@pytest.mark.parametrize("rows", [1, 5])
def test_the_part_is_written_in_the_first_round(rows: int) -> None:
    torch.manual_seed(3)
    fast = check(swapped, torch.randint(-3, 4, (rows, N)), torch.randint(-3, 4, (N, rows)))
    assert loop_trips(fast) != []


def along_rows(a: Tensor, b: Tensor) -> Tensor:
    b = b.clone()
    for i in range(1, N):
        b[..., i] -= a[..., i] * b[..., i - 1]
    return b


def test_a_part_that_no_round_writes_is_not_copied() -> None:
    fast = check(along_rows, torch.rand(8, N), torch.rand(8, N))
    assert loop_trips(fast) == [N - 2]
    assert fast.stats().kernels == 4
