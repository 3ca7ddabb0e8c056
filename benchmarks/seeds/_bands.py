"""Times of the rounds over a value of the programs, with their 5, 50 and 95 percentiles: a table and a picture."""

from __future__ import annotations

import statistics
from typing import Any

import _harness as harness
from _program import Program
from fastjit._bench import table

NAMES = ("eager", "torch.jit", "torch.compile", "fastjit")
Band = tuple[float, float, float]
Results = dict[str, dict[str, Any]]


def band(samples: list[float]) -> Band:
    twentieths = statistics.quantiles(samples, n=20, method="inclusive")
    return twentieths[0], twentieths[9], twentieths[18]


def bands(programs: list[Program], results: Results, over: str) -> dict[str, dict[str, Band]]:
    """Of each program that has the value, a band a variant."""
    return {
        program.name: {
            name: band(results[program.name][name]["samples"])
            for name in NAMES
            if len(results[program.name].get(name, {}).get("samples", ())) > 1
        }
        for program in programs
        if over in program.values
    }


def sheet(programs: list[Program], results: Results, over: str) -> harness.Sheet:
    rows = [
        [name, *(" / ".join(map(table.seconds, found[one])) if one in found else "-" for one in NAMES)]
        for name, found in bands(programs, results, over).items()
    ]
    return harness.Sheet(f"Over the {over}: 5 / 50 / 95 percentile of the rounds", ["program", *NAMES], rows)


def draw(programs: list[Program], results: Results, over: str, path: str) -> None:
    """A picture a form, which is the function that makes the program."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = bands(programs, results, over)
    forms = list(dict.fromkeys(program.make for program in programs if program.name in found))
    figure, axes = pyplot.subplots(1, len(forms), figsize=(5 * len(forms), 4), layout="constrained", squeeze=False)
    for place, form in zip(axes[0], forms, strict=True):
        of_form = [program for program in programs if program.make is form and program.name in found]
        for name in NAMES:
            at = [program for program in of_form if name in found[program.name]]
            if not at:
                continue
            low, middle, high = ([found[one.name][name][i] * 1e6 for one in at] for i in range(3))
            values = [one.values[over] for one in at]
            (line,) = place.plot(values, middle, marker="o", label=name)
            place.fill_between(values, low, high, alpha=0.25, color=line.get_color())
        place.set(xlabel=over, yscale="log", title=of_form[0].name.partition(", ")[2])
    axes[0][0].set_ylabel("µs a call, 5, 50 and 95 percentile")
    axes[0][0].legend()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
