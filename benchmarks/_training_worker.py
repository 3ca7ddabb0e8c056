"""A fresh process of training_quality.py: the peak memory of one program's step by one variant. `ORDER` is JSON, the
answer a file.

As _model_worker.py does for calls, with the means of _peak.py. Eager's steps come first, so that what is paid once is
paid, the optimizer's state included; then those of the variant, on the same model. Gradients are let go before each
step, as zero_grad() does it, so what a step needs includes those that it leaves behind.
"""

from __future__ import annotations

import sys
from typing import Any

EAGER_STEPS, WARM_STEPS = 2, 6


def memory(name: str, variant: str) -> dict[str, Any]:
    import torch

    import _peak as peak
    import _training_programs as programs

    peak.map_blocks()
    program = next(one for one in programs.PROGRAMS if one.name == name)
    torch.manual_seed(0)
    model = program.make()
    x = torch.randn(*(program.large or program.sizes))
    step, fast = programs.step_of(program, model, model), None
    for _ in range(EAGER_STEPS):
        step(x)
    model.zero_grad()
    start = peak.held_bytes()
    if variant == "fastjit":
        step, fast = programs.fast_step(program, model)
    for _ in range(WARM_STEPS):
        model.zero_grad()
        step(x)
    hits = fast.stats().hits if fast else 0
    peak_bytes, held = peak.peak_of_calls(lambda: step(x), model.zero_grad)
    answer = {"peak_bytes": peak_bytes, "kept_bytes": max(0, held - start), "all_hits": True, "fallbacks": {}}
    if fast:
        answer["all_hits"] = fast.stats().hits - hits == peak.PEAK_CALLS
        answer["fallbacks"] = dict(fast.stats().fallbacks)
    return answer


def measure(order: dict[str, Any]) -> dict[str, Any]:
    import torch

    from fastjit._bench.variants import quiet

    if order.get("threads"):
        torch.set_num_threads(order["threads"])
    with quiet():
        return memory(order["program"], order["variant"])


if __name__ == "__main__":
    from fastjit._bench.worker import answer

    sys.exit(answer(sys.argv[1], measure))
