"""What each folder's programs must reach and should: a row names its programs and what is measured of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import _figures as figures
import _harness as harness
from _figures import Found

Figure = Callable[[Found], float | None]
Results = dict[str, Found]
RECURRENT = ("LSTM", "NASRNN", "seq2seq", "Attention")
DETECTION = ("YOLOv3", "SSD", "YOLACT", "FCOS")
OVER = "times as fast as the best of the others"


@dataclass(frozen=True)
class Row:
    """One target: the worst of its programs, unless `whole` makes one value of all of them."""

    what: str
    programs: tuple[str, ...]
    figure: Figure
    must: float | None
    aim: float | None
    better: str = "lower"
    unit: str = "ratio"
    whole: Callable[[list[float]], float] | None = None
    note: Callable[[Results], str] = lambda results: ""  # behind the name of the worst

    def target(self, results: Results) -> harness.Target:
        """Nothing is measured where a program was not run, or has no figure: then the detail names it."""
        found = {name: results[name] for name in self.programs if name in results}
        values = {name: self.figure(one) for name, one in found.items()}
        there = {name: value for name, value in values.items() if value is not None}
        if len(there) < len(self.programs):
            without = ", ".join(name for name in values if name not in there)
            return self.of(None, f"no figure of {without}" if there and without else "")
        if self.whole is not None:
            return self.of(self.whole(list(there.values())), self.note(found))
        target = harness.worst(self.what, there, self.must, self.aim, better=self.better, unit=self.unit)
        named = target.detail if len(self.programs) > 1 else ""
        return self.of(target.measured, "; ".join(filter(None, [named, self.note(found)])))

    def of(self, measured: float | None, detail: str) -> harness.Target:
        return harness.Target(self.what, self.must, self.aim, measured, self.better, self.unit, detail)


def over_best(
    what: str,
    programs: tuple[str, ...],
    must: float | None,
    aim: float | None,
    whole: Callable[[list[float]], float] | None = None,
) -> Row:
    how = "geometric mean" if whole else "least"
    text = f"{what}: {OVER}" + (f", {how}" if len(programs) > 1 else "")
    return Row(text, programs, figures.over_best, must, aim, better="higher", whole=whole, note=not_there)


def not_there(results: Results) -> str:
    """The array libraries that were to be among the others and were not."""
    missing = {
        name
        for found in results.values()
        for name, one in found.items()
        if name in ("numpy", "numba", "jax") and "absent" in one
    }
    return f"without {', '.join(sorted(missing))}" if missing else ""


def functional(module: ModuleType) -> list[Row]:
    deep = {depth: named(module, depth=depth) for depth in (250, 1000)}
    first = "1000 Linear(4, 4): first call beyond eager's, longest"
    return [
        over_best("250 and 1000 Linear(4, 4)", deep[250] + deep[1000], 50, 100),
        Row(first, deep[1000], figures.first_beyond_eager, 0.060, 0.030, unit="s"),
        over_best("ResNet on 16, 32 and 64 px", tuple(f"ResNet, {side} px, batch 4" for side in (16, 32, 64)), 1, 1.5),
    ]


def functs(module: ModuleType) -> list[Row]:
    one = (*RECURRENT, *(f"{name}, sequence 300" for name in RECURRENT))
    wide = tuple(f"{name}, batch 16" for name in RECURRENT)
    names = ", ".join(RECURRENT)
    counts = {line[0]: int(line[-1]) for line in module.REPORTED[0][2]}
    return [
        over_best(f"{names}, batch 1, 50 and 300 steps", one, 1.5, None),
        over_best(f"{names}, batch 16", wide, 1.2, None),
        over_best(f"{names}, batch 1 and 16", (*one, *wide), None, 3, whole=harness.geometric_mean),
        over_best(", ".join(DETECTION), DETECTION, 1.3, 2.5),
        *(launches_over(name, count) for name, count in counts.items()),
        *(growth(name, f"{name}, sequence 300") for name in RECURRENT),
    ]


def launches_over(name: str, count: int) -> Row:
    def figure(found: Found) -> float | None:
        ours = figures.launches(found)
        return None if ours is None else ours / count

    def note(results: Results) -> str:
        found = results[name]
        said = f"{figures.launches(found)} over {count}"
        if "counted" not in found:
            return said
        return f"{said}, the loop of nms as one step; with all of its steps {found['fastjit'].get('launches', '-')}"

    return Row(f"{name}: launches of a call over FuncTs's count", (name,), figure, 1, 0.5, note=note)


def growth(short: str, long: str) -> Row:
    """`whole` gets the values in the order of the programs."""

    def of(key: str) -> Figure:
        return lambda found: found.get("planning", {}).get(key)

    def recording(results: Results) -> str:
        values = [of("record_ms")(results[name]) or 0.0 for name in (short, long)]
        return f"recording: {values[1] / values[0]:.2g} times" if values[0] else ""

    what = f"{short}: planning and code generation at 300 steps over 50"
    figure = of("compile_ms")
    return Row(what, (short, long), figure, 1.3, 1, whole=lambda values: values[1] / values[0], note=recording)


def arrays(module: ModuleType) -> list[Row]:
    least = (3, 2, 5)
    return [
        over_best(program.name, (program.name,), must, 10) for program, must in zip(module.PROGRAMS, least, strict=True)
    ]


def pyhpc(module: ModuleType) -> list[Row]:
    large = tuple(program.name for program in module.PROGRAMS if program.values["size"] >= module.SIZES["16k"])
    return [over_best("every size from 16k points on", large, 1, 1.5)]


def named(module: ModuleType, **values: object) -> tuple[str, ...]:
    return tuple(one.name for one in module.PROGRAMS if values.items() <= one.values.items())


ROWS: dict[str, Callable[[ModuleType], list[Row]]] = {
    "functional": functional,
    "functs": functs,
    "arrays": arrays,
    "pyhpc": pyhpc,
}


def rows(folder: str, module: ModuleType) -> list[Row]:
    every = tuple(program.name for program in module.PROGRAMS)
    peak = Row("peak memory of a call over eager's, largest", every, figures.peak_over_eager, 1, None)
    return [*(ROWS[folder](module) if folder in ROWS else []), peak]


def targets(folder: str, module: ModuleType, results: Results) -> list[harness.Target]:
    return [row.target(results) for row in rows(folder, module)]
