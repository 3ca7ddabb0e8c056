"""A fresh process of models.py: steady state, or peak memory, of one case. `ORDER` is JSON, the answer a file.

Peak memory, with the means of _peak.py:
1. Model, inputs and libraries are loaded and eager is called, so that what is paid once (thread pools, packed weights
   of oneDNN) is paid; free heap goes back to the system. What the process now holds (VmRSS) is where counting starts.
2. The variant is built on that same module, without a copy of its weights, and called until it is warm. Kernels come
   from a full disk cache, so that no compiler is loaded. Then FastJIT's pool of warm memory and the free heap go back
   to the system. What is held now beyond the start is what the variant keeps: code, tables, results of weights.
3. The variant is called once more, three times, and the least that such a call needs at most counts; so does the least
   of several processes.
"""

from __future__ import annotations

import sys
from typing import Any

WARM_CALLS = 4


def steady(order: dict[str, Any], spec: Any, names: list[str]) -> dict[str, Any]:
    """All variants on the same inputs, checked against eager before any is timed, interleaved."""
    from fastjit._bench import machine, measure
    from fastjit._bench.load import load_case
    from fastjit._bench.progress import Progress
    from fastjit._bench.result import Result
    from fastjit._bench.steady import Inputs, Plan, compare_in_process, makers
    from fastjit._bench.variants import BASELINE

    case = load_case(spec)
    inputs = Inputs(case.args, case.kwargs)
    now = machine.describe()
    plan = Plan(order["rounds"], order["min_time"])
    rows = compare_in_process(case.fn, makers(case.fn, names, inputs), inputs, plan, Progress(False))
    answer = Result(spec.title, rows, BASELINE, now).to_dict()
    timed = {row.name: row.samples for row in rows if row.timed}
    ratios = {}
    for name, samples in timed.items():
        if "fastjit" in timed and name != "fastjit":
            found = measure.ratio_interval(samples, timed["fastjit"])
            ratios[name] = [found.low, found.value, found.high]
    return {"rows": answer["rows"], "over": ratios}


def memory(order: dict[str, Any], spec: Any, variant: str) -> dict[str, Any]:
    import _peak as peak
    from fastjit._bench.load import load_case
    from fastjit._bench.variants import build

    peak.map_blocks()
    case = load_case(spec)
    for _ in range(2):
        case.fn(*case.args, **case.kwargs)
    start = peak.held_bytes()
    built = build(variant, case.fn, case.args, case.kwargs, own=False)
    for _ in range(WARM_CALLS):
        built.call(*case.args, **case.kwargs)
    peak_bytes, held = peak.peak_of_calls(lambda: built.call(*case.args, **case.kwargs))
    return {"peak_bytes": peak_bytes, "kept_bytes": max(0, held - start), "stats": built.stats()}


def measure(order: dict[str, Any]) -> dict[str, Any]:
    import torch

    import fastjit  # noqa: F401  (loaded before anything is counted)
    from fastjit._bench.load import CaseSpec
    from fastjit._bench.variants import quiet

    spec = CaseSpec(**order["spec"])
    if order.get("threads"):
        torch.set_num_threads(order["threads"])
    with torch.no_grad(), quiet():
        if order["part"] == "steady":
            return steady(order, spec, order["variants"])
        return memory(order, spec, order["variant"])


if __name__ == "__main__":
    from fastjit._bench.worker import answer

    sys.exit(answer(sys.argv[1], measure))
