"""Numbers in tuples that are others from call to call, as the `betas` that a schedule writes.

Where the function takes such a tuple apart at once, each number in it that differs is a parameter, and the others are
facts by value. Which tuple it is matters where the function does anything else with it: then it is a fact as it was.
Every test plays its calls in two worlds, eager and compiled, and says how many recordings they took.
"""

from __future__ import annotations

import copy
import math
import typing
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from fastjit import fastjit
from found_places import Box, Slots, play, x8
from gradient_tools import whole_step
from helpers import assert_same

Make = Callable[[], tuple[Callable[..., Any], Callable[[Any], None]]]

FIRST_DIFFERS = [(0.9 - 0.1 * i, 0.25) for i in range(8)]


def found(body: Callable[[dict[str, Any], torch.Tensor], Any]) -> Make:
    """A function of what is in a dictionary, as play() takes it."""

    def make() -> tuple[Callable[..., Any], Callable[[Any], None]]:
        table: dict[str, Any] = {"k": None}
        return lambda x: body(table, x), lambda v: table.update(k=v)

    return make


def unpacked(table: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
    a, b = table["k"]
    return x * a + b


def attribute() -> Any:
    box = Box(k=None)

    def f(x):
        a, b = box.k
        return x * a + b

    return f, lambda v: setattr(box, "k", v)


def slot() -> Any:
    box = Slots()
    return lambda x: x * box.k[0] + box.k[1], lambda v: setattr(box, "k", v)


def list_item() -> Any:
    rows: list[Any] = [None, None]

    def change(value: Any) -> None:
        rows[1] = value

    return lambda x: x * rows[-1][0] + rows[-1][1], change


def cell() -> Any:
    k = (0.0, 0.0)

    def change(value: Any) -> None:
        nonlocal k
        k = value

    def f(x):
        a, *rest = k
        return x * a + rest[0]

    return f, change


def global_name() -> Any:
    scope: dict[str, Any] = {}
    exec("def f(x):\n  a, b = K\n  return x * a + b", scope)
    return scope["f"], lambda v: scope.update(K=v)


def cast() -> Any:
    box = Box(k=None)

    def f(x):
        a, b = typing.cast(tuple[float, float], box.k)
        return x * a + b

    return f, lambda v: setattr(box, "k", v)


PLACES = {f.__name__: f for f in (attribute, slot, list_item, cell, global_name, cast)} | {"item": found(unpacked)}


@pytest.mark.parametrize("place", PLACES)
def test_the_numbers_that_differ_are_parameters(place):
    play(PLACES[place], FIRST_DIFFERS, misses=2)
    play(PLACES[place], [(i, 0.5 * i) for i in range(2, 9)], misses=2)


@pytest.mark.parametrize("place", PLACES)
def test_the_others_are_facts_by_value(place):
    # The second one is another: recorded with both open.
    play(PLACES[place], [*FIRST_DIFFERS, (0.5, 0.5), (0.25, 0.75), *FIRST_DIFFERS], misses=3)
    fast = play(found(unpacked), FIRST_DIFFERS, misses=2)
    assert "table['k'] is of the form (float, 0.25)" in fast.inspect("guards")


def test_a_local_index():
    def f(table, x):
        for i in (0, 1):
            x = x * table["k"][i]
        return x

    play(found(f), FIRST_DIFFERS, misses=2)


def test_another_length():
    values = [
        (0.5, 1.5),
        (0.25, 1.5),
        (0.75, 1.5),
        (0.5, 1.5, 2.5),
        (0.25, 1.5, 2.5),
        (1.5, 1.5, 2.5),
        (3.5, 1.5),
        (2,),
    ]

    def f(table, x):
        a, *rest = table["k"]
        for b in rest:
            x = x + b
        return x * a

    play(found(f), values, misses=5)
    play(found(lambda table, x: x * table["k"][0] * len(table["k"])), values[:-1], misses=7)


def test_another_type():
    # (1, 1.5) is recorded for what it is, (2, 1.5) with any int; (True, 1.5) and what no program takes on their own.
    values = [(0.5, 1.5), (0.25, 1.5), (0.75, 1.5), (2, 1.5), (3, 1.5), (4, 1.5), (3.5, 1.5), (True, 1.5), (5, 1.5)]
    play(found(unpacked), values, misses=5)
    play(found(unpacked), [(0.5, 1.5), (0.25, 1.5), (0.25, 2), (0.25, 3), (0.75, 4), (0.5, 1.5)], misses=5)
    play(found(lambda table, x: x if table["k"][0] % 2 else x + 1), [(1, 1.5), (3, 1.5), (1 << 70, 1.5)], misses=3)
    play(found(unpacked), [(0.5, 1.5), (0.25, 1.5), (math.nan, 1.5), (0.75, 1.5)], misses=2)
    # A number in the place of the tuple, and the other way round.
    values = [(0.5, 1.5), (0.25, 1.5), 2.5, 3.5, 4.5, (0.75, 1.5), (1.75, 1.5)]
    play(
        found(lambda table, x: x * table["k"] if isinstance(table["k"], float) else x - table["k"][0]), values, misses=6
    )


def test_what_else_is_in_the_tuple():
    def f(table, x):
        name, a = table["k"]
        return x * a if name == "times" else x + a

    values = [("times", 0.5), ("times", 1.5), ("times", 2.5), ("plus", 3.5), ("plus", 4.5), ("plus", 5.5)]
    play(found(f), values, misses=4)
    # Tuples inside are facts by value.
    nested = [((0.5, 0.25), 0.5 * i) for i in range(1, 5)]
    play(found(lambda table, x: x * table["k"][0][0] + table["k"][1]), nested, misses=2)
    play(found(lambda table, x: x * table["k"][0][0]), [((0.5 * i, 0.25), 1.5) for i in range(1, 5)], misses=4)


def test_numbers_that_python_looks_at():
    def f(table, x):
        a, b = table["k"]
        return x * a if b > 0.5 else x - b

    values = [(0.5, 0.75), (1.5, 1.75), (2.5, 2.75), (0.5, 0.25), (1.5, -0.5), (0.5, 0.75)]
    play(found(f), values, misses=3)

    def text(table, x):
        a, b = table["k"]
        return x * a + len(str(b))

    play(found(text), [(0.5, 0.75), (1.5, 0.75), (2.5, 0.75), (0.5, 0.625), (1.5, 0.625), (0.5, 0.75)], misses=3)


def test_a_position():
    values = [(3, 5), (2, 6), (4, 7), (5, 3), (2, 2), (3, 6)]
    play(found(lambda table, x: x[table["k"][0]] * table["k"][1]), values, misses=3)


def is_same(table, x):
    a, b = table["k"]
    return x * a + (b if table["k"] is table.get("other") else 0)


def given(table, x):
    a, b = table["k"]
    return x * a + b, table["k"]


def stored(table, x):
    a, b = table["k"]
    table["last"] = table["k"]
    return x * a + b


def passed(table, x):
    def of(k):
        return k[0]

    return x * of(table["k"])


def kept(table, x):
    k = table["k"]
    a, b = k
    return x * a + b, k is table["k"]


@pytest.mark.parametrize("body", [is_same, given, stored, passed, kept])
def test_which_tuple_it_is_is_no_secret(body):
    """It is a fact by value, or nothing is recorded: every call gets the one that is there."""
    tables: list[dict[str, Any]] = [{}, {}]
    fast = fastjit(lambda x: body(tables[0], x), on_unsupported="eager")
    for value in FIRST_DIFFERS[:4]:
        for table in tables:
            table["k"] = table["other"] = value
        result, expected = fast(x8()), body(tables[1], x8())
        assert_same(result, expected, exact=True)
        assert body is not given or result[1] is value
        assert body is not stored or tables[0]["last"] is value
    assert fast.stats().hits == 0, fast.stats()


def test_elements_that_are_one_object():
    def f(table, x):
        a, b = table["k"]
        return x * a + (1 if a is b else 2)

    one = 0.5
    values = [(one, one), (float("0.5"), one), (one, one), (1.5, one)]
    tables: list[dict[str, Any]] = [{}, {}]
    fast = fastjit(lambda x: f(tables[0], x), on_unsupported="eager")
    for value in values:
        tables[0]["k"] = tables[1]["k"] = value
        assert_same(fast(x8()), f(tables[1], x8()), exact=True)
    assert fast.stats().hits == 0


@pytest.mark.parametrize("then", [(0.5, 0.25), (0.5, 0.75), (1, 2), None])
def test_a_call_that_stores_another_one(then):
    def f(table, x):
        a, b = table["k"]
        table["k"] = then
        return x * a + b

    tables: list[dict[str, Any]] = [{}, {}]
    fast = fastjit(lambda x: f(tables[0], x))
    for value in FIRST_DIFFERS:
        tables[0]["k"] = tables[1]["k"] = value
        assert_same(fast(x8()), f(tables[1], x8()), exact=True)
        assert tables[0]["k"] == tables[1]["k"] == then
    stats = fast.stats()
    assert (stats.misses, stats.hits, stats.fallbacks) == (2, 6, {})


def test_a_call_that_counts_in_it():
    def make():
        table = {"k": (1.0, 0.25)}

        def f(x):
            a, b = table["k"]
            table["k"] = (a * 0.5, b)
            return x * a + b

        return f, lambda v: None

    play(make, range(4), misses=4)


def test_what_a_call_finds_after_its_recording_has_ended():
    """Its recording is dropped, since the next call finds what it fills: the tuple that it found is remembered."""

    def make():
        box = Box(rates=None, weight=None)

        def f(x):
            if box.weight is None:
                box.weight = torch.linspace(0, 1, 8)
            a, b = box.rates
            return x * box.weight * a + b

        return f, lambda v: setattr(box, "rates", v)

    play(make, FIRST_DIFFERS, misses=2)


def test_a_call_that_is_checked():
    table = {"k": (0.0, 0.0)}
    fast = fastjit(lambda x: unpacked(table, x), verify=1.0)
    for value in FIRST_DIFFERS:
        table["k"] = value
        assert_same(fast(x8()), unpacked(table, x8()))
    stats = fast.stats()
    assert (stats.misses, stats.hits, stats.mismatches) == (2, 6, 0) and stats.verified > 0


# ---- schedules of torch ----


def groups_of(model: nn.Sequential) -> list[dict[str, Any]]:
    return [
        {"params": model[0].parameters(), "betas": (0.8, 0.95)},
        {"params": model[2].parameters(), "betas": (0.9, 0.999)},
    ]


def one_cycle(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=40)


def cyclic(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.CyclicLR(optimizer, 1e-3, 1e-2, step_size_up=5)


def own_momenta(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=[1e-2, 1e-3], total_steps=40, base_momentum=[0.8, 0.85], max_momentum=[0.9, 0.95]
    )


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize(
    ("name", "schedule", "groups", "misses"),
    [
        ("Adam", one_cycle, False, 2),
        ("AdamW", one_cycle, False, 2),
        ("Adamax", one_cycle, False, 2),
        ("NAdam", one_cycle, False, 2),
        ("RAdam", one_cycle, False, 3),  # which goes another way after its first steps
        ("Adam", cyclic, False, 2),
        ("AdamW", one_cycle, True, 2),
        ("AdamW", own_momenta, True, 2),
    ],
)
@torch.enable_grad()
def test_a_schedule_of_betas(name, schedule, groups, misses, foreach):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1))
    steps, schedules, models = [], [], (model, copy.deepcopy(model))
    for one in models:
        parameters = groups_of(one) if groups else one.parameters()
        optimizer = getattr(torch.optim, name)(parameters, lr=1e-3, foreach=foreach)
        schedules.append(schedule(optimizer))
        steps.append(whole_step(one, optimizer))
    fast = fastjit(steps[1])
    for _ in range(20):
        batch = torch.randn(16, 8)
        expected = steps[0](batch)
        torch.testing.assert_close(fast(batch), expected, rtol=1e-5, atol=1e-6)
        for one in schedules:
            one.step()
    for mine, other in zip(models[1].parameters(), models[0].parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)
    stats = fast.stats()
    assert (stats.misses, stats.hits, stats.fallbacks) == (misses, 20 - misses, {}), (stats, fast.inspect("guards"))
