"""Do matrix products with arithmetic around them beat the library call followed by eager ops?"""

from __future__ import annotations

import sys

import _compare
import _harness as harness
from fastjit._bench.load import CaseSpec, load_case

SIZES = (128, 256, 512, 1024)
FEW_ROWS = tuple((rows, *shape) for shape in ((256, 256), (256, 1024), (768, 768)) for rows in (1, 4, 16))
CASES = (("scaled_product", "mm(x.t(), y)*100+10"), ("linear_gelu", "linear+gelu"))


def few_rows(outcome: harness.Outcome, options: harness.Options) -> None:
    """A layer on a few rows, as decoding and small batches have it."""
    lines, ratios = [], []
    for rows, inner, columns in FEW_ROWS[:1] if options.quick else FEW_ROWS:
        sizes = {"rows": rows, "inner": inner, "columns": columns}
        case = load_case(CaseSpec(harness.CASES, "linear_gelu", values=sizes, args_name="few_rows_args"))
        title = f"linear+gelu, {rows} x {inner} to {columns}"
        result = _compare.measured(title, case.fn, case.args, options)
        lines.append(_compare.line(result, title, str(rows)))
        outcome.samples[f"few_rows/{rows}x{inner}x{columns}"] = _compare.samples(result)
        ratio = _compare.over_best(result)
        ratios += [ratio.value] if ratio else []
    what = f"linear+gelu on 1 to 16 rows, {len(ratios)} products, the least: times as fast as the best peer"
    outcome.targets.append(harness.Target(what, 1.0, 1.3, min(ratios) if ratios else None, "higher"))
    outcome.sheets.append(harness.Sheet("Products of few rows", _compare.COLUMNS, lines))


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
    few_rows(outcome, options)
    return outcome


if __name__ == "__main__":
    sys.exit(harness.run("matmul_epilogue", "Matmul epilogues", __doc__ or "", body))
