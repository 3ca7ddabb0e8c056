"""Numbers of Python's that change from call to call, in programs with gradients: the weight of a loss, a temperature.

Each test plays calls with other numbers in eager and compiled, compares results and every gradient, and says how many
recordings they took.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastjit
from gradient_tools import leaf

NUMBERS = [0.5, 0.75, 1.0, 2.0, 0.1, -3.0, 1.5, 4.0, 0.5, 7.25]
Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def _grad():
    with torch.enable_grad():
        yield


def scaled_in_place(h: Tensor, b: float) -> Tensor:
    h = h * 1
    h.mul_(b).add_(b)
    return h.tanh()


def read_from_a_tensor(h: Tensor, b: float) -> Tensor:
    scale = torch.tensor(b).item()
    return (h * scale).tanh()


def penalty(h: Tensor, b: float) -> Tensor:
    """A gradient inside, whose own way back is given the number too."""
    x = h.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(((x * h) * b).tanh().sum(), x, create_graph=True)
    return gradient * b


ANY: dict[str, Function] = {
    "weight of a loss": lambda h, b: h.square().mean() + b * h.abs().mean(),
    "temperature": lambda h, b: (h / b).softmax(-1),
    "mixed": lambda h, b: (1 - b) * h + b * h.tanh(),
    "divided by": lambda h, b: b / (h.exp() + 1),
    "what follows from it": lambda h, b: (h * (b * 2 + 1)).tanh(),
    "subtracted from": lambda h, b: (b - h).sigmoid(),
    "in place": scaled_in_place,
    "where": lambda h, b: torch.where(h > 0, h * 1, b).exp(),
    "masked": lambda h, b: h.masked_fill(h > 0, b).exp(),
    "twice": lambda h, b: (h * b).relu() * b,
    "two results": lambda h, b: ((y := h * b), (y * b).sum()),
    "read from a tensor": read_from_a_tensor,
    "a gradient inside": penalty,
}
BY_VALUE: dict[str, Function] = {  # of these autograd keeps numbers that follow from it
    "power": lambda h, b: (h.abs() + 1).pow(b),
    "slope": lambda h, b: F.leaky_relu(h, b),
    "bound": lambda h, b: h.clamp(max=b),
    "alpha": lambda h, b: torch.add(h.exp(), h, alpha=b),
    "weight of lerp": lambda h, b: torch.lerp(h, h.exp(), b),
}


def play(fn: Function, sizes: list[int]) -> Any:
    fast = fastjit.jit(fn)
    for size, number in zip(sizes, NUMBERS, strict=True):
        h = leaf(size, 6)
        twin = h.detach().clone().requires_grad_()
        got, want = fast(h, number), fn(twin, number)
        got, want = (r if isinstance(r, tuple) else (r,) for r in (got, want))
        given = [torch.linspace(-1, 2, r.numel()).view_as(r) for r in want]
        torch.autograd.backward(got, given)
        torch.autograd.backward(want, given)
        for g, w in zip((*got, h.grad), (*want, twin.grad), strict=True):
            torch.testing.assert_close(g, w, rtol=2e-5, atol=2e-5)
    return fast.stats()


@pytest.mark.parametrize("name", ANY)
def test_one_program_for_all_numbers(name: str) -> None:
    stats = play(ANY[name], [5] * len(NUMBERS))
    assert (stats.misses, stats.hits, stats.fallbacks) == (1, len(NUMBERS) - 1, {})


@pytest.mark.parametrize("name", ANY)
def test_at_sizes_that_change_too(name: str) -> None:
    stats = play(ANY[name], [5, 7, 5, 9, 4, 7, 12, 3, 6, 5])
    assert stats.misses <= 3
    assert stats.hits == len(NUMBERS) - stats.misses
    assert stats.fallbacks == {}


@pytest.mark.parametrize("name", BY_VALUE)
def test_a_number_that_autograd_keeps_otherwise_is_a_guard(name: str) -> None:
    stats = play(BY_VALUE[name], [5] * len(NUMBERS))
    assert (stats.misses, stats.hits, stats.fallbacks) == (len(set(NUMBERS)), 1, {})


class Steps:
    """Whole steps, with numbers in the loss, for the accumulation and in the clipping."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(6, 3)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def step(self, x: Tensor, b: float) -> Tensor:
        self.optimizer.zero_grad()
        total = torch.zeros(())
        for part in range(2):
            y = self.model(x)
            loss = (y.square().mean() + (b + part) * y.abs().mean()) / 2
            loss.backward()
            total = total + loss.detach()
        nn.utils.clip_grad_norm_(self.model.parameters(), abs(b))
        self.optimizer.step()
        return total


def test_whole_steps() -> None:
    mine, eager = Steps(), Steps()
    fast = fastjit.jit(mine.step)
    for number in NUMBERS * 2:
        x = torch.randn(4, 6)
        torch.testing.assert_close(fast(x, number), eager.step(x, number))
        for p, q in zip(mine.model.parameters(), eager.model.parameters(), strict=True):
            torch.testing.assert_close(p, q)
            torch.testing.assert_close(p.grad, q.grad)
    assert fast.stats().hits >= 2 * len(NUMBERS) - 5, fast.stats()


def test_a_number_that_a_graph_holds_when_the_next_call_comes() -> None:
    """The way back of each call has its own number."""
    fast = fastjit.jit(lambda h, b: (h * b).tanh())
    fast(leaf(3, 4), 1.0).sum().backward()
    leaves = [leaf(3, 4) for _ in range(4)]
    results = [fast(h, 0.5 + k) for k, h in enumerate(leaves)]
    for result in reversed(results):
        result.sum().backward()
    for k, h in enumerate(leaves):
        twin = copy.deepcopy(h.detach()).requires_grad_()
        (twin * (0.5 + k)).tanh().sum().backward()
        torch.testing.assert_close(h.grad, twin.grad)
    assert fast.stats().hits == 4


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, b: float) -> Tensor:
        ctx.b = b
        return x * b

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.b, None


@pytest.mark.parametrize("whole", [False, True])
def test_a_number_that_an_own_function_keeps_is_a_guard(whole: bool) -> None:
    def fn(h: Tensor, b: float) -> Tensor:
        y = Scaled.apply(h, b).square().sum()
        if whole:
            y.backward()
        return y.detach() if whole else y

    weight = leaf(3, 4)
    fast = fastjit.jit(lambda b: fn(weight, b))
    for number in (0.5, 2.0, 0.5, 2.0, 0.5, 3.0):
        weight.grad = None
        y = fast(number)
        if not whole:
            y.backward()
        torch.testing.assert_close(weight.grad, 2 * number * number * weight.detach())
    assert fast.stats().hits >= 2
