"""Item 1: reads that C code makes, and what a call leaves behind. Each was a hit once."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from script_tools import World, script


def _x():
    return torch.arange(4.0)


class _Empty:
    pass


@script(1)
def new_list_is_extended_by_a_global(w: World) -> None:
    values = [1.0, 2.0]

    def f(x):
        new = []
        new.extend(values)
        return x * new[0]

    f = w.jit(f)
    w.learn(f, _x())
    values[0] = 5.0
    w.change("item of the list")
    w.call("new", f, _x())
    w.call("hit", f, _x())


@script(1)
def new_dictionary_is_updated_from_a_global(w: World) -> None:
    values = {"a": 1.0}

    def f(x):
        new = {}
        new.update(values, b=2.0)
        return x * new["a"] + new["b"]

    f = w.jit(f)
    w.learn(f, _x())
    values["a"] = 5.0
    w.change("value")
    w.call("new", f, _x())
    w.call("hit", f, _x())


@script(1)
def new_set_is_updated_from_a_global(w: World) -> None:
    keys = {"a": 1}

    def f(x):
        new = set()
        new.update(keys)
        return x * len(new)

    f = w.jit(f)
    w.learn(f, _x())
    keys["b"] = 2
    w.change("a key more")
    w.call("new", f, _x())
    w.call("hit", f, _x())


@script(1)
def attributes_updated_from_a_global(w: World) -> None:
    values = {"a": 1.0}

    def f(x):
        new = _Empty()
        new.__dict__.update(values)
        return x * new.a

    f = w.jit(f)
    w.learn(f, _x())
    values["a"] = 5.0
    w.change("value")
    w.call("new", f, _x())
    w.call("hit", f, _x())


def _key_function(order: Any) -> None:
    def play(w: World) -> None:
        rank, names = {"a": 1, "b": 2}, ["a", "b"]
        values = {"a": 10.0, "b": 20.0}
        pick = order(rank, names)
        f = w.jit(lambda x: x * values[pick()])
        w.call("call of", f, _x())
        rank["a"] = 5
        names.reverse()
        w.change("ranks")
        w.call("call of", f, _x())

    play.__name__ = order.__name__
    script(1)(play)


@_key_function
def sorted_by_a_dictionarys_get(rank, names):
    return lambda: sorted(["b", "a"], key=rank.get)[0]


@_key_function
def max_by_a_dictionarys_item(rank, names):
    return lambda: max(("a", "b"), key=rank.__getitem__)


@_key_function
def min_by_a_lists_index(rank, names):
    return lambda: min(("a", "b"), key=names.index)


@_key_function
def list_sorted_by_a_dictionarys_get(rank, names):
    def pick():
        both = ["b", "a"]
        both.sort(key=rank.get)
        return both[0]

    return pick


@script(1)
def sorted_by_python_code(w: World) -> None:
    rank, values = {"a": 1, "b": 2}, {"a": 10.0, "b": 20.0}
    f = w.jit(lambda x: x * values[sorted(("b", "a"), key=lambda name: rank[name])[0]])
    w.learn(f, _x())
    rank["a"] = 5
    w.change("rank")
    w.call("new", f, _x())
    w.call("hit", f, _x())


@script(1)
def numbers_that_a_list_sorts(w: World) -> None:
    def f(x, a, b):
        both = [a, b]
        both.sort()
        return x * both[0]

    f = w.jit(f)
    w.learn(f, _x(), 2.5, 3.5)
    w.change("order")
    w.call("new", f, _x(), 7.5, 3.5)
    w.call("hit", f, _x(), 7.5, 3.5)


@script(1)
def values_of_tensors_that_a_list_sorts(w: World) -> None:
    def f(x, y):
        both = [x.sum().item(), y.sum().item()]
        both.sort()
        return x * both[0]

    f = w.jit(f)
    w.learn(f, _x(), _x() + 1)
    w.change("order")
    w.call("new", f, _x() + 5, _x())
    w.call("hit", f, _x() + 5, _x())


@script(1)
def numbers_that_sets_and_lists_compare(w: World) -> None:
    def f(x, a, b):
        items, pairs, rest = {*[a, b]}, {}, [a, b]
        pairs.update([(a, 1), (b, 2)])
        rest.remove(3.5)
        return x * len(items) + len(pairs) + rest[0]

    f = w.jit(f)
    w.learn(f, _x(), 2.5, 3.5)
    w.change("equal numbers")
    w.call("new", f, _x(), 3.5, 3.5)
    w.call("hit", f, _x(), 3.5, 3.5)


@script(1)
def function_of_math_of_a_tensor(w: World) -> None:
    f = w.jit(lambda x, t: x * math.fabs(t))
    w.learn(f, _x(), torch.tensor(2.0))
    w.change("sign")
    w.call("new", f, _x(), torch.tensor(-2.0))
    w.call("hit", f, _x(), torch.tensor(-2.0))


@script(1)
def print_through_a_partial_function(w: World) -> None:
    log, dashed = functools.partial(print, flush=True), functools.partial(print, "a")

    def f(x):
        log("b")
        return x + 1

    def g(x):
        dashed("c")
        return x + 1

    f, g = w.jit(f), w.jit(g)
    w.call("call of partial", f, _x(), of=f)
    w.learn(g, _x())
    w.change("nothing")
    w.call("hit", g, _x())


@script(1)
def default_is_passed(w: World) -> None:
    default, weight = {"a": 1}, torch.ones(4)

    def f(x, options=default):
        return x * (2 if options is default else 3)

    def g(x, by=weight):
        return x * by * (2 if by is weight else 3)

    f, g = w.jit(f), w.jit(g)
    w.call("argument as well", f, _x(), default, of=f)
    w.learn(g, _x(), weight)
    w.change("an equal one")
    w.call("new", g, _x(), torch.ones(4))
    w.call("hit", g, _x(), weight)


@script(1)
def length_after_a_store(w: World) -> None:
    table = {"k": 0, "z": 1}

    def f(x):
        table["k"] = x + 1
        return x * len(table)

    f = w.jit(f)
    w.watch(table=table)
    w.learn(f, _x())
    del table["k"]
    table["q"] = 3
    w.change("the key is gone")
    w.call("the call itself changes table", f, _x())


def _sizes_through(keep: Callable[[torch.Tensor], Any], read: Callable[[Any], int]) -> Callable[[World], None]:
    """A script whose function reads the size of a tensor that it reaches through an object that cannot change."""

    def play(w: World) -> None:
        tensor = torch.ones(2, 3)
        kept = keep(tensor)
        f, x = w.jit(lambda x: x + read(kept)), torch.zeros(3)
        w.learn(f, x)
        tensor.data = torch.ones(5, 3)
        w.change("the tensor's memory")
        w.call("new", f, x)
        w.call("hit", f, x)

    return play


@script(1)
def size_through_a_bound_method(w: World) -> None:
    _sizes_through(lambda t: t.size, lambda size: size(0))(w)


@script(1)
def size_through_a_partial_of_a_bound_method(w: World) -> None:
    _sizes_through(lambda t: functools.partial(t.size, 0), lambda size: size())(w)


@script(1)
def size_through_the_owner_of_a_bound_method(w: World) -> None:
    _sizes_through(lambda t: t.numel, lambda numel: numel.__self__.size(0))(w)


@script(1)
def size_through_a_frozenset(w: World) -> None:
    _sizes_through(lambda t: frozenset([t]), lambda kept: sum(t.numel() for t in kept))(w)


@script(1)
def size_through_a_slice(w: World) -> None:
    _sizes_through(lambda t: slice(t, None), lambda kept: kept.start.numel())(w)


@script(1)
def size_through_a_method_of_a_tuple(w: World) -> None:
    _sizes_through(lambda t: (t,).__getitem__, lambda item: item(0).size(0))(w)


@script(1)
def size_where_the_call_changes_its_own_facts(w: World) -> None:
    held = _Empty()
    held.flag, held.tensor = True, torch.ones(2, 3)

    def f(x: torch.Tensor) -> torch.Tensor:
        if held.flag:
            held.flag = False
            return x + held.tensor.shape[0]
        held.flag = True
        return x * 2

    f, x = w.jit(f), torch.zeros(3)
    for i in range(6):
        w.call("new" if i < 2 else "hit", f, x)
    held.tensor.data = torch.ones(7, 3)
    w.change("the tensor's memory")
    w.call("new", f, x)
    w.call("hit", f, x)
    w.call("hit", f, x)
