"""Sizes that depend on data as symbols: each run finds them, and what follows from them is work of kernels."""

from __future__ import annotations

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


def test_a_size_that_python_reads_is_recorded_for_itself():
    def f(x):
        y = x[x > 0]
        return y * len(y)

    fast = fastjit(f)
    for seed in (0, 1, 0, 1):
        assert_same(fast(sample(seed)), f(sample(seed)))
    stats = fast.stats()
    assert (stats.hits, stats.misses, stats.fallbacks) == (2, 2, {})
