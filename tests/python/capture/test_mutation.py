"""Writes, views and aliases: what the caller sees after the call is what eager leaves (check() compares the arguments)."""  # noqa: E501

from __future__ import annotations

import pytest
import torch

from fastjit import fastjit
from helpers import check
from random_compare import aliasing
from random_programs import copy_all


def rows_from_another(a, b):
    a[0].copy_(b[0])
    a[0:1] = b[0:1]
    return a + a[1]


def base_then_old_view(x):
    view = x[0]
    x.mul_(2)
    return view + 1


def view_then_base(x):
    x[1].add_(5)
    return x * 2


def name_rebound(x):
    base = x.clone()
    view = base[0]
    base = base * 2
    view.add_(base[1])
    return base, view


def view_of_view_of_view(x):
    x.permute(1, 0)[1:3].select(1, 0).fill_(7)
    return x + 0


def strides_of_itself(x):
    x[0::2] = torch.exp(x[1::2])
    return x.sum()


def swap_rows(x):
    x[0], x[1] = x[1].clone(), x[0].clone()
    return x * 1


def column_into_all(x, b):
    x[:] = b[0]
    x[..., :1] += 1
    return x


def integers_from_floats(n, x):
    n.copy_(x)
    n[0] = 2.75
    return n + 1


def mask_write(x):
    x[x > 0] = 0
    return x - 1


def index_with_duplicates(x):
    x[torch.zeros(3, dtype=torch.long)] = 1.0
    return x + 1


def in_a_helper(x):
    def helper(t):
        t.add_(1)

    helper(x)
    return x * 2


def in_a_list(x):
    parts = [x[0]]
    parts.append(x[1])
    parts[1].mul_(3)
    return torch.stack(parts)


def odd_slices(x):
    return x[-2:], x[5:2], x[::9], x[-100:100], x[3:3].sum()


def augmented(x, b):
    y = x
    y += b
    y = y + b
    return y


def recurrence(x):
    for i in range(1, x.shape[-1]):
        x[..., i] = x[..., i - 1] * 0.5 + x[..., i]
    return x


def buffer_reused(x):
    buffer = torch.zeros_like(x)
    buffer[1:] += x[1:]
    first = buffer * 2
    buffer.zero_()
    buffer[:1] = x[:1]
    return first, buffer


ONE = [base_then_old_view, view_then_base, name_rebound, view_of_view_of_view, strides_of_itself, swap_rows, mask_write]
ONE += [index_with_duplicates, in_a_helper, in_a_list, odd_slices, recurrence, buffer_reused]


@pytest.mark.parametrize("fn", ONE, ids=lambda f: f.__name__)
def test_one_argument(fn):
    if fn is index_with_duplicates:
        fast = fastjit(on_unsupported="eager")(fn)
        for _ in range(2):
            x, y = torch.ones(4, 6), torch.ones(4, 6)
            assert torch.equal(fast(x), fn(y)) and torch.equal(x, y)
        return
    check(fn, torch.randn(4, 6))


@pytest.mark.parametrize("fn", [rows_from_another, column_into_all, augmented], ids=lambda f: f.__name__)
def test_two_arguments(fn):
    check(fn, torch.randn(4, 6), torch.randn(4, 6))


def test_dtype_of_the_target_decides():
    check(integers_from_floats, torch.arange(24).view(4, 6), torch.randn(4, 6) * 5)


RESULTS = {
    "the argument": lambda a, b: a,
    "a view of it": lambda a, b: a[1:],
    "a view of what was written": lambda a, b: a.add_(1)[0],
    "one tensor twice": lambda a, b: (lambda t: (t, t))(a + b),
    "a view of a local and the local": lambda a, b: (lambda t: (t.t(), t))(a * b),
    "two views of one local": lambda a, b: (lambda t: (t.t(), t.t().unsqueeze(-1)))(torch.cat([a, b])),
    "a view of a clone": lambda a, b: a.clone().t(),
    "a view of what folds to an argument": lambda a, b: torch.maximum(a, a)[0],
    "a reshape that is a view": lambda a, b: a.reshape(-1),
    "a reshape that copies": lambda a, b: a.t().reshape(-1),
    "slices from the start": lambda a, b: (a[:1].clone(), a[1:].clone()),
}


@pytest.mark.parametrize("what", RESULTS)
def test_results_alias_as_eagers_do(what):
    fn = RESULTS[what]
    inputs = [torch.randn(4, 6), torch.randn(4, 6)]
    fast = fastjit(fn)
    for _ in range(2):
        mine, theirs = copy_all(inputs), copy_all(inputs)
        got, want = fast(*mine), fn(*theirs)
        got, want = [t if isinstance(t, tuple) else (t,) for t in (got, want)]
        assert aliasing(got, mine) == aliasing(want, theirs)
        for g, w in zip([*got, *mine], [*want, *theirs], strict=True):
            assert torch.equal(g, w)
    assert fast.stats().hits == 1


def test_arguments_that_overlap():
    def fn(a, b):
        a.add_(1)
        return b * 2

    memory = torch.randn(10)
    fast = fastjit(on_unsupported="eager")(fn)
    for pair in ((0, 5), (0, 1), (0, 0), (2, 1)):
        for _ in range(2):
            mine, theirs = memory.clone(), memory.clone()
            got = fast(mine[pair[0] : pair[0] + 5], mine[pair[1] : pair[1] + 5])
            assert torch.equal(got, fn(theirs[pair[0] : pair[0] + 5], theirs[pair[1] : pair[1] + 5]))
            assert torch.equal(mine, theirs)


@pytest.mark.parametrize(("shared", "hits"), [(None, 2), ((31, 45), 2), ((3, 4), 0), ((0, 59), 0), ((7, 33), 0)])
def test_arguments_that_overlap_among_many(shared, hits):
    """Thirty tensors that are written, thirty that are read, in memory of their own or two of them in the same."""

    def fn(written, read):
        for w, r in zip(written, read, strict=True):
            w.add_(r, alpha=2)

    fast = fastjit(on_unsupported="eager")(fn)
    for _ in range(3):
        both = []
        generator = torch.Generator().manual_seed(3)
        for _ in range(2):
            all_ = [torch.randn(6, generator=generator.manual_seed(n)) for n in range(60)]
            if shared:
                all_[shared[1]] = all_[shared[0]]
            both.append([t[1:4] for t in all_[:59]] + [all_[59][:3]])
        fast(both[0][:30], both[0][30:])
        fn(both[1][:30], both[1][30:])
        assert all(torch.equal(a, b) for a, b in zip(*both, strict=True))
    assert fast.stats().hits == hits


def test_errors_of_writes_are_eagers():
    fast = fastjit(on_unsupported="eager")(lambda x: x.add_(1))
    fast(torch.zeros(1, 3))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
            fast(torch.zeros(1, 3).expand(4, 3))
    with torch.enable_grad(), pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        fast(torch.zeros(1, 3, requires_grad=True))


def test_fill_of_shared_elements():
    check(lambda x: x.expand(3, 4).fill_(0.25) + 1, torch.randn(4))


def test_scalars_made_inside_an_operator_stay_values():
    def fn(x, y):
        return torch.ldexp(x, y), torch.float_power(x.abs(), y)

    fast = fastjit(fn)
    x = torch.randn(5)
    for number in (1.0, 2.0, 3.0):
        y = torch.tensor(number)
        torch.testing.assert_close(fast(x, y), fn(x, y))
    assert fast.stats().hits == 2


def test_matmul_that_squeezes_in_place_inside():
    check(lambda x, v: (x @ v) * 2, torch.randn(2, 4, 6), torch.randn(6))


def test_statistics_are_written_where_the_results_are_given():
    def norm(x, mean, var, out, save_mean, save_var):
        before = mean * 1
        torch.native_batch_norm(x, None, None, mean, var, True, 0.1, 1e-5, out=(out, save_mean, save_var))
        return before + mean

    check(
        norm, torch.randn(4, 3, 5), torch.zeros(3), torch.ones(3), torch.empty(4, 3, 5), torch.empty(3), torch.empty(3)
    )
