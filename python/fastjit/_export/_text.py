"""Pieces of C."""

from __future__ import annotations

from collections.abc import Iterable


def quoted(text: str) -> str:
    """A string of C."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") + '"'


def braces(values: Iterable[object]) -> str:
    return "{" + ", ".join(map(str, values)) + "}"


def table(kind: str, name: str, rows: Iterable[str], empty: str = "0") -> str:
    """A table; one without rows, of which C has none, has the row `empty`."""
    return f"static const {kind} {name}[] = {{\n" + "".join(f"  {row},\n" for row in list(rows) or [empty]) + "};\n"
