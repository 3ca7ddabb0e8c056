"""The verbs of the disk cache that remove entries."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

from fastjit import _cache, _cache_entries
from fastjit._cache_entries import Entry, entries_of, find, matches_name, root_of


@dataclass(frozen=True)
class Removal:
    entries: list[Entry]
    bytes: int
    failed: list[str]
    dry_run: bool


def _remove(root: str, entries: Sequence[Entry], dry_run: bool) -> Removal:
    failed = [] if dry_run else [entry.key for entry in entries if not _cache.remove(entry.file)]
    gone = [entry for entry in entries if entry.key not in set(failed)]
    if gone and not dry_run:
        _cache.forget_usage(root)
    return Removal(list(gone), sum(entry.bytes for entry in gone), failed, dry_run)


def rm(keys: Sequence[str], *, dry_run: bool = False, cache_dir: str | None = None) -> Removal:
    """Removes the entries with these keys (prefixes)."""
    root = root_of(cache_dir)
    entries = entries_of(root)
    chosen = {entry.key: entry for entry in (find(key, entries) for key in keys)}
    return _remove(root, list(chosen.values()), dry_run)


def clear(*, function: str | None = None, dry_run: bool = False, cache_dir: str | None = None) -> Removal:
    """Removes every entry, or those of the functions that match a glob."""
    root = root_of(cache_dir)
    chosen = [entry for entry in entries_of(root) if function is None or matches_name(entry, function)]
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
    root = root_of(cache_dir)
    if keep_size is None and max_entries is None and older_than is None and not (unused or stale):
        keep_size, max_entries, stale = (
            int(_cache_entries.max_bytes().value),
            int(_cache_entries.max_entries().value),
            True,
        )
    lacking = {target: _host_lacks(target) for target in ("cpu-avx2", "cpu-avx512")} if stale else {}
    now = time.time()
    chosen: list[Entry] = []
    rest: list[Entry] = []
    for entry in sorted(entries_of(root), key=lambda entry: entry.last_used, reverse=True):
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
        with contextlib.suppress(OSError):  # a log that cannot be written stays as it is
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
