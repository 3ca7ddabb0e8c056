"""Random programs in eager and under fastjit: results, aliasing and writes compared, failures minimised."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import torch

from error_bounds import Draw, sum_bound, widest
from fastjit import fastjit
from random_programs import Maker, Program, copy_all


def aliasing(outputs: Any, arguments: list[torch.Tensor]) -> list[tuple[Any, ...]]:
    """Per output: which argument it is, which earlier tensor it shares memory with, and how it lies there."""
    everything = [*arguments, *outputs]
    pattern = []
    for i, t in enumerate(everything):
        pointer = t.untyped_storage().data_ptr()
        first = next(k for k, o in enumerate(everything) if o.untyped_storage().data_ptr() == pointer or k == i)
        same = next(k for k, o in enumerate(everything) if o is t)
        shared = sum(o.untyped_storage().data_ptr() == pointer for o in everything) > 1
        pattern.append(
            (
                first,
                same,
                t.storage_offset() if shared else 0,
                t.stride(),
                t.dtype,
                t.shape,
                t._version if i < len(arguments) else 0,
            )
        )
    return pattern


def bounds(program: Program, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Per result and argument: how far moving each rounding by a unit of its own and of the largest moves it."""

    def run(draw: Draw) -> list[torch.Tensor]:
        def move(t: torch.Tensor, eps: float, magnitude: torch.Tensor | None, terms: int) -> None:
            by = eps * (t.abs() + t.abs().max()) if t.numel() else 0.0
            draw.move(t, by if magnitude is None else by + sum_bound(terms + 1, eps, magnitude))

        copies = copy_all(inputs, torch.float64)
        return [*program.function(True, _move=move)(*copies, program.number), *copies]

    return widest(run)


@dataclasses.dataclass
class Result:
    wrong: str = ""
    fallback: str = ""


def compare(program: Program, inputs: list[torch.Tensor]) -> Result:
    """One program in eager and twice under fastjit."""
    function = program.function()
    want_args = copy_all(inputs)
    want = function(*want_args, program.number)
    pattern = aliasing(want, want_args)
    fast = fastjit(on_unsupported="eager")(function)
    allowed: list[torch.Tensor] | None = None
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
            off = (g.double() - w.double()).abs()
            if name not in program.tainted:
                return Result(f"call {call}: {what} ({name}) differs by {off.max():.3g} where every step is exact")
            if allowed is None:
                allowed = bounds(program, inputs)
            unit = torch.finfo(w.dtype).eps * w.double().abs().max()
            over = off - (4 * allowed[k].amax() + 4 * unit)
            if not bool((over <= 0).all()):
                return Result(
                    f"call {call}: {what} ({name}) differs by {off.max():.3g}, bound {4 * allowed[k].max() + 4 * unit:.3g}"  # noqa: E501
                )
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in seeds:
            program, inputs = Maker(seed).make()
            try:
                result = compare(program, inputs)
            except Exception as error:
                result = Result(f"raised {type(error).__name__}: {error}")
            if result.wrong:
                wrong.append(report(program, inputs))
            elif result.fallback:
                fallbacks[result.fallback] = fallbacks.get(result.fallback, 0) + 1
    return wrong, fallbacks
