"""State that is changed between calls, and results that depend on data: always eager's results, and what ran."""

from __future__ import annotations

import random
import time

import pytest
import torch

from fastjit import fastjit

LIST = [1.0, 2.0]
TABLE = {"w": 3.0}
NESTED = {"a": [1.0]}
SET = {1, 2}
NAMES = {"a", "b"}
ONES = {1.0}


class OwnSet(set):
    """Of a type without facts."""


OWN_SET = OwnSet({1, 2})
SCALE = 4.0


class Config:
    scale = 5.0


def default(x, parts=[1.0]):  # noqa: B006
    return x * parts[-1]


def handled(x):
    try:
        return x.view(3, -1) + 1
    except RuntimeError:
        return x - 1


def printed(x):
    print(x)
    return x + 1


def bump(where, key):
    where[key] += 1.0


class State:
    def __init__(self, scale):
        self.scale = scale


STATE = State(2.0)


class Bag:
    def __init__(self):
        self.parts = [1.0, 2.0]

    def total(self):
        return sum(self.parts)


BAG = Bag()

# name -> (function, what changes between the calls)
STATEFUL = {
    "attribute of another object": (lambda x: x * STATE.scale, lambda: bump(STATE.__dict__, "scale")),
    "item of a list": (lambda x: x * LIST[0], lambda: bump(LIST, 0)),
    "item of a dictionary": (lambda x: x * TABLE["w"], lambda: bump(TABLE, "w")),
    "sum over a list": (lambda x: x * sum(LIST), lambda: LIST.append(1.0)),
    "generator expression over a list": (lambda x: x * sum(v * 2 for v in LIST), lambda: bump(LIST, 1)),
    "length of a list": (lambda x: x * len(LIST), lambda: LIST.append(1.0)),
    "a global": (lambda x: x * SCALE, lambda: bump(globals(), "SCALE")),
    "a class attribute": (lambda x: x * Config.scale, lambda: setattr(Config, "scale", Config.scale + 1)),
    "a default argument that is changed": (default, lambda: bump(default.__defaults__[0], 0)),
    "a method that sums a list": (lambda x: x * BAG.total(), lambda: BAG.parts.append(1.0)),
    "an object that is replaced": (lambda x: x * BAG.total(), lambda: globals().update(BAG=Bag())),
    "a dictionary of lists": (lambda x: x * NESTED["a"][0], lambda: bump(NESTED["a"], 0)),
    "length of a set": (lambda x: x * len(SET), lambda: SET.add(len(SET) + 1)),
    "sum over a set": (lambda x: x * sum(ONES), lambda: ONES.add(sum(ONES) + 1)),
    "names that a set lacks": (
        lambda x: x * sum(name in NAMES for name in "abcdefgh"),
        lambda: NAMES.add("abcdefgh"[len(NAMES)]),
    ),
}
UNSOUND = {
    "try around an operator": handled,
    "print": printed,
    "an unknown C function": lambda x: x * len(time.ctime()),
    "a set of a class of its own": lambda x: x * len(OWN_SET),
    "members of a set of a class of its own": lambda x: x * sum(OWN_SET),
    "the version of a tensor": lambda x: x * x._version,
}
DATA = {
    "numpy": lambda x: x * float(x.numpy()[0]),
    "masked elements in parts": lambda x: torch.cat(x[x > -9].split(2)),
    "masked elements one by one": lambda x: torch.stack(x[x > -9].unbind()),
    "rows of nonzero": lambda x: torch.stack([row * 2 for row in torch.nonzero(x > -9)]),
    "unique values one by one": lambda x: sum(v for v in torch.unique(x.round())),
}
# name -> (function, how many variants six calls make)
DATA_SIZES = {
    "masked elements": (lambda x: x[x > 0], 1),
    "nonzero": (lambda x: torch.nonzero(x > 0), 1),
    "unique": (lambda x: torch.unique(x.round()), 1),
    "a size that depends on data": (lambda x: x * (x > 0).nonzero().shape[0], 1),
    "the digits of one": (lambda x: x * len(str((x > 0).nonzero().shape[0])), None),
}


# A number in a place is a parameter from its second value on.
NUMBERS = {
    "attribute of another object",
    "item of a list",
    "item of a dictionary",
    "a global",
    "a default argument that is changed",
    "a dictionary of lists",
}


@pytest.mark.parametrize("what", STATEFUL)
def test_changed_state_is_seen(what):
    fn, change = STATEFUL[what]
    fast = fastjit(on_unsupported="eager")(fn)
    for _ in range(4):
        for _ in range(2):
            x = torch.randn(4)
            assert torch.equal(fast(x), fn(x))
        change()
    stats = fast.stats()
    assert (stats.hits, stats.misses, stats.fallbacks) == ((6, 2, {}) if what in NUMBERS else (4, 4, {}))


@pytest.mark.parametrize("what", UNSOUND)
def test_what_no_fact_covers_runs_eagerly(what):
    fn = UNSOUND[what]
    fast = fastjit(on_unsupported="eager")(fn)
    x = torch.randn(4)
    for _ in range(3):
        assert torch.equal(fast(x), fn(x))
    assert fast.stats().hits == 0 and sum(fast.stats().fallbacks.values()) == 3


@pytest.mark.parametrize("what", DATA)
def test_data_is_looked_at_in_every_call(what):
    fn = DATA[what]
    fast = fastjit(on_unsupported="eager")(fn)
    for seed in range(6):
        x = torch.randn(6, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(fast(x), fn(x))
    assert fast.stats().hits == 0 and sum(fast.stats().fallbacks.values()) >= 1


@pytest.mark.parametrize("what", DATA_SIZES)
def test_sizes_are_looked_at_in_every_call(what):
    """What torch makes of data is as large as data says; of a size whose value Python reads, each is a variant."""
    fn, variants = DATA_SIZES[what]
    fast = fastjit(fn)
    inputs = [torch.randn(6, generator=torch.Generator().manual_seed(seed)) for seed in range(6)]
    sizes = len({int((x > 0).sum()) for x in inputs})
    assert sizes > 1
    for x in inputs * 2:
        assert torch.equal(fast(x), fn(x))
    stats = fast.stats()
    variants = variants or sizes
    assert (stats.variants, stats.hits, stats.fallbacks) == (variants, 12 - variants, {})


def test_random_and_time_are_drawn_in_every_call():
    for draw in (random.random, time.perf_counter):
        fast = fastjit(on_unsupported="eager")(lambda x, draw=draw: x + draw())
        x = torch.zeros(2, dtype=torch.float64)
        assert len({float(fast(x)[0]) for _ in range(4)}) == 4


def test_a_closure_is_rebound():
    scale = 1.0

    def fn(x):
        return x * scale

    fast = fastjit(fn)
    for step in range(4):
        scale = float(step)
        x = torch.randn(3)
        assert torch.equal(fast(x), x * scale)
