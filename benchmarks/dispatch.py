"""What does one call cost when there is next to nothing to compute?"""

from __future__ import annotations

import sys

import torch

import _harness as harness
from fastjit._bench import measure, table

ONE_OP = "one eager torch.mul"


def body(options: harness.Options) -> harness.Outcome:
    x, y = torch.randn(64), torch.randn(64)
    timers, missing = harness.ready("multiply_add", ["eager", "torch.jit.trace", "torch.compile", "fastjit"], n=64)
    timers = {ONE_OP: measure.make_timer(torch.mul, (x, y), {}), **timers}
    samples = harness.rounds_of(timers, options)

    def against(name: str) -> tuple[float | None, str]:
        if "fastjit" not in samples or name not in samples:
            return None, missing.get("fastjit", missing.get(name, ""))
        ratio = measure.ratio_interval(samples["fastjit"], samples[name])
        return ratio.value, f"95 % interval {table.figures(ratio.low)} to {table.figures(ratio.high)}"

    of_op, op_detail = against(ONE_OP)
    of_compile, compile_detail = against("torch.compile")
    rows = []
    for name, found in samples.items():
        low, middle, high = measure.quartiles(found)
        relative = middle / measure.quartiles(samples[ONE_OP])[1]
        rows.append([name, *map(table.seconds, (middle, low, high)), table.figures(relative)])
    rows += [[name, reason, "-", "-", "-"] for name, reason in missing.items()]
    return harness.Outcome(
        [
            harness.Target("call of x*y+1 on 64 floats over one eager torch.mul", 0.8, 0.4, of_op, detail=op_detail),
            harness.Target("the same call over torch.compile's", 1 / 20, 1 / 30, of_compile, detail=compile_detail),
        ],
        [harness.Sheet("x * y + 1 on 64 floats", ["variant", "median", "25 %", "75 %", f"over {ONE_OP}"], rows)],
        {name: harness.short(found) for name, found in samples.items()},
    )


if __name__ == "__main__":
    sys.exit(harness.run("dispatch", "Dispatch", __doc__ or "", body))
