"""A fresh process of models.py: steady state, or peak memory, of one case. `ORDER` is JSON, the answer a file.

Peak memory. torch's allocator on the CPU is plain malloc, so what a call needs is what the process holds. malloc would
keep what is freed, and where a block lies among the holes of its heap is chance: by the pages that it touched, the same
eager call needed 0.8 to 1.3 of what it needed in the next process. So blocks from 32 KiB on are mapped one by one here,
for both variants, and their pages are gone when they are freed.
1. Model, inputs and libraries are loaded and eager is called, so that what is paid once (thread pools, packed weights
   of oneDNN) is paid; free heap goes back to the system. What the process now holds (VmRSS) is where counting starts.
2. The variant is built on that same module, without a copy of its weights, and called until it is warm. Kernels come
   from a full disk cache, so that no compiler is loaded. Then FastJIT's pool of warm memory and the free heap go back
   to the system. What is held now beyond the start is what the variant keeps: code, tables, results of weights.
3. Writing 5 to /proc/self/clear_refs sets the high-water mark (VmHWM) back to what is held, and the variant is called
   once more: the mark less what was held is what the call needs at most, the pool's own rounding up included. The
   least of three such calls counts, and of several processes, as another thread of the process only ever adds.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
from pathlib import Path
from typing import Any

M_MMAP_THRESHOLD, MAPPED_FROM = -3, 32 << 10
PEAK_CALLS = 3
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
    from fastjit._bench.load import load_case
    from fastjit._bench.variants import build
    from fastjit._bench.worker import status_bytes

    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MAPPED_FROM)
    case = load_case(spec)
    for _ in range(2):
        case.fn(*case.args, **case.kwargs)
    start = _settled(status_bytes)
    built = build(variant, case.fn, case.args, case.kwargs, own=False)
    for _ in range(WARM_CALLS):
        built.call(*case.args, **case.kwargs)
    peaks = []
    for _ in range(PEAK_CALLS):
        held = _settled(status_bytes)
        Path("/proc/self/clear_refs").write_text("5")
        built.call(*case.args, **case.kwargs)
        peaks.append(max(0, status_bytes("VmHWM") - held))
    return {"peak_bytes": min(peaks), "kept_bytes": max(0, held - start), "stats": built.stats()}


def _settled(status_bytes: Any) -> int:
    from fastjit import _C

    gc.collect()
    _C.pool_clear()
    ctypes.CDLL(None).malloc_trim(0)
    return int(status_bytes("VmRSS"))


def main(text: str) -> int:
    order = json.loads(text)
    import torch

    import fastjit  # noqa: F401  (loaded before anything is counted)
    from fastjit._bench.load import CaseSpec
    from fastjit._bench.variants import quiet

    report = Path(order["report"])
    spec = CaseSpec(**order["spec"])
    if order.get("threads"):
        torch.set_num_threads(order["threads"])
    try:
        with torch.no_grad(), quiet():
            if order["part"] == "steady":
                answer = steady(order, spec, order["variants"])
            else:
                answer = memory(order, spec, order["variant"])
        report.write_text(json.dumps(answer))
    except Exception as error:
        report.write_text(json.dumps({"error": f"{type(error).__name__}: {error}"[:300]}))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
