"""Guards on sizes, one by one: each is true of all sizes that the program serves, and keeps those out of which it is
not.

The texts of `inspect("guards")` are what is tested: each is evaluated by Python with the tensors of a call. Where all
are true the call is a hit; where one alone is false, the call is recorded, and explain() names that guard.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fastjit
from helpers import assert_same

Make = Callable[..., tuple[Tensor, ...]]


def pair(n: int, m: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 4), torch.randn(m, 4)


def one(n: int, m: int) -> tuple[Tensor]:
    return (torch.randn(n, m),)


def branches(x: Tensor) -> Tensor:
    n, m = x.shape
    y = x * 2 if n > 6 else x + 1
    if n % 4 == 0:
        y = y.view(n // 4, 4, m).sum(1)
    return y - 1 if m <= 2 * n else y


def halves(x: Tensor) -> Tensor:
    n = x.size(0)
    return torch.tanh(x[: n // 2]) + x[n - n // 2 :]


def grouped(x: Tensor) -> Tensor:
    return x.reshape(-1, 6).sum(1) + x.numel()


# name: the function, its tensors by two sizes, the two pairs of sizes that are recorded, the least number of guards
PROGRAMS: dict[str, tuple[Callable[..., Any], Make, tuple[tuple[int, int], tuple[int, int]], int]] = {
    "equal sizes": (lambda x, y: x * y + 1, pair, ((3, 3), (5, 5)), 3),
    "a row for all": (lambda x, y: x * y + 1, lambda n, m: (torch.randn(n, 4), torch.randn(1, 4)), ((3, 0), (5, 0)), 1),
    "rows of both": (lambda x, y: torch.cat([x, y]) * 2, pair, ((3, 2), (5, 7)), 2),
    "a product": (lambda x, y: torch.relu(x @ y.t()), pair, ((3, 2), (5, 7)), 2),
    "branches": (branches, one, ((8, 5), (12, 7)), 4),
    "the other branch": (branches, one, ((5, 30), (6, 32)), 4),
    "halves": (halves, one, ((8, 5), (10, 7)), 2),
    "odd halves": (halves, one, ((7, 5), (9, 7)), 2),
    "grouped": (grouped, one, ((6, 4), (9, 8)), 3),
    "windows": (lambda x: F.max_pool1d(x, 3, 2), one, ((8, 9), (5, 12)), 2),
    "compared": (lambda x, y: x * 2 if x.shape == y.shape else x + 1, pair, ((3, 3), (5, 5)), 3),
    "compared, other": (lambda x, y: x * 2 if x.shape == y.shape else x + 1, pair, ((3, 4), (5, 6)), 3),
    "a slice": (lambda x: x[2:6] * 2, one, ((9, 4), (12, 5)), 2),
    "a batch of products": (
        lambda x: torch.matmul(x.unsqueeze(1), x.unsqueeze(2)).squeeze(),
        one,
        ((8, 5), (10, 7)),
        2,
    ),
}

SIZES = list(itertools.product(range(1, 26), range(1, 26)))


def guards_of(fast: Any) -> list[str]:
    """Those on sizes, of the variant that was recorded last."""
    return [line for line in fast.inspect("guards").splitlines() if ".size(" in line and " is one size" not in line]


def holds(guard: str, tensors: tuple[Tensor, ...]) -> bool:
    return bool(eval(guard, {"__builtins__": {}, "min": min, "max": max}, dict(zip("xy", tensors, strict=False))))


@pytest.mark.parametrize("name", PROGRAMS)
@torch.no_grad()
def test_each_guard_keeps_out_what_it_says_and_no_more(name: str) -> None:
    function, make, recorded, least = PROGRAMS[name]
    fast = fastjit.jit(function, max_variants=4096)
    for sizes in recorded:
        fast(*make(*sizes))
    guards = guards_of(fast)
    assert len(guards) >= least and fast.stats().misses == 2
    rng = random.Random(name)
    sizes = rng.sample(SIZES, len(SIZES))
    failing: dict[str, tuple[int, int]] = {}
    served = 0
    for n, m in sizes:
        tensors = make(n, m)
        false = [guard for guard in guards if not holds(guard, tensors)]
        if len(false) == 1:
            failing.setdefault(false[0], (n, m))
        text = fast.explain(*tensors)
        assert text.startswith("a hit") == (not false), (n, m, false, text)
        if false and "guard failed" in text:
            assert any(f"guard failed: {guard}" in text for guard in false), (false, text)
        if not false and served < 40:
            served += 1
            hits = fast.stats().hits
            assert_same(fast(*tensors), function(*tensors))
            assert fast.stats().hits == hits + 1
    assert served > 5
    assert failing, guards  # what no sizes fail alone follows from the others
    for guard, (n, m) in failing.items():
        assert f"guard failed: {guard}" in fast.explain(*make(n, m))
    for n, m in failing.values():
        tensors, hits = make(n, m), fast.stats().hits
        try:
            wanted = function(*tensors)
        except Exception as error:
            with pytest.raises(type(error)):
                fast(*tensors)
        else:
            assert_same(fast(*tensors), wanted)
        assert fast.stats().hits == hits or len(failing) > 1  # what is recorded now may serve the next
