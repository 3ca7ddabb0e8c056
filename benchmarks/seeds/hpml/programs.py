"""Products with arithmetic behind them, products in two orders, and loops as Numba's users write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from _program import Made, Program


def scaled_product(x: Tensor, y: Tensor) -> Tensor:
    return torch.mm(x.t(), y) * 100 + 10


def matrices_first(a: Tensor, b: Tensor, v: Tensor) -> Tensor:
    return (a @ b) @ v


def vector_first(a: Tensor, b: Tensor, v: Tensor) -> Tensor:
    return a @ (b @ v)


def sines(x: Tensor) -> Tensor:
    for _ in range(500):
        x = torch.sin(x) + 0.1
    return x


def go_fast(a: Tensor) -> Tensor:
    """The first example of Numba's guide."""
    trace = torch.zeros(())
    for i in range(a.shape[0]):
        trace += torch.tanh(a[i, i])
    return a + trace


def running_sum(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    for i in range(1, x.shape[0]):
        y[i] = y[i - 1] * 0.9 + x[i]
    return y


def with_numba(compiled: bool) -> Callable[[Made], Callable[[], Any]]:
    """go_fast on NumPy's arrays, with and without Numba."""

    def make(made: Made) -> Callable[[], Any]:
        import numpy as np

        def go(a: Any) -> Any:
            trace = np.float32(0)
            for i in range(a.shape[0]):
                trace += np.tanh(a[i, i])
            return a + trace

        if compiled:
            import numba

            go = numba.njit(go)
        array = made[1][0].numpy()
        return lambda: go(array)

    return make


def square(n: int) -> Made:
    return scaled_product, (torch.randn(n, n), torch.randn(n, n))


def two_products(n: int, first: bool) -> Made:
    fn = matrices_first if first else vector_first
    return fn, (torch.randn(n, n) / n**0.5, torch.randn(n, n) / n**0.5, torch.randn(n))


def on(fn: Callable[..., Any], *sizes: int) -> Made:
    return fn, (torch.randn(*sizes),)


TITLE = "Products and loops"
QUESTION = "A product with arithmetic behind it, two products in both orders, a loop of 500 steps, loops as for Numba."
PROGRAMS = [Program(f"mm(x.t(), y)*100+10, {n}", square, {"n": n}, quick=n == 8) for n in (8, 128, 512)]
PROGRAMS += [
    Program(f"{text}, {n}", two_products, {"n": n, "first": first})
    for n in (64, 512)
    for text, first in (("(A@B)@v", True), ("A@(B@v)", False))
]
PROGRAMS += [
    Program("x = sin(x) + 0.1, 500 times", lambda: on(sines, 1000)),
    Program(
        "go_fast, 100 x 100",
        lambda: on(go_fast, 100, 100),
        others={"numpy": with_numba(False), "numba": with_numba(True)},
    ),
    Program("y[i] = y[i-1]*0.9 + x[i], 500 x 64", lambda: on(running_sum, 500, 64)),
]
