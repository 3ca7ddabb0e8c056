"""A tensor whose slices along a short dim are all written: what becomes of it, and the kernels that read it."""

from __future__ import annotations

import pytest
import torch

from fastjit import fastjit
from helpers import assert_same


def normalised(image, mean, scale):
    """The colours in reverse order, then their mean and scale."""
    swapped = image.clone()
    swapped[..., 0] = image[..., 2]
    swapped[..., 2] = image[..., 0]
    return (swapped - mean) * scale


def through_a_temporary(image, mean, scale):
    x = image.clone()
    first = x[..., 0].clone()
    x[..., 0] = x[..., 2]
    x[..., 2] = first
    return x * scale + mean


def grey(image, mean, scale):
    x = torch.empty_like(image)
    for channel in range(3):
        x[..., channel] = image[..., 1]
    return (x - mean) * scale


def part_of_a_wider_one(image, mean, scale):
    wide = torch.cat((image, image + 1), dim=-1)
    x = torch.empty_like(image)
    for channel in range(3):
        x[..., channel] = wide[..., 2 * channel + 1]
    return (x - mean) * scale


def rotated(image, mean, scale):
    """No map of one tensor."""
    x = torch.empty_like(image)
    for channel in range(3):
        x[..., channel] = image[..., (channel + 1) % 3]
    return (x - mean) * scale


def two_of_three(image, mean, scale):
    x = torch.zeros_like(image)
    x[..., 0] = image[..., 2]
    x[..., 1] = image[..., 1]
    return x * scale - mean


def written_twice(image, mean, scale):
    x = image.clone()
    x[..., 0] = mean[0]
    x[..., 0] = image[..., 2]
    x[..., 2] = image[..., 0]
    x[..., 2] = image[..., 0]
    return x * scale


def read_in_between(image, mean, scale):
    x = image.clone()
    x[..., 0] = image[..., 2]
    between = x * mean
    x[..., 2] = image[..., 0]
    return x * scale, between


def written_over_in_part(image, mean, scale):
    x = image.clone()
    x[..., 0] = image[..., 2]
    x[..., 2] = image[..., 0]
    x[1:2, 3:] = 5
    return x - mean


def source_changes_later(image, mean, scale):
    source = image * 2
    x = source.clone()
    x[..., 0] = source[..., 2]
    x[..., 2] = source[..., 0]
    source[..., 1] = 7
    return x * scale, source


def rows_and_colours(image, mean, scale):
    x = image.clone()
    x[..., 0] = image[..., 2]
    x[0] = image[-1]
    x[..., 2] = image[..., 0]
    return x * scale


def result_itself(image, mean, scale):
    x = image.clone()
    x[..., 0] = image[..., 2]
    x[..., 2] = image[..., 0]
    return x


VIEWS = [normalised, through_a_temporary, grey, part_of_a_wider_one, written_twice, result_itself]
OTHERS = [rotated, two_of_three, read_in_between, written_over_in_part, source_changes_later, rows_and_colours]


def case(height, width, dtype=torch.float32):
    image = (torch.rand(height, width, 3) * 255).to(dtype)
    return image, torch.tensor([103.5, 116.25, 123.75]).to(dtype), torch.tensor([2.0, 3.0, 5.0]).to(dtype)


def runs(fn, *cases):
    fast = fastjit(fn)
    for given in cases:
        for _ in range(2):
            mine = tuple(x.clone() for x in given)
            assert_same(fast(*mine), fn(*given), exact=True)
            assert_same(mine, given, exact=True)
    stats = fast.stats()
    assert stats.hits >= len(cases) and dict(stats.fallbacks) == {}
    return fast


@pytest.mark.parametrize("fn", VIEWS, ids=lambda f: f.__name__)
def test_slices_of_one_tensor_are_a_view(fn):
    fast = runs(fn, case(9, 13))
    assert "= update " not in fast.inspect("passes")[-1].graph, fast.inspect("passes")[-1].graph


@pytest.mark.parametrize("fn", OTHERS, ids=lambda f: f.__name__)
def test_other_writes_stay_right(fn):
    for size in ((9, 13), (1, 3), (40, 31)):
        runs(fn, case(*size))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.float16])
def test_other_types(dtype):
    for fn in (normalised, grey):
        runs(fn, case(7, 23, dtype))


@pytest.mark.parametrize("width", [1, 5, 15, 16, 17, 31, 32, 33, 47, 48, 64, 100])
def test_any_size(width):
    runs(normalised, case(1, width))
    runs(normalised, case(3, width))


def test_normalisation_is_one_kernel_of_whole_vectors():
    fast = runs(normalised, case(40, 50))
    assert fast.stats().kernels == 1, fast.inspect("plan")
    assert "[1p]" in fast.inspect("plan") and "[-p]" in fast.inspect("plan"), fast.inspect("plan")


def test_other_dims():
    def first(a, b):
        x = a.clone()
        x[0], x[3] = a[3], a[0]
        x[1], x[2] = a[2], a[1]
        return x * b

    def middle(a, b):
        x = torch.empty_like(a)
        x[:, 0] = b[:, 1]
        x[:, 1] = b[:, 0]
        return x + a

    for fn, shape in (
        (first, (4, 50, 3)),
        (first, (4, 7)),
        (middle, (30, 2, 5)),
        (middle, (64, 2)),
        (middle, (5, 2, 9)),
    ):
        assert "= update " not in runs(fn, (torch.randn(shape), torch.randn(shape))).inspect("passes")[-1].graph


def test_an_argument_is_written_where_it_lies():
    def fn(x):
        first = x[..., 0].clone()
        x[..., 0] = x[..., 2]
        x[..., 2] = first
        return x.sum()

    fast = fastjit(fn)
    for _ in range(3):
        a = torch.rand(5, 40, 3)
        b, c = a.clone(), a.clone()
        assert_same(fast(b), fn(c))
        assert torch.equal(b, c)
    assert fast.stats().hits == 2


@pytest.mark.parametrize("rows", [2, 3, 4])
def test_short_inner_dims(rows):
    """Operands of that many columns, and others for each column or each row."""

    def fn(a, b, c):
        return a * b + c, (a - b).flip(1), (a + b).t().contiguous()

    for length in (31, 32, 50, 1000):
        runs(fn, (torch.randn(length, rows), torch.randn(rows), torch.randn(rows, length).t()))


def test_in_place_in_short_rows():
    def fn(a, b):
        a *= b
        return a + 1

    fast = fastjit(fn)
    for _ in range(3):
        a, b = torch.randn(77, 3), torch.randn(3)
        mine = a.clone()
        assert_same((fast(mine, b), mine), (fn(a, b), a), exact=True)
    assert fast.stats().hits == 2
