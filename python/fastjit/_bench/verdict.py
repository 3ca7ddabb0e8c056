"""What a comparison comes to, in a sentence or two: who is faster, how sure that is, and when the first call pays."""

from __future__ import annotations

import math

from fastjit import _tables

from .measure import Interval
from .result import Result, Row
from .table import figures, seconds

# With more of the machine in other hands, or times that spread wider, a ratio says as much about the neighbours.
MOST_BUSY = 0.1  # of the cores
MOST_LOAD = 2.0  # a core, where what others use is not known: the load counts own work too
MOST_SPREAD = 0.3  # of the median, from quarter to quarter


def verdict(result: Result) -> str:
    """The last line of a table."""
    wrong = [row.name for row in result.rows if row.status == "wrong"]
    said = f"WRONG results from {', '.join(wrong)}. " if wrong else ""
    ours = result.row("fastjit")
    if ours is None or not ours.timed:
        return said + _without_us(result, ours)
    if ours.eager:
        return said + (
            f"fastjit ran no timed call as a program, so its {seconds(ours.median)} a call are eager's"
            + (f": {ours.note}." if ours.note else ".")
        )
    peer = result.best_peer("fastjit")
    if peer is None:
        return said + f"fastjit takes {seconds(ours.median)} a call; there is nothing to compare it with."
    text = _compared(result, ours, peer, f"fastjit is {{ratio}} times as fast as the best other, {peer.name}")
    pays = result.break_even(ours)
    if pays is not None and math.isfinite(pays) and noise(result, ours, peer) is None:
        text += f" Its first call is paid back after {_tables.several(math.ceil(pays), 'call')}."
    return said + text


def noise(result: Result, *rows: Row) -> str | None:
    """Why these rows should not be compared; None on a machine that was quiet while they were timed."""
    busy, cores = result.machine.get("others"), result.machine["cores"]
    if busy is not None and busy > MOST_BUSY * cores:
        return f"other programs kept {busy:.1f} of {cores} cores busy meanwhile"
    if busy is None and result.machine["load"][0] > MOST_LOAD * cores:
        return f"the load was {result.machine['load'][0]:g} on {cores} cores"
    for row in rows:
        low, high = row.band
        if high - low > MOST_SPREAD * row.median:
            spread = 100 * (high - low) / row.median
            return f"the times of {row.name} spread by {spread:.0f} % (middle half of the rounds)"
    return None


def _compared(result: Result, row: Row, peer: Row, faster: str) -> str:
    """`faster` holds {ratio}; said when `row` is faster and the machine was quiet."""
    ratio = result.speedup(row.name, over=peer.name)
    assert ratio is not None
    reason = noise(result, row, peer)
    if reason is not None:
        return (
            f"No winner: {reason}. {_times(peer)} / {_times(row)} = {_sure(result, ratio)}. "
            "Measure again on a quiet machine."
        )
    if ratio.holds_one():
        return f"{row.name} ≈ {peer.name}: the ratio of their times may be 1 ({_interval(result, ratio)})."
    if ratio.value > 1:
        return f"{faster.format(ratio=figures(ratio.value))} ({_interval(result, ratio)})."
    back = Interval(1 / ratio.high, 1 / ratio.value, 1 / ratio.low)
    return f"{row.name} is slower: {peer.name} is {figures(back.value)} times as fast ({_interval(result, back)})."


def _times(row: Row) -> str:
    return f"{row.name} {seconds(row.median)}"


def _sure(result: Result, ratio: Interval) -> str:
    return f"{figures(ratio.value)} ({_interval(result, ratio)})"


def _interval(result: Result, ratio: Interval) -> str:
    load, cores = result.machine["load"][0], result.machine["cores"]
    return f"95 % interval {figures(ratio.low)} to {figures(ratio.high)}, load {load:g} on {cores} cores"


def _without_us(result: Result, ours: Row | None) -> str:
    timed = sorted((row for row in result.rows if row.timed), key=lambda row: row.median)
    if not timed:
        return "No variant could be timed."
    best = timed[0]
    takes = f"{seconds(best.median)} a call"
    text = f"{best.name} takes {takes}."
    if len(timed) > 1:
        fastest = f"{best.name} is fastest with {takes}, {{ratio}} times as fast as {timed[1].name}"
        text = _compared(result, best, timed[1], fastest)
    return text + (f" fastjit was not timed ({ours.status})." if ours is not None else "")
