"""Operators that write their result to `out`: programs where that has its size and type, else torch's own calls."""

from __future__ import annotations

import pytest
import torch

from fastjit import _C, fastjit
from helpers import assert_same

OPS = {f.__name__: f for f in (torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum)}


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


def held_to_eager(f, *make, left: int) -> None:
    """Three calls with the same arguments each; and how many calls of torch's the program has."""
    fast = fastjit(f)
    for _ in range(3):
        mine, theirs = [m() for m in make], [m() for m in make]
        results = fast(*mine), f(*theirs)
        assert_same(results[0], results[1], exact=True)
        assert_same(mine, theirs, exact=True)
        assert [a._version for a in mine] == [a._version for a in theirs]
        assert [a is results[0] for a in mine] == [a is results[1] for a in theirs]
    assert fast.stats().hits == 2 and fast.stats().fallbacks == {}, fast.stats()
    assert len(_C.capture_debug(f, *[m() for m in make])["calls"]) == left


def values(*size: int, dtype: torch.dtype = torch.float32):
    generator = torch.Generator().manual_seed(len(size))
    return lambda: (torch.randn(size, generator=generator.manual_seed(sum(size))) * 4).to(dtype)


@pytest.mark.parametrize("name", OPS)
def test_a_tensor_that_the_caller_has(name):
    def f(x, y, out):
        OPS[name](x, y, out=out)
        return out * 2

    held_to_eager(f, values(5, 4), values(4), values(5, 4), left=0)
    held_to_eager(f, values(5, 4, dtype=torch.float64), values(4), values(5, 4, dtype=torch.float64), left=0)


@pytest.mark.parametrize("name", OPS)
def test_an_operand_that_is_out_too(name):
    def f(x, y):
        return OPS[name](x.mul_(0.5), y.abs().add_(1e-3), out=x)

    held_to_eager(f, values(7), values(7), left=0)


def test_a_new_tensor_and_a_factor():
    def f(x, y):
        out = torch.empty_like(x)
        torch.add(x, y, alpha=0.25, out=out)
        return torch.sub(out, y, alpha=3, out=torch.empty(6))

    held_to_eager(f, values(6), values(6), left=2)  # torch.empty_like and torch.empty, of which nothing is read


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(5, dtype=torch.float64),  # of another type than the result
        lambda: torch.zeros(0),  # torch gives it another size
        lambda: torch.zeros(10)[::2],
    ],
    ids=["another type", "another size", "strided"],
)
def test_other_places_for_the_result(make):
    def f(x, y):
        out = make()
        torch.add(x, y, out=out)
        return out + 1

    fast = fastjit(f)
    for _ in range(3):
        assert_same(fast(values(5)(), values(5)()), f(values(5)(), values(5)()), exact=True)


def test_places_that_overlap():
    def f(x):
        torch.add(x[:-1], 1, out=x[1:].clone())
        torch.mul(x[1:], x[1:], out=x[1:])
        return x

    fast = fastjit(f)
    for _ in range(3):
        x, y = values(9)(), values(9)()
        assert_same(fast(x), f(y), exact=True)
        assert_same(x, y, exact=True)


def test_any_size():
    def f(x, y, out):
        torch.maximum(x, y, out=out)
        return out + 1

    fast = fastjit(f)
    for n in (20, 25, 36, 49, 133):
        x, y, out, other = values(n)(), values(n)() * -1, torch.zeros(n), torch.zeros(n)
        assert_same(fast(x, y, out), f(x, y, other), exact=True)
        assert_same(out, other, exact=True)
    assert fast.stats().hits == 3, fast.stats()
    with pytest.warns(UserWarning, match="resized"):  # to what torch gives
        assert fast(torch.ones(4), torch.ones(4), torch.zeros(3)).shape == (4,)
