"""FastSwish as its author wrote it, with two masked stores: how much faster does it get, and how near to hardswish?"""

from __future__ import annotations

import sys

import _compare
import _harness as harness
from fastjit._bench.load import CaseSpec, load_case

SIZES = ((64, 10, 30), (4096, 10, 20), (4 << 20, 25, 50))  # n, must, aim: times as fast as the best peer
HARDSWISH_AIM = 1.2


def body(options: harness.Options) -> harness.Outcome:
    outcome = harness.Outcome()
    rows = []
    for n, must, aim in SIZES[:2] if options.quick else SIZES:
        medians = {}
        for name in ("fastswish", "hardswish"):
            case = load_case(CaseSpec(harness.CASES, name, values={"n": n}))
            result = _compare.measured(f"{name} {_compare.size_name(n)}", case.fn, case.args, options)
            rows.append(_compare.line(result, name, _compare.size_name(n)))
            outcome.samples[f"{name}/{n}"] = _compare.samples(result)
            ours = result.row("fastjit")
            if ours is not None and ours.timed:
                medians[name] = ours.median
            if name == "fastswish":
                ratio = _compare.over_best(result)
                what = f"FastSwish at {_compare.size_name(n)}, times as fast as the best peer"
                outcome.targets.append(harness.Target(what, must, aim, ratio.value if ratio else None, "higher"))
        near = medians["fastswish"] / medians["hardswish"] if len(medians) == 2 else None
        what = f"FastSwish over FastJIT's own hardswish at {_compare.size_name(n)}"
        outcome.targets.append(harness.Target(what, None, HARDSWISH_AIM, near))
    outcome.sheets.append(harness.Sheet("FastSwish and hardswish", _compare.COLUMNS, rows))
    return outcome


if __name__ == "__main__":
    sys.exit(harness.run("fastswish", "FastSwish", __doc__ or "", body))
