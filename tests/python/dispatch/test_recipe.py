"""Results of instances, named tuples and shared containers: rebuilt on a hit, or eager where that would be wrong."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, NamedTuple

import pytest
import torch

from fastjit import fastjit


class Plain:
    pass


class Pair(NamedTuple):
    first: torch.Tensor
    second: Any


@dataclasses.dataclass
class Data:
    a: torch.Tensor
    b: Any = None


class Bag(dict):
    pass


class Ordered(collections.OrderedDict):
    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        setattr(self, key, value)


class Slotted:
    __slots__ = ("a",)


def plain(x):
    out = Plain()
    out.b, out.a, out.kind = x + 1, x - 1, torch.float32
    return out


def pair(x):
    return Pair(x + 1, [x - 1, "text"])


def data(x):
    return {"d": Data(x + 1, Data(x * 2))}


def bag(x):
    out = Bag(k=x + 1)
    out["l"] = x.shape
    out.note = x * 3
    return out


def ordered(x):
    out = Ordered()
    out["z"] = x + 1
    out["a"] = (x * 2, None)
    return out


def shared(x):
    items = [x + 1]
    return items, {"again": items, "deeper": (items,)}


def parts(value: Any) -> Any:
    """All that a result holds, as plain containers."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return type(value), [(key, parts(item)) for key, item in value.items()], parts_of_dict(value)
    if isinstance(value, (list, tuple)):
        return type(value), [parts(item) for item in value]
    return (type(value), parts_of_dict(value)) if hasattr(value, "__dict__") else value


def parts_of_dict(value: Any) -> Any:
    return [(key, parts(item)) for key, item in getattr(value, "__dict__", {}).items()]


@pytest.mark.parametrize("fn", [plain, pair, data, bag, ordered, shared], ids=lambda f: f.__name__)
def test_result_is_rebuilt(fn):
    fast = fastjit(fn)
    seen = []
    for call in range(3):
        x = torch.arange(3.0) + call
        seen.append(fast(x))
        assert parts(seen[-1]) == parts(fn(x))
        assert fast.stats().fallbacks == {}
        assert fast.stats().hits == call
    assert len({id(result) for result in seen}) == 3


def test_shared_parts_are_shared():
    fast = fastjit(shared)
    fast(torch.ones(2))
    items, rest = fast(torch.ones(2))
    assert rest["again"] is items
    assert rest["deeper"][0] is items
    assert fast.stats().hits == 1
    fast = fastjit(ordered)
    fast(torch.ones(2))
    out = fast(torch.ones(2))
    assert out["a"] is out.a
    assert out["z"] is out.z
    assert fast.stats().hits == 1


KEPT: list[float] = [1.0]
ITSELF = "its result contains itself"


def kept(x):
    return x + 1, KEPT


def argument(x, xs):
    return x + 1, xs


def cycle(x):
    out = [x + 1]
    out.append(out)
    return out


def slotted(x):
    out = Slotted()
    out.a = x + 1
    return out


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (cycle, ITSELF),
        (slotted, "it returns a Slotted"),
    ],
    ids=lambda p: getattr(p, "__name__", ""),
)
def test_result_that_cannot_be_rebuilt_is_eager(fn, reason):
    fast = fastjit(fn, on_unsupported="eager")
    for _ in range(3):
        fast(torch.ones(2))
    assert fast.stats().fallbacks == {reason: 3}


def test_a_result_holds_what_the_call_found():
    global KEPT
    fast = fastjit(kept)
    for call in range(3):
        assert fast(torch.ones(2))[1] is KEPT
        KEPT.append(call)  # nobody read it
    assert fast.stats().hits == 2
    KEPT = [2.0]
    assert fast(torch.ones(2))[1] is KEPT and fast.stats().hits == 2
    assert fast.stats().fallbacks == {}


def test_a_result_holds_a_list_that_was_passed():
    fast = fastjit(argument)
    for call in range(3):
        xs = [torch.ones(2) + call]
        assert fast(torch.ones(2), xs)[1] is xs
    assert fast.stats().hits == 2


def test_dictionaries_by_tuples_of_values():
    def fn(x: torch.Tensor) -> dict[Any, torch.Tensor]:
        return {("mean", (), b"key"): x + 1, ("mean", (1, 2.0, None)): x * 2}

    fast = fastjit(fn)
    x = torch.arange(3.0)
    for _ in range(3):
        got = fast(x)
        assert list(got) == list(fn(x))
        assert all(torch.equal(a, b) for a, b in zip(got.values(), fn(x).values(), strict=True))
    assert fast.stats().hits == 2 and fast.stats().fallbacks == {}


@pytest.mark.parametrize("make", [collections.OrderedDict, set, dict, list])
def test_which_of_two_empty_containers_an_argument_is(make):
    def compare(x, a, b):
        return x + 1 if a is b else x - 1

    fast, x = fastjit(compare, on_unsupported="eager"), torch.randn(5)
    one, other = make(), make()
    for a, b in [(one, one), (one, other), (other, other)] * 3:
        assert torch.equal(fast(x, a, b), compare(x, a, b))


def test_containers_with_nothing_in_them():
    def look(x, names, hooks):
        return x * (len(names) + 1) + (1 if hooks else 2) + (3 if "k" in names else 4) + hooks.get("k", 5)

    fast, x = fastjit(look, on_unsupported="eager"), torch.randn(5)
    empty = look(x, set(), collections.OrderedDict())
    for call in range(4):
        assert torch.equal(fast(x, set(), collections.OrderedDict()), empty) and fast.stats().hits == call
    for _ in range(3):
        names, hooks = {"k"}, collections.OrderedDict(k=7)
        assert torch.equal(fast(x, names, hooks), look(x, names, hooks))
    assert torch.equal(fast(x, set(), collections.OrderedDict()), empty)
    assert fast.stats().hits >= 4


@pytest.mark.parametrize("make", [collections.OrderedDict, set])
def test_an_empty_container_that_the_call_fills(make):
    def fill(x, kept):
        kept.update({"k": 1}) if isinstance(kept, dict) else kept.add("k")
        return x + len(kept)

    fast, x = fastjit(fill, on_unsupported="eager"), torch.randn(5)
    for _ in range(3):
        mine, theirs = make(), make()
        for _ in range(2):
            assert torch.equal(fast(x, mine), fill(x, theirs)) and mine == theirs


def test_a_list_at_two_places_comes_back():
    def give_back(x, state, kept):
        return (x + 1, kept) if len(state["kept"]) == len(kept) else (x - 1, state["kept"])

    fast, x = fastjit(give_back), torch.randn(5)
    for call in range(4):
        kept = [torch.randn(2), 3]
        got, same = fast(x, {"kept": kept, "t": call > 9}, kept)
        assert same is kept and torch.equal(got, x + 1) and fast.stats().hits == call
    one, other = [torch.randn(2), 3], [torch.randn(2), 3]
    for _ in range(2):
        assert fast(x, {"kept": one, "t": False}, other)[1] is other
    assert fast.stats().hits == 4 and fast.stats().fallbacks == {}
    assert fast(x, {"kept": one, "t": False}, one)[1] is one and fast.stats().hits == 5


def test_a_list_at_two_places_is_changed():
    def grow(x, state, kept):
        kept.append(x * 2)
        return x + len(state["kept"])

    fast, x = fastjit(grow, on_unsupported="eager"), torch.randn(5)
    for _ in range(4):
        kept: list[Any] = [1]
        assert torch.equal(fast(x, {"kept": kept}, kept), x + 2)
        assert len(kept) == 2 and torch.equal(kept[1], x * 2)
    one, other = [1], [1]
    assert torch.equal(fast(x, {"kept": one}, other), x + 1) and (len(one), len(other)) == (1, 2)
    assert fast.stats().hits == 3


def test_verified_hits_that_give_arguments_back():
    def write(x, items):
        items[0].add_(1)
        return x * 2, items, {"items": items}

    fast = fastjit(write, verify=1.0)
    for _ in range(4):
        items = [torch.zeros(3)]
        _, same, others = fast(torch.randn(5), items)
        assert same is items and others["items"] is items and items[0].sum() == 3
    assert fast.stats().hits == 3 and fast.stats().mismatches == 0
