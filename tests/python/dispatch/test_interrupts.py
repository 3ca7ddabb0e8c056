"""Ctrl-C in a call that is watched, recorded, compiled or a hit: it is never lost, and the next call is right."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fastjit import fastjit
from helpers import assert_same

TRIALS = 120


def scan(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    outs = []
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] + h) + torch.sin(h) * torch.cos(h)
        outs.append(h)
        h = h.softmax(-1) if t % 7 == 0 else h
    return torch.stack(outs)


@pytest.fixture
def alarms() -> Iterator[list[int]]:
    """The alarms that have gone off: each raises KeyboardInterrupt, wherever Python runs handlers."""
    seen: list[int] = []

    def interrupt(number: int, frame: Any) -> None:
        seen.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    yield seen
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_no_interrupt_is_lost(alarms: list[int]) -> None:
    x, h = torch.randn(60, 4), torch.randn(4)
    expected = scan(x, h)
    caught = 0
    for trial in range(TRIALS):
        fast = fastjit(scan)
        try:
            signal.setitimer(signal.ITIMER_REAL, 1e-3 + 1e-4 * trial)
            while len(alarms) <= caught:
                fast = fastjit(scan)
                fast(x, h)
            pytest.fail(f"a call went on that was interrupted in trial {trial}")
        except KeyboardInterrupt:
            caught += 1
        for _ in range(3):
            assert_same(fast(x, h), expected)
        stats = fast.stats()
        assert stats.hits >= 2
        assert not stats.fallbacks
    assert caught == TRIALS
