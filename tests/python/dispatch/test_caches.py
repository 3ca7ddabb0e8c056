"""functools.lru_cache, locks, and other parts of the standard library that library code uses on its way."""

from __future__ import annotations

import collections
import contextlib
import functools
import importlib
import threading
from collections.abc import Callable
from typing import Any

import einops
import pytest
import torch
from torch import Tensor

import fastjit
from helpers import assert_same, check


def hits_from(fn: Callable[..., Any], *args: Any, first: int = 1, calls: int = 5, exact: bool = True) -> Any:
    """Call `first` (counted from 0) and all later ones are hits, and every result is eager's."""
    fast = fastjit.jit(fn)
    for call in range(calls):
        assert_same(fast(*args), fn(*args), exact=exact)
        assert fast.stats().hits == max(0, call + 1 - first), (call, fast.stats())
    assert fast.stats().fallbacks == {}
    return fast


class Counting:
    """A cached function that gives another number each time it runs."""

    def __init__(self, **options: Any) -> None:
        self.runs = 0
        self.get = functools.lru_cache(**options)(self.count)

    def count(self, *args: Any, **kwargs: Any) -> int:
        self.runs += 1
        return self.runs


@pytest.mark.parametrize("options", [{}, {"maxsize": None}, {"typed": True}, {"typed": True, "maxsize": None}])
@pytest.mark.parametrize(
    "given", ["3", "'a'", "3, b=4", "1, True, 2.0, (3, None), b='c', a=4", "torch.float32, int", ""]
)
def test_what_a_cache_keeps_is_a_fact(options, given):
    counting = Counting(**options)
    get = counting.get
    body = eval(f"lambda x: x * get({given})", {"get": get, "torch": torch})
    x = torch.ones(3)
    fast = hits_from(body, x)
    assert counting.runs == 1
    get.cache_clear()
    assert fast(x).tolist() == [2.0] * 3 and counting.runs == 2
    before = fast.stats().hits
    for _ in range(3):
        assert fast(x).tolist() == [2.0] * 3
    assert fast.stats().hits >= before + 2 and counting.runs == 2


def test_a_full_cache_gives_its_oldest_entry_to_another_call():
    counting = Counting(maxsize=1)
    get = counting.get
    fast = hits_from(lambda x: x * get(1), torch.ones(2))
    assert get(2) == 2 and get(1) == 3  # the link that held get(1) holds it again, with another result
    assert fast(torch.ones(2)).tolist() == [3.0, 3.0]
    assert get(2) == 4
    assert fast(torch.ones(2)).tolist() == [5.0, 5.0] and counting.runs == 5


def test_keywords_from_a_dictionary():
    counting = Counting()
    get = counting.get
    named, other = {"b": 2}, {"a": 2}
    assert [get(1, **named), get(1, 2), get(1, **other)] == [1, 2, 3]
    check(lambda x: x * get(1, **named), torch.ones(2), exact=True)
    check(lambda x: x * get(1, **other), torch.ones(2), exact=True)
    check(lambda x: x * get(1, 2), torch.ones(2), exact=True)


@functools.lru_cache
def table(size: int) -> Tensor:
    return torch.arange(size).float()


@functools.lru_cache
def lists(size: int) -> list[int]:
    return list(range(size))


def test_tensors_and_lists_that_a_cache_keeps():
    hits_from(lambda x: x + table(8), torch.randn(3, 8), first=2)  # what makes the table is no part of later calls
    table(8).add_(1)
    hits_from(lambda x: x * table(8), torch.randn(3, 8), first=1)
    fast = hits_from(lambda x: x * sum(lists(4)), torch.randn(3))
    lists(4)[0] = 7
    assert_same(fast(torch.ones(3)), torch.full((3,), 13.0))


class Grid:
    @functools.lru_cache  # noqa: B019
    def size(self, n: int) -> int:
        return n + 1

    @functools.cached_property
    def side(self) -> float:
        return 0.5

    def forward(self, x: Tensor) -> Tensor:
        return x * self.size(4) + self.side


def test_methods_and_properties():
    hits_from(Grid().forward, torch.randn(3), first=2)  # the first call stores an attribute that it looked for


def test_a_call_with_other_arguments_each_time_is_a_recording_each_time():
    counting = Counting()
    get, step = counting.get, [0]

    def body(x: Tensor) -> Tensor:
        return x * get(step[0])

    fast = fastjit.jit(body)
    for step[0] in range(6):
        assert fast(torch.ones(1)).item() == step[0] + 1
    assert fast.stats().hits == 0 and counting.runs == 6
    assert fast.stats().variants == 6


HELD: list[float] = [1.0]


@functools.lru_cache
def appends(n: int) -> int:
    HELD.append(float(n))
    return n


@functools.lru_cache
def turns_gradients_on(n: int) -> int:
    torch.set_grad_enabled(True)
    return n


class Holder:
    def __init__(self) -> None:
        self.items: list[float] = []
        self.count = 0


@functools.lru_cache
def fills(holder: Holder) -> int:
    holder.items.append(1.0)
    return 2


def sums_before(x: Tensor) -> Tensor:
    return x * sum(HELD) * appends(3)


def sums_after(x: Tensor) -> Tensor:
    return x * appends(4) * sum(HELD)


def changes_modes(x: Tensor) -> Tensor:
    return x * turns_gradients_on(2) + int(torch.is_grad_enabled())


HOLDER = Holder()


def resets(x: Tensor) -> Tensor:
    HOLDER.items = []
    return x * fills(HOLDER) + len(HOLDER.items)


def counts(x: Tensor) -> Tensor:
    HOLDER.count = 5
    return x * fills(HOLDER) + HOLDER.count


@functools.lru_cache
def keeps_items(holder: Holder) -> list[float]:
    return holder.items


@functools.lru_cache
def plain_answer(n: int) -> int:
    return n + 1


def resets_and_keeps(x: Tensor) -> Tensor:
    HOLDER.items = []
    kept = keeps_items(HOLDER)
    kept.append(2.0)
    return x * len(kept) + len(HOLDER.items)


def resets_only(x: Tensor) -> Tensor:
    HOLDER.items = [1.0]
    return x * plain_answer(2) + len(HOLDER.items)


@pytest.mark.parametrize(
    ("body", "hits"),
    [
        (sums_before, 0),
        (sums_after, 3),
        (changes_modes, 2),
        (resets, 2),
        (counts, 3),
        (resets_and_keeps, 0),
        (resets_only, 3),
    ],
)
def test_what_fills_a_cache_may_change_what_the_call_reads(body, hits):
    """Later calls, in eager, do without what the function behind the cache does."""
    results = []
    fast = fastjit.jit(body, on_unsupported="eager")
    for call in (fast, body):
        HELD[:] = [1.0]
        HOLDER.__init__()
        for cached in (appends, turns_gradients_on, fills, keeps_items, plain_answer):
            cached.cache_clear()
        with torch.no_grad():
            first = call(torch.ones(2))
            torch.set_grad_enabled(False)
            results.append([first.tolist(), *(call(torch.ones(2)).tolist() for _ in range(3)), list(HELD)])
    assert results[0] == results[1]
    assert fast.stats().hits == hits


@pytest.mark.parametrize("changes", [False, True], ids=["as it is", "changed later"])
def test_the_first_use_of_einops_in_a_process_is_no_obstacle(changes):
    """Its functions keep, per class of tensor, what does their work."""
    einops = pytest.importorskip("einops")
    backends = importlib.import_module("einops._backends")
    backends._type2backend.clear()
    backends._loaded_backends.clear()

    def body(x: Tensor) -> Tensor:
        return einops.rearrange(x.relu(), "a b -> b a") + 1

    fast = fastjit.jit(body)
    for n in range(3):
        if changes and n == 2:
            backends._type2backend[Tensor] = type(backends._type2backend[Tensor])()
        x = torch.randn(3, 4)
        assert torch.equal(fast(x), body(x))
    assert fast.stats().hits == (1 if changes else 2) and not fast.stats().fallbacks


@functools.lru_cache
def shape_of(x: Any) -> int:
    return 3


def test_what_a_cache_cannot_be_asked_again_for():
    fast = fastjit.jit(lambda x: x * shape_of(x))
    for _ in range(2):
        fast(torch.ones(2))
    assert [r for r in fast.stats().fallbacks if "call of shape_of with Tensor at test_caches.py:" in r]
    own = fastjit.jit(lambda x: x * functools.lru_cache(abs)(-2))
    own(torch.ones(2))
    assert own.stats().hits == 0 and own.stats().fallbacks


def test_an_error_is_eagers():
    @functools.lru_cache
    def fails(n: int) -> int:
        raise KeyError(n)

    fast = fastjit.jit(lambda x: x * fails(3))
    for _ in range(3):
        with pytest.raises(KeyError, match="3"):
            fast(torch.ones(2))
    with pytest.raises(TypeError, match="unhashable"):
        fastjit.jit(lambda x: x * shape_of([1]))(torch.ones(2))


@pytest.mark.parametrize(
    "body",
    [
        lambda x: einops.rearrange(x, "b c h w -> b (h w) c"),
        lambda x: einops.rearrange(x, "b (g c) h w -> b g c (h w)", g=2) * 2,
        lambda x: einops.reduce(x, "b c (h p) (w q) -> b c h w", "mean", p=2, q=2),
        lambda x: einops.repeat(x, "b c h w -> b c h (w r)", r=3) + 1,
    ],
)
def test_einops(body):
    einops.rearrange(torch.ones(2, 2), "a b -> b a")  # it looks for its backend once in a process
    hits_from(body, torch.randn(2, 4, 6, 8), exact=False)


class Guarded:
    def __init__(self) -> None:
        self.lock, self.scale = threading.RLock(), 2.0

    def within(self, x: Tensor) -> Tensor:
        with self.lock:
            return x * self.scale

    def by_hand(self, x: Tensor) -> Tensor:
        self.lock.acquire()
        try:
            return x * self.scale
        finally:
            self.lock.release()

    def kept(self, x: Tensor) -> Tensor:
        self.lock.acquire()
        return x * self.scale

    def asked(self, x: Tensor) -> Tensor:
        return x * self.lock.acquire(blocking=False)


@pytest.mark.parametrize("make", [threading.RLock, threading.Lock])
def test_locks(make):
    guarded = Guarded()
    guarded.lock = make()
    for body in (guarded.within, guarded.by_hand):
        fast = hits_from(body, torch.randn(3), first=1)
        guarded.scale += 1
        assert_same(fast(torch.ones(3)), torch.full((3,), guarded.scale))


def test_locks_that_make_a_difference():
    for name, why in (("kept", "the call keeps a lock"), ("asked", "call of RLock.acquire")):
        guarded = Guarded()
        fast = fastjit.jit(getattr(guarded, name))
        fast(torch.ones(2))
        assert [reason for reason in fast.stats().fallbacks if why in reason], fast.stats()


@contextlib.contextmanager
def scaled(by: float):
    yield by * 2


def test_context_managers_that_are_generators():
    def body(x: Tensor) -> Tensor:
        with scaled(1.5) as a, scaled(2) as b:
            y = x * a + b
        with contextlib.nullcontext():
            return y + 1

    check(body, torch.randn(4), exact=True)


def test_reduce_and_fromkeys():
    check(lambda x: functools.reduce(lambda a, b: a * 2 + b, [x, x + 1, x - 1]), torch.randn(4), exact=True)
    check(lambda x: x * dict.fromkeys("ab", 3)["b"] + len(dict.fromkeys([1, 1, 2])), torch.randn(4), exact=True)

    class Loud(dict):
        def __setitem__(self, key: Any, value: Any) -> None:
            super().__setitem__(key, value + 1)

    fast = fastjit.jit(lambda x: x * Loud.fromkeys("ab", 3)["b"])
    for _ in range(3):
        assert fast(torch.ones(1)).item() == 4


def test_a_new_ordered_dictionary():
    def body(x: Tensor) -> Tensor:
        features = collections.OrderedDict(low=x * 2)
        features["out"] = x + 1
        return sum(features[name] for name in features) * len(features) + features.get("out")

    check(body, torch.randn(4), exact=True)


def test_a_tuple_in_a_message():
    sizes = (4, 2)

    def body(x: Tensor) -> Tensor:
        torch._assert(sizes[0] % 2 == 0, "sizes {} and {}".format(sizes, "b"))
        return x * len(f"{sizes}")

    check(body, torch.randn(4), exact=True)


def test_the_order_of_an_ordered_dictionary():
    layers = collections.OrderedDict((str(i), float(i)) for i in range(20))

    def body(x: Tensor) -> Tensor:
        for name, value in layers.items():
            x = x * value + len(name)
        return x

    fast = hits_from(body, torch.randn(3), first=1)
    for change in (lambda: layers.move_to_end("3"), lambda: layers.pop("5"), lambda: layers.update({"5": 1.0})):
        change()
        x = torch.randn(3)
        assert_same(fast(x), body(x), exact=True)
        hits = fast.stats().hits
        assert_same(fast(x), body(x), exact=True)
        assert fast.stats().hits == hits + 1


PREPARATION = """
def maybe_install_capturing_hooks(model):
    if getattr(model, "_output_capturing_hooks_installed", False):
        return
    runs.append(model)
    for index, layer in enumerate(model.layers):
        layer.register_forward_hook(lambda module, args, output, i=index: output + i)
    if hasattr(model, "scale"):
        model.scale = model.scale + 1
    setattr(model, "_output_capturing_hooks_installed", True)
"""


class Prepared(torch.nn.Module):
    """As transformers installs hooks in a model when it is first called."""

    def __init__(self, space: dict[str, Any], reads_first: bool = False) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.ReLU(), torch.nn.Tanh()])
        self.space, self.reads_first = space, reads_first
        if reads_first:
            self.scale = 1

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.scale if self.reads_first else x
        self.space["maybe_install_capturing_hooks"](self)
        for layer in self.layers:
            x = layer(x)
        return x


def prepared(**options: Any) -> tuple[Prepared, list[Any]]:
    space: dict[str, Any] = {"__name__": "transformers.utils.output_capturing", "runs": []}
    exec(PREPARATION, space)
    return Prepared(space, **options), space["runs"]


def test_what_prepares_a_model_once_runs_unwatched():
    model, runs = prepared()
    x = torch.linspace(-1, 1, 6)
    fast = hits_from(lambda x: model(x), x)
    assert runs == [model]
    del model._output_capturing_hooks_installed  # it would be prepared again
    assert_same(fast(x), torch.tanh(x.relu()) + 2)
    assert len(runs) == 2 and fast.stats().hits == 4
    assert_same(fast(x), torch.tanh(x.relu()) + 2)
    assert len(runs) == 2


def test_what_a_preparation_changes_of_what_was_read_before():
    (model, runs), (twin, _) = prepared(reads_first=True), prepared(reads_first=True)
    x = torch.linspace(-1, 1, 6)
    fast = fastjit.jit(lambda x: model(x))
    for _ in range(4):
        assert_same(fast(x), twin(x), exact=True)
    assert runs == [model] and model.scale == 2 and fast.stats().hits == 2
