"""Floats that Python computes of sizes and gives to operators: each call of a program takes those of its own sizes.

Each case is played at nine sizes, twice each, against eager. Where an operator takes the float as the program runs, the
calls from the second size on are hits; where it is a constant of the operator, each size is a recording.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fastjit import fastjit
from helpers import assert_same, hits_of

SIZES = (33, 35, 40, 48, 17, 64, 50, 33, 100)

# The float as it stands in the call: a quotient, a quotient of a rounded one, and what follows from them.
FLOATS: dict[str, Callable[[int], float]] = {
    "n / 100": lambda n: n / 100,
    "n // 16 / 10": lambda n: n // 16 / 10,
    "-(-n // 16) / 10": lambda n: -(-n // 16) / 10,
    "n % 16 / 10": lambda n: n % 16 / 10,
    "max(n, 40) / 200": lambda n: max(n, 40) / 200,
    "min(n // 16, 2) / 10": lambda n: min(n // 16, 2) / 10,
    "sqrt(n) / 20": lambda n: math.sqrt(n) / 20,
    "(n // 16) ** 0.5": lambda n: (n // 16) ** 0.5,
}
CONSTANTS: dict[str, Callable[[int], float]] = {  # of which the program does not follow how they come about
    "float(n)": float,
    "float(n // 16)": lambda n: float(n // 16),
    "round(n / 3)": lambda n: round(n / 3),
    "round(n // 16 / 3, 2)": lambda n: round(n // 16 / 3, 2),
    "log(n)": math.log,
    "(n >> 4) / 10": lambda n: (n >> 4) / 10,
}

# Operators that kernels compute, or that torch runs with the float of the call.
TAKEN: dict[str, Callable[[Tensor, float], Tensor]] = {
    "leaky_relu": F.leaky_relu,
    "elu": lambda x, v: F.elu(x, alpha=v),
    "clamp": lambda x, v: torch.clamp(x, max=v),
    "clamp both": lambda x, v: torch.clamp(x, -v, v),
    "softplus": lambda x, v: F.softplus(x, beta=v),
    "hardshrink": F.hardshrink,
    "threshold": lambda x, v: F.threshold(x, v, 3.0),
    "mul": lambda x, v: x * v,
    "add alpha": lambda x, v: torch.add(x, x, alpha=v),
    "addcmul": lambda x, v: torch.addcmul(x, x, x, value=v),
    "addcdiv_": lambda x, v: x.clone().addcdiv_(x, x.abs() + 1, value=v),
    "lerp": lambda x, v: torch.lerp(x, x + 1, v),
    "full": lambda x, v: torch.full((3,), v),
    "full_like": torch.full_like,
    "masked_fill": lambda x, v: x.masked_fill(x > 0, v),
    "where": lambda x, v: torch.where(x > 0, x, v),
    "pad": lambda x, v: F.pad(x, (1, 1), value=v),
    "fill_": lambda x, v: x.clone().fill_(v),
    "add_": lambda x, v: x.clone().add_(v),
    "nan_to_num": lambda x, v: torch.nan_to_num(x * math.nan, nan=v),
    "half": lambda x, v: F.elu(x.half(), v),
}
HELD: dict[str, Callable[[Tensor, float], Tensor]] = {
    "layer_norm": lambda x, v: F.layer_norm(x, (8,), eps=v + 0.1),
    "batch_norm": lambda x, v: F.batch_norm(x, None, None, training=True, eps=v + 0.1),
    "group_norm": lambda x, v: F.group_norm(x, 2, eps=v + 0.1),
    "celu": lambda x, v: F.celu(x, v + 0.1),
    "hardtanh": lambda x, v: F.hardtanh(x, -v - 0.1, v),
    "quantile": lambda x, v: torch.quantile(x, v / 20),
    "norm": lambda x, v: x.norm(v + 1),
    "arange": lambda x, v: torch.arange(0, 10 * v + 1, 0.7),
    "linspace": lambda x, v: torch.linspace(0, v, 5),
    "addmm": lambda x, v: torch.addmm(x, x @ x.T, x, beta=v, alpha=v / 2),
    "cdist": lambda x, v: torch.cdist(x, x, p=v + 0.5),
    "huber_loss": lambda x, v: F.huber_loss(x, x + 1, delta=v + 0.1),
    "smooth_l1_loss": lambda x, v: F.smooth_l1_loss(x, x + 1, beta=v + 0.1),
    "label_smoothing": lambda x, v: F.cross_entropy(x, torch.zeros(len(x), dtype=torch.long), label_smoothing=v / 10),
    "attention": lambda x, v: F.scaled_dot_product_attention(x[None], x[None], x[None], scale=v),
    "tensor": lambda x, v: x * torch.tensor([v, 1.0]).sum(),
    "interpolate": lambda x, v: F.interpolate(x[None, None], scale_factor=(v + 1, 2.0)),
    "_foreach_mul": lambda x, v: torch._foreach_mul([x, x + 1], [v, 2.0])[0],
    "clip": lambda x, v: x.clip(-v - 0.01, v),
    "std": lambda x, v: x.std(correction=v),
}


def play(f: Callable[[Tensor], Tensor], *, grad: bool = False) -> int:
    """How many calls were hits. The calls at the first size are behind all others too, where they are hits again."""
    fast = fastjit(f)
    for n in SIZES:
        for _ in range(2):
            x = torch.randn(n, 8, requires_grad=grad)
            with torch.set_grad_enabled(grad):
                got, want = fast(x), f(x)
                assert_same(got, want)
                if grad:
                    assert_same(*(torch.autograd.grad(y.square().sum(), x)[0] for y in (got, want)))
    return hits_of(fast, 2 * len(SIZES))


@pytest.mark.parametrize("value", FLOATS)
def test_floats_that_programs_compute(value):
    number = FLOATS[value]
    assert play(lambda x: F.leaky_relu(x, number(x.shape[0]))) >= 2 * len(SIZES) - 3


@pytest.mark.parametrize("value", CONSTANTS)
def test_floats_that_fix_the_size(value):
    number = CONSTANTS[value]
    assert play(lambda x: F.leaky_relu(x, number(x.shape[0]))) >= len(SIZES)


@pytest.mark.parametrize("op", TAKEN)
def test_operators_that_take_floats_of_the_call(op):
    run = TAKEN[op]
    assert play(lambda x: run(x, x.shape[0] // 16 / 10)) >= 2 * len(SIZES) - 3


@pytest.mark.parametrize("op", HELD)
def test_operators_that_hold_floats_fix_the_size(op):
    run = HELD[op]
    assert play(lambda x: run(x, x.shape[0] / 100)) >= len(SIZES)


@pytest.mark.parametrize("value", FLOATS)
def test_floats_in_calls_with_gradients(value):
    number = FLOATS[value]
    assert play(lambda x: F.leaky_relu(x, number(x.shape[0])), grad=True) >= len(SIZES)
