"""Mixed precision: autocast inside calls and around them, forward and back, whole steps, and scaled losses."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fastjit
from gradient_tools import Log

STEPS = 6


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 16), nn.LayerNorm(16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.gelu(self.norm(self.first(x))))


class Tied(nn.Module):
    """A weight that autocast casts once for both of its uses."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6) * 0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.weight).relu() @ self.weight.t()


def autocast(dtype: torch.dtype = torch.bfloat16, **options: Any) -> torch.autocast:
    return torch.autocast("cpu", dtype=dtype, **options)


def near(got: Any, want: Any, where: str = "log") -> None:
    """Equal in type and grad, values within a few units of bf16 of the largest of the tensor."""
    if isinstance(want, (list, tuple)):
        assert len(got) == len(want), where
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            near(a, b, f"{where}[{i}]")
    elif isinstance(want, torch.Tensor):
        assert (got.dtype, got.shape, got.requires_grad) == (want.dtype, want.shape, want.requires_grad), where
        unit = torch.finfo(torch.bfloat16).eps * float(want.abs().max().nan_to_num(1, 1, 1))
        torch.testing.assert_close(got, want, rtol=0, atol=2 * unit, equal_nan=True, msg=lambda m: f"{where}: {m}")
    else:
        assert got == want, where


def inputs() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(5, 6, generator=generator), torch.arange(5) % 3) for _ in range(STEPS)]


def grads(model: nn.Module) -> Log:
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


# Each gets a model and what is given to fastjit, and plays all steps.
def around(model: nn.Module, wrap: Callable[..., Any]) -> Log:
    fast, log = wrap(model), []
    for x, target in inputs():
        model.zero_grad()
        with autocast():
            y = fast(x)
            loss = F.cross_entropy(y.float(), target)
        loss.backward()
        log += [y.detach(), loss.detach(), *grads(model)]
    return log


def descended(model: nn.Module, loss_of: Callable[..., Any]) -> Log:
    log: Log = []
    for x, target in inputs():
        model.zero_grad()
        loss = loss_of(x, target)
        loss.backward()
        log += [loss.detach(), *grads(model)]
    return log


def inside(model: nn.Module, wrap: Callable[..., Any]) -> Log:
    def loss_of(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        with autocast():
            return F.cross_entropy(model(x), target)

    return descended(model, wrap(loss_of))


def partly(model: nn.Module, wrap: Callable[..., Any]) -> Log:
    def loss_of(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        with autocast():
            y = model(x)
            with autocast(enabled=False):
                z = y.float().log_softmax(-1)
        return F.nll_loss(z, target)

    return descended(model, wrap(loss_of))


def without_cache(model: nn.Module, wrap: Callable[..., Any]) -> Log:
    fast, log = wrap(model), []
    for x, _ in inputs():
        model.zero_grad()
        with autocast(cache_enabled=False):
            y = fast(x)
        y.float().square().mean().backward()
        log += [y.detach(), *grads(model)]
    return log


def backward_inside_the_block(model: nn.Module, wrap: Callable[..., Any]) -> Log:
    fast, log = wrap(model), []
    for x, target in inputs():
        model.zero_grad()
        with autocast():
            F.cross_entropy(fast(x).float(), target).backward()
        log += grads(model)
    return log


def with_and_without(model: nn.Module, wrap: Callable[..., Any]) -> Log:
    fast, log = wrap(model), []
    for i, (x, target) in enumerate(inputs() * 2):
        model.zero_grad()
        with autocast(enabled=i % 2 == 0):
            y = fast(x)
        F.cross_entropy(y.float(), target).backward()
        log += [y.detach(), *grads(model)]
    return log


def in_half(model: nn.Module, wrap: Callable[..., Any]) -> Log:
    fast, log = wrap(model), []
    for x, target in inputs():
        model.zero_grad()
        with autocast(torch.float16):
            y = fast(x)
        F.cross_entropy(y.float(), target).backward()
        log += [y.detach(), *grads(model)]
    return log


def whole_steps(model: nn.Module, wrap: Callable[..., Any]) -> Log:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with autocast():
            loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    fast, log = wrap(step), []
    for x, target in inputs():
        log += [fast(x, target), *grads(model), *(p.detach().clone() for p in model.parameters())]
    return log


PLAYS = {
    "around": (around, Network, 5),
    "around, tied weights": (around, Tied, 5),
    "inside": (inside, Network, 5),
    "inside, tied weights": (inside, Tied, 5),
    "a part of it without": (partly, Network, 5),
    "without torch's cache of casts": (without_cache, Tied, 5),
    "backward inside the block": (backward_inside_the_block, Network, 5),
    "with and without in turn": (with_and_without, Network, 10),
    "in half precision": (in_half, Network, 5),
    "whole steps": (whole_steps, Network, 3),
}


def models(of: Callable[[], nn.Module]) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    model = of()
    return model, copy.deepcopy(model)


def played(play: Callable[..., Log], of: Callable[[], nn.Module]) -> tuple[Log, Log, fastjit.Stats]:
    model, twin = models(of)
    made: list[Any] = []

    def wrap(function: Any) -> Any:
        made.append(fastjit.fastjit(function, on_unsupported="eager"))
        return made[-1]

    with torch.enable_grad():
        want, got = play(model, lambda function: function), play(twin, wrap)
    (fast,) = made
    return got, want, (fastjit.of(fast) if isinstance(fast, nn.Module) else fast).stats()


@pytest.mark.parametrize("name", PLAYS)
def test_mixed_precision_is_a_program(name):
    play, of, hits = PLAYS[name]
    got, want, stats = played(play, of)
    near(got, want)
    assert stats.fallbacks == {} and stats.hits >= hits, stats


# ---- scaled losses ----


def scaled(model: nn.Module, wrap: Callable[..., Any], clip: bool = False) -> Log:
    """The third and fourth step meet an infinite loss: they are skipped, and the scale is lowered."""
    fast, log = wrap(model), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)
    for i, (x, target) in enumerate(inputs()):
        optimizer.zero_grad()
        with autocast():
            loss = F.cross_entropy(fast(x).float(), target) * (float("inf") if i in (2, 3) else 1.0)
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(optimizer)
            log.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
        scaler.step(optimizer)
        scaler.update()
        log += [scaler.get_scale(), *(p.detach().clone() for p in model.parameters())]
    return log


def scaled_inside(model: nn.Module, wrap: Callable[..., Any]) -> Log:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)

    def step(x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with autocast():
            loss = F.cross_entropy(model(x), target) * weight
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    fast, log = wrap(step), []
    for i, (x, target) in enumerate(inputs()):
        fast(x, target, torch.tensor(float("inf") if i in (2, 3) else 1.0))
        log += [scaler.get_scale(), *(p.detach().clone() for p in model.parameters())]
    return log


@pytest.mark.parametrize("clip", [False, True])
def test_steps_are_skipped_where_eager_skips_them(clip):
    got, want, stats = played(lambda model, wrap: scaled(model, wrap, clip), Network)
    scales = [value for value in want if isinstance(value, float)]
    assert scales == [256.0, 512.0, 256.0, 128.0, 128.0, 256.0]
    near(got, want)
    assert stats.fallbacks == {} and stats.hits == STEPS - 1


def test_a_scaler_inside_a_step():
    """What it keeps by optimizer is filled in each step and replaced by a new dictionary with nothing in it."""
    got, want, stats = played(scaled_inside, Network)
    near(got, want)
    assert stats.hits >= 1 and all("read of an address by id" in why for why in stats.fallbacks), stats
