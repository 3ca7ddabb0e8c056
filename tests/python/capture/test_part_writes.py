"""Writes to parts of tensors: each is a store of the region, in a kernel."""

from __future__ import annotations

import re

import pytest
import torch

from fastjit import fastjit
from helpers import assert_same, check
from random_compare import aliasing


def steps_in_order(x):
    out = torch.empty(x.shape[0], x.shape[1])
    h = torch.zeros(x.shape[1])
    for t in range(x.shape[0]):
        h = torch.tanh(h + x[t])
        out[t] = h
    return out


def sweep_back(a, b):
    x = torch.zeros_like(a)
    x[..., -1] = a[..., -1] / b[..., -1]
    for i in range(a.shape[-1] - 2, -1, -1):
        x[..., i] = (a[..., i] - x[..., i + 1]) / b[..., i]
    return x


def tridiagonal(a, b):
    b, d = b.clone(), a.clone()
    for i in range(1, a.shape[-1]):
        w = a[..., i] / b[..., i - 1]
        b[..., i] -= w * a[..., i - 1]
        d[..., i] -= w * d[..., i - 1]
    return b, d


def jacobi(a, b):
    u = a.clone()
    for _ in range(3):
        u[1:-1, 1:-1] = 0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - b[1:-1, 1:-1])
    return u


def shifted_into_itself(a, b):
    x = a * 1
    x[1:] = x[:-1].clone() + 0
    x[:, :-1] = x[:, 1:].clone()
    return x


def every_other(a, b):
    x = a + b
    x[:, 0::2] = x[:, 0::2].clamp(0, 1)
    x[:, 1::2] = x[:, 1::2].clamp(-1, 0)
    x[0::2] = torch.exp(x[1::2])
    return x


def swapped(a, b):
    x = a.clone()
    x[0], x[1] = x[1].clone(), x[0].clone()
    x[..., 0], x[..., 2] = x[..., 2] * 1, x[..., 0] * 1
    return x


def old_value_wanted(a, b):
    x = a * 2
    before = x[0] + 1
    whole = x.clone()
    x[0] = b[0]
    return x, before * 2, whole + before, whole


def old_view_of_the_base(a, b):
    x = a * 2
    view = x[0]
    x = x * 3
    view.add_(b[0])
    return x, view * 1


def base_then_view(a, b):
    x = a.clone()
    view = x[1:3].t()
    x.mul_(2)
    view[0].add_(1)
    view.neg_()
    return x, x.sum(), view * 1


def whole_and_parts(a, b):
    x = torch.zeros_like(a)
    x[1:] += a[1:]
    first = x * 2
    x.zero_()
    x[:1] = a[:1]
    x.copy_(x + b)
    x[2].zero_()
    return first, x


def broadcast_into(a, b):
    x = torch.empty_like(a)
    x[:] = b[:, :1]
    x[1::2] = 3
    x[..., 0] = b[0, 0]
    return x


def casts(a, b):
    n = torch.zeros(4, 6, dtype=torch.int64)
    n[1] = a[1] * 5
    n[2:] += 7
    return n, n[1] / 2


def views_of_views(a, b):
    x = (a + b).contiguous()
    x.permute(1, 0)[1:3].select(1, 0).fill_(7)
    x.unsqueeze(0)[0, 1].mul_(2)
    x.diagonal().add_(1)
    parts = x.split(2, 1)
    parts[1].sub_(parts[0])
    first, *rest = x.unbind(0)
    rest[0].add_(first)
    return x, first * 1


def masked_part(a, b):
    x = a.clone()
    x[1][b[1] > 0] = -1
    x[2].masked_fill_(b[2] > 0, 9)
    return x


def reductions_of_parts(a, b):
    x = a * b
    for i in range(1, 4):
        x[i] = x[i] - x[i - 1].mean() + torch.softmax(x[i], 0)
    return x, x.amax(0)


def nothing_written(a, b):
    x = a.clone()
    x[2:2] = 1
    x[:, 9:] += 1
    return x


PROGRAMS = [sweep_back, tridiagonal, jacobi, shifted_into_itself, every_other, swapped, old_value_wanted]
PROGRAMS += [old_view_of_the_base, base_then_view, whole_and_parts, broadcast_into, casts, views_of_views, masked_part]
PROGRAMS += [reductions_of_parts, nothing_written]


def is_own(fast):
    """No call of torch's but for memory and views of results."""
    calls = [line for line in fast.inspect("ir").splitlines() if " = extern " in line]
    return all("aten::empty" in line or "kind=view" in line for line in calls), fast.inspect("ir")


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
def test_parts_are_stored_by_kernels(fn):
    fast = check(fn, torch.randn(4, 6), torch.rand(4, 6) + 1)
    own, ir = is_own(fast)
    assert own, ir
    assert fn in (nothing_written, old_view_of_the_base) or "= update " in ir


def suppressed(over, start):
    """Each keeps or drops those behind it: what is read lies before what is written."""
    keep = start.clone()
    for i in range(keep.shape[0] - 1):
        keep[i + 1 :] &= ~(over[i, i + 1 :] & keep[i])
    return keep


def sums_of_columns(a, b):
    """The column that is read lies beside those that are written, in between in memory."""
    x = a.clone()
    for i in range(3):
        x[:, i + 1 :] += x[:, i : i + 1] * b[:, i : i + 1]
    return x


def reads_and_writes_overlap(a, b):
    x = a.clone()
    for i in range(3):
        x[i : i + 2] = x[i + 1 : i + 3] + x[i]
    return x, b


def test_what_is_read_beside_takes_no_launch_more():
    over, start = torch.rand(12, 12) > 0.8, torch.rand(12) > 0.1
    fast = check(suppressed, over, start)
    assert fast.stats().steps <= 12, fast.inspect("plan")
    for _ in range(5):
        over, start = torch.rand(12, 12) > 0.7, torch.rand(12) > 0.2
        assert_same(fast(over, start), suppressed(over, start), exact=True)
    for fn in (sums_of_columns, reads_and_writes_overlap):
        fast = check(fn, torch.randn(5, 4), torch.randn(5, 4))
        assert is_own(fast)[0]


def test_a_step_of_a_sequence_is_one_store():
    fast = check(steps_in_order, torch.randn(12, 8))
    own, ir = is_own(fast)
    assert own, ir
    assert fast.stats().steps <= 14, fast.inspect("plan")


def largest_in_turn(x, table):
    found = torch.zeros(4, 1, dtype=torch.long)
    for i in range(4):
        best = x.argmax(1)
        found[i] = best
        if best.max() > 100:
            break
        x = torch.cos(x * 3) + table[best]
    return found


def test_what_is_stored_is_looked_at_in_the_same_kernel():
    fast = check(largest_in_turn, torch.randn(1, 40), torch.randn(40, 40))
    kernels = [line for line in fast.inspect("plan").splitlines() if re.match("kernel [0-9]+ [(]", line)]
    # a round each, the first of which begins before there is anything to store to: zeros, and its own store
    assert len(kernels) <= 6, fast.inspect("plan")


def test_a_cache_between_products():
    def fn(x, k, w):
        k = k + 0
        for g in range(3, k.shape[2]):
            k[:, :, g, :] = torch.matmul(x, w).reshape(x.shape[0], 2, 16)
            att = torch.softmax(torch.matmul(k, x.transpose(-1, -2)).transpose(-1, -2), dim=3)
            x = torch.matmul(att, k)
        return k.clone(), x

    fast = check(fn, torch.randn(3, 2, 1, 16), torch.randn(3, 2, 6, 16), torch.randn(2, 16, 16) / 4)
    assert "= update " in fast.inspect("ir")


def test_torch_reads_the_part_as_it_is_then():
    def fn(a, b):
        x = a.clone()
        x[0] = b[0]
        first = torch.cumsum(x[0], 0)
        x[0] = first
        second = torch.cumsum(x, 1)
        x[1:] = second[1:]
        return x, first, second

    check(fn, torch.randn(4, 6), torch.randn(4, 6))


def test_branches_on_what_was_written():
    def fn(a, b):
        x = a.clone()
        x[0] = b[0].round()
        if x[0].sum() > 0:
            x[1] = 5
        else:
            x[2] = 6
        return x

    fast = fastjit(fn)
    for sign in (1, -1, 1, -1):
        a, b = torch.randn(4, 6), torch.full((4, 6), 3.0 * sign)
        assert_same(fast(a, b), fn(a, b))
    assert fast.stats().hits == 2 and fast.stats().fallbacks == {}


def test_results_share_memory_as_in_eager():
    def fn(a):
        x = a.clone()
        x[0] = 1
        view = x[1:]
        view[0] = 2
        return x, view, x.t()

    fast = fastjit(fn)
    for _ in range(2):
        a = torch.randn(4, 6)
        got, want = fast(a), fn(a)
        assert aliasing(got, [a]) == aliasing(want, [a])
        assert_same(got, want, exact=True)
    assert fast.stats().hits == 1


def test_tensors_of_equal_values_stay_apart():
    def fn(a):
        x, y = torch.zeros(4, 6), torch.zeros(4, 6)
        x[0] = a[0]
        y[0] = a[0]
        y[1] = 3
        z = y.clone()
        z[2] = a[2]
        return x, y, z

    check(fn, torch.randn(4, 6), exact=True)


def test_memory_of_a_call_is_not_written_over():
    """`clone` gives the value of a tensor that a call of torch's made: what is written to it is not written there."""

    def fn(a):
        made = torch.cumsum(a, 0)
        x = made.clone()
        x[0] = 1
        return made, x

    check(fn, torch.randn(4, 6), exact=True)


def cache_written(k, x):
    k[:, 2, :] = x * 2
    k[:, 3, :] += k[:, 2, :]
    return (k * x[:, None]).sum(-1)


def rows_in_turn(k, x):
    for i in range(1, k.shape[1]):
        k[:, i] -= k[:, i - 1] * x
    return k


def neighbours_in_place(k, x):
    for _ in range(2):
        k[1:-1, 1:-1] = 0.25 * (k[:-2, 1:-1] + k[2:, 1:-1] + k[1:-1, :-2] + k[1:-1, 2:])


def old_contents_wanted(k, x):
    before = k.clone()
    first = k[0] * 1
    k[0] = x[0]
    return before, first, k[0], k.clone()


def given_back_with_views(k, x):
    k[1] = x[1]
    k.t()[0].mul_(2)
    return k, k[1], k.t()


IN_ARGUMENTS = [cache_written, rows_in_turn, neighbours_in_place, old_contents_wanted, given_back_with_views]


@pytest.mark.parametrize("fn", IN_ARGUMENTS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("strides", ["plain", "transposed", "gaps"])
def test_parts_of_an_argument(fn, strides):
    k = torch.randn(4, 6, 8 if fn is cache_written else 1).squeeze(-1)
    if strides == "transposed":
        k = k.transpose(0, 1).contiguous().transpose(0, 1)
    if strides == "gaps":
        k = torch.randn(*k.shape, 2)[..., 0].copy_(k)
    x = torch.randn(4, 8) if fn is cache_written else torch.randn(4) if fn is rows_in_turn else torch.randn(4, 6)
    fast = fastjit(fn)
    for call in range(3):
        mine = torch.empty_strided(k.size(), k.stride()).copy_(k)
        theirs = torch.empty_strided(k.size(), k.stride()).copy_(k)
        before = mine._version, theirs._version
        got, want = fast(mine, x), fn(theirs, x)
        assert_same(got, want)
        assert_same([mine], [theirs])
        assert mine._version - before[0] == theirs._version - before[1]
        assert (fast.stats().hits, fast.stats().fallbacks) == (call, {})
        if isinstance(want, tuple):
            assert aliasing(got, [mine, x]) == aliasing(want, [theirs, x])
    own, ir = is_own(fast)
    assert own, ir
    assert "= update " in ir


def test_an_argument_is_written_where_it_lies():
    def fn(k, x):
        k[2] = x * 2
        k[3] += x

    fast = check(fn, torch.randn(400, 300), torch.randn(300))
    assert "tensor f32[400,300]" not in fast.inspect("plan"), fast.inspect("plan")


def test_an_error_after_a_write_leaves_what_eager_leaves():
    def fn(k, x, n):
        k[0] = x
        return torch.linalg.cholesky(n) + k[0, 0]

    fast = fastjit(fn)
    good, bad = torch.eye(3), -torch.eye(3)
    for n in (good, good, bad, good):
        mine, theirs, x = torch.zeros(4, 6), torch.zeros(4, 6), torch.randn(6)
        for call, k in ((fast, mine), (fn, theirs)):
            if n is bad:
                with pytest.raises(torch.linalg.LinAlgError):
                    call(k, x, n)
            else:
                call(k, x, n)
        assert_same([mine], [theirs])


@pytest.mark.parametrize("cell", [torch.nn.LSTMCell, torch.nn.GRUCell, torch.nn.RNNCell], ids=lambda c: c.__name__)
def test_recurrent_cells_are_kernels(cell):
    unit = cell(8, 8).requires_grad_(False)

    def fn(x):
        out = torch.empty_like(x)
        state = None
        for t in range(x.shape[0]):
            state = unit(x[t], state)
            out[t] = state[0] if isinstance(state, tuple) else state
        return out

    with torch.no_grad():
        fast = check(fn, torch.randn(5, 4, 8))
    own, ir = is_own(fast)
    assert own, ir


def test_a_part_of_what_shares_memory_with_itself_is_torchs():
    """A row of an expanded tensor is every row of it."""

    def fn(k, x):
        k[1] = x[0] * 2
        k[2] += k[1]
        return k.sum()

    fast = fastjit(fn)
    for _ in range(3):
        mine, theirs, x = torch.arange(6.0).expand(4, 6), torch.arange(6.0).expand(4, 6), torch.randn(2, 6)
        assert_same(fast(mine, x), fn(theirs, x))
        assert_same([mine], [theirs])
    assert "= update " not in fast.inspect("ir")


def test_what_a_view_holds_is_written_once():
    """`x[i] += y` writes through a view, then stores the view."""

    def run(x, y):
        out = torch.zeros(4, 8)
        for i in range(4):
            out[i] += y * i
            out[i, 2:] -= x[i, 2:]
        return out

    fast = check(run, torch.randn(4, 8), torch.randn(8))
    assert fast.inspect("ir").count("= update") == 8


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_diagonal_is_no_box(size):
    """Of 2 x 2 it is half of the elements: what lies beside it stays."""

    def f(a):
        a.diagonal().fill_(7)
        return a.transpose(0, 0), a * 2

    fast = fastjit(f)
    for _ in range(3):
        a = torch.randn(size, size)
        mine, theirs = a.clone(), a.clone()
        assert_same(fast(mine), f(theirs))
        assert_same(mine, theirs)
    assert fast.stats().hits == 2, fast.stats()


def whole_then_a_part(c):
    c = c * 1.5
    c.view(-1).neg_()
    c[0::2, 0].neg_()
    return (c * c).sum()


def nothing_through_a_view(c):
    c = c * 1.5
    copy = c.clone()
    other = torch.maximum(c, c * 0.5) - copy
    copy.narrow(0, 3, 0)[...] = 2.0
    return (c * c).sum() + (copy * copy).sum() + (other * other).sum()


def a_view_of_all_in_a_result(c):
    c = c * 1.5
    c.view(-1).mul_(2)
    c[1:-1, 0] = 1
    return (c * c).sum(), c


@pytest.mark.parametrize(
    ("f", "hits"), [(whole_then_a_part, 2), (nothing_through_a_view, 2), (a_view_of_all_in_a_result, 0)]
)
@torch.enable_grad()
def test_the_way_back_sees_what_torch_wrote(f, hits):
    """Memory that torch's operators write to on the way there is not made again on the way back as it was before them.
    Where the caller has that memory, the call is eager."""
    fast = fastjit(on_unsupported="eager")(f)
    for _ in range(3):
        seen = []
        x = torch.randn(3, 3)
        for function in (fast, f):
            leaf = x.clone().requires_grad_()
            made = function(leaf)
            total = made[0] if isinstance(made, tuple) else made
            seen.append([total.detach(), *torch.autograd.grad(total, leaf)])
        assert_same(seen[0], seen[1])
    assert fast.stats().hits == hits, fast.stats()


def copied_before_its_argument_is_written(b):
    x = torch.empty_like(b).fill_(0.25)
    x.reshape(-1).copy_(b.reshape(-1))
    b.transpose(0, 1).tanh_()
    x.reshape(-1).select(0, 2).add_(2.0)
    return x * 1


@pytest.mark.parametrize("size", [(5, 1), (4, 6), (2, 3)])
def test_what_an_argument_was_before_it_was_written(size):
    fast = fastjit(copied_before_its_argument_is_written)
    for _ in range(3):
        b = torch.randn(size)
        mine, theirs = b.clone(), b.clone()
        assert_same(fast(mine), copied_before_its_argument_is_written(theirs))
        assert_same(mine, theirs)
    assert fast.stats().hits == 2, fast.stats()


@torch.enable_grad()
@pytest.mark.parametrize("rows", [(7, 4), (60, 4)])
def test_gradients_of_rows_are_slices_of_those_of_the_whole(rows):
    """Autograd addresses memory there (`as_strided`), and copies the whole for each write."""
    fast = fastjit(steps_in_order)
    for _ in range(3):
        x = torch.randn(*rows, requires_grad=True)
        expected, got = steps_in_order(x), fast(x)
        assert_same(got, expected)
        assert_same(torch.autograd.grad(got.sin().sum(), x), torch.autograd.grad(expected.sin().sum(), x))
    assert fast.stats().hits == 2 and fast.stats().fallbacks == {}, fast.stats()
    calls = [line for line in fast.inspect("plan").splitlines() if line.strip().startswith("extern")]
    assert not calls, calls


VIEWS = {
    "a box": ((2, 3), (6, 1), 7),
    "turned": ((3, 2), (1, 6), 2),
    "every other one": ((2, 3), (12, 2), 0),
    "a line": ((4,), (6,), 5),
    "one element": ((), (), 9),
    "one of each": ((1, 1), (3, 2), 11),
}
BEYOND = {
    "over the edge of a row": ((2, 4), (6, 1), 3),
    "a diagonal": ((4,), (7,), 0),
    "windows": ((4, 3), (3, 1), 0),
    "twice the same": ((3, 2), (0, 1), 4),
}


@pytest.mark.parametrize("name", [*VIEWS, *BEYOND])
@pytest.mark.parametrize("write", [False, True])
def test_as_strided(name, write):
    size, stride, offset = (VIEWS | BEYOND)[name]

    def run(x):
        y = x * 2
        part = y.as_strided(size, stride, offset)
        if write and 0 not in stride:
            part.mul_(3)
        return part + 1, y + 1

    for turned in (False, True):
        x = torch.randn(6, 4).t() if turned else torch.randn(4, 6)
        fast = check(run, x)
        is_known = name in VIEWS and not turned
        assert "extern" not in fast.inspect("plan").split("kernel 0 is")[0] or not is_known, fast.inspect("plan")


def test_as_strided_of_an_argument_begins_where_its_memory_does():
    def run(x):
        return x.as_strided((2, 2), (6, 1), 7) * 2, x.as_strided((2, 2), (6, 1)) * 3, x.as_strided((2, 2), (2, 1), 0)

    fast, memory = fastjit(run), torch.randn(8, 6)
    for begin in (0, 0, 2, 3):
        x = memory[begin : begin + 4]
        assert_same(fast(x), run(x))
    assert fast.stats().hits == 3 and fast.stats().fallbacks == {}, fast.stats()


def test_as_strided_of_a_part_of_memory():
    def run(x):
        return x[1:].as_strided((2, 2), (6, 1), 0) * 2, x[1:].as_strided((2, 2), (6, 1), 8) * 2

    check(run, torch.randn(4, 6))


def lows_and_highs(x):
    boxes = torch.cat((x - 1, x + 1), dim=1)
    boxes[..., 0::2].clamp_(0, 2)
    boxes[..., 1::2].clamp_(0, 3)
    return boxes + 1


def computed_and_written(x):
    y = x.exp()
    y[:, 0] *= 2
    y[:, 1].clamp_(max=1.5)
    return y


def read_beside(x):
    y = x.exp()
    y[:, 0] = y[:, 1] * 2
    return y.sum(1)


def joined_twice(x):
    a = torch.cat((x, x + 1))
    b = torch.cat((a, x + 2))
    b[0] += 1
    a[0] -= 1
    return a * 2, b * 2


def of_equal_parts(x):
    a, b = torch.cat((x, x + 1)), torch.cat((x, x + 1, x + 2))
    a[1] = 7
    return a + 1, b + 1, torch.cat((a, b)) * 2


def seen_before(x):
    a = torch.stack((x.exp(), x))
    before, view = a.sum(0), a[1]
    a[0].sigmoid_()
    a[1].tanh_()
    return before, a.sum(0), view


def swept(x):
    a = torch.cat((x, x + 1))
    for i in range(1, a.shape[0]):
        a[i] += a[i - 1] * 0.5
    return a


@pytest.mark.parametrize(
    ("fn", "most"),
    [
        (lows_and_highs, 4),
        (computed_and_written, 3),
        (read_beside, None),
        (joined_twice, None),
        (of_equal_parts, None),
        (seen_before, None),
        (swept, None),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_is_made_only_to_be_written_to_is_in_memory_once(fn, most):
    fast = fastjit(fn)
    for seed in range(3):
        x = torch.randn(30, 2 if fn is lows_and_highs else 4, generator=torch.Generator().manual_seed(seed))
        mine, eagers = x.clone(), x.clone()
        assert_same(fast(mine), fn(eagers))
        assert_same(mine, eagers)
    assert (fast.stats().hits, fast.stats().fallbacks) == (2, {})
    if most:
        plan = fast.inspect("plan").split("\n\n", 1)[1]
        assert len(re.findall(r"^ *kernel \d+ \(", plan, re.MULTILINE)) <= most


def turned_over(x):
    both = torch.zeros(2, *x.shape)
    first, second = both[0], both[1]
    first[2:] = x[2:] * 2
    first.copy_(first.flip(0))
    return first, second + 1


def test_the_copy_of_what_is_written_over_is_read_beside_other_work():
    """What the same kernel computes of the rest of the memory makes it read that copy no less."""
    fast = check(turned_over, torch.arange(99.0).view(33, 3))
    assert fast.stats().kernels > 0
