"""A result as text, as HTML and in one sentence."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from . import machine
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
        return f"{value / 1024:.0f} KB"
    return f"{value / (1 << 20):.{0 if value >= 100 << 20 else 1}f} MB"


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


def cells(result: Result) -> list[list[str]]:
    return [_cells(result, row) for row in result.rows]


def _cells(result: Result, row: Row) -> list[str]:
    error = f"{row.errors.max_abs:.2g} ({row.errors.max_ulp:.2g})" if row.errors is not None else NOTHING
    if row.status != "ok":
        word = {"wrong": "WRONG", "void": "VOID", "failed": "failed", "absent": "absent"}[row.status]
        gone = [NOTHING] * (len(HEADERS) - 6)
        compiles = str(row.compiles) if row.compiles else NOTHING
        first = [seconds(row.first_cold), seconds(row.first_warm)]
        return [row.name, *first, NOTHING, word, *gone[:4], compiles, NOTHING, error]
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
        NOTHING if pays is None else "never" if math.isinf(pays) else f"{count(math.ceil(pays))} calls",
        error,
    ]


def grid(result: Result) -> tuple[list[str], list[list[str]]]:
    """Header and cells without the columns nobody filled."""
    header = [text.format(base=result.baseline) for text in HEADERS]
    rows = cells(result)
    kept = [i for i in range(len(header)) if i == 0 or any(row[i] != NOTHING for row in rows)]
    return [header[i] for i in kept], [[row[i] for i in kept] for row in rows]


def align(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = []
    for row in [header, *rows]:
        first, rest = (
            row[0].ljust(widths[0]),
            [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)],
        )
        lines.append("  ".join([first, *rest]).rstrip())
    lines.insert(1, "-" * max(len(line) for line in lines))
    return "\n".join(lines)


def remarks(result: Result) -> list[str]:
    lines = [f"{row.name}: {row.note}" for row in result.rows if row.note]
    if result.copy_rate and result.clone_rate:
        lines.append(
            f"memory: {figures(result.copy_rate / 1e9)} GB/s copying as many bytes into warm memory, "
            f"{figures(result.clone_rate / 1e9)} GB/s with an allocating clone"
        )
    return lines + result.notes


def render(result: Result) -> str:
    parts = [result.title, align(*grid(result)), *remarks(result), machine.in_words(result.machine), verdict(result)]
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
        f"<p>{below}</p><p><b>{html.escape(verdict(result))}</b></p>"
    )


def verdict(result: Result) -> str:
    """The last line: who wins, by how much, and when it pays."""
    wrong = [row.name for row in result.rows if row.status == "wrong"]
    said = f"WRONG results from {', '.join(wrong)}. " if wrong else ""
    ours = result.row("fastjit")
    if ours is None or not ours.timed:
        return said + _winner_without_us(result, ours)
    peer = result.best_peer("fastjit")
    if peer is None:
        return said + f"fastjit takes {seconds(ours.median)} a call; there is nothing to compare it with."
    ratio = result.speedup("fastjit", over=peer.name)
    assert ratio is not None
    if ratio.holds_one():
        text = (
            f"fastjit ≈ {peer.name}: the interval of the ratio, {figures(ratio.low)} to {figures(ratio.high)}, holds 1."
        )
    elif ratio.value > 1:
        text = f"fastjit is {figures(ratio.value)} times as fast as the best other, {peer.name}."
    else:
        text = f"fastjit is slower: {peer.name} is {figures(1 / ratio.value)} times as fast."
    pays = result.break_even(ours)
    if pays is not None and math.isfinite(pays):
        text += f" Its first call is paid back after {count(math.ceil(pays))} calls."
    return said + text


def _winner_without_us(result: Result, ours: Row | None) -> str:
    timed = [row for row in result.rows if row.timed]
    if not timed:
        return "No variant could be timed."
    best = min(timed, key=lambda row: row.median)
    others = [row for row in timed if row is not best]
    text = f"{best.name} is fastest with {seconds(best.median)} a call"
    if others:
        second = min(others, key=lambda row: row.median)
        ratio = result.speedup(best.name, over=second.name)
        if ratio is not None and ratio.holds_one():
            text = f"{best.name} ≈ {second.name}: the interval of the ratio holds 1"
    return text + (f"; fastjit was not timed ({ours.status})." if ours is not None else ".")
