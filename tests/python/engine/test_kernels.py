"""Layouts that take a code path of their own, at every length around a vector's."""

from __future__ import annotations

import pytest
import torch

from fastjit import fastjit
from helpers import assert_same, check, torch_threads
from lowering_tools import DTYPES


def every_other(x):
    return x[::2] ^ x[1::2] if x.dtype == torch.bool else x[::2] + x[1::2]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_other_element(dtype):
    fast = fastjit(every_other)
    for n in (1, 2, 15, 16, 17, 31, 33, 64, 100):
        x = torch.randint(0, 2, (2 * n,)).to(dtype)
        for _ in range(3):
            assert_same(fast(x), every_other(x), exact=True)
        assert fast.stats().fallbacks == {}
    assert "2" in fast.inspect("plan").split("operand #0")[1].split("\n")[0], fast.inspect("plan")
    assert fast.stats().hits >= 9


def test_the_element_behind_the_last_is_not_read():
    # 2n - 1 elements at the very end of a mapping: reading one more would fault.
    import mmap

    page = mmap.PAGESIZE
    region = mmap.mmap(-1, 2 * page)
    whole = torch.frombuffer(region, dtype=torch.float32)
    half = whole[: page // 4]
    check(lambda x: x[::2] * 2, half[-63:].clone())
    fast = fastjit(lambda x: x[::2] * 2)
    tail = whole[-63:]
    for _ in range(2):
        assert_same(fast(tail), tail[::2] * 2)
    assert fast.stats().hits == 1


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (16, 16), (17, 33), (64, 100), (130, 70), (33, 1024), (1024, 40)])
def test_transposed_operands(shape):
    x, y = torch.randn(shape), torch.randn(shape[::-1])
    check(lambda x, y: x * 2 + y.t(), x, y, kernels=1, exact=True)
    check(lambda x, y: (x * 2).t() + y, x, y, exact=True)


@pytest.mark.parametrize("n", [0, 1, 2, 7, 16, 33, 1000])
def test_rows_of_any_length(n):
    x = torch.randn(5, n)
    check(lambda x: x - x.sum(-1, keepdim=True), x, kernels=1 if n else 0)
    check(lambda x: x.sum(0), x)
    if n:
        check(lambda x: torch.softmax(x, -1), x, kernels=1)
        check(lambda x: x.max(-1), x)
        check(lambda x: x.argmin(-1), x)


@pytest.mark.parametrize("shape", [(6, 40), (2000, 512)])
def test_layer_norm_is_one_kernel(shape):
    """At a size, too, at which quotients that are spread over rows are worth storing."""
    n = shape[1]
    x, w, b = torch.randn(shape), torch.randn(n), torch.randn(n)
    check(lambda x, w, b: torch.nn.functional.layer_norm(x, (n,), w, b), x, w, b, kernels=1)
    check(lambda x: (x - x.mean(-1, keepdim=True)).square().sum(-1), x, kernels=1)


def test_products_read_views_of_inputs_without_a_call():
    x, y = torch.randn(160, 150), torch.randn(160, 170)
    fast = check(lambda x, y: torch.mm(x.t(), y) * 100 + 10, x, y, kernels=1, steps=1)
    assert "alias of" in fast.inspect("plan")


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.tanh(x) * 2 + 1,
        lambda x: torch.softmax(x, -1),
        lambda x: (x * 2).sum(),
        lambda x: x.std(0),
        lambda x: x.t() * 2 + x.t().contiguous(),
    ],
    ids=["pointwise", "rows", "two stages", "columns", "tiles"],
)
def test_the_number_of_threads_changes_no_bit(fn):
    x = torch.randn(600, 500)
    fast = fastjit(fn)
    fast(x)
    results = []
    for threads in (1, 2, 3):
        with torch_threads(threads):
            results.append(fast(x))
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
    assert fast.stats().hits == 3 and fast.stats().kernels >= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("to", [torch.int64, torch.int32, torch.int16])
def test_conversions_of_what_does_not_fit(dtype, to):
    """Eager's most negative number, also where the compiler could fold a conversion there and back."""
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e10, -1e10, 3e9, 1e19, 1.5, -2.7, -0.0]).to(dtype)
    for fn in (
        lambda x: (x.to(to) + 1.5) * 2,
        lambda x: x.float() == x.to(to),
        lambda x: x.to(to) * 0.5 > 1,
        lambda x: (x.to(to) * 1.0).abs(),
    ):
        check(fn, x, kernels=1, exact=True)
    check(lambda x: x.double().to(to), torch.tensor([2**40 + 5, -(2**33) - 7, 2**31, 5]), kernels=1, exact=True)


@pytest.mark.parametrize("p", [3, 100, 2**33])
def test_norm_of_a_scalar_along_its_dimension(p):
    """torch takes powers and roots there, and the absolute value where no dimension is given."""
    for fn in (lambda x: x.norm(p, -1), lambda x: torch.linalg.vector_norm(x, p, 0), lambda x: x.norm(p)):
        check(fn, torch.tensor(300.0), kernels=1)


@pytest.mark.parametrize("same", [lambda x: x * 1, lambda x: x / 1, lambda x: x - 0.0, lambda x: x.neg().neg()])
def test_calls_of_torch_get_operands_like_eagers(same):
    """torch.median is wrong on tensors whose elements share memory; an operator that changes no value makes another."""
    x = torch.randn(1, 4, 6).expand(5, 4, 6)
    check(lambda x: same(x).median(0), x, exact=True)
    check(lambda x: same(x).sort(1)[0], torch.randn(6, 8)[:, ::2], exact=True)


@pytest.mark.parametrize("shape", [(2,), (5,), (3, 5), (7, 64)])
@pytest.mark.parametrize("layout", ["rows", "strided"])
def test_a_half_that_is_rounded_from_a_double_alone(shape, layout):
    """LLVM joined both roundings of std's result into a call of __truncdfhf2, and the kernel was refused."""
    x = torch.randn(*shape, 2)[..., 0] if layout == "strided" else torch.randn(*shape)
    check(lambda x: torch.tanh(x.half().std(-1)), x, kernels=1)
    check(lambda x: x.double().sqrt().half().float(), x[..., :1].abs(), kernels=1, exact=True)
