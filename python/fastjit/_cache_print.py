"""How ``fastjit cache`` prints: sizes, times, tables, JSON, the parts of an entry."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from fastjit import _tables, cache
from fastjit._cache import printable

SCHEMA = "fastjit.cache/1"
ENTRY_COLUMNS = ("key", "function", "signature", "target", "bytes", "loads", "compile_ms", "created", "last_used")


human_size = _tables.size


def human_time(ms: float) -> str:
    if ms < 1000:
        return f"{ms:.3g} ms"
    return f"{ms / 1000:.3g} s" if ms < 100_000 else f"{ms / 60_000:.0f} min"


def human_ago(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return "just now"


def note(text: str) -> None:
    """One line to stderr; what it quotes may hold anything."""
    print(f"fastjit: {printable(text)}", file=sys.stderr)


def print_json(**fields: Any) -> None:
    import json

    print(json.dumps({"schema": SCHEMA, **fields}, indent=2))


def record(entry: cache.Entry) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in ENTRY_COLUMNS}


def print_table(
    head: tuple[str, ...], rows: Iterable[tuple[str, ...]], right: frozenset[int], elastic: tuple[int, ...] = ()
) -> None:
    """`elastic`: columns that are cut where the terminal is too narrow."""
    width = _tables.terminal_width()
    print(_tables.layout(head, list(rows), right=right, elastic=elastic, width=width))


def clip(text: str, width: int) -> str:
    return _tables.clip(printable(text), width)


def unique_prefix(keys: Iterable[str]) -> int:
    """Digits that tell all keys apart, at least 8."""
    ordered = sorted(keys)
    return max((common(a, b) + 1 for a, b in itertools.pairwise(ordered)), default=8)


def common(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))


def print_listing(listing: cache.Listing) -> None:
    now = time.time()
    digits = max(8, unique_prefix(entry.key for entry in listing.entries))
    rows = (
        (
            entry.key[:digits],
            clip(entry.function, 40),
            clip(entry.signature, 40),
            printable(entry.target),
            human_size(entry.bytes),
            str(entry.loads),
            human_time(entry.loads * entry.compile_ms) if entry.loads else "-",
            human_time(entry.compile_ms),
            human_ago(now - entry.last_used),
        )
        for entry in listing.entries
    )
    head = ("KEY", "FUNCTION", "SIGNATURE", "TARGET", "SIZE", "LOADS", "SAVED", "COMPILE", "LAST USED")
    if listing.entries:
        print_table(head, rows, frozenset((4, 5, 6, 7)), elastic=(1, 2, 3))
    shown = len(listing.entries)
    part = "" if shown == listing.total_entries else f"{shown} shown of "
    plural = "entry" if listing.total_entries == 1 else "entries"
    size = f"{human_size(listing.total_bytes)} of {human_size(listing.max_bytes)}"
    print(f"{part}{listing.total_entries} {plural}, {size}; {listing.never_loaded} never loaded")


def _disassemble(shown: cache.Shown) -> str:
    import shutil
    import subprocess
    import tempfile

    tools = ("cuobjdump",) if shown.kind == "cubin" else ("objdump", "llvm-objdump", "llvm-objdump-22")
    tool = next((path for name in tools if (path := shutil.which(name))), None)
    missing = f"entries hold no assembly, and no disassembler ({', '.join(tools)}) was found or could read the object"
    if tool is None:
        raise LookupError(missing)
    with tempfile.NamedTemporaryFile(suffix=".o") as file:
        file.write(shown.object)
        file.flush()
        arguments = ["-sass"] if shown.kind == "cubin" else ["-d", "--no-show-raw-insn"]
        done = subprocess.run([tool, *arguments, file.name], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LookupError(missing)
    return done.stdout


def _key_text(shown: cache.Shown) -> str:
    lines = []
    for name, value in shown.key_fields.items():
        lines += [f"{name}:", *("  " + line for line in value.splitlines())] if "\n" in value else [f"{name}: {value}"]
    return "\n".join(lines)


def _source(shown: cache.Shown) -> str:
    if not shown.source:
        raise LookupError(
            'entries for a CPU hold no LLVM IR; inspect("llvm") of the function makes it, --key shows the plan that it '
            "is made from and --asm the machine code"
        )
    return shown.source


def _source_of(kind: str, other: str) -> Callable[[cache.Shown], str]:
    def source(shown: cache.Shown) -> str:
        if shown.kind != kind:
            raise LookupError(f"the entry holds none; --{other} shows its source")
        return _source(shown)

    return source


# Each gives the text, or raises LookupError with the reason why there is none.
SHOW_PARTS: dict[str, Callable[[cache.Shown], str]] = {
    "ir": lambda shown: shown.ir,
    "source": _source,
    "llvm": _source_of("cpu-elf", "cuda"),
    "cuda": _source_of("cubin", "llvm"),
    "asm": _disassemble,
    "key": _key_text,
    "meta": lambda shown: "\n".join(f"{name}: {value}" for name, value in shown.meta.items()),
}


def printable_lines(text: str) -> str:
    return "\n".join(printable(line.expandtabs()) for line in text.splitlines())
