"""Sizes that depend on data: torch makes such tensors and computes with them, whatever their sizes are.

What Python code reads of such a size is a value of the program.
"""

import pytest
import torch
import torch.nn.functional as F

import fastjit
from helpers import assert_same


def masked(x):
    return x[x > 0] * 2 + 1


def masked_mean(x):
    return x[x > 0].mean()


def masked_columns(x):
    return x[:, x.sum(0) > 0].exp()


def positions(x):
    return (x > 0).nonzero().float() * 0.5


def by_where(x):
    i, j = torch.where(x > 0)
    return x[i, j] + 1


def selected(x):
    return torch.masked_select(x, x > 0.5).sum() + x


def distinct(x):
    return torch.unique((x * 3).round()) * 2


def counted(x):
    values, inverse, counts = torch.unique((x * 3).round(), return_inverse=True, return_counts=True)
    return values, inverse * 2, counts.float() / x.numel()


def repeated(x):
    return torch.repeat_interleave(x, torch.arange(x.shape[0]) % 3, dim=0) * 2


def spread(x):
    kept = x[x > 0]
    out = torch.zeros_like(x)
    out[x > 0] = kept.sigmoid() * kept
    return out + 1


def gathered_rows(x):
    rows = (x[:, 0] > 0).nonzero().squeeze(1)
    return F.linear(x[rows], torch.ones(3, x.shape[1])).relu().sum(0)


def joined(x):
    return torch.cat([x[x > 0], x[x < -1], torch.zeros(2)])


def changed_in_place(x):
    y = x[x > 0]
    y.mul_(2).add_(1)
    return y


def top_p(x):
    ordered, order = x.softmax(-1).sort(-1, descending=True)
    keep = ordered.cumsum(-1) - ordered < 0.9
    return x.scatter(-1, order, torch.where(keep, x.gather(-1, order), float("-inf"))).softmax(-1)


FREE = [
    masked, masked_mean, masked_columns, positions, by_where, selected, distinct, counted, repeated, spread,
    gathered_rows, joined, changed_in_place, top_p,
]  # fmt: skip


@pytest.mark.parametrize("f", FREE, ids=lambda f: f.__name__)
def test_any_size_is_a_hit(f):
    """The program does not depend on how many there are: inputs of which each call finds other sizes are hits."""
    fast = fastjit.fastjit(f)
    torch.manual_seed(0)
    for _ in range(8):
        x = torch.randn(6, 7)
        assert_same(fast(x), f(x.clone()))
    stats = fast.stats()
    assert (stats.hits, dict(stats.fallbacks)) == (8 - stats.variants, {})  # none and one are sizes of their own
    assert stats.variants <= 3


def test_none_and_all():
    fast = fastjit.fastjit(masked)
    for x in (torch.randn(5), -torch.ones(5), torch.ones(5), torch.randn(5)):
        assert_same(fast(x), masked(x))
    assert (fast.stats().variants, fast.stats().hits) == (2, 2)  # none is a size of its own


def looks(x):
    kept = x[x > 0]
    if len(kept) > 3:
        return kept[:3] * 2
    return kept * kept.shape[0]


def by_size(x):
    kept = x[:, x[0] > 0]
    return kept + torch.ones(kept.size(1)) * kept.numel()


def test_methods_that_tell_sizes_are_seen():
    """`size()` and `numel()` run no operator."""
    fast = fastjit.fastjit(by_size)
    torch.manual_seed(2)
    for _ in range(12):
        x = torch.randn(3, 4)
        assert_same(fast(x), by_size(x), exact=True)
    stats = fast.stats()
    assert dict(stats.fallbacks) == {} and stats.hits == 12 - stats.variants


def sliced(x):
    return x[x > 0][:3] * 2


def one(x):
    return x + x[x > 2.5].item()


def listed(x):
    return x * len(x[x > 0.9].tolist())


@pytest.mark.parametrize("f", [sliced, one, listed], ids=lambda f: f.__name__)
def test_what_depends_on_a_size_without_showing_it(f):
    """x[:3] of three elements is no operator, item() of none is an error, and a list is as long as it is."""
    fast = fastjit.fastjit(f)
    for values in ([1.0, 2.0, 3.0, -1.0], [1.0, 2.0, 3.0, 0.5], [3.0, -1.0, -1.0, -1.0], [0.1, 0.2, 0.3, 2.6]) * 2:
        x = torch.tensor(values)
        assert_same(fast(x), f(x), exact=True)
    for values in ([-1.0, -1.0, -1.0, -1.0], [3.0, 3.0, 3.0, 3.0]):
        x = torch.tensor(values)
        try:
            expected = f(x)
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match=str(error)[:40]):
                fast(x)
        else:
            assert_same(fast(x), expected, exact=True)
    assert fast.stats().hits >= 4


def test_a_size_that_python_reads_is_a_value_of_the_program():
    fast = fastjit.fastjit(looks)
    calls = [torch.tensor([1.0, -1.0, 2.0, -3.0, 4.0, v]) for v in (1.0, -1.0, 2.0, -2.0, 3.0, -3.0)]
    for x in calls:
        assert_same(fast(x), looks(x))
    stats = fast.stats()
    assert (stats.variants, stats.hits, dict(stats.fallbacks)) == (2, 4, {})


def sorted_count(x):
    return torch.ones(x[x > 0].sort(0)[0].shape[0])


def joined_count(x):
    return torch.ones(torch.cat([x[:2], x[x > 0]]).shape[0])


@pytest.mark.parametrize("f", [sorted_count, joined_count], ids=lambda f: f.__name__)
def test_the_first_call_finds_none(f):
    """Nothing but its sizes is used of what was computed, and those were 0."""
    fast = fastjit.fastjit(f)
    for x in (-torch.ones(4), torch.ones(4), torch.tensor([1.0, -1.0, 1.0, 1.0]), -torch.ones(4), torch.ones(4)):
        assert_same(fast(x), f(x), exact=True)
    assert (fast.stats().hits, dict(fast.stats().fallbacks)) == (5 - fast.stats().variants, {})


def greedy(boxes):
    """As non-maximum suppression goes: keeps the best, drops what is near it."""
    left, kept = boxes, []
    while left.numel() > 0:
        kept.append(left[0])
        left = left[(left - left[0]).abs() > 0.5]
    return torch.stack(kept)


def test_a_loop_over_what_is_left():
    fast = fastjit.fastjit(greedy)
    inputs = [torch.tensor([0.0, 0.2, 1.0, 1.1, 2.0]), torch.tensor([0.0, 0.1, 1.0, 1.3, 2.2])]
    for x in inputs * 3:
        assert_same(fast(x), greedy(x))
    stats = fast.stats()
    assert (stats.hits, dict(stats.fallbacks)) == (5, {})


def test_a_mask_is_computed_as_eager_computes_it():
    """One point more or less is another shape: what decides about sizes has eager's own bits."""

    def f(x):
        return x[(x.exp() * 1.7).log().sin() > 0.25]

    fast = fastjit.fastjit(f)
    torch.manual_seed(1)
    for _ in range(4):
        x = torch.randn(100_000)
        assert_same(fast(x), f(x), exact=True)
    assert fast.stats().hits == 3


READS = {
    "len()": lambda x: x * len(x[x > 0]),
    "shape": lambda x: x * x[x > 0].shape[0],
    "size()": lambda x: x * sum(x[x > 0].size()),
    "size(0)": lambda x: x * x[x > 0].size(0),
    "numel()": lambda x: x * x[x > 0].numel(),
    "truth of numel()": lambda x: x + 1 if x[x > 1.5].numel() else x - 1,
    "nbytes": lambda x: x * x[x > 0].nbytes,
    "stride()": lambda x: x * x[:, x[0] > 0].stride(0),
    "is_contiguous()": lambda x: x + 1 if x[:, x[0] > 0].t().is_contiguous() else x - 1,
    "a shape compared": lambda x: x + 1 if x[x > 0].shape == x[x < 0].shape else x - 1,
    "a shape given on": lambda x: x.new_zeros(x[x > 0].shape) + 1,
    "a shape returned": lambda x: (x * 2, x[x > 0].shape),
    "a shape as text": lambda x: x * len(f"{x[x > 0].shape}"),
}
AS_NUMBERS = ("len()", "shape", "size(0)", "numel()", "a shape given on", "a shape returned")  # one program for any


@pytest.mark.parametrize("what", READS)
def test_every_way_to_read_a_size(what):
    f = READS[what]
    fast = fastjit.fastjit(max_variants=64)(f)
    torch.manual_seed(2)
    calls = [torch.randn(4, 4) for _ in range(16)]
    for x in calls:
        assert_same(fast(x), f(x))
    before = fast.stats()
    assert (before.variants == 1) == (what in AS_NUMBERS) and before.fallbacks == {}
    for x in calls:
        assert_same(fast(x), f(x))
    assert fast.stats().hits - before.hits == 16


def iterated(x):
    return sum((v * 2 for v in x[x > 0]), torch.zeros(()))


def aliased(x):
    """Of one row, contiguous() is the tensor itself."""
    kept = x[x[:, 0] > 0]
    kept.t().contiguous().add_(1)
    return kept


NONE, SOME = -torch.ones(4, 4), torch.arange(16.0).view(4, 4) - 7
ONE_ROW, ROWS = (
    torch.tensor([[-1.0, 2.0], [3.0, 4.0], [-5.0, 6.0]]),
    torch.tensor([[1.0, 2.0], [3.0, 4.0], [-5.0, 6.0]]),
)
# What torch's C++ decides by a size, before it calls an operator: function, the first input, another.
DECIDED = {
    "iteration over none": (iterated, NONE, SOME),
    "dropout of none": (lambda x: F.dropout(x[x > 0], 0.5), NONE, SOME),
    "alpha_dropout of none": (lambda x: F.alpha_dropout(x[x > 0], 0.5, training=True), NONE, SOME),
    "diff of none": (lambda x: x[x > 0].diff(), NONE, SOME),
    "trapezoid of none": (lambda x: torch.trapezoid(x[x > 0]), NONE, SOME),
    "contiguous of one row": (lambda x: x[x[:, 0] > 0].t().contiguous(), ONE_ROW, ROWS),
    "write to one row": (aliased, ONE_ROW, ROWS),
}


@pytest.mark.parametrize("what", DECIDED)
@pytest.mark.parametrize("turned", [False, True], ids=["as recorded first", "the other way round"])
@pytest.mark.filterwarnings("ignore::fastjit.FastJITWarning")
def test_what_torch_decides_by_a_size(what, turned):
    f, first, other = DECIDED[what]
    fast = fastjit.fastjit(f)
    for x in (other, other, first) if turned else (first, first, other):
        torch.manual_seed(0)
        got, state = fast(x.clone()), torch.get_rng_state()
        torch.manual_seed(0)
        assert_same(got, f(x.clone()))
        assert torch.equal(state, torch.get_rng_state())


def split(x):
    return sum(part.sum() for part in x[x > 0].split(2))


def test_lists_as_long_as_data_stay_eager():
    fast = fastjit.fastjit(split)
    with pytest.warns(fastjit.FastJITWarning, match=r"result of aten::\w+ depends on data at test_data_sizes.py:\d+"):
        for _ in range(3):
            x = torch.randn(9)
            assert_same(fast(x), split(x))
    assert fast.stats().hits == 0
