"""Values at the edges: zeros of either sign, and what overflows on the way; versions of results.

As eager, or what docs/limits.md says by name: those cases are here too, so that the page stays true.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fastjit import fastjit
from lowering_tools import FLOATS

# Elements in two of the vectors that eager's arithmetic takes at a time.
UNIT = {torch.float32: 16, torch.float64: 8, torch.bfloat16: 32, torch.float16: 32}


def hit(f: Callable[..., Any], *args: Any) -> Any:
    """The result of a hit of kernels alone."""
    fast = fastjit(f)
    fast(*args)
    got = fast(*args)
    stats = fast.stats()
    assert (stats.hits, stats.fallbacks) == (1, {}) and stats.kernels > 0
    return got


def signs(t: torch.Tensor) -> str:
    return "".join("-" if negative else "+" for negative in torch.signbit(t).flatten().tolist())


def spread_out(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x, x], -1)[..., 0]


OPERATORS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    name: getattr(torch, name) for name in ("maximum", "minimum", "fmax", "fmin")
} | {
    "clamp from below": lambda x, y: x.clamp(min=y),
    "clamp from above": lambda x, y: x.clamp(max=y),
    "clamp_min": torch.clamp_min,
    "clamp_max": torch.clamp_max,
    "clamp from both sides": lambda x, y: x.clamp(y, y + 1),
    "clamp to one value": lambda x, y: x.clamp(y, y),
}


def pairs(dtype: torch.dtype) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Zeros that meet in each of eager's loops: all elements in vectors, or none."""

    def zeros(*sizes: int) -> torch.Tensor:
        count = math.prod(sizes)
        return torch.tensor([-0.0, 0.0, 0.0, -0.0, -0.0])[torch.arange(count) % 5].view(sizes).to(dtype)

    unit, found = UNIT[dtype], []
    for n in (1, 3, unit - 1, unit, 4 * unit):
        x = zeros(n)
        found += [(x, -x), (x, x.roll(1)), (x, -x[:1]), (x, -x[0]), (-x[0], x), (spread_out(x), -x)]
    x, y, tall = zeros(3, 2 * unit), -zeros(3, 2 * unit), zeros(2 * unit, 3)
    found += [(x, y), (x, y[:1]), (x, y[:, :1]), (x[:, 1:4], y[:, 1:4]), (tall.t(), tall.t().neg()), (tall.t(), y)]
    found += [(spread_out(x), spread_out(y)), (x[:, None, :unit], y[None, :, :unit]), (x.t(), y.t())]
    return found


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", OPERATORS)
def test_of_two_zeros_the_one_that_eager_takes(name, dtype):
    op = OPERATORS[name]
    for x, y in pairs(dtype):
        for a, b in ((x, y), (y, x)):
            assert signs(hit(op, a, b)) == signs(op(a, b)), (a.shape, a.stride(), b.shape, b.stride())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", OPERATORS)
def test_a_full_tensor_of_one_number_is_an_operand_as_any_other(name, dtype):
    op = OPERATORS[name]
    made = [torch.zeros_like, lambda t: torch.full_like(t, -0.0), lambda t: t * 0, lambda t: t.new_zeros(())]
    for n in (1, 3, 2 * UNIT[dtype]):
        for make in made:
            for x in (torch.zeros(n, dtype=dtype), torch.full((n,), -0.0, dtype=dtype)):
                for f in (lambda t, make=make: op(t, make(t)), lambda t, make=make: op(make(t), t)):
                    assert signs(hit(f, x)) == signs(f(x))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_zeros_of_softshrink(dtype):
    unit = UNIT[dtype]
    x = torch.tensor([-0.3, 0.3, -0.0, 0.0, 2.0, -2.0, math.nan])[torch.arange(4 * unit) % 7].to(dtype)
    for y in (x[:1], x[:3], x[: unit - 1], x[:unit], x, x[::2], spread_out(x), x.view(-1, 4).t(), x.view(-1, 4)[:, :3]):
        got, want = hit(F.softshrink, y), F.softshrink(y)
        assert torch.equal(torch.signbit(got) & ~got.isnan(), torch.signbit(want) & ~want.isnan()), y.stride()
        torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_the_last_elements_take_the_first_zero_in_eager_and_the_second_in_a_hit(name):
    """limits.md: rows of more than two vectors whose length is no multiple of them."""
    op, x = getattr(torch, name), torch.full((20,), -0.0)
    assert signs(op(x, -x)) == "+" * 16 + "-" * 4
    assert signs(hit(op, x, -x)) == "+" * 20


# What limits.md names: the call, eager's result (on some CPUs: oneDNN's gelu is a hit's without AVX-512), a hit's.
LISTED = {
    "gelu of more than half of the largest number": (F.gelu, torch.full((20,), 2e38), math.inf, 2e38),
    "gelu of an infinity": (F.gelu, torch.full((20,), math.inf), math.nan, math.inf),
    "var of a whole tensor": (torch.var, torch.linspace(-1, 1, 100) * 3e38, math.nan, math.inf),
    "std of a whole tensor": (torch.std, torch.linspace(0.2, 1, 5) * 3e38, math.inf, 9.4868334e37),
    "var of f64": (torch.var, torch.linspace(-1, 1, 100).double() * 1.7e308, math.inf, math.nan),
    "mean": (torch.mean, torch.linspace(-1, 1, 100) * 3e38, math.nan, 0.0),
}


@pytest.mark.parametrize("name", LISTED)
def test_overflows_that_limits_md_names(name):
    f, x, eager, fast = LISTED[name]
    x = x.clone()
    wanted = torch.tensor([eager, fast], dtype=torch.float64)
    got = torch.stack([f(x).flatten()[0], hit(f, x).flatten()[0]]).double()
    if f is F.gelu and torch.equal(got, got[1:].expand(2)):
        wanted = wanted[1:].expand(2)
    torch.testing.assert_close(got, wanted, equal_nan=True, rtol=1e-6, atol=0)


@pytest.mark.parametrize("f", [torch.var, torch.std, lambda x: x.var(0), lambda x: torch.std_mean(x, 0)[0]])
@pytest.mark.parametrize("scale", [1e20, 1e30])
def test_variances_whose_squares_overflow_are_eagers(f, scale):
    x = torch.linspace(-1, 1, 100) * scale
    torch.testing.assert_close(hit(f, x), f(x), rtol=1e-5, atol=0)


@pytest.mark.parametrize("value", [2e38, 3.4e38, -2e38, math.inf, -math.inf])
def test_gelu_of_one_large_number_is_eagers(value):
    x = torch.tensor([value])
    torch.testing.assert_close(hit(F.gelu, x), F.gelu(x), equal_nan=True)


def versions(tree: Any) -> list[int]:
    return [t._version for t in (tree if isinstance(tree, (list, tuple)) else [tree])]


def written(x: torch.Tensor) -> Any:
    y = x * 2
    y.add_(1)
    y.mul_(3)
    return y, y[1:], y.detach(), x + 1


LINEAR = torch.nn.Linear(3, 3)
CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "linear": lambda x: LINEAR(x),
    "matmul and more": lambda x: torch.relu(x @ x.t()) + 1,
    "products": lambda x: (x @ x, torch.addmm(x, x, x), torch.bmm(x[None], x[None])),
    "written": written,
    "a view of one that was written": lambda x: x.clone().zero_()[0],
    "sort": lambda x: tuple(torch.sort(x * 2)),
    "out=": lambda x: torch.mul(x, 2, out=torch.empty(3, 3)),
    "out= of a product": lambda x: torch.mm(x, x, out=torch.empty(3, 3)),
    "scatter": lambda x: torch.zeros(3, 3).scatter_(0, (x * 2).long(), 1.0),
    "random": lambda x: (torch.rand(3), torch.empty(3).normal_(), F.dropout(x, 0.5)),
    "cat and stack": lambda x: (torch.cat([x, x]), torch.stack([x, x])),
    "a written copy": lambda x: x.clone().copy_(x * 2).exp_(),
    "pinned": lambda x: x.clone().as_strided_((2, 2), (1, 1)).add_(1),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("pure", [False, True])
@pytest.mark.filterwarnings("ignore::fastjit.FastJITWarning")
def test_versions_of_results_are_eagers(name, pure):
    f, x = CALLS[name], torch.rand(3, 3)
    fast = (
        fastjit(f, pure=pure) if not isinstance(f, torch.nn.Module) or not pure else fastjit(lambda x: f(x), pure=True)
    )
    for hits in (0, 1, 2):
        assert versions(fast(x)) == versions(f(x))
        assert fast.stats().hits == hits or fast.stats().fallbacks
    assert not fast.stats().fallbacks or name == "pinned"


def test_a_write_after_the_hit_counts_from_eagers_version():
    f = fastjit(lambda x: [y := x @ x, y[0]])
    f(torch.rand(3, 3))
    base, view = f(torch.rand(3, 3))
    base.add_(1)
    view.mul_(2)
    assert (base._version, view._version, f.stats().hits) == (2, 2, 1)
