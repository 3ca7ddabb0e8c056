"""Running error bounds: they hold for a right kernel, refuse a wrong one, and none is made up where steps decide."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from error_bounds import Reference, error


def wrong(op, args, got):
    return Reference(op, args, {}).wrong(0, got, op(*args))


def test_a_sum_that_cancels_may_be_off_by_what_its_terms_may_round():
    x = torch.randn(1000) * 100
    x -= x.mean()
    reordered = x.flip(0).cumsum(0)[-1]
    assert error(reordered, x.sum(), x.dtype) > 2
    assert wrong(torch.sum, (x,), reordered) == ""
    bound = (math.log2(1000) + 8) * torch.finfo(x.dtype).eps * x.double().abs().sum().item()
    assert wrong(torch.sum, (x,), x.sum() + 2 * bound) != ""


def test_the_unstable_formula_of_a_variance_is_refused():
    x = torch.randn(500) + 1000
    naive = ((x * x).mean() - x.mean() ** 2) * (500 / 499)
    assert wrong(torch.var, (x,), naive) != ""
    mean = x.flip(0).mean()
    assert wrong(torch.var, (x,), ((x - mean) ** 2).sum() / 499) == ""


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("op", [torch.exp, torch.tanh, F.gelu, F.silu, torch.logsumexp, torch.softmax, F.softplus])
def test_a_few_units_more_are_refused(op, dtype):
    """60 for the sums of four terms in f32 and f64, whose bound is 10 eps sum|x| each; in halves one rounding."""
    sums = op in (torch.logsumexp, torch.softmax)
    x = torch.rand(4, 64).to(dtype) + 1
    args = (x, 0) if sums else (x,)
    right = op(*args)
    far = 60 if sums and dtype.itemsize > 2 else 12
    assert wrong(op, args, right) == ""
    assert wrong(op, args, right + right * torch.finfo(dtype).eps * far) != ""


def test_nan_and_infinities_have_no_bound():
    x = torch.tensor([0.5, 2.0])
    for bad in (math.nan, math.inf, -math.inf):
        assert wrong(torch.exp, (x,), torch.exp(x).index_fill(0, torch.tensor([1]), bad)) != ""
    big = torch.tensor([100.0])
    assert wrong(torch.exp, (big,), torch.exp(big)) == ""
    assert wrong(torch.exp, (big,), torch.tensor([3e38])) != ""


def test_there_is_no_bound_where_a_rounding_decides():
    """The product is within a unit of 3, on which the step depends."""
    x, y = torch.tensor([1.0000001]), torch.tensor([2.9999998])

    def step(x, y):
        return torch.floor(x * y)

    reference = Reference(step, (x, y), {})
    assert reference.bound(torch.float32) is None
    assert reference.wrong(0, step(x, y) + 1, step(x, y)) != ""
