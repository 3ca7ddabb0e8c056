"""Random programs in eager and under fastjit: results, aliasing and writes compared, failures minimised."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import torch

from fastjit import fastjit
from helpers import torch_threads
from random_programs import Maker, Program, copy_all, memory_of
from shadows import Replay


def aliasing(outputs: Any, arguments: list[torch.Tensor]) -> list[tuple[Any, ...]]:
    """Per output: which argument it is, which earlier tensor it shares memory with, and how it lies there."""
    everything = [*arguments, *outputs]
    memory = [memory_of(t) for t in everything]
    pattern = []
    for i, t in enumerate(everything):
        first = memory.index(memory[i])
        same = next(k for k, o in enumerate(everything) if o is t)
        shared = memory.count(memory[i]) > 1
        pattern.append(
            (
                first,
                same,
                t.storage_offset() if shared else 0,
                t.stride(),
                t.dtype,
                t.shape,
                t._version,
            )
        )
    return pattern


@dataclasses.dataclass
class Result:
    wrong: str = ""
    fallback: str = ""


def compare(program: Program, inputs: list[torch.Tensor], decorate: Callable[..., Any] | None = None) -> Result:
    """One program in eager and twice under fastjit, or what `decorate` makes of it."""
    function = program.function()
    want_args = copy_all(inputs)
    want = function(*want_args, program.number)
    pattern = aliasing(want, want_args)
    fast = (decorate or fastjit(on_unsupported="eager"))(program.function())
    replay = Replay(function, lambda: copy_all(inputs), program.number)
    for call in (1, 2):
        args = copy_all(inputs)
        got = fast(*args, program.number)
        if aliasing(got, args) != pattern:
            return Result(f"call {call}: aliasing {aliasing(got, args)} is not {pattern}")
        for k, (g, w) in enumerate(zip([*got, *args], [*want, *want_args], strict=True)):
            if torch.equal(g, w) or bool(((g == w) | ((g != g) & (w != w))).all()):
                continue
            what = f"output {k}" if k < len(got) else f"argument {k - len(got)}"
            name = [*program.outputs, *program.arguments][k]
            if name not in program.tainted:
                off = (g.double() - w.double()).abs().max()
                return Result(f"call {call}: {what} ({name}) differs by {off:.3g} where every step is exact")
            if why := replay.wrong(k, g, w):
                return Result(f"call {call}: {what} ({name}) differs by {why}")
        stats = fast.stats()
        if stats.fallbacks:
            return Result(fallback=next(iter(stats.fallbacks)))
    if stats.hits != 1:
        return Result(f"{stats.hits} hits after two calls")
    return Result()


def failure(program: Program, inputs: list[torch.Tensor]) -> str:
    """What is wrong with a program, or nothing; a program that eager refuses is not wrong."""
    try:
        program.function()(*copy_all(inputs), program.number)
    except Exception:
        return ""
    try:
        return compare(program, inputs).wrong
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"


def minimised(program: Program, inputs: list[torch.Tensor]) -> Program:
    """Fewer lines and outputs that still fail."""
    changed = True
    while changed:
        changed = False
        for part in ("lines", "outputs"):
            items = getattr(program, part)
            for i in reversed(range(len(items))):
                if part == "outputs" and len(items) == 1:
                    break
                smaller = dataclasses.replace(program, **{part: items[:i] + items[i + 1 :]})
                if failure(smaller, inputs):
                    program, items, changed = smaller, getattr(smaller, part), True
    return program


def report(program: Program, inputs: list[torch.Tensor]) -> str:
    small = minimised(program, inputs)
    shapes = ", ".join(
        f"{n}: {t.dtype} {list(t.shape)} strides {t.stride()}" for n, t in zip(small.arguments, inputs, strict=True)
    )
    return f"seed {program.seed}: {failure(small, inputs)}\n{small.source()}{shapes}; s = {small.number}\n"


def check_seeds(seeds: range) -> tuple[list[str], dict[str, int]]:
    """(failures with minimised programs, reasons of calls that ran eagerly)."""
    wrong: list[str] = []
    fallbacks: dict[str, int] = {}
    with warnings.catch_warnings(), torch_threads(1):  # the tensors are too small to share out
        warnings.simplefilter("ignore")
        for seed in seeds:
            result = Result()
            try:
                program, inputs = Maker(seed).make()
                result = compare(program, inputs)
                text = report(program, inputs) if result.wrong else ""
            except Exception as error:
                text = f"seed {seed}: raised {type(error).__name__}: {error}\n"
            if text:
                wrong.append(text)
            elif result.fallback:
                fallbacks[result.fallback] = fallbacks.get(result.fallback, 0) + 1
    return wrong, fallbacks
