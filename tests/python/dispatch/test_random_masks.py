"""Random work on what masks pick, without and with gradients, at eight counts of masked rows.

RANDOM_MASKS=first:last (`make fuzz-masks`) chooses the programs.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor

import fastjit
from random_masks import function, source

FIRST, LAST = map(int, os.environ.get("RANDOM_MASKS", "0:60").split(":"))
COUNTS = (9, 5, 12, 1, 0, 16, 3, 7)


def outcome(f: Any, x: Tensor, y: Tensor, mask: Tensor) -> list[Tensor | None] | str:
    try:
        out = f(x, y, mask)
        gradient = torch.autograd.grad(out, x, allow_unused=True)[0] if out.requires_grad else None
    except Exception as error:
        return type(error).__name__
    return [out.detach(), gradient]


def differs(got: Any, want: Any) -> bool:
    if isinstance(got, str) or isinstance(want, str):
        return got != want
    pairs = list(zip(got, want, strict=True))
    if any((a is None) != (b is None) for a, b in pairs):
        return True
    close = (torch.allclose(a, b, rtol=2e-4, atol=2e-5, equal_nan=True) for a, b in pairs if a is not None)
    return not all(close)


@pytest.mark.parametrize("gradients", [False, True], ids=["plain", "gradients"])
def test_random_masks(gradients: bool) -> None:
    hits = calls = 0
    for seed in range(FIRST, LAST):
        f = function(seed)
        fast = fastjit.fastjit(f, on_unsupported="eager")
        torch.manual_seed(seed)
        for count in COUNTS:
            x, y = torch.randn(16, 4, requires_grad=gradients), torch.randn(16, 4)
            mask = torch.zeros(16, dtype=torch.bool)
            mask[torch.randperm(16)[:count]] = True
            with torch.set_grad_enabled(gradients):
                want, got = outcome(f, x, y, mask), outcome(fast, x, y, mask)
            assert not differs(got, want), f"{count} rows: {got}, in eager {want}\n{source(seed)}"
        calls += fast.stats().calls
        hits += fast.stats().hits
    print(f"{calls} calls, {hits} hits")
    assert hits >= calls * (0.4 if gradients else 0.5), (hits, calls)
