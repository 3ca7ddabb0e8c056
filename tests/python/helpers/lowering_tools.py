"""Compares one operator call in eager with its lowering, evaluated node by node in plain ATen calls."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from error_bounds import ULPS, Reference
from fastjit import _C

ROWS = {name for name, lowered in _C.lowered_ops() if lowered}
FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
]


def row_of(op: Any) -> str:
    """The row of an OpOverload: in-place operators share their functional form's."""
    name, overload = op._schema.name, op._schema.overload_name
    if name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    return f"{name}.{overload}" if overload else name


def copies(tree: Any) -> Any:
    """Clones of the tensors in `tree`."""
    return pytree.tree_map_only(torch.Tensor, torch.clone, tree)


def compare(
    op: Any, args: tuple, kwargs: dict, symbolic: bool = False, ulps: float = ULPS, composed: bool = True
) -> str | None:
    """None if lowering and eager agree, "extern" if the row leaves the call to torch, else what differs.

    Integers and bools must be equal; floats as Reference.wrong says.
    """
    schema = op._schema
    eager, lowered, text = _C.lower_and_evaluate(
        schema.name, schema.overload_name, row_of(op), symbolic, copies(args), copies(kwargs)
    )
    if lowered is None:
        return "extern"
    reference = Reference(op, args, kwargs)
    if [t is None for t in eager] != [t is None for t in lowered]:
        return f"other results are no tensors: {lowered} for {eager}\n{text}"
    pairs = [pair for pair in zip(eager, lowered, strict=True) if pair[0] is not None]
    for k, (want, got) in enumerate(pairs):
        if want.dtype != got.dtype or want.shape != got.shape:
            return f"result {k} is {got.dtype}{list(got.shape)}, eager's {want.dtype}{list(want.shape)}\n{text}"
        if not want.is_floating_point():
            if not torch.equal(want, got):
                return f"result {k}: {got} is not {want}\n{text}"
        elif wrong := reference.wrong(k, got, want, ulps, composed):
            return f"result {k}: {wrong}\n{text}"
    return None


class Check(TorchDispatchMode):
    """Compares every operator call that has a row; `seen` counts (row, outcome)."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, dict[str, int]] = {}
        self.wrong: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        row = row_of(func)
        if row not in ROWS:
            return func(*args, **kwargs)
        before = copies(args)
        out = func(*args, **kwargs)
        outcome = compare(func, before, kwargs)
        counts = self.seen.setdefault(row, {})
        kind = "lowered" if outcome is None else "extern" if outcome == "extern" else "wrong"
        counts[kind] = counts.get(kind, 0) + 1
        if kind == "wrong":
            self.wrong.append(f"{func} {describe(before)} {kwargs}: {outcome}")
        return out


def describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype)[6:]}{list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(describe(v) for v in value) + ")"
    return repr(value)
