"""Calls that differentiate inside, with create_graph=True, and whose results are differentiated again."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastjit
from gradient_tools import assert_same

Loss = Callable[[nn.Module, Tensor], Tensor]


@pytest.fixture(autouse=True)
def _with_grad() -> Iterator[None]:
    with torch.enable_grad():
        yield


def pinn(model: nn.Module, x: Tensor) -> Tensor:
    """u'' = -sin(x)."""
    x = x.detach().requires_grad_()
    u = model(x)
    first = torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)[0]
    second = torch.autograd.grad(first.sum(), x, create_graph=True)[0]
    return ((second + torch.sin(x)) ** 2).mean() + (u[0] ** 2).sum()


def gradient_penalty(model: nn.Module, x: Tensor) -> Tensor:
    x = x.clone().detach().requires_grad_(True)
    gradient = torch.autograd.grad(model(x).sum(), x, create_graph=True)[0]
    return ((gradient.norm(dim=1) - 1) ** 2).mean()


def inner_step(model: nn.Module, x: Tensor) -> Tensor:
    """One step of gradient descent inside, as MAML takes."""
    parameters = dict(model.named_parameters())
    loss = model(x).square().mean()
    gradients = torch.autograd.grad(loss, list(parameters.values()), create_graph=True)
    moved = {name: p - 0.1 * g for (name, p), g in zip(parameters.items(), gradients, strict=True)}
    return torch.func.functional_call(model, moved, (x + 1,)).square().mean()


def double_backward_of_argument(model: nn.Module, x: Tensor) -> Tensor:
    gradient = torch.autograd.grad(model(x).sum(), x, create_graph=True)[0]
    return gradient.square().sum()


def network(activation: type[nn.Module] = nn.Tanh) -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(1, 8), activation(), nn.Linear(8, 8), activation(), nn.Linear(8, 1))


LOSSES: dict[str, Loss] = {
    "pinn": pinn,
    "gradient penalty": gradient_penalty,
    "inner step": inner_step,
    "an argument": double_backward_of_argument,
}


@pytest.mark.parametrize("activation", [nn.Tanh, nn.Softplus, nn.SiLU])
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_of_gradients(name: str, activation: type[nn.Module]) -> None:
    model = network(activation)
    loss = LOSSES[name]
    compiled = fastjit.fastjit(lambda x: loss(model, x))
    parameters = list(model.parameters())
    for _ in range(4):
        x = torch.rand(6, 1, requires_grad=name == "an argument")
        y = x.detach().clone().requires_grad_(x.requires_grad)
        got = torch.autograd.grad(compiled(x), parameters, allow_unused=True)
        assert_same(got, torch.autograd.grad(loss(model, y), parameters, allow_unused=True))
    stats = compiled.stats()
    assert stats.hits >= 2, stats  # the first use of autograd.grad() in a process imports


@pytest.mark.parametrize("name", ["pinn", "gradient penalty"])
def test_a_whole_step(name: str) -> None:
    def run(compiles: bool) -> tuple[list[Any], fastjit.Stats | None]:
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = LOSSES[name](model, x)
            loss.backward()
            optimizer.step()
            return loss.detach()

        f = fastjit.fastjit(step) if compiles else step
        losses = [f(torch.linspace(0, 1 + i / 10, 8)[:, None]) for i in range(8)]
        return [*losses, *(p.detach().clone() for p in model.parameters())], f.stats() if compiles else None

    want, _ = run(False)
    got, stats = run(True)
    assert_same(got, want)
    assert stats is not None and stats.hits >= 4, stats


def test_a_leaf_of_the_call_that_is_given_back_gets_its_gradient() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        own = x.detach().requires_grad_()
        return own, own.exp().sum()

    compiled = fastjit.fastjit(f, on_unsupported="eager")
    for _ in range(3):
        own, y = compiled(torch.zeros(3))
        y.backward()
        assert torch.equal(own.grad, torch.ones(3))
    assert compiled.stats().hits == 0


def test_a_leaf_of_the_call_that_is_stored_gets_its_gradient() -> None:
    kept: dict[str, Tensor] = {}

    def f(x: Tensor) -> Tensor:
        kept["x"] = x.detach().requires_grad_()
        return kept["x"].exp().sum()

    compiled = fastjit.fastjit(f, on_unsupported="eager")
    for _ in range(3):
        compiled(torch.zeros(3)).backward()
        assert torch.equal(kept["x"].grad, torch.ones(3))


def test_a_hook_on_a_leaf_of_the_call_is_called() -> None:
    seen: list[Tensor] = []

    def f(x: Tensor) -> Tensor:
        own = x.detach().requires_grad_()
        own.register_hook(seen.append)
        return own.exp().sum()

    compiled = fastjit.fastjit(f, on_unsupported="eager")
    for turn in range(3):
        compiled(torch.zeros(3)).backward()
        assert len(seen) == turn + 1
    copied = copy.copy(seen)
    assert all(torch.equal(g, torch.ones(3)) for g in copied)
