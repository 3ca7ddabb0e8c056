"""One Python file that shows what ``verify=`` found: the captured program, its inputs and both results."""

from __future__ import annotations

import base64
import contextlib
import io
import os
import re
import textwrap
import time
from pathlib import Path
from typing import Any

import torch

from fastjit import _cache, _source
from fastjit._load import extension as _C

MAX_BYTES = 64 << 20  # of inputs and results together; larger ones are not kept
MAX_FILES = 32  # the oldest go

_MAIN = """

def distance(a, b):
    off = torch.where((a == b) | ((a != a) & (b != b)), 0.0, (a.double() - b.double()).abs())
    return f"{off.max().item():.3g} (in {int((off != 0).sum())} of {off.numel()} elements)" if off.numel() else "0"


def main():
    data = torch.load(io.BytesIO(base64.b64decode(DATA)), weights_only=True)
    if not data:
        print("the tensors were too large to keep")
        return
    torch.manual_seed(0)
    try:
        outputs = program(data["inputs"], SCALARS) + list(data["inputs"].values())
    except Exception as error:
        print(f"the captured program cannot be played in torch: {type(error).__name__}: {error}")
        outputs = []
    for n, (name, eager, fast) in enumerate(data["results"]):
        line = f"{name}: fastjit - eager {distance(fast, eager)}"
        if len(outputs) == len(data["results"]):
            line += f", captured program - eager {distance(outputs[n], eager)}"
        print(line)


if __name__ == "__main__":
    main()
"""


def _number(value: float | int) -> str:
    return f"float({str(value)!r})" if isinstance(value, float) else repr(value)


def _data(names: list[str], inputs: list[torch.Tensor], results: list[tuple[str, torch.Tensor, torch.Tensor]]) -> bytes:
    tensors = [*inputs, *(t for row in results for t in row[1:])]
    kept: dict[str, Any] = {}
    if sum(t.untyped_storage().nbytes() for t in tensors) <= MAX_BYTES:
        kept = {
            "inputs": {name: t.detach() for name, t in zip(names, inputs, strict=True)},
            "results": [(name, want.detach(), got.detach()) for name, want, got in results],
        }
    buffer = io.BytesIO()
    torch.save(kept, buffer)
    return buffer.getvalue()


def _text(
    facts: dict[str, Any], what: str, inputs: list[torch.Tensor], results: list[tuple[str, torch.Tensor, torch.Tensor]]
) -> str:
    def plain(text: str) -> str:
        return text.replace("\\", "/").replace('"""', "'''")

    head = (
        f'"""A compiled call of {plain(facts["name"])}({plain(facts["signature"])}) differed from eager.\n\n'
        f"{plain(what)}\n\nfastjit {_C.version} (engine {_C.build_id}, {_C.host_isa()}), torch {torch.__version__}.\n"
        "Run this file with Python: it runs the captured program and compares it with both results.\n"
        '"""\n\nimport base64\nimport io\n\n'
    )
    scalars = ", ".join(f"{name!r}: {_number(value)}" for name, value in facts["scalars"].items())
    data = "\n".join(textwrap.wrap(base64.b64encode(_data(facts["inputs"], inputs, results)).decode(), 118))
    return (
        head
        + _source.from_ir(facts["ir"], facts["calls"])
        + f'\n\nSCALARS = {{{scalars}}}\nDATA = """\n{data}\n"""\n'
        + _MAIN
    )


def _room(folder: Path) -> None:
    files = sorted(folder.glob("*.py"), key=lambda file: file.stat().st_mtime)
    for file in files[: len(files) - MAX_FILES + 1]:
        with contextlib.suppress(OSError):
            file.unlink()


def write(
    facts: dict[str, Any], what: str, inputs: list[torch.Tensor], results: list[tuple[str, torch.Tensor, torch.Tensor]]
) -> str:
    """Writes the file into ``reproducers/`` of the cache folder and returns its path, or says why there is none.

    Args:
        facts: of the program, as ``_C.Shadow.describe()`` gives them.
        what: the difference in words.
        inputs: the program's inputs before the call.
        results: name, eager's tensor and the program's, of each result and of each input after the call.
    """
    location = _cache.locate()
    if location.problem:
        return f"none ({location.problem})"
    name = re.sub(r"[^A-Za-z0-9_]+", "-", facts["name"]).strip("-")[:60]
    folder = Path(location.path) / "reproducers"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _room(folder)
        path = folder / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(4).hex()}.py"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(_text(facts, what, inputs, results))
    except OSError as error:
        return f"none ({error})"
    return str(path)
