"""Elementary functions of half-precision tensors, for every one of their 65536 values; roundings to bfloat16 in between
ops are eager's, bit for bit."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fastjit import fastjit

EVERY = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
HALVES = (torch.bfloat16, torch.float16)
FUNCTIONS = {
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": torch.log,
    "log1p": torch.log1p,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "silu": F.silu,
}


def second_call(fn, *args: Tensor) -> Tensor:
    jitted = fastjit(fn)
    jitted(*args)
    return jitted(*args)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_value(name: str, dtype: torch.dtype) -> None:
    """Within 0.501 units of the last place; NaN, infinity and the signs of zeros as in float64."""
    function, x = FUNCTIONS[name], EVERY.view(dtype)
    got, want = second_call(lambda x: function(x), x).double(), function(x.double())
    if name == "silu":  # eager's formula, whose exp(-x) is a float's
        want = x.double() / (1 + torch.exp(-x.float()).double())
    assert torch.equal(got.isnan(), want.isnan())
    info = torch.finfo(dtype)
    spacing = info.eps * torch.exp2(torch.frexp(want.abs().clamp(min=info.smallest_normal)).exponent - 1.0)
    overflow = want.abs() >= info.max * (1 + info.eps / 4)
    assert torch.equal(got[overflow], want[overflow].sign() * torch.inf)
    rest = ~(want.isnan() | overflow)
    assert float(((got - want).abs() / spacing)[rest].max()) <= 0.501
    zero = (got == 0) & rest
    assert torch.equal(got[zero].signbit(), want[zero].signbit())


def hard_floats() -> Tensor:
    """Every upper half with the lower halves at which rounding to bfloat16 turns; all NaNs among them."""
    low = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=torch.int64)
    high = torch.arange(1 << 16, dtype=torch.int64) << 16
    bits = (high[:, None] | low).flatten()
    return torch.where(bits >= 1 << 31, bits - (1 << 32), bits).to(torch.int32).view(torch.float32)


CHAINS = {
    "load": lambda x, y: x.to(torch.bfloat16),
    "load and back": lambda x, y: x.to(torch.bfloat16).float(),
    "sum": lambda x, y: (x.to(torch.bfloat16) + y).float(),
    "product": lambda x, y: (x.to(torch.bfloat16) * y).float() + 1,
    "power of two": lambda x, y: (x.to(torch.bfloat16) * 2 + y).float(),
    "half": lambda x, y: (x.to(torch.bfloat16) * 0.5 + y).float(),
    "sign": lambda x, y: ((-x.to(torch.bfloat16)).abs() - y).to(torch.bfloat16),
    "clamp": lambda x, y: torch.clamp(x.to(torch.bfloat16), -1e30, 1e30) - y,
    "select": lambda x, y: torch.where(x > 0, x, -1.5 * x).to(torch.bfloat16) + y,
    "float sum": lambda x, y: (x + 1e-30).to(torch.bfloat16).float() * y,
}


@pytest.mark.parametrize("name", CHAINS)
def test_roundings_are_eagers(name: str) -> None:
    x = hard_floats()
    y = EVERY.view(torch.bfloat16)[torch.randperm(x.numel(), generator=torch.Generator().manual_seed(5)) % (1 << 16)]
    got, want = second_call(CHAINS[name], x, y), CHAINS[name](x, y)
    assert torch.equal(got.isnan(), want.isnan())
    number = ~want.isnan()
    kind = torch.int16 if want.dtype == torch.bfloat16 else torch.int32
    assert torch.equal(got.view(kind)[number], want.view(kind)[number])
