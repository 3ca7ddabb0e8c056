"""``python -m fastjit._opsdoc [FILE]``: docs/ops.md, what becomes of every entry of torch's operator database."""

from __future__ import annotations

import collections
import itertools
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree

from fastjit import _C

_FIRST = "2.13"  # the release whose table stands in full; of others the document says what differs
_DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64)
_HEAD = """# Operators

Written by `python -m fastjit._opsdoc docs/ops.md` from torch {torch}'s operator database (`op_db`) and the lowering
table; a test compares. Each entry is recorded on its first {samples} samples of the first dtype it supports:

- **lowered**: every step is fused code or an index map,
- **partly**: some samples are, or some steps are left to torch (named),
- **extern**: one call of torch's own operator inside the program (a view that the function returns is one too),
- **eager**: the whole function runs eagerly; the reason is given.

Other releases of torch have a table of what differs at the end.

{counts}

| entry | state | left to torch, or why |
| --- | --- | --- |
"""
_COUNTS = """{count} entries: {lowered} lowered, {partly} partly, {extern} extern, {eager} eager.
Pointwise entries lowered at least partly: {unary} of {unary_all} unary, {binary} of {binary_all} binary."""
_MARK = "## torch "
_OTHER = (
    _MARK
    + """{release}

{counts} Not as above:

| entry | state | left to torch, or why |
| --- | --- | --- |
"""
)
_GONE = "not there"
_SAMPLES = 3


def _samples(op: Any) -> list[Any]:
    for dtype in _DTYPES:
        if dtype in op.supported_dtypes("cpu"):
            try:
                return list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=False), _SAMPLES))
            except Exception:  # an entry without samples on this machine
                return []
    return []


def _record(op: Any, sample: Any) -> tuple[str, list[str]]:
    """("", operators left to torch) or (why the call cannot be one program, [])."""
    leaves, spec = _pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def call(*now: torch.Tensor) -> Any:
        rest = iter(now)
        filled = [next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        first, args, kwargs = _pytree.tree_unflatten(filled, spec)
        return op(first, *args, **kwargs)

    # adopt: tensors that the operator's Python wrapper made count as inputs.
    found = _C.capture_debug(call, *tensors, adopt=True)
    return found["unsound"], [row["op"] for row in found["calls"]]


def state_of(op: Any) -> tuple[str, str]:
    """The state of one entry and its remark."""
    lowered, left, reasons = 0, collections.Counter[str](), collections.Counter[str]()
    samples = _samples(op)
    for sample in samples:
        try:
            unsound, calls = _record(op, sample)
        except Exception as error:  # the entry's own refusal on this machine (jiterator, MKL-only ...)
            unsound, calls = type(error).__name__, []
        if unsound:
            reasons[re.sub(r"\s+at \S+:\d+", "", unsound).replace("|", "/").splitlines()[0]] += 1
        elif calls:
            left.update(calls)
        else:
            lowered += 1
    names = ", ".join(f"`{name}`" for name in sorted(left))
    if samples and lowered == len(samples):
        return "lowered", ""
    if lowered:
        return "partly", names or next(iter(reasons), "")
    if left:
        return "extern", names
    return "eager", next(iter(reasons), "no sample on the CPU")


def entries() -> list[tuple[str, str, str, str]]:
    """(name, kind, state, remark) of every entry of op_db, in its order."""
    from torch.testing._internal import common_methods_invocations as database
    from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo

    out = []
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in database.op_db:
            kind = "unary" if isinstance(op, UnaryUfuncInfo) else "binary" if isinstance(op, BinaryUfuncInfo) else ""
            name = f"{op.name} ({op.variant_test_name})" if op.variant_test_name else op.name
            out.append((name, kind, *_quiet(state_of, op)))
    return out


def _quiet(function: Callable[[Any], tuple[str, str]], op: Any) -> tuple[str, str]:
    torch.manual_seed(0)
    return function(op)


Row = tuple[str, str, str, str]


def _counts(rows: list[Row]) -> str:
    states = collections.Counter(state for _, _, state, _ in rows)
    reached = collections.Counter(kind for _, kind, state, _ in rows if state in ("lowered", "partly"))
    kinds = collections.Counter(kind for _, kind, _, _ in rows)
    return _COUNTS.format(
        count=len(rows),
        lowered=states["lowered"],
        partly=states["partly"],
        extern=states["extern"],
        eager=states["eager"],
        unary=reached["unary"],
        unary_all=kinds["unary"],
        binary=reached["binary"],
        binary_all=kinds["binary"],
    )


def _line(name: str, state: str, remark: str) -> str:
    return f"| `{name}` | {state} | {remark} |\n"


def release() -> str:
    """The release of the running torch: 2.13."""
    return ".".join(torch.__version__.split(".")[:2])


def parts_of(document: str) -> dict[str, str]:
    """Release -> its part of the document."""
    first, *others = re.split(f"^{_MARK}", document, flags=re.MULTILINE)
    return {_FIRST: first} | {part.split()[0]: _MARK + part for part in others}


def states_in(document: str) -> dict[str, tuple[str, str]]:
    """Entry -> state and remark, in the running torch."""
    parts = parts_of(document)
    found: dict[str, tuple[str, str]] = {}
    for part in dict.fromkeys((_FIRST, release())):
        for name, state, remark in re.findall(
            r"^\| `(.+?)` \| ([\w ]+?) \| (.*) \|$", parts.get(part, ""), re.MULTILINE
        ):
            found[name] = (state, remark)
    return {name: of for name, of in found.items() if of[0] != _GONE}


def document(written: str) -> str:
    """The text of docs/ops.md, of which `written` is the last one: the running torch's part is made anew."""
    rows = entries()
    parts = parts_of(written)
    if release() == _FIRST:
        head = _HEAD.format(torch=torch.__version__, samples=_SAMPLES, counts=_counts(rows))
        part = head + "".join(_line(name, state, remark) for name, _, state, remark in rows)
    else:
        first = states_in(parts[_FIRST])
        part = _OTHER.format(release=release(), counts=_counts(rows))
        part += "".join(_line(name, *of) for name, _, *of in rows if first.get(name) != tuple(of))
        names = {name for name, *_ in rows}
        part += "".join(_line(name, _GONE, "") for name in first if name not in names)
    parts[release()] = part
    return "\n".join(parts[name].rstrip("\n") + "\n" for name in sorted(parts, key=_number))


def _number(release: str) -> list[int]:
    return [int(part) for part in release.split(".")]


def main() -> None:
    if len(sys.argv) > 1:
        path = Path(sys.argv[1])
        path.write_text(document(path.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        sys.stdout.write(document(""))


if __name__ == "__main__":
    main()
