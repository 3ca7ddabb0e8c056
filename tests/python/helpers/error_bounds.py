"""How far a float result may be off: the promised error of each operator, carried through the call (running error).

A call runs in f64 once as it is and then with every operator's result moved by what that operator may be off: the bound
of tests/reference/math_bounds.json for a function, (log2 n + 8) eps sum|x| for a sum of n, half a unit for what IEEE
rounds, and eager's rounding to the element type. What has no promise is taken apart by torch's own decompositions.
The widest distance to the unmoved run is the bound. There is none (only eager's own error counts) where an operator has
neither, or where a move changes a comparison, an index or a rounding to integers.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

DRAWS = 6
# What counts as equal to eager where both are within a unit of the exact value.
ULPS = 2.0
# Accepted up to 1.5 times the first-order bound and one unit.
SLACK, UNITS = 1.5, 1.0
BOUNDS = Path(__file__).parents[2] / "reference" / "math_bounds.json"
# Units of what has no algorithm of its own: one rounding of IEEE's; 1 / sqrt(x) has two.
ROUNDINGS = dict.fromkeys(["add", "sub", "rsub", "mul", "div", "true_divide", "sqrt", "reciprocal"], 0.5)
ROUNDINGS["rsqrt"] = 1.5
# Linear in each operand, so that their bound is the same sum over magnitudes.
SUMS = {"sum", "mean", "cumsum", "mv", "mm", "bmm", "dot", "addmm", "addmv", "baddbmm", "addbmm", "convolution"}
PRODUCTS = {"prod", "cumprod"}
# A step of their operand: discrete, though of a float type.
STEPS = {"floor", "ceil", "round", "trunc", "sign", "sgn", "heaviside"}


def spacing(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """One unit of `dtype` at x."""
    info = torch.finfo(dtype)
    return torch.exp2(torch.floor(torch.log2(x.abs().double().clamp(min=info.tiny)))) * info.eps


def error(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Distance in units of `dtype` at `want`, elementwise; infinite where NaN or an infinity differ."""
    g, w = got.double(), want.double()
    apart = (g - w).abs() / spacing(torch.where(w.isfinite(), w, 1.0), dtype)
    same = (g == w) | (g.isnan() & w.isnan())
    return torch.where(same, 0.0, torch.where(apart.isnan() | g.isinf() | w.isinf(), math.inf, apart))


def distance(x: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """|x - truth|; 0 between equal infinities and between NaNs."""
    x = x.double()
    return torch.where((x == truth) | (x.isnan() & truth.isnan()), 0.0, (x - truth).abs())


def sum_bound(terms: float, eps: float, magnitude: torch.Tensor) -> torch.Tensor:
    """(log2 n + 8) eps sum|x|: how far a sum of n terms, whose magnitudes add up to `magnitude`, may be off."""
    return (math.log2(max(terms, 1)) + 8) * eps * magnitude


class Draw:
    """One run: number 0 moves nothing, 1 moves everything up, 2 down, each other one every element either way."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.generator = torch.Generator().manual_seed(number)

    def move(self, t: torch.Tensor, by: torch.Tensor | float) -> None:
        """Moves each element of `t` by `by`, in place; a tensor whose elements share memory stays as it is."""
        shared = any(n > 1 and step == 0 for n, step in zip(t.shape, t.stride(), strict=True))
        if not self.number or shared or not t.is_floating_point():
            return
        if self.number <= 2:
            sign = torch.full(t.shape, 3.0 - 2 * self.number, dtype=torch.float64)
        else:
            sign = torch.randint(0, 2, t.shape, generator=self.generator).double() * 2 - 1
        t += torch.where(t.isfinite(), sign * by, 0.0).to(t.dtype)


def widest(run: Callable[[Draw], Iterable[torch.Tensor]]) -> list[torch.Tensor]:
    """Per result of `run`: how far the draws move each element from the unmoved run."""
    first, *moved = [[t.double() for t in run(Draw(number))] for number in range(DRAWS)]
    distances = [torch.stack([(other[k] - first[k]).abs() for other in moved]).amax(0) for k in range(len(first))]
    return [torch.where(d.isnan(), 0.0, d) for d in distances]


class NoBound(Exception):
    """The call takes a step that has no promise, or that a move changes."""


@functools.cache
def promises() -> dict[tuple[str, torch.dtype], float]:
    """(function, type it is computed in) -> units."""
    types = {"f32": torch.float32, "f64": torch.float64}
    rows = json.loads(BOUNDS.read_text(encoding="utf-8"))
    found = {(row["function"], types[row["type"]]): float(row["bound"]) for row in rows}
    return found | {(name, dtype): units for name, units in ROUNDINGS.items() for dtype in types.values()}


def tensors_of(tree: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]


def only_copies(out: Any, operands: Any) -> bool:
    """Every float of `out` is, up to its sign, an element of the operands, a number among them, 0 or 1."""
    tensors = [t.double().flatten() for t in tensors_of(operands)]
    numbers = [float(v) for v in pytree.tree_leaves(operands) if isinstance(v, (int, float))]
    known = torch.cat([*tensors, torch.tensor([0.0, 1.0, *numbers])]).nan_to_num().abs()
    floats = [t for t in tensors_of(out) if t.is_floating_point()]
    return all(bool(torch.isin(t.double().nan_to_num().abs(), known).all()) for t in floats)


def variance(x: torch.Tensor, dim: Any = None, correction: float | None = None, keepdim: bool = False, **_: Any) -> Any:
    dims = dim or list(range(x.dim()))
    apart = x - x.mean(dims, keepdim=True)
    total = (apart * apart).sum(dims, keepdim=keepdim)
    count = x.numel() / max(total.numel(), 1)
    return total / max(count - (1 if correction is None else correction), 0)


# Torch's own decompositions end in an operator without a promise.
FORMULAS = {torch.ops.aten.var.correction: variance, torch.ops.prims.var.default: variance}


class Running(TorchDispatchMode):
    """Moves every operator's result by what it may be off in `dtype`; the operands are f64.

    `decided` are the discrete results of the unmoved run, which fills the list; every other run must repeat them.
    """

    def __init__(self, dtype: torch.dtype, draw: Draw, decided: list[torch.Tensor]) -> None:
        super().__init__()
        self.dtype, self.draw = dtype, draw
        self.inner = torch.float64 if dtype == torch.float64 else torch.float32
        self.depth, self.decided, self.rest = 0, decided, iter(decided)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.split("::")[1]
        name = name if name.startswith("_") else name.rstrip("_")
        apart = FORMULAS.get(func) or decomposition_table.get(func)
        if func.is_view:
            return func(*args, **kwargs)
        units = None if kwargs.get("rounding_mode") else promises().get((name, self.inner))
        if units is None and name not in SUMS | PRODUCTS | STEPS:
            before = pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
            out = func(*args, **kwargs)
            copies = self.copies(name, out, before)
            if not func._schema.is_mutable and apart and not copies:
                self.depth += 1
                with self:
                    out = apart(*args, **kwargs)
                self.depth -= 1
                if not self.depth and self.dtype != self.inner:
                    for t in tensors_of(out):
                        self.draw.move(t, 0.5 * spacing(t, self.dtype))
            elif not copies and any(t.is_floating_point() for t in tensors_of(out)):
                raise NoBound(name)
            return self.decide(name, out)
        by = self.sum_error(name, func, args, kwargs) if name in SUMS else 0.0
        out = func(*args, **kwargs)
        if units is not None:
            by = units * spacing(out, self.inner)
        elif name in PRODUCTS:
            by = 0.5 * args[0].numel() / max(out.numel() if name == "prod" else 1, 1) * spacing(out, self.inner)
        if self.dtype != self.inner and not self.depth:
            by = by + 0.5 * spacing(out, self.dtype)
        if name not in STEPS:
            self.draw.move(out, by)
        return self.decide(name, out)

    def sum_error(self, name: str, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
        sizes = pytree.tree_map(lambda v: v.abs() if isinstance(v, torch.Tensor) else v, args)
        total = func(*sizes, **kwargs)
        tensors = tensors_of(args)
        if name in ("sum", "mean"):
            terms = tensors[0].numel() / max(total.numel(), 1)
        elif name == "convolution":
            is_transposed = args[6]
            terms = tensors[1].numel() / max(tensors[1].size(1 if is_transposed else 0), 1) + 1
        else:
            terms = tensors[0].numel() if name == "cumsum" else tensors[-2].size(-1) + 1
        return sum_bound(terms, torch.finfo(self.inner).eps, total)

    def copies(self, name: str, out: Any, operands: Any) -> bool:
        return only_copies(out, operands)

    def decide(self, name: str, out: Any) -> Any:
        for t in pytree.tree_leaves(out):
            if not isinstance(t, torch.Tensor) or (t.is_floating_point() and name not in STEPS):
                continue
            if not self.draw.number:
                self.decided.append(t.clone())
            elif (same := next(self.rest, None)) is None or not torch.equal(t, same):
                raise NoBound(name)
        return out


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def in_f64(value: Any) -> Any:
    """A copy of one leaf of the arguments; floats, and the names of their types, become f64."""
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() and value.dtype != torch.float64 else value.clone()
    return torch.float64 if isinstance(value, torch.dtype) and value.is_floating_point else value


class Reference:
    """One call in f64: its results and arguments after the call, and how far they may be off in a type."""

    def __init__(self, op: Callable[..., Any], args: tuple, kwargs: dict) -> None:
        self.op, self.args, self.kwargs = op, args, kwargs
        self.found: dict[torch.dtype | None, list[torch.Tensor] | None] = {}

    def run(self, mode: contextlib.AbstractContextManager[Any]) -> list[torch.Tensor]:
        args, kwargs = pytree.tree_map(in_f64, (self.args, self.kwargs))
        torch.manual_seed(3)
        with default_dtype(torch.float64), mode:
            out = self.op(*args, **kwargs)
        return tensors_of((out, args, kwargs))

    def exact(self) -> list[torch.Tensor] | None:
        """None where torch refuses f64."""
        if None not in self.found:
            try:
                self.found[None] = self.run(contextlib.nullcontext())
            except (RuntimeError, TypeError, NotImplementedError, ValueError):
                self.found[None] = None
        return self.found[None]

    def bound(self, dtype: torch.dtype) -> list[torch.Tensor] | None:
        """None where no first-order bound exists."""
        if dtype not in self.found:
            decided: list[torch.Tensor] = []
            try:
                self.found[dtype] = widest(lambda draw: self.run(Running(dtype, draw, decided)))
            except (NoBound, RuntimeError, TypeError, NotImplementedError, ValueError):
                self.found[dtype] = None
        return self.found[dtype]

    def wrong(self, k: int, got: torch.Tensor, want: torch.Tensor, ulps: float = ULPS, composed: bool = True) -> str:
        """What is wrong with the k-th tensor of results and arguments, where eager gives `want`; "" if nothing.

        Right is what is within `ulps` of eager, as near to the exact value as eager, or (`composed`) within the bound.
        """
        off = error(got, want, want.dtype)
        if bool((off <= ulps).all()):
            return ""
        exact = self.exact()
        if exact is None or exact[k].shape != want.shape or not exact[k].is_floating_point():
            return f"{off.max():.3g} ulp, no f64 reference: {got} is not {want}"
        truth = exact[k].double()
        unit = spacing(truth.nan_to_num(0, 0, 0), want.dtype)
        allowed = distance(want, truth).nan_to_num(0, 0, 0) + (0.0 if composed else ulps * unit)
        bounds = self.bound(want.dtype) if composed else None
        if bounds is not None:
            # In f64 the reference is as far off as eager may be.
            sides = 2 if want.dtype == torch.float64 else 1
            allowed = torch.maximum(allowed, sides * (SLACK * bounds[k] + UNITS * unit))
        bad = ~((off <= ulps) | (distance(got, truth) <= allowed))
        if not bool(bad.any()):
            return ""
        shown = f"{got[bad][:4].tolist()} is not {want[bad][:4].tolist()}, in f64 {truth[bad][:4].tolist()}"
        return f"{off[bad].max():.3g} ulp: {shown}, allowed {allowed[bad][:4].tolist() if bounds else 'eager'}"
