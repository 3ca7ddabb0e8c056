"""What tests of loops over a length share: inputs of every length, a cell, and that one program serves them.

The first length is a program of its own, the second one makes the loop one of any number of rounds, so that every
other length is a hit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from helpers import play_as_eager

F, H = 4, 8
SHORT = (2, 3, 1, 4, 5, 0)


def weights() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    return torch.randn(F, H) / 2, torch.randn(H, H) / 3, torch.randn(H)


W, U, B = weights()


def step(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ W + h @ U + B)


def play(fn: Callable[..., Any], lengths: tuple[int, ...], **options: Any) -> tuple[Any, str]:
    """The compiled function, and of each call whether it was a hit or a miss."""
    return play_as_eager(fn, ((torch.randn(n, 3, F), torch.randn(3, H)) for n in lengths), **options)


def serves_every_length(fn: Callable[..., Any], lengths: tuple[int, ...]) -> Any:
    """The compiled function, which has been recorded for the first two of these."""
    fast, seen = play(fn, lengths)
    assert seen == "mm" + "h" * (len(lengths) - 2), fast.inspect("guards")
    assert not fast.stats().fallbacks
    return fast
