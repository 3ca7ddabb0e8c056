"""Rounds in which torch computes a part are loops too: results, memory, errors and what ran, against eager."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fastjit import fastjit
from helpers import assert_same, check, loop_trips


def body_of(fast: Any) -> str:
    """What its one loop runs in a round."""
    found = re.findall(r"^loop \d+\n((?:    .*\n)+)", fast.inspect("plan"), re.MULTILINE)
    assert len(found) == 1, fast.inspect("plan")
    return str(found[0])


def layers(count: int, width: int = 256) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(count)]).requires_grad_(
        False
    )


def test_layers():
    lines = []
    for count in (24, 48):
        model = layers(count)
        fast = check(lambda x, model=model: model(x), torch.randn(32, 256))
        assert loop_trips(fast) == [count - 1] and fast.stats().steps == 2, fast.inspect("plan")
        assert "product mm 1+1*round" in body_of(fast)
        lines.append(fast.inspect("plan").count("\n") - 2 * count)  # its weights and biases
    assert lines[0] == lines[1]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide = nn.LayerNorm(64), nn.Linear(64, 192)
        self.out, self.inner, self.outer = nn.Linear(64, 64), nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.wide(self.norm(x)).view(*x.shape[:2], 3, 4, 16).permute(2, 0, 3, 1, 4)
        mixed = torch.softmax(q @ k.transpose(-1, -2) / 4, -1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.outer(nn.functional.gelu(self.inner(self.norm(x))))


def test_transformer_blocks():
    torch.manual_seed(0)
    steps = []
    for count in (8, 16):
        model = nn.Sequential(*[Block() for _ in range(count)]).requires_grad_(False)
        fast = check(lambda x, model=model: model(x), torch.randn(8, 64, 64))
        assert loop_trips(fast) == [count - 1], fast.inspect("plan")
        assert "product bmm" in body_of(fast)
        steps.append(fast.stats().steps)
    assert steps[0] == steps[1] < 30


def test_steps_in_time():
    cell = nn.LSTMCell(128, 256).requires_grad_(False)

    def run(x):
        h, c = torch.zeros(x.shape[1], 256), torch.zeros(x.shape[1], 256)
        for t in range(x.shape[0]):
            h, c = cell(x[t], (h, c))
        return h, c

    sizes = set()
    for steps in (20, 60):
        fast = check(run, torch.randn(steps, 256, 128))
        assert loop_trips(fast) == [steps - 1] and "product mm" in body_of(fast), fast.inspect("plan")
        sizes.add(fast.inspect("plan").count("\n"))
    assert len(sizes) == 1


def test_convolutions():
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, groups=2), nn.ReLU()) for _ in range(12)])
    model.requires_grad_(False)
    fast = check(lambda x: model(x), torch.randn(2, 16, 20, 20))
    assert loop_trips(fast) == [11] and "product convolution" in body_of(fast), fast.inspect("plan")


def test_other_calls():
    def run(x):
        for _ in range(20):
            x = torch.cumsum(torch.tanh(x), 1) * 0.1
        return x

    fast = check(run, torch.randn(20, 50))
    assert loop_trips(fast) == [19] and "extern" in body_of(fast), fast.inspect("plan")


def test_random_numbers_come_in_order():
    def run(x):
        for _ in range(20):
            x = nn.functional.dropout(x, 0.5) + torch.rand_like(x)
        return x

    x, fast = torch.randn(30), fastjit(run)
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        expected, after = run(x), torch.rand(3)
        torch.manual_seed(seed)
        assert_same(fast(x), expected)
        assert_same(torch.rand(3), after)
    assert fast.stats().hits == 2 and loop_trips(fast), fast.inspect("plan")


@pytest.mark.parametrize("singular", [0, 7, 19])
def test_a_round_raises(singular):
    """What was written by then is what eager wrote by then."""

    def run(x, out):
        for t in range(20):
            out[t] += torch.linalg.inv(x[t])
        return out * 2

    x = torch.randn(20, 4, 4, dtype=torch.float64) + 4 * torch.eye(4, dtype=torch.float64)
    fast = check(run, x, torch.zeros_like(x))
    assert loop_trips(fast) == [20], fast.inspect("plan")
    x[singular] = 0
    expected, out = torch.ones_like(x), torch.ones_like(x)
    with pytest.raises(torch.linalg.LinAlgError) as of_eager:
        run(x, expected)
    with pytest.raises(torch.linalg.LinAlgError) as of_fast:
        fast(x, out)
    assert str(of_fast.value) == str(of_eager.value)
    assert_same(out, expected)


def test_weights_that_change_between_calls():
    model = layers(24)
    fast, x = check(lambda x: model(x), torch.randn(32, 256)), torch.randn(32, 256)
    for layer in model:
        layer[0].weight.mul_(0.5)
        layer[0].bias = nn.Parameter(torch.randn(256), requires_grad=False)
    assert_same(fast(x), model(x))


def test_few_or_unlike_rounds_stay_as_they_are():
    unlike = nn.Sequential(*[nn.Linear(256 + i, 257 + i) for i in range(24)]).requires_grad_(False)
    for model in (layers(6), unlike):
        fast = check(lambda x, model=model: model(x), torch.randn(32, 256))
        assert not loop_trips(fast), fast.inspect("plan")


def test_a_picture_has_the_launches_of_all_rounds():
    model = layers(24)
    fast = check(lambda x: model(x), torch.randn(32, 256))
    assert fast.inspect("dot").count("subgraph") == fast.stats().kernels == 24


def test_a_picture_has_a_loop_of_the_graph_once():
    def run(x, w):
        h = torch.zeros(8, 16)
        for t in range(x.shape[0]):
            h = torch.tanh(x[t] + h @ w)
        return h

    fast = check(run, torch.randn(100, 8, 16), torch.randn(16, 16) / 4)
    assert sum(loop_trips(fast)) > 50, fast.inspect("plan")
    assert 0 < fast.inspect("dot").count("subgraph") <= fast.stats().kernels
