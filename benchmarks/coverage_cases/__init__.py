"""The programs that benchmarks/coverage.py plays: functions and models of public packages, as their users call them.

Every file here holds the cases of some packages, each a function that makes a `Program` anew. Libraries are imported
inside these functions, so that the list can be read without them. Weights are random, sizes are small, and what a case
calls was chosen for being what a user of the package calls first, not for what FastJIT makes of it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Inputs = Callable[[int], Any]  # batch -> a tuple of arguments or a dictionary of keywords, from torch's generator


@dataclass
class Program:
    """Something to call, made from the seed that is set. `inputs` may also prepare the program, as gradients do.

    Attributes:
        call: what is called, and given to FastJIT where `target` is not.
        inputs: arguments for a batch size.
        state: what a call may change or read: modules and objects that are compared after each call.
        target: what is given to FastJIT where `call` only calls it, as `generate` calls its model.
        change: a change of state that users make, beside weights and modes, which every module's case changes.
        batches: of the first calls, and of the second.
        grad: gradients are left on; the program turns them off itself.
        flips: whether the modules can be called in the other of train and eval.
        peer: a case that is timed in eager beside this one.
    """

    call: Callable[..., Any]
    inputs: Inputs
    state: Any = None
    target: Any = None
    change: Callable[[], None] | None = None
    batches: tuple[int, int] = (2, 3)
    grad: bool = False
    flips: bool = True
    peer: str = ""

    def __post_init__(self) -> None:
        if self.state is None and isinstance(self.call, nn.Module):
            self.state = self.call

    @property
    def given(self) -> Any:
        return self.call if self.target is None else self.target

    def modules(self) -> list[nn.Module]:
        found = self.state if isinstance(self.state, (list, tuple)) else [self.state]
        return [one for one in found if isinstance(one, nn.Module)]


@dataclass(frozen=True)
class Case:
    name: str
    package: str
    make: Callable[[], Program]


CASES: dict[str, Case] = {}


def case(package: str) -> Callable[[Callable[[], Program]], Callable[[], Program]]:
    """The function below makes a case of this package; its name is the case's."""

    def register(make: Callable[[], Program]) -> Callable[[], Program]:
        add(package, make.__name__, make)
        return make

    return register


def add(package: str, name: str, make: Callable[[], Program]) -> None:
    if name in CASES:
        raise ValueError(f"two cases are named {name}")
    CASES[name] = Case(name, package, make)


def randn(*sizes: int, count: int = 1) -> Inputs:
    """`count` normal tensors of [batch, *sizes]."""
    return lambda batch: tuple(torch.randn(batch, *sizes) for _ in range(count))


def rand(*sizes: int, count: int = 1) -> Inputs:
    """The same between 0 and 1: images."""
    return lambda batch: tuple(torch.rand(batch, *sizes) for _ in range(count))


def tokens(length: int, vocabulary: int = 100) -> Inputs:
    return lambda batch: (torch.randint(0, vocabulary, (batch, length)),)


def classified(classes: int = 10) -> Inputs:
    """Logits and labels."""
    return lambda batch: (torch.randn(8 * batch, classes), torch.randint(0, classes, (8 * batch,)))


def packages() -> Iterator[str]:
    yield from dict.fromkeys(one.package for one in CASES.values())


FILES = ("torch_itself", "optimizers", "images", "vision", "text", "layers", "losses", "probability", "science")
for _file in FILES:
    importlib.import_module(f"{__name__}.{_file}")
