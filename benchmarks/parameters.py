"""What does a number or a size that a call never had before cost, in a place where they differ from call to call?"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import _harness as harness
from fastjit import fastjit
from fastjit._bench import measure, table

KNOWN, NEW = "the same number at each call", "another number at each call"
KNOWN_SIZES, NEW_SIZES = "four sizes in turn", "64 sizes in turn"
SIZES = range(32, 96)  # elements; none is among the last four when it comes again, and all are in cache
NUMBERS = 10_000
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9},
    "Adam": {},
    "AdamW": {},
    "RMSprop": {},
    "Adagrad": {},
}


class Box:
    k = 0.0


def numbers_of(values: Iterator[float], x: torch.Tensor) -> tuple[Callable[[], Any], Any]:
    """Calls `x * box.k + 1` with the next number in box.k each time; and the compiled function."""
    box = Box()

    @fastjit
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * box.k + 1

    def call() -> torch.Tensor:
        box.k = next(values)
        return f(x)

    for box.k in (0.5, 0.25):  # a constant of the first program, a parameter of the second
        f(x)
    assert torch.equal(call(), x * box.k + 1) and f.stats().hits == 1, f.stats()
    return call, f


def hits_of_numbers(options: harness.Options) -> dict[str, list[float]]:
    x = torch.randn(64)
    known, f = numbers_of(itertools.repeat(0.75), x)
    new, g = numbers_of(itertools.cycle([1 + i / NUMBERS for i in range(NUMBERS)]), x)
    timers = {KNOWN: measure.make_timer(known, (), {}), NEW: measure.make_timer(new, (), {})}
    samples = harness.rounds_of(timers, options)
    for function in (f, g):
        assert function.stats().misses == 2 and not function.stats().fallbacks, function.stats()
    return samples


def sizes_of(sizes: list[int]) -> tuple[Callable[[], Any], Any]:
    """Calls `x * y + 1` with tensors of the next size each time; and the compiled function."""
    tensors = itertools.cycle([(torch.randn(n), torch.randn(n)) for n in sizes])

    @fastjit
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * y + 1

    def call() -> torch.Tensor:
        x, y = next(tensors)
        return f(x, y)

    for n in (8, 9, 10):
        x, y = torch.randn(n), torch.randn(n)
        assert torch.equal(f(x, y), x * y + 1)
    return call, f


def hits_of_sizes(options: harness.Options) -> dict[str, list[float]]:
    known, f = sizes_of([40, 56, 72, 88])
    new, g = sizes_of(torch.randperm(len(SIZES), generator=torch.Generator().manual_seed(0)).add(SIZES[0]).tolist())
    timers = {KNOWN_SIZES: measure.make_timer(known, (), {}), NEW_SIZES: measure.make_timer(new, (), {})}
    samples = harness.rounds_of(timers, options)
    for function in (f, g):
        assert function.stats().misses == 2 and not function.stats().fallbacks, function.stats()
    return samples


def stepping(name: str) -> tuple[Callable[[], Any], Any]:
    """A step under a scheduler: a learning rate of its own each time."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 4))
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=1e-3, foreach=True, **OPTIMIZERS[name])
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    [group] = optimizer.param_groups
    rates = itertools.cycle([1e-3 / (1 + i) for i in range(NUMBERS)])
    return lambda: group.update(lr=next(rates)), (optimizer, model)


def steps(name: str, options: harness.Options) -> tuple[list[float], list[float], list[int]]:
    """Seconds of a step in eager and as a program, and which of the first ten steps of the program were hits."""
    (rate, (optimizer, model)), (twin_rate, (twin, other)) = stepping(name), stepping(name)
    fast = fastjit(twin.step)
    hits = []

    def eager() -> None:
        rate()
        optimizer.step()

    def program() -> None:
        twin_rate()
        fast()

    for _ in range(10):
        before = fast.stats().hits
        eager(), program()
        hits.append(fast.stats().hits - before)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q)
    samples = harness.rounds_of(
        {"eager": measure.make_timer(eager, (), {}), "fastjit": measure.make_timer(program, (), {})}, options
    )
    assert not fast.stats().fallbacks, fast.stats()
    return samples["eager"], samples["fastjit"], hits


def body(options: harness.Options) -> harness.Outcome:
    found = hits_of_numbers(options)
    ratio = measure.ratio_interval(found[NEW], found[KNOWN])
    rows = [[name, *map(table.seconds, measure.quartiles(seconds))] for name, seconds in found.items()]
    sizes = hits_of_sizes(options)
    sized = measure.ratio_interval(sizes[NEW_SIZES], sizes[KNOWN_SIZES])
    size_rows = [[name, *map(table.seconds, measure.quartiles(seconds))] for name, seconds in sizes.items()]
    samples = {name: harness.short(seconds) for name, seconds in (found | sizes).items()}
    optimizers, speedups = [], []
    first_hit = 0
    for name in OPTIMIZERS:
        eager, fast, hits = steps(name, options)
        first = next(i for i in range(len(hits)) if all(hits[i:])) + 1
        first_hit = max(first_hit, first)
        speedups.append(statistics.median(eager) / statistics.median(fast))
        optimizers.append(
            [name, *(table.seconds(statistics.median(s)) for s in (eager, fast)), f"{speedups[-1]:.1f}", str(first)]
        )
        samples |= {f"{name}, eager": harness.short(eager), f"{name}, fastjit": harness.short(fast)}
    return harness.Outcome(
        [
            harness.Target(
                "a hit with a number never seen over one with a known number",
                1.1,
                1.0,
                ratio.value,
                detail=f"95 % interval {table.figures(ratio.low)} to {table.figures(ratio.high)}",
            ),
            harness.Target(
                "a hit of one kernel with a size that is none of the last four: longer than one with one of these",
                100e-9,
                None,
                statistics.median(sizes[NEW_SIZES]) - statistics.median(sizes[KNOWN_SIZES]),
                unit="s",
                detail=f"{table.figures(sized.value)} times, 95 % interval {table.figures(sized.low)} to "
                f"{table.figures(sized.high)}",
            ),
            harness.Target(
                "steps of torch.optim with another learning rate each: the first that hits, as all after it",
                3,
                None,
                first_hit,
            ),
            harness.Target(
                "such a step, times as fast as eager's foreach form: the slowest optimizer",
                2,
                4,
                min(speedups),
                "higher",
            ),
        ],
        [
            harness.Sheet("x * box.k + 1 on 64 floats", ["box.k", "25 %", "median", "75 %"], rows),
            harness.Sheet("x * y + 1 on 32 to 95 floats", ["sizes", "25 %", "median", "75 %"], size_rows),
            harness.Sheet(
                "Linear(64, 64), Linear(64, 64), Linear(64, 4), foreach=True",
                ["step", "eager", "fastjit", "times as fast", "first hit"],
                optimizers,
            ),
        ],
        samples,
    )


if __name__ == "__main__":
    sys.exit(harness.run("parameters", "Parameters", __doc__ or "", body))
