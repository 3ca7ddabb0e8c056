"""Loops inside a kernel: states in registers, against eager, and loops that may not go there."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

from fastjit import fastjit
from helpers import assert_same, check, loop_trips, torch_threads


def is_inside(fast: Any) -> bool:
    return " rounds " in re.sub(r"^#.*$", "", fast.inspect("plan"), flags=re.MULTILINE)


def scan(x, a):
    h, out = torch.zeros_like(x[0]), torch.empty_like(x)
    for t in range(x.shape[0]):
        h = a * h + x[t]
        out[t] = h
    return out, h


@pytest.mark.parametrize("points", [1, 3, 16, 33, 200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_a_scan(points, dtype):
    x = torch.randint(-3, 4, (110, points)).to(dtype)
    a = torch.randint(-1, 2, (points,)).to(dtype)
    fast = check(scan, x, a)
    assert is_inside(fast) and loop_trips(fast)[0] > 100, fast.inspect("plan")


def test_time_is_the_last_dim():
    def run(b, a):
        b = b.clone()
        for i in range(1, b.shape[-1]):
            b[..., i] -= a * b[..., i - 1]
        return b

    for shape in [(6, 90), (3, 5, 100), (1, 120)]:
        fast = check(run, torch.randn(shape), torch.rand(shape[:-1]))
        assert is_inside(fast), fast.inspect("plan")


def test_states_that_change_places():
    def run(a, b):
        for _ in range(150):
            a, b = b, a * 0.5 + b
        return a, b

    fast = check(run, torch.randn(37), torch.randn(37))
    assert is_inside(fast), fast.inspect("plan")


def test_an_argument_is_the_state():
    def run(x, state):
        for t in range(x.shape[0]):
            state.mul_(0.5).add_(x[t])
        return state * 2

    fast = check(run, torch.randn(120, 20), torch.randn(20))
    assert is_inside(fast), fast.inspect("plan")


def test_numbers_of_the_call():
    def run(x, decay):
        h = torch.zeros(8)
        for t in range(x.shape[0]):
            h = h * decay + x[t]
        return h

    fast = fastjit(run)
    x = torch.randn(100, 8)
    for decay in (0.5, 0.25, 0.75, 0.125, 0.5):
        assert_same(fast(x, decay), run(x, decay))
    assert fast.stats().hits >= 3 and is_inside(fast), fast.stats()


def test_small_layers_in_lists():
    torch.manual_seed(0)
    model = nn.Sequential(*[m for _ in range(60) for m in (nn.Linear(4, 4), nn.Tanh())]).eval().requires_grad_(False)
    fast = check(lambda x: model(x), torch.randn(4, 4))
    assert is_inside(fast) and " listed" in fast.inspect("plan"), fast.inspect("plan")
    with torch.no_grad():
        model[0].weight.mul_(2)
        model[6].bias.data = torch.randn(4)
    x = torch.randn(4, 4)
    assert_same(fast(x), model(x))
    assert fast.stats().hits == 2, fast.stats()


def test_a_small_recurrent_net():
    def run(x, w, h):
        out = []
        for t in range(x.shape[0]):
            h = torch.tanh(x[t] + h @ w)
            out.append(h)
        return torch.stack(out)

    for batch in (1, 4):
        fast = check(run, torch.randn(90, batch, 8), torch.randn(8, 8) / 3, torch.zeros(batch, 8))
        assert is_inside(fast), fast.inspect("plan")


def test_a_longer_sequence_compiles_nothing():
    fast = fastjit(scan)
    a = torch.rand(16)
    for steps in (100, 130, 170, 40):
        x = torch.randn(steps, 16)
        for _ in range(3):
            assert_same(fast(x, a), scan(x, a))
        compiled = fast.stats().compiles
        if steps == 130:  # that program runs any number of rounds
            first = compiled
    assert compiled == first and is_inside(fast), fast.stats()
    assert fast.stats().hits == 10


def reads_what_the_next_point_stores(x, out):
    for t in range(100):
        out[t, 1:] = out[t, :-1] * 0.5 + x[t, 1:]
    return out


def reads_a_row_that_another_round_stores(x, out):
    h = torch.zeros(8)
    for t in range(100):
        h = h * 0.5 + out[99 - t] + x[t]
        out[t] = h
    return out


def stores_where_another_round_stored(x, out):
    h = torch.zeros(8)
    out = out.view(-1)
    for t in range(100):
        h = h * 0.5 + x[t]
        out[t : t + 8] = h
    return out


def neighbours(x, out):
    h = torch.zeros(8)
    for t in range(100):
        h = torch.roll(h, 1, 0) * 0.5 + x[t]
    return h + out[0]


@pytest.mark.parametrize(
    "function",
    [
        reads_what_the_next_point_stores,
        reads_a_row_that_another_round_stores,
        stores_where_another_round_stored,
        neighbours,
    ],
)
def test_points_that_need_each_other(function):
    """All rounds of a point come before the next point's only where nobody could tell."""
    fast = check(function, torch.randn(100, 8), torch.randn(100, 8))
    assert not is_inside(fast), fast.inspect("plan")


def test_rounds_far_from_each_other_stay_outside():
    fast = check(scan, torch.randn(100, 1024), torch.rand(1024))
    assert loop_trips(fast) and not is_inside(fast), fast.inspect("plan")


def test_threads_share_the_points():
    def run(x):
        for _ in range(300):
            x = torch.sin(x) + 0.1
        return x

    with torch_threads(2):
        fast = check(run, torch.randn(200_000))
    assert is_inside(fast) and loop_trips(fast)[0] > 100, fast.inspect("plan")
    units, grain = re.search(r"units (\d+) grain (\d+) rounds", fast.inspect("plan")).groups()
    assert int(units) > int(grain), fast.inspect("plan")
