"""What a hit needs beside its inputs: never more than eager, and memory that somebody kept is never written over."""

from __future__ import annotations

import ctypes
import gc

import numpy as np
import pytest
import torch

from fastjit import _C, fastjit
from helpers import assert_same

SIDE = 512
VALUE = SIDE * SIDE * 4  # bytes


class _Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena a b c hblkhd d e uordblks f g".split()]


_libc = ctypes.CDLL(None)
_libc.mallinfo2.restype = _Mallinfo
kept: list = []


def in_use() -> int:
    """Bytes that malloc has given out, FastJIT's idle memory included."""
    info = _libc.mallinfo2()
    return info.uordblks + info.hblkhd


@pytest.fixture(scope="module")
def ops():
    """Operators that no lowering knows; `probe` notes what is in use while its operand and its result are alive."""
    seen = []

    @torch.library.custom_op("fastjit_memory::probe", mutates_args=())
    def probe(x: torch.Tensor) -> torch.Tensor:
        result = x.clone()
        seen.append(in_use())
        return result

    @torch.library.custom_op("fastjit_memory::part", mutates_args=())
    def part(x: torch.Tensor) -> torch.Tensor:
        result = x[:, :64].clone()
        seen.append(in_use())
        return result

    @torch.library.custom_op("fastjit_memory::keeps", mutates_args=())
    def keeps(x: torch.Tensor) -> torch.Tensor:
        result = x.clone()
        kept.extend([x, result])
        return result

    array = np.arange(16.0, dtype=np.float32)

    @torch.library.custom_op("fastjit_memory::table", mutates_args=())
    def table(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(array)

    probe.seen = seen
    table.array = array
    return {"probe": probe, "part": part, "keeps": keeps, "table": table}


def peak(call, x, ops) -> float:
    """The most that was in use beyond what was before the call, in values."""
    gc.collect()
    _C.pool_clear()
    ops["probe"].seen.clear()
    before = in_use()
    call(x)
    return (max(ops["probe"].seen) - before) / VALUE


def chain(x, ops):
    for _ in range(4):
        x = ops["probe"](x.tanh() * 2)
    return x.sum()


def reshaped(x, ops):
    for _ in range(4):
        x = ops["probe"](x.tanh().reshape(SIDE // 2, 2 * SIDE)).reshape(SIDE, SIDE)
    return x.sum()


def residual(x, ops):
    x = ops["probe"](x)
    for _ in range(4):
        x = x + ops["probe"]((x - x.mean(1, keepdim=True)).tanh())
    return x.sum()


def dense(x, ops):
    parts = [ops["part"](x)]
    for _ in range(6):
        parts.append(ops["part"](torch.cat(parts, 1).relu() * 2))
    return ops["part"](torch.cat(parts, 1)).sum()


def normed(x, ops):
    """Large temporaries first, calls with large results later."""
    for _ in range(3):
        x = torch.softmax(x, 0).exp()
    y = x.sum(0)
    for _ in range(3):
        y = ops["probe"](y.expand(SIDE, SIDE) * 2).sum(0)
    return y


@pytest.mark.parametrize("model", [chain, reshaped, residual, dense, normed])
@torch.no_grad()
def test_a_hit_needs_no_more_memory_than_eager(model, ops):
    fast = fastjit(lambda x: model(x, ops), cache="memory")
    x = torch.randn(SIDE, SIDE)
    expected = model(x, ops)
    for _ in range(3):
        assert_same(fast(x), expected)
    assert (fast.stats().hits, fast.stats().fallbacks) == (2, {})
    eager = peak(lambda x: model(x, ops), x, ops)
    found = peak(fast, x, ops)
    assert found < eager + 0.1
    assert fast.stats().hits == 3


@torch.no_grad()
def test_what_an_operator_kept_is_not_written_over(ops):
    def f(x):
        y = ops["keeps"](x * 2)  # keeps its operand and its result
        return ops["probe"](y + 1) * 3

    fast = fastjit(f, cache="memory")
    for value in range(4):
        x = torch.full((SIDE, SIDE), float(value))
        kept.clear()
        assert_same(fast(x), (x * 2 + 1) * 3)
        for tensor in kept:
            assert_same(tensor, x * 2)
    kept.clear()
    assert (fast.stats().hits, fast.stats().fallbacks) == (3, {})


@torch.no_grad()
def test_memory_that_only_an_operator_knows_is_not_written_over(ops):
    def f(x):
        y = ops["table"](x)
        return ops["probe"](y + 1) * 3

    fast = fastjit(f, cache="memory")
    table = torch.arange(16.0)
    for _ in range(4):
        assert_same(fast(torch.zeros(16)), (table + 1) * 3)
        assert ops["table"].array.tolist() == table.tolist()
    assert (fast.stats().hits, fast.stats().fallbacks) == (3, {})
