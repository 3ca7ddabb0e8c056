"""What repeats in a function is a loop of its program: results, writes and what ran, against eager."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fastjit import fastjit
from helpers import assert_same, cell_over_time, check, loop_trips, torch_threads


def steps_of(fast: Any) -> int:
    return int(fast.stats().steps)


def dots_in_loop(fast: Any) -> int:
    plan = fast.inspect("plan")
    body = re.search(r"^loop \d+.*\n((?:    .*\n)+)", plan, re.MULTILINE)
    dots = {int(k) for k in re.findall(r"^kernel (\d+) is fj_\w*dot", plan, re.MULTILINE)}
    assert body, plan
    return sum(int(k) in dots for k in re.findall(r"kernel (\d+)", body[1]))


class Cells(nn.Module):
    """Cells in time, one over the other, with all outputs in one tensor."""

    def __init__(self, kind: type[nn.Module], size: int, layers: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cells = nn.ModuleList(kind(size, size) for _ in range(layers))
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Any:
        state: list[Any] = [None] * len(self.cells)
        out = torch.empty_like(x)
        for t in range(x.shape[0]):
            h = x[t]
            for i, cell in enumerate(self.cells):
                state[i] = cell(h, state[i])
                h = state[i][0] if isinstance(state[i], tuple) else state[i]
            out[t] = h
        return out, h


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
@pytest.mark.parametrize("layers, batch", [(1, 1), (2, 3), (1, 16)])
def test_cells(kind, layers, batch):
    model = Cells(kind, 24, layers).eval()
    fast = check(lambda x: model(x), torch.randn(40, batch, 24))
    assert loop_trips(fast), fast.inspect("plan")
    assert steps_of(fast) < 40 * layers


def test_products_of_all_steps_are_one():
    model = Cells(nn.LSTMCell, 32, 1).eval()
    fast = check(lambda x: model(x), torch.randn(50, 4, 32))
    assert sum(loop_trips(fast)) >= 49, fast.inspect("plan")
    # Of the two products of a step the one with x[t] is made before the loop, for all of them.
    assert dots_in_loop(fast) == 1, fast.inspect("plan")


def test_products_of_many_rows_stay_in_the_loop():
    """One of all steps would take no less time, and memory."""
    model = Cells(nn.LSTMCell, 32, 1).eval()
    assert dots_in_loop(check(lambda x: model(x), torch.randn(50, 7, 32))) == 1
    assert dots_in_loop(check(lambda x: model(x), torch.randn(50, 8, 32))) == 2


def test_products_of_all_steps_that_are_too_large_stay_in_the_loop():
    """Together they would take 37 MB that no step of eager's takes."""

    def run(x, w, u):
        h = torch.zeros(x.shape[1], 256)
        for t in range(x.shape[0]):
            h = torch.tanh((x[t] @ w).sum(0, keepdim=True)[:, :256] + h @ u)
        return h

    for steps, inside in ((40, 1), (640, 2)):
        fast = check(run, torch.randn(steps, 7, 64), torch.randn(64, 2048) / 80, torch.randn(256, 256) / 16)
        assert dots_in_loop(fast) == inside, fast.inspect("plan")


def scan(x, a, collect):
    h, out = torch.zeros(x.shape[1]), []
    for t in range(x.shape[0]):
        h = torch.tanh(a * h + x[t])
        out.append(h)
    return collect(out)


COLLECT = {
    "stack": torch.stack,
    "stack_last": lambda out: torch.stack(out, -1),
    "cat": torch.cat,
    "some": lambda out: (out[3], out[-1], out[60] * 2),
    "behind_another": lambda out: torch.cat([out[0] * 0, *out, out[-1] + 1]),
    "twice": lambda out: (torch.stack(out), torch.cat(out)),
    "sum": lambda out: torch.stack(out).sum(0),
    "every_other": lambda out: torch.stack(out[::2]),
    "reversed": lambda out: torch.stack(out[::-1]),
}


@pytest.mark.parametrize("collect", COLLECT)
def test_what_a_scan_collects(collect):
    fast = check(lambda x, a: scan(x, a, COLLECT[collect]), torch.randn(120, 16), torch.rand(16))
    assert loop_trips(fast), fast.inspect("plan")


def test_backwards_in_time_and_both_ways():
    def run(x, w):
        forward = backward = torch.zeros(4, 8)
        for t in range(x.shape[0]):
            forward = torch.tanh(x[t] + forward @ w)
        for t in reversed(range(x.shape[0])):
            backward = torch.tanh(x[t] - backward @ w)
        return forward, backward

    fast = check(run, torch.randn(60, 4, 8), torch.randn(8, 8) / 3)
    assert len(loop_trips(fast)) >= 2, fast.inspect("plan")


def test_sweeps_in_place():
    def run(u, b):
        u = u.clone()
        for _ in range(40):
            u[1:-1, 1:-1] = 0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - b[1:-1, 1:-1])
        return u

    fast = check(run, torch.randn(20, 20), torch.randn(20, 20))
    assert loop_trips(fast), fast.inspect("plan")


def tridiagonal(a, b, c, d):
    b, d = b.clone(), d.clone()
    n = b.shape[-1]
    for i in range(1, n):
        w = a[..., i] / b[..., i - 1]
        b[..., i] -= w * c[..., i - 1]
        d[..., i] -= w * d[..., i - 1]
    x = torch.empty_like(d)
    x[..., -1] = d[..., -1] / b[..., -1]
    for i in range(n - 2, -1, -1):
        x[..., i] = (d[..., i] - c[..., i] * x[..., i + 1]) / b[..., i]
    return x


def test_a_tridiagonal_solve():
    a, b, c, d = (torch.rand(6, 100) for _ in range(4))
    fast = check(tridiagonal, a, b + 2, c, d)
    assert len(loop_trips(fast)) >= 2, fast.inspect("plan")
    assert steps_of(fast) < 40


def test_attention_over_a_cache():
    weights = [torch.randn(2, 8, 8) / 3 for _ in range(4)]

    def run(x, k, v):
        q, wk, wv, wo = weights
        k, v = k.clone(), v.clone()
        for g in range(4, k.shape[2]):
            k[:, :, g, :] = (x @ wk)[:, :, 0]
            v[:, :, g, :] = (x @ wv)[:, :, 0]
            scores = torch.softmax((x @ q) @ k.transpose(-1, -2) / 3, -1)
            x = scores @ v @ wo
        return k, v, x

    fast = check(run, torch.randn(3, 2, 1, 8), torch.zeros(3, 2, 30, 8), torch.zeros(3, 2, 30, 8))
    assert loop_trips(fast), fast.inspect("plan")


def test_an_argument_is_written_step_by_step():
    def run(x, out):
        h = x[0]
        for t in range(x.shape[0]):
            h = torch.sin(h) + x[t] * 0.5
            out[t] += h
        return h

    x = torch.randn(100, 8)
    fast = fastjit(run)
    outs = [torch.zeros(100, 8) for _ in range(2)]
    for _ in range(3):
        results = [run(x, outs[0]), fast(x, outs[1])]
        assert_same(results[1], results[0])
        assert_same(outs[1], outs[0])
        assert outs[1]._version == outs[0]._version
    assert fast.stats().hits == 2 and loop_trips(fast), fast.inspect("plan")


def test_numbers_that_differ_in_each_step_stay_right():
    def run(x):
        for t in range(80):
            x = torch.sin(x) + t * 0.01
        return x

    check(run, torch.randn(32))


def test_two_steps_back():
    def run(x):
        a, b = x, x * 0.5
        for _ in range(90):
            a, b = b, torch.tanh(a - b * 0.3)
        return a, b

    check(run, torch.randn(16))


def test_layers_of_several_kernels_and_a_head():
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(24)]
    model = nn.ModuleList(blocks).requires_grad_(False)
    head = nn.Linear(8, 3).requires_grad_(False)

    def run(x):
        for block in model:
            x = x + block(x)
        return head(x)

    fast = check(run, torch.randn(5, 8))
    assert loop_trips(fast) and max(loop_trips(fast)) >= 20, fast.inspect("plan")
    with torch.no_grad():
        model[7][1].weight.mul_(-1)  # tables are read in each call
        x = torch.randn(5, 8)
        assert_same(fast(x), run(x))


def test_threads_share_a_round():
    def run(x, w):
        h = torch.zeros(600, 64)
        for t in range(x.shape[0]):
            h = torch.tanh(x[t] + (h * w).sum(1, keepdim=True) * 0.1)
        return h

    with torch_threads(2):
        fast = check(run, torch.randn(80, 600, 64), torch.randn(64) / 8)
    assert loop_trips(fast), fast.inspect("plan")


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_other_types(dtype):
    def run(x, a):
        h, out = a, torch.zeros_like(x)
        for t in range(x.shape[0]):
            h = torch.maximum(h - x[t], a) + 1
            out[t, 2:5] = h[:3] + h[5:]
        return h, out

    x = torch.arange(800).reshape(100, 8).to(dtype) % 7
    fast = check(run, x, torch.ones(8, dtype=dtype))
    assert loop_trips(fast), fast.inspect("plan")


def test_lengths_take_turns():
    def run(x, w):
        h = torch.zeros(2, 8)
        for t in range(x.shape[0]):
            h = torch.tanh(x[t] + h @ w)
        return h

    fast, w = fastjit(run), torch.randn(8, 8) / 3
    for length in (40, 80, 1, 40, 80, 300, 0, 300):
        x = torch.randn(length, 2, 8)
        assert_same(fast(x, w), run(x, w))
    assert fast.stats().fallbacks == {} and fast.stats().hits >= 3


@torch.enable_grad()
@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_both_ways_through_a_cell(kind):
    """Forwards and backwards are a loop each, and what the rounds save is in a tensor or two, in its place."""
    torch.manual_seed(0)
    cell = kind(16, 32)
    run = cell_over_time(cell)
    fast, x = fastjit(run), torch.randn(30, 8, 16)
    for _ in range(3):
        wanted, got = [], []
        for function, results in ((run, wanted), (fast, got)):
            y = function(x)
            results += [y, *torch.autograd.grad(y.square().mean(), cell.parameters())]
        assert_same(got, wanted)
    stats = fast.stats()
    assert stats.hits == 2 and not stats.fallbacks, stats
    forward, backward = fast.inspect("plan").split("# the way back")
    for way in (forward, backward):
        trips = [int(n) for n in re.findall(r"^loop (\d+)", way, re.MULTILINE)]
        assert max(trips, default=0) >= 27, way
    assert len(re.findall(r"^s\d+: input", backward, re.MULTILINE)) < 12, backward
    assert way.count("\n    kernel") + way.count("\nkernel") < 40, way
