"""Weights written through Tensor.data, as target networks and own optimizers do it: values and version counters."""

from __future__ import annotations

import copy

import pytest
import torch

import fastjit


class Targets:
    """A network that follows another one, as reinforcement learning has it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3))
        self.target = copy.deepcopy(self.net)

    def soft(self, tau: float) -> None:
        for p, t in zip(self.net.parameters(), self.target.parameters(), strict=True):
            t.data.mul_(1 - tau).add_(p.data, alpha=tau)

    def copied(self, tau: float) -> None:
        for p, t in zip(self.net.parameters(), self.target.parameters(), strict=True):
            t.data.copy_(tau * p.data + (1 - tau) * t.data)

    def decayed(self, tau: float) -> None:
        for p in self.net.parameters():
            p.data.mul_(1 - tau)
            p.data[0].zero_()

    def counted_too(self, tau: float) -> None:
        for t in self.target.parameters():
            t.data.mul_(tau)
            with torch.no_grad():
                t.add_(1)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", ["soft", "copied", "decayed", "counted_too"])
def test_writes_through_data_of_weights(name: str, grad: bool) -> None:
    """They move no version counter, and need no torch.no_grad()."""
    mine, eager = Targets(), Targets()
    fast = fastjit.jit(getattr(mine, name))
    with torch.set_grad_enabled(grad):
        for step in range(8):
            fast(0.1 + step / 20)
            getattr(eager, name)(0.1 + step / 20)
            for model in ("net", "target"):
                for p, q in zip(getattr(mine, model).parameters(), getattr(eager, model).parameters(), strict=True):
                    torch.testing.assert_close(p, q)
                    assert p._version == q._version
    assert fast.stats().fallbacks == {}
    assert fast.stats().hits >= 5, fast.stats()
