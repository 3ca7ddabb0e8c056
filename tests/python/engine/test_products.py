"""Small products of matrices, which kernels compute together with what is done to their results."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fastjit import fastjit
from helpers import assert_same, check

SIZES = [(1, 4, 4), (2, 3, 5), (3, 16, 7), (4, 33, 64), (5, 64, 17), (8, 100, 130), (130, 65, 3), (4, 1, 6), (9, 2, 1)]


def check_own(fn, *args, kernels=None):
    """As check(), and no step is a call of torch's."""
    fast = check(fn, *args, kernels=kernels)
    assert "\nproduct " not in fast.inspect("plan"), fast.inspect("plan")
    return fast


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("m, k, n", SIZES)
def test_one_kernel_a_product(m, k, n, dtype):
    x, w, bias = torch.randn(m, k, dtype=dtype), torch.randn(n, k, dtype=dtype) / k**0.5, torch.randn(n, dtype=dtype)
    check_own(lambda x, w, b: F.gelu(F.linear(x, w, b)) * 2, x, w, bias, kernels=1)
    check_own(lambda x, w: F.linear(x, w), x, w, kernels=1)
    check_own(lambda x, w: x @ w, x, w.t().contiguous(), kernels=1)
    check_own(lambda x, w: torch.mm(x.t(), w) + 1, x.t().contiguous(), w.t().contiguous(), kernels=1)
    check_own(lambda x, w, b: torch.addmm(b, x, w).relu(), x, w.t(), bias, kernels=1)
    check_own(lambda x, w, y: torch.addmm(y, x, w), x, w.t(), torch.randn(m, n, dtype=dtype), kernels=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batches(dtype):
    a, b = torch.randn(3, 5, 18, dtype=dtype), torch.randn(3, 18, 7, dtype=dtype)
    c, w = torch.randn(3, 5, 7, dtype=dtype), torch.randn(9, 18, dtype=dtype)
    check_own(lambda a, b: torch.bmm(a, b) * 2, a, b, kernels=1)
    check_own(lambda a, b: torch.bmm(a, b.mT) * 2, a, b.mT.contiguous(), kernels=1)
    check_own(lambda c, a, b: torch.baddbmm(c, a, b), c, a, b, kernels=1)
    check_own(lambda a, w: F.linear(a, w).relu(), a, w, kernels=1)
    check_own(lambda a, b: torch.einsum("bik,bkj->bij", a, b), a, b)


def test_operands_as_they_lie():
    x, w = torch.randn(6, 40), torch.randn(12, 40)
    for left in (x, x.t().contiguous().t(), torch.randn(6, 80)[:, ::2], torch.randn(12, 40)[::2], x.flip(1),
                 torch.randn(1, 40).expand(6, 40), torch.randn(6, 1).expand(6, 40)):  # fmt: skip
        for right in (w, w.t().contiguous().t(), torch.randn(12, 120)[:, ::3], torch.randn(40).expand(12, 40)):
            check(lambda x, w: (x @ w.t()) * 0.5, left, right)
            check_own(lambda x, w: torch.bmm(x, w) + 1, left.expand(2, 6, 40), w.t().contiguous().expand(2, 40, 12))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("inner", [64, 65, 256, 1000, 3072])
def test_long_sums_keep_their_digits(inner, dtype):
    """Of as many products as a classifier's gradient adds up: in one running sum 1000 of them have 38 roundings."""
    torch.manual_seed(0)
    x, w = torch.randn(4, inner, dtype=dtype), torch.randn(inner, 768, dtype=dtype) / inner**0.5
    fast = check_own(lambda x, w: x @ w, x, w, kernels=1)
    left, right = (torch.randint(-8, 8, sizes).to(dtype) for sizes in ((4, inner), (inner, 768)))
    assert torch.equal(fast(left, right), left @ right)  # sums without a rounding: no product is lost
    if dtype == torch.float32:
        exact = x.double() @ w.double()
        rounding = torch.finfo(dtype).eps * (x.double().square() @ w.double().square()).sqrt()
        assert ((fast(x, w) - exact) / rounding).abs().max() < 12


def test_layers_one_after_the_other():
    layers = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(20))).requires_grad_(False)
    fast = check_own(lambda x: layers(x), torch.randn(4, 8), kernels=20)
    assert fast.inspect("plan").count("\nkernel dims") == 1, "equal layers have one kernel"


def test_what_a_factor_is_made_of_is_computed_once():
    x, w = torch.randn(8, 32), torch.randn(64, 32)
    fast = check_own(lambda x, w: F.linear(torch.sin(x) * 2, w), x, w, kernels=2)
    assert "sin" in fast.inspect("plan")


def test_what_meets_in_two_products_is_computed_by_the_second():
    x, gate, up = torch.randn(4, 64), torch.randn(96, 64) / 8, torch.randn(96, 64) / 8
    check_own(lambda x, g, u: F.silu(F.linear(x, g)) * F.linear(x, u), x, gate, up, kernels=2)


def test_a_product_written_over_its_own_factor():
    def step(x, w):
        x.add_(x @ w)
        return x.sum()

    check_own(step, torch.randn(9, 12), torch.randn(12, 12))


def test_what_decides_a_branch_is_torchs_product():
    def branches(x, w):
        y = x @ w
        return y * 2 if y.sum() > 0 else y - 1

    x, w = torch.randn(4, 8), torch.randn(8, 6)
    fast = fastjit(branches)
    for _ in range(3):
        assert_same(fast(x, w), branches(x, w), exact=True)
    assert fast.stats().hits >= 1 and fast.stats().fallbacks == {}
    assert "\nproduct " in fast.inspect("plan"), fast.inspect("plan")


def test_large_products_are_the_librarys():
    for n in (128, 256, 512):
        x, w = torch.randn(n, n), torch.randn(n, n) / n**0.5
        for fn in (F.linear, torch.mm, lambda x, w: torch.mm(x.t(), w)):
            assert "\nproduct " in check(lambda x, w, fn=fn: fn(x, w).relu(), x, w).inspect("plan")


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_values_that_are_not_finite(value):
    x, w = torch.randn(3, 21), torch.randn(5, 21)
    x[1, 20] = value
    w[2] = 0
    check_own(lambda x, w: F.linear(x, w), x, w)
    check_own(lambda x, w: x @ w, x, w.t().contiguous())
    check_own(lambda x, w: x @ w, x[:, 20:].expand(3, 21), w.t().contiguous())


def test_nothing_to_add_up():
    for m, k, n in [(0, 4, 3), (3, 0, 4), (3, 4, 0)]:
        check(lambda x, w: x @ w + 1, torch.randn(m, k), torch.randn(k, n))


def test_any_number_of_rows():
    w, b = torch.randn(24, 16), torch.randn(24)
    fast = fastjit(lambda x: F.linear(x, w, b).relu())
    for m in (2, 3, 4, 5, 7, 8, 9, 15, 1, 2, 100):
        x = torch.randn(m, 16)
        assert_same(fast(x), F.linear(x, w, b).relu())
    assert fast.stats().fallbacks == {} and fast.stats().misses <= 3, fast.stats()
    assert "\nproduct " not in fast.inspect("plan"), fast.inspect("plan")


def test_sums_are_as_near_to_the_exact_ones_as_eagers():
    x, w = torch.randn(4, 3000), torch.randn(50, 3000) / 3000**0.5
    exact = F.linear(x.double(), w.double())
    fast = check_own(lambda x, w: F.linear(x, w), x, w)
    error, eagers = (fast(x, w) - exact).abs().max(), (F.linear(x, w) - exact).abs().max()
    assert error <= 2 * eagers, (error, eagers)
