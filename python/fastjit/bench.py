"""Compare a function's variants side by side: `fastjit.compare`, and what `fastjit bench` runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ._bench import firstcall, machine, measure, steady, table, tiny
from ._bench.errors import BenchError
from ._bench.load import CaseSpec, load_case, plain
from ._bench.progress import Progress
from ._bench.result import Result, Row
from ._bench.variants import BASELINE, BUILDERS, Built, read_stats

__all__ = ["BenchError", "Result", "Row", "bench", "compare"]


def compare(
    variants: Mapping[str, Callable[..., Any]] | Callable[..., Any],
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    rounds: int = measure.MIN_ROUNDS,
    min_time: float = 1.0,
    baseline: str | None = None,
    progress: bool | None = None,
) -> Result:
    """Checks and times `variants` on the same arguments, interleaved, under torch.no_grad().

    variants: {"eager": f0, "fastjit": f}; the one named "eager", else the first, says what is right. A single function
        is compared eagerly and under torch.jit.trace, torch.jit.script, torch.compile and fastjit.
    progress: False for none, True for plain lines also where standard error is no terminal.
    rounds, min_time: at least so many rounds, and more until so many seconds are spent.
    First calls need fresh processes and therefore a file: see `fastjit bench FILE.py::fn`.
    """
    inputs = steady.Inputs(_as_tuple(args), dict(kwargs or {}))
    if callable(variants):
        fn = plain(variants)
        makes = steady.makers(fn, list(BUILDERS), inputs)
        base = BASELINE
    else:
        base = _baseline(variants, baseline)
        fn = variants[base]
        makes = {name: lambda call=call: _given(call) for name, call in variants.items()}  # type: ignore[misc]
    title = getattr(fn, "__name__", type(fn).__name__)
    now = machine.describe()
    with Progress(progress) as shown:
        rows = steady.compare_in_process(fn, makes, inputs, steady.Plan(_positive("rounds", rounds), min_time), shown)
    return result_of(title, rows, base, fn, inputs, now)


def bench(
    spec: CaseSpec,
    *,
    names: list[str],
    tiny_args: str | None = None,
    rounds: int = measure.MIN_ROUNDS,
    min_time: float = 1.0,
    threads: int | None = None,
    first_calls: bool = True,
    dispatch: bool = True,
    progress: Progress | None = None,
) -> Result:
    """All columns for one case: `fastjit bench FILE.py::fn` at one point of its sweep."""
    import torch

    shown = progress or Progress(False)
    shown.title(spec.title)
    if threads:
        torch.set_num_threads(threads)
    with torch.no_grad():
        case = load_case(spec)
    inputs = steady.Inputs(case.args, case.kwargs)
    plan = steady.Plan(rounds, min_time)
    now = machine.describe()
    rows = steady.compare_in_process(case.fn, steady.makers(case.fn, names, inputs), inputs, plan, shown)
    result = result_of(spec.title, rows, BASELINE, case.fn, inputs, now)
    result.values = dict(spec.values)
    if dispatch:
        shown.title(f"{spec.title}, tiny input")
        _fill_dispatch(result, spec, tiny_args, inputs, plan, shown)
        shown.title(spec.title)
    if first_calls:
        firstcall.fill(rows, spec, BASELINE, threads, shown)
    return result


def _fill_dispatch(
    result: Result, spec: CaseSpec, tiny_args: str | None, inputs: steady.Inputs, plan: steady.Plan, shown: Progress
) -> None:
    """Times the rows again on small inputs: given ones, else the inputs cut down."""
    if tiny_args is not None:
        case = load_case(CaseSpec(spec.path, spec.name, tiny_args, spec.setup, spec.values))
        fn, small = case.fn, steady.Inputs(case.args, case.kwargs)
    else:
        fn = load_case(spec).fn
        found = tiny.tiny_inputs(fn, inputs.args, inputs.kwargs)
        if found is None:
            result.notes.append('dispatch: the function takes no cut-down inputs; give --tiny-args "torch.randn(4, 4)"')
            return
        small = steady.Inputs(*found)
    names = [row.name for row in result.rows if row.timed]
    for row in steady.compare_in_process(fn, steady.makers(fn, names, small), small, plan, shown):
        of = result.row(row.name)
        if of is not None and row.timed:
            of.tiny_samples = row.samples
        elif of is not None:
            result.notes.append(
                f"dispatch of {row.name}: {row.status} on tiny inputs" + (f", {row.note}" if row.note else "")
            )


def result_of(
    title: str,
    rows: list[Row],
    base: str,
    fn: Callable[..., Any],
    inputs: steady.Inputs,
    before: dict[str, Any] | None = None,
) -> Result:
    """`before`: the machine as it was before the rows were timed, so that its load is that of others."""
    busy = [row.others for row in rows if row.others is not None]
    result = Result(title, rows, base, {**(before or machine.describe()), "others": max(busy, default=None)})
    result.traffic_bytes = steady.traffic_bytes(fn, inputs)
    if result.traffic_bytes >= table.SHARE_FROM_BYTES:
        rates = measure.bandwidth(result.traffic_bytes)
        result.copy_rate, result.clone_rate = rates.copy, rates.clone
    return result


def _given(call: Callable[..., Any]) -> Built:
    """A callable the user made; one of FastJIT's tells its own counts."""
    if not callable(getattr(call, "stats", None)):
        return Built(call)

    def counts() -> tuple[int, int]:
        now = read_stats(call)
        return int(now["kernels"]), int(now["steps"])

    return Built(call, lambda: int(read_stats(call).get("compiles", 0)), counts)


def _baseline(variants: Mapping[str, Callable[..., Any]], asked: str | None) -> str:
    if not variants:
        raise BenchError("compare: no variants; give {'eager': f0, 'fastjit': f}")
    for name, call in variants.items():
        if not callable(call):
            raise BenchError(f"compare: variant '{name}' is {type(call).__name__}, not a function")
    name = asked or (BASELINE if BASELINE in variants else next(iter(variants)))
    if name not in variants:
        raise BenchError(f"compare: baseline '{name}' is not one of {', '.join(variants)}")
    return name


def _as_tuple(args: Any) -> tuple[Any, ...]:
    if not isinstance(args, (tuple, list)):
        raise BenchError(f"compare: args is {type(args).__name__}; give a tuple, args=(x,)")
    return tuple(args)


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise BenchError(f"compare: {name}={value}; give at least 1")
    return value


def isolate_caches(root: str) -> None:
    """Benchmarks never touch the user's caches: call before torch's compiler or the extension is loaded."""
    os.environ.update(firstcall.cache_environment(root))
