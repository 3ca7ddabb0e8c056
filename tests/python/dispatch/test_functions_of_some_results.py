"""A torch.autograd.Function behind some results of a call and not behind others, and gradients of some of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import fastjit
from gradient_tools import Straight, assert_same

SCALE = 3.0


@pytest.fixture(autouse=True)
def _with_grad() -> Iterator[None]:
    with torch.enable_grad():
        yield


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return g * (s + x * s * (1 - s))


class Masked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        out = g.clone()
        out.masked_fill_(x < 0, 0.0)
        return out


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        return (g @ w if ctx.needs_input_grad[0] else None), (g.t() @ x if ctx.needs_input_grad[1] else None)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * SCALE


class OfWeight(torch.autograd.Function):
    """Gives no gradient of its first operand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[None, Tensor]:
        return None, g * ctx.saved_tensors[0]


PARTIAL: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "one of two": lambda x, w: (Swish.apply(x), x * w),
    "one each": lambda x, w: (Swish.apply(x * w), Masked.apply(x)),
    "an auxiliary loss": lambda x, w: (lambda h: (Swish.apply(h).sin(), h.square().sum()))(x @ w),
    "the trunk and one": lambda x, w: (lambda h: (Masked.apply(h), h.cos()))(Swish.apply(x @ w)),
    "a result and one that it is computed from": lambda x, w: (lambda h: (h.sin(), h.cos() + h.sin()))(
        Swish.apply(x @ w)
    ),
    "also past a result": lambda x, w: (lambda h, a: (a, h.cos() * w + a))(*both_of(Swish.apply(x))),
    "a product": lambda x, w: (Product.apply(x, w).tanh(), x.sum() * w.sum(), w.exp()),
    "in a dict": lambda x, w: {"logits": Masked.apply(x @ w), "penalty": w.square().sum()},
}


NONE: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "behind all results": lambda x, w: (lambda h: (h.sin(), h.cos() + x))(OfWeight.apply(x, w)),
    "behind one": lambda x, w: (OfWeight.apply(x, w), x * 2),
    "past an operator": lambda x, w: (lambda t: (OfWeight.apply(t, w), t * 2))(x.sin()),
    "from one result to another": lambda x, w: (lambda t: (t, OfWeight.apply(t, w)))(x.sin()),
}


def both_of(h: Tensor) -> tuple[Tensor, Tensor]:
    return h, h.sin()


def gradients_of_some(f: Callable[..., Any], given: list[Tensor], turn: int) -> list[Tensor | None]:
    """Of all results in the first three turns, then of one after another, alone."""
    own = [t.detach().clone().requires_grad_() for t in given]
    found = f(*own)
    results = list(found.values() if isinstance(found, dict) else found)
    asked = results if turn < 3 else [results[turn % len(results)]]
    weights = [torch.linspace(-1, 2, y.numel()).view(y.shape) for y in asked]
    return [*(y.detach() for y in results), *torch.autograd.grad(asked, own, weights, allow_unused=True)]


@pytest.mark.parametrize("name", PARTIAL)
def test_one_behind_some_results_alone_is_a_program(name: str) -> None:
    f = PARTIAL[name]
    compiled = fastjit.fastjit(f)
    for turn in range(8):
        given = [torch.randn(4, 4), torch.randn(4, 4)]
        assert_same(gradients_of_some(compiled, given, turn), gradients_of_some(f, given, turn))
    assert compiled.stats().hits == 7 and not compiled.stats().fallbacks, compiled.stats()


@pytest.mark.parametrize("name", NONE)
def test_autograd_does_not_go_on_where_one_gives_none(name: str) -> None:
    """What only such a gradient comes to has none, and not zeros."""
    f = NONE[name]
    compiled = fastjit.fastjit(f)
    nones = 0
    for turn in range(8):
        given = [torch.randn(4, 4), torch.randn(4, 4)]
        want = gradients_of_some(f, given, turn)
        assert_same(gradients_of_some(compiled, given, turn), want)
        nones += want[-2] is None
    assert nones and compiled.stats().hits == 7 and not compiled.stats().fallbacks, compiled.stats()


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g.clamp(-0.5, 0.5)


class MaybeNone(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        return x * 1

    @staticmethod
    def backward(ctx: Any, g: Tensor | None) -> Tensor | None:
        return None if g is None else g * 2


OTHER_THAN_SCALED = {"adds": Straight, "clips": Clipped, "is given None": MaybeNone}


@pytest.mark.parametrize("where", ["behind one result", "past a result that another one is computed from"])
@pytest.mark.parametrize("name", OTHER_THAN_SCALED)
def test_one_that_does_more_than_scale_is_called_once(name: str, where: str) -> None:
    """Autograd calls it once, with the sum of all that comes to it, or not at all."""
    made = OTHER_THAN_SCALED[name]

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        h = made.apply(x)
        if where == "behind one result":
            return h.sin(), x * 2
        a = h.sin()
        return a, h.cos() + a

    compiled = fastjit.fastjit(f, on_unsupported="eager")
    for turn in range(8):
        given = [torch.randn(4)]
        assert_same(gradients_of_some(compiled, given, turn), gradients_of_some(f, given, turn))
    assert any("behind some of its results and not behind others" in why for why in compiled.stats().fallbacks)


def test_a_function_behind_all_results_alone_may_do_more() -> None:
    f = lambda x: (lambda h: (h.sin(), h.cos()))(Straight.apply(x))  # noqa: E731
    compiled = fastjit.fastjit(f)
    for turn in range(8):
        given = [torch.randn(4)]
        assert_same(gradients_of_some(compiled, given, turn), gradients_of_some(f, given, turn))
    assert compiled.stats().hits == 7, compiled.stats()


def test_what_has_changed_matters_where_autograd_comes_to_it() -> None:
    global SCALE
    compiled = fastjit.fastjit(lambda x: (Scaled.apply(x), x.sin()))
    for _ in range(3):
        x = torch.randn(4, requires_grad=True)
        scaled, sine = compiled(x)
    assert compiled.stats().hits == 2, compiled.stats()
    try:
        SCALE = 7.0
        assert_same(torch.autograd.grad(sine.sum(), x), (x.detach().cos(),))
        with pytest.raises(RuntimeError, match=r"reads what has changed since the call: global SCALE was 3.0, is 7.0"):
            scaled.sum().backward()
    finally:
        SCALE = 3.0
