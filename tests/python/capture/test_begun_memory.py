"""Memory that torch's calls write to, as part of what a kernel made."""

import pytest
import torch

import fastjit
from helpers import assert_same


def part(x):
    y = x.t() * 2
    y[:, :2].sigmoid_()
    return y, y[y > 1]


def whole(x):
    y = x.t() + 1
    y.sigmoid_()
    return y[y > 0.7]


def twice(x):
    y = x * 2
    z = x * 2  # equal values, two tensors
    y.sigmoid_()
    return y[y > 0.6], z[z > 0.6], x * 2


def read_between(x):
    y = x.exp2()
    before = y + 1
    y.sigmoid_()
    between = y * 3
    y[0].tanh_()
    return before, between, y, y[y > 0.5]


def view_kept(x):
    y = x.t().contiguous()
    head = y[:2]
    y.sigmoid_()
    head.add_(1)
    return head, y[y > 1], y.view(-1)


def masked(x):
    y = x.permute(1, 0).reshape(-1)
    y[:6].sigmoid_()
    there = y > 0.6
    return y[there] * 2, there


def equal_number(x):
    y = torch.zeros(1)
    y.as_strided((), ()).copy_(x.sort()[0].sum())
    return x.sum() + torch.zeros(()) + y, x * torch.zeros(())


def equal_value(x):
    y = x.exp2()
    y.as_strided((3,), (1,)).copy_(x.flatten().sort()[0][:3])
    return y, x.exp2() + 1, y[y > 0.5]


CASES = [part, whole, twice, read_between, view_kept, masked, equal_number, equal_value]


@pytest.mark.parametrize("f", CASES, ids=lambda f: f.__name__)
def test_what_a_kernel_made_and_torch_writes_to(f):
    fast = fastjit.fastjit(f)
    torch.manual_seed(0)
    for _ in range(5):
        x = torch.randn(4, 6)
        given = x.clone()
        got, expected = fast(x), f(x)
        assert_same(got, expected)
        assert torch.equal(x, given)
        got, expected = (out if isinstance(out, tuple) else (out,) for out in (got, expected))
        assert [t.stride() for t in got] == [t.stride() for t in expected]
        assert [t._version for t in got] == [t._version for t in expected]
        assert [[a.data_ptr() == b.data_ptr() for b in got] for a in got] == [
            [a.data_ptr() == b.data_ptr() for b in expected] for a in expected
        ]
    stats = fast.stats()
    assert (stats.hits, dict(stats.fallbacks)) == (5 - stats.variants, {})


def test_a_transposed_copy_is_a_kernel():
    fast = fastjit.fastjit(masked)
    for _ in range(3):
        fast(torch.randn(4, 6))
    assert "aten::reshape" not in str(fast.inspect("ir"))
