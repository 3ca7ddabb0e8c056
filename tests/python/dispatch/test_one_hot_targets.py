"""one_hot with a number of classes: its sizes are told, so losses of soft targets are programs, with gradients too."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fastjit

LOSSES: dict[str, Any] = {
    "soft cross entropy": lambda out, y: F.cross_entropy(out, F.one_hot(y, 3).float() * 0.9 + 0.03),
    "as many as columns": lambda out, y: F.huber_loss(out.sigmoid(), F.one_hot(y, out.size(1)).float()),
    "weights": lambda out, y: F.binary_cross_entropy_with_logits(
        out, F.one_hot(y, 3).float(), pos_weight=torch.tensor([3.0, 1, 2])
    ),
    "a pick": lambda out, y: -(out.log_softmax(-1) * F.one_hot(y, 3)).sum(-1).mean(),
}


def targets(i: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(i)
    return torch.randn(count, 6), torch.randint(0, 3, (count,))


@pytest.mark.parametrize("whole", [False, True], ids=["loss", "whole step"])
@pytest.mark.parametrize("name", LOSSES)
@torch.enable_grad()
def test_losses_of_one_hot_targets(name, whole):
    loss_of, net = LOSSES[name], nn.Linear(6, 3)
    plain = copy.deepcopy(net)

    def make(net: nn.Module, wrap: Any) -> Any:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

        def loss(x, y):
            return loss_of(net(x), y)

        def step(x, y):
            value = (loss if whole else fast)(x, y)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            return value.detach()

        fast = wrap(step if whole else loss)
        return fast if whole else step, fast

    step, fast = make(net, fastjit.fastjit)
    eager, _ = make(plain, lambda function: function)
    for i, count in enumerate((8, 8, 8, 8, 5, 5, 5, 7, 7)):
        torch.testing.assert_close(step(*targets(i, count)), eager(*targets(i, count)))
    for p, q in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q)
        torch.testing.assert_close(p.grad, q.grad)
    stats = fast.stats()
    assert stats.hits >= 5 and not [why for why in stats.fallbacks if "one_hot" in why], stats


@pytest.mark.parametrize("bad", [3, -1])
@torch.enable_grad()
def test_a_class_that_is_none_is_eagers_error(bad):
    w = torch.randn(3, requires_grad=True)

    def f(y):
        return (F.one_hot(y, 3) * w).sum()

    fast, y = fastjit.fastjit(f), torch.tensor([0, 2, 1])
    for _ in range(3):
        fast(y)
    with pytest.raises(RuntimeError) as want:
        f(torch.tensor([0, bad, 1]))
    with pytest.raises(RuntimeError) as got:
        fast(torch.tensor([0, bad, 1]))
    assert str(got.value) == str(want.value)
    fast(y)
    assert fast.stats().hits == 3
