"""Scenarios of gradients: the same steps with a function and with its compiled form, and what ran."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import fastjit

Log = list[Any]
Scenario = Callable[[Callable[..., Any]], Log]


def leaf(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*sizes, dtype=dtype, requires_grad=True)


def log_of(scenario: Scenario, function: Callable[..., Any]) -> Log:
    """What the scenario notes with grad mode on, from the same random numbers; an exception counts as one note."""
    torch.manual_seed(3)
    with torch.enable_grad():
        try:
            return scenario(function)
        except RuntimeError as error:
            return [f"{type(error).__name__}: {_without_node(str(error))}"]


def _without_node(text: str) -> str:
    """Torch names the node that a tensor comes from, which differs."""
    head, found, tail = text.partition("which is output 0 of ")
    return head + found + tail.partition(",")[2] if found else text.splitlines()[0]


def assert_same(got: Any, want: Any, where: str = "log") -> None:
    if isinstance(want, torch.Tensor):
        assert isinstance(got, torch.Tensor), where
        assert got.requires_grad == want.requires_grad and got.is_leaf == want.is_leaf, where
        torch.testing.assert_close(got, want, equal_nan=True, msg=lambda text: f"{where}: {text}")
    elif isinstance(want, (list, tuple)):
        assert isinstance(got, (list, tuple)) and len(got) == len(want), (where, got, want)
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            assert_same(a, b, f"{where}[{i}]")
    else:
        assert got == want, where


def compare(scenario: Scenario, function: Callable[..., Any], times: int = 3) -> fastjit.Stats:
    """Plays the scenario in eager and then `times` with one compiled function, and compares each log."""
    want = log_of(scenario, function)
    compiled = fastjit.fastjit(function, on_unsupported="eager")
    for turn in range(times):
        assert_same(log_of(scenario, compiled), want, f"turn {turn}")
    return compiled.stats()


def whole_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that holds a whole step on a mean square."""

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def nodes_of_ours(result: torch.Tensor) -> int:
    """How many nodes of a call's way back follow each other."""
    count, node = 0, result.grad_fn
    while node is not None:
        count += node.name() == "FastJITBackward"
        node = next((n for n, _ in node.next_functions if n is not None and "Accumulate" not in n.name()), None)
    return count


class Straight(torch.autograd.Function):
    """A straight-through estimator."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.half = x * 0.5
        return x.round()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g + ctx.half
