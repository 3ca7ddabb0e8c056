"""Runs op_db entries under fastjit twice and compares them with eager and, where eager itself rounds, with f64."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fastjit import fastjit
from lowering_tools import copies, error, spacing

# A dtype's own unit is what a correctly rounded result may be off; pointwise functions may be 2 units off eager.
ULPS = 2.0
# Operators that add many numbers, or whose formula cancels: the unit is that of the largest magnitude that is added.
SCALED = {"gelu", "logaddexp", "logaddexp2", "nn.functional.gelu"}


def strided(x: torch.Tensor) -> torch.Tensor:
    """Equal values, every second element of a larger memory."""
    if x.dim() == 0:
        return torch.stack([x, x])[1]
    return torch.stack([x, x], -1).select(-1, 1)


def transposed(x: torch.Tensor) -> torch.Tensor:
    """Equal values, dims in reversed order in memory."""
    order = list(range(x.dim()))[::-1]
    return x.permute(order).contiguous().permute(order)


def repeated(x: torch.Tensor) -> torch.Tensor:
    """The first row, expanded: stride 0."""
    return x[:1].expand_as(x) if x.dim() > 0 and x.size(0) > 0 else x


def shifted(x: torch.Tensor) -> torch.Tensor:
    """Equal values at an address that no vector is aligned to."""
    memory = torch.empty(x.numel() + 1, dtype=x.dtype)[1:]
    return memory.view(x.shape).copy_(x)


LAYOUTS = {"strided": strided, "transposed": transposed, "repeated": repeated, "shifted": shifted}


def empty_first(tree: Any) -> Any:
    """All tensors with their first dim of size 0."""
    return pytree.tree_map_only(torch.Tensor, lambda t: t[:0].clone() if t.dim() else t, tree)


def laid_out(tree: Any, how: str) -> Any:
    if how == "empty":
        return empty_first(tree)
    return pytree.tree_map_only(torch.Tensor, LAYOUTS[how], tree)


def fresh(tree: Any) -> Any:
    """Copies that keep strides, storage offsets and stride-0 dims."""

    def one(t: torch.Tensor) -> torch.Tensor:
        memory = t.untyped_storage().clone()
        return torch.empty(0, dtype=t.dtype).set_(memory, t.storage_offset(), t.size(), t.stride())  # type: ignore[call-overload]

    return pytree.tree_map_only(torch.Tensor, one, tree)


def in_f64(op: Any, args: Any) -> Any:
    """The call in f64, or None where torch refuses it."""
    try:
        positional, named = pytree.tree_map(lambda v: copies(v, torch.float64), args)
        return pytree.tree_leaves(op(*positional, **named))
    except (RuntimeError, TypeError, NotImplementedError, ValueError):
        return None


def difference(got: Any, want: Any, op: Any, args: Any, scaled: bool, ulps: float = ULPS) -> str | None:
    """What differs between two results, or None."""
    g, gs = pytree.tree_flatten(got)
    w, ws = pytree.tree_flatten(want)
    if gs != ws:
        return f"structure {gs} is not {ws}"
    exact = None
    for k, (a, b) in enumerate(zip(g, w, strict=True)):
        if not isinstance(b, torch.Tensor):
            if a != b or type(a) is not type(b):
                return f"result {k} is {a}, eager's {b}"
            continue
        if (a.dtype, a.shape, a.stride()) != (b.dtype, b.shape, b.stride()):
            return f"result {k} is {a.dtype}{list(a.shape)}{a.stride()}, eager's {b.dtype}{list(b.shape)}{b.stride()}"
        if not b.is_floating_point():
            if not torch.equal(
                torch.view_as_real(a) if a.is_complex() else a, torch.view_as_real(b) if b.is_complex() else b
            ):
                return f"result {k}: {a} is not {b}"
            continue
        off = error(a, b, b.dtype)
        if bool((off <= ulps).all()):
            continue
        exact = exact or in_f64(op, args)
        if exact is None or exact[k].shape != b.shape:
            return f"result {k}: {off.max():.3g} ulp off, no f64 reference: {a} is not {b}"
        truth = exact[k].double()
        allowed = error(b, truth, b.dtype) + ulps
        unit = spacing(truth.nan_to_num(0, 0, 0).abs().max(), b.dtype) if scaled and truth.numel() else 0.0
        wrong = ~((off <= ulps) | (error(a, truth, b.dtype) <= allowed) | ((a.double() - truth).abs() <= 4 * unit))
        if bool(wrong.any()):
            return f"result {k}: {off[wrong].max():.3g} ulp: {a[wrong][:4].tolist()} is not {b[wrong][:4].tolist()}, in f64 {truth[wrong][:4].tolist()}"  # noqa: E501
    return None


class Outcome:
    """What one call did: `kind` is lowered, view, extern or fallback; `wrong` says what differs from eager."""

    def __init__(self, kind: str, wrong: str | None = None, detail: str = "") -> None:
        self.kind, self.wrong, self.detail = kind, wrong, detail


def kind_of(fast: Any) -> tuple[str, str]:
    stats = fast.stats()
    graph = fast.inspect("ir")
    real = [line for line in graph.splitlines() if " = extern " in line and "kind=view" not in line]
    if real:
        return "extern", real[0]
    return ("lowered" if stats.kernels else "view"), ""


def run(op: Any, args: Any, scaled: bool, pure: bool, ulps: float = ULPS) -> Outcome:
    """`args` is (positional, named). Results, arguments after the call and counters of two calls under fastjit."""
    positional, named = fresh(args)
    torch.manual_seed(3)
    want = op(*positional, **named)
    after = (positional, named)
    fast = fastjit(pure=pure, on_unsupported="eager")(op)
    for call in range(2):
        positional, named = fresh(args)
        torch.manual_seed(3)
        got = fast(*positional, **named)
        if wrong := difference(got, want, op, args, scaled, ulps) or difference(
            (positional, named), after, op, args, False
        ):
            return Outcome("wrong", f"call {call + 1}: {wrong}")
        stats = fast.stats()
        if stats.fallbacks:
            return Outcome("fallback", None, next(iter(stats.fallbacks)))
    if stats.hits != 1:
        return Outcome("wrong", f"{stats.hits} hits after two calls")
    kind, detail = kind_of(fast)
    return Outcome(kind, None, detail)


def samples_of(op: Any, dtype: torch.dtype, count: int) -> list[Any]:
    """The `count` largest of the first samples (all with count 0) as (positional, named)."""
    found = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=False), 40 if count == 0 else 4))
    trees = [((s.input, *s.args), dict(s.kwargs)) for s in found]

    def size(tree: Any) -> int:
        return -sum(t.numel() for t in pytree.tree_leaves(tree) if isinstance(t, torch.Tensor))

    return trees if count == 0 else sorted(trees, key=size)[:count]
