"""Writes docs/numerics.md from tests/reference/math_bounds.json (the output of fj_math_errors)."""

import json
from pathlib import Path

HERE = Path(__file__).parent
HEAD = """# Accuracy of the elementary functions

Written by `python3 tests/reference/numerics_table.py` from `tests/reference/math_bounds.json`; do not edit.

"Same results as eager" means this: `+`, `-`, `*`, `/`, comparisons and copies give eager's bits. The functions below,
and everything made of them, may differ from eager's in the last bits; FastJIT's are within the bound of the exact one.
Sums of f32 are added up in f64, so they may differ in the last bits too. `@fastjit(verify=True)` allows for that.

An error is |result - exact| in units of the last place of the exact result, rounding included (0.5: correctly rounded).
`fj_math_errors` (target of the CMake build, tests/fuzz/exhaustive_math.cpp) measures it on this machine's ISA levels:
without arguments over all 2^32 floats of every unary function; with `--step N` over every Nth bit pattern. References
are the C library's double functions for f32 and its long double functions for f64. "Inputs" says how many values stand
behind a maximum: 4294967296 is all floats; every smaller figure is a sample, which bounds nothing between its points.
Below 2^-126 (2^-1022) sigmoid promises that as an absolute error, counted as its bound.

Float functions without an algorithm of their own are the double function, rounded.

| function | type | ISA | bound | measured maximum | at | over 0.5 | inputs |
|---|---|---|---|---|---|---|---|
"""


def main() -> None:
    rows = json.loads((HERE / "math_bounds.json").read_text())
    lines = [
        f"| {r['function']} | {r['type']} | {r['isa']} | {r['bound']} | {r['max_ulp']:.3f} | {r['at']} "
        f"| {100 * r['over_half'] / r['count']:.2g} % | {r['count']} |\n"
        for r in rows
    ]
    (HERE.parents[1] / "docs" / "numerics.md").write_text(HEAD + "".join(lines))


if __name__ == "__main__":
    main()
