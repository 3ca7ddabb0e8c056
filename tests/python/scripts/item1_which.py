"""Item 1: which object, which class, which name: identities that a guard must tell apart. Each was a hit once."""

from __future__ import annotations

import collections
import math
from typing import ClassVar, NamedTuple

import torch

from script_tools import World, script


def _x():
    return torch.arange(4.0)


@script(1)
def names_of_a_class(w: World) -> None:
    class Kind:
        pass

    def f(x):
        return x * len(Kind.__name__) + len(Kind.__qualname__) * len(Kind.__module__) + len(f"{Kind}")

    f = w.jit(f)
    w.learn(f, _x())
    for name in ("__name__", "__qualname__", "__module__"):
        setattr(Kind, name, "a name")
        w.change(name)
        w.call("new", f, _x())
        w.call("hit", f, _x())


@script(1)
def attribute_read_by_format(w: World) -> None:
    class Kind:
        a = 2

    f = w.jit(lambda x: x * int("{.a}".format(Kind)))  # noqa: UP032
    w.call("formatting of", f, _x())
    Kind.a = 3
    w.change("attribute")
    w.call("formatting of", f, _x())


class _Pair(NamedTuple):
    a: int
    b: int


@script(1)
def identity_of_values(w: World) -> None:
    sizes = torch.Size([1, 2])
    for first, equal in (
        (_Pair(1, 2), _Pair(1, 2)),
        ("a sentinel", "".join(["a sen", "tinel"])),
        (sizes, torch.Size([1, 2])),
    ):
        f = w.jit(lambda x, v, first=first: x * (2 if v is first else 3))
        w.call("identity of", f, _x(), first)
        w.change("an equal one")
        w.call("identity of", f, _x(), equal)


class _State:
    def __init__(self, v):
        self.v = v


@script(1)
def which_described_instances_are_one(w: World) -> None:
    def f(x, a, b):
        return x * (2 if a == b else 3) * a.v

    f, keep = w.jit(f), []
    for _ in range(5):  # by then instances are compared by content
        keep.append((_State(1.0), _State(1.0)))
        f(_x(), *keep[-1])
    w.call("comparison of", f, _x(), _State(1.0), _State(1.0))
    w.change("one object twice")
    w.call("comparison of", f, _x(), keep[0][0], keep[0][0])


@script(1)
def classes_get_special_methods(w: World) -> None:
    class Box:
        def __init__(self):
            self.a = 2.0

    class Pair(collections.namedtuple("Pair", "a b")):
        __slots__ = ()

    box, pair = Box(), Pair(2.0, 3.0)
    f = w.jit(lambda x: x * box.a + (1 if callable(box) else 0) + (2 if box != box else 3) + len(pair))
    w.learn(f, _x())
    for cls, name, method in (
        (Box, "__call__", lambda self: 1),
        (Pair, "__len__", lambda self: 9),
    ):
        setattr(cls, name, method)
        w.change(name)
        w.call("new", f, _x())
        w.call("hit", f, _x())
    Box.__ne__ = lambda self, other: True
    w.change("__ne__")
    w.call("comparison of", f, _x())


@script(1)
def descriptor_gets_another_get(w: World) -> None:
    class Two:
        def __get__(self, instance, owner):
            return 2.0

    class Box:
        a = Two()

    box = Box()
    f = w.jit(lambda x: x * box.a)
    w.learn(f, _x())
    Two.__get__ = lambda self, instance, owner: 3.0
    w.change("__get__")
    w.call("new", f, _x())
    w.call("hit", f, _x())


@script(1)
def class_of_the_object_of_super(w: World) -> None:
    class Base:
        def k(self):
            return 2.0

    class Middle(Base):
        pass

    class First(Middle):
        pass

    class Mixed(Base):
        def k(self):
            return 9.0

    class Second(Middle, Mixed):
        pass

    one = First()
    f = w.jit(lambda x: x * super(Middle, one).k())
    w.learn(f, _x())
    one.__class__ = Second
    w.change("class")
    w.call("new", f, _x())
    w.call("hit", f, _x())


@script(1)
def methods_of_arguments_are_compared(w: World) -> None:
    f = w.jit(lambda x, y: x * (2 if x.add == y.add else 3))
    w.call("comparison of", f, _x(), _x())
    w.change("one tensor twice")
    x = _x()
    w.call("comparison of", f, x, x)


@script(1)
def nan_is_searched(w: World) -> None:
    f = w.jit(lambda x, a: x * (2 if a in [math.nan] else 3))
    w.call("comparison of", f, _x(), math.nan)
    w.change("another NaN")
    w.call("comparison of", f, _x(), float("nan"))


@script(1)
def argument_is_what_the_call_appends_to(w: World) -> None:
    kept = [1.0]

    def f(x, values):
        kept.append(2.0)
        return x * len(values)

    f = w.jit(f)
    w.watch(kept=kept)
    w.learn(f, _x(), [1.0])
    kept[:] = [1.0]
    w.change("it is the list")
    w.call("argument as well", f, _x(), kept)
    w.call("hit", f, _x(), [1.0])


@script(1)
def argument_is_what_the_call_stores_to(w: World) -> None:
    state = _State(1.0)

    def f(x, s):
        state.v = 7.0
        return x * s.v

    f = w.jit(f)
    w.watch(state=state)
    keep = [_State(1.0) for _ in range(6)]
    for one in keep[:-1]:  # by then instances are compared by content
        f(_x(), one)
    w.call("hit", f, _x(), keep[-1])
    state.v = 1.0
    w.change("it is the instance")
    w.call("argument as well", f, _x(), state)


@script(1)
def reversed_instances(w: World) -> None:
    values, parts = [1.0, 2.0], torch.nn.ModuleList([torch.nn.ReLU(), torch.nn.Tanh()])

    class Own:
        def __iter__(self):
            return iter((1,))

        def __reversed__(self):
            return values

    own = Own()
    f = w.jit(lambda x: x * reversed(own)[0])
    w.learn(f, _x())
    values[0] = 5.0
    w.change("list that __reversed__ gives")
    w.call("new", f, _x())
    w.call("hit", f, _x())

    def g(x):
        for part in reversed(parts):
            x = part(x)
        return x

    g = w.jit(g)
    with torch.no_grad():
        w.learn(g, _x())


@script(1)
def instances_that_share_attributes(w: World) -> None:
    class Borg:
        shared: ClassVar = {"v": 2.0}

        def __init__(self):
            self.__dict__ = self.shared

    def f(x):
        borg = Borg()
        borg.w = 1
        return x * borg.v

    f = w.jit(f)
    w.watch(shared=Borg.shared)
    w.call("store to", f, _x())
    Borg.shared.clear()
    Borg.shared["v"] = 3.0
    w.change("shared attributes")
    w.call("store to", f, _x())


@script(1)
def numbers_compared_in_containers(w: World) -> None:
    f = w.jit(lambda x, a, b: x * (2 if a == b else 3))
    nan = (math.nan,)
    w.call("comparison of", f, _x(), nan, nan)
    w.change("another NaN")
    w.call("comparison of", f, _x(), nan, (float("nan"),))


@script(1)
def tuple_class_with_attributes_is_an_argument(w: World) -> None:
    class Pair(collections.namedtuple("Pair", "a d")):
        k = 2.0

    pair = Pair([1.0, 2.0], {"k": 1.0})
    f = w.jit(lambda x, p: x * p[0][0] * p.d["k"] * len(p[0]) * p.k)
    w.learn(f, _x(), pair)
    for change in (lambda: pair.a.append(7.0), lambda: pair.d.update(k=9.0), lambda: setattr(pair, "k", 5.0)):
        change()
        w.change("what is in it")
        w.call("new", f, _x(), pair)
        w.call("hit", f, _x(), pair)


@script(1)
def tensor_in_a_tuple_class(w: World) -> None:
    class Items(tuple):
        pass

    t = torch.ones(4)
    items = Items((t,))
    f = w.jit(lambda x, p: x * p[0].shape[0])
    w.learn(f, _x(), items)
    t.data = torch.ones(2, 4)
    w.change("metadata")
    w.call("new", f, _x(), items)
    w.call("hit", f, _x(), items)


@script(1)
def text_of_a_method(w: World) -> None:
    class Box:
        def g(self):
            """ab"""

    box = Box()
    f = w.jit(lambda x: x * len(box.g.__doc__))
    w.learn(f, _x())
    Box.g.__doc__ = "abcdef"
    w.change("__doc__")
    w.call("new", f, _x())
    w.call("hit", f, _x())
