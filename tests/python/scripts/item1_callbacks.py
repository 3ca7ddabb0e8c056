"""Item 1: what C code asks of values from Python code, and methods that classes get later. Each was wrong once."""

from __future__ import annotations

from typing import NamedTuple

import torch

from script_tools import World, script


def _x():
    return torch.arange(4.0)


@script(1)
def sum_mapped_over_a_generator(w: World) -> None:
    values = [1.0, 2.0]

    def f(x):
        for s in map(sum, (one for one in (values,))):
            x = x * s
        return x

    f = w.jit(f)
    w.call("in C over generator", f, _x())
    values[0] = 5.0
    w.change("item")
    w.call("in C over generator", f, _x())


@script(1)
def sum_mapped_over_a_list(w: World) -> None:
    values = [[1.0, 2.0]]

    def f(x):
        for s in map(sum, values):
            x = x * s
        return x

    f = w.jit(f)
    w.learn(f, _x())
    values[0][0] = 5.0
    w.change("item")
    w.call("new", f, _x())
    w.call("hit", f, _x())


@script(1)
def filter_with_a_predicate(w: World) -> None:
    groups, names = {"a": [1], "b": []}, ["a", "b"]
    f = w.jit(lambda x: x * len(list(filter(lambda n: groups[n], names))))
    w.learn(f, _x())
    groups["b"].append(1)
    w.change("emptiness")
    w.call("new", f, _x())
    groups["b"].append(2)
    w.change("length")
    w.call("hit", f, _x())


@script(1)
def contains_gives_a_list(w: World) -> None:
    class Registry:
        def __init__(self):
            self.index = {"a": [1], "b": []}

        def __contains__(self, key):
            return self.index.get(key)

    registry = Registry()
    f = w.jit(lambda x: x * (2 if "b" in registry else 3))
    w.learn(f, _x())
    registry.index["b"].append(1)
    w.change("emptiness")
    w.call("new", f, _x())
    w.call("hit", f, _x())


@script(1)
def instancecheck_gives_a_list(w: World) -> None:
    answer: list[int] = []

    class Meta(type):
        def __instancecheck__(cls, instance):
            return answer

    class Kind(metaclass=Meta):
        pass

    f = w.jit(lambda x: x * (2 if isinstance(3, Kind) else 3))
    w.learn(f, _x())
    answer.append(1)
    w.change("emptiness")
    w.call("new", f, _x())
    w.call("hit", f, _x())


class _Pair(NamedTuple):
    a: float
    b: float


@script(1)
def named_tuple_gets_operators(w: World) -> None:
    p, q = _Pair(1.0, 2.0), _Pair(3.0, 4.0)
    f = w.jit(lambda x: x * len(p + q))
    w.learn(f, _x())
    _Pair.__add__ = lambda s, o: (1,)
    try:
        w.change("__add__")
        assert f(_x())[1] == 1
    finally:
        del _Pair.__add__
    w.call("hit", f, _x())


@script(1)
def tensor_class_gets_operators(w: World) -> None:
    y = torch.ones(4)
    f = w.jit(lambda x: (x + y)[1:] * len(x))
    w.learn(f, _x())
    for name, method in (
        ("__add__", lambda a, b: torch.add(a, b, alpha=3)),
        ("__len__", lambda a: 7),
    ):
        kept = torch.Tensor.__dict__.get(name)
        setattr(torch.Tensor, name, method)
        try:
            w.change(name)
            out = f(_x())
            assert out.shape == (3,)
            if name == "__add__":
                assert out[0] == 16.0
        finally:
            delattr(torch.Tensor, name) if kept is None else setattr(torch.Tensor, name, kept)
    w.call("hit", f, _x())


@script(1)
def tuple_of_a_tuple(w: World) -> None:
    values = same = tuple([1.0, 2.0])
    scope = {"values": values, "same": same}
    f = w.jit(lambda x: x * (2 if scope["same"] is tuple(scope["values"]) else 3))
    w.call("identity of", f, _x())
    scope["same"] = tuple([1.0, 2.0])
    w.change("an equal tuple")
    w.call("identity of", f, _x())


@script(1)
def sorted_by_a_class(w: World) -> None:
    class Reverse(float):
        __lt__ = float.__gt__

    values = [1.0, 3.0, 2.0]
    f = w.jit(lambda x: x * sorted(values, key=Reverse)[0])
    w.call("call of", f, _x())
    Reverse.__lt__ = float.__lt__
    w.change("__lt__")
    w.call("call of", f, _x())
