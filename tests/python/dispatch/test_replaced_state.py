"""Tensors that a call reads from a place and replaces there: running sums, counts, caches that grow."""

from __future__ import annotations

import types
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fastjit
from helpers import assert_same

X = torch.arange(12.0).reshape(3, 4)


class Slotted:
    __slots__ = ("h",)


class Metric(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))
        self.count = torch.zeros((), dtype=torch.int64)

    def forward(self, x: Tensor) -> Tensor:
        self.total = self.total + x.sum(0)
        self.count = self.count + len(x)
        return self.total / self.count


TOTAL = torch.zeros(3, 4)


def in_global() -> tuple[Callable[[Tensor], Tensor], Callable[[], Any]]:
    space: dict[str, Any] = {"total": torch.zeros(3, 4)}
    exec("def f(x):\n    global total\n    total = total + x\n    return total * 2", space)
    return space["f"], lambda: space["total"]


def in_cell() -> tuple[Callable[[Tensor], Tensor], Callable[[], Any]]:
    total = torch.zeros(3, 4)

    def f(x: Tensor) -> Tensor:
        nonlocal total
        total = total + x
        return total * 2

    return f, lambda: total


def in_attribute() -> tuple[Callable[[Tensor], Tensor], Callable[[], Any]]:
    state = types.SimpleNamespace(h=torch.zeros(3, 4))

    def f(x: Tensor) -> Tensor:
        state.h = (state.h + x) * 0.5
        return state.h

    return f, lambda: state.h


def in_slot() -> tuple[Callable[[Tensor], Tensor], Callable[[], Any]]:
    state = Slotted()
    state.h = torch.zeros(3, 4)

    def f(x: Tensor) -> Tensor:
        state.h = (state.h + x) * 0.5
        return state.h

    return f, lambda: state.h


def in_list() -> tuple[Callable[[Tensor], Tensor], Callable[[], Any]]:
    state = [torch.zeros(3, 4), torch.ones(3, 4)]

    def f(x: Tensor) -> Tensor:
        for i in range(2):
            state[i] = state[i] * x + i
        return state[0] + state[1]

    return f, lambda: list(state)


def in_dictionary() -> tuple[Callable[[Tensor], Tensor], Callable[[], Any]]:
    state = {"h": torch.zeros(3, 4)}

    def f(x: Tensor) -> Tensor:
        before = state["h"]
        state["h"] = before + x
        return before

    return f, lambda: state["h"]


def in_module() -> tuple[Callable[[Tensor], Tensor], Callable[[], Any]]:
    metric = Metric()
    return lambda x: metric(x), lambda: [metric.total, metric.count, dict(metric.named_buffers())]


def moved_along() -> tuple[Callable[[Tensor], Tensor], Callable[[], Any]]:
    state = types.SimpleNamespace(new=torch.zeros(3, 4), old=torch.ones(3, 4))

    def f(x: Tensor) -> Tensor:
        state.old, state.new = state.new, state.new + x
        return state.old

    return f, lambda: [state.old, state.new]


PLACES = [in_global, in_cell, in_attribute, in_slot, in_list, in_dictionary, in_module, moved_along]


@pytest.mark.parametrize("place", PLACES, ids=lambda make: make.__name__)
def test_a_place_whose_tensor_each_call_replaces(place):
    (f, of_fast), (g, of_eager) = place(), place()
    fast = fastjit.jit(f)
    for call in range(5):
        x = X + call
        got, wanted = fast(x), g(x)
        assert_same(got, wanted, exact=True)
        assert_same(of_fast(), of_eager(), exact=True)
    assert fast.stats().hits == 4 and fast.stats().fallbacks == {}


def test_what_is_returned_is_what_is_stored():
    state = types.SimpleNamespace(h=torch.zeros(3))

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        before = state.h
        state.h = before + x
        return before, state.h

    fast = fastjit.jit(f)
    for _ in range(4):
        old = state.h
        before, after = fast(torch.ones(3))
        assert before is old and after is state.h and after is not old
    assert fast.stats().hits == 3


class Sums:
    def __init__(self) -> None:
        self.h: Any = torch.zeros(3, 4)

    def __call__(self, x: Tensor) -> Tensor:
        self.h = self.h + x
        return self.h * 2


CHANGES: dict[str, Callable[[Tensor], Any]] = {
    "dtype": lambda h: h.double(),
    "sizes": lambda h: h[:1].clone(),
    "strides": lambda h: h.t().contiguous().t(),
    "parameter": lambda h: torch.nn.Parameter(h, requires_grad=False),
    "number": lambda h: 3.0,
    "requires grad": lambda h: h.clone().requires_grad_(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_tensor_of_another_kind_in_the_place_is_noticed(change):
    sums, twin = Sums(), Sums()
    fast = fastjit.jit(lambda x: sums(x))
    for _ in range(3):
        assert_same(fast(X), twin(X), exact=True)
    assert fast.stats().hits == 2
    sums.h, twin.h = change(sums.h), change(twin.h)
    for _ in range(2):
        assert_same(fast(X), twin(X), exact=True)
        assert_same(sums.h, twin.h, exact=True)
    sums.h, twin.h = torch.ones(3, 4), torch.ones(3, 4)  # the first program again
    hits = fast.stats().hits
    assert_same(fast(X), twin(X), exact=True)
    assert fast.stats().hits == hits + 1


def test_another_tensor_like_it_is_no_change():
    sums, twin = Sums(), Sums()
    fast = fastjit.jit(lambda x: sums(x))
    for call in range(4):
        sums.h, twin.h = X + call, X + call
        assert_same(fast(X), twin(X), exact=True)
    sums.h, twin.h = X, X  # the argument itself
    assert_same(fast(X), twin(X), exact=True)
    assert fast.stats().hits == 4


def test_a_place_in_which_nothing_is_left():
    sums = Sums()
    fast = fastjit.jit(lambda x: sums(x))
    fast(X), fast(X)
    del sums.h
    with pytest.raises(AttributeError):
        fast(X)
    sums.h = X
    assert_same(fast(X), X * 4, exact=True)
    assert fast.stats().hits == 2


def test_memory_that_a_place_shares_with_what_is_written():
    def make() -> tuple[types.SimpleNamespace, Callable[[Tensor], Tensor]]:
        state = types.SimpleNamespace(h=torch.zeros(4), kept=torch.zeros(4))

        def f(x: Tensor) -> Tensor:
            state.kept.add_(x)
            state.h = state.h * 2 + state.kept
            return state.h + 1

        return state, f

    (mine, f), (its, g) = make(), make()
    fast = fastjit.jit(f)
    for call in range(5):
        if call == 3:
            mine.h, its.h = mine.kept[:], its.kept[:]
        assert_same(fast(torch.ones(4) + call), g(torch.ones(4) + call), exact=True)
        assert_same([mine.h, mine.kept], [its.h, its.kept], exact=True)
    assert fast.stats().hits == 3


def keys_by_it(state: Any, x: Tensor) -> Tensor:
    seen = {state.h: 2, state.w: 3}
    before = state.h
    state.h = before + x
    return state.h * seen[state.w if before is state.w else before]


def compares_it(state: Any, x: Tensor) -> Tensor:
    same = state.h is state.w
    state.h = state.h + x
    return state.h if same else state.h * 2


def reads_its_own(state: Any, x: Tensor) -> Tensor:
    scale = getattr(state.h, "scale", 3)
    state.h = state.h + x
    return state.h * scale


def reads_its_grad(state: Any, x: Tensor) -> Tensor:
    grad = state.h.grad
    state.h = state.h + x
    return state.h if grad is None else state.h + grad


ASKING = [compares_it, keys_by_it, reads_its_own, reads_its_grad]


@pytest.mark.parametrize("body", ASKING, ids=lambda f: f.__name__)
def test_which_tensor_was_there_may_matter(body):
    def make() -> Any:
        return types.SimpleNamespace(h=torch.ones(4), w=torch.zeros(4))

    mine, its = make(), make()
    fast = fastjit.jit(lambda x: body(mine, x))
    for call in range(8):
        if call == 3:
            mine.h, its.h = mine.w, its.w
        if call == 5:
            mine.h.scale = its.h.scale = 7
            mine.h.grad, its.h.grad = torch.ones(4), torch.ones(4)
        assert_same(fast(torch.ones(4)), body(its, torch.ones(4)), exact=True)
        assert_same(mine.h, its.h, exact=True)
    assert fast.stats().hits == 0


def test_one_tensor_in_two_places():
    def body(state: Any, x: Tensor) -> Tensor:
        both = state.h + state.g
        state.h = state.h + x
        return both

    mine, its = (types.SimpleNamespace(h=one, g=one) for one in (torch.ones(4), torch.ones(4)))
    fast = fastjit.jit(lambda x: body(mine, x))
    for call in range(6):
        if call == 4:
            mine.h, its.h = mine.g, its.g
        assert_same(fast(torch.ones(4)), body(its, torch.ones(4)), exact=True)
        assert_same([mine.h, mine.g], [its.h, its.g], exact=True)
    assert fast.stats().hits == 4  # the first call found one object twice


def by_method(state: Any, x: Tensor) -> Tensor:
    y = state.add(x) + state.h
    state.h = state.h + x
    return y


def by_tuple(state: Any, x: Tensor) -> Tensor:
    y = state.pair[0] + state.h
    state.h = state.h + x
    return y


def by_key(state: Any, x: Tensor) -> Tensor:
    y = sum(key * scale for key, scale in state.table.items()) + state.h
    state.h = state.h + x
    return y


@pytest.mark.parametrize("body", [by_method, by_tuple, by_key], ids=lambda f: f.__name__)
def test_another_object_holds_the_tensor_as_well(body):
    def make() -> Any:
        h = torch.ones(4)
        return types.SimpleNamespace(h=h, add=h.add, pair=(h, 1), table={h: 3})

    mine, its = make(), make()
    fast = fastjit.jit(lambda x: body(mine, x))
    for call in range(8):
        if call in (2, 3, 6):  # the first one again, which the other object holds
            mine.h, its.h = mine.pair[0], its.pair[0]
        assert_same(fast(torch.ones(4)), body(its, torch.ones(4)), exact=True)
        assert_same(mine.h, its.h, exact=True)


def test_a_default_that_is_in_the_place_as_well():
    def make() -> Any:
        state = types.SimpleNamespace(h=torch.ones(4))

        def body(x: Tensor, first: Tensor = state.h) -> Tensor:
            y = state.h + first
            state.h = state.h + x
            return y

        return state, body, state.h

    (mine, f, first), (its, g, its_first) = make(), make()
    fast = fastjit.jit(f)
    for call in range(6):
        if call == 3:
            mine.h, its.h = first, its_first
        assert_same(fast(torch.ones(4)), g(torch.ones(4)), exact=True)


def test_a_growing_cache_has_a_program_for_each_length():
    state = types.SimpleNamespace(keys=torch.zeros(1, 0))

    def step(x: Tensor) -> Tensor:
        state.keys = torch.cat([state.keys, x], dim=1)
        return state.keys.sum(1)

    fast = fastjit.jit(step)
    for call in range(12):
        if call % 4 == 0:
            state.keys = torch.zeros(1, 0)
        assert_same(fast(torch.ones(1, 1)), torch.full((1,), call % 4 + 1.0))
        assert state.keys.shape == (1, call % 4 + 1)
    assert fast.stats().hits == 8


def test_the_guards_say_what_is_compared():
    sums = Sums()
    fast = fastjit.jit(lambda x: sums(x))
    fast(X), fast(X)
    lines = fast.inspect("guards").splitlines()
    assert any(line.startswith("sums.h is of type Tensor") for line in lines), lines
    assert any(line.startswith("tensor sums.h: f32[3,4]") for line in lines), lines
    sums.h = sums.h.double()
    assert "tensor sums.h was f32[3,4], is f64[3,4]" in fast.explain(X)


class Holder:
    def __init__(self) -> None:
        self.total = torch.zeros(3, 4)

    def add(self, x: Tensor) -> Holder:
        self.total = self.total + x
        return self


def test_the_object_that_the_call_found_is_the_result():
    holder = Holder()
    fast = fastjit.jit(lambda x: {"cache": holder.add(x), "x": [x * 2, holder]})
    for call in range(4):
        got = fast(X)
        assert got["cache"] is holder and got["x"][1] is holder
        assert_same([holder.total, got["x"][0]], [X * (call + 1), X * 2], exact=True)
    assert fast.stats().hits == 3 and fast.stats().fallbacks == {}


def test_an_argument_is_the_result():
    holder, other = Holder(), Holder()
    fast = fastjit.jit(lambda holder, x: (holder.add(x), x + 1))
    for _ in range(3):
        assert fast(holder, X)[0] is holder
    assert fast.stats().hits == 2
    assert fast(other, X)[0] is other
    assert_same([holder.total, other.total], [X * 3, X], exact=True)


def test_an_object_of_the_result_that_is_replaced():
    space: dict[str, Any] = {"holder": Holder()}
    exec("def f(x):\n    return holder.add(x), x + 1", space)
    fast = fastjit.jit(space["f"])
    for _ in range(3):
        assert fast(X)[0] is space["holder"]
    hits = fast.stats().hits
    space["holder"] = new = Holder()
    assert fast(X)[0] is new and fast.stats().hits == hits == 2
    assert_same(new.total, X, exact=True)


def tuple_in_attribute() -> tuple[Callable[[Tensor], Tensor], Any]:
    state = types.SimpleNamespace(pair=(torch.ones(3, 4), torch.full((3, 4), 2.0)))

    def f(x: Tensor) -> Tensor:
        state.pair = tuple(t.to(t.dtype) for t in state.pair)
        return x * state.pair[0] + state.pair[1]

    return f, state


def tuple_in_module() -> tuple[Callable[[Tensor], Tensor], Any]:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pair = (torch.ones(3, 4), torch.full((3, 4), 2.0))

        def _apply(self, fn: Any, recurse: bool = True) -> Any:
            self.pair = tuple(fn(t) for t in self.pair)
            return super()._apply(fn, recurse)

        def forward(self, x: Tensor) -> Tensor:
            self.to(dtype=x.dtype)
            return x * self.pair[0] + self.pair[1]

    model = Model()
    return lambda x: model(x), model


def tuple_in_slot() -> tuple[Callable[[Tensor], Tensor], Any]:
    class State:
        __slots__ = ("pair",)

    state = State()
    state.pair = (torch.ones(3, 4), torch.full((3, 4), 2.0))

    def f(x: Tensor) -> Tensor:
        one, other = state.pair
        state.pair = (one, other)
        return x * one + other

    return f, state


@pytest.mark.parametrize("place", [tuple_in_attribute, tuple_in_module, tuple_in_slot], ids=lambda make: make.__name__)
def test_a_tuple_that_each_call_makes_anew_of_the_same_tensors(place):
    (f, mine), (g, its) = place(), place()
    fast = fastjit.jit(f)
    for call in range(4):
        held = mine.pair
        assert_same(fast(X + call), g(X + call), exact=True)
        assert all(a is b for a, b in zip(held, mine.pair, strict=True))
    assert fast.stats().hits == 3 and fast.stats().fallbacks == {}
    mine.pair = (mine.pair[0], mine.pair[1])  # another tuple of these
    assert_same(fast(X), g(X), exact=True)
    assert fast.stats().hits == 4
    for change in (lambda a, b: (b, a), lambda a, b: (a, b.clone() + 1), lambda a, b: (a.clone(), b)):
        mine.pair, its.pair = change(*mine.pair), change(*its.pair)
        hits = fast.stats().hits
        assert_same(fast(X), g(X), exact=True)
        assert fast.stats().hits == hits
        assert_same(mine.pair, its.pair, exact=True)
    mine.pair[0].add_(1), its.pair[0].add_(1)  # contents are no fact
    assert_same(fast(X), g(X), exact=True)


def cell_state() -> Any:
    cell = torch.nn.LSTMCell(4, 4)
    state = types.SimpleNamespace(pair=(torch.zeros(3, 4), torch.zeros(3, 4)))

    def f(x: Tensor) -> Tensor:
        state.pair = cell(x, state.pair)
        return state.pair[0] * 2

    return f, lambda: state.pair


def global_pair() -> Any:
    space: dict[str, Any] = {"pair": (torch.ones(3, 4), torch.zeros(3, 4))}
    exec("def f(x):\n    global pair\n    a, b = pair\n    pair = (b, a + x)\n    return a - b", space)
    return space["f"], lambda: space["pair"]


def closed_over() -> Any:
    pair = (torch.ones(3, 4), torch.zeros(3, 4))

    def f(x: Tensor) -> Tensor:
        nonlocal pair
        pair = tuple(t * 0.5 + x for t in pair)
        return pair[0] - pair[1]

    return f, lambda: pair


def items_of_a_list() -> Any:
    states = [(torch.zeros(3, 4), torch.ones(3, 4)) for _ in range(3)]

    def f(x: Tensor) -> Tensor:
        for i in range(3):
            h, c = states[i]
            states[i] = (torch.tanh(h + x), c * h)
            x = states[i][0]
        return x

    return f, lambda: states


def of_tuples() -> Any:
    state = types.SimpleNamespace(layers=tuple((torch.zeros(3, 4), None, "gate", torch.ones(3, 4)) for _ in range(2)))

    def f(x: Tensor) -> Tensor:
        after = []
        for h, nothing, kind, c in state.layers:
            x = torch.tanh(x + h)
            after.append((x, nothing, kind, c + x))
        state.layers = tuple(after)
        return x

    return f, lambda: state.layers


def in_a_slot() -> Any:
    state = Slotted()
    state.h = (torch.zeros(3, 4), torch.ones(3, 4))

    def f(x: Tensor) -> Tensor:
        state.h = (state.h[1], state.h[0] + x)
        return state.h[1]

    return f, lambda: state.h


@pytest.mark.parametrize(
    "place",
    [cell_state, global_pair, closed_over, items_of_a_list, of_tuples, in_a_slot],
    ids=lambda make: make.__name__,
)
def test_a_tuple_of_other_tensors_each_time(place):
    torch.manual_seed(0)
    f, mine = place()
    torch.manual_seed(0)
    g, its = place()
    fast = fastjit.jit(f)
    for call in range(6):
        held = mine()
        before = [t.clone() for t in tensors_in(held)]
        assert_same(fast(X + call), g(X + call))
        assert_same(list(tensors_in(mine())), list(tensors_in(its())))
        if not isinstance(held, list):  # what the call found is somebody else's
            assert_same(list(tensors_in(held)), before, exact=True)
    assert fast.stats().hits == 5 and fast.stats().fallbacks == {}


def tensors_in(value: Any) -> Any:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)


@torch.enable_grad()
def test_the_state_of_a_cell_between_steps_of_training():
    class Truncated(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = torch.nn.LSTMCell(4, 4)
            self.state = (torch.zeros(3, 4), torch.zeros(3, 4))

        def forward(self, x: Tensor) -> Tensor:
            h, c = self.cell(x, self.state)
            self.state = (h.detach(), c.detach())
            return h

    torch.manual_seed(0)
    eager = Truncated()
    torch.manual_seed(0)
    module = fastjit.fastjit(Truncated())
    for call in range(6):
        for each in (module, eager):
            each.zero_grad()
        hidden = [each(X + call) for each in (module, eager)]
        for h in hidden:
            h.square().mean().backward()
        assert_same(hidden[0].detach(), hidden[1].detach())
        assert module.state[0].data_ptr() == hidden[0].data_ptr()
        assert_same([p.grad for p in module.parameters()], [p.grad for p in eager.parameters()])
    assert fastjit.of(module).stats().hits == 5 and fastjit.of(module).stats().fallbacks == {}


@pytest.mark.parametrize(
    "change",
    [
        lambda a, b: (a, b, a + 1),
        lambda a, b: [a, b],
        lambda a, b: (a, (b,)),
        lambda a, b: (a.double(), b),
        lambda a, b: (a, a),
        lambda a, b: (a[:, :1], b),
        lambda a, b: (a, 2.0),
        lambda a, b: (torch.nn.Parameter(a), b),
    ],
    ids=["longer", "a list", "deeper", "another type", "one tensor twice", "another size", "a number", "a parameter"],
)
def test_a_tuple_of_another_form_is_noticed(change):
    def make() -> Any:
        return types.SimpleNamespace(pair=(torch.ones(3, 4), torch.zeros(3, 4)))

    def step(state: Any, x: Tensor) -> Tensor:
        a, b = state.pair[0], state.pair[-1]
        b = b[0] if isinstance(b, tuple) else b
        state.pair = (b + x, a + x)
        return (a - b) * len(state.pair)

    mine, its = make(), make()
    fast = fastjit.jit(lambda x: step(mine, x), on_unsupported="eager")
    for _ in range(4):
        assert_same(fast(X), step(its, X), exact=True)
    assert fast.stats().hits == 3
    for state in (mine, its):
        state.pair = change(*state.pair)
    for _ in range(4):
        assert_same(fast(X), step(its, X), exact=True)
        assert_same(list(tensors_in(mine.pair)), list(tensors_in(its.pair)), exact=True)


def test_the_tuple_that_the_call_found_is_the_result():
    def make() -> Any:
        return types.SimpleNamespace(pair=(torch.ones(3, 4), torch.zeros(3, 4)))

    def step(state: Any, x: Tensor) -> Any:
        was = state.pair
        state.pair = (was[1] + x, was[0])
        return was

    mine, its = make(), make()
    fast = fastjit.jit(lambda x: step(mine, x), on_unsupported="eager")
    for _ in range(5):
        held = mine.pair
        got = fast(X)
        assert_same(got, step(its, X), exact=True)
        assert all(a is b for a, b in zip(got, held, strict=True))
        assert_same(mine.pair, its.pair, exact=True)


def test_a_tuple_that_two_places_hold():
    def make() -> Any:
        pair = (torch.ones(3, 4), torch.zeros(3, 4))
        return types.SimpleNamespace(pair=pair, other=pair)

    def step(state: Any, x: Tensor) -> Tensor:
        a, b = state.pair
        c = state.other[0]
        state.pair = (b + x, a * 2)
        return a - b + c + (a is c)

    mine, its = make(), make()
    fast = fastjit.jit(lambda x: step(mine, x), on_unsupported="eager")
    for _ in range(6):
        assert_same(fast(X), step(its, X), exact=True)
        assert_same(mine.pair, its.pair, exact=True)


class Anchors(torch.nn.Module):
    """Moves what it keeps to where its argument is, in each call, as torchvision's AnchorGenerator does."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = [torch.arange(3.0), torch.ones(3)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cells = [cell.to(x.dtype) for cell in self.cells]
        return sum((x + cell for cell in self.cells), x)


def test_a_list_that_is_replaced_by_one_of_the_same_items():
    module, eager = Anchors(), Anchors()
    fast = fastjit.jit(module, on_unsupported="eager")
    x = torch.randn(2, 3)
    stats = fastjit.of(fast).stats
    with torch.no_grad():
        for call in range(4):
            assert torch.equal(fast(x), eager(x)) and stats().hits == call
        # Somebody else holds the list: eager's next call leaves it to them.
        mine, theirs = module.cells, eager.cells
        assert "something else holds self.cells" in fastjit.of(fast).explain(x)
        assert torch.equal(fast(x), eager(x)) and module.cells is not mine and eager.cells is not theirs
        mine.append(torch.ones(3)), theirs.append(torch.ones(3))
        for _ in range(3):
            assert torch.equal(fast(x), eager(x)) and len(module.cells) == len(eager.cells) == 2
        hits = stats().hits
        assert hits > 3
        module.cells[1] = eager.cells[1] = torch.full((3,), 5.0)
        assert torch.equal(fast(x), eager(x)) and stats().hits == hits
        module.cells = [torch.ones(3)]
        eager.cells = [torch.ones(3)]
        for _ in range(2):
            assert torch.equal(fast(x), eager(x))
        for _ in range(3):  # other tensors: the first call of a type leaves other items, and is not the next one's
            assert torch.equal(fast(x.double()), eager(x.double())) and module.cells[0].dtype == torch.float64
        assert stats().hits > hits and stats().fallbacks == {}


SHARED: list[torch.Tensor] = [torch.ones(3)]


class Compared(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = SHARED

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        was = self.cells is SHARED
        self.cells = list(self.cells)
        return x + 1 if was else x - self.cells[0]


def test_a_replaced_list_that_was_another_places_too():
    module, eager = Compared(), Compared()
    fast = fastjit.jit(module, on_unsupported="eager")
    x = torch.randn(3)
    with torch.no_grad():
        for _ in range(5):
            assert torch.equal(fast(x), eager(x)) and module.cells is not SHARED
    assert fastjit.of(fast).stats().hits >= 2


# ---- dictionaries that each call fills and replaces by new ones with nothing in them ----


class Ledger:
    """As torch.amp.GradScaler keeps what it knows of optimizers until its update()."""

    def __init__(self, kind: Callable[[], Any]) -> None:
        self.kind, self.seen = kind, kind()

    def __call__(self, x: Tensor) -> Tensor:
        self.note("sum", x.sum())
        self.note("mean", x.mean())
        total = self.seen["sum"]["value"] + self.seen["mean"]["value"]
        self.seen = self.kind()
        return total.sin()

    def note(self, name: str, value: Tensor) -> None:
        if isinstance(self.seen, defaultdict):
            self.seen[name]["value"] = value
        else:
            self.seen[name] = {"value": value}


KINDS: dict[str, Callable[[], Any]] = {"dict": dict, "defaultdict": lambda: defaultdict(dict)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_dictionary_that_is_filled_and_replaced(kind):
    ledger, eager = Ledger(KINDS[kind]), Ledger(KINDS[kind])
    fast = fastjit.fastjit(lambda x: ledger(x))
    for turn in range(8):
        x = torch.randn(3 if turn % 2 else 4)
        assert_same(fast(x), eager(x))
        assert ledger.seen == eager.seen == {} and type(ledger.seen) is type(eager.seen)
    assert fast.stats().hits >= 4, fast.stats()


@pytest.mark.parametrize("kind", KINDS)
def test_a_dictionary_that_somebody_else_holds_is_filled_as_in_eager(kind):
    ledger, eager = Ledger(KINDS[kind]), Ledger(KINDS[kind])
    fast = fastjit.fastjit(lambda x: ledger(x), on_unsupported="eager")
    for turn in range(8):
        x = torch.randn(4)
        held = [one.seen for one in (ledger, eager)] if turn % 2 else []
        assert_same(fast(x), eager(x))
        if held:
            assert list(held[0]) == list(held[1]) == ["sum", "mean"], turn
            assert ledger.seen is not held[0]
        assert ledger.seen == {}


@pytest.mark.parametrize("kind", KINDS)
def test_a_dictionary_that_is_not_empty_in_one_call(kind):
    ledger, eager = Ledger(KINDS[kind]), Ledger(KINDS[kind])
    fast = fastjit.fastjit(lambda x: ledger(x), on_unsupported="eager")
    for turn in range(8):
        x = torch.randn(4)
        if turn == 5:
            for one in (ledger, eager):
                one.seen["other"] = {"value": torch.ones(())}
        assert_same(fast(x), eager(x))
        assert ledger.seen == eager.seen == {}
