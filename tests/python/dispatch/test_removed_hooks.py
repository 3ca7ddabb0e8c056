"""Hooks on parameters that were removed are none: whole steps are programs again."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fastjit
from gradient_tools import whole_step


def halve(p: torch.Tensor) -> None:
    p.grad.mul_(0.5)


KINDS = {
    "a tensor's": lambda p: p.register_hook(lambda g: g * 0.5),
    "post-accumulate": lambda p: p.register_post_accumulate_grad_hook(halve),
}


@pytest.mark.parametrize("recorded_before", [True, False], ids=["recorded before", "recorded behind"])
@pytest.mark.parametrize("kind", KINDS)
@torch.enable_grad()
def test_whole_steps_behind_hooks(kind, recorded_before):
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    plain = copy.deepcopy(net)

    def make(net):
        return whole_step(net, torch.optim.SGD(net.parameters(), lr=0.1))

    fast, eager = fastjit.fastjit(make(net), on_unsupported="eager"), make(plain)
    handles: list = []
    for i in range(12 if recorded_before else 40):  # what was refused is tried again later
        if i == (4 if recorded_before else 0):
            handles = [KINDS[kind](p) for each in (net, plain) for p in each.parameters()]
        if i == 6:
            before = fast.stats().hits
            for handle in handles:
                handle.remove()
        x = torch.randn(5, 4)
        torch.testing.assert_close(fast(x), eager(x))
        for p, q in zip(net.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(p, q)
            torch.testing.assert_close(p.grad, q.grad)
    stats = fast.stats()
    assert (before > 0) == recorded_before
    assert stats.hits - before >= (6 if recorded_before else 3), stats
