"""Numbers that a call finds (attributes, globals, items, cells, slots) and that differ from call to call.

The first value is a fact, the second one makes the place a parameter: whatever number of that type is there afterwards
is a hit. Every test plays its calls in two worlds, eager and compiled, and says how many recordings they took.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn

from fastjit import FastJITWarning, fastjit
from helpers import assert_same

VALUES = (2.5, 3.5, 0.5, -0.0, 1.0, math.inf, 1e-40, 1e30, 2.5)


def x8() -> torch.Tensor:
    return torch.linspace(-3, 3, 8)


class Box:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Slots:
    __slots__ = ("k",)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.k = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) * self.k


GLOBAL = 0.0


def attribute() -> tuple[Callable[..., Any], Callable[[Any], None]]:
    box = Box(k=0.0)
    return lambda x: x * box.k, lambda v: setattr(box, "k", v)


def module() -> tuple[Callable[..., Any], Callable[[Any], None]]:
    layer = Layer()
    return layer.__call__, lambda v: setattr(layer, "k", v)


def slot() -> tuple[Callable[..., Any], Callable[[Any], None]]:
    box = Slots()
    return lambda x: x * box.k, lambda v: setattr(box, "k", v)


def item() -> tuple[Callable[..., Any], Callable[[Any], None]]:
    table = {"k": 0.0}
    return lambda x: x * table["k"], lambda v: table.update(k=v)


def list_item() -> tuple[Callable[..., Any], Callable[[Any], None]]:
    rows = [{}, 0.0]

    def change(value: Any) -> None:
        rows[1] = value

    return lambda x: x * rows[-1], change


def cell() -> tuple[Callable[..., Any], Callable[[Any], None]]:
    k = 0.0

    def change(value: Any) -> None:
        nonlocal k
        k = value

    return lambda x: x * k, change


def global_name() -> tuple[Callable[..., Any], Callable[[Any], None]]:
    scope: dict[str, Any] = {}
    exec("def f(x): return x * K", scope)
    return scope["f"], lambda v: scope.update(K=v)


PLACES = {f.__name__: f for f in (attribute, module, slot, item, list_item, cell, global_name)}


def play(make: Callable[[], Any], values: Iterable[Any], *, misses: int, fallbacks: int = 0) -> Any:
    """Calls with each value in the place; compares with eager, then the number of recordings."""
    (plain, change), (function, change_fast) = make(), make()
    fast = fastjit(function)
    values = list(values)
    for value in values:
        change(value), change_fast(value)
        x = x8()
        assert_same(fast(x), plain(x), exact=True)
    stats = fast.stats()
    assert stats.misses == misses, (stats, fast.inspect("guards"))
    assert sum(stats.fallbacks.values()) == fallbacks, stats.fallbacks
    assert stats.hits == len(values) - misses - fallbacks
    return fast


@pytest.mark.parametrize("place", PLACES)
@torch.no_grad()
def test_any_value_from_the_third_on(place):
    play(PLACES[place], VALUES, misses=2)


@pytest.mark.parametrize("place", PLACES)
@torch.no_grad()
def test_ints(place):
    play(PLACES[place], [3, 5, 7, 1 << 20, 0, -1, 3], misses=2)


@torch.no_grad()
def test_the_type_is_a_fact():
    # 3, True and 2.0 are recorded for what they are; 4 is another int: from there on any.
    play(attribute, [3, True, 2.0, 4, 5, 6.0, 7.0, True, 9], misses=5)


@torch.no_grad()
def test_what_no_program_takes_is_a_value():
    play(attribute, [1.5, 2.5, math.nan, 3.5], misses=2)
    play(attribute, [math.nan, 2.5, math.nan, 3.5, math.nan], misses=2)

    def make():
        box = Box(n=0)
        return lambda x: x if box.n % 2 else x + 1, lambda v: setattr(box, "n", v)

    play(make, [1, 2, 1 << 70, 3, (1 << 70) + 1, 1 << 70], misses=5)


def held(**attributes: Any) -> Callable[[Callable[[Box], Any]], Callable[[], Any]]:
    """Makes a pair as above of a function of a box."""

    def of(body: Callable[[Box], Any]) -> Callable[[], Any]:
        def make() -> Any:
            box = Box(**attributes)
            return body(box), lambda values: box.__dict__.update(values)

        return make

    return of


@torch.no_grad()
def test_two_places_at_once():
    @held(a=1.0, inner=None)
    def make(box):
        box.inner = Box(b=1.0)

        def f(x):
            return x * box.a + box.inner.b * box.a

        box.__dict__["set"] = None
        return f

    def pair():
        f, update = make()
        box = f.__closure__[0].cell_contents

        def change(v):
            update({"a": v})
            box.inner.b = -v

        return f, change

    play(pair, [1.5, 2.5, 3.5, 4.5], misses=2)


@torch.no_grad()
def test_arithmetic():
    @held(a=1.0, n=3)
    def make(box):
        return lambda x: torch.add(x * (1 - box.a**2) / box.n, x, alpha=math.sqrt(box.a))

    play(make, [{"a": 0.5, "n": 3}, {"a": 0.25, "n": 4}, {"a": 0.125, "n": 5}, {"a": 4.0, "n": 1}], misses=2)


@torch.no_grad()
def test_a_counter_that_the_call_uses():
    def make():
        box = Box(step=0, lr=0.5)

        def f(x):
            box.step += 1
            return x * (box.lr / box.step), box.step

        return f, lambda _: None

    play(make, range(8), misses=2)


@torch.no_grad()
def test_what_is_stored_is_what_eager_stores():
    worlds = []
    for compiled in (False, True):
        box = Box(a=1.0, log=[], copy=None)

        def f(x, box=box):
            box.copy = box.a
            box.log.append(box.a * 2)
            return x + box.a

        worlds.append((box, fastjit(f) if compiled else f))
    for value in (1.5, 2.5, 3.5, 4.5):
        for box, function in worlds:
            box.a = value
            result = function(x8())
            assert_same(result, x8() + value)
            assert box.copy is box.a or value == 1.5 or (value == 2.5 and function is worlds[1][1])
        assert worlds[0][0].log == worlds[1][0].log and worlds[0][0].copy == worlds[1][0].copy
    stats = worlds[1][1].stats()
    assert (stats.misses, stats.hits, stats.fallbacks) == (2, 2, {})


@torch.no_grad()
def test_what_the_call_wrote_before():
    def make():
        box = Box(a=1.0)

        def f(x):
            y = x * box.a
            box.a = 0.25
            return y + box.a

        return f, lambda v: setattr(box, "a", v)

    play(make, [1.5, 2.5, 3.5, 4.5], misses=2)


@torch.no_grad()
def test_values_that_python_looks_at():
    @held(a=1.5)
    def make(box):
        return lambda x: x * box.a if f"{box.a}" != "2.5" else x

    play(make, [{"a": 1.5}, {"a": 2.5}, {"a": 3.5}, {"a": 2.5}, {"a": 1.5}], misses=3)


@torch.no_grad()
def test_one_read_by_value_elsewhere():
    @held(a=1.5)
    def make(box):
        return lambda x: x * box.a + len(repr(vars(box)["a"]))

    play(make, [{"a": 1.5}, {"a": 2.5}, {"a": 3.25}, {"a": 1.5}], misses=3)


@torch.no_grad()
def test_a_learning_rate_schedule():
    worlds = []
    for compiled in (False, True):
        torch.manual_seed(0)
        weights = [nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(3))]
        optimizer = torch.optim.SGD(weights, lr=0.1, momentum=0.9, weight_decay=1e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
        for weight in weights:
            weight.grad = torch.randn_like(weight)
        step = fastjit(optimizer.step) if compiled else optimizer.step
        for _ in range(10):
            step()
            schedule.step()
        worlds.append((weights, step))
    assert_same(list(worlds[1][0]), list(worlds[0][0]))
    stats = worlds[1][1].stats()
    assert stats.fallbacks == {} and stats.hits >= 7, stats


@torch.no_grad()
def test_a_first_call_that_fills_a_cache_counts():
    """Its recording is dropped, since the next call finds the cache: the number that it found is remembered."""

    def make():
        box = Box(rate=0.0, weight=None)

        def f(x):
            if box.weight is None:
                box.weight = torch.linspace(0, 1, 8)
            return x * box.weight * box.rate

        return f, lambda v: setattr(box, "rate", v)

    play(make, [1.5, 2.5, 3.5, 4.5], misses=2)


@torch.no_grad()
def test_where_another_place_changes_in_each_call():
    """The recording that says so is no program: it must not be asked for numbers that it has not."""

    def make():
        box = Box(rate=0.0, text="")

        def f(x):
            box.text = box.text + "1"
            return x * box.rate

        return f, lambda v: setattr(box, "rate", v)

    eager, change_eager = make()
    f, change = make()
    fast = fastjit(f)
    with pytest.warns(FastJITWarning, match="box.text"):
        for call in range(80):
            change_eager(call / 2)
            change(call / 2)
            assert_same(fast(x8()), eager(x8()), exact=True)
    assert any("box.text" in reason and "is read and written" in reason for reason in fast.stats().fallbacks)


@torch.no_grad()
def test_a_counter_that_is_looked_for_first():
    """As optimizers do: `if "step" not in group: group["step"] = 0`, then `group["step"] += 1`."""

    def make():
        group = {}

        def f(x):
            if "step" not in group:
                group["step"] = 0
            group["step"] += 1
            return x / (1 - 0.5 ** group["step"])

        return f, lambda v: None

    play(make, [None] * 8, misses=2)
