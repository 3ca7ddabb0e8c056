"""Compares one operator call in eager with its lowering, evaluated node by node in plain ATen calls."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fastjit import _C

ROWS = {name for name, lowered in _C.lowered_ops() if lowered}
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


# A product of n factors in another order is up to n / 2 ulp off.
LOOSE = {"aten::prod": 64.0, "aten::prod.dim_int": 8.0}


def row_of(op: Any) -> str:
    """The row of an OpOverload: in-place operators share their functional form's."""
    name, overload = op._schema.name, op._schema.overload_name
    if name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    return f"{name}.{overload}" if overload else name


def copies(value: Any, dtype: torch.dtype | None = None) -> Any:
    """Clones of the tensors in `value`, those of floats in `dtype` if it is given."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if dtype and value.is_floating_point() else value.clone()
    if isinstance(value, (list, tuple)):
        return type(value)(copies(v, dtype) for v in value)
    if isinstance(value, torch.dtype) and dtype and value.is_floating_point:
        return dtype
    return value


def spacing(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    info = torch.finfo(dtype)
    return torch.exp2(torch.floor(torch.log2(x.abs().double().clamp(min=info.tiny)))) * info.eps


def error(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Distance in units of `dtype`'s spacing at `want`, elementwise; infinite where NaN or an infinity differ."""
    g, w = got.double(), want.double()
    apart = (g - w).abs() / spacing(torch.where(w.isfinite(), w, 1.0), dtype)
    same = (g == w) | (g.isnan() & w.isnan())
    return torch.where(same, 0.0, torch.where(apart.isnan() | g.isinf() | w.isinf(), math.inf, apart))


def compare(
    op: Any, args: tuple, kwargs: dict, symbolic: bool = False, ulps: float = 2.0, scale: bool = True
) -> str | None:
    """None if lowering and eager agree, "extern" if the row leaves the call to torch, else what differs.

    Integers and bools must be equal. A float may be `ulps` off eager, or as near as eager to the same operator in f64;
    with `scale` the unit is that of the largest element of the result, for sums that cancel.
    """
    schema = op._schema
    eager, lowered, text = _C.lower_and_evaluate(
        schema.name, schema.overload_name, row_of(op), symbolic, copies(args), copies_of(kwargs)
    )
    if lowered is None:
        return "extern"
    ulps = LOOSE.get(row_of(op), ulps)
    exact = None
    for k, (want, got) in enumerate(zip(eager, lowered, strict=True)):
        if want.dtype != got.dtype or want.shape != got.shape:
            return f"result {k} is {got.dtype}{list(got.shape)}, eager's {want.dtype}{list(want.shape)}\n{text}"
        if not want.is_floating_point():
            if not torch.equal(want, got):
                return f"result {k}: {got} is not {want}\n{text}"
            continue
        off = error(got, want, want.dtype)
        if bool((off <= ulps).all()):
            continue
        if exact is None:
            exact = reference(op, args, kwargs)
        if exact is None:
            return f"result {k}: {off.max():.3g} ulp: {got} is not {want}\n{text}"
        allowed = error(want, exact[k], want.dtype) + ulps
        unit = spacing(exact[k].double().nan_to_num(0, 0, 0).abs().max(), want.dtype) if scale else 0.0
        near = (got.double() - exact[k].double()).abs() <= 4 * unit
        wrong = ~((off <= ulps) | (error(got, exact[k], want.dtype) <= allowed) | near)
        if bool(wrong.any()):
            worst = f"{got[wrong][:5]} is not {want[wrong][:5]}, in f64 {exact[k][wrong][:5]}"
            return f"result {k}: {off[wrong].max():.3g} ulp: {worst}\n{text}"
    return None


def copies_of(kwargs: dict, dtype: torch.dtype | None = None) -> dict:
    return {key: copies(value, dtype) for key, value in kwargs.items()}


def reference(op: Any, args: tuple, kwargs: dict) -> list[torch.Tensor] | None:
    """The call in f64; None where torch refuses it."""
    try:
        out = op(*copies(args, torch.float64), **copies_of(kwargs, torch.float64))
    except (RuntimeError, TypeError, NotImplementedError):
        return None
    return [out] if isinstance(out, torch.Tensor) else list(out)


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
