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
_OWN = re.compile(r"[A-Za-z0-9_-]*-\d{8}-\d{6}-[0-9a-f]{8}\.py")

_MAIN = """

def distance(a, b):
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return f"{a.dtype} {list(a.shape)} against {b.dtype} {list(b.shape)}"
    differ = ~((a == b) | ((a != a) & (b != b)))
    pairs = zip(a[differ].tolist(), b[differ].tolist())
    most = max((abs(x - y) for x, y in pairs), default=0)  # in Python's numbers: integers are exact
    return f"{most:.3g} (in {int(differ.sum())} of {a.numel()} elements)" if a.numel() else "0"


def main():
    print("found:", FOUND)
    data = torch.load(io.BytesIO(base64.b64decode(DATA)), weights_only=True)
    if not data:
        print("the tensors were too large to keep")
        return
    torch.set_rng_state(data["random_state"])
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


Results = list[tuple[str, torch.Tensor, torch.Tensor]]  # name, eager's tensor, the program's


def _data(names: list[str], inputs: list[torch.Tensor], random_state: torch.Tensor, results: Results) -> bytes:
    tensors = [*inputs, *(t for row in results for t in row[1:])]
    kept: dict[str, Any] = {}
    if sum(t.untyped_storage().nbytes() for t in tensors) <= MAX_BYTES:
        kept = {
            "random_state": random_state,
            "inputs": {name: t.detach() for name, t in zip(names, inputs, strict=True)},
            "results": [(name, want.detach(), got.detach()) for name, want, got in results],
        }
    buffer = io.BytesIO()
    torch.save(kept, buffer)
    return buffer.getvalue()


def _text(
    facts: dict[str, Any], what: str, inputs: list[torch.Tensor], random_state: torch.Tensor, results: Results
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
    kept = base64.b64encode(_data(facts["inputs"], inputs, random_state, results)).decode()
    data = "\n".join(textwrap.wrap(kept, 118))
    return (
        head
        + _source.from_ir(facts["ir"], facts["steps"])
        + f'\n\nFOUND = {what!r}\nSCALARS = {{{scalars}}}\nDATA = """\n{data}\n"""\n'
        + _MAIN
    )


def _room(folder: Path) -> None:
    files = sorted((f for f in folder.iterdir() if _OWN.fullmatch(f.name)), key=lambda file: file.stat().st_mtime)
    for file in files[: len(files) - MAX_FILES + 1]:
        with contextlib.suppress(OSError):
            file.unlink()


def write(
    facts: dict[str, Any], what: str, inputs: list[torch.Tensor], random_state: torch.Tensor, results: Results
) -> str:
    """Writes the file into ``reproducers/`` of the cache folder and returns its path, or says why there is none.

    Args:
        facts: of the program, as ``_C.Shadow.describe()`` gives them.
        what: the difference in words.
        inputs: the program's inputs before the call.
        random_state: of torch's generator, before the call.
        results: name, eager's tensor and the program's, of each result and of each input after the call.
    """
    location = _cache.locate()
    if location.problem:
        return f"none ({location.problem})"
    name = re.sub(r"[^A-Za-z0-9_]+", "-", facts["name"]).strip("-")[:60]
    folder = Path(location.path) / "reproducers"
    try:
        _cache.make_folder(location.path)
        if problem := _cache.folder_problem(location.path):
            return f"none (the cache folder is not used: {problem})"
        folder.mkdir(mode=0o700, exist_ok=True)
        _room(folder)
        path = folder / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(4).hex()}.py"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(_text(facts, what, inputs, random_state, results))
    except OSError as error:
        return f"none ({error})"
    return str(path)
