"""Helpers for the tests of programs that use fastjit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from fastjit._load import disabled
from fastjit.api import FastFunction


@contextlib.contextmanager
def assert_no_recompile(*functions: FastFunction[..., object]) -> Iterator[None]:
    """Fails if, within the block, one of the functions has a call that is not a hit (under FASTJIT_DISABLE: never).

    Args:
        functions: what to watch; at least one.

    Raises:
        AssertionError: naming the function and what happened.
        TypeError: without a function, or for something that is none.
    """
    if not functions:
        raise TypeError("assert_no_recompile needs at least one fastjit function")
    for function in functions:
        if not isinstance(function, FastFunction):
            hint = "; give of(module)" if isinstance(function, torch.nn.Module) else ""
            raise TypeError(f"assert_no_recompile watches fastjit functions, not a {type(function).__name__}{hint}")
    before = [f.stats() for f in functions]
    yield
    if disabled:
        return
    for function, was in zip(functions, before, strict=True):
        now = function.stats()
        name = getattr(function, "__qualname__", repr(function))
        if now.misses > was.misses:
            raise AssertionError(
                f"{name} had {now.misses - was.misses} calls that no variant served; explain(*args) says why"
            )
        new = {r: n - was.fallbacks.get(r, 0) for r, n in now.fallbacks.items() if n > was.fallbacks.get(r, 0)}
        if new:
            raise AssertionError(f"{name} ran eagerly: " + ", ".join(f"{n} times because {r}" for r, n in new.items()))
