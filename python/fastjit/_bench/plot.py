"""Medians with their 25-75 % band as a picture."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .errors import BenchError
from .machine import in_words
from .result import Result, Row


def check(path: str) -> None:
    """Says before anything is measured why no picture could be written to `path`."""
    pyplot = _pyplot()
    place = Path(path)
    kinds = pyplot.figure().canvas.get_supported_filetypes()
    pyplot.close()
    if place.suffix.lower().removeprefix(".") not in kinds:
        raise BenchError(f"--plot {path!r}: the name must end with one of {', '.join('.' + kind for kind in kinds)}")
    if place.is_dir() or not place.parent.is_dir():
        why = "is a folder" if place.is_dir() else f"there is no folder '{place.parent}'"
        raise BenchError(f"--plot {path!r}: {why}")
    if not os.access(place if place.exists() else place.parent, os.W_OK):
        raise BenchError(f"--plot {path!r}: it cannot be written")


def draw(results: Sequence[Result], path: str) -> None:
    """Writes the picture."""
    figure = picture(results)
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise BenchError(f"--plot {path!r}: {error}") from error
    finally:
        _pyplot().close(figure)


def picture(results: Sequence[Result]) -> Any:
    """Lines over the first swept name, or one mark a variant without a sweep; the machine below."""
    figure, axes = _pyplot().subplots(figsize=(8, 5), layout="constrained")
    swept = next(iter(results[0].values), None)
    if swept is not None and len(results) > 1:
        _draw_sweep(axes, results, swept)
    else:
        _draw_marks(axes, results[0])
    axes.set_yscale("log")
    axes.set_ylabel("time per call [µs], median with 25-75 % band")
    axes.set_title(results[0].title.partition(" (")[0])
    axes.grid(True, which="both", alpha=0.3)
    figure.supxlabel("\n".join(textwrap.wrap(in_words(results[0].machine), 120)), fontsize=7)
    return figure


def _pyplot() -> Any:
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError as error:
        raise BenchError("--plot needs matplotlib; install it with: pip install matplotlib") from error
    return pyplot


def _draw_sweep(axes: Any, results: Sequence[Result], swept: str) -> None:
    names = list(dict.fromkeys(row.name for result in results for row in result.rows))
    for name in names:
        found: list[tuple[Any, Row]] = []
        for result in results:
            row = result.row(name)
            if row is not None and row.timed:
                found.append((result.values[swept], row))
        if not found:
            continue
        at = [value for value, _ in found]
        (line,) = axes.plot(at, [row.median * 1e6 for _, row in found], marker="o", label=name)
        low, high = [row.band[0] * 1e6 for _, row in found], [row.band[1] * 1e6 for _, row in found]
        axes.fill_between(at, low, high, alpha=0.25, color=line.get_color())
    if all(isinstance(result.values[swept], (int, float)) and result.values[swept] > 0 for result in results):
        axes.set_xscale("log")
    at = list(dict.fromkeys(result.values[swept] for result in results))
    axes.set_xticks(at, [str(value) for value in at])
    axes.minorticks_off()
    axes.set_xlabel(swept)
    axes.legend()


def _draw_marks(axes: Any, result: Result) -> None:
    rows = [row for row in result.rows if row.timed]
    medians = [row.median * 1e6 for row in rows]
    below = [(row.median - row.band[0]) * 1e6 for row in rows]
    above = [(row.band[1] - row.median) * 1e6 for row in rows]
    axes.errorbar([row.name for row in rows], medians, yerr=[below, above], fmt="o", capsize=6)
