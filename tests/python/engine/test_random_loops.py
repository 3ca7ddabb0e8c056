"""Random loops over time against eager: `make fuzz-loops`; RANDOM_LOOPS=first:last names the seeds."""

from __future__ import annotations

import os
import re
from collections import Counter

import torch
from torch.testing import assert_close

from fastjit import fastjit
from helpers import loop_trips
from random_loops import loop_of

CLOSE = {
    torch.float32: {"rtol": 1e-4, "atol": 2e-5},
    torch.float64: {"rtol": 1e-10, "atol": 1e-11},
    torch.bfloat16: {"rtol": 0.05, "atol": 0.05},
    torch.int64: {"rtol": 0, "atol": 0},
}


def ran(seed: int) -> str:
    """Compares three calls; how the program runs its rounds."""
    loop = loop_of(seed)
    own = [one.clone() for one in loop.arguments]
    expected = [*loop.function(*own), *own]
    fast = fastjit(loop.function)
    for _ in range(3):
        given = [one.clone() for one in loop.arguments]
        found = [*fast(*given), *given]
        for got, wanted in zip(found, expected, strict=True):
            assert got.stride() == wanted.stride(), f"seed {seed}\n{loop.source}"
            assert_close(
                got, wanted, equal_nan=True, **CLOSE[wanted.dtype], msg=lambda m: f"{m}\n{seed}\n{loop.source}"
            )
    stats = fast.stats()
    assert (stats.hits, stats.fallbacks) == (2, {}), f"seed {seed}: {stats}\n{loop.source}"
    if not loop_trips(fast):
        return "straight"
    return "inside" if re.search(r"^kernel \d+ \(.* rounds ", fast.inspect("plan"), re.MULTILINE) else "loop"


def test_random_loops():
    first, last = (int(seed) for seed in os.environ.get("RANDOM_LOOPS", "0:60").split(":"))
    found = Counter(ran(seed) for seed in range(first, last))
    print(f"seeds {first}:{last}: {dict(found)}")
    assert found["inside"] * 10 > found.total() and found["loop"] * 10 > found.total(), found
