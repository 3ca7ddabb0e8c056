"""Item 1: arguments that are new objects on each call are compared by class and attributes, not by identity."""

from __future__ import annotations

import collections
import dataclasses

import torch

from script_tools import World, script


@dataclasses.dataclass
class Box:
    x: torch.Tensor
    k: float = 2.0


class Node:
    scale = 2.0

    def __init__(self, x, **more):
        self.x = x
        self.__dict__.update(more)

    @property
    def doubled(self):
        return self.x * self.scale

    def plus(self, other):
        return self.doubled + other.doubled


Pair = collections.namedtuple("Pair", "a b")


def _x(k=0.0):
    return torch.arange(4.0) + k


def _until_by_content(w: World, f, make) -> None:
    """Calls `f` with instances that live on until they are compared by content."""
    for i in range(4):
        w.call("new", f, *make(i))
    f(*make(4))
    w.call("hit", f, *make(5))


@script(1)
def a_new_data_class_each_call(w: World) -> None:
    def f(b):
        return b.x * b.k + 1

    f = w.jit(f)
    _until_by_content(w, f, lambda i: (Box(_x(i)),))
    w.change("another number in it")
    w.learn(f, Box(_x(3), 3.0))
    w.call("hit", f, Box(_x(4)))
    w.change("other sizes")
    w.learn(f, Box(torch.ones(5)))


@script(1)
def instances_that_live_on(w: World) -> None:
    def f(n):
        return n.doubled + n.x

    f = w.jit(f)
    nodes = [Node(_x(i)) for i in range(7)]
    for node in nodes[:4]:
        w.call("new", f, node)
    w.call("hit", f, nodes[0])
    w.change("a fifth one: by content from now on, in the place of the four")
    f(nodes[4])
    for node in nodes:
        w.call("hit", f, node)


@script(1)
def class_attribute_of_a_described_instance(w: World) -> None:
    class Local(Node):
        pass

    def f(n):
        return n.doubled

    f = w.jit(f)
    _until_by_content(w, f, lambda i: (Local(_x(i)),))
    Local.scale = 5.0
    w.change("the class attribute")
    w.learn(f, Local(_x(3)))
    w.change("shadowed by one of its own")
    w.learn(f, Local(_x(4), scale=7.0))
    w.call("hit", f, Local(_x(5)))


@script(1)
def subclass_in_its_place(w: World) -> None:
    class Other(Node):
        scale = 3.0

    def f(n):
        return n.doubled

    f = w.jit(f)
    _until_by_content(w, f, lambda i: (Node(_x(i)),))
    w.change("instances of a subclass")
    _until_by_content(w, f, lambda i: (Other(_x(i)),))
    w.call("hit", f, Node(_x(6)))


@script(1)
def two_instances_and_their_tensors(w: World) -> None:
    def f(m, n):
        return m.plus(n)

    f = w.jit(f)
    _until_by_content(w, f, lambda i: (Node(_x(i)), Node(_x(i + 1))))
    t = _x(6)
    w.change("one tensor in both: nothing asked whether they are one")
    w.call("hit", f, Node(t), Node(t))
    w.call("hit", f, Node(_x(7)), Node(_x(8)))


@script(1)
def nested_instances_and_lists(w: World) -> None:
    def f(n):
        return n.x + n.inner.x * n.items[0] - n.items[1]["k"]

    def make(k):
        return Node(_x(k), inner=Node(_x(k + 1)), items=[_x(k + 2), {"k": 2.0}])

    f = w.jit(f)
    _until_by_content(w, f, lambda i: (make(i),))
    other = make(3)
    other.items[1]["k"] = 4.0
    w.change("a number deep inside")
    w.learn(f, other)
    w.call("hit", f, make(4))


@script(1)
def store_to_a_described_instance(w: World) -> None:
    def f(n):
        n.y = n.x * 2
        return n.y + 1

    f = w.jit(f)
    _until_by_content(w, f, lambda i: (Node(_x(i)),))
    w.change("one that has the attribute before")
    w.call("new", f, Node(_x(5), y=1.0))
    w.call("hit", f, Node(_x(7), y=1.0))
    w.call("hit", f, Node(_x(6)))


@script(1)
def identity_of_a_described_instance(w: World) -> None:
    def f(m, n):
        return m.x * (2 if m is n else 3)

    f = w.jit(f)
    for i in range(4):
        n = Node(_x(i))
        w.call("new", f, n, n)
    n = Node(_x(4))
    f(n, n)
    w.change("instances that are compared by content")
    w.call("identity of Node", f, Node(_x(5)), Node(_x(6)))


@script(1)
def named_tuples(w: World) -> None:
    def f(p):
        return p.a * 2 + p.b

    f = w.jit(f)
    w.call("new", f, Pair(_x(), 1.0))
    w.call("hit", f, Pair(_x(1), 1.0))
    w.change("another number in it")
    w.learn(f, Pair(_x(), 2.0))
    w.call("hit", f, Pair(_x(2), 1.0))
    w.change("a plain tuple has no names")
    w.call("raised", f, (_x(), 1.0))


@script(1)
def sizes_as_an_argument(w: World) -> None:
    def f(x, size):
        return x.reshape(size) * 2

    f = w.jit(f)
    w.call("new", f, _x(), torch.ones(2, 2).shape)
    w.call("hit", f, _x(1), torch.ones(2, 2).shape)
    w.change("other sizes")
    w.learn(f, _x(2), torch.ones(4, 1).shape)
    w.change("a tuple of them")
    w.learn(f, _x(3), (2, 2))


@script(1)
def instances_that_hold_each_other(w: World) -> None:
    def f(n):
        return n.x + n.other.x

    def make(k):
        m, n = Node(_x(k)), Node(_x(k + 1))
        m.other, n.other = n, m
        return m

    f = w.jit(f)
    kept = [make(i) for i in range(3)]
    w.learn(f, kept[0])
    w.learn(f, kept[1])
    kept[1].other.x = _x(9)
    w.change("a tensor in the other")
    w.learn(f, kept[1])
    w.call("hit", f, kept[0])


@script(1)
def a_cell_of_which_there_are_many(w: World) -> None:
    class Cell:
        def __init__(self, k):
            self.weight = _x(k)

        def step(self, x):
            return x * self.weight + 1

    Cell.step = w.jit(Cell.step)
    cells = [Cell(i) for i in range(8)]
    x = _x()
    for cell in cells[:4]:
        w.call("new", cell.step, x, of=w.current)
    cells[4].step(x)
    w.change("more cells than are kept apart")
    for cell in cells:
        w.call("hit", cell.step, x, of=w.current)
    cells[6].weight = _x(3)
    w.change("a weight")
    w.call("hit", cells[6].step, x, of=w.current)
