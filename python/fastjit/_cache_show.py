"""What one entry of the disk cache holds, and how its key differs from another's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from fastjit import _cache
from fastjit._cache import BadEntry
from fastjit._cache_entries import Entry, entries_of, find, matches_name, root_of


@dataclass(frozen=True)
class Shown:
    entry: Entry
    kind: str
    meta: dict[str, str]
    key_fields: dict[str, str]
    ir: str
    source: str
    object: bytes
    others: tuple[str, ...] = ()  # keys of the function's other entries, where a name was asked for


@dataclass(frozen=True)
class Difference:
    field: str
    first: str
    second: str


@dataclass(frozen=True)
class Miss:
    """The entry compiled last, and the one that it is most like."""

    entry: Entry
    nearest: Entry | None
    differences: list[Difference]


def show(key: str, *, cache_dir: str | None = None) -> Shown:
    """All that an entry holds. `key`: the first digits of a key, or a function's name (or glob) for that one of its
    entries that was used last. Raises BadEntry for an entry that the engine would not read."""
    entries = entries_of(root_of(cache_dir))
    named = [entry for entry in entries if not entry.file.fault and matches_name(entry, key)]
    if not named or any(entry.key.startswith(key.lower()) for entry in entries):
        return _shown(find(key, entries, or_name=True))
    named.sort(key=lambda entry: entry.last_used, reverse=True)
    return replace(_shown(named[0]), others=tuple(entry.key for entry in named[1:]))


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
    entries = entries_of(root_of(cache_dir))
    a, b = (_shown(find(key, entries)).key_fields for key in (first, second))
    return _differences(a, b)


def last_miss(function: str | None = None, *, cache_dir: str | None = None) -> Miss:
    """Why the entry written last (of the functions that match a glob) was not served by another: what its key has
    that the nearest older one has not. Entries of the same function are nearer than all others."""
    entries = [entry for entry in entries_of(root_of(cache_dir)) if not entry.file.fault]
    chosen = [entry for entry in entries if function is None or matches_name(entry, function)]
    if not chosen:
        raise ValueError("nothing was compiled into this cache" + (f" for '{function}'" if function else ""))
    entry = max(chosen, key=_written)
    older = [other for other in entries if other.file.kind == entry.file.kind and _written(other) < _written(entry)]
    related = [other for other in older if other.function == entry.function] or older
    key = _shown(entry).key_fields
    nearest, its_key = min(
        _readable(related), key=lambda pair: (_distance(pair[1], key), -pair[0].created), default=(None, key)
    )
    return Miss(entry, nearest, _differences(its_key, key))


def _written(entry: Entry) -> tuple[float, int]:
    return entry.created, entry.file.info.st_mtime_ns


def _readable(entries: Iterable[Entry]) -> Iterable[tuple[Entry, dict[str, str]]]:
    for entry in entries:
        try:
            yield entry, _shown(entry).key_fields
        except BadEntry:
            continue


def _distance(a: dict[str, str], b: dict[str, str]) -> int:
    """How many lines of one key are not in the other."""
    lines_a, lines_b = (
        Counter((name, line) for name, value in key.items() for line in value.splitlines()) for key in (a, b)
    )
    return (lines_a - lines_b).total() + (lines_b - lines_a).total()


def _differences(a: dict[str, str], b: dict[str, str]) -> list[Difference]:
    differences = []
    for name in dict.fromkeys([*a, *b]):
        x, y = a.get(name, "").splitlines(), b.get(name, "").splitlines()
        if x == y:
            continue
        if min(len(x), len(y)) < 2:
            differences.append(Difference(name, a.get(name, ""), b.get(name, "")))
            continue
        differences += [
            Difference(f"{name}:{begin_x + 1}", "\n".join(x[begin_x:end_x]), "\n".join(y[begin_y:end_y]))
            for begin_x, end_x, begin_y, end_y in _changes(x, y)
        ]
    return differences


def _changes(x: list[str], y: list[str]) -> list[tuple[int, int, int, int]]:
    """Ranges of lines that differ; line by line where both have equally many."""
    if len(x) == len(y):
        return [(i, i + 1, i, i + 1) for i in range(len(x)) if x[i] != y[i]]
    import difflib

    matcher = difflib.SequenceMatcher(None, x, y, autojunk=False)
    return [(i, i_end, k, k_end) for tag, i, i_end, k, k_end in matcher.get_opcodes() if tag != "equal"]
