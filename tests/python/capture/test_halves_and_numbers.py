"""Numbers beside tensors of 16-bit floats, for every one of their 65,536 values: eager's bits, which differ between
releases of torch (src/capture/ops/torch_release.h)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fastjit import fastjit

EVERY = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
HALVES = (torch.bfloat16, torch.float16)
# The last three are not to be had in either type, or only just.
NUMBERS = (0.5, 3, 0.1, 1 / 3, -2.7, 1e-3, 65519.0, 1e5, 1e-7)
BOUNDS = (0.0, 0.5, 3, 0.1, 1 / 3, 2.7, 1e-3, 1e-7)
OPERATORS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "add": lambda x, n: x + n,
    "add to a number": lambda x, n: n + x,
    "add with alpha": lambda x, n: torch.add(x, x.flip(0), alpha=n),
    "add a number with alpha": lambda x, n: torch.add(x, n, alpha=0.3),
    "add a tensor of no dimension": lambda x, n: x + torch.tensor(n),
    "sub": lambda x, n: x - n,
    "sub from a number": lambda x, n: n - x,
    "sub with alpha": lambda x, n: torch.sub(x, x.flip(0), alpha=n),
    "rsub with alpha": lambda x, n: torch.rsub(x, n, alpha=0.3),
    "mul": lambda x, n: x * n,
    "mul a number": lambda x, n: n * x,
    "mul by a tensor of no dimension": lambda x, n: x * torch.tensor(n),
    "mul a tensor of no dimension": lambda x, n: torch.tensor(n) * x,
    "mul in place": lambda x, n: x.clone().mul_(n),
    "div": lambda x, n: x / n,
    "div a number": lambda x, n: n / x,
    "div by a tensor of no dimension": lambda x, n: x / torch.tensor(n),
    "div down": lambda x, n: torch.div(x, n, rounding_mode="floor"),
    "div a number down": lambda x, n: n // x,
    "div to zero": lambda x, n: torch.div(x, n, rounding_mode="trunc"),
    # Of roots: in eager the quotients of the largest values overflow.
    "remainder": lambda x, n: x.abs().sqrt() % n,
    "fmod": lambda x, n: torch.fmod(x.abs().sqrt(), n),
    "less": lambda x, n: x < n,
    "less or equal": lambda x, n: x <= n,
    "equal": lambda x, n: x == n,
    "greater": lambda x, n: x > n,
    "maximum": lambda x, n: torch.maximum(x, torch.tensor(n)),
    "lerp": lambda x, n: torch.lerp(x, x.flip(0), n),
    "addcmul": lambda x, n: torch.addcmul(x, x, x.flip(0), value=n),
    "addcdiv": lambda x, n: torch.addcdiv(x, x, x.flip(0), value=n),
    "where": lambda x, n: torch.where(x > 0, x, n),
    "masked_fill": lambda x, n: x.masked_fill(x > 0, n),
    "clamp_min": lambda x, n: torch.clamp_min(x, n),
    "leaky_relu": lambda x, n: F.leaky_relu(x, n),
    "threshold": lambda x, n: F.threshold(x, n, n),
    "hardshrink": lambda x, n: F.hardshrink(x, n),
    "copysign": lambda x, n: torch.copysign(x, n),
}
BOUNDED: dict[str, Callable[[Tensor, float], Tensor]] = {
    "clamp": lambda x, n: torch.clamp(x, -n, n),
    "hardtanh": lambda x, n: F.hardtanh(x, -n, n),
    "softshrink": lambda x, n: F.softshrink(x, n),
    "smooth_l1_loss": lambda x, n: F.smooth_l1_loss(x, x.flip(0), reduction="none", beta=n),
    "huber_loss": lambda x, n: F.huber_loss(x, x.flip(0), reduction="none", delta=n + 1),
}


def check(function: Callable[[Tensor, float], Tensor], number: float, dtype: torch.dtype) -> None:
    x = EVERY.view(dtype)
    try:
        want = function(x, number)
    except RuntimeError:
        return  # no number for this operator and type
    # A number written in the code is a constant; one of the caller may be an argument of the kernel.
    for call in (lambda x, _: function(x, number), function):
        jitted = fastjit(call)
        jitted(x, number)
        got = jitted(x, number)
        fits = abs(number) <= torch.finfo(dtype).max  # a checked conversion raises on others, so eager takes them
        assert jitted.stats().hits == 1 or not fits, number
        assert got.dtype == want.dtype and torch.equal(got.isnan(), want.isnan()), number
        kind = torch.int16 if want.dtype == dtype else want.dtype
        known = ~want.isnan()
        wrong = (got.view(kind) != want.view(kind)) & known
        assert not wrong.any(), (number, int(wrong.sum()), x[wrong][0], got[wrong][0], want[wrong][0])


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", OPERATORS)
def test_a_number_beside_every_value(name: str, dtype: torch.dtype) -> None:
    for number in NUMBERS:
        check(OPERATORS[name], number, dtype)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", BOUNDED)
def test_a_bound_beside_every_value(name: str, dtype: torch.dtype) -> None:
    for number in BOUNDS:
        check(BOUNDED[name], number, dtype)
