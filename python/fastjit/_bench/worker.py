"""The fresh process of firstcall.py: `python -m fastjit._bench.worker ORDER`, ORDER being JSON."""

from __future__ import annotations

import copy
import ctypes
import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

EAGER_CALLS = 5
LATER_CALLS = 5


def answer(text: str, measure: Callable[[dict[str, Any]], dict[str, Any]]) -> int:
    """Writes what `measure` finds, or the error, to the file `report` of the order; what the process ends with."""
    order = json.loads(text)
    report = Path(order["report"])
    try:
        report.write_text(json.dumps(measure(order)))
    except Exception as error:
        report.write_text(json.dumps({"error": f"{type(error).__name__}: {error}"[:300]}))
        return 1
    return 0


def measure(order: dict[str, Any]) -> dict[str, Any]:
    import torch

    from .load import CaseSpec, load_case
    from .variants import build, quiet

    if order["threads"]:
        torch.set_num_threads(order["threads"])
    case = load_case(CaseSpec(**order["spec"]))
    variant = order["variant"]
    if variant == "fastjit":
        from fastjit import fastjit  # noqa: F401  (loading the extension is a figure of its own)

    def timed_call(call: Any) -> float:
        args, kwargs = copy.deepcopy((case.args, case.kwargs))
        start = time.perf_counter()
        call(*args, **kwargs)
        return time.perf_counter() - start

    with torch.no_grad(), quiet():
        # Eager's own first call loads libraries and starts threads: paid before, only the variant's cost is left.
        eager = [timed_call(case.fn) for _ in range(0 if variant == "eager" else EAGER_CALLS)]
        args, kwargs = copy.deepcopy((case.args, case.kwargs))
        start = time.perf_counter()
        built = build(variant, case.fn, args, kwargs, own=False)
        built.call(*args, **kwargs)
        first = time.perf_counter() - start
        later = min(timed_call(built.call) for _ in range(LATER_CALLS))
        peak = peak_of(lambda: built.call(*args, **kwargs))
    return {
        "first_s": first,
        "later_s": later,
        "eager_s": min(eager) if eager else later,
        "peak_bytes": peak,
        "stats": built.stats(),
    }


def peak_of(call: Any) -> int | None:
    """Resident bytes that one call needed at most beyond what was there before; None where the kernel does not say.
    Free heap goes back to the system first, so that reuse of it does not hide what the call needs."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
        before = status_bytes("VmRSS")
        call()
        return max(0, status_bytes("VmHWM") - before)
    except (OSError, AttributeError, KeyError):
        return None


def status_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    raise KeyError(name)


if __name__ == "__main__":
    sys.exit(answer(sys.argv[1], measure))
