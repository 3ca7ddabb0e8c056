"""Tensors indexed by tensors of ints: what kernels take themselves, and what stays torch's."""

from __future__ import annotations

import pytest
import torch

import fastjit
from helpers import assert_same

CALLS = ("aten::index.Tensor", "aten::index_select", "aten::embedding")


def rows(x):
    """Different numbers, so that no order is a matter of ties."""
    return x.sort(dim=0, descending=True)[1]


TAKEN = {
    "rows": lambda x, y: y[rows(x[:, 0])] * 2,
    "the best rows": lambda x, y: y[x[:, 0].topk(3)[1]] + 1,
    "columns": lambda x, y: y[:, rows(x[0])] * 2,
    "columns by select": lambda x, y: torch.index_select(y, 1, rows(x[0])) * 2,
    "a row by select": lambda x, y: torch.index_select(y, 0, x[:, 0].argmax()) * 2,
    "the middle of three dims": lambda x, y: (y[:, None] * x)[:, rows(x[:, 0])] + 1,
    "embedded": lambda x, y: torch.nn.functional.embedding(rows(x[:, 0]), y) + 1,
    "by an index of two dims": lambda x, y: y[rows(x)] - 1,
    "the same row of each": lambda x, y: y[x.argmax(dim=0)] * 2,
    "twice": lambda x, y: y[rows(x[:, 0])][rows(x[:, 1])] + 1,
    "the order of an order": lambda x, y: y[rows(x[:, 0])[rows(x[:, 1])]] + 1,
    "pairs": lambda x, y: y[x[:, 0].sort()[1][:3], x[0].sort()[1][:3]] * 2,
    "pairs of all": lambda x, y: y[rows(x[:, 0])[:, None], rows(x[0])] * 2,
    "pairs in the middle": lambda x, y: (y[None] * x[0, 0])[:, x[:, 0].sort()[1][:3], x[0].sort()[1][:3]] * 2,
    "bools": lambda x, y: (y > 0)[rows(x[:, 0])] & (x > 0),
    "ints": lambda x, y: (y * 10).to(torch.int16)[rows(x[:, 0])] + 1,
    "halves": lambda x, y: y.to(torch.bfloat16)[rows(x[:, 0])] * 2,
    "positions": lambda x, y: rows(x[:, 0])[rows(x[:, 1])],
    "of what is joined": lambda x, y: torch.cat((y, y + 1))[torch.cat((rows(x[:, 0]), rows(x[:, 1])))] * 2,
    "joined": lambda x, y: torch.cat((y[rows(x[:, 0])], x[rows(y[:, 0])], y)),
    "of a view": lambda x, y: y.t()[rows(x[0])] * 2,
    "summed": lambda x, y: (y[rows(x[:, 0])] * x).sum(dim=1),
    "below the sum of the table": lambda x, y: (y - y.mean(dim=0))[rows(x[:, 0])] * 2,
    "of remainders": lambda x, y: y[rows(x[:, 0]) % 3] * 2,
    "of quotients": lambda x, y: y[rows(x[:, 0]) // 2] * 2,
    "of counted positions": lambda x, y: y[torch.arange(4, device=y.device)] * 2,
}


EXACT = {what: not what.startswith(("summed", "below the sum")) for what in TAKEN}


def given(dtype=torch.float32):
    torch.manual_seed(0)
    return torch.randperm(20).view(5, 4).to(dtype), torch.randn(5, 4, dtype=dtype)


@pytest.mark.parametrize("what", TAKEN)
def test_kernels_take_what_is_in_range(what):
    function, fast = TAKEN[what], fastjit.fastjit(TAKEN[what])
    for _ in range(3):
        x, y = given()
        assert_same(fast(x, y), function(x, y), exact=EXACT[what])
    text = str(fast.inspect("ir"))
    assert " gather " in text and not any(call in text for call in CALLS)
    assert (fast.stats().hits, dict(fast.stats().fallbacks)) == (2, {})


@pytest.mark.parametrize("what", TAKEN)
def test_of_any_size(what):
    function, fast = TAKEN[what], fastjit.fastjit(TAKEN[what], dynamic=True)
    for height, width in ((5, 4), (7, 6), (6, 9), (9, 5)):
        torch.manual_seed(height)
        x, y = torch.randperm(height * width).view(height, width).float(), torch.randn(height, width)
        assert_same(fast(x, y), function(x, y), exact=EXACT[what])
    text = str(fast.inspect("ir"))
    assert not any(call in text for call in CALLS)
    assert dict(fast.stats().fallbacks) == {}


NOT_KNOWN = {
    "an argument": lambda x, index: x[index] * 2,
    "selected": lambda x, index: torch.index_select(x, 0, index) * 2,
    "embedded": lambda x, index: torch.nn.functional.embedding(index, x) * 2,
    "moved": lambda x, index: x[index + 1] * 2,
    "of a longer one": lambda x, index: x[torch.cat((x, x))[:, 0].sort()[1]] * 2,
}


@pytest.mark.parametrize("what", NOT_KNOWN)
def test_torch_checks_what_may_be_out_of_range(what):
    function, fast = NOT_KNOWN[what], fastjit.fastjit(NOT_KNOWN[what])
    x = torch.randn(5, 4)
    for index in ([0, 1], [3, 2], [4, 7], [1, 1]):
        try:
            expected = function(x, torch.tensor(index))
        except (IndexError, RuntimeError) as error:
            with pytest.raises(type(error)):
                fast(x, torch.tensor(index))
        else:
            assert_same(fast(x, torch.tensor(index)), expected, exact=True)


def outcome(call, *args):
    try:
        return call(*args)
    except (IndexError, RuntimeError) as error:
        return str(error).splitlines()[0]


@pytest.mark.parametrize("sizes", [(5, 0), (0, 5), (0, 0)])
def test_an_index_into_a_table_without_elements(sizes):
    """What torch refuses there it refuses in hits."""
    x = torch.empty(sizes)
    for take in (lambda x, i: x[i] + 1, lambda x, i: x.index_select(0, i) + 1, lambda x, i: x.take(i) + 1):
        fast = fastjit.fastjit(take)
        for index in (2, 4, 7, 2):
            assert_same(outcome(fast, x, torch.tensor([index])), outcome(take, x, torch.tensor([index])))


@pytest.mark.parametrize("index", [-1, 2])
def test_negative_indices_count_from_the_end(index):
    fast = fastjit.fastjit(lambda x, i: x[i] + 1)
    x = torch.randn(5, 4)
    for _ in range(3):
        assert_same(fast(x, torch.tensor([index])), x[torch.tensor([index])] + 1, exact=True)


def found_and_taken(x, y):
    """Columns of what was found, of as many elements as data say."""
    index = (x > 10).nonzero()
    return y[index[:, 0]] * 2, (x * y)[index[:, 0], index[:, 1]] + 1, index[:, 1]


def test_what_nonzero_finds_is_in_range():
    fast = fastjit.fastjit(found_and_taken)
    for seed in range(5):
        torch.manual_seed(seed)
        x, y = torch.randint(0, 21, (5, 4)).float(), torch.randn(5, 4)
        assert_same(fast(x, y), found_and_taken(x, y), exact=True)
    text = str(fast.inspect("ir"))
    assert " gather " in text and "aten::index.Tensor" not in text
    assert dict(fast.stats().fallbacks) == {}


def taken_then_written(x, y):
    order = rows(x[:, 0])
    table = y * 2
    taken = table[order]
    table[1:3] = -1.0
    y[:2] = taken[:2]
    return table[order] + taken, table


def test_before_and_after_the_table_is_written():
    fast = fastjit.fastjit(taken_then_written)
    for _ in range(3):
        x, y = given()
        mine, theirs = y.clone(), y.clone()
        assert_same(fast(x, mine), taken_then_written(x, theirs), exact=True)
        assert_same(mine, theirs, exact=True)
    text = str(fast.inspect("ir"))
    assert " gather " in text and "aten::index.Tensor" not in text


def order_written(x, y):
    """It was in range, and is no longer."""
    order = rows(x[:, 0])
    order -= 1
    order[0] = -2
    return y[order] * 2


def test_a_written_index_is_not_known():
    fast = fastjit.fastjit(order_written)
    for _ in range(3):
        x, y = given()
        assert_same(fast(x, y), order_written(x, y), exact=True)
    assert "aten::index.Tensor" in str(fast.inspect("ir"))


@torch.enable_grad()
def test_gradients_of_what_was_taken():
    def loss(x, y):
        return (y[rows(x[:, 0])].tanh() * x).sum() + y[:, x[0].argmax()].exp().sum()

    fast = fastjit.fastjit(loss)
    for _ in range(4):
        x, y = given()
        gradients = []
        for function in (fast, loss):
            leaf = y.clone().requires_grad_()
            result = function(x, leaf)
            result.backward()
            gradients.append((result.detach(), leaf.grad))
        assert_same(gradients[0], gradients[1])
    assert dict(fast.stats().fallbacks) == {}
