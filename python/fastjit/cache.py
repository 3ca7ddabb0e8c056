"""The disk cache from Python: every ``fastjit cache`` verb as a function. Imports neither torch nor the engine.

Each function takes ``cache_dir`` (default: as the engine finds it) and raises ``CacheError`` when that folder is
missing or refused.
"""

from __future__ import annotations

import fnmatch
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastjit import _cache
from fastjit._cache import BadEntry, CacheError, File, Location

__all__ = [
    "BadEntry",
    "CacheError",
    "Difference",
    "Entry",
    "Info",
    "Listing",
    "Removal",
    "Setting",
    "Shown",
    "Stats",
    "Verified",
    "clear",
    "dir",
    "info",
    "ls",
    "prune",
    "rm",
    "show",
    "stats",
    "verify",
    "why",
]

_SIZE_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_AGE_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


@dataclass(frozen=True)
class Entry:
    key: str
    function: str
    signature: str
    target: str
    bytes: int
    loads: int
    compile_ms: float
    created: float
    last_used: float
    file: File = field(repr=False, compare=False)


@dataclass(frozen=True)
class Listing:
    entries: list[Entry]
    total_entries: int
    total_bytes: int
    never_loaded: int
    skipped: dict[str, int]  # entries that are damaged or foreign: {reason: number}


@dataclass(frozen=True)
class Setting:
    name: str
    value: str
    source: str


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
    by: dict[str, dict[str, float]]


@dataclass(frozen=True)
class Shown:
    entry: Entry
    kind: str
    meta: dict[str, str]
    key_fields: dict[str, str]
    ir: str
    source: str
    object: bytes


@dataclass(frozen=True)
class Difference:
    field: str
    first: str
    second: str


@dataclass(frozen=True)
class Verified:
    checked: int
    bad: dict[str, str]  # {key: reason}
    removed: list[str]


@dataclass(frozen=True)
class Removal:
    entries: list[Entry]
    bytes: int
    failed: list[str]
    dry_run: bool


def parse_size(text: str) -> int:
    """Bytes of "4096", "500M", "2GiB" (powers of 1024)."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", text.lower())
    if not match:
        raise ValueError(f"'{text}' is not a size such as 500M or 2GiB")
    return int(float(match[1]) * 2 ** _SIZE_UNITS[match[2]])


def parse_age(text: str) -> float:
    """Seconds of "30s", "12h", "30d", "2w"."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhdw])\s*", text.lower())
    if not match:
        raise ValueError(f"'{text}' is not an age such as 12h, 30d or 2w")
    return float(match[1]) * _AGE_UNITS[match[2]]


def _root(cache_dir: str | None) -> str:
    location = _cache.locate(cache_dir)
    if not location.path:
        raise CacheError(f"there is no cache folder: {location.problem}")
    return location.path


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _entries(root: str) -> list[Entry]:
    """Every entry; damaged ones have an empty function and `file.fault`."""
    log = _cache.read_log(root)
    nothing = _cache.Count()
    entries = []
    for file in _cache.scan(root):
        loads = log.get(("load", file.key), nothing)
        meta = file.meta
        entries.append(
            Entry(
                key=file.key,
                function=meta.get("function", ""),
                signature=meta.get("signature", ""),
                target=meta.get("target", ""),
                bytes=file.info.st_size,
                loads=loads.count,
                compile_ms=_number(meta.get("compile_ms", "")),
                created=_number(meta.get("created", "")),
                last_used=max(loads.last, file.info.st_mtime),
                file=file,
            )
        )
    return entries


# ---- filters ---------------------------------------------------------------------------------------------------------

_FILTER = re.compile(r"\s*(\w+)\s*(<=|>=|!=|=|<|>)\s*(.+?)\s*")
_NUMBERS: dict[str, tuple[Callable[[str], float], Callable[[Entry], float]]] = {
    "size": (parse_size, lambda entry: entry.bytes),
    "age": (parse_age, lambda entry: time.time() - entry.last_used),
    "loads": (float, lambda entry: entry.loads),
    "compile": (float, lambda entry: entry.compile_ms),
}
_TEXTS: dict[str, Callable[[Entry], str]] = {
    "function": lambda entry: entry.function,
    "target": lambda entry: entry.target,
    "device": lambda entry: "cpu" if entry.file.kind == "cpu-elf" else "cuda",
    "arch": lambda entry: entry.target.removeprefix("cpu-"),
}
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}
_SORTS: dict[str, Callable[[Entry], Any]] = {
    "size": lambda entry: entry.bytes,
    "loads": lambda entry: entry.loads,
    "compile": lambda entry: entry.compile_ms,
    "created": lambda entry: entry.created,
    "used": lambda entry: entry.last_used,
    "function": lambda entry: entry.function,
    "saved": lambda entry: entry.loads * entry.compile_ms,
}


def _accepts(entry: Entry, condition: str) -> bool:
    match = _FILTER.fullmatch(condition)
    if not match or (match[1] not in _NUMBERS and match[1] not in _TEXTS):
        names = ", ".join([*_NUMBERS, *_TEXTS])
        raise ValueError(f"filter '{condition}' is not NAME<OP>VALUE with a name of: {names}")
    name, operator, value = match.groups()
    if name in _NUMBERS:
        parse, read = _NUMBERS[name]
        return bool(_COMPARE[operator](read(entry), parse(value)))
    if operator not in ("=", "!="):
        raise ValueError(f"filter '{condition}': {name} is text and takes = or !=")
    return fnmatch.fnmatchcase(_TEXTS[name](entry), value) == (operator == "=")


def _matches_name(entry: Entry, pattern: str) -> bool:
    return fnmatch.fnmatchcase(entry.function, pattern) or entry.function.rsplit(".", 1)[-1] == pattern


# ---- verbs -----------------------------------------------------------------------------------------------------------


def dir(cache_dir: str | None = None) -> str:
    """The folder, whether or not it exists."""
    return _root(cache_dir)


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
    if name not in _SORTS or order not in ("", "asc", "desc"):
        raise ValueError(f"cannot sort by '{sort}'; names: {', '.join(_SORTS)}, then :asc or :desc")
    everything = _entries(_root(cache_dir))
    good = [entry for entry in everything if not entry.file.fault]
    conditions = [part for text in filters for part in text.split(",") if part.strip()]
    chosen = [
        entry
        for entry in good
        if (pattern is None or _matches_name(entry, pattern)) and all(_accepts(entry, text) for text in conditions)
    ]
    chosen.sort(key=_SORTS[name], reverse=order == "desc")
    skipped: dict[str, int] = {}
    for entry in everything:
        if entry.file.fault:
            skipped[entry.file.fault] = skipped.get(entry.file.fault, 0) + 1
    return Listing(
        chosen[:limit], len(good), sum(entry.bytes for entry in good), sum(entry.loads == 0 for entry in good), skipped
    )


def _limit(name: str, fallback: int) -> Setting:
    text = os.environ.get(name, "").strip()
    try:
        return Setting(name, str(parse_size(text)), "environment")
    except ValueError:
        return Setting(name, str(fallback), "default")


def info(cache_dir: str | None = None) -> Info:
    """Where the cache is, what limits it, and what it holds. Never raises CacheError."""
    location: Location = _cache.locate(cache_dir)
    max_bytes = _limit("FASTJIT_CACHE_MAX_BYTES", _cache.DEFAULT_MAX_BYTES)
    max_entries = _limit("FASTJIT_CACHE_MAX_ENTRIES", _cache.DEFAULT_MAX_ENTRIES)
    settings = [Setting("FASTJIT_CACHE_DIR", location.path, location.source), max_bytes, max_entries]
    entries: list[Entry] = []
    problem = location.problem or _cache.folder_problem(location.path)
    if not problem:
        entries = _entries(location.path)
    by_target: dict[str, int] = {}
    for entry in entries:
        name = entry.target or "unreadable"
        by_target[name] = by_target.get(name, 0) + 1
    total = sum(entry.bytes for entry in entries)
    return Info(
        location.path, problem, settings, len(entries), total, int(max_bytes.value), int(max_entries.value), by_target,
        _cache.FORMAT,
    )  # fmt: skip


def find(prefix: str, entries: Sequence[Entry]) -> Entry:
    """The entry whose key starts with `prefix` (6 digits or more)."""
    text = prefix.lower()
    if len(text) < 6 or not re.fullmatch(r"[0-9a-f]{6,32}", text):
        raise ValueError(f"'{_cache.printable(prefix)}' is not a key: give 6 to 32 hexadecimal digits")
    found = [entry for entry in entries if entry.key.startswith(text)]
    if len(found) != 1:
        raise ValueError(f"{len(found) or 'no'} entries start with {text}" + ("; give more digits" if found else ""))
    return found[0]


def show(key: str, *, cache_dir: str | None = None) -> Shown:
    """All that an entry holds. Raises BadEntry for one that the engine would not read."""
    return _shown(find(key, _entries(_root(cache_dir))))


def _shown(entry: Entry) -> Shown:
    if entry.file.fault:
        raise BadEntry(entry.file.fault)
    try:
        sections = _cache.read_sections(entry.file)
    except OSError:
        raise BadEntry("io-error") from None
    return Shown(
        entry,
        entry.file.kind,
        entry.file.meta,
        _cache.parse_fields(sections["key"]),
        sections["ir"].decode("utf-8", "backslashreplace"),
        sections["source"].decode("utf-8", "backslashreplace"),
        sections["object"],
    )


def why(first: str, second: str, *, cache_dir: str | None = None) -> list[Difference]:
    """The fields in which two keys differ; a field of many lines is compared line by line."""
    entries = _entries(_root(cache_dir))
    a, b = (_shown(find(key, entries)).key_fields for key in (first, second))
    differences = []
    for name in dict.fromkeys([*a, *b]):
        x, y = a.get(name, ""), b.get(name, "")
        if x == y:
            continue
        lines_x, lines_y = x.splitlines(), y.splitlines()
        if len(lines_x) == len(lines_y) > 1:
            differences += [
                Difference(f"{name}:{number}", p, q)
                for number, (p, q) in enumerate(zip(lines_x, lines_y, strict=True), 1)
                if p != q
            ]
        else:
            differences.append(Difference(name, x, y))
    return differences


def stats(
    *, since: float | None = None, by: str | None = None, zero: bool = False, cache_dir: str | None = None
) -> Stats:
    """Loads, compiles and faults since the log was last zeroed; `since`: seconds back; `by`: function or target."""
    if by not in (None, "function", "target"):
        raise ValueError(f"cannot group by '{by}'; use function or target")
    root = _root(cache_dir)
    entries = _entries(root)
    log = _cache.read_log(root, time.time() - since if since is not None else 0.0)
    sums: dict[str, int] = {}
    for (kind, _), total in log.items():
        sums[kind] = sums.get(kind, 0) + total.count
    compiled = [entry.compile_ms for entry in entries if not entry.file.fault]
    nothing = _cache.Count()
    saved = 0.0
    groups: dict[str, dict[str, float]] = {}
    for entry in entries:
        loads = log.get(("load", entry.key), nothing).count
        saved += loads * entry.compile_ms
        if by and not entry.file.fault:
            group = groups.setdefault(str(getattr(entry, by)), {"entries": 0, "bytes": 0, "loads": 0, "saved_ms": 0.0})
            for name, value in (
                ("entries", 1), ("bytes", entry.bytes), ("loads", loads), ("saved_ms", loads * entry.compile_ms)
            ):  # fmt: skip
                group[name] += value
    result = Stats(
        loads=sums.get("load", 0),
        compiles=sums.get("compile", 0),
        evicted=sums.get("evict", 0),
        faults={name: total.count for (kind, name), total in sorted(log.items()) if kind == "fault"},
        entries=len(entries),
        bytes=sum(entry.bytes for entry in entries),
        mean_compile_ms=sum(compiled) / len(compiled) if compiled else 0.0,
        saved_ms=saved,
        by=groups,
    )
    if zero:
        _cache.write_log(root, {})
    return result


def verify(keys: Sequence[str] = (), *, fix: bool = False, cache_dir: str | None = None) -> Verified:
    """Checks header, lengths, checksum and key of each entry, executing nothing; `fix` removes the bad ones."""
    _cache.xxh3_128()
    root = _root(cache_dir)
    entries = _entries(root)
    chosen = [find(key, entries) for key in keys] if keys else entries
    bad = {entry.key: fault for entry in chosen if (fault := _cache.checksum_fault(entry.file))}
    removed = [entry.key for entry in chosen if fix and entry.key in bad and _cache.remove(entry.file)]
    if removed:
        _cache.forget_usage(root)
    return Verified(len(chosen), bad, removed)


def _remove(root: str, entries: Sequence[Entry], dry_run: bool) -> Removal:
    failed = [] if dry_run else [entry.key for entry in entries if not _cache.remove(entry.file)]
    gone = [entry for entry in entries if entry.key not in set(failed)]
    if gone and not dry_run:
        _cache.forget_usage(root)
    return Removal(list(gone), sum(entry.bytes for entry in gone), failed, dry_run)


def rm(keys: Sequence[str], *, dry_run: bool = False, cache_dir: str | None = None) -> Removal:
    """Removes the entries with these keys (prefixes)."""
    root = _root(cache_dir)
    entries = _entries(root)
    chosen = {entry.key: entry for entry in (find(key, entries) for key in keys)}
    return _remove(root, list(chosen.values()), dry_run)


def clear(*, function: str | None = None, dry_run: bool = False, cache_dir: str | None = None) -> Removal:
    """Removes every entry, or those of the functions that match a glob."""
    root = _root(cache_dir)
    chosen = [entry for entry in _entries(root) if function is None or _matches_name(entry, function)]
    return _remove(root, chosen, dry_run)


def _host_lacks(target: str) -> bool:
    needed = {
        "cpu-avx2": {"avx2", "fma", "f16c", "bmi2"},
        "cpu-avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl"},
    }
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as stream:
            flags = next((line for line in stream if line.startswith("flags")), "")
    except OSError:
        return False
    return bool(flags) and not needed.get(target, set()) <= set(flags.split())


def prune(
    *,
    keep_size: int | None = None,
    max_entries: int | None = None,
    older_than: float | None = None,
    unused: bool = False,
    stale: bool = False,
    dry_run: bool = False,
    cache_dir: str | None = None,
) -> Removal:
    """Removes by age (seconds since the last use), by use, what can never be used here, then the least recently used
    above a size or number. Without a condition: the stale ones and what is above the limits. Compacts the log."""
    root = _root(cache_dir)
    if keep_size is None and max_entries is None and older_than is None and not (unused or stale):
        limits = info(cache_dir)
        keep_size, max_entries, stale = limits.max_bytes, limits.max_entries, True
    lacking = {target: _host_lacks(target) for target in ("cpu-avx2", "cpu-avx512")} if stale else {}
    now = time.time()
    chosen: list[Entry] = []
    rest: list[Entry] = []
    for entry in sorted(_entries(root), key=lambda entry: entry.last_used, reverse=True):
        out = (
            (older_than is not None and now - entry.last_used > older_than)
            or (unused and entry.loads == 0)
            or (stale and (bool(entry.file.fault) or lacking.get(entry.target, False)))
        )
        (chosen if out else rest).append(entry)
    size = 0
    for number, entry in enumerate(rest, 1):
        size += entry.bytes
        if (keep_size is not None and size > keep_size) or (max_entries is not None and number > max_entries):
            chosen.append(entry)
    result = _remove(root, chosen, dry_run)
    if not dry_run:
        _compact(root, {entry.key for entry in rest} - {entry.key for entry in result.entries})
    return result


def _compact(root: str, kept: set[str]) -> None:
    log = _cache.read_log(root)
    if log:
        _cache.write_log(
            root,
            {
                name: total
                for name, total in log.items()
                if name[0] == "fault" or name[1] in kept or not _cache.is_key(name[1])
            },
        )
