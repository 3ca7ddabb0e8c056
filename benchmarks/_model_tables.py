"""Targets and tables of models.py, made from what its processes answered. Needs no measurement of its own."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import _harness as harness
import _zoo as zoo
from fastjit._bench import table

Found = dict[str, Any]
RECORDED = ("vit_tiny", "gpt2", "efficientnet_b0")  # whose recording alone has a target
FULL_FACTOR, FULL_S = 2.0, 0.030  # a first call with a full cache: at most so many eager calls and so many seconds
NONE = "-"


def outcome(models: list[zoo.Model], found: dict[str, Found]) -> harness.Outcome:
    return harness.Outcome(targets(models, found), sheets(models, found), found)


def in_short(part: str, found: Found) -> str:
    """One measurement for whoever waits."""
    if "error" in found:
        return found["error"]
    if part == "first" or part == "deep":
        return f"{table.seconds(over_eager(found))} over eager, {said_of(found['stats'])}"
    if part == "memory":
        ratio = peak_ratio(found)
        return f"{NONE if ratio is None else table.figures(ratio)} of eager's"
    rows = {row["name"]: row for row in found["rows"]}
    return ", ".join(f"{name} {_time(row)}" for name, row in rows.items())


def over_eager(found: Found | None) -> float | None:
    """Seconds by which the first call was longer than eager's."""
    return found["first_s"] - found["eager_s"] if found and "first_s" in found else None


def said_of(stats: Found | None) -> str:
    """`program` where every call after the first was a hit, else what ran and why."""
    if stats is None:
        return "fastjit told nothing"
    if stats["hits"] == stats["calls"] - 1:
        return "program"
    why = "; ".join(stats["fallbacks"]) or f"{stats['misses']} calls found no variant"
    return f"eager: {why}" if not stats["hits"] else f"program in {stats['hits']} of {stats['calls']} calls: {why}"


def is_program(found: Found | None) -> bool:
    return bool(found) and said_of((found or {}).get("stats")) == "program"


def recording(found: Found) -> float:
    return float(found["stats"]["record_ms"]) / 1e3 - float(found["eager_s"])


def full_over_bound(found: Found) -> float:
    return float(found["full_first_s"] / (FULL_FACTOR * found["full_eager_s"] + FULL_S))


def over_compile(found: Found) -> float | None:
    """Our first call over eager, over torch.compile's; one that was not done counts as its limit."""
    theirs = found.get("compile") or {}
    other = theirs.get("over_limit_s") or over_eager(theirs)
    ours = over_eager(found)
    return None if not other or ours is None else ours / other


def peak_ratio(found: Found) -> float | None:
    eager = found.get("eager", {}).get("peak_bytes")
    return found["fastjit"]["peak_bytes"] / eager if eager else None


def over_best(model: zoo.Model, found: Found) -> tuple[str, list[float]] | None:
    """The best peer that this kind of model is held against, and how many times as fast fastjit is, with bounds."""
    row = next((row for row in found.get("rows", ()) if row["name"] == "fastjit"), None)
    if row is None or row["status"] != "ok" or row["ran_eagerly"]:
        return None
    peers = {
        name: ratio
        for name, ratio in found["over"].items()
        if name != "torch.compile" or model.kind != zoo.CONVOLUTIONS
    }
    return min(peers.items(), key=lambda pair: pair[1][1]) if peers else None


def targets(models: list[zoo.Model], found: dict[str, Found]) -> list[harness.Target]:
    first = {model.short: found.get(model.short, {}).get("first") for model in models}
    ran = {name: got for name, got in first.items() if got and is_program(got)}
    rows = [_programs(first, ran), *_first_targets(ran, len(models))]
    rows += [
        harness.Target(
            f"recording alone over eager, {name}",
            0.040,
            0.020,
            recording(ran[name]) if name in ran else None,
            unit="s",
        )
        for name in RECORDED
    ]
    return [*rows, *_deep_targets(found), *_steady_targets(models, found), _memory_target(models, found)]


def _programs(first: dict[str, Found | None], ran: dict[str, Found]) -> harness.Target:
    others = [name for name, got in first.items() if got is not None and name not in ran]
    measured = len(ran) if any(got is not None for got in first.values()) else None
    detail = f"eagerly or not at all: {', '.join(others)}" if others else ""
    return harness.Target(
        f"of {len(zoo.MODELS)} models, those whose later calls are hits",
        len(zoo.MODELS),
        None,
        measured,
        better="higher",
        detail=detail,
    )


def _first_targets(ran: dict[str, Found], count: int) -> list[harness.Target]:
    over = {name: over_eager(got) for name, got in ran.items()}
    full = {name: full_over_bound(got) for name, got in ran.items()}
    theirs = {name: ratio for name, got in ran.items() if (ratio := over_compile(got)) is not None}
    cold = "first call of a model over eager, empty cache"
    middle = statistics.median(over.values()) if over else None  # type: ignore[type-var]
    return [
        harness.worst(f"{cold}, longest", over, 0.500, 0.150, unit="s"),
        harness.Target(f"{cold}, median", 0.150, 0.060, middle, unit="s", detail=_of(len(over), count)),
        harness.worst("the same over torch.compile's, largest", theirs, 0.05, None),
        harness.worst("first call with a full cache over twice eager's call and 30 ms, largest", full, 1.0, None),
    ]


def _deep_targets(found: dict[str, Found]) -> list[harness.Target]:
    rows = []
    for title in zoo.DEEP:
        got = found.get(title, {}).get("deep")
        good = is_program(got)
        detail = "" if good or got is None else got.get("error") or said_of(got["stats"])
        measured = over_eager(got) if good else None
        rows.append(harness.Target(f"first call over eager, {title}", 0.150, 0.050, measured, unit="s", detail=detail))
    for kind in zoo.BLOCKS:
        few, many = compiled(found, kind, zoo.FEW), compiled(found, kind, zoo.MANY)
        ratio = many / few if few and many is not None else None
        detail = f"{many} over {few}" if ratio is not None else ""
        what = f"kernels compiled for {zoo.MANY} {kind} blocks over those for {zoo.FEW}"
        rows.append(harness.Target(what, 1.1, 1.0, ratio, detail=detail))
    return rows


def compiled(found: dict[str, Found], kind: str, count: int) -> int | None:
    got = found.get(f"{kind} block, {count} layers", {}).get("deep")
    return int(got["stats"]["compiles"]) if is_program(got) and got is not None else None


def _steady_targets(models: list[zoo.Model], found: dict[str, Found]) -> list[harness.Target]:
    ratios = {}
    asked = 0
    for model, part, got in _steady_parts(models, found):
        asked += 1
        best = over_best(model, got)
        if best is not None:
            ratios[f"{model.short} at batch {part}"] = best[1][1]
    least = harness.worst(
        "a call of a model, times as fast as the best peer, least", ratios, 1.0, None, better="higher"
    )
    if ratios and not any("torch.compile" in got.get("over", {}) for _, _, got in _steady_parts(models, found)):
        least = replace(least, detail=f"{least.detail}; without torch.compile, which was not measured")
    mean = harness.geometric_mean(list(ratios.values())) if ratios else None
    text = "the same, geometric mean"
    return [least, harness.Target(text, None, 1.2, mean, better="higher", detail=_of(len(ratios), asked))]


def _memory_target(models: list[zoo.Model], found: dict[str, Found]) -> harness.Target:
    peaks = {}
    for model in models:
        got = found.get(model.short, {}).get("memory", {})
        if "fastjit" in got and is_program(got["fastjit"]) and (ratio := peak_ratio(got)) is not None:
            peaks[model.short] = ratio
    return harness.worst("peak memory of a model's call over eager's, largest", peaks, 1.0, 0.8)


def _of(count: int, all_of_them: int) -> str:
    return "" if count == all_of_them else f"of the {count} of {all_of_them} that ran as programs"


def _part(models: list[zoo.Model], found: dict[str, Found], part: str) -> Iterable[tuple[zoo.Model, Found]]:
    for model in models:
        if (got := found.get(model.short, {}).get(part)) is not None:
            yield model, got


def _steady_parts(models: list[zoo.Model], found: dict[str, Found]) -> Iterable[tuple[zoo.Model, str, Found]]:
    for model in models:
        for part, got in found.get(model.short, {}).items():
            if part.startswith("steady "):
                yield model, part.removeprefix("steady "), got


def sheets(models: list[zoo.Model], found: dict[str, Found]) -> list[harness.Sheet]:
    made = [_first_sheet(models, found), _deep_sheet(found), _steady_sheet(models, found), _memory_sheet(models, found)]
    return [sheet for sheet in made if sheet.rows]


def _first_sheet(models: list[zoo.Model], found: dict[str, Found]) -> harness.Sheet:
    rows = []
    for model, got in _part(models, found, "first"):
        start = [model.name, str(model.layers)]
        if "error" in got:
            rows.append([*start, *[NONE] * 7, got["error"]])
            continue
        theirs = got.get("compile") or {}
        stats = got["stats"]
        limit = theirs.get("over_limit_s")
        other = f"over {limit:g} s" if limit else theirs.get("error") or table.seconds(over_eager(theirs))
        times = [got["eager_s"], over_eager(got), recording(got)]
        rows.append(
            [
                *start,
                *map(_seconds, times),
                f"{stats['compiles']} for {stats['kernels']}",
                other,
                _seconds(got["full_first_s"]),
                _seconds(FULL_FACTOR * got["full_eager_s"] + FULL_S),
                said_of(stats),
            ]
        )
    columns = ["model", "layers", "eager's call", "first call over eager", "recording over eager", "kernels compiled"]
    columns += ["torch.compile's first over eager", "first call, full cache", "may take", "later calls ran as"]
    return harness.Sheet("First calls, batch 1, best of fresh processes", columns, rows)


def _deep_sheet(found: dict[str, Found]) -> harness.Sheet:
    titles = [*zoo.DEEP, *(f"{kind} block, {n} layers" for kind in zoo.BLOCKS for n in (zoo.FEW, zoo.MANY))]
    rows = []
    for title in titles:
        got = found.get(title, {}).get("deep")
        if got is None:
            continue
        if "error" in got:
            rows.append([title, *[NONE] * 4, got["error"]])
            continue
        times = [got["eager_s"], over_eager(got), recording(got)]
        rows.append([title, *map(_seconds, times), str(got["stats"]["compiles"]), said_of(got["stats"])])
    columns = ["program", "eager's call", "first call over eager", "recording over eager", "kernels compiled"]
    return harness.Sheet("Long programs and equal layers", [*columns, "later calls ran as"], rows)


def _steady_sheet(models: list[zoo.Model], found: dict[str, Found]) -> harness.Sheet:
    names = ["eager", "torch.jit.trace", "torch.compile", "fastjit"]
    rows = []
    for model, batch, got in _steady_parts(models, found):
        start = [model.name, model.kind, batch]
        if "error" in got:
            rows.append([*start, *[NONE] * 5, got["error"]])
            continue
        by_name = {row["name"]: row for row in got["rows"]}
        cells = [_time(by_name[name]) if name in by_name else NONE for name in names]
        best = over_best(model, got)
        ours = by_name.get("fastjit", {})
        counts = f"{ours['kernels']}/{ours['steps']}" if ours.get("kernels") is not None else NONE
        notes = [row["note"] for row in got["rows"] if row["note"]]
        notes += [f"{name}: {why}" for name, why in got["left_out"].items()]
        text = NONE if best is None else f"{table.figures(best[1][1])}x [{', '.join(map(table.figures, best[1][::2]))}]"
        rows.append([*start, *cells, text, counts, "; ".join(notes)])
    columns = ["model", "mostly", "batch", *names, "fastjit over best other [95 %]", "kernels/steps", ""]
    for row in rows:
        row += [""] * (len(columns) - len(row))
    return harness.Sheet("Later calls", columns, rows)


def _memory_sheet(models: list[zoo.Model], found: dict[str, Found]) -> harness.Sheet:
    rows = []
    for model, got in _part(models, found, "memory"):
        if "error" in got:
            rows.append([model.name, *[NONE] * 4, got["error"]])
            continue
        ratio = peak_ratio(got)
        sizes = [got["eager"]["peak_bytes"], got["fastjit"]["peak_bytes"], got["fastjit"]["kept_bytes"]]
        cells = [*map(table.size, sizes), NONE if ratio is None else table.figures(ratio)]
        rows.append([model.name, *cells, said_of(got["fastjit"]["stats"])])
    columns = ["model", "eager's call", "fastjit's call", "code, tables and results of weights that it keeps"]
    columns += ["call over eager's", "calls ran as"]
    return harness.Sheet("Peak memory of a call above model and inputs, batch 1", columns, rows)


def _time(row: Found) -> str:
    if row["status"] != "ok":
        return str(row["status"]).upper() if row["status"] in ("wrong", "void") else str(row["status"])
    return table.seconds(row["median_s"]) + (" (ran eagerly)" if row.get("ran_eagerly") else "")


def _seconds(value: float | None) -> str:
    """Differences of times may be below zero."""
    return f"-{table.seconds(-value)}" if value is not None and value < 0 else table.seconds(value)
