"""What the way back holds: kept tensors go when nothing reads them any more, and slices are put together at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fastjit import _C, fastjit

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"

# What a step needs at most, in a process of its own: 24 layers keep 1 MB each, and each has 1 MB of gradients.
STEP = """
import sys
import _peak as peak
peak.map_blocks()
import torch
from fastjit import fastjit

weights = [torch.nn.Parameter(torch.randn(512, 512) / 23) for _ in range(24)]
def f(x):
    for w in weights:
        x = torch.tanh(x @ w)
    return x

how, fast, x = sys.argv[1], fastjit(f), torch.randn(512, 512)
def no_gradients():
    for w in weights:
        w.grad = None

def step():
    no_gradients()
    (f if how == "eager" else fast)(x).sum().backward(retain_graph=how == "retained")

for _ in range(4):
    step()
most, _ = peak.peak_of_calls(step, no_gradients)
assert how == "eager" or (fast.stats().hits, fast.stats().fallbacks) == (6, {}), fast.stats()
print(most / 2**20)
"""


def peak_mb(how: str) -> float:
    done = subprocess.run([sys.executable, "-c", STEP, how], capture_output=True, text=True, check=True, cwd=BENCHMARKS)
    return float(done.stdout)


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="peak memory is read from /proc")
def test_a_step_needs_no_more_than_in_eager():
    eager, fast, retained = (peak_mb(how) for how in ("eager", "fastjit", "retained"))
    assert fast < 1.2 * eager
    assert retained > fast + 15, "what is kept must stay"


@torch.enable_grad()
def test_what_is_saved_lies_where_torchs_calls_take_their_memory():
    """The pool would keep it for blocks of its size; what the way back makes has others."""
    weights = [torch.randn(512, 512, requires_grad=True) for _ in range(12)]

    def f(x):
        for w in weights:
            x = torch.tanh(x @ w / 23)
        return x

    fast, x = fastjit(f), torch.randn(512, 512)
    for _ in range(3):
        fast(x).sum().backward()
    before = _C.pool_stats()["live_bytes"]
    y = fast(x)
    assert _C.pool_stats()["live_bytes"] - before < 3 << 20, "12 tensors of 1 MB are saved"
    y.sum().backward()
    stats = fast.stats()
    assert (stats.hits, stats.fallbacks) == (3, {}), stats


def gradients(call, x: Tensor, gs: list[Tensor]) -> Tensor:
    x = x.clone().requires_grad_()
    results = call(x)
    torch.autograd.backward([y for y in results if y.requires_grad], gs[: len(results)])
    assert x.grad is not None
    return x.grad


SLICES = {
    "all": lambda x: (x[0].sin(), x[1].sin(), x[2].sin()),
    "some": lambda x: (x[0].sin(), x[2].sin()),
    "along another dim": lambda x: (x[:, 0].exp(), x[:, 1].exp()),
    "one twice": lambda x: (x[0].sin(), x[0].cos(), x[1].sin()),
    "beside the whole": lambda x: (x[0].sin(), x[1].sin() * x.sum((0, 2))[:, None]),
}


@torch.enable_grad()
@pytest.mark.parametrize("name", SLICES)
def test_gradients_of_slices_are_put_together(name):
    one = SLICES[name]

    def call(x: Tensor) -> tuple[Tensor, ...]:
        return (torch.stack([y.sum(0) for y in one(x)]),)

    x, fast = torch.randn(3, 4, 5), fastjit(call)
    for _ in range(3):
        g = torch.randn_like(call(x)[0])
        g[g.abs() < 0.3] = -0.0
        want, got = gradients(call, x, [g]), gradients(fast, x, [g])
        torch.testing.assert_close(got, want)
        assert torch.equal(torch.signbit(got[want == 0]), torch.signbit(want[want == 0]))
    assert (fast.stats().hits, fast.stats().fallbacks) == (2, {})


@torch.enable_grad()
def test_a_graph_that_is_retained_is_gone_back_again():
    fast, w = fastjit(lambda x, w: torch.tanh(torch.tanh(x @ w) @ w)), torch.randn(8, 8, requires_grad=True)
    for turn in range(3):
        y = fast(torch.randn(4, 8), w)
        first = torch.autograd.grad(y.sum(), w, retain_graph=True)[0]
        second = torch.autograd.grad(y.sum(), w, retain_graph=turn == 1)[0]
        assert torch.equal(first, second)
        if turn == 1:
            assert torch.equal(first, torch.autograd.grad(y.sum(), w)[0])
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(y.sum(), w)
    assert (fast.stats().hits, fast.stats().fallbacks) == (2, {})
