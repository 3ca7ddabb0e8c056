"""Values in messages."""

from __future__ import annotations

from fastjit._cache import printable

_MOST = 80


def excerpt(value: object) -> str:
    """The start of an object's repr, on one line."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # whatever its class does, the message is about the option
        text = f"an object of type {type(value).__name__}"
    return printable(text if len(text) <= _MOST else text[: _MOST - 1] + "…")
