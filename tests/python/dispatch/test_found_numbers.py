"""Numbers that a call finds (attributes, globals, items, cells, slots) and that differ from call to call.

The first value is a fact, the second one makes the place a parameter: whatever number of that type is there afterwards
is a hit. Every test plays its calls in two worlds, eager and compiled, and says how many recordings they took. Those in
tuples are in test_found_tuples.py.
"""

from __future__ import annotations

import collections
import gc
import math
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from fastjit import FastJITWarning, fastjit
from found_places import Box, Slots, play, x8
from helpers import assert_same

VALUES = (2.5, 3.5, 0.5, -0.0, 1.0, math.inf, 1e-40, 1e30, 2.5)


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


@pytest.mark.parametrize("times", [2, 3])
@pytest.mark.parametrize("place", ["attribute", "item"])
@torch.no_grad()
def test_a_counter_that_goes_up_several_times_in_a_call(place, times):
    def make():
        box = Box(n=0)
        table = vars(box) if place == "item" else None

        def f(x):
            for _ in range(times):
                if table is None:
                    box.n += 1
                    x = x * 0.9**box.n
                else:
                    table["n"] += 1
                    x = x * 0.9 ** table["n"]
            return x, box.n

        return f, lambda _: None

    play(make, range(6), misses=2)


def after_filling(make: Callable[[], Any]) -> Callable[[], Any]:
    """The same function, whose first call fills a dictionary that makes what is missing: the recording ends there."""

    def made() -> Any:
        function, change = make()
        kept: Any = collections.defaultdict(dict)

        def fills(x: torch.Tensor) -> Any:
            kept[fills]["calls"] = True
            return function(x)

        return fills, change

    return made


@pytest.mark.parametrize("values", [VALUES, (3, 5, 7, 1 << 20, 0, -1, 3)], ids=["floats", "ints"])
@pytest.mark.parametrize("place", PLACES)
@torch.no_grad()
def test_what_a_call_finds_after_its_recording_has_ended(place, values):
    fast = play(after_filling(PLACES[place]), values, misses=2)
    assert fast.stats().variants == 1  # for any number of that type


@torch.no_grad()
def test_a_type_that_changes_after_a_recording_has_ended():
    # 1 is seen, 2.5 and 3 are values of their types; from 4.5 on, and from 4 on, any.
    play(after_filling(attribute), [1, 2.5, 4.5, 5.5], misses=3)
    play(after_filling(attribute), [1, 2.5, 2.5, 3, 4, True, 5], misses=5)


@torch.no_grad()
def test_questions_about_numbers_that_an_ended_recording_saw():
    @held(k=0.0, n=0)
    def make(box):
        def f(x):
            y = x * box.k if box.k > 2 else x - box.k
            return (y, box.n + 1) if box.n % 3 else y

        return f

    def filling():
        return after_filling(make)()

    # (k, n): two ways for k, and what `%` is asked of is guarded by its answer
    play(filling, [{"k": 1.0, "n": 1}, {"k": 1.5, "n": 2}, {"k": 0.5, "n": 4}, {"k": -1.0, "n": 5}], misses=2)
    play(filling, [{"k": 1.0, "n": 1}, {"k": 3.0, "n": 2}, {"k": 0.5, "n": 4}, {"k": 4.0, "n": 5}], misses=3)
    play(filling, [{"k": 1.0, "n": 1}, {"k": 3.0, "n": 3}, {"k": 4.0, "n": 6}, {"k": 5.0, "n": 7}], misses=3)


@pytest.mark.parametrize("where", ["before", "after", "both"])
@torch.no_grad()
def test_a_counter_in_a_call_whose_recording_ends(where):
    def make():
        box = Box(n=0)
        kept: Any = collections.defaultdict(dict)

        def f(x):
            if where != "after":
                box.n += 1
            state = kept[f]
            if "steps" not in state:
                state["steps"] = 0
            state["steps"] += 1
            if where != "before":
                box.n += 2
            return x / box.n + state["steps"]

        return f, lambda _: None

    play(make, range(7), misses=2)


@torch.no_grad()
def test_counters_in_what_a_call_makes_and_leaves():
    def make():
        box = Box(state=None, kept=None)

        def f(x):
            if box.state is None:
                box.state, box.kept = {"steps": 0}, Box(n=0, rows=[0, 0.5])
            box.state["steps"] += 1
            box.kept.n += 1
            box.kept.rows[1] = box.kept.rows[1] + 1
            return x / box.state["steps"] * box.kept.n + box.kept.rows[1]

        return f, lambda _: None

    play(make, range(7), misses=2)


@torch.no_grad()
def test_a_number_that_a_call_saw_on_another_way():
    """The recordings between the first sight of it and the next were of calls that did not read it."""

    def make():
        box = Box(rate=1.0)

        def f(x, way):
            return x * box.rate if way == "reads" else x + (1 if way == "once" else 2)

        return f, box

    (plain, box), (function, other) = make(), make()
    fast = fastjit(function)
    hits = []
    for rate, way, size in [
        (1.5, "reads", 8),
        (1.5, "once", 8),
        (1.5, "twice", 8),
        (2.5, "reads", (2, 4)),  # another program: what is known of the rate is what the first one saw
        (3.5, "reads", (2, 4)),
        (4.5, "reads", (2, 4)),
    ]:
        box.rate = other.rate = rate
        x, before = x8().reshape(size), fast.stats().hits
        assert_same(fast(x, way), plain(x, way), exact=True)
        hits.append(fast.stats().hits - before)
    assert hits == [0, 0, 0, 0, 1, 1]


@torch.no_grad()
def test_a_call_that_raises_has_seen_its_numbers():
    def make():
        box = Box(k=0.0, bad=True)

        def f(x):
            y = x * box.k
            if box.bad:
                raise ValueError("bad")
            return y

        return f, box

    (plain, box), (function, other) = make(), make()
    fast = fastjit(function)
    hits = []
    for k in (1.5, 2.5, 3.5, 4.5):
        box.k = other.k = k
        box.bad = other.bad = k == 1.5
        if k == 1.5:
            with pytest.raises(ValueError, match="bad"):
                fast(x8())
            continue
        before = fast.stats().hits
        assert_same(fast(x8()), plain(x8()), exact=True)
        hits.append(fast.stats().hits - before)
    assert hits == [0, 1, 1]


@torch.no_grad()
def test_nothing_is_kept_alive_by_what_was_seen():
    class Key:
        pass

    key, box, cell = Key(), Box(k=1.5), [2.5]
    table: Any = {key: 2.5, "box": box, "inner": Box(k=3.5)}
    kept: Any = collections.defaultdict(dict)

    def f(x):
        kept[f]["seen"] = True
        return x * table["box"].k + table["inner"].k + cell[0] + (table[key] if key is not None else 0.0)

    fast = fastjit(f)
    fast(x8())
    watched = [weakref.ref(o) for o in (key, box, table["inner"])]
    key = None
    table.clear()
    del box
    gc.collect()
    assert [w() for w in watched] == [None, None, None]
    for k in (1.5, 2.5, 3.5):  # other objects may lie where these did
        table.update(box=Box(k=k), inner=Box(k=-k))
        assert_same(fast(x8()), x8() * k - k + 2.5, exact=True)


@torch.no_grad()
def test_containers_that_are_replaced_after_a_recording_has_ended():
    def make():
        box = Box(inner=Box(k=1.0), rows=[1.0, 2.0])
        kept: Any = collections.defaultdict(dict)

        def f(x):
            kept[f]["seen"] = True
            return x * box.inner.k + box.rows[-1]

        def change(v):
            box.inner, box.rows = Box(k=v), [0.0] * int(v) + [v]

        return f, change

    play(make, [1.5, 2.5, 3.5, 4.5], misses=4)


@torch.no_grad()
def test_what_runs_while_numbers_are_noted():
    """Generators, exceptions, comprehensions, another compiled function, a trace function of the user's."""
    traced: list[str] = []

    def make():
        box = Box(k=0.0, rows=[1.0, 2.0])
        kept: Any = collections.defaultdict(dict)
        inner = fastjit(lambda x: x * box.k)

        def rows():
            for row in box.rows:
                yield row + 1

        def f(x):
            first = f not in kept
            kept[f]["seen"] = True
            if first:
                try:
                    raise KeyError(box.k)
                except KeyError:
                    pass
                outer = sys.gettrace()
                sys.settrace(lambda frame, event, arg: traced.append(frame.f_code.co_name))
                [v for v in rows()]
                sys.settrace(outer)
            y = inner(x)
            for v in rows():
                y = y + v * box.k
            return y

        return f, lambda v: setattr(box, "k", v)

    before = sys.gettrace()
    (plain, change), (function, change_fast) = make(), make()
    fast = fastjit(function)
    for value in (1.5, 2.5, 3.5, 4.5, 5.5):
        change(value), change_fast(value)
        assert_same(fast(x8()), plain(x8()), exact=True)
        assert sys.gettrace() is before
    assert "rows" in traced and fast.stats().hits == 3, fast.stats()
