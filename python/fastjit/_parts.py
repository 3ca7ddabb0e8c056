"""What a function that cannot be one program is made of, by name."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

import torch

MOST_NAMED = 3


def named(function: Any, module: torch.nn.Module | None) -> dict[str, Any]:
    """The parts of a compiled function, as they were found; ``module`` is what it was made of, None: of no module."""
    paths = {} if module is None else {id(inner): path for path, inner in module.named_modules()}
    parts: dict[str, Any] = {}
    for part, inner in function._parts():
        parts[_free(_name(part, inner, paths), parts)] = part
    return parts


def _name(part: Any, module: torch.nn.Module | None, paths: dict[int, str]) -> str:
    code = part.__wrapped__.__code__
    if module is not None:
        path = paths.get(id(module)) or type(module).__qualname__
        return path if code.co_name in ("_call_impl", "forward") else f"{path}.{code.co_name}"
    return f"{code.co_qualname} ({PurePath(code.co_filename).name}:{code.co_firstlineno})"


def _free(name: str, taken: dict[str, Any]) -> str:
    same = sum(other == name or other.startswith(f"{name} #") for other in taken)
    return f"{name} #{same + 1}" if same else name


def sentence(parts: dict[str, Any]) -> str:
    """For the end of what explain() says."""
    first = ", ".join(list(parts)[:MOST_NAMED])
    more = len(parts) - MOST_NAMED
    return f"; these parts of it run as programs: {first}" + (f" and {more} more (see parts())" if more > 0 else "")


def where_to_inspect(parts: dict[str, Any], stage: str) -> str:
    """What to ask where the function itself has no program, or nothing where it has no parts either."""
    return f"it runs in parts: ask parts()[{next(iter(parts))!r}].inspect({stage!r})" if parts else ""
