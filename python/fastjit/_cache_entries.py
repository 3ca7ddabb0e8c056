"""The entries of the disk cache as the verbs see them: their figures, filters and orders."""

from __future__ import annotations

import fnmatch
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastjit import _build_info, _cache
from fastjit._cache import CacheError, File

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
class Setting:
    name: str
    value: str
    source: str


def parse_size(text: str) -> int:
    """Bytes of "4096", "500M", "2GiB" (powers of 1024)."""
    match = re.fullmatch(r"\s*([0-9]+\.?[0-9]*|\.[0-9]+)\s*(?:([kmgt])(?:i?b)?|b)?\s*", text.lower())
    size = float(match[1]) * 2 ** _SIZE_UNITS[match[2] or ""] if match else 0.0
    if not match or size >= 9e18:
        raise ValueError(f"'{text[:60]}' is not a size such as 500M or 2GiB")
    return int(size)


def parse_age(text: str) -> float:
    """Seconds of "30s", "12h", "30d", "2w"."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhdw])\s*", text.lower())
    if not match:
        raise ValueError(f"'{text}' is not an age such as 12h, 30d or 2w")
    return float(match[1]) * _AGE_UNITS[match[2]]


def _limit(name: str, fallback: str) -> Setting:
    text = os.environ.get(name, "").strip()
    try:
        return Setting(name, str(parse_size(text)), "environment")
    except ValueError as error:
        return Setting(name, str(parse_size(fallback)), f"default ({error})" if text else "default")


def max_bytes() -> Setting:
    return _limit("FASTJIT_CACHE_MAX_BYTES", _build_info.CACHE_MAX_BYTES)


def max_entries() -> Setting:
    return _limit("FASTJIT_CACHE_MAX_ENTRIES", _build_info.CACHE_MAX_ENTRIES)


def root_of(cache_dir: str | None) -> str:
    location = _cache.locate(cache_dir)
    if not location.path:
        raise CacheError(f"there is no cache folder: {location.problem}")
    return location.path


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def entries_of(root: str) -> list[Entry]:
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
                compile_ms=number(meta.get("compile_ms", "")),
                created=number(meta.get("created", "")),
                last_used=max(loads.last, file.info.st_mtime),
                file=file,
            )
        )
    return entries


def device_of(entry: Entry) -> str:
    return "cpu" if entry.file.kind == "cpu-elf" else "cuda"


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
    "device": device_of,
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
SORTS: dict[str, Callable[[Entry], Any]] = {
    "size": lambda entry: entry.bytes,
    "loads": lambda entry: entry.loads,
    "compile": lambda entry: entry.compile_ms,
    "created": lambda entry: entry.created,
    "used": lambda entry: entry.last_used,
    "function": lambda entry: entry.function,
    "saved": lambda entry: entry.loads * entry.compile_ms,
}


def accepts(entry: Entry, condition: str) -> bool:
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


def matches_name(entry: Entry, pattern: str) -> bool:
    return fnmatch.fnmatchcase(entry.function, pattern) or entry.function.rsplit(".", 1)[-1] == pattern


def find(prefix: str, entries: Sequence[Entry], *, or_name: bool = False) -> Entry:
    """The entry whose key starts with `prefix` (6 digits or more). `or_name`: a function's name was looked for too."""
    text = prefix.lower()
    if len(text) < 6 or not re.fullmatch(r"[0-9a-f]{6,32}", text):
        name = ", and no entry is of a function of that name" if or_name else ""
        raise ValueError(f"'{_cache.printable(prefix)}' is not a key: give 6 to 32 hexadecimal digits{name}")
    found = [entry for entry in entries if entry.key.startswith(text)]
    if len(found) != 1:
        raise ValueError(f"{len(found) or 'no'} entries start with {text}" + ("; give more digits" if found else ""))
    return found[0]
