"""A result as text and as HTML."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from fastjit import _tables

from . import machine
from .check import Errors
from .measure import Interval
from .result import Result, Row

UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
SHARE_FROM_BYTES = 1 << 20  # below this a call's bytes fit the caches of any core: a rate says nothing
NOTHING = "-"


def seconds(value: float | None) -> str:
    """Three figures and a unit: 1.23 ms."""
    if value is None:
        return NOTHING
    for scale, unit in UNITS:
        if value >= scale * 0.9995 or unit == "ns":
            return f"{figures(value / scale)} {unit}"
    raise AssertionError("the table of units ends with ns")


def figures(value: float) -> str:
    """Three significant figures without an exponent."""
    if value == 0:
        return "0"
    rounded = float(f"{value:.3g}")
    digits = max(0, 2 - math.floor(math.log10(abs(rounded)) + 1e-9))
    return f"{rounded:.{min(digits, 6)}f}"


def count(value: float) -> str:
    return f"{value:,.0f}"


def size(value: int | None) -> str:
    if value is None:
        return NOTHING
    if value < 1 << 20:
        return f"{value / 1024:.0f} KiB"
    return f"{value / (1 << 20):.{0 if value >= 100 << 20 else 1}f} MiB"


def interval(ratio: Interval | None) -> str:
    """2.31x [2.20, 2.40]; led by ≈ when the interval holds 1."""
    if ratio is None:
        return NOTHING
    mark = "≈ " if ratio.holds_one() else ""
    return f"{mark}{figures(ratio.value)}x [{figures(ratio.low)}, {figures(ratio.high)}]"


HEADERS = (
    "variant", "first cold", "first warm", "dispatch", "median [25 %, 75 %]", "speed over {base} [95 %]",
    "GB/s (of copy)", "peak mem", "kernels/steps", "compiles", "pays after", "max error abs (ulp)",
)  # fmt: skip


# From so many units in the last place on, an error says only that the exact result is near zero.
MOST_ULPS = 10_000


def error(found: Errors | None) -> str:
    if found is None:
        return NOTHING
    if found.max_ulp >= MOST_ULPS:
        ulps = f"over {count(MOST_ULPS)}"
    else:
        ulps = f"{found.max_ulp:.2g}" if found.max_ulp < 10 else count(float(f"{found.max_ulp:.2g}"))
    return f"{found.max_abs:.2g} ({ulps})"


def cells(result: Result) -> list[list[str]]:
    return [_cells(result, row) for row in result.rows]


def _cells(result: Result, row: Row) -> list[str]:
    if row.status != "ok":
        word = {"wrong": "WRONG", "void": "VOID", "failed": "failed", "absent": "absent"}[row.status]
        gone = [NOTHING] * (len(HEADERS) - 6)
        compiles = str(row.compiles) if row.compiles else NOTHING
        first = [seconds(row.first_cold), seconds(row.first_warm)]
        return [row.name, *first, NOTHING, word, *gone[:4], compiles, NOTHING, error(row.errors)]
    low, high = row.band
    rate = result.rate(row)
    if result.traffic_bytes < SHARE_FROM_BYTES:
        rate = None
    share = f" ({100 * rate / result.copy_rate:.0f} %)" if rate is not None and result.copy_rate else ""
    pays = result.break_even(row)
    return [
        row.name,
        seconds(row.first_cold),
        seconds(row.first_warm),
        seconds(row.dispatch),
        f"{seconds(row.median)} [{seconds(low)}, {seconds(high)}]",
        interval(result.speedup(row.name)) if row.name != result.baseline else NOTHING,
        f"{figures(rate / 1e9)}{share}" if rate is not None else NOTHING,
        size(row.peak_bytes),
        f"{row.kernels}/{row.steps}" if row.kernels is not None else NOTHING,
        str(row.compiles),
        NOTHING if pays is None else "never" if math.isinf(pays) else _tables.several(math.ceil(pays), "call"),
        error(row.errors),
    ]


def grid(result: Result) -> tuple[list[str], list[list[str]]]:
    """Header and cells without the columns nobody filled."""
    header = [text.format(base=result.baseline) for text in HEADERS]
    rows = cells(result)
    kept = [i for i in range(len(header)) if i == 0 or any(row[i] != NOTHING for row in rows)]
    return [header[i] for i in kept], [[row[i] for i in kept] for row in rows]


def align(header: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """The table, a paragraph for each row where the terminal is too narrow for it."""
    return _tables.layout(header, rows, right=range(1, len(header)), width=width, rule=True)


def remarks(result: Result) -> list[str]:
    lines = [f"{row.name}: {row.note}" for row in result.rows if row.note]
    if result.copy_rate and result.clone_rate:
        lines.append(
            f"memory: {figures(result.copy_rate / 1e9)} GB/s copying as many bytes into warm memory, "
            f"{figures(result.clone_rate / 1e9)} GB/s with an allocating clone"
        )
    if any(row.errors is not None and row.errors.max_ulp >= MOST_ULPS for row in result.rows):
        lines.append(
            f"errors: against the same call in float64. Over {count(MOST_ULPS)} units in the last place (ulp) means "
            "that an exact result is almost zero, where any rounding is many ulp; the absolute error counts there"
        )
    return lines + result.notes


def render(result: Result) -> str:
    table = align(*grid(result), _tables.terminal_width())
    parts = [result.title, table, *remarks(result), machine.in_words(result.machine), result.verdict()]
    return "\n".join(parts)


def render_html(result: Result) -> str:
    header, rows = grid(result)

    def line(row: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    below = "<br>".join(html.escape(text) for text in [*remarks(result), machine.in_words(result.machine)])
    return (
        f"<table><caption>{html.escape(result.title)}</caption>"
        f"<thead>{line(header, 'th')}</thead><tbody>{body}</tbody></table>"
        f"<p>{below}</p><p><b>{html.escape(result.verdict())}</b></p>"
    )
