"""Samples of op_db that require grad, forward and back under fastjit, against eager."""

from __future__ import annotations

import concurrent.futures
import itertools
import multiprocessing
import re
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils import _pytree as pytree

from error_bounds import tensors_of
from fastjit import fastjit
from opinfo_tools import REFUSALS, Row, fresh, name_of

CALLS = 3
# A value may be UNITS of its type's off, of the largest value of its tensor, or TIMES as far from f64 as eager's.
UNITS, TIMES = 16, 32


def leaves_of(tree: Any) -> list[torch.Tensor]:
    return [t for t in tensors_of(tree) if t.requires_grad]


def requiring(tree: Any, like: Any, dtype: torch.dtype | None = None) -> Any:
    """A copy of the arguments, of which those require grad that do in `like`."""
    copy = fresh(pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, tree))
    if dtype:
        copy = pytree.tree_map_only(torch.Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, copy)
    for t, old in zip(tensors_of(copy), tensors_of(like), strict=True):
        t.requires_grad_(old.requires_grad)
    return copy


def went(op: Callable[..., Any], sample: Any, dtype: torch.dtype | None = None) -> list[torch.Tensor | None]:
    """The results of one call and the gradients of what requires grad, for gradients drawn anew from the same seed."""
    positional, named = requiring(sample, sample, dtype)
    torch.manual_seed(3)
    out = op(*positional, **named)
    results = [t for t in tensors_of(out) if t.requires_grad]
    generator = torch.Generator().manual_seed(5)
    grads = [torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t.dtype) for t in results]
    leaves = leaves_of((positional, named))
    found = torch.autograd.grad(results, leaves, grads, allow_unused=True) if results else ()
    return [*(t.detach() for t in tensors_of(out)), *found]


def difference(got: list[Any], want: list[Any], in_f64: Callable[[], list[Any]]) -> str:
    truth: list[Any] = []
    for k, (g, w) in enumerate(zip(got, want, strict=True)):
        if (g is None) != (w is None):
            return f"tensor {k} is {'None' if g is None else 'there'}, unlike eager's"
        if w is None:
            continue
        if (g.dtype, g.shape, g.layout) != (w.dtype, w.shape, w.layout):
            return f"tensor {k} is {g.dtype}{list(g.shape)}, eager's {w.dtype}{list(w.shape)}"
        if not w.numel():
            continue
        g, w = (t.to_dense() if t.layout != torch.strided else t for t in (g, w))
        if w.is_complex():
            g, w = (torch.view_as_real(t.resolve_conj().to(torch.complex64)) for t in (g, w))
        if not w.is_floating_point():
            if not torch.equal(g, w):
                return f"tensor {k}: {g} is not {w}"
            continue
        truth = truth or in_f64()
        is_known = truth[k] is not None and truth[k].shape == w.shape and not truth[k].is_complex()
        exact = truth[k].double() if is_known else w.double()
        own = float((w.double() - exact).abs().nan_to_num(0, 0, 0).max())
        size = float(w.double().nan_to_num(0, 0, 0).abs().max())
        allowed = TIMES * own + UNITS * torch.finfo(w.dtype).eps * size
        bad = ~((g == w) | (g.isnan() & w.isnan()) | ((g.double() - w.double()).abs() <= allowed))
        if bool(bad.any()):
            return f"tensor {k}: {g[bad][:4].tolist()} is not {w[bad][:4].tolist()}, in f64 {exact[bad][:4].tolist()}"
    return ""


def turned(sample: Any) -> Any:
    """The sample with the elements of its tensors of whole numbers in another order: lengths, indices, masks."""

    def turn(t: torch.Tensor) -> torch.Tensor:
        is_plain = t.layout == torch.strided and not t.is_floating_point() and not t.is_complex()
        return t.flip(0) if is_plain and t.dim() else t

    return pytree.tree_map_only(torch.Tensor, turn, sample)


def row_of(op: OpInfo, sample: Any) -> Row:
    where = (name_of(op), "float32", "contiguous")
    try:
        want = went(op.op, sample)
        again = went(op.op, sample)
    except REFUSALS as refusal:
        return Row(*where, "refused", str(refusal).partition("\n")[0])
    if len(want) == 0 or not any(t is not None for t in want):
        return Row(*where, "refused", "no gradient")
    if any(t is not None and t.layout != torch.strided for t in want):
        return Row(*where, "refused", "sparse tensors")
    if difference(again, want, lambda: want):
        return Row(*where, "refused", "eager differs from call to call")

    def in_f64_of(given: Any, instead: list[Any]) -> Callable[[], list[Any]]:
        def run() -> list[Any]:
            try:
                return went(op.op, given, torch.float64)
            except REFUSALS:
                return instead

        return run

    other = turned(sample)
    try:
        want_other = went(op.op, other)
    except REFUSALS:  # these are none that it takes
        other, want_other = sample, want

    fast = fastjit(on_unsupported="eager")(lambda *positional, **named: op.op(*positional, **named))
    try:
        for call in range(CALLS):
            if wrong := difference(went(fast, sample), want, in_f64_of(sample, want)):
                return Row(*where, "wrong", f"call {call + 1}: {wrong}")
        if wrong := difference(went(fast, other), want_other, in_f64_of(other, want_other)):
            return Row(*where, "wrong", f"with other whole numbers: {wrong}")
    except Exception as raised:
        return Row(*where, "wrong", f"raised {type(raised).__name__}: {raised}")
    stats = fast.stats()
    if stats.hits:
        return Row(*where, "hit")
    why = next(iter(stats.fallbacks), "no hit")
    return Row(*where, "eager", re.sub(r" at \S+:\d+$", "", why))


def rows_of(index: int, samples: int) -> list[Row]:
    op = op_db[index]
    torch.set_num_threads(1)
    if not op.supports_autograd or not op.supports_dtype(torch.float32, "cpu"):
        return []
    with torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        try:
            found = list(itertools.islice(op.sample_inputs("cpu", torch.float32, requires_grad=True), samples))
        except REFUSALS as refusal:
            return [Row(name_of(op), "float32", "contiguous", "refused", str(refusal))]
        trees = [((s.input, *s.args), dict(s.kwargs)) for s in found]
        return [row_of(op, tree) for tree in trees if leaves_of(tree)]


def sweep(indices: list[int], samples: int, processes: int = 2) -> list[Row]:
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, context) as pool:
        parts = pool.map(rows_of, indices, itertools.repeat(samples), chunksize=4)
        return [row for part in parts for row in part]
