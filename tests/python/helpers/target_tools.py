"""Plays a callable as the target of fastjit: three calls with two sets of arguments, each compared with eager."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import io
import itertools
import multiprocessing
import warnings
from collections.abc import Callable
from typing import Any

import torch

from error_bounds import Reference
from fastjit import fastjit
from opinfo_forms import Seen, closely, exactly, narrow, repeats, see
from opinfo_tools import difference
from target_cases import NOT_PLAYED, Call, is_played, pairs_of, targets

# Hand out memory that nobody wrote, or (least squares of deficient rank, by LAPACK) what hangs on the address of their
# memory: everything but values is compared. So is lobpcg, which of matrices that are not symmetric gives other values
# where its argument changes by a rounding.
UNREPEATABLE = frozenset(
    """empty empty_like empty_strided empty_permuted new_empty new_empty_strided resize_ resize_as_ new
    fbgemm_pack_gemm_matrix_fp16 lstsq lobpcg""".split()
)
# Iterate, and round otherwise from one address of their memory to the next.
TOLERATED = frozenset(["svd_lowrank"])
# Kinds of rows, the worst first.
KINDS = ("wrong", "hit", "eager", "raises", "class", "not played")


@dataclasses.dataclass(frozen=True)
class Row:
    """One target. `kind`: hit (some pair of calls ended in one), eager, raises (eager does), class or wrong."""

    target: str
    kind: str
    why: str = ""
    calls: int = 0

    def __str__(self) -> str:
        return f"{self.target}: {self.kind} {self.why}"


def _seen(function: Callable[..., Any], call: Call) -> tuple[Seen, str]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        return see(function, call), out.getvalue()


def _differs(name: str, function: Callable[..., Any], call: Call, got: Seen, want: Seen, kernels: bool) -> str:
    if got.error != want.error:
        return f"{got.error or 'no error'}, in eager {want.error or 'none'}"
    if got.form != want.form:
        lines = itertools.zip_longest(got.form, want.form)
        return "; ".join(f"{g}, in eager {w}" for g, w in lines if g != w)
    if not torch.equal(got.generator, want.generator):
        return "the generator is in another state"
    if name in UNREPEATABLE or not (found := exactly(got.values, want.values)):
        return ""
    if name in TOLERATED or (not kernels and not repeats(function, call, want)):
        return closely(narrow(got.values), narrow(want.values))
    return difference(got.values, want.values, Reference(function, *call)) if kernels else found


def play(name: str, function: Callable[..., Any], pair: tuple[Call, Call]) -> tuple[str, str]:
    """(kind, why) of the calls first, second, first."""
    fast = fastjit(on_unsupported="eager")(function)
    base = name.rpartition(".")[2]
    wants = [_seen(function, call) for call in pair]
    for number, which in enumerate((0, 1, 0), 1):
        got, printed = _seen(fast, pair[which])
        want, prints = wants[which]
        kernels = fast.stats().kernels > 0
        if found := _differs(base, function, pair[which], got, want, kernels):
            return "wrong", f"call {number} of {pair[which]}: {found}"
        if printed != prints:
            return "wrong", f"call {number} printed {printed!r}, in eager {prints!r}"
    stats = fast.stats()
    if stats.hits:
        return "hit", ""
    return ("raises", "") if wants[0][0].error else ("eager", next(iter(stats.fallbacks), "recorded each time"))


def row_of(name: str, function: Callable[..., Any]) -> Row:
    space, _, base = name.rpartition(".")
    if not is_played(space, base):
        return Row(name, "not played", NOT_PLAYED.get(base, ""))
    if isinstance(function, type):
        try:
            fastjit(function)
        except TypeError as error:
            return Row(name, "class", str(error))
        return Row(name, "wrong", "a class was taken")
    with contextlib.redirect_stdout(io.StringIO()):
        pairs = pairs_of(name, function)
    rows = []
    for pair in pairs:
        try:
            rows.append(Row(name, *play(name, function, pair), calls=3 * len(pairs)))
        except Exception as raised:
            rows.append(Row(name, "wrong", f"raised {type(raised).__name__}: {raised} for {pair}"))
    return min(rows, key=lambda row: KINDS.index(row.kind))


@functools.cache
def _all() -> list[tuple[str, Callable[..., Any]]]:
    return list(targets())


def _rows(index: int) -> Row:
    torch.set_num_threads(1)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return row_of(*_all()[index])


def sweep(processes: int = 2, every: int = 1) -> list[Row]:
    """A row of every target, or of one of so many, in order."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, context) as pool:
        return list(pool.map(_rows, range(0, len(_all()), every), chunksize=16))


def counted(rows: list[Row]) -> dict[str, int]:
    """How many targets of each kind, and calls of those that were played."""
    kinds = {kind: sum(row.kind == kind for row in rows) for kind in KINDS}
    return {**kinds, "calls": sum(row.calls for row in rows)}
