"""`python docs/generate.py`: writes docs/settings.md from the tables in the code.

`--check` writes nothing and exits with 1 when the file differs. Two more pages are written by programs of their own:
docs/ops.md by `python -m fastjit._opsdoc`, docs/numerics.md by tests/reference/numerics_table.py.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

from fastjit import api
from fastjit._load import extension

SETTINGS = Path(__file__).resolve().parent / "settings.md"

_TEXT = """# Settings

Written by `python docs/generate.py` from the tables in the code (`jit/support/settings.def`, `OPTIONS` in
`python/fastjit/api.py`); a test compares.

## Options of the decorator

`@fastjit(option=value, ...)`, keyword only. An unknown option is a TypeError that names the nearest one; options of
`torch.compile` (`mode=`, `dynamic=`, `fullgraph=`, …) are answered with what to say here instead.

| option | default | values | what it does |
| --- | --- | --- | --- |
{options}
## Environment variables

Each is read when it is first needed, at the latest at the first compile; later changes are not noticed. Sizes take
K, M, G and KiB, MiB, GiB, all powers of 1024. A value that cannot be read is reported once on stderr when the extension
is loaded, with the values that are possible, and the default holds. An unknown `FASTJIT_` name is reported too, with
the nearest known one.

| variable | default | values | what it does |
| --- | --- | --- | --- |
{variables}
## Switches in the code

| | |
| --- | --- |
| `with fastjit.stance("eager"):` | within the block every function runs as written |
| `with fastjit.stance("error_on_compile"):` | within the block a call that would compile raises RuntimeError |
| `with fastjit.stance("default"):` | within the block functions are compiled and run as usual |
| `torch.set_num_threads(n)` | also sets the number of threads of kernels |

A stance counts for the thread or asyncio task that runs the block, and for the tasks that it starts;
other threads have their own. `FASTJIT_DISABLE=1` is for the whole process, whatever the stance.

## Who can run code, and what stays in memory

Entries of the disk cache are machine code: whoever can write to `FASTJIT_CACHE_DIR` can run code as every user whose
programs read it. The engine refuses folders and files of others, or that others may write to;
[cache.md](cache.md#who-can-run-code-through-the-cache) says what is left to you.

Memory of outputs and intermediates stays warm for the next call, up to `FASTJIT_POOL` bytes. What nobody took for a
minute goes back to the system. No thread waits for that: calls look for it, compiles, and Python's garbage collector
(a callback in `gc.callbacks`). A process that runs no Python at all therefore keeps it; `gc.collect()` a minute
after the last call gives it back, and `FASTJIT_POOL=0` keeps nothing.
"""


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |\n"


def _meanings() -> dict[str, str]:
    """Option -> its paragraph in the docstring of fastjit()."""
    text = inspect.cleandoc(api.fastjit.__doc__ or "").partition("Args:\n")[2].partition("\n\n")[0]
    found = re.findall(r"^    (\w+): (.*(?:\n     .*)*)", text, re.MULTILINE)
    return {name: re.sub(r"\s+", " ", meaning) for name, meaning in found}


def _values(allowed: tuple[Any, ...]) -> str:
    words = {str: "text", int: "a positive number", bool: "True, False", float: "a number from 0 to 1"}
    return ", ".join(words.get(a, f"`{a!r}`") for a in allowed if a is not type(None))


def document() -> str:
    """The text of docs/settings.md."""
    meanings = _meanings()
    options = "".join(
        _row(f"`{name}`", f"`{default!r}`", _values(allowed), meanings[name])
        for name, (default, allowed) in api.OPTIONS.items()
    )
    variables = "".join(
        _row(f"`{name}`", default or "unset", unit, meaning) for name, default, unit, meaning in extension.settings()
    )
    return _TEXT.format(options=options, variables=variables)


def main(arguments: list[str]) -> int:
    text = document()
    if "--check" in arguments:
        return int(not SETTINGS.exists() or SETTINGS.read_text(encoding="utf-8") != text)
    SETTINGS.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
