"""The disk cache from Python: every ``fastjit cache`` verb as a function. Imports neither torch nor the engine.

Each function takes ``cache_dir`` (default: as the engine finds it) and raises ``CacheError`` when that folder is
missing or refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fastjit import _cache
from fastjit._cache import BadEntry, CacheError, Location
from fastjit._cache_entries import (
    SORTS,
    Entry,
    Setting,
    accepts,
    device_of,
    entries_of,
    find,
    matches_name,
    max_bytes,
    max_entries,
    parse_age,
    parse_size,
    root_of,
)
from fastjit._cache_remove import Removal, clear, prune, rm
from fastjit._cache_show import Difference, Miss, Shown, last_miss, show, why

__all__ = [
    "BadEntry",
    "CacheError",
    "Difference",
    "Entry",
    "Info",
    "Listing",
    "Miss",
    "Removal",
    "Setting",
    "Shown",
    "Stats",
    "Verified",
    "clear",
    "dir",
    "info",
    "last_miss",
    "ls",
    "parse_age",
    "parse_size",
    "prune",
    "rm",
    "show",
    "stats",
    "verify",
    "why",
]


@dataclass(frozen=True)
class Listing:
    entries: list[Entry]
    total_entries: int
    total_bytes: int
    max_bytes: int
    never_loaded: int
    skipped: dict[str, int]  # entries that are damaged or foreign: {reason: number}


@dataclass(frozen=True)
class Info:
    path: str
    problem: str
    settings: list[Setting]
    entries: int
    bytes: int
    max_bytes: int
    max_entries: int
    by_target: dict[str, int]
    last_evicted: float  # seconds since the epoch; 0: never
    format: int


@dataclass(frozen=True)
class Stats:
    loads: int
    compiles: int
    evicted: int
    faults: dict[str, int]
    entries: int
    bytes: int
    mean_compile_ms: float
    saved_ms: float
    by: dict[
        str, dict[str, float]
    ]  # by function, target, device: entries, bytes, loads, saved_ms; by reason: count, last


@dataclass(frozen=True)
class Verified:
    checked: int
    bad: dict[str, str]  # {key: reason}
    removed: list[str]


# ---- verbs -----------------------------------------------------------------------------------------------------------


def dir(cache_dir: str | None = None) -> str:
    """The folder, whether or not it exists."""
    return root_of(cache_dir)


def ls(
    pattern: str | None = None,
    *,
    filters: Iterable[str] = (),
    sort: str = "used:desc",
    limit: int | None = None,
    cache_dir: str | None = None,
) -> Listing:
    """Good entries. `pattern`: a function's name or glob; `filters`: conditions such as "size>1M", "age>30d"."""
    name, _, order = sort.partition(":")
    if name not in SORTS or order not in ("", "asc", "desc"):
        raise ValueError(f"cannot sort by '{sort}'; names: {', '.join(SORTS)}, then :asc or :desc")
    everything = entries_of(root_of(cache_dir))
    good = [entry for entry in everything if not entry.file.fault]
    conditions = [part for text in filters for part in text.split(",") if part.strip()]
    chosen = [
        entry
        for entry in good
        if (pattern is None or matches_name(entry, pattern)) and all(accepts(entry, text) for text in conditions)
    ]
    chosen.sort(key=SORTS[name], reverse=order == "desc")
    skipped: dict[str, int] = {}
    for entry in everything:
        if entry.file.fault:
            skipped[entry.file.fault] = skipped.get(entry.file.fault, 0) + 1
    return Listing(
        entries=chosen[:limit],
        total_entries=len(good),
        total_bytes=sum(entry.bytes for entry in good),
        max_bytes=int(max_bytes().value),
        never_loaded=sum(entry.loads == 0 for entry in good),
        skipped=skipped,
    )


def info(cache_dir: str | None = None) -> Info:
    """Where the cache is, what limits it, and what it holds. Never raises CacheError."""
    location: Location = _cache.locate(cache_dir)
    size, number = max_bytes(), max_entries()
    problem = location.problem or _cache.folder_problem(location.path)
    entries = [] if problem else entries_of(location.path)
    by_target: dict[str, int] = {}
    for entry in entries:
        name = entry.target or "unreadable"
        by_target[name] = by_target.get(name, 0) + 1
    log = {} if problem else _cache.read_log(location.path)
    return Info(
        path=location.path,
        problem=problem,
        settings=[Setting("FASTJIT_CACHE_DIR", location.path, location.source), size, number],
        entries=len(entries),
        bytes=sum(entry.bytes for entry in entries),
        max_bytes=int(size.value),
        max_entries=int(number.value),
        by_target=by_target,
        last_evicted=max((total.last for (kind, _), total in log.items() if kind == "evict"), default=0.0),
        format=_cache.FORMAT,
    )


_GROUPS: dict[str, Callable[[Entry], str]] = {
    "function": lambda entry: entry.function,
    "target": lambda entry: entry.target,
    "device": device_of,
}
STATS_BY = (*_GROUPS, "reason")


def stats(
    *, since: float | None = None, by: str | None = None, zero: bool = False, cache_dir: str | None = None
) -> Stats:
    """Loads, compiles and faults since the log was last zeroed. `since`: seconds back; `by`: one of STATS_BY."""
    if by is not None and by not in STATS_BY:
        raise ValueError(f"cannot group by '{by}'; use {', '.join(STATS_BY)}")
    root = root_of(cache_dir)
    entries = entries_of(root)
    log = _cache.read_log(root, time.time() - since if since is not None else 0.0)
    sums: dict[str, int] = {}
    for (kind, _), total in log.items():
        sums[kind] = sums.get(kind, 0) + total.count
    faults = {name: total for (kind, name), total in sorted(log.items()) if kind == "fault"}
    compiled = [entry.compile_ms for entry in entries if not entry.file.fault]
    nothing = _cache.Count()
    loads = {entry.key: log.get(("load", entry.key), nothing).count for entry in entries}
    groups: dict[str, dict[str, float]] = {}
    if by == "reason":
        groups = {name: {"count": total.count, "last": total.last} for name, total in faults.items()}
    elif by:
        groups = _grouped([entry for entry in entries if not entry.file.fault], loads, _GROUPS[by])
    result = Stats(
        loads=sums.get("load", 0),
        compiles=sums.get("compile", 0),
        evicted=sums.get("evict", 0),
        faults={name: total.count for name, total in faults.items()},
        entries=len(entries),
        bytes=sum(entry.bytes for entry in entries),
        mean_compile_ms=sum(compiled) / len(compiled) if compiled else 0.0,
        saved_ms=sum(loads[entry.key] * entry.compile_ms for entry in entries),
        by=groups,
    )
    if zero:
        _cache.write_log(root, {})
    return result


def _grouped(
    entries: Sequence[Entry], loads: dict[str, int], name_of: Callable[[Entry], str]
) -> dict[str, dict[str, float]]:
    groups: dict[str, dict[str, float]] = {}
    for entry in entries:
        group = groups.setdefault(name_of(entry), {"entries": 0, "bytes": 0, "loads": 0, "saved_ms": 0.0})
        group["entries"] += 1
        group["bytes"] += entry.bytes
        group["loads"] += loads[entry.key]
        group["saved_ms"] += loads[entry.key] * entry.compile_ms
    return groups


def verify(
    keys: Sequence[str] = (), *, deep: bool = False, fix: bool = False, cache_dir: str | None = None
) -> Verified:
    """Checks header, lengths, checksum and key of each entry, executing nothing; `fix` removes the bad ones.

    Finds damage. It does not prove who wrote an entry: whoever can write to the folder can write one that passes.

    `deep` also puts each object through the engine's validator and linker, which imports torch.
    """
    _cache.xxh3_128()
    root = root_of(cache_dir)
    entries = entries_of(root)
    chosen = [find(key, entries) for key in keys] if keys else entries
    check = _deep_fault if deep else _cache.checksum_fault
    bad = {entry.key: fault for entry in chosen if (fault := check(entry.file))}
    removed = [entry.key for entry in chosen if fix and entry.key in bad and _cache.remove(entry.file)]
    if removed:
        _cache.forget_usage(root)
    return Verified(len(chosen), bad, removed)


def _deep_fault(file: _cache.File) -> str:
    from fastjit._load import extension

    fault = _cache.checksum_fault(file)
    if fault:
        return fault
    problem = extension.check_object(file.kind, _cache.read_sections(file)["object"])
    return f"refused ({problem})" if problem else ""
