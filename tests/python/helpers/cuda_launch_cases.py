"""Programs for a CUDA device, the stand-in or a real one: (function, arguments on the CPU, kernels of a call)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

Program = tuple[Callable[..., Any], tuple[torch.Tensor, ...], int]


def programs() -> dict[str, Program]:
    torch.manual_seed(0)
    x, y, long = torch.randn(40, 50), torch.randn(40, 50), torch.randn(100_000)
    half, batch = torch.randn(40, 50).half(), torch.randn(3, 20, 30)
    whole = torch.arange(-1000, 1000).reshape(40, 50)
    return {
        "pointwise chain": (lambda x, y: functional.gelu(x * y + 1) * x, (x, y), 1),
        "broadcast and strides": (lambda x, y: x.t()[:, ::2] * y[0, :20] - 1, (x, y), 1),
        "halves": (lambda x: torch.sigmoid(x) * x, (half,), 1),
        "integers": (lambda x: (x // 7) * 3 % 5, (whole,), 1),
        "masked select": (lambda x, y: torch.where(x > y, x, 0.5), (x, y), 1),
        "row softmax": (lambda x, y: torch.softmax(x * 2, -1) + y, (x, y), 1),
        "layer_norm": (lambda x, y: functional.layer_norm(x, (50,)) * y, (x, y), 1),
        "column sums": (lambda x, y: (x * y).sum(0), (x, y), 1),
        "sum of all in two stages": (lambda x: (x * 2).double().sum(), (long,), 2),
        "product and epilogue": (lambda x, y: torch.relu(torch.mm(x.t(), y)) * 100 + 10, (x, y), 1),
        "linear and gelu": (lambda x, y: functional.gelu(functional.linear(x, y)), (x, y), 1),
        "addmm": (lambda x, y: torch.tanh(torch.addmm(y[0, :40], x, y.t())), (x, y), 1),
        "bmm": (lambda x: torch.bmm(x, x.transpose(1, 2)).abs(), (batch,), 1),
        "operators of torch between": (lambda x, y: torch.sort(x + y)[0] * 2, (x, y), 2),
        "several results": (lambda x, y: (x + y, (x - y).amax(1), x), (x, y), 1),
        "writes to a local": (lambda x, y: x.clone().add_(y).relu_(), (x, y), 1),
        "a view comes back": (lambda x, y: ((x * y).view(-1), y.t()), (x, y), 1),
        "an empty result": (lambda x, y: x[:0] * y[:0], (x, y), 0),
    }


def add_in_place(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.mul_(2).add_(y)
    return x


TURNED_SIZES = [(3, 5), (33, 31), (32, 64), (36, 100), (100, 257), (1, 70), (70, 1)]
MANY_TURNED = (1444, 1456)  # enough for the large tiles, which it does not fill
REDUCED_SIZES = [(7, 33), (2000, 65), (3, 5000), (1, 300_000), (40_000, 3), (4096, 64), (2, 9000)]


def turned(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    z = x.t() * 2 + y
    return z, (x * 3).t().contiguous(), z.t().contiguous() - x


def reductions(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * 2
    return y.sum(0), y.sum(1), y.amax(0), y.amin(1), y.sum(), torch.softmax(y, 1), y.argmax(1)


def masked(x: torch.Tensor) -> torch.Tensor:
    y = x * 0.5
    y[x > 1] = x[x > 1] * x[x > 1]
    y[y < -0.5] = 0
    return y
