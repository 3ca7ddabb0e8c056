"""Classes that each call makes anew: collections.namedtuple inside the call."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fastjit
from helpers import assert_same

X = torch.arange(12.0).reshape(3, 4)


def hits(fn: Callable[..., Any], *args: Any, calls: int = 4, exact: bool = True) -> Any:
    fast = fastjit.jit(fn)
    for _ in range(calls):
        assert_same(fast(*args), fn(*args), exact=exact)
    assert fast.stats().hits == calls - 1 and fast.stats().fallbacks == {}, fast.stats()
    return fast


def unpacked(x: Tensor) -> Tensor:
    pair = collections.namedtuple("Pair", ["low", "high"])
    low, high = pair(x.amin(), high=x.amax())
    return (x - low) / (high - low)


def by_field_and_index(x: Tensor) -> Tensor:
    stages = collections.namedtuple("Stages", "first second third")
    out = stages(x, x * 2, torch.sin(x))
    assert isinstance(out, tuple) and isinstance(out, stages) and not isinstance(x, stages)
    total = x.new_zeros(x.shape)
    for i in range(len(out)):
        total = total + out[i] * (i + 1)
    return total + out.third * len(out._fields) + sum(part.sum() for part in out)


def by_methods(x: Tensor) -> Tensor:
    point = collections.namedtuple("Point", ("x", "y", "scale"), defaults=(2.0,))
    p = point._make([x, -x, 3.0])
    q = point(x, x + 1)
    named = q._asdict()
    return p.x * p.scale - p.y + named["y"] * named["scale"] + torch.stack(q[:2]).sum(0)


def names_in_text(x: Tensor) -> Any:
    pair = collections.namedtuple("Pair", ["low", "high"])
    out = pair(1, 2)
    return x * out.low, f"{out._fields}", type(out).__name__, pair.__module__


def in_a_helper(x: Tensor) -> Tensor:
    def features(y: Tensor) -> Any:
        return collections.namedtuple("Features", ["a", "b"])(y.relu(), y.neg())

    one, other = features(x), features(x + 1)
    assert type(one) is not type(other)
    return one.a + other.b


@pytest.mark.parametrize("fn", [unpacked, by_field_and_index, by_methods, names_in_text, in_a_helper])
def test_a_named_tuple_made_in_the_call(fn):
    hits(fn, X)


class Features(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Any:
        one = self.first(x).relu()
        return collections.namedtuple("Outputs", ["one", "two"])(one, self.second(one))


def test_of_a_module_within_another():
    features = Features()

    def distance(x: Tensor, y: Tensor) -> Tensor:
        a, b = features(x), features(y)
        return sum(((a[i] - b[i]) ** 2).mean() for i in range(len(a)))

    with torch.no_grad():
        hits(distance, X, X + 1, exact=False)  # the library's products have other sums on each CPU


def test_results_have_a_class_of_their_own():
    fast = fastjit.jit(lambda x: collections.namedtuple("Pair", ["a", "b"])(x + 1, x * 2))
    one, other = fast(X), fast(X)
    assert type(one) is not type(other) and torch.equal(other.b, X * 2)
    assert fast.stats().hits == 0
    assert "its result has the class Pair, which is another in each call" in "".join(fast.stats().fallbacks)


@pytest.mark.parametrize(
    "leak",
    [
        lambda x, pair: (x + 1, pair),
        lambda x, pair: {"out": [pair(x, x)]},
        lambda x, pair: ({pair: x + 1}),
        lambda x, pair: (x + 1, pair(1, 2)._asdict),
    ],
)
def test_nothing_leads_to_the_class_of_an_earlier_call(leak):
    def fn(x: Tensor) -> Any:
        return leak(x, collections.namedtuple("Pair", ["a", "b"]))

    fast = fastjit.jit(fn)
    for _ in range(3):
        fast(X)
    assert fast.stats().hits == 0 and fast.stats().fallbacks


def test_stored_where_the_next_call_finds_it():
    kept = types.SimpleNamespace(last=None, seen={})

    def attribute(x: Tensor) -> Tensor:
        kept.last = collections.namedtuple("Pair", ["a", "b"])(x, x * 2)
        return x + 1

    def key(x: Tensor) -> Tensor:
        kept.seen[collections.namedtuple("Pair", ["a"])] = 1
        return x + 1

    for fn in (attribute, key):
        fast = fastjit.jit(fn)
        for _ in range(3):
            before = kept.last
            assert torch.equal(fast(X), X + 1)
            assert fn is key or type(kept.last) is not type(before)
        assert fast.stats().hits == 0
    assert len(kept.seen) == 3


NAMES = ["a", "b"]


def test_what_the_names_depend_on_is_compared():
    def fn(x: Tensor) -> Tensor:
        out = collections.namedtuple("Any", NAMES)(x, x * 2)
        return out.a if "a" in out._fields else out.c

    fast = hits(fn, X)
    NAMES[0] = "c"
    try:
        before = fast.stats().hits
        assert_same(fast(X), fn(X), exact=True)
        assert fast.stats().hits == before
        assert_same(fast(X), fn(X), exact=True)
        assert fast.stats().hits == before + 1
    finally:
        NAMES[0] = "a"


def test_objects_that_name_fields_in_python_are_not_asked_unseen():
    asked = []

    class Name:
        def __str__(self) -> str:
            asked.append(self)
            return "a"

    name = Name()
    fast = fastjit.jit(lambda x: collections.namedtuple("One", [name])(x + 1).a)
    for _ in range(3):
        assert torch.equal(fast(X), X + 1)
    assert fast.stats().hits == 0 and len(asked) == 3
