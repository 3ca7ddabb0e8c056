"""Calls that run a torch.autograd.Function whose gradients are needed: its backward is recorded."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

import fastjit
from gradient_tools import Straight, assert_same

SCALE = 3.0
SEEN: list[int] = []
COUNTS = {"calls": 0}
KEPT = torch.ones(4)


@pytest.fixture(autouse=True)
def _with_grad() -> Iterator[None]:
    with torch.enable_grad():
        yield


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, beta: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.beta = beta
        return x * torch.sigmoid(beta * x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(ctx.beta * x)
        return g * (s + ctx.beta * x * s * (1 - s)), None


class SavesResult(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return g * y


class Masked(torch.autograd.Function):
    """As torch's tutorial has it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        out = g.clone()
        out.masked_fill_(x < 0, 0.0)
        out *= 2
        return out


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w.t() + b

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        grads: list[Tensor | None] = [None, None, None]
        if ctx.needs_input_grad[0]:
            grads[0] = g @ w
        if ctx.needs_input_grad[1]:
            grads[1] = g.t() @ x
        if ctx.needs_input_grad[2]:
            grads[2] = g.sum(0)
        return tuple(grads)


class Two(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx: Any, gs: Tensor, gc: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gs * x.cos() - gc * x.sin() + 1


class Later(torch.autograd.Function):
    """With its context set up behind the forward pass, as torch.func wants it."""

    @staticmethod
    def forward(x: Tensor, beta: float = 1.5) -> tuple[Tensor, Tensor]:
        s = torch.sigmoid(beta * x)
        return x * s, s

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, ctx.beta = inputs
        _, s = output
        ctx.mark_non_differentiable(s)
        ctx.save_for_backward(x, s)
        ctx.half = x * 0.5

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor, None]:
        x, s = ctx.saved_tensors
        return g * (s + ctx.beta * x * s * (1 - s)) + ctx.half, None


def make(body: Callable[[Any, Tensor], Tensor], forward: Callable[[Any, Tensor], Tensor] | None = None) -> Any:
    class Made(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return forward(ctx, x) if forward else x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return body(ctx, g)

    return Made


Scaled = make(lambda ctx, g: g * SCALE)

PROGRAMS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "a number on ctx": lambda x, w, b: Swish.apply(x @ w.t() + b, 1.5),
    "its result saved": lambda x, w, b: SavesResult.apply(x * 0.1) @ w.t() + b,
    "in place on its own": lambda x, w, b: Masked.apply(x @ w.t()) * b,
    "a tensor on ctx": lambda x, w, b: Straight.apply(x @ w.t()).sin() + b,
    "needs_input_grad": lambda x, w, b: Product.apply(x, w, b).tanh(),
    "a frozen operand": lambda x, w, b: Product.apply(x.detach(), w, b.detach()).tanh() + x.sum() + b,
    "several": lambda x, w, b: Swish.apply(Product.apply(Masked.apply(x), w, b), 0.7),
    "a global number": lambda x, w, b: Scaled.apply(x @ w.t()) + b,
    "setup_context": lambda x, w, b: Later.apply(x @ w.t())[0] + b,
    "setup_context, all given": lambda x, w, b: Later.apply(x @ w.t(), 0.5)[0] * b,
    "two tensors": lambda x, w, b: (lambda s, c: s * c + s)(*Two.apply(x @ w.t())) + b,
}


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.randn(*sizes, requires_grad=True) for sizes in ((3, 5), (4, 5), (4,)))  # type: ignore[return-value]


def gradients(f: Callable[..., Tensor], given: tuple[Tensor, ...]) -> list[Tensor | None]:
    own = [t.detach().clone().requires_grad_() for t in given]
    y = f(*own)
    y.backward(torch.linspace(-1, 1, y.numel()).view(y.shape))
    return [y.detach(), *(t.grad for t in own)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_backward_is_a_program(name: str) -> None:
    f = PROGRAMS[name]
    compiled = fastjit.fastjit(f)
    for _ in range(4):
        given = inputs()
        assert_same(gradients(compiled, given), gradients(f, given))
    stats = compiled.stats()
    assert stats.hits == 3 and not stats.fallbacks, stats


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_whole_step_is_a_program(name: str) -> None:
    def run(compiles: bool) -> tuple[list[Any], fastjit.Stats | None]:
        torch.manual_seed(4)
        w, b = torch.randn(4, 5, requires_grad=True), torch.randn(4, requires_grad=True)
        optimizer = torch.optim.SGD([w, b], 0.05, momentum=0.9)

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = PROGRAMS[name](x, w, b).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        f = fastjit.fastjit(step) if compiles else step
        losses = [f(torch.randn(3, 5)) for _ in range(6)]
        return [*losses, w.detach(), b.detach()], f.stats() if compiles else None

    want, _ = run(False)
    got, stats = run(True)
    assert_same(got, want)
    assert stats is not None and stats.hits >= 3, stats


def test_a_module_with_one() -> None:
    class Activation(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return Swish.apply(x, 1.0)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), Activation(), nn.Linear(16, 8), Activation(), nn.Linear(8, 1))
    fast = fastjit.fastjit(copy.deepcopy(model))
    for _ in range(4):
        x = torch.randn(5, 8)
        want = torch.autograd.grad(model(x).sum(), list(model.parameters()))
        assert_same(torch.autograd.grad(fast(x).sum(), list(fast.parameters())), want)
    assert fastjit.of(fast).stats().hits == 3, fastjit.of(fast).stats()


# ---- what a second run of its Python code would find: it is stopped before it does it, and calls run eagerly ----


def counts(ctx: Any, g: Tensor) -> Tensor:
    COUNTS["calls"] += 1
    return g * 2


def appends(ctx: Any, g: Tensor) -> Tensor:
    SEEN.append(1)
    return g * 2


def prints(ctx: Any, g: Tensor) -> Tensor:
    print("backward")
    return g * 2


def marks(ctx: Any, g: Tensor) -> Tensor:
    ctx.times = getattr(ctx, "times", 0) + 1
    return g * ctx.times


def writes_what_is_saved(ctx: Any, g: Tensor) -> Tensor:
    ctx.half.mul_(2)
    return g * ctx.half


def writes_through_a_view(ctx: Any, g: Tensor) -> Tensor:
    ctx.half.view(-1).add_(1)
    return g * ctx.half


def writes_elsewhere(ctx: Any, g: Tensor) -> Tensor:
    KEPT[0] += 1
    return g * KEPT[0]


def writes_by_out(ctx: Any, g: Tensor) -> Tensor:
    torch.add(KEPT, 1, out=KEPT)
    return g * KEPT[0]


def swallows(ctx: Any, g: Tensor) -> Tensor:
    with contextlib.suppress(Exception):
        COUNTS["calls"] += 1
    COUNTS["calls"] += 1
    return g * 2


def draws(ctx: Any, g: Tensor) -> Tensor:
    return g * torch.rand(())


def reads_a_value(ctx: Any, g: Tensor) -> Tensor:
    return g * 2 if g.sum().item() > 0 else g * 3


def keeps_half(ctx: Any, x: Tensor) -> Tensor:
    ctx.half = x * 0.5
    return x * 2


def keeps_a_list(ctx: Any, x: Tensor) -> Tensor:
    ctx.all = [1.0]
    return x * 2


def pops_from_list(ctx: Any, g: Tensor) -> Tensor:
    return g * ctx.all.pop()


def keeps_x(ctx: Any, x: Tensor) -> Tensor:
    ctx.x = x
    return x * 2


VISIBLE = {
    "a counter": (counts, None, "store to"),
    "a list": (appends, None, "SEEN"),
    "print": (prints, None, "print()"),
    "a mark on ctx": (marks, None, "store to"),
    "a write to what it keeps": (writes_what_is_saved, keeps_half, "write to a tensor that was there before"),
    "a write through a view": (writes_through_a_view, keeps_half, "write to a tensor that was there before"),
    "a write to a global": (writes_elsewhere, None, "write to a tensor that was there before"),
    "a write by out=": (writes_by_out, None, "write to a tensor that was there before"),
    "an error that it swallows": (swallows, None, "store to"),
    "random numbers": (draws, None, "draw random numbers"),
    "a value": (reads_a_value, None, "reads a value"),
    "a list on ctx": (pops_from_list, keeps_a_list, "ctx.all"),
    "a tensor of others on ctx": (lambda ctx, g: g * ctx.x, keeps_x, "ctx.save_for_backward()"),
}


@pytest.mark.parametrize("name", VISIBLE)
def test_what_a_second_run_would_find_is_done_once(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    body, forward, reason = VISIBLE[name]
    made = make(body, forward)

    def log(compiles: bool) -> list[Any]:
        SEEN.clear()
        COUNTS["calls"] = 0
        KEPT.fill_(1)
        torch.manual_seed(1)
        f = fastjit.fastjit(lambda x: made.apply(x).sin(), on_unsupported="eager") if compiles else None
        out: list[Any] = []
        for _ in range(3):
            x = torch.randn(4, requires_grad=True)
            (f or (lambda x: made.apply(x).sin()))(x).sum().backward()
            out += [x.grad, len(SEEN), COUNTS["calls"], KEPT.clone(), torch.rand(()), capsys.readouterr().out]
        if f:
            assert f.stats().hits == 0 and any(reason in why for why in f.stats().fallbacks), f.stats()
        return out

    assert_same(log(True), log(False))


def test_a_changed_global_is_recorded_again() -> None:
    global SCALE
    f = PROGRAMS["a global number"]
    compiled = fastjit.fastjit(f)
    try:
        for scale in (3.0, 3.0, 5.0, 5.0):
            SCALE = scale
            given = inputs()
            assert_same(gradients(compiled, given), gradients(f, given))
        assert compiled.stats().hits == 2, compiled.stats()
        given = inputs()
        y = compiled(*given)
        SCALE = 7.0
        with pytest.raises(RuntimeError, match=r"reads what has changed since the call: global SCALE was 5.0, is 7.0"):
            y.sum().backward()
    finally:
        SCALE = 3.0


def test_gradients_of_some_results() -> None:
    """Zeros that come from one result alone are there where autograd comes from that one."""

    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return x.sigmoid(), x.sign() * w.sin()

    compiled = fastjit.fastjit(f)
    for turn in range(6):
        given = [torch.randn(4, requires_grad=True) for _ in range(2)]
        own = [t.detach().clone().requires_grad_() for t in given]
        results = [
            torch.autograd.grad(g(*args)[turn % 2].sum(), args, allow_unused=True)
            for g, args in ((compiled, given), (f, own))
        ]
        assert_same(*results)
    assert compiled.stats().hits == 5, compiled.stats()


def test_setup_context_of_a_changed_function_is_recorded_again() -> None:
    class Now(torch.autograd.Function):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(output)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g + ctx.saved_tensors[0]

    compiled = fastjit.fastjit(lambda x: Now.apply(x))
    for turn in range(4):
        if turn == 2:
            Now.forward = staticmethod(lambda x: x * 5)  # type: ignore[method-assign]
        x = torch.randn(4, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        assert_same(torch.autograd.grad(compiled(x).sum(), x), torch.autograd.grad(Now.apply(y).sum(), y))
    assert compiled.stats().hits == 2 and compiled.stats().fallbacks == {}, compiled.stats()


def test_several_tensors_beside_several_results_are_eager() -> None:
    compiled = fastjit.fastjit(lambda x: Two.apply(x), on_unsupported="eager")
    for _ in range(2):
        x = torch.randn(4, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        assert_same(torch.autograd.grad(compiled(x)[1].sum(), x), torch.autograd.grad(Two.apply(y)[1].sum(), y))
    assert any("gives several results" in why for why in compiled.stats().fallbacks), compiled.stats()


def test_a_constant_gradient_of_a_result_that_nobody_differentiates_is_none() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.sign(), y * 2

    compiled = fastjit.fastjit(f)
    for turn in range(4):
        x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
        compiled(x, y)[1 - turn % 2].sum().backward()
        assert (x.grad is None, y.grad is None) == (turn % 2 == 0, turn % 2 == 1)
    assert compiled.stats().hits == 3


def test_what_is_saved_may_not_be_written() -> None:
    compiled = fastjit.fastjit(lambda x: Swish.apply(x, 1.0))
    for _ in range(3):
        x = torch.randn(4, requires_grad=True)
        y = compiled(x)
        with torch.no_grad():
            x.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
    assert compiled.stats().hits == 2


class Assign(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, value: Tensor, index: Any) -> Tensor:
        ctx.index = index
        out = x.clone()
        out[index] = value
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        of_x = g.clone()
        of_x[ctx.index] = 0
        return of_x, g[ctx.index], None


@pytest.mark.parametrize("index", [(..., slice(1, 3)), (0, slice(1, 3)), slice(0, 2)], ids=str)
def test_an_index_on_ctx_is_unchanging(index: Any) -> None:
    def f(x: Tensor, value: Tensor) -> Tensor:
        return Assign.apply(x * 2, value, index).sin()

    compiled = fastjit.fastjit(f)
    for _ in range(4):
        given = [torch.randn(4, 4, requires_grad=True), torch.randn(1, requires_grad=True)]
        own = [t.detach().clone().requires_grad_() for t in given]
        value = given[1].expand_as(given[0][index])
        got = torch.autograd.grad(compiled(given[0], value).sum(), given)
        want = torch.autograd.grad(f(own[0], own[1].expand_as(own[0][index])).sum(), own)
        assert_same(got, want)
    assert compiled.stats().hits == 3 and compiled.stats().fallbacks == {}
