"""What small training scripts are made of, and the table that they add themselves to: `name -> Script`."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Log = list[Any]
Wrap = Callable[[Any], Any]  # fastjit, or nothing


@dataclasses.dataclass
class Script:
    """`play` trains for some steps with what `wrap` makes of its model or step, and notes what it sees."""

    play: Callable[[Wrap], Log]
    hits: int = 3  # at least
    eager: str = ""  # a part of the only reason that is allowed, of a call that runs eagerly


SCRIPTS: dict[str, Script] = {}


def script(hits: int = 3, eager: str = "", name: str = "") -> Callable[..., Any]:
    def add(play: Callable[[Wrap], Log]) -> Callable[[Wrap], Log]:
        SCRIPTS[name or play.__name__.replace("_", " ")] = Script(play, hits, eager)
        return play

    return add


def mlp(*sizes: int, act: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), act()]
    return nn.Sequential(*layers[:-1])


def state(model: nn.Module) -> Log:
    tensors = [t.detach().clone() for t in model.state_dict().values()]
    return tensors + [p.grad.clone() if p.grad is not None else None for p in model.parameters()]


def batches(steps: int, *sizes: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*sizes, generator=generator) for _ in range(steps)]


def fit(model: nn.Module, fast: Any, optimizer: Any, steps: int = 5, after: Callable[..., Any] | None = None) -> Log:
    """Squared error of a regression, step by step."""
    log: Log = []
    for i, x in enumerate(batches(steps, 8, 4)):
        optimizer.zero_grad()
        loss = (fast(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        if after:
            after(i)
        optimizer.step()
        log.append(loss.detach())
    return [*log, *state(model)]


def played(script: Script, wrap: Wrap) -> Log:
    torch.manual_seed(11)
    with torch.enable_grad(), contextlib.redirect_stdout(io.StringIO()):
        return script.play(wrap)
