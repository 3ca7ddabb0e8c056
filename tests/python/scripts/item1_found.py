"""Item 1: reads that C code makes; names, classes and identities that a guard must tell apart. Each was a hit once."""

from __future__ import annotations

import collections
import functools
import math
from typing import Any, ClassVar, NamedTuple

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
