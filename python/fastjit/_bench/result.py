"""What a comparison found: one row a variant, printable and serialisable."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from .check import Errors
from .measure import Interval, quartiles, ratio_interval

Status = Literal["ok", "wrong", "void", "failed", "absent"]


@dataclass
class Row:
    """One variant of one case. Times in seconds a call; None where it was not measured."""

    name: str
    status: Status = "ok"
    note: str | None = None
    samples: list[float] = field(default_factory=list)
    loops: int = 0
    others: float | None = None  # cores that other programs kept busy while this was timed
    tiny_samples: list[float] = field(default_factory=list)
    first_cold: float | None = None
    first_warm: float | None = None
    peak_bytes: int | None = None
    kernels: int | None = None
    steps: int | None = None
    compiles: int = 0  # compilations while timing
    eager: bool = False  # fastjit's row: none of the timed calls was a hit, so its times are eager's
    errors: Errors | None = None

    @property
    def timed(self) -> bool:
        return self.status == "ok" and bool(self.samples)

    @property
    def median(self) -> float:
        return quartiles(self.samples)[1]

    @property
    def band(self) -> tuple[float, float]:
        low, _, high = quartiles(self.samples)
        return low, high

    @property
    def dispatch(self) -> float | None:
        return quartiles(self.tiny_samples)[1] if self.tiny_samples else None


@dataclass
class Result:
    """A finished comparison. `print(result.table())`, `result.to_dict()`, or show it in a notebook."""

    title: str
    rows: list[Row]
    baseline: str
    machine: dict[str, Any]
    traffic_bytes: int = 0  # what one call must read and write
    copy_rate: float | None = None  # bytes/s into warm memory
    clone_rate: float | None = None  # bytes/s of an allocating clone
    values: dict[str, Any] = field(default_factory=dict)  # the point of a sweep
    notes: list[str] = field(default_factory=list)

    def row(self, name: str) -> Row | None:
        return next((row for row in self.rows if row.name == name), None)

    @property
    def base(self) -> Row | None:
        found = self.row(self.baseline)
        return found if found is not None and found.timed else None

    @property
    def wrong(self) -> bool:
        return any(row.status == "wrong" for row in self.rows)

    def speedup(self, name: str, over: str | None = None) -> Interval | None:
        """How many times faster `name` is than `over` (the baseline unless named)."""
        row, base = self.row(name), self.row(over or self.baseline)
        if row is None or base is None or not row.timed or not base.timed:
            return None
        return ratio_interval(base.samples, row.samples)

    def best_peer(self, name: str) -> Row | None:
        """The fastest row other than `name`."""
        peers = [row for row in self.rows if row.name != name and row.timed]
        return min(peers, key=lambda row: row.median) if peers else None

    def break_even(self, row: Row) -> float | None:
        """Calls after which the first call is paid back; infinity when it never is."""
        base = self.base
        if base is None or not row.timed or row.first_cold is None or row.name == self.baseline:
            return None
        saved = base.median - row.median
        return math.inf if saved <= 0 else max(0.0, (row.first_cold - base.median) / saved)

    def rate(self, row: Row) -> float | None:
        """Bytes a second that the call moved at least."""
        return self.traffic_bytes / row.median if row.timed and self.traffic_bytes else None

    def table(self) -> str:
        from .table import render

        return render(self)

    def verdict(self) -> str:
        from .verdict import verdict

        return verdict(self)

    def _repr_html_(self) -> str:
        from .table import render_html

        return render_html(self)

    def __str__(self) -> str:
        return self.table()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, raw samples included."""
        return {
            "schema": "fastjit.bench/1",
            "title": self.title,
            "values": self.values,
            "baseline": self.baseline,
            "machine": self.machine,
            "traffic_bytes": self.traffic_bytes,
            "copy_bytes_per_s": self.copy_rate,
            "clone_bytes_per_s": self.clone_rate,
            "notes": self.notes,
            "verdict": self.verdict(),
            "rows": [self._row_dict(row) for row in self.rows],
        }

    def _row_dict(self, row: Row) -> dict[str, Any]:
        ratio = self.speedup(row.name)
        pays = self.break_even(row)
        return {
            "name": row.name,
            "status": row.status,
            "note": row.note,
            "median_s": row.median if row.samples else None,
            "band_s": list(row.band) if row.samples else None,
            "speedup": [ratio.low, ratio.value, ratio.high] if ratio else None,
            "dispatch_s": row.dispatch,
            "first_cold_s": row.first_cold,
            "first_warm_s": row.first_warm,
            "bytes_per_s": self.rate(row),
            "peak_bytes": row.peak_bytes,
            "kernels": row.kernels,
            "steps": row.steps,
            "compiles_while_timing": row.compiles,
            "ran_eagerly": row.eager,
            "break_even_calls": pays if pays is None or math.isfinite(pays) else "never",
            "max_abs_error": row.errors.max_abs if row.errors else None,
            "max_ulp_error": row.errors.max_ulp if row.errors else None,
            "loops": row.loops,
            "samples_s": [float(f"{value:.5g}") for value in row.samples],
            "dispatch_samples_s": [float(f"{value:.5g}") for value in row.tiny_samples],
        }
