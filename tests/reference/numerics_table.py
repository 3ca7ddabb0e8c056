"""Writes docs/numerics.md from math_bounds.json (of fj_math_errors) and eager_by_cpu.json (of eager_by_cpu.py)."""

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
HEAD = """# Accuracy of the elementary functions

Written by `python3 tests/reference/numerics_table.py` from `tests/reference/math_bounds.json` and `eager_by_cpu.json`
beside it; do not edit.

"Same results as eager" means this: `+`, `-`, `*`, `/`, comparisons and copies give eager's bits. The functions below,
and everything made of them, may differ from eager's in the last bits; FastJIT's are within the bound of the exact one.
Sums of f32 are added up in f64, so they may differ in the last bits too. Small products of matrices and small
convolutions are sums that kernels compute, in the tensors' own type, as the library does, in another order
([planning.md](planning.md)). What decides a branch on a tensor's value keeps eager's bits, but not what an `argmax` or
`multinomial` on the way to it picks from: a tie but for roundings may give another index in any case. A convolution
that another one follows runs in channels_last ([planning.md](planning.md)): its sums are those that eager has for
images in that layout, as far from the exact ones and with other last bits. Where gradients are computed, those whose
sums are long stay in eager's order, which is more exact. In a loop, a small product whose left
factors are all there before it is one product of the rows of all rounds, which the library may compute.
`@fastjit(verify=True)` allows for all that.

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


EAGER = """
## Where eager itself differs from CPU to CPU

Eager takes some functions from MKL and oneDNN, and these choose their code by the CPU; torch's own kernels have levels
too. So the last bits of eager hang on the machine. `tests/reference/eager_by_cpu.py` runs eager once for each level and
compares {count} values of each function and type bit for bit. This table was taken on {cpu},
with torch {torch}.

- A column is a level that was chosen by its variable: `ATEN_CPU_CAPABILITY=avx2`, `MKL_ENABLE_INSTRUCTIONS=AVX2` and
  `SSE4_2`, `ONEDNN_MAX_CPU_ISA=AVX2`. It says how many of the results differ from those of the CPU's best level.
- A CPU of another kind may differ in more: on an AMD EPYC with AVX2 (family 25, model 1) MKL's square root of f32,
  which eager takes, was not the rounded exact one for 290 of 2000 random numbers (27 November 2026); a hit's is.
- An error is in units of the last place, against mpmath, over {exact} of the values: at the best level, and the largest
  of all levels. It is left out where the exact result is a sum or a composition.

| function | type | {columns} | error | largest error |
|---|---|{rule}---|---|
"""
NOTES = """
Only with `ATEN_CPU_CAPABILITY=default`, which is torch for CPUs without AVX2 and FMA, where FastJIT compiles nothing,
these differ too: {default}.

The same bits at every level, for these values: {same}.

What follows for FastJIT:

- `sqrt`, and `pow` to the power 0.5, are correctly rounded (0.5 units), as IEEE 754 asks. Where MKL's last bit is off,
  eager's result is the farther one. `torch.tensor([2.0], dtype=torch.float64).sqrt()` is 1.414213562373095 with MKL's
  code for AVX-512, and 1.4142135623730951 with its code for AVX2 and with FastJIT.
- All other functions of this table are compared with eager within the bounds above, not bit for bit.
- A test that compares bit for bit accepts a root that is at least as near to the exact one as eager's
  (`tests/python/helpers/eager_cpu.py`), and accepts nothing else. `make test` runs a selection of the numeric tests at
  each of these levels, `make test-levels` runs all of them.
"""
DEFAULT = "torch default"


def eager_rows(measured: dict[str, Any]) -> str:
    levels = [level for level in measured["levels"] if level not in ("native", DEFAULT)]
    lines, default = [], {}
    for row in measured["rows"]:
        differ, errors = row["differ"], row.get("errors", {})
        if not any(differ[level] for level in levels):
            default.setdefault(row["function"], []).append(row["type"])
            continue
        cells = [f"{100 * differ[level]:.2g} %" if differ[level] else "" for level in levels]
        cells += [f"{errors['native']:.3f}", f"{max(errors.values()):.3f}"] if errors else ["", ""]
        lines.append(f"| {row['function']} | {row['type']} | {' | '.join(cells)} |\n")
    head = EAGER.format(columns=" | ".join(levels), rule="---|" * len(levels), **measured)
    names = ", ".join(f"{name} ({', '.join(types)})" for name, types in default.items())
    return head + "".join(lines) + NOTES.format(default=names, same=", ".join(measured["same"]))


def page() -> str:
    rows = json.loads((HERE / "math_bounds.json").read_text())
    lines = [
        f"| {r['function']} | {r['type']} | {r['isa']} | {r['bound']} | {r['max_ulp']:.3f} | {r['at']} "
        f"| {100 * r['over_half'] / r['count']:.2g} % | {r['count']} |\n"
        for r in rows
    ]
    eager = eager_rows(json.loads((HERE / "eager_by_cpu.json").read_text()))
    return HEAD + "".join(lines) + eager


def main() -> None:
    (HERE.parents[1] / "docs" / "numerics.md").write_text(page())


if __name__ == "__main__":
    main()
