"""Array programs with a loop in Python: a scan, sweeps that write in place, and a solver that runs along one dim."""

from __future__ import annotations

import torch
from torch import Tensor

from _program import Made, Program


def scan(x: Tensor, a: Tensor) -> Tensor:
    h = torch.zeros(32)
    every = []
    for t in range(x.shape[0]):
        h = a * h + x[t]
        every.append(h)
    return torch.stack(every)


def jacobi(u: Tensor, b: Tensor) -> Tensor:
    u = u.clone()
    for _ in range(10):
        u[1:-1, 1:-1] = 0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - b[1:-1, 1:-1])
    return u


def tridiagonal(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """Thomas' algorithm on each row: forwards, then back."""
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


def make_scan(steps: int = 1000) -> Made:
    return scan, (torch.randn(steps, 32), torch.rand(32))


def make_jacobi(side: int = 256) -> Made:
    return jacobi, (torch.randn(side, side), torch.randn(side, side))


def make_tridiagonal(rows: int = 64, columns: int = 800) -> Made:
    a, b, c, d = torch.rand(4, rows, columns)
    return tridiagonal, (a, b + 2, c, d)


TITLE = "Loops over arrays"
QUESTION = "Loops in Python: a scan of 1000 steps, 10 sweeps of Jacobi on 256 x 256, a tridiagonal solver on 64 x 800."
PROGRAMS = [
    Program("scan, 1000 steps", make_scan),
    Program("Jacobi, 10 sweeps of 256 x 256", make_jacobi, quick=True),
    Program("tridiagonal, 64 x 800", make_tridiagonal),
]
