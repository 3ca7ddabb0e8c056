"""Gradients and transforms of torch.func that begin and end in a call: the operators that they run are the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

import fastjit
from helpers import assert_same

W = torch.linspace(-1, 1, 12).reshape(4, 3)


@pytest.fixture(autouse=True, scope="module")
def used_once():
    """At their first use in a process autograd and vmap import, register and fill caches."""
    leaf = torch.ones(2, requires_grad=True)
    torch.autograd.grad(leaf.sum(), leaf)
    vmap(grad(lambda x: x * x))(torch.ones(2))


def rows(count: int = 5) -> Tensor:
    return torch.randn(count, 4)


def play(fn: Callable[..., Any], *calls: tuple[Any, ...], first: int = 1) -> fastjit.Function:
    """Each call gives eager's bits; from call `first` (counted from 0) on all are hits."""
    fast = fastjit.jit(fn)
    with torch.no_grad():
        for number, args in enumerate(calls):
            before = fast.stats().hits
            assert_same(fast(*args), fn(*args))
            assert fast.stats().hits - before == (number >= first), (number, fast.stats().fallbacks)
    return fast


def stays_eager(fn: Callable[..., Any], *args: Any, why: str) -> None:
    fast = fastjit.jit(fn)
    with torch.no_grad():
        for _ in range(4):
            assert_same(fast(*args), fn(*args))
    assert fast.stats().hits == 0
    assert any(why in reason for reason in fast.stats().fallbacks), fast.stats().fallbacks


def slope(fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The derivative as flows take it: of a new leaf, in a call without gradients."""

    def derive(x: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = x.clone().requires_grad_()
            y = fn(leaf)
        return torch.autograd.grad(y, leaf, torch.ones_like(y))[0]

    return derive


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.tanh(x @ W).square(),
        lambda x: (x.sum().exp() + x.exp()).log(),  # a saved result of no dimension is no constant
        lambda x: torch.softmax(x, -1) * torch.cat([x, x], 1)[:, 2:6],
        lambda x: x.where(x > 0, x * 3) / (1 + x * x),
    ],
)
def test_gradient_of_a_new_leaf(fn):
    play(slope(fn), (rows(),), (rows(),), (rows(),))


def test_second_derivative():
    def curvature(x: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = x.clone().requires_grad_()
            (first,) = torch.autograd.grad(leaf.sin().pow(3).sum(), leaf, create_graph=True)
            (second,) = torch.autograd.grad(first.sum(), leaf)
        return second + first.detach()

    play(curvature, (rows(),), (rows(),), (rows(),))


def test_numbers_that_a_graph_keeps_are_compared():
    def scaled(x: Tensor, rate: float) -> Tensor:
        return slope(lambda leaf: leaf.square() * rate)(x)

    fast = play(scaled, (rows(), 0.5), (rows(), 0.5))
    with torch.no_grad():
        for rate in (0.25, 7.5, 0.5):
            x = rows()
            assert_same(fast(x, rate), scaled(x, rate))

    def normed(x: Tensor) -> Tensor:
        largest = x.max().item()
        return slope(lambda leaf: leaf.square() * largest)(x)

    fast = fastjit.jit(normed)
    with torch.no_grad():
        for _ in range(4):
            x = rows()
            assert_same(fast(x), normed(x))


def test_what_autograd_does_besides_is_seen():
    fn = slope(lambda leaf: leaf.sqrt())
    fast = play(fn, (rows().abs(),), (rows().abs(),))
    packed = []
    with torch.no_grad(), torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        fast(rows().abs())
    assert packed
    with torch.no_grad(), torch.autograd.detect_anomaly(check_nan=True), pytest.raises(RuntimeError, match="nan"):
        fast(-rows().abs())


def test_a_gradient_that_is_left_where_nobody_looks():
    def f(x: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = x.clone().requires_grad_()
            leaf.square().sum().backward()
        return x * 2

    fast, x = fastjit.fastjit(f), rows()
    for _ in range(3):
        assert torch.equal(fast(x), x * 2)
    assert fast.stats().hits == 2, fast.stats()


def test_gradients_that_no_program_has():
    def of_argument(x: Tensor) -> Tensor:
        return x.requires_grad_(not x.requires_grad) * 2

    def returned(x: Tensor) -> Tensor:
        with torch.enable_grad():
            return x.clone().requires_grad_() * 2

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            return ctx.saved_tensors[0] * 2 * gradient

    stays_eager(of_argument, rows(), why="requires_grad_")
    stays_eager(returned, rows(), why="requires grad")
    stays_eager(slope(Square.apply), rows(), why="")
    stays_eager(slope(lambda leaf: leaf.prod()), rows().round(), why="")  # its formula looks for zeros


def test_a_recording_that_ends_inside_autograd_leaves_nothing_behind():
    """The engine puts back the thread's callbacks as they were: a later recording met every operator twice."""

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            return ctx.saved_tensors[0] * 2 * gradient

    stays_eager(slope(Square.apply), rows(), why="BackwardCFunction.apply")
    linear = nn.Linear(4, 3)
    play(lambda x: linear(x), *((torch.randn(n, 5, 4),) for n in (2, 3, 4, 5)), first=2)


def energy(weight: Tensor, x: Tensor) -> Tensor:
    return torch.tanh(x @ weight).square().sum()


def test_transforms():
    play(vmap(grad(energy), in_dims=(None, 0)), (W, rows()), (W + 1, rows()), (W, rows()))
    play(lambda x: grad(lambda y: energy(W, y))(x), (rows(),), (rows(),), (rows(),))
    play(lambda x: vmap(lambda row: row / row.norm(), 1, 1)(x), (rows(),), (rows(),), (rows(),))


def test_numbers_below_a_transform_are_compared():
    def scaled(x: Tensor, rate: float) -> Tensor:
        return vmap(lambda row: torch.add(row.cumsum(0) * rate, row, alpha=rate))(x)

    fast = fastjit.jit(scaled)
    for rate in (0.5, 0.5, 0.5, 0.25, 4.0, 0.5):
        x = rows()
        assert_same(fast(x, rate), scaled(x, rate))
    assert fast.stats().hits


def test_random_numbers_below_a_transform():
    fn = vmap(lambda row: row + torch.rand_like(row), randomness="different")
    fast = fastjit.jit(fn)
    for _ in range(4):
        x, state = rows(), torch.get_rng_state()
        got = fast(x)
        torch.set_rng_state(state)
        assert_same(got, fn(x))
    assert fast.stats().hits


def test_values_below_a_transform_stay_eager():
    stays_eager(vmap(lambda row: row[W[:, 0] > 0].sum()), rows(), why="")


def test_module_with_other_tensors():
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).requires_grad_(False)
    given = {name: torch.randn_like(p) for name, p in net.named_parameters()}
    before = dict(net.named_parameters())

    def other(x: Tensor) -> Tensor:
        return functional_call(net, given, (x,))

    fast = play(other, (rows(),), (rows(),), (rows(),))
    assert all(p is before[name] for name, p in net.named_parameters())
    given["0.bias"] = torch.ones(6)
    x = rows()
    assert_same(fast(x), other(x))
    net[2] = nn.Linear(6, 2, bias=False).requires_grad_(False)
    del given["2.bias"]
    assert_same(fast(x), other(x))

    play(lambda p, x: functional_call(net, p, (x,)), (given, rows()), (given, rows()), (given, rows()))


def test_ensemble():
    nets = [nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)) for _ in range(3)]
    parameters, buffers = stack_module_state(nets)

    def predict(x: Tensor) -> Tensor:
        def one(p: dict[str, Tensor], b: dict[str, Tensor], y: Tensor) -> Tensor:
            return functional_call(nets[0], (p, b), (y,))

        return vmap(one, in_dims=(0, 0, None))(parameters, buffers, x)

    fast = play(predict, (rows(),), (rows(),), (rows(),))
    with torch.no_grad():
        parameters["0.weight"].mul_(2)
        x = rows()
        assert_same(fast(x), predict(x))
    assert fast.stats().hits == 3
