"""Arguments that a call changes and returns: caches of decoding, states that are passed on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import fastjit
from helpers import assert_same

ONE = torch.ones(1, 1, 2)


class Layer:
    """As transformers': filled by its first update."""

    def __init__(self) -> None:
        self.keys: Any = None
        self.is_filled = False
        self.length = 0

    def update(self, x: Tensor) -> Tensor:
        if not self.is_filled:
            self.keys, self.is_filled = x.new_zeros(1, 0, 2), True
        self.keys = torch.cat([self.keys, x], dim=1)
        self.length += x.shape[1]
        return self.keys


class Cache:
    def __init__(self, layers: int = 2, grows: bool = False) -> None:
        self.layers = [] if grows else [Layer() for _ in range(layers)]
        self.grows = grows

    def update(self, x: Tensor, i: int) -> Tensor:
        while self.grows and len(self.layers) <= i:
            self.layers.append(Layer())
        return self.layers[i].update(x)


class Output:
    def __init__(self, logits: Tensor, cache: Cache) -> None:
        self.logits, self.cache = logits, cache


def model(x: Tensor, cache: Cache) -> Output:
    for i in range(2):
        x = x + cache.update(x, i).sum(1, keepdim=True)
    return Output(logits=x * 2, cache=cache)


def states(cache: Cache) -> list[Any]:
    return [(layer.keys, layer.is_filled, layer.length) for layer in cache.layers]


def generate(call: Any, make: Any, steps: int = 3, first: int = 2) -> list[Any]:
    cache, out = make(), []
    x = torch.arange(2.0 * first).reshape(1, first, 2)
    for _ in range(steps):
        got = call(x, cache)
        assert got.cache is cache and type(got) is Output
        out.append((got.logits, states(cache)))
        x = got.logits[:, -1:] * 0.125
    return out


def flat(results: list[Any]) -> list[Tensor]:
    out = []
    for logits, layers in results:
        out += [logits, *(keys for keys, _, _ in layers)]
    return out


def test_a_cache_that_is_passed_in_changed_and_returned():
    fast = fastjit.jit(model)
    wanted = generate(model, Cache)
    hits = []
    for _ in range(4):
        got = generate(fast, Cache)
        assert_same(flat(got), flat(wanted), exact=True)
        assert [[layer[1:] for layer in one[1]] for one in got] == [[layer[1:] for layer in one[1]] for one in wanted]
        hits.append(fast.stats().hits)
    # The second run's first call and first step; the steps that differed in sizes only are recorded then.
    assert hits[1] - hits[0] >= 2 and hits[3] - hits[2] == 3
    assert fast.stats().fallbacks == {}


def test_layers_that_the_call_appends():
    fast = fastjit.jit(model)
    made = []

    def make() -> Cache:
        made.append(Cache(grows=True))
        return made[-1]

    wanted = generate(model, make)
    for _ in range(5):
        before = fast.stats().hits
        assert_same(flat(generate(fast, make)), flat(wanted), exact=True)
    assert fast.stats().hits - before == 3
    layers = [layer for cache in made for layer in cache.layers]
    assert len({id(layer) for layer in layers}) == len(layers) == 12


def settled(body: Any, make: Any, calls: int = 7) -> Any:
    """Compared by content: hits with a new instance."""
    fast = fastjit.jit(body)
    for _ in range(calls):
        before = fast.stats().hits
        mine, its = make(), make()
        assert_same(fast(mine, ONE), body(its, ONE), exact=True)
    assert fast.stats().hits == before + 1, fast.stats()
    return fast


class Node:
    def __init__(self, x: Tensor, **more: Any) -> None:
        self.x = x
        self.__dict__.update(more)


def stores(node: Node, x: Tensor) -> Tensor:
    node.x, node.old = node.x + x, node.x
    node.count = getattr(node, "count", 0) + 1
    return node.x * node.count


def test_what_is_stored_in_an_argument():
    fast = settled(stores, lambda: Node(torch.zeros(1, 1, 2)))
    node = Node(torch.zeros(1, 1, 2))
    first = node.x
    out = fast(node, ONE)
    assert node.old is first and node.count == 1 and list(vars(node)) == ["x", "old", "count"]
    assert_same([out, node.x], [ONE, ONE], exact=True)
    hits = fast.stats().hits
    assert_same(fast(node, ONE), 2 * (ONE + ONE), exact=True)  # it has other attributes now
    assert fast.stats().hits == hits and node.count == 2


def two(pair: Any, x: Tensor) -> Tensor:
    a, b = pair
    a.x = a.x + x
    return a.x + b.x


def test_one_object_twice_among_the_arguments():
    def make() -> Any:
        return (Node(torch.zeros(1, 1, 2)), Node(torch.ones(1, 1, 2)))

    fast = settled(two, make)
    node, twin = Node(ONE), Node(ONE)
    hits = fast.stats().hits
    for _ in range(3):
        assert_same(fast((node, node), ONE), two((twin, twin), ONE), exact=True)
        assert_same(node.x, twin.x, exact=True)
    assert fast.stats().hits == hits + 1  # variants of its own, with ONE as its attribute and without
    assert_same(fast((Node(ONE), Node(ONE)), ONE), 3 * ONE, exact=True)
    assert fast.stats().hits == hits + 2


def through_its_attributes(node: Node, entries: dict[str, Tensor], x: Tensor) -> Tensor:
    node.x = node.x + x
    return entries["x"] * 2


@pytest.mark.parametrize("shares", [True, False], ids=["recorded shared", "recorded apart"])
def test_an_argument_that_is_the_attributes_of_another(shares):
    fast = fastjit.jit(through_its_attributes)

    def check(shared: bool) -> int:
        for f in (fast, through_its_attributes):
            node = Node(ONE)
            got = f(node, vars(node) if shared else {"x": ONE * 5}, ONE)
            assert_same([got, node.x], [(4 if shared else 10) * ONE, 2 * ONE], exact=True)
        return fast.stats().hits

    for _ in range(6):
        check(shares)
    hits = check(shares)
    assert hits == 0 if shares else hits > 0
    for _ in range(3):
        check(not shares)
    assert shares or fast.stats().hits == hits


def test_two_arguments_that_share_their_attributes():
    def make() -> Any:
        return (Node(torch.zeros(1, 1, 2)), Node(torch.ones(1, 1, 2)))

    fast = settled(two, make)
    hits = fast.stats().hits
    for f in (fast, two):
        a, b = make()
        b.__dict__ = a.__dict__
        assert_same(f((a, b), ONE), 2 * ONE, exact=True)
    assert fast.stats().hits == hits


def test_an_argument_that_facts_look_into():
    space: dict[str, Any] = {"known": Node(ONE)}
    exec("def f(node, x):\n    node.x = node.x + x\n    return node.x + known.x", space)
    fast = settled(space["f"], lambda: Node(torch.zeros(1, 1, 2)))
    hits = fast.stats().hits
    assert_same(fast(space["known"], ONE), 4 * ONE, exact=True)
    assert_same(fast(space["known"], ONE), 6 * ONE, exact=True)
    assert fast.stats().hits == hits
    assert_same(fast(Node(ONE), ONE), 5 * ONE, exact=True)


class Guarded(Node):
    @property
    def y(self) -> Tensor:
        return self.x

    @y.setter
    def y(self, value: Tensor) -> None:
        self.x = value * 2


def by_property(node: Guarded, x: Tensor) -> Tensor:
    node.y = node.y + x
    return node.x


def test_stores_through_a_property_of_an_argument():
    fast = settled(by_property, lambda: Guarded(torch.zeros(1, 1, 2)))
    node = Guarded(ONE)
    fast(node, ONE)
    assert_same(node.x, 4 * ONE, exact=True)
    hits = fast.stats().hits
    before = Guarded.y
    try:
        Guarded.y = property(before.fget, lambda self, value: setattr(self, "x", value * 3))
        node = Guarded(ONE)
        assert_same(fast(node, ONE), 6 * ONE, exact=True)
        assert fast.stats().hits == hits
    finally:
        Guarded.y = before


class Later(Node):
    pass


def test_a_data_descriptor_that_the_class_gets_later():
    fast = settled(stores, lambda: Later(torch.zeros(1, 1, 2)))
    hits, seen = fast.stats().hits, []
    Later.old = property(lambda self: None, lambda self, value: seen.append(value))
    try:
        node = Later(torch.zeros(1, 1, 2))
        fast(node, ONE)
        assert len(seen) == 1 and "old" not in vars(node) and fast.stats().hits == hits
    finally:
        del Later.old


def replaced_twice(node: Node, x: Tensor) -> Any:
    node.parts = [node.parts[0] + x]
    node.parts = [node.parts[0] * 2, x]
    return node.parts


def test_a_list_of_an_argument_that_is_replaced():
    fast = settled(replaced_twice, lambda: Node(ONE, parts=[ONE]))
    node = Node(ONE, parts=[ONE])
    old = node.parts
    got = fast(node, ONE)
    assert got is node.parts and got is not old and len(old) == 1
    assert_same(got, [4 * ONE, ONE], exact=True)


def collects(xs: list[Tensor], x: Tensor) -> Any:
    xs.append(x + len(xs))
    return xs, xs[-1] * 2


def test_a_list_to_which_the_call_appends():
    fast = fastjit.jit(collects)
    for call in range(4):
        xs: list[Tensor] = [ONE]
        got, last = fast(xs, ONE)
        assert got is xs and len(xs) == 2
        assert_same([xs[1], last], [2 * ONE, 4 * ONE], exact=True)
        assert fast.stats().hits == call
    xs = [ONE]
    for _ in range(3):
        fast(xs, ONE)
    assert [float(x.sum()) for x in xs] == [2.0, 4.0, 6.0, 8.0]
    assert fast.stats().fallbacks == {}


def marks(x: Tensor) -> Tensor:
    x._mark = "seen"
    return x + 1


def test_an_attribute_given_to_an_argument():
    fast = fastjit.jit(marks)
    for call in range(3):
        x = torch.ones(2) + call
        assert_same(fast(x), x + 1, exact=True)
        assert vars(x) == {"_mark": "seen"} and fast.stats().hits == call
    x = torch.ones(2)
    x._mark = "mine"
    fast(x)
    assert x._mark == "seen" and fast.stats().hits == 2  # it was not bare


@pytest.mark.parametrize("kind", ["dictionary", "instance"])
def test_an_argument_in_the_result(kind):
    def body(node: Any, x: Tensor) -> Any:
        return {"node": node, "y": x + 1}

    fast = fastjit.jit(body)
    for _ in range(7):
        node = {"a": ONE} if kind == "dictionary" else Node(ONE, inner=[Node(ONE)])
        before = fast.stats().hits
        assert fast(node, ONE)["node"] is node
    assert fast.stats().hits == before + 1 and fast.stats().fallbacks == {}


def test_hits_are_recorded_again_and_verified(monkeypatch):
    fast = fastjit.jit(model, verify=1.0)
    wanted = generate(model, Cache)
    for _ in range(4):
        assert_same(flat(generate(fast, Cache)), flat(wanted), exact=True)
    assert fast.stats().verified > 0 and fast.stats().mismatches == 0


def decodes(x: Tensor, cache: dict[str, Tensor], log: list[Tensor]) -> Tensor:
    cache["k"] = torch.cat([cache["k"], x], dim=1)
    cache["sum"] = cache["k"].sum(1)
    log[0] = cache["sum"] * 2
    log[-1] = x + 1
    return torch.softmax(x @ cache["k"].transpose(1, 2), -1) @ cache["k"]


def test_dictionaries_and_lists_that_are_passed_in_and_grow():
    fast = fastjit.jit(decodes)
    mine, its = ({"k": torch.zeros(1, 1, 2)} for _ in range(2))
    log, other = [ONE, ONE], [ONE, ONE]
    for step in range(8):
        x = torch.randn(1, 1, 2)
        before = fast.stats().hits
        assert_same(fast(x, mine, log), decodes(x, its, other))
        assert list(mine) == list(its)
        assert_same([*mine.values(), *log], [*its.values(), *other])
        assert fast.stats().hits - before == (step > 2), step  # the first makes an item; the second has a size of one
    assert fast.stats().fallbacks == {}


def test_one_dictionary_in_two_places_and_another_owner():
    def f(a: dict[str, Tensor], b: dict[str, Tensor], x: Tensor) -> Tensor:
        a["k"] = b["k"] + x
        return a["k"] + b["k"]

    fast = fastjit.jit(f, on_unsupported="eager")
    for _ in range(4):
        own, twin = {"k": ONE}, {"k": ONE}
        assert_same(fast(own, own, ONE), f(twin, twin, ONE), exact=True)
        assert_same(own["k"], twin["k"], exact=True)
        a, b, c, d = ({"k": ONE.clone()} for _ in range(4))
        held = a["k"]
        assert_same(fast(a, b, ONE), f(c, d, ONE), exact=True)
        assert_same([held, a["k"], b["k"]], [ONE, c["k"], d["k"]], exact=True)
