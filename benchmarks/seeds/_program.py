"""What a folder of seeds/ holds: programs, each made anew from a seed in every process that runs it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch

SEED = 0
PEERS = ("torch.jit", "torch.compile")
Made = tuple[Callable[..., Any], tuple[Any, ...]]


@dataclass(frozen=True)
class Program:
    name: str
    make: Callable[..., Made]  # a function or module, and its arguments
    values: dict[str, Any] = field(default_factory=dict)  # what `make` is given
    peers: tuple[str, ...] = PEERS
    others: dict[str, Callable[[Made], Callable[[], Any]]] = field(default_factory=dict)  # numpy, numba, jax
    table: str = "Programs"
    quick: bool = False  # part of the smoke test
    counted: Callable[..., Made] | None = None  # in the place of `make` where launches are held beside a source's
    planned: bool = False  # what its recording and compilation take is measured apart

    def made(self, make: Callable[..., Made] | None = None) -> Made:
        torch.manual_seed(SEED)
        fn, args = (make or self.make)(**self.values)
        if isinstance(fn, torch.nn.Module):
            fn.eval().requires_grad_(False)
        return fn, args


def programs_of(folder: str) -> ModuleType:
    """The module with PROGRAMS, TITLE, QUESTION and, where the source has figures, REPORTED."""
    return importlib.import_module(f"{folder}.programs")


def program(folder: str, name: str) -> Program:
    return next(one for one in programs_of(folder).PROGRAMS if one.name == name)
