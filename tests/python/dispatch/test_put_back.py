"""What libraries change and put back within a call, and their own classes beside tensors: stacks of contexts,
Tensor.data stored to itself, partial objects of a subclass, operands with __torch_function__."""

from __future__ import annotations

import functools
import operator
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import fastjit
from helpers import assert_same

STACK: list[Any] = []


class Handler:
    """A context that knows those around it, as the messengers of Pyro do."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __enter__(self) -> Handler:
        if self in STACK:
            raise ValueError("entered twice")
        STACK.append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        if STACK[-1] == self:
            STACK.pop()

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        return Bound(functools.partial(_within, self, fn))


class Bound(functools.partial):  # type: ignore[type-arg]
    """A partial object that keeps what it was made of."""

    __slots__ = "func"

    def __init__(self, func: Callable[..., Any]) -> None:
        self.func = func


def _within(context: Handler, fn: Callable[..., Any], *args: Any) -> Any:
    with context:
        return fn(*args)


def scaled(x: Tensor) -> Tensor:
    for handler in reversed(STACK):
        x = x * handler.factor
    return x + len(STACK)


X = torch.arange(6.0).reshape(2, 3)


def play(fn: Callable[..., Any], *args: Any, first: int = 1) -> fastjit.Function:
    fast = fastjit.jit(fn)
    for call in range(first + 2):
        assert_same(fast(*args), fn(*args), exact=True)
        assert fast.stats().hits == max(0, call - first + 1), fast.stats().fallbacks
    assert fast.stats().fallbacks == {}
    return fast


def test_a_stack_whose_pushes_are_popped():
    def nested(x: Tensor) -> Tensor:
        with Handler(2.0), Handler(0.5) as inner:
            y = scaled(x)
            inner.factor = 3.0
        return scaled(y)

    fast = play(nested, X)
    assert STACK == []
    STACK.append(Handler(4.0))
    assert_same(fast(X), nested(X), exact=True)
    assert len(STACK) == 1
    STACK[0].factor = 5.0
    assert_same(fast(X), nested(X), exact=True)
    STACK.clear()
    before = fast.stats().hits
    assert_same(fast(X), nested(X), exact=True)
    assert fast.stats().hits == before + 1


def test_a_stack_that_is_left_longer_or_otherwise():
    def pushes(x: Tensor) -> Tensor:
        y = scaled(x)
        STACK.append(Handler(2.0))
        STACK.append(Handler(3.0))
        STACK.pop()
        return y + len(STACK)

    def replaces(x: Tensor) -> Tensor:
        y = scaled(x)
        STACK.append(STACK.pop() if STACK else Handler(2.0))
        if len(STACK) > 1:
            STACK.insert(0, STACK.pop())
        return y

    before = [Handler(2.0), Handler(7.0)]
    for fn, most in (pushes, 3), (replaces, 0):
        fast = fastjit.jit(fn)
        for _ in range(4):
            STACK[:] = before
            expected = fn(X)
            after = [handler.factor for handler in STACK]
            STACK[:] = before
            assert_same(fast(X), expected, exact=True)
            assert [handler.factor for handler in STACK] == after
        assert fast.stats().hits <= most
    STACK.clear()


def test_partial_objects_of_a_subclass():
    def wrapped(x: Tensor) -> Tensor:
        return Handler(2.0)(Handler(3.0)(scaled))(x)

    fast = play(wrapped, X)
    try:
        Bound.__call__ = lambda self, x: x  # type: ignore[method-assign]
        assert_same(fast(X), X, exact=True)
    finally:
        del Bound.__call__


class Settled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        self.weight.data = self.weight.data.to(x.dtype)
        return x * self.weight


def test_data_that_is_stored_to_itself():
    module = Settled()
    fast = play(module.forward, X)
    weight, memory = module.weight, module.weight.data_ptr()
    assert_same(fast(X.double()), X.double() * 1, exact=True)  # another type: eager stores it
    assert module.weight is weight and module.weight.dtype == torch.float64 and module.weight.data_ptr() != memory
    assert_same(fast(X), X * 1, exact=True)
    assert module.weight.dtype == torch.float32

    def shares(x: Tensor, y: Tensor) -> Tensor:
        module.weight.data = y
        return x * module.weight

    fast = fastjit.jit(shares)
    for value in (1.0, 2.0, 3.0):
        assert_same(fast(X, torch.full((3,), value)), X * value, exact=True)
        assert module.weight.tolist() == [value] * 3
    assert fast.stats().hits == 0


class Diagonal:
    """A matrix that torch's functions take, as linear operators of gpytorch are."""

    def __init__(self, diagonal: Tensor) -> None:
        self.diagonal = diagonal

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.matmul, Tensor.matmul, Tensor.__matmul__):
            left, right = args
            return left * right.diagonal if isinstance(right, cls) else left.diagonal[:, None] * right
        if func in (torch.add, Tensor.add, Tensor.__add__):
            return args[0] + torch.diag(args[1].diagonal)
        return NotImplemented

    def __matmul__(self, other: Tensor) -> Tensor:
        return self.diagonal[:, None] * other

    def __radd__(self, other: Tensor) -> Tensor:
        return torch.diag(self.diagonal) + other


SCALE = torch.tensor([1.0, 2.0, 4.0])


def test_operands_with_functions_of_their_own():
    def products(x: Tensor) -> Tensor:
        d = Diagonal(SCALE)
        return (x @ d) + torch.matmul(x, Diagonal(SCALE + 1)) + (d @ x.mT).mT

    fast = play(products, X)
    original = Diagonal.__matmul__
    try:
        Diagonal.__matmul__ = lambda self, other: other * 100  # type: ignore[method-assign]
        assert_same(fast(X), products(X), exact=True)
        assert not torch.equal(products(X), fast(X) / 2)
    finally:
        Diagonal.__matmul__ = original  # type: ignore[method-assign]
    play(lambda x: x[:, :3].mT @ x + Diagonal(SCALE), X)


class Frame(NamedTuple):
    """It hashes by code of its own."""

    name: str
    dim: int

    @property
    def is_last(self) -> bool:
        return self.dim == -1

    def __hash__(self) -> int:
        return hash(self.name)


FACTORS = OrderedDict(a=2.0)


def test_objects_that_only_move():
    def frames(x: Tensor) -> Tensor:
        kind = Callable[[Tensor], Tensor] | None  # as annotations are, where functions are made
        last = (Frame("columns", -1),)
        stack = (Frame("rows", -2),) + last  # noqa: RUF005
        factors: OrderedDict[str, float] = OrderedDict()
        factors.update(FACTORS)
        for frame in stack:
            if isinstance(stack, Sequence) and frame.is_last:
                x = x.sum(frame.dim, keepdim=True) * factors["a"]
        return x + 1 if functools.reduce(operator.and_, [kind is not None, len(stack) == 2]) else x

    fast = play(frames, X)
    FACTORS["a"] = 3.0
    assert_same(fast(X), frames(X), exact=True)
    Frame.is_last = property(lambda self: self.dim == -2)  # type: ignore[assignment,method-assign]
    assert_same(fast(X), frames(X), exact=True)
    assert_same(frames(X), X.sum(-2, keepdim=True) * 3.0 + 1, exact=True)


class Moved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 4.0]))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            for name, buffer in self._buffers.items():
                self._buffers[name] = buffer
        return x * self.scale


def test_what_a_place_holds_is_stored_again():
    module = Moved()
    fast = play(module.forward, X)
    module.scale = torch.ones(3)
    assert_same(fast(X), X, exact=True)
    assert_same(fast(X), X, exact=True)
