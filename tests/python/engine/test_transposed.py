"""Operands whose lanes walk across their rows go through tiles: same as eager, in one kernel."""

import pytest
import torch

from helpers import check

SIDES = [1, 3, 7, 15, 16, 17, 35, 64, 69, 130]


@pytest.mark.parametrize("rows", SIDES)
def test_sums_and_copies_of_odd_sizes(rows):
    for columns in (5, 16, 33, 64, 131):
        x, y = torch.randn(rows, columns), torch.randn(columns, rows)
        check(lambda x, y: x.t() * 2 + y, x, y, kernels=1, exact=True)
        check(lambda x, y: (x * y.t() + 1).t().contiguous(), x, y, kernels=1, exact=True)


def test_the_plan_names_the_tile():
    x = torch.randn(96, 80)
    fast = check(lambda x, y: x.t() * 2 + y, x, torch.randn(80, 96), kernels=1, exact=True)
    assert " tile d0 of 64" in fast.inspect("plan")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int64, torch.bool])
def test_element_types(dtype):
    x, y = (torch.randn(70, 37) * 3).to(dtype), (torch.randn(37, 70) * 3).to(dtype)
    check(lambda x, y: x.t() | y if dtype == torch.bool else x.t() + y, x, y, exact=True)
    check(lambda x, y: x.t().float() * 2 + y, x, y, exact=True)


def test_three_dims_and_offsets():
    x = torch.randn(5, 35, 19)
    check(lambda x: (x * 2).permute(2, 0, 1).contiguous(), x, exact=True)
    check(lambda x, y: x.permute(2, 0, 1) + y, x, torch.randn(19, 5, 35), exact=True)
    wide = torch.randn(70, 90)
    check(lambda x, y: x[3:, 1:71].t() - y[:, 2:69], wide, torch.randn(70, 80), exact=True)


@pytest.mark.parametrize("channels", [3, 8, 33])
def test_image_layouts(channels):
    plain, last = torch.randn(2, channels, 9, 11), torch.randn(2, 9, 11, channels)
    check(lambda a, b: a * 2 + b.permute(0, 3, 1, 2), plain, last, exact=True)
    check(lambda a, b: a.permute(0, 2, 3, 1) * 2 + b, plain, last, exact=True)
    check(lambda a: (a + 1).contiguous(memory_format=torch.channels_last), plain, exact=True)


def test_several_inputs_and_outputs_and_in_place():
    def update(x, y, z):
        total = x.t() + y.t() * z
        z.mul_(2)
        return total, (total + 1).t().contiguous()

    check(update, torch.randn(67, 34), torch.randn(67, 34), torch.randn(34, 67), exact=True)
    check(lambda x, y: x.add_(y.t()), torch.randn(48, 65), torch.randn(65, 48), exact=True)
