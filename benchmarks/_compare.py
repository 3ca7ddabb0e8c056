"""Rows of one case at several sizes against the best peer: shared by chains, fastswish and matmul_epilogue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import _harness as harness
from fastjit._bench import steady, table
from fastjit._bench.measure import Interval
from fastjit._bench.result import Result
from fastjit._bench.variants import BASELINE
from fastjit.bench import result_of

VARIANTS = ["eager", "torch.jit.trace", "torch.compile", "fastjit"]
COLUMNS = ["case", "size", *VARIANTS, "fastjit over best other [95 %]", "of copy bandwidth", "kernels/steps"]


def measured(title: str, fn: Callable[..., Any], args: tuple[Any, ...], options: harness.Options) -> Result:
    """All variants on the same inputs, checked and interleaved."""
    options.progress.title(title)
    inputs = steady.Inputs(args, {})
    plan = steady.Plan(options.rounds, 0.1 if options.quick else 1.0)
    rows = steady.compare_in_process(fn, steady.makers(fn, VARIANTS, inputs), inputs, plan, options.progress)
    return result_of(title, rows, BASELINE, fn, inputs)


def over_best(result: Result) -> Interval | None:
    peer = result.best_peer("fastjit")
    return result.speedup("fastjit", over=peer.name) if peer is not None else None


def copy_share(result: Result, name: str = "fastjit") -> float | None:
    row = result.row(name)
    rate = result.rate(row) if row is not None else None
    return rate / result.copy_rate if rate is not None and result.copy_rate else None


def line(result: Result, case: str, size: str) -> list[str]:
    cells = [case, size]
    for name in VARIANTS:
        row = result.row(name)
        cells.append("-" if row is None else table.seconds(row.median) if row.timed else row.status.upper())
    share = copy_share(result)
    ours = result.row("fastjit")
    counts = f"{ours.kernels}/{ours.steps}" if ours is not None and ours.kernels is not None else "-"
    return [*cells, table.interval(over_best(result)), "-" if share is None else f"{100 * share:.0f} %", counts]


def samples(result: Result) -> dict[str, Any]:
    return {row.name: harness.short(row.samples) if row.samples else (row.note or row.status) for row in result.rows}


def size_name(n: int) -> str:
    return f"{n // (1 << 20)}M" if n >= 1 << 20 else str(n)
