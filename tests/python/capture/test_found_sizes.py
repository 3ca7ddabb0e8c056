"""Sizes that depend on data as symbols: each run finds them, and what follows from them is work of kernels."""

from __future__ import annotations

import math
import threading

import pytest
import torch

from fastjit import fastjit
from helpers import assert_same

MAKERS = ("index.Tensor", "nonzero", "masked_select", "_unique2", "sort", "topk")


def calls_left(fast) -> list[str]:
    """Operators of torch's in the program, without views and those that find sizes or take elements."""
    lines = [line for line in fast.inspect("ir").splitlines() if "= extern" in line and "kind=op" in line]
    names = [line.split('"')[1].removeprefix("aten::") for line in lines]
    return [name for name in names if not name.startswith(MAKERS)]


def chain(x):
    y = x[x > 0]
    return (y * 2 + 1).exp()


def best(x):
    at = (x > 0.5).nonzero()
    scores, order = x[at[:, 0], at[:, 1]].sort(descending=True)
    return scores[:10] * 2, at[order[:10]]


def of_rows(x):
    rows = x[x[:, 0] > 0]
    return rows * torch.arange(rows.shape[1]).float(), rows.mean(), rows.sum(1), rows.size(-1) * 2


def of_one_mask(x):
    mask = x[:, 0] > 0
    return x[mask] + (x * 3)[mask], (x[mask, 1] > 0).sum()


def joined(x):
    at = (x > 0).nonzero()[:, 0]
    return torch.cat((x[at] * 2, x[at] + 1), 1), torch.cat((x[at], x), 0) * 2


def begun(x):
    """What the longer tensor begins with is where its length is found."""
    rows = torch.cat((x[:3], x), 0)
    some = rows[rows[:, 1] > 0]
    return torch.cat((rows, some, some), 0) * 2


def counted(x):
    values, counts = torch.unique((x * 4).round().long(), return_counts=True)
    return values.float() * counts


def twice(x):
    some = x[x[:, 0] > 0]
    few = some[some[:, 1] > 0]
    return few - few.mean(0), some.sum()


def reshaped(x):
    y = x[x > 0].reshape(-1, 1) * torch.ones(3)
    return y.t() * 2, y.view(-1) + 1


def written(x):
    y = x[x[:, 0] > 0] * 1
    y[..., 0::2].clamp_(0, 1)
    y[:, 1] += 5
    return y + 1


def added_up(x):
    total = x.new_zeros(())
    for k in range(3):
        total = total + (x[x > k * 0.3] * 2).tanh().sum()
    return total


FUNCTIONS = (chain, best, of_rows, of_one_mask, joined, begun, counted, twice, reshaped, written, added_up)


def sample(seed: int, rows: int = 40) -> torch.Tensor:
    return torch.randn(rows, 6, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_one_program_is_for_any_size_that_data_gives(fn):
    fast = fastjit(fn)
    for seed in range(8):
        assert_same(fast(sample(seed)), fn(sample(seed)))
    stats = fast.stats()
    assert (stats.hits, stats.misses, stats.fallbacks) == (7, 1, {})
    assert stats.kernels >= 1 and calls_left(fast) == []


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_none_and_one_are_programs_of_their_own(fn):
    fast = fastjit(fn)
    none = -sample(1).abs() - 1
    one = none.clone()
    one[3] = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    for _ in range(2):
        for x in (sample(0), none, one, sample(2), torch.ones(40, 6)):
            assert_same(fast(x.clone()), fn(x.clone()))
    stats = fast.stats()
    assert stats.fallbacks == {} and stats.hits >= 5


def test_sizes_of_arguments_differ_too():
    fast = fastjit(best)
    for seed, rows in enumerate((40, 41, 60, 77, 100, 53)):
        assert_same(fast(sample(seed, rows)), best(sample(seed, rows)))
    stats = fast.stats()
    assert stats.fallbacks == {} and stats.hits >= 3


def test_fewer_than_a_slice_takes_are_another_program():
    fast = fastjit(best)
    few = torch.zeros(40, 6)
    few[:4, 0] = torch.tensor([0.9, 0.7, 0.8, 0.6])
    for x in (sample(0), few, sample(1), few + 0.05, sample(2)):
        assert_same(fast(x), best(x))
    stats = fast.stats()
    assert (stats.hits, stats.misses, stats.fallbacks) == (3, 2, {})


def test_counts_that_were_equal_once():
    """Where a relation of sizes held by chance, calls in which it does not are eager, and soon another program's."""

    def f(x, y):
        return x[x > 0] + y[y > 0]

    def pair(count):
        return torch.cat((torch.ones(count), -torch.ones(9 - count)))

    fast = fastjit(f)
    for count in (4, 5, 6):
        assert_same(fast(pair(count), pair(count).flip(0)), f(pair(count), pair(count).flip(0)))
    assert fast.stats().hits == 2
    for _ in range(8):
        with pytest.raises(RuntimeError, match="must match the size"):
            fast(pair(4), pair(5))
    assert_same(fast(pair(5), pair(5)), f(pair(5), pair(5)))


def test_an_argument_is_written_only_once_all_is_known():
    def f(x, out):
        y = x[x > 0] * 2
        out.add_(y.sum())
        return y.sum().item() > 100, y

    fast = fastjit(f)
    for seed in (0, 1, 2, 3, 4, 5):
        x, mine, eagers = sample(seed) * (seed % 3), torch.zeros(3), torch.zeros(3)
        assert_same(fast(x, mine), f(x, eagers))
        assert_same(mine, eagers)
    assert fast.stats().fallbacks == {} and fast.stats().hits >= 2


def test_threads_run_it_side_by_side():
    """A run makes the program fit to what it finds: each has one of its own."""
    fast = fastjit(best)
    for seed in range(3):
        fast(sample(seed, 4000))
    wrong = []

    def run(begin: int) -> None:
        with torch.no_grad():
            for seed in range(begin, begin + 40):
                x = sample(seed, 4000) + (seed % 5) * 0.1
                if not all(torch.equal(a, b) for a, b in zip(fast(x), best(x), strict=True)):
                    wrong.append(seed)

    threads = [threading.Thread(target=run, args=(100 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert fast.stats().fallbacks == {}


def test_results_are_verified_against_eager():
    fast = fastjit(twice, verify=1)
    for seed in range(6):
        assert_same(fast(sample(seed)), twice(sample(seed)))
    assert fast.stats().hits >= 4 and fast.stats().fallbacks == {}


def test_in_the_background():
    fast = fastjit(best, on_miss="background")
    for _ in range(200):
        for seed in range(4):
            assert_same(fast(sample(seed)), best(sample(seed)))
        if fast.stats().hits >= 8:
            break
    assert fast.stats().hits >= 8


def length(x):
    y = x[x > 0]
    return y * len(y)


def mean_of_rows(x):
    y = x[x[:, 0] > 0]
    return y.sum(0) / y.size(0), y.sum() / len(y)


def made_of_ints(x):
    y = x[x[:, 0] > 0]
    n = y.shape[0]
    return torch.zeros(n, 3), y.view(n, -1) * 2, torch.arange(n), x.new_ones(n, 2) * n, y.new_full((n,), 2.5).cumsum(0)


def counted_up(x):
    at = (x > 0).nonzero()[:, 0]
    return torch.arange(len(at)) * 2 + at, at.numel() * torch.ones(3)


def with_float(x):
    y = x[x > 0]
    scale = 1.0 / y.numel()
    return (x * scale).sum() + y.sum() * (scale**0.5), torch.full((2,), scale), scale


def ints_of_result(x):
    y = x[x[:, 0] > 0]
    return y * 2, y.shape, y.size(0) * 3 + 1, -len(y), y.numel() // 4, y.shape[0] % 5


def of_what_follows(x):
    """What is made of a tensor whose sizes were read has such sizes, too."""
    y = x[x[:, 0] > 0]
    n = y.size(0)
    z = torch.cat((y * 2, x[:3]), 0).t()
    w = z[:2, : n // 2]
    return z * z.size(1), w * w.shape[1], torch.zeros(z.shape) + z, z[:, :4] * 2


def two_masks(x):
    a, b = x[x > 0], x[x > 0.5]
    share = b.numel() / a.numel()
    return a * share, a[: b.numel()] - b, torch.ones(a.numel() + b.numel())


def expanded(x):
    y = x[x[:, 0] > 0]
    return x[0].expand(y.size(0), -1) * y, x.new_zeros(y.size(0), 6).add_(y), y.reshape(y.size(0) * 2, -1).sum(1)


def branches(x):
    y = x[x > 0]
    n = y.size(0)
    if n == 0:
        return x + 1
    if n > 110 and n % 2 == 0:
        return x * n
    return y[: n // 2] * 2 if n >= 120 else y / n


def graph_layer(x):
    """A layer as torch_geometric's GCNConv, of the edges that a mask leaves."""
    edges = (x[:, :2] * 10).round().long().abs().remainder(x.size(0)).t()
    edges = edges[:, edges[0] != edges[1]]
    weight = torch.ones((edges.size(1),))
    row, col = edges[0], edges[1]
    degree = x.new_zeros(x.size(0)).scatter_add_(0, col, weight)
    norm = degree.pow(-0.5)
    norm = norm.masked_fill_(norm == float("inf"), 0)
    each = norm[row] * weight * norm[col]
    return x.new_zeros(x.shape).index_add_(0, col, x[row] * each.view(-1, 1))


READERS = (
    length,
    mean_of_rows,
    made_of_ints,
    counted_up,
    with_float,
    ints_of_result,
    of_what_follows,
    two_masks,
    expanded,
    graph_layer,
)


@pytest.mark.parametrize("fn", READERS, ids=lambda fn: fn.__name__)
def test_an_int_that_python_reads_is_a_number_of_the_program(fn):
    fast = fastjit(fn)
    for seed in range(8):
        assert_same(fast(sample(seed)), fn(sample(seed)))
    stats = fast.stats()
    assert (stats.hits, stats.misses, stats.fallbacks) == (7, 1, {})


@pytest.mark.parametrize("fn", (*READERS, branches), ids=lambda fn: fn.__name__)
def test_ints_of_none_and_one_are_programs_of_their_own(fn):
    fast = fastjit(fn)
    none = -sample(1).abs() - 1
    one, two = none.clone(), none.clone()
    one[3] = two[7] = two[9] = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])

    def outcome(call, x):
        try:
            return call(x)
        except (RuntimeError, ZeroDivisionError) as error:
            return str(error).splitlines()[0]

    for _ in range(2):
        for x in (sample(0), none, one, sample(2), two, torch.ones(40, 6), sample(3)):
            mine, eagers = outcome(fast, x.clone()), outcome(fn, x.clone())
            if isinstance(eagers, str):
                assert mine == eagers
            else:
                assert_same(mine, eagers)
    assert fast.stats().hits >= 5
    assert set(fast.stats().fallbacks) <= {"an operator raised"}


def test_a_comparison_is_a_guard_on_its_answer():
    fast = fastjit(branches)
    for seed in range(40):
        x = sample(seed) if seed % 8 else -sample(seed).abs()
        assert_same(fast(x), branches(x))
    stats = fast.stats()
    assert stats.fallbacks == {} and stats.misses <= 5 and stats.hits >= 35


def test_a_program_for_other_counts_is_tried_where_a_guard_fails():
    def f(x, out):
        y = x[x > 0]
        out += 1
        if len(y) > 5:
            return y * 2
        return y.sum() + out

    fast = fastjit(f)
    for count in (3, 7, 4, 8, 5, 6, 2, 9, 0, 1, 5, 6):
        x = torch.cat((torch.ones(count), -torch.ones(9 - count)))
        mine, eagers = torch.zeros(3), torch.zeros(3)
        assert_same(fast(x, mine), f(x, eagers))
        assert_same(mine, eagers)
    stats = fast.stats()
    assert (stats.hits, stats.misses, stats.fallbacks) == (8, 4, {})


@pytest.mark.parametrize("verify", (0, 1))
def test_the_last_that_a_program_does_may_be_to_find_a_size(verify):
    def f(x):
        y = x[x > 0]
        return (y, len(y)) if len(y) < 6 else (y, -len(y))

    fast = fastjit(f, verify=verify)
    for count in (3, 7, 4, 8, 5, 6, 2, 9, 3):
        x = torch.cat((torch.ones(count), -torch.ones(9 - count)))
        assert_same(fast(x), f(x))
    stats = fast.stats()
    assert (stats.hits, stats.misses, stats.fallbacks) == (7, 2, {})


def as_key(x):
    y = x[x > 0]
    return y * {2: 0.5}.get(len(y), 1.5)


def as_text(x):
    y = x[x > 0]
    return y * len(f"{y.size(0)}")


def looped(x):
    y, total = x[x > 0], x.new_zeros(())
    for i in range(len(y)):
        total = total + y[i] * i
    return total


def as_float(x):
    y = x[x > 0]
    return y * math.log(y.numel())


def read_twice(x):
    y = x[x > 0]
    return y * y.size(0), x * len(str(y.shape))


def sliced_after(x):
    y = x[x > 0]
    n = y.size(0)
    return (y * 2)[:5] + n if len(str(n)) == 1 else y[:5]


@pytest.mark.parametrize("fn", (as_key, as_text, looped, as_float, read_twice, sliced_after), ids=lambda f: f.__name__)
def test_what_else_reads_an_int_is_recorded_for_that_int(fn):
    fast = fastjit(fn)
    for count in (3, 5, 3, 5, 12, 2, 12, 3):
        x = torch.cat((torch.ones(count), -torch.ones(15 - count)))
        assert_same(fast(x), fn(x))
    stats = fast.stats()
    assert stats.fallbacks == {} and stats.hits == 4


def test_slices_of_what_python_knows_the_length_of():
    def f(x):
        y = x[x > 0]
        z = y * 2
        n = len(y)
        return z[:4] * n, y[:6] + 1, (z + 1)[:n], y[n // 2 :], z[-1] * n

    fast = fastjit(f)
    for count in (8, 9, 12, 7, 13, 3, 5, 4, 6, 2, 11, 7, 3, 1, 0):
        x = torch.cat((torch.ones(count), -torch.ones(15 - count))) * (torch.arange(15) + 1)
        if count > 0:
            assert_same(fast(x), f(x))
        else:
            with pytest.raises(IndexError):
                fast(x)
    assert fast.stats().fallbacks == {} and fast.stats().hits >= 7


def test_a_size_beside_the_one_that_is_found():
    """The other dim of what a mask picks may be a found one, too, and that mask may pick one column each time."""

    def f(x, pick):
        y = x[x[:, 0] > 0].t()
        return y[pick] * 2 + 1

    fast = fastjit(f)
    for seed in range(6):
        for pick in (torch.tensor([False, True, False, False, False, False]), torch.arange(6) < 3):
            assert_same(fast(sample(seed), pick), f(sample(seed), pick))
    assert fast.stats().hits + sum(fast.stats().fallbacks.values()) + fast.stats().misses == 12


def test_ints_are_verified_against_eager():
    for fn in (made_of_ints, ints_of_result, branches):
        fast = fastjit(fn, verify=1)
        for seed in range(8):
            assert_same(fast(sample(seed)), fn(sample(seed)))
        assert fast.stats().hits >= 4 and fast.stats().fallbacks == {}


@torch.enable_grad()
def test_where_gradients_are_needed_an_int_is_eagers():
    def f(x, w):
        y = x[x > 0] * w
        return y.sum() / len(y), len(y)

    fast = fastjit(f, on_unsupported="eager")
    for count in (3, 5, 3, 5):
        x = torch.cat((torch.ones(count), -torch.ones(9 - count)))
        w = [torch.tensor(2.0, requires_grad=True) for _ in range(2)]
        mine, eagers = fast(x, w[0]), f(x, w[1])
        mine[0].backward(), eagers[0].backward()
        assert_same((mine, w[0].grad), (eagers, w[1].grad))
    assert fast.stats().hits == 0


@pytest.mark.parametrize("first", (6, 8))
def test_programs_for_one_count_stand_beside_those_for_any(first):
    def f(x):
        y = x[x > 0]
        n = len(y)
        z = y.cumsum(0) if n == 6 else y * n
        return z[:7] + y.sum().item() if n != 6 or y[0] < 2 else z

    fast = fastjit(f)
    counts = (first, 8, 9, 6, 4, 3, 6, 7, 5, 6, 2, 12, 6, 7, 8)
    for count in counts:
        x = torch.cat((torch.ones(count), -torch.ones(15 - count)))
        assert_same(fast(x), f(x))
    stats = fast.stats()
    assert stats.fallbacks == {} and stats.hits >= len(counts) - 5


def test_a_shape_that_is_changed_in_place_behind_the_read():
    def f(x):
        y = x[x[:, 0] > 0]
        n = y.size(0)
        y.t_()
        return torch.zeros(n) + y.sum(), y * 2

    fast = fastjit(f, on_unsupported="eager")
    for count in (5, 5, 4, 3, 5, 2):
        x = torch.cat((torch.ones(count), -torch.ones(9 - count))).unsqueeze(1).repeat(1, 5)
        assert_same(fast(x), f(x))
