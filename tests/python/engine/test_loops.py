"""Launches that repeat: a program runs them as a loop."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

from fastjit import fastjit
from helpers import assert_same, cell_over_time, check, loop_trips, torch_threads


def launches(fast: Any) -> int:
    """How many kernels a call runs: those of a loop count in every round."""
    trip, count = 1, 0
    for line in fast.inspect("plan").split("\n"):
        if found := re.fullmatch(r"loop (\d+)(?: team \d+)?", line):
            trip = int(found[1])
        elif re.match(r" *kernel \d+ \(", line):
            trip = trip if line.startswith(" ") else 1
            count += trip
    return count


def linears(count: int, width: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(count)]).eval().requires_grad_(False)


def test_a_deep_thin_model():
    model = linears(250)
    with torch.no_grad():
        fast = check(lambda x: model(x), torch.randn(4, 4))
    assert loop_trips(fast) == [250] and fast.stats().steps < 10
    assert launches(fast) == 1, fast.inspect("plan")


def test_a_plan_does_not_grow_with_the_rounds():
    def run(x, w):
        h = torch.zeros(8, 16)
        for t in range(x.shape[0]):
            h = torch.tanh(x[t] + h @ w)
        return h

    plans = []
    for steps in (100, 400):
        fast = check(run, torch.randn(steps, 8, 16), torch.randn(16, 16) / 4)
        assert launches(fast) in (steps, steps + 1), fast.inspect("plan")
        plans.append(fast.stats().kernels)
    assert max(plans) <= 48, plans  # a body of up to 16 steps, and those that are left over


def test_parameters_that_change_between_calls():
    model = linears(20)
    x = torch.randn(4, 4)
    with torch.no_grad():
        fast = check(lambda x: model(x), x)
        for layer in model:
            layer.weight.mul_(0.5)
            layer.bias.data = torch.randn(4)
        assert_same(fast(x), model(x))
    assert fast.stats().hits == 2 and loop_trips(fast) == [20]


def test_a_model_whose_middle_differs():
    first, last = linears(30), linears(30)
    model = nn.Sequential(*first, nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 4), *last).requires_grad_(False)
    with torch.no_grad():
        fast = check(lambda x: model(x), torch.randn(4, 4))
    assert len(loop_trips(fast)) == 2 and sum(loop_trips(fast)) >= 58, fast.inspect("plan")


@pytest.mark.parametrize("threads", [1, 2])
def test_blocks_of_several_kernels(threads):
    blocks = [nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(12)]
    model = nn.ModuleList(blocks).eval().requires_grad_(False)

    def run(x):
        for block in model:
            x = x + block(x)
        return x

    with torch_threads(threads):
        for rows in (3, 20_000):  # the second is split between threads
            with torch.no_grad():
                fast = check(run, torch.randn(rows, 8))
            if rows == 3:
                assert loop_trips(fast), fast.inspect("plan")


def scan(a, x, h):
    out = []
    for t in range(x.shape[0]):
        h = a * h + x[t]
        out.append(h)
    return torch.stack(out)


@pytest.mark.parametrize("steps", [20, 300])
def test_a_scan(steps):
    args = torch.rand(32), torch.randn(steps, 32), torch.zeros(32)
    fast = check(scan, *args)
    assert bool(loop_trips(fast)) == (steps == 300), fast.inspect("plan")


def test_a_scan_of_small_products():
    w = torch.randn(8, 8) / 3

    def run(x, h):
        out = []
        for t in range(x.shape[0]):
            h = torch.tanh(h @ w + x[t])
            out.append(h)
        return torch.stack(out), h

    fast = check(run, torch.randn(30, 4, 8), torch.zeros(4, 8))
    assert loop_trips(fast), fast.inspect("plan")
    # The rows that it reads lie at equal distances.
    assert "*round" in fast.inspect("plan"), fast.inspect("plan")


def test_products_before_a_loop_are_those_of_some_of_its_steps():
    """What they hold does not grow with the steps, unless the loop keeps as much anyway."""

    def run(x, w, u, h):
        for t in range(x.shape[0]):
            a, b = (x[t] @ w + h @ u).chunk(2, -1)
            h = torch.sigmoid(a) * h + torch.tanh(b)
        return h

    w, u, h = torch.randn(16, 512) / 4, torch.randn(256, 512) / 64, torch.randn(1, 256)
    for steps, loops in ((60, 1), (200, 2), (300, 3)):
        fast = check(run, torch.randn(steps, 1, 16), w, u, h)
        assert len(loop_trips(fast)) == loops, fast.inspect("plan")
        held = [int(rows) for rows in re.findall(r": tensor f32\[(\d+),512\]", fast.inspect("plan"))]
        assert len(held) == loops and max(held) * 512 * 4 <= 208 << 10, held


def test_a_chain_too_long_for_a_kernel():
    def run(x, y):
        for _ in range(200):
            x = torch.softmax(x * y + 0.1, -1) - y.sum(-1, keepdim=True) * x
        return x

    fast = check(run, torch.randn(16, 33), torch.rand(16, 33) / 33)
    assert loop_trips(fast), fast.inspect("plan")


def test_equal_updates_of_many_tensors():
    tensors = [torch.randn(5, 3) for _ in range(40)]

    def run(tensors):
        for tensor in tensors:
            tensor.mul_(0.9).add_(1)

    fast = check(run, tensors)
    assert loop_trips(fast) == [40], fast.inspect("plan")


def test_between_calls_of_torch():
    first, last = linears(12), linears(12)
    with torch.no_grad():
        fast = check(lambda x: last(torch.sort(first(x), -1)[0]).cumsum(0), torch.randn(4, 4))
    assert loop_trips(fast) == [12, 11], fast.inspect("plan")  # what the call gave is freed after its one reader
    assert "\nextern " in fast.inspect("plan")


def test_numbers_of_the_call():
    model = linears(12)

    def run(x, scale):
        for layer in model:
            x = layer(x) * scale
        return x

    with torch.no_grad():
        fast = fastjit(run)
        for scale in (0.5, 1.5, -2.0, 0.25):
            x = torch.randn(4, 4)
            assert_same(fast(x, scale), run(x, scale))
    assert fast.stats().fallbacks == {} and fast.stats().hits >= 2
    assert loop_trips(fast), fast.inspect("plan")


def test_any_size():
    model = linears(25, 6)
    with torch.no_grad():
        fast = fastjit(lambda x: model(x))
        for rows in (3, 5, 7, 2, 40, 3, 5000):
            x = torch.randn(rows, 6)
            assert_same(fast(x), model(x))
    assert fast.stats().fallbacks == {}
    assert fast.stats().variants <= 2, fast.stats()
    assert loop_trips(fast) == [25], fast.inspect("plan")


@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
@pytest.mark.parametrize("grad", [False, True])
def test_a_recurrent_cell_at_any_batch(cell, grad):
    torch.manual_seed(0)
    run = cell_over_time(cell(8, 16))
    fast = fastjit(run)
    plans = []
    with torch.set_grad_enabled(grad):
        for batch in (4, 5, 2, 40, 7):
            x = torch.randn(30, batch, 8, requires_grad=grad)
            expected, got = run(x), fast(x)
            assert_same(got, expected)
            if grad:
                wanted = torch.autograd.grad(expected.square().mean(), x)
                assert_same(torch.autograd.grad(got.square().mean(), x), wanted)
            plans.append(loop_trips(fast))
    assert fast.stats().fallbacks == {} and fast.stats().variants == 2, fast.stats()
    assert max(plans[-1], default=0) >= 28, fast.inspect("plan")  # the first round and the last one may differ


def test_rounds_that_fill_a_tensor_at_any_size():
    def run(x, w):
        out = torch.zeros(x.shape[0] + 1, x.shape[1], 8)
        h = torch.zeros(x.shape[1], 8)
        for t in range(x.shape[0]):
            h = torch.tanh(x[t] + h @ w)
            out[t + 1] = h
        return out, h

    fast = fastjit(run)
    w = torch.randn(8, 8) / 3
    for batch in (4, 5, 2, 40, 7):
        x = torch.randn(60, batch, 8)
        assert_same(fast(x, w), run(x, w))
    assert fast.stats().fallbacks == {} and fast.stats().variants == 2, fast.stats()
    assert max(loop_trips(fast), default=0) >= 58, fast.inspect("plan")


def test_a_plan_for_any_size_does_not_grow_with_the_rounds():
    model = nn.LSTMCell(8, 16)
    kernels = []
    for steps in (50, 200):
        run = cell_over_time(model)
        fast = fastjit(run)
        with torch.no_grad():
            for batch in (4, 5, 6):
                x = torch.randn(steps, batch, 8)
                assert_same(fast(x), run(x))
        kernels.append(fast.stats().kernels)
        assert fast.stats().fallbacks == {} and fast.stats().variants == 2, fast.stats()
    assert kernels[0] == kernels[1], kernels


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("backward", [False, True])
@torch.enable_grad()
def test_gradients_of_steps_are_stored_where_they_belong(dim, backward):
    """Each step's is zeros but for its slice: the sum of all would be as long as the sequence, in every round."""
    steps = 60

    def run(x, w):
        h = torch.zeros(4, 8)
        for t in reversed(range(steps)) if backward else range(steps):
            h = torch.tanh(x.select(dim, t) + h @ w)
        return h

    fast = fastjit(run)
    for _ in range(3):
        x = torch.randn((steps, 4, 8) if dim == 0 else (4, steps, 8), requires_grad=True)
        w = (torch.randn(8, 8) / 3).requires_grad_()
        expected, got = run(x, w), fast(x, w)
        assert_same(got, expected)
        for mine, theirs in zip(
            torch.autograd.grad(got.sum(), (x, w)), torch.autograd.grad(expected.sum(), (x, w)), strict=True
        ):
            assert_same(mine, theirs)
    assert fast.stats().hits == 2 and fast.stats().fallbacks == {}, fast.stats()
    rounds = [line for line in fast.inspect("plan").splitlines() if line.startswith("    kernel")]
    assert rounds and not any(f"sizes [{steps * 32}]" in line for line in rounds), fast.inspect("plan")
