"""One comparison inside this process: build, check, warm up, time in rounds."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from . import check, machine, measure
from .errors import BenchError
from .progress import Progress
from .result import Row
from .variants import OPTIONAL, Absent, Built, build, quiet

CHECKED_CALLS = 3  # the first call may run eagerly, the next ones must not differ
WARM_UP_S = 0.05
Make = Callable[[], Built]


@dataclass
class Inputs:
    """Arguments of one call, with a way back for those that the function changes."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def whole(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return self.args, self.kwargs

    def copy(self) -> Inputs:
        return Inputs(*copy.deepcopy(self.whole))


@dataclass(frozen=True)
class Plan:
    """How long to measure."""

    rounds: int = measure.MIN_ROUNDS
    budget_s: float = 1.0  # for all rounds of a case; `rounds` are made even when they take longer


def makers(fn: Callable[..., Any], names: list[str], inputs: Inputs) -> dict[str, Make]:
    return {name: lambda name=name: build(name, fn, inputs.args, inputs.kwargs) for name in names}  # type: ignore[misc]


def compare_in_process(
    fn: Callable[..., Any], makes: Mapping[str, Make], inputs: Inputs, plan: Plan, progress: Progress
) -> list[Row]:
    """Rows in the order of `makes`; `fn` is the eager function whose results count as right."""
    with torch.no_grad(), quiet():
        try:
            eager = check.run_once(fn, *inputs.whole)
        except Exception as error:
            raise BenchError(f"the function raised {type(error).__name__}: {_first_line(error)}") from error
        progress.say("the same call in float64, for the errors", detail=True)
        exact = check.reference(fn, *inputs.whole)
        changes_inputs = check.mutates(inputs.whole, eager)
        rows: list[Row] = []
        built: dict[str, Built] = {}
        for name, make in makes.items():
            progress.say(f"building and checking {name}")
            row, ready = _prepare(name, make, inputs, eager, exact)
            if row is None:
                continue
            rows.append(row)
            if ready is not None and row.status == "ok":
                built[name] = ready
        _time(rows, built, inputs, changes_inputs, plan, progress)
    return rows


def _prepare(
    name: str, make: Make, inputs: Inputs, eager: check.Outcome, exact: check.Outcome | None
) -> tuple[Row | None, Built | None]:
    try:
        ready = make()
        outcomes = [check.run_once(ready.call, *inputs.whole) for _ in range(CHECKED_CALLS)]
    except Absent as reason:
        return Row(name, "absent", str(reason)), None
    except Exception as error:  # a compiler under test may raise anything
        if name in OPTIONAL:
            return None, None
        return Row(name, "failed", f"{type(error).__name__}: {_first_line(error)}"), None
    row = Row(name)
    row.errors = check.errors(outcomes[-1], exact) if exact is not None and _alike(outcomes[-1], exact) else None
    for number, outcome in enumerate(outcomes, start=1):
        problem = check.explain_difference(outcome, eager, exact)
        if problem is not None:
            row.status, row.note = "wrong", f"call {number}, {problem}"
            break
    return row, ready


def _alike(outcome: check.Outcome, exact: check.Outcome) -> bool:
    ours, theirs = outcome.results + outcome.arguments, exact.results + exact.arguments
    return len(ours) == len(theirs) and all(
        not isinstance(want, torch.Tensor) or (isinstance(got, torch.Tensor) and got.shape == want.shape)
        for got, want in zip(ours, theirs, strict=True)
    )


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")[:160]


def _time(
    rows: list[Row],
    built: Mapping[str, Built],
    inputs: Inputs,
    changes_inputs: bool,
    plan: Plan,
    progress: Progress,
) -> None:
    """All variants get the same argument objects, restored before each block when the function writes to them."""
    own = inputs.copy()
    restore = check.restorer(own.whole) if changes_inputs else None
    timers = {name: measure.make_timer(ready.call, own.args, own.kwargs) for name, ready in built.items()}
    loops = {}
    for name, timer in timers.items():
        progress.say(f"warming up {name}", detail=True)
        if restore is not None:
            restore()
        _warm_up(timer)
        loops[name] = measure.calibrate(timer)
    before = {name: ready.compiles() for name, ready in built.items()}
    hits = {name: _hits(ready) for name, ready in built.items()}
    round_s = sum(timer(loops[name]) for name, timer in timers.items())
    rounds = measure.rounds_for(round_s, plan.budget_s, plan.rounds)
    progress.say(f"timing, {rounds} rounds of about {round_s:.2g} s")
    neighbours = machine.Neighbours()
    samples = measure.interleave(
        timers,
        loops,
        rounds,
        None if restore is None else lambda name: restore(),
        lambda done: progress.say(f"timing, round {done} of {rounds}", detail=True),
    )
    others = neighbours.cores_busy()
    for row in rows:
        if row.name not in built:
            continue
        ready = built[row.name]
        row.others = others
        row.samples, row.loops = samples[row.name], loops[row.name]
        row.compiles = ready.compiles() - before[row.name]
        row.eager = hits[row.name] is not None and _hits(ready) == hits[row.name]
        if row.compiles:
            row.status = "void"
        counts = ready.counts()
        if counts is not None:
            row.kernels, row.steps = counts
        row.note = ready.note() or row.note


def _hits(ready: Built) -> int | None:
    stats = ready.stats()
    return int(stats["hits"]) if stats is not None and "hits" in stats else None


def _warm_up(timer: measure.Timer) -> None:
    """Profiling executors specialise in their first calls; keep on for a while, at least three calls."""
    spent = timer(3)
    for _ in range(50):
        if spent >= WARM_UP_S:
            return
        spent += timer(10)


def traffic_bytes(fn: Callable[..., Any], inputs: Inputs) -> int:
    """Bytes one call must move: each input (and parameter) read once, each result written once."""
    with torch.no_grad():
        before = check.run_once(fn, *inputs.whole)
    read = check.tensors(inputs.whole)
    if isinstance(fn, torch.nn.Module):
        read += [*fn.parameters(), *fn.buffers()]
    written = [leaf for leaf in before.results if isinstance(leaf, torch.Tensor)]
    if check.mutates(inputs.whole, before):
        written += [
            new
            for old, new in zip(check.leaves(inputs.whole), before.arguments, strict=True)
            if isinstance(old, torch.Tensor) and not check.same(old, new)
        ]
    return sum(distinct_bytes(tensor) for tensor in read + written)


def distinct_bytes(tensor: torch.Tensor) -> int:
    """Bytes of the elements, an expanded dimension counted once."""
    elements = 1
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= length if stride != 0 else min(length, 1)
    return elements * tensor.element_size()
