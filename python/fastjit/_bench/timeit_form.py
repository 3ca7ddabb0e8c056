"""`fastjit bench [-n N] [-r R] [-s SETUP] [-v] STMT`, as `python -m timeit` does it."""

from __future__ import annotations

import re
import sys
import time
import timeit
import traceback
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from .errors import BenchError

UNITS = {"nsec": 1e-9, "usec": 1e-6, "msec": 1e-3, "sec": 1.0}


@dataclass(frozen=True)
class Order:
    statement: str
    setup: str
    number: int | None = None
    repeats: int = 5
    verbose: int = 0
    process_time: bool = False
    unit: str | None = None
    values: dict[str, Any] = field(default_factory=dict)


def in_unit(seconds: float, unit: str | None) -> str:
    chosen = unit or next((name for name in reversed(UNITS) if seconds >= UNITS[name]), "nsec")
    return f"{seconds / UNITS[chosen]:.3g} {chosen}"


def measure(order: Order) -> dict[str, Any]:
    """Runs the statement; {"number": N, "raw": [seconds of N loops, …]}, exactly `repeats` of them.
    Code that names torch or fastjit runs under torch.no_grad()."""
    timer = timeit.Timer(order.statement, order.setup, _clock(order), globals={**order.values})
    with _no_grad(f"{order.setup}\n{order.statement}"):
        number = order.number or _calibrate(timer, order)
        raw = timer.repeat(order.repeats, number)
    return {"number": number, "raw": raw, "best_s": min(raw) / number, "values": order.values}


def render(order: Order, found: dict[str, Any]) -> str:
    number, raw = found["number"], found["raw"]
    lines = []
    if order.verbose:
        digits = [in_unit(value, order.unit) for value in raw]
        lines.append("raw times: " + ", ".join(digits) + "\n")
    loops = "loop" if number == 1 else "loops"
    per_loop = [value / number for value in raw]
    best, worst = min(per_loop), max(per_loop)
    lines.append(f"{number} {loops}, best of {order.repeats}: {in_unit(best, order.unit)} per loop")
    if worst >= 4 * best:
        lines.append(
            f"The results are likely unreliable: the worst time ({in_unit(worst, order.unit)}) was more than four "
            f"times slower than the best ({in_unit(best, order.unit)})."
        )
    return "\n".join(lines)


def run(order: Order) -> dict[str, Any]:
    """As `measure`; an exception of the statement is shown with its own source lines."""
    try:
        return measure(order)
    except SyntaxError as error:
        raise BenchError(f"STMT or -s SETUP is not Python: {error}") from error
    except Exception as error:
        lines = traceback.format_exception_only(type(error), error)
        raise BenchError(f"STMT or -s SETUP raised {''.join(lines).strip()}") from error


def _clock(order: Order) -> Any:
    return time.process_time if order.process_time else time.perf_counter


def _no_grad(source: str) -> Any:
    if not re.search(r"\b(torch|fastjit)\b", source):
        return nullcontext()
    import torch

    return torch.no_grad()


def _calibrate(timer: timeit.Timer, order: Order) -> int:
    def said(number: int, seconds: float) -> None:
        if order.verbose > 1:
            plural = "s" if number != 1 else ""
            print(f"{number} loop{plural} -> {in_unit(seconds, order.unit)}", file=sys.stderr)

    number, _ = timer.autorange(said)
    return number
