"""Generators that a loop drives by send(), what they return, and classes that look through their new instances."""

from __future__ import annotations

import abc
import sys
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastjit
from helpers import assert_same

X = torch.arange(12.0).reshape(3, 4)
SCALES = [2.0, 3.0]


class TailCall(BaseException):
    def __init__(self, call: Generator[Any, Any, Any]) -> None:
        self.call = call


def trampoline(call: Generator[Any, Any, Any]) -> Any:
    stack, value = [call], None
    while stack:
        try:
            if value is None:
                result = next(stack[-1])
            else:
                given, value = value, None
                result = stack[-1].send(given)
            stack.append(result)
        except StopIteration as stop:
            stack.pop()
            value = stop.value
        except TailCall as tail:
            stack[-1] = tail.call
    return value


def halved(x: Tensor, depth: int) -> Generator[Any, Any, Tensor]:
    if depth == 0:
        return x * SCALES[0]
    y = yield halved(x + depth, depth - 1)
    if depth == 2:
        raise TailCall(added(y))
    return y.tanh()


def added(y: Tensor) -> Generator[Any, Any, Tensor]:
    z = yield halved(y, 0)
    return y + z


def bounced(x: Tensor) -> Tensor:
    return trampoline(halved(x, 3))


def parts() -> Generator[int, float, tuple[float, str]]:
    scale = yield 1
    return scale * SCALES[0], "sum"


def driven_by_hand(x: Tensor) -> Tensor:
    generator = parts()
    first = next(generator)
    try:
        generator.send(0.5)
    except StopIteration as stop:
        scale, name = stop.value
        return getattr(x, name)() * scale + first
    return x


def ended_without_a_value(x: Tensor) -> Tensor:
    iterator: Iterator[Tensor] = iter([x])
    while True:
        try:
            x = x + next(iterator)
        except StopIteration as stop:
            return x if stop.value is None else -x


def raised_with_a_value(x: Tensor) -> Tensor:
    try:
        raise StopIteration(SCALES[0])
    except StopIteration as stop:
        return x * stop.value


class Key:
    def __init__(self, scale: float) -> None:
        self.scale = scale


class Recent(dict[Any, Any]):
    """Of the last three keys."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[Key] = []

    def __setitem__(self, key: Key, value: Any) -> None:
        if len(self) >= 3:
            del self[self.order.pop(0)]
        super().__setitem__(key, value)
        self.order.append(key)


def kept_for_a_while(x: Tensor) -> Tensor:
    recent, keys = Recent(), [Key(SCALES[0] + i) for i in range(5)]
    for key in keys:
        recent[key] = x * key.scale
    for key in keys:
        try:
            x = x + recent[key]
        except KeyError:
            x = x - key.scale
    return x


@pytest.mark.parametrize("fn", [bounced, kept_for_a_while, driven_by_hand, ended_without_a_value, raised_with_a_value])
def test_what_generators_return(fn: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    fast = fastjit.jit(fn)
    for call in range(4):
        assert_same(fast(X + call), fn(X + call))
    assert fast.stats().hits == 3 and fast.stats().fallbacks == {}
    monkeypatch.setattr(sys.modules[__name__], "SCALES", [5.0, 3.0])
    assert_same(fast(X), fn(X))
    assert fast.stats().hits == 3 + (fn is ended_without_a_value)


def test_numbers_that_are_sent() -> None:
    def sent(x: Tensor, scale: float) -> Tensor:
        generator = parts()
        next(generator)
        try:
            generator.send(scale)
        except StopIteration as stop:
            return x * stop.value[0]
        return x

    fast = fastjit.jit(sent)
    for scale in (0.5, 1.5, 0.5, 2.5, 1.5):
        assert_same(fast(X, scale), sent(X, scale))
    assert fast.stats().fallbacks == {}


def test_exceptions_and_generators_that_were_there_before_stay_eager() -> None:
    def caught(x: Tensor, stop: StopIteration) -> Tensor:
        return x * stop.value

    def raised(x: Tensor, stop: StopIteration) -> Tensor:
        try:
            raise stop
        except StopIteration as again:
            return x * again.value

    def counted() -> Generator[int, int, None]:
        while True:
            yield 1 + (yield 2)

    def sent(x: Tensor, generator: Generator[int, int, None]) -> Tensor:
        return x * generator.send(3)

    for fn in (caught, raised):
        stop = StopIteration(2.0)
        fast = fastjit.jit(fn, on_unsupported="eager")
        for value in (2.0, 3.0, 4.0):
            stop.value = value
            assert_same(fast(X, stop), X * value)
        assert fast.stats().hits == 0
    generator = counted()
    next(generator)
    fast = fastjit.jit(sent, on_unsupported="eager")
    for factor in (4, 2, 4, 2):
        assert_same(fast(X, generator), X * factor)
    assert fast.stats().hits == 0


class Checked(abc.ABCMeta):
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        made = super().__call__(*args, **kwargs)
        missing = {name for name in dir(made) if getattr(getattr(made, name), "is_missing", False)}
        if missing:
            raise NotImplementedError(f"{cls.__name__} lacks {sorted(missing)}")
        return made


class Missing:
    is_missing = True


class Step(metaclass=Checked):
    order = 1

    def __init__(self, size: float) -> None:
        self.size = size

    @property
    def half(self) -> float:
        return self.size / 2

    def __call__(self, x: Tensor) -> Tensor:
        return x + self.size * x.tanh() * self.half


class Layer(nn.Module, metaclass=Checked):
    def __init__(self, step: nn.Module) -> None:
        super().__init__()
        self.step = step

    def forward(self, x: Tensor) -> Tensor:
        return self.step(x).relu()


LINEAR = nn.Linear(4, 4).requires_grad_(False)


def made(x: Tensor) -> Tensor:
    return Step(0.5)(x)


def made_module(x: Tensor) -> Tensor:
    return Layer(LINEAR)(x)


@pytest.mark.parametrize(("fn", "cls"), [(made, Step), (made_module, Layer)])
def test_instances_that_their_class_looks_through(fn: Callable[..., Any], cls: Any) -> None:
    fast = fastjit.jit(fn)
    for call in range(4):
        assert_same(fast(X + call), fn(X + call))
    assert fast.stats().hits >= 2 and fast.stats().fallbacks.keys() <= {"state"}, fast.stats()
    before = fast.stats().hits
    cls.later = Missing()
    try:
        with pytest.raises(NotImplementedError, match="later"):
            fast(X)
    finally:
        del cls.later
    assert fast.stats().hits == before
    assert_same(fast(X), fn(X))


def test_the_names_of_instances() -> None:
    class Named:
        def __init__(self, *names: str) -> None:
            for name in names:
                setattr(self, name, 1)

        def __dir__(self) -> list[str]:
            return NAMES

    class Plain:
        def __init__(self, *names: str) -> None:
            for name in names:
                setattr(self, name, 1)

    NAMES = ["b", "a"]
    there = Plain("c")

    def own(x: Tensor) -> Tensor:
        return x * len(dir(Plain("a", "b")))

    def said(x: Tensor) -> Tensor:
        return x + "".join(dir(Named())).count("a")

    def found(x: Tensor) -> Tensor:
        return x * len(dir(there))

    for fn in (own, said):
        fast = fastjit.jit(fn)
        for _ in range(3):
            assert_same(fast(X), fn(X))
        assert fast.stats().hits == 2
        NAMES.append("aa")
        Plain.more = 1  # type: ignore[attr-defined]
        assert_same(fast(X), fn(X))
        assert fast.stats().hits == 2
    fast = fastjit.jit(found, on_unsupported="eager")
    for call in range(4):
        setattr(there, f"more{call}", call)
        assert_same(fast(X), found(X))
    assert fast.stats().hits == 0
