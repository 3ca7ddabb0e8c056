"""What recording costs as programs grow, counted in steps of its loops: no faster than n log n."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fastjit
from fastjit import _C

SIZES = (100, 1000, 10000)


def chain(n: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def f(x):
        for _ in range(n // 2):
            x = torch.sin(x) + 0.1
        return x

    return f, (torch.randn(8),)


def recurrence(n: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def f(a, h, x):
        for t in range(n // 3):
            h = a * h + x[t]
        return h

    return f, (torch.rand(4), torch.zeros(4), torch.randn(n // 3, 4))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def modules(n: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return nn.Sequential(*(Block() for _ in range(n // 5))), (torch.randn(2, 4),)


def optimizer(n: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def f(parameters, momenta, gradients):
        for p, m, g in zip(parameters, momenta, gradients, strict=True):
            m.mul_(0.9).add_(g)
            p.sub_(m * 0.1)

    return f, tuple([torch.randn(2) for _ in range(n // 4)] for _ in range(3))


def slice_stores(n: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def f(h, out):
        for t in range(n // 3):
            h = torch.tanh(h)
            out[t] = h
        return out.clone()

    return f, (torch.randn(4), torch.zeros(n // 3, 4))


def hub(n: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def f(x, y):
        middle = x * y
        return [middle + 1.5 for _ in range(n)]

    return f, (torch.randn(4), torch.randn(4))


def backwards(n: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A dictionary is read from its end."""
    table = {f"k{i}": torch.randn(2) for i in range(n)}
    names = [f"k{i}" for i in reversed(range(n))]

    def f(x):
        for name in names:
            x = x + table[name]
        return x

    return f, (torch.randn(2),)


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def work_of(make: Callable[[int], tuple[Callable[..., Any], tuple[Any, ...]]], n: int, grad: bool = False) -> int:
    """Steps of the recorder's loops in the first call; nothing is compiled."""
    function, args = make(n)
    fast = fastjit.jit(function, on_miss="background")
    fast = fastjit.of(fast) if isinstance(fast, nn.Module) else fast
    before = _C.recording_work()
    with torch.set_grad_enabled(grad):
        fast(*args)
    work = _C.recording_work() - before
    assert [row.reason for row in fast.variants()] == ["its program is being compiled in the background"]
    fast.clear()
    return work


def assert_linear(works: dict[int, int]) -> None:
    last = None
    for n, work in works.items():
        assert work >= n
        each = work / (n * math.log2(n))
        assert last is None or each <= 1.3 * last, works
        last = each


@pytest.fixture
def _held():
    _C.hold_background(True)
    yield
    _C.hold_background(False)


@pytest.mark.usefixtures("_held")
@pytest.mark.parametrize("make", [chain, recurrence, modules, optimizer, slice_stores, hub, backwards])
def test_work_grows_no_faster_than_n_log_n(make):
    assert_linear({n: work_of(make, n) for n in SIZES})


def cell_in_a_list(n: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def f(x, w):
        h, out = torch.zeros(2, 4), []
        for t in range(x.shape[0]):
            h = torch.tanh(x[t] + h @ w)
            out.append(h)
        return torch.stack(out)

    return f, (torch.randn(n // 4, 2, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True))


def cell_in_rows(n: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def f(x, w):
        h, out = torch.zeros(2, 4), torch.zeros(x.shape[0], 2, 4)
        for t in range(x.shape[0]):
            h = torch.tanh(x[t] + h @ w)
            out[t] = h
        return out

    return f, (torch.randn(n // 4, 2, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True))


@pytest.mark.usefixtures("_held")
@pytest.mark.parametrize("make", [cell_in_a_list, cell_in_rows])
def test_work_with_gradients_grows_no_faster(make):
    assert_linear({n: work_of(make, n, grad=True) for n in (100, 1000, 4000)})
