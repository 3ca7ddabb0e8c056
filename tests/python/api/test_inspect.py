"""inspect(): every stage of a program as text, and the source that runs."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from fastjit import fastjit
from fastjit.api import STAGES


def gelu_chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.gelu(x * y + 1) * x


def test_inspect_a_variant_that_is_not_there():
    fast = fastjit(gelu_chain)
    fast(torch.randn(4), torch.randn(4))
    for stage in STAGES:
        for variant in (-1, 1, 1 << 70):
            with pytest.raises(LookupError, match=f"has 1 compiled variant, so there is no variant {variant}"):
                fast.inspect(stage, variant)


@pytest.mark.parametrize("stage", ["source", "ir", "plan", "llvm", "asm", "guards", "dot"])
def test_inspect(stage):
    fast = fastjit(gelu_chain)
    with pytest.raises(LookupError, match="has 0 compiled variants"):
        fast.inspect(stage)
    x = torch.randn(4)
    fast(x, torch.randn(4))
    assert len(fast.inspect(stage)) > 20
    with pytest.raises(ValueError, match="unknown stage"):
        fast.inspect("bytecode")


def test_inspect_passes():
    fast = fastjit(gelu_chain)
    fast(torch.randn(4), torch.randn(4))
    steps = fast.inspect("passes")
    assert steps[0].name == "capture"
    assert all(s.nodes > 0 and s.ms >= 0 and s.graph for s in steps)


SOURCES = {
    "chain": (gelu_chain, lambda: (torch.randn(3, 4), torch.randn(3, 4))),
    "views": (lambda x: x.t()[1:] * 2 + x.select(1, 0), lambda: (torch.randn(4, 4),)),
    "softmax": (lambda x: torch.softmax(x * 2, -1), lambda: (torch.randn(5, 9),)),
    "matmul": (lambda x, y: torch.mm(x.t(), y) * 100 + 10, lambda: (torch.randn(6, 5), torch.randn(6, 7))),
    "cat": (lambda x, y: torch.cat([x, y * 2], 1), lambda: (torch.randn(2, 3), torch.randn(2, 4))),
    "mask": (lambda x: torch.where(x > 0, x, x.exp()), lambda: (torch.randn(9),)),
    "extern": (lambda x: torch.cumsum(x, 0) + 1, lambda: (torch.randn(9),)),
}


@pytest.mark.parametrize("name", SOURCES)
def test_source_runs(name):
    fn, make = SOURCES[name]
    args = make()
    fast = fastjit(fn)
    expected = fast(*args)
    space: dict[str, object] = {}
    exec(fast.inspect("source"), space)
    torch.testing.assert_close(space["program"](dict(zip("xy", args, strict=False)))[0], expected)


def loop_over_rows(x: torch.Tensor) -> torch.Tensor:
    state = torch.zeros(3)
    for row in x:
        state = torch.sort(row + state)[0] * 0.5
    return state


@pytest.mark.parametrize("fn", [lambda x: torch.relu(x[1:] @ x.t()).sum(0), loop_over_rows])
def test_source_of_a_program_for_any_size_is_of_the_recorded_one(fn):
    fast = fastjit(fn)
    for rows in (7, 9, 12):
        fast(torch.randn(rows, 3))
    assert fast.stats().hits == 1
    x, space = torch.randn(9, 3), dict[str, object]()  # the second recording made it one for any size
    exec(fast.inspect("source"), space)
    torch.testing.assert_close(space["program"]({"x": x})[0], fn(x))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x[torch.randperm(4)],
        lambda x: x[:3, 0] + torch.randint(0, 5, (3,)),
        lambda x: torch.rand(3, dtype=torch.float64) + x[0, :3],
        lambda x: x.cumsum(0, dtype=torch.half),
        lambda x: x.to(torch.complex64),
        lambda x: x.abs().to(torch.uint16),
    ],
)
def test_source_names_dtypes_as_python_does(fn):
    fast, x = fastjit(fn), torch.randn(4, 6)
    fast(x), fast(x)
    assert fast.stats().hits == 1
    space: dict[str, object] = {}
    exec(fast.inspect("source"), space)
    torch.manual_seed(0)
    want = fn(x)
    torch.manual_seed(0)
    torch.testing.assert_close(space["program"]({"x": x})[0], want, rtol=0, atol=0)


def test_source_computes_numbers_as_python_does():
    count = torch.tensor(1.0)

    @fastjit
    def f(x, rate):
        count.add_(1)
        return x * (1 - 0.9 ** count.item()) + math.sqrt(x.abs().amax().item()) * rate

    x = torch.randn(4)
    for rate in (0.5, 0.25, 0.125):
        f(x, rate)
    space: dict[str, object] = {}
    exec(f.inspect("source"), space)
    given = {"count": count.clone(), "x": x}
    assert f.stats().hits >= 1
    want = f(x, 2.0)
    torch.testing.assert_close(space["program"](given, {"rate": 2.0})[0], want)
    torch.testing.assert_close(given["count"], count)


def test_source_holds_numbers_in_calls():
    @fastjit
    def f(x):
        z = torch.mm(x, x)
        z[0] = 0.1
        z[1] = float("inf")
        return z.cumsum(0), z * 3

    x = torch.randn(4, 4)
    expected = f(x)
    space: dict[str, object] = {}
    exec(f.inspect("source"), space)
    torch.testing.assert_close(tuple(space["program"]({"x": x})), expected, rtol=0, atol=0)
