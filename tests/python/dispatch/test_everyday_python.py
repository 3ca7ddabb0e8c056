"""What libraries write between their operators: each is a program in its first call, and hits in its second."""

from __future__ import annotations

import collections
import copy
import enum
import functools
import itertools
import operator
import os
import re
import types
import typing
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fastjit
from helpers import OldName, assert_same

X = torch.arange(12.0).reshape(3, 4)


class Colour(enum.Enum):
    RED = "r"
    GREEN = "g"

    @property
    def weight(self) -> float:
        return 2.0 if self is Colour.RED else 3.0


class Flags(enum.IntFlag):
    SMALL = 1
    LARGE = 2


@dataclass(frozen=True)
class Config:
    heads: int = 2
    sizes: tuple[int, ...] = (1, 2)


class Pair(typing.NamedTuple):
    scale: float = 2.0
    count: int = 1


class Node:
    """As a PyTree of torch.utils: compares its children as lists."""

    def __init__(self, kind: str, children: list[Node]) -> None:
        self.kind, self.children = kind, children

    def __eq__(self, other: object) -> Any:
        if not isinstance(other, Node):
            return NotImplemented
        return self.kind == other.kind and self.children == other.children

    __hash__ = None  # type: ignore[assignment]


COUNTS = collections.Counter("aabbb")
PATTERN = re.compile(r"layer(\d+)\.(\w+)")
re.compile("(b)(c)")  # and is kept by re
torch.vmap(torch.dot)(X, X)  # which prepares itself at its first use
MODEL = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
TREE = Node("a", [Node("b", []), Node("c", [])])


def ordered(x: Tensor) -> Tensor:
    d = collections.OrderedDict(a=x, b=x + 1)
    d.move_to_end("a")
    d.setdefault("c", x * 2)
    return d.popitem()[1] + next(iter(d.values()))


def named(x: Tensor) -> Tensor:
    pair = Pair()._replace(scale=3.0)
    return x * pair.scale + pair._asdict()["count"]


def walks(x: Tensor) -> Tensor:
    total = sum(itertools.accumulate([1, 2, 3])) + next(itertools.count(3))
    total += sum(itertools.islice(itertools.cycle([1, 2]), 3)) + len(list(itertools.pairwise((1, 2, 3))))
    total += sum(itertools.takewhile(lambda n: n < 3, [1, 2, 3, 1])) + sum(itertools.starmap(operator.mul, [(2, 3)]))
    total += len(list(itertools.compress("abc", [1, 0, 1]))) + sum(itertools.filterfalse(lambda n: n % 2, range(5)))
    return x * total + sum(itertools.dropwhile(lambda n: n < 3, [1, 2, 3, 1]))


def getters(x: Tensor) -> Tensor:
    pairs = sorted([("a", 3), ("b", 1)], key=operator.itemgetter(1))
    both = operator.itemgetter("k", "s")({"k": x, "s": 2.0})
    return both[0] * both[1] + operator.attrgetter("heads")(Config()) + len(pairs) + sum(map(pairs_second, pairs))


pairs_second = operator.itemgetter(1)


def unpacks(x: Tensor) -> Tensor:
    first, *rest = x.unbind()
    *start, last = rest
    rest.append(first)
    return first + rest[-1] * len(start) + last


def too_few(x: Tensor) -> Tensor:
    try:
        first, second, *rest, last = x.unbind()[:2]
    except ValueError:
        return x * 2
    return first + second + last + len(rest)


def raises(x: Tensor) -> Tensor:
    try:
        raise ValueError("too", 3)
    except ValueError as error:
        text = f"{error}" + str(error)
    return x * len(text)


def wraps(x: Tensor) -> Tensor:
    @functools.wraps(torch.dot)
    def product(a: Tensor, b: Tensor) -> Tensor:
        return torch.dot(a, b)

    return product(x[0], x[1]) + len(product.__name__)


def averages(x: Tensor) -> Tensor:
    """As an average of weights over steps does."""
    state = MODEL.state_dict()
    total = sum(value.float().sum() for value in state.values())
    return x * total + len(state._metadata)  # type: ignore[attr-defined]


SIZES = {"of": (2, 3, ("a", 4)), "list": [(5,), ()]}
CASES: dict[str, Callable[[Tensor], Tensor]] = {
    "members of an enum": lambda x: x * sum(c.weight for c in Colour) + len(Colour) + (Colour("g") is Colour.GREEN),
    "flags": lambda x: x * (2 if (Flags.SMALL | Flags.LARGE) & Flags.LARGE else 3) + (0 if Flags(0) else 1),
    "a counter that is found": lambda x: (
        x * COUNTS.most_common()[0][1] + COUNTS["z"] + sum(COUNTS.values()) + len(COUNTS)
    ),
    "a new counter": lambda x: x * collections.Counter([1, 1, 2]).most_common()[0][1],
    "order of an OrderedDict": ordered,
    "named tuples": named,
    "itertools": walks,
    "itemgetter and attrgetter": getters,
    "data classes": lambda x: x * replace(Config(), heads=3).heads + len(fields(Config)),
    "a pattern": lambda x: x * int(PATTERN.match("layer3.weight").group(1)),  # type: ignore[union-attr]
    "groups of a pattern": lambda x: x * len(re.search("(b)(c)", "abcd").groups()),  # type: ignore[union-attr]
    "text of an exception": raises,
    "unpacking": unpacks,
    "wraps": wraps,
    "state_dict": averages,
    "lists compared by Python code": lambda x: x * (2 if copy_of(TREE) == TREE else 3),
    "numbers of numpy": lambda x: x * torch.tensor(np.float64(2.5)) + torch.as_tensor(np.int64(3)),
    "asarray": lambda x: x + torch.asarray([1.0, 2.0, 3.0, 4.0]),
    "vmap of a function in C": lambda x: torch.vmap(torch.dot)(x, x),
    "weak references": lambda x: x * len(weakref.ref(Colour)()) + weakref.ref(MODEL)()[0].weight[0],  # type: ignore
    "a path": lambda x: x * len(os.path.join("weights", "model.pt")),  # noqa: PTH118
    "a cast to what is one type or another": lambda x: x * len(typing.cast(list[float | Tensor], [1.0, x])),
    "a read-only dictionary": lambda x: x * types.MappingProxyType({"a": 2.0})["a"],
    "copies": lambda x: x * copy.deepcopy({"a": [1, 2]})["a"][1],
    "copies of what holds tuples": lambda x: x * copy.deepcopy(SIZES)["of"][1] * copy.deepcopy(SIZES)["list"][0][0],
}


def copy_of(node: Node) -> Node:
    return Node(node.kind, [copy_of(child) for child in node.children])


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_a_pattern_is_a_program(case: str) -> None:
    fn = CASES[case]
    # Caches of the process that one call fills; since 3.12 re takes out of its first cache what it puts into both.
    first = re.compile("what .* keeps|change of dict by dict.pop at re/__init__.py")
    fast = fastjit.jit(fn, on_unsupported="eager")
    for call in range(4):
        x = X + call
        assert_same(fast(x), fn(x))
    stats = fast.stats()
    assert stats.hits >= 2 and all(first.match(why) for why in stats.fallbacks), stats


def test_an_unpacking_that_fails_is_eagers() -> None:
    fast = fastjit.jit(too_few, on_unsupported="eager")
    for _ in range(3):
        assert_same(fast(X), too_few(X), exact=True)
    assert fast.stats().hits == 0 and "ValueError raised" in "".join(fast.stats().fallbacks)


def change(fn: Any, fast: Any, make: Any, undo: Any) -> None:
    """The next call notices, and gives what eager gives."""
    hits = fast.stats().hits
    make()
    try:
        assert_same(fast(X), fn(X))
        assert fast.stats().hits == hits
    finally:
        undo()


def test_what_a_counter_and_a_state_hold_is_noticed() -> None:
    held = collections.Counter("ab")

    def counts(x: Tensor) -> Tensor:
        return x * sum(held.values()) + len([*held]) + len(held) + held["a"] + held["z"]

    fast = fastjit.jit(counts)
    for _ in range(2):
        assert_same(fast(X), counts(X))
    assert (fast.stats().hits, fast.stats().fallbacks) == (1, {})
    change(counts, fast, lambda: held.update("c"), lambda: held.pop("c"))
    change(counts, fast, lambda: held.update("a"), lambda: held.subtract("a"))

    class Own(collections.Counter[str]):
        def values(self) -> Any:
            return [5.0]

    own = Own("ab")
    mine = fastjit.jit(lambda x: x * sum(own.values()))
    assert_same(mine(X), X * 5)
    assert_same(mine(X), X * 5)


def test_a_result_of_state_dict_is_a_new_dictionary() -> None:
    fast = fastjit.jit(lambda x: (MODEL.state_dict(), x + 1))
    for call in range(3):
        got, expected = fast(X)[0], MODEL.state_dict()
        assert type(got) is type(expected) and [*got] == [*expected]
        assert got._metadata == expected._metadata and got._metadata is not expected._metadata
        assert all(got[name].data_ptr() == expected[name].data_ptr() for name in got)
        assert fast.stats().hits in (0, call), fast.stats()


@pytest.fixture
def _plain_filters():
    """As in a process without pytest, which replaces what shows warnings."""
    with warnings.catch_warnings():
        warnings.resetwarnings()
        yield


def quiet(x: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("dropped", OldName, stacklevel=1)
        y = x * 2
    return y + 1


def by_text(x: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*deprecated.*", category=OldName)
        return x * 3


REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {}


def refused(reason: str) -> Callable[[Any], Any]:
    def add(fn: Any) -> Any:
        REFUSED[fn.__name__] = fn, reason
        return fn

    return add


@refused("side effect: simplefilter")
def lasting(x: Tensor) -> Tensor:
    warnings.simplefilter("ignore")
    return x * 2


@refused("side effect: simplefilter")
def strict(x: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return x * 2


@refused("side effect: warnings.warn inside catch_warnings")
def shown(x: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("shown", OldName, stacklevel=1)
        return x * 2


@refused("side effect: catch_warnings.__enter__")
def recorded(x: Tensor) -> Tensor:
    with warnings.catch_warnings(record=True) as said:
        return x * 2 + len(said)


@pytest.mark.usefixtures("_plain_filters")
@pytest.mark.parametrize("fn", [quiet, by_text])
def test_filters_for_a_while(fn: Any) -> None:
    fast = fastjit.jit(fn)
    before = [*warnings.filters]
    for call in range(3):
        assert_same(fast(X), fn(X), exact=True)
        assert (fast.stats().hits, fast.stats().fallbacks) == (call, {})
    assert [*warnings.filters] == before
    assert "effect: warnings.catch_warnings() (test_everyday_python.py:" in fast.inspect("guards")


@pytest.mark.usefixtures("_plain_filters")
def test_a_warning_is_shown_again_after_a_hit_as_after_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaving catch_warnings() lets the interpreter forget what it has shown."""
    said: list[str] = []
    monkeypatch.setattr(warnings, "_showwarnmsg_impl", lambda message: said.append(str(message.message)))
    fast = fastjit.jit(quiet)
    fast(X), fast(X)
    warnings.simplefilter("default")

    def tell() -> int:
        before = len(said)
        warnings.warn_explicit("once a place", OldName, "model.py", 3, registry=registry)
        return len(said) - before

    registry: dict[Any, Any] = {}
    assert (tell(), tell()) == (1, 0)
    quiet(X)
    assert (tell(), tell()) == (1, 0)
    fast(X)
    assert fast.stats().hits == 2
    assert (tell(), tell()) == (1, 0)


@pytest.mark.usefixtures("_plain_filters")
@pytest.mark.parametrize("case", REFUSED)
def test_filters_that_stay_eager(case: str) -> None:
    fn, reason = REFUSED[case]
    fast = fastjit.jit(fn, on_unsupported="eager")
    for _ in range(3):
        assert_same(fast(X), fn(X), exact=True)
    assert fast.stats().hits == 0 and reason in "".join(fast.stats().fallbacks), fast.stats().fallbacks
