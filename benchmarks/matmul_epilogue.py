"""Do matrix products with arithmetic around them beat the library call followed by eager ops?"""

from __future__ import annotations

import sys

import _compare
import _harness as harness
from fastjit._bench.load import CaseSpec, load_case

SIZES = (128, 256, 512, 1024)
CASES = (("scaled_product", "mm(x.t(), y)*100+10"), ("linear_gelu", "linear+gelu"))


def body(options: harness.Options) -> harness.Outcome:
    outcome = harness.Outcome()
    rows = []
    for name, title in CASES:
        for n in SIZES[:1] if options.quick else SIZES:
            case = load_case(CaseSpec(harness.CASES, name, values={"n": n}))
            result = _compare.measured(f"{title} {n}", case.fn, case.args, options)
            rows.append(_compare.line(result, title, str(n)))
            outcome.samples[f"{name}/{n}"] = _compare.samples(result)
            ratio = _compare.over_best(result)
            what = f"{title} at {n}, times as fast as the best of eager, jit, compile"
            outcome.targets.append(harness.Target(what, 1.0, 1.3, ratio.value if ratio else None, "higher"))
    outcome.sheets.append(harness.Sheet("Products with an epilogue", _compare.COLUMNS, rows))
    return outcome


if __name__ == "__main__":
    sys.exit(harness.run("matmul_epilogue", "Matmul epilogues", __doc__ or "", body))
