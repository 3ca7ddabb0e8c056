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


class Keeper:
    def __init__(self) -> None:
        self.kept: Any = None

    def keep(self, x: torch.Tensor, items: list) -> Any:
        self.kept = items
        return x + 1, items


def test_arguments_come_back_as_the_objects_that_they_are():
    def give_back(x, items, names, scale):
        return {"y": x * scale + len(items) * 0.5, "items": items, "both": (items, names), "twice": 2.0 * scale}

    fast = fastjit(give_back)
    x = torch.randn(5)
    for call in range(4):
        items, names = [torch.randn(2), 3], {"a": torch.ones(1)}
        scale = 1.5 + call
        got, wanted = fast(x, items, names, scale), give_back(x, items, names, scale)
        assert got["items"] is items and got["both"][0] is items and got["both"][1] is names
        assert torch.equal(got["y"], wanted["y"]) and got["twice"] == wanted["twice"]
    assert fast.stats().hits == 3 and fast.stats().fallbacks == {}
    longer = [torch.randn(2), 3, 4]
    assert fast(x, longer, {"a": torch.ones(1)}, 2.5)["items"] is longer
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


def test_which_of_two_arguments_comes_back():
    def last(x, a, b):
        return x + 1, b

    fast = fastjit(last)
    x, one, other = torch.randn(5), [1], [1]
    for call in range(3):
        assert fast(x, one, one)[1] is one and fast.stats().hits == call
    for call, (a, b) in enumerate([(one, other), (other, one), (one, other)]):  # which of the two it is was not seen
        assert fast(x, a, b)[1] is b and fast.stats().hits == 2 + call
    with_two = fastjit(last)
    for a, b in [(one, other), (other, one), (one, one)] * 2:
        assert with_two(x, a, b)[1] is b
    assert with_two.stats().hits == 5


def test_an_argument_is_stored_as_it_is():
    keeper = Keeper()
    fast = fastjit(keeper.keep)
    for _ in range(4):
        items = [torch.randn(2)]
        assert fast(torch.randn(5), items)[1] is items and keeper.kept is items
    assert fast.stats().hits == 3


def test_an_instance_that_is_written_and_comes_back():
    def step(state, x):
        state.b = x + 1
        return state

    def look(state, x):
        return state, state.a + x

    written, fast = fastjit(step, on_unsupported="eager"), fastjit(look)
    x = torch.randn(5)
    for call in range(12):
        state = Data(torch.full((5,), float(call)), x)
        got = written(state, x)
        assert got is state and torch.equal(state.b, x + 1)
        got, y = fast(state, x)
        assert got is state and torch.equal(y, state.a + x)
    assert fast.stats().hits > 6


class Wrap(torch.nn.Module):
    """Made for each call, as solvers wrap what they are given."""

    def __init__(self, inner: torch.nn.Module, scale: float = 2.0) -> None:
        super().__init__()
        self.inner, self.scale = inner, scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * self.scale if self.training else self.inner(x)


def test_modules_that_are_made_for_each_call():
    def apply(module, x):
        return module(x) + 1

    fast = fastjit(apply, on_unsupported="eager")
    inner, other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    x = torch.randn(2, 4)

    def check(wrap: Wrap, hit: bool) -> None:
        before = fast.stats().hits
        assert torch.equal(fast(wrap, x), apply(wrap, x))
        assert fast.stats().hits == before + hit, (fast.stats(), fast.explain(wrap, x))

    with torch.no_grad():
        for call in range(5):
            check(Wrap(inner), hit=call > 1)
        check(Wrap(inner, 3.0), hit=False)
        check(Wrap(other), hit=False)
        check(Wrap(inner).eval(), hit=False)
        hooked = Wrap(inner)
        hooked.register_forward_hook(lambda module, args, out: out * 10)
        check(hooked, hit=False)
        inner.weight.mul_(0.5)
        check(Wrap(inner), hit=True)
        inner.register_forward_hook(lambda module, args, out: out * 10)
        check(Wrap(inner), hit=False)
        assert all("OrderedDict" in reason for reason in fast.stats().fallbacks)  # of the hooks
