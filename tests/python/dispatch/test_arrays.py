"""Arrays of numpy: what they hold is a guard, what numpy makes of them follows from it, and a tensor on the memory of
one is neither written nor given away. Deques that are found, and tensors made of lists of tensors."""

from __future__ import annotations

import types
import warnings
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fastjit
from helpers import assert_same, settle

X = torch.arange(12.0).reshape(3, 4)
TABLE = np.arange(12, dtype=np.float32).reshape(3, 4)
SPREAD = np.arange(24, dtype=np.float32).reshape(3, 8)[:, ::2]
ALIKE = np.lib.stride_tricks.as_strided(np.arange(4, dtype=np.float32), (3, 4), (0, 4))
COUNT = np.array(3)
HISTORY: deque[Any] = deque([1.0, 2.0, 3.0], maxlen=4)


FOUND = {
    "from_numpy": lambda x: x + torch.from_numpy(TABLE),
    "as_tensor": lambda x: x + torch.as_tensor(TABLE),
    "as_tensor of a type": lambda x: x + torch.as_tensor(TABLE, dtype=torch.float64),
    "new_tensor": lambda x: x + x.new_tensor(TABLE),
    "tensor": lambda x: x + torch.tensor(TABLE.T).t(),
    "spread in memory": lambda x: x * torch.from_numpy(SPREAD),
    "transposed": lambda x: x @ torch.from_numpy(TABLE.T),
    "one row for all": lambda x: x * torch.as_tensor(ALIKE),
    "a number": lambda x: x * torch.from_numpy(COUNT),
    "a part": lambda x: x + torch.from_numpy(TABLE[1]) * float(TABLE[0, 2]) + len(TABLE),
    "parts": lambda x: (
        x[:, 1:3] + torch.from_numpy(TABLE[:, 1:3]) + torch.from_numpy(TABLE[TABLE.argsort(1)[:, 0], :2])
    ),
    "row by row": lambda x: sum(torch.from_numpy(row) for row in TABLE) + x,
    "in a loop": lambda x: walk(x),
    "arithmetic": lambda x: x + torch.from_numpy(np.sin(TABLE) * 2 - TABLE / (1 + TABLE)),
    "functions": lambda x: x + torch.from_numpy(np.stack([TABLE.mean(0), np.ones(4)]).sum(0)),
    "copied to another type": lambda x: x + torch.from_numpy(TABLE.astype(np.float64)),
}


def walk(x: Tensor) -> Tensor:
    for i, row in enumerate(TABLE):
        x = x + torch.from_numpy(row) * i
    return x


@pytest.mark.parametrize("case", FOUND)
def test_an_array_that_is_found_is_compared(case: str) -> None:
    fn = FOUND[case]
    fast = settle(fn, X)
    assert fast.stats().steps > 0
    for array in (TABLE, SPREAD, COUNT):
        array += 1
        hits, recordings = fast.stats().hits, fast.stats().misses
        assert_same(fast(X), fn(X), exact=True)
        assert fast.stats().hits + fast.stats().misses == hits + recordings + 1
        assert_same(fast(X), fn(X), exact=True)
        array -= 1
    assert fast.stats().misses > 1 or case == "one row for all"
    assert fast.stats().fallbacks == {}


MADE = {
    "zeros": lambda x: x + torch.from_numpy(np.zeros(4, np.float32)),
    "linspace": lambda x: x + torch.from_numpy(np.linspace(0, 1, 4)),
    "transposed, as a result": lambda x: (torch.from_numpy(np.arange(12.0).reshape(4, 3).T), x + 1),
    "spread, as a result": lambda x: (torch.from_numpy(np.arange(24.0).reshape(3, 8)[:, ::2]), x + 1),
    "window": lambda x: x * torch.as_tensor(np.hanning(4), dtype=x.dtype),
}


@pytest.mark.parametrize("case", MADE)
def test_an_array_that_the_call_makes_is_a_constant(case: str) -> None:
    fast = settle(MADE[case], X)
    a, b = fast(X), fast(X)
    if isinstance(a, tuple):  # memory of its own in every call
        a[0].zero_()
        assert b[0].count_nonzero() > 0
        assert_same(fast(X), MADE[case](X), exact=True)


def refuse(fn: Any, reason: str, *args: Any) -> None:
    fast = fastjit.jit(fn, on_unsupported="eager")
    for _ in range(3):
        assert_same(fast(*args), fn(*args), exact=True)
    assert fast.stats().hits == 0
    assert any(reason in why for why in fast.stats().fallbacks), fast.stats().fallbacks


def test_each_array_that_is_found_has_a_guard_of_its_own() -> None:
    whole = np.arange(6.0)
    part = whole[:4]

    def both(x: Tensor) -> Tensor:
        return x.sum() + torch.from_numpy(whole).sum() + torch.from_numpy(part)

    fast = settle(both, X)
    part.shape = (2, 2)
    assert_same(fast(X), both(X), exact=True)
    assert (fast.stats().hits, fast.stats().misses) == (2, 2)


def test_memory_of_an_array_is_not_written() -> None:
    def found(x: Tensor) -> Tensor:
        torch.from_numpy(TABLE).add_(x)
        TABLE[:] = X.numpy()
        return x * 2

    def made(x: Tensor) -> Tensor:
        array = np.zeros(2)
        torch.from_numpy(array).add_(x[0, 1].double())
        return x + float(array[0])

    def by_a_view(x: Tensor) -> Tensor:
        array = np.zeros((3, 4), np.float32)
        torch.from_numpy(array)[0].copy_(x[0])
        return x + torch.from_numpy(array)

    refuse(made, "the memory of an array of numpy is written by aten::add_ at test_arrays.py:", X)
    refuse(by_a_view, "the memory of an array of numpy is written by aten::copy_ at test_arrays.py:", X)
    fast = fastjit.jit(found, on_unsupported="eager")
    try:
        for _ in range(3):
            fast(X)
        assert fast.stats().hits == 0
    finally:
        TABLE[:] = X.numpy()


def test_an_array_may_share_memory_with_a_tensor_that_is_written() -> None:
    weight = torch.zeros(3, 4)
    alias = weight.numpy()

    def by_tensor(x: Tensor) -> Tensor:
        seen = torch.from_numpy(alias)
        weight.add_(x)
        return seen * 2

    def by_number(x: Tensor) -> Tensor:
        weight.add_(x)
        return x + float(alias[0, 1])

    def argument(x: Tensor, y: Tensor) -> Tensor:
        seen = torch.from_numpy(TABLE)
        y.add_(x)
        return seen * 2

    reason = "an array of numpy is read, and memory that it may share is written by aten::add_ at test_arrays.py:"
    for fn in (by_tensor, by_number):
        fast = fastjit.jit(fn, on_unsupported="eager")
        for step in (torch.zeros(3, 4), X, X + 1):  # the first changes nothing
            before = weight.clone()
            got = fast(step)
            weight.copy_(before)
            assert_same(got, fn(step), exact=True)
            weight.zero_()
        assert fast.stats().hits == 0 and any(reason in why for why in fast.stats().fallbacks), fast.stats().fallbacks
    fast = fastjit.jit(argument, on_unsupported="eager")
    for target in (torch.ones(3, 4), torch.from_numpy(TABLE)):
        kept = TABLE.copy()
        got = fast(X, target)
        TABLE[:] = kept
        assert_same(got, argument(X, target), exact=True)
        TABLE[:] = kept
    assert fast.stats().hits == 0 and any(reason in why for why in fast.stats().fallbacks), fast.stats().fallbacks


def test_memory_of_an_array_that_was_there_is_not_given_away() -> None:
    reason = "its result shares memory with an array of numpy that was there before"
    refuse(lambda x: (torch.from_numpy(TABLE), x + 1), reason, X)
    refuse(lambda x: (torch.as_tensor(TABLE[1])[:2], x + 1), reason, X)
    held = types.SimpleNamespace(table=None)

    def keeps(x: Tensor) -> Tensor:
        held.table = torch.from_numpy(TABLE)
        return x + 1

    refuse(keeps, reason, X)
    assert held.table.data_ptr() == TABLE.ctypes.data
    fast = settle(lambda x: (torch.as_tensor(TABLE, dtype=torch.float64), x + 1), X)
    fast(X)[0].zero_()
    assert TABLE.any()


def test_arrays_that_are_written_or_too_large_run_eagerly() -> None:
    large = np.zeros((200, 200), np.float32)

    def store(x: Tensor) -> Tensor:
        array = np.zeros(2)
        array[0] = 3
        return x + float(array[0])

    def in_place(x: Tensor) -> Tensor:
        array = np.zeros(2)
        array += 3
        return x + float(array[0])

    def into(x: Tensor) -> Tensor:
        array = np.zeros(4)
        np.sin(np.arange(4.0), array)
        return x + float(array[1])

    refuse(store, "store to item of numpy.ndarray", X)
    refuse(in_place, "operator on numpy.ndarray", X)
    refuse(into, "call of sin", X)
    refuse(lambda x: x + torch.from_numpy(large)[0, 0], "from_numpy with numpy.ndarray of 160000 bytes", X)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        fastjit.jit(lambda x: x + torch.from_numpy(large)[0, 0])(X)
    assert "make the tensor outside" in str(said[0].message)


LISTS = {
    "tensors": lambda x: torch.tensor([x.sum(), x.max()]),
    "to another type": lambda x: torch.tensor([x.sum(), x.max()], dtype=torch.float64),
    "flags": lambda x: (torch.tensor([(x > 3).any(), (x < 0).all()]), x + 1),
    "and written": lambda x: torch.tensor((x.sum(), x.max())).mul_(2),
    "whole numbers": lambda x: torch.tensor([x.argmax(), x.argmin()], dtype=torch.int32),
}


@pytest.mark.parametrize("case", LISTS)
def test_a_tensor_of_tensors_is_computed(case: str) -> None:
    """The values may be others in every call."""
    fn = LISTS[case]
    fast = fastjit.jit(fn)
    for call in range(4):
        x = torch.randint(-9, 9, (3, 4)).float()
        assert_same(fast(x), fn(x), exact=True)
        assert (fast.stats().hits, fast.stats().fallbacks) == (call, {})


def test_numbers_of_tensors_in_lists_are_values_of_the_path() -> None:
    def mixed(x: Tensor, t: Tensor) -> Tensor:
        return x[:, [0, t]] * torch.tensor([1, t]) + torch.tensor([[t, 2]]).sum()

    fast = fastjit.jit(mixed)
    for value, hit in ((2, 0), (2, 1), (1, 1), (1, 2), (2, 3)):
        t = torch.tensor(value)
        assert_same(fast(X, t), mixed(X, t), exact=True)
        assert (fast.stats().hits, fast.stats().fallbacks) == (hit, {})

    def many(x: Tensor) -> Tensor:
        return x + torch.tensor([x[:1], x[1:2]])  # of one element each

    refuse(lambda x: x[[slice(0, 2), [0, 1]]], "index by a list that holds more than numbers and tensors", X)
    fast = fastjit.jit(many)
    for _ in range(3):
        assert_same(fast(X[0, :2]), many(X[0, :2]), exact=True)
    assert fast.stats().hits == 2


def test_items_of_a_deque_that_is_found_are_facts() -> None:
    held = deque([X + 1, X * 2])

    def read(x: Tensor) -> Tensor:
        total = sum(HISTORY) * x + HISTORY[-1] + len(HISTORY) + (2.0 in HISTORY)
        for tensor in held:
            total = total + tensor
        return torch.stack([total, *held]) if held else total

    fast = settle(read, X)
    for change, undo in (
        (lambda: HISTORY.append(4.0), HISTORY.pop),
        (lambda: HISTORY.rotate(1), lambda: HISTORY.rotate(-1)),
        (lambda: held.append(X), held.pop),
    ):
        hits = fast.stats().hits
        change()
        assert_same(fast(X), read(X), exact=True)
        assert fast.stats().hits == hits
        assert_same(fast(X), read(X), exact=True)
        assert fast.stats().hits == hits + 1
        undo()
    held[0].add_(1)  # its elements are no fact
    assert_same(fast(X), read(X), exact=True)
    assert "the items of " in fast.inspect("guards")
    refuse(lambda x: (HISTORY.append(1.0), x + len(HISTORY))[1], "change of collections.deque by deque.append", X)
    while len(HISTORY) > 3:
        HISTORY.pop()
