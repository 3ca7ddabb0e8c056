"""Timing: loops calibrated as timeit does, variants interleaved in rounds, ratios with bootstrap intervals."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from typing import Any

Timer = Callable[[int], float]  # N -> seconds for N calls

MIN_ROUNDS = 30
BLOCK_S = 1e-3  # one block of calls lasts at least this long: the clock's own cost stays under 0.01 %
BOOTSTRAP_RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """A value with its confidence interval."""

    low: float
    value: float
    high: float

    def holds_one(self) -> bool:
        return self.low <= 1.0 <= self.high


@dataclass(frozen=True)
class Bandwidth:
    """Measured bytes a second of `y.copy_(x)` into warm memory and of an allocating `x.clone()`."""

    copy: float
    clone: float


def make_timer(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Timer:
    """A loop compiled for this call: arguments are local names, so that neither unpacking nor a wrapper is timed."""
    places = [f"a{i}" for i in range(len(args))]
    named = [f"k{i}" for i in range(len(kwargs))]
    call = ", ".join(places + [f"{key}={name}" for key, name in zip(kwargs, named, strict=True)])
    source = (
        f"def bind({', '.join(['fn', 'clock', 'repeat', *places, *named])}):\n"
        f"    def run(n):\n"
        f"        loops = repeat(None, n)\n"
        f"        start = clock()\n"
        f"        for _ in loops:\n"
        f"            fn({call})\n"
        f"        return (clock() - start) * 1e-9\n"
        f"    return run\n"
    )
    namespace: dict[str, Any] = {}
    exec(compile(source, "<fastjit bench>", "exec"), namespace)
    run: Timer = namespace["bind"](fn, time.perf_counter_ns, repeat, *args, *kwargs.values())
    return run


def calibrate(timer: Timer, at_least_s: float = BLOCK_S, most: int = 10_000_000) -> int:
    """The first of 1, 2, 5, 10, 20, … whose loops last at least `at_least_s`."""
    scale = 1
    while True:
        for step in (1, 2, 5):
            n = scale * step
            if timer(n) >= at_least_s or n >= most:
                return n
        scale *= 10


@contextmanager
def quiet_gc() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def rounds_for(round_s: float, budget_s: float, least: int = MIN_ROUNDS, most: int = 500) -> int:
    """How many rounds fill the budget, never fewer than `least`."""
    return max(least, min(most, int(budget_s / max(round_s, 1e-9))))


def interleave(
    timers: Mapping[str, Timer],
    loops: Mapping[str, int],
    rounds: int,
    before: Callable[[str], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, list[float]]:
    """Seconds a call, one sample a variant and round; every second round runs in the opposite order.

    A call that is not timed comes before each sample: the threads of the variant before go on spinning for some
    milliseconds after its last parallel region (torch.compile's are of another OpenMP runtime than torch's), and a call
    of 13 ms took 17 right after it.
    """
    samples: dict[str, list[float]] = {name: [] for name in timers}
    names = list(timers)
    with quiet_gc():
        for index in range(rounds):
            for name in names if index % 2 == 0 else reversed(names):
                for timed in (False, True):
                    if before is not None:
                        before(name)
                    if not timed:
                        timers[name](1)
                samples[name].append(timers[name](loops[name]) / loops[name])
            if progress is not None:
                progress(index + 1)
    return samples


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """25 %, median, 75 %."""
    if len(samples) == 1:
        return samples[0], samples[0], samples[0]
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return low, middle, high


def ratio_interval(base: Sequence[float], other: Sequence[float], confidence: float = 0.95) -> Interval:
    """median(base) / median(other) with a bootstrap interval over rounds: rounds are drawn whole, so drift cancels."""
    import torch

    both = torch.tensor([list(base), list(other)], dtype=torch.float64)
    count = both.shape[1]
    value = statistics.median(base) / statistics.median(other)
    if count < 2:
        return Interval(value, value, value)
    draw = torch.randint(count, (BOOTSTRAP_RESAMPLES, count), generator=torch.Generator().manual_seed(0))
    medians = both[:, draw].quantile(0.5, dim=2)
    tail = (1 - confidence) / 2
    low, high = (medians[0] / medians[1]).quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return Interval(min(low, value), value, max(high, value))


def bandwidth(total_bytes: int, rounds: int = 9) -> Bandwidth:
    """Copy and clone of a buffer whose read and write together move `total_bytes`."""
    import torch

    source = torch.zeros(max(total_bytes // 8, 1024), dtype=torch.float32).add_(1)
    target = torch.zeros_like(source)
    moved = 2 * source.numel() * 4
    timers = {"copy": make_timer(target.copy_, (source,), {}), "clone": make_timer(source.clone, (), {})}
    for timer in timers.values():
        timer(3)
    loops = {name: calibrate(timer) for name, timer in timers.items()}
    samples = interleave(timers, loops, rounds)
    return Bandwidth(moved / statistics.median(samples["copy"]), moved / statistics.median(samples["clone"]))
