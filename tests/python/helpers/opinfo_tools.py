"""Runs op_db entries under fastjit twice, in every element type and layout, and compares them with eager."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import multiprocessing
import warnings
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils import _pytree as pytree

from error_bounds import Reference
from fastjit import fastjit
from lowering_tools import DTYPES

# A refusal of eager's, which ends a combination before fastjit is asked.
REFUSALS = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError, AssertionError)


def contiguous(x: torch.Tensor) -> torch.Tensor:
    return x


def strided(x: torch.Tensor) -> torch.Tensor:
    """Equal values, every second element of a larger memory."""
    if x.dim() == 0:
        return torch.stack([x, x])[1]
    return torch.stack([x, x], -1).select(-1, 1)


def transposed(x: torch.Tensor) -> torch.Tensor:
    """Equal values, dims in reversed order in memory."""
    order = list(range(x.dim()))[::-1]
    return x.permute(order).contiguous().permute(order)


def broadcast(x: torch.Tensor) -> torch.Tensor:
    """The first row, expanded: stride 0."""
    return x[:1].expand_as(x) if x.dim() > 0 and x.size(0) > 0 else x


def shifted(x: torch.Tensor) -> torch.Tensor:
    """Equal values at an address that no vector is aligned to."""
    memory = torch.empty(x.numel() + 1, dtype=x.dtype)[1:]
    return memory.view(x.shape).copy_(x)


def empty(x: torch.Tensor) -> torch.Tensor:
    """The first dim of size 0."""
    return x[:0].clone() if x.dim() else x


LAYOUTS = {f.__name__: f for f in (contiguous, strided, transposed, broadcast, shifted, empty)}


def laid_out(tree: Any, layout: str) -> Any:
    return pytree.tree_map_only(torch.Tensor, LAYOUTS[layout], tree)


def fresh(tree: Any) -> Any:
    """Copies that keep strides, storage offsets and stride-0 dims."""

    def one(t: torch.Tensor) -> torch.Tensor:
        if t.layout != torch.strided:
            return t.clone()
        memory = t.untyped_storage().clone()
        return torch.empty(0, dtype=t.dtype).set_(memory, t.storage_offset(), t.size(), t.stride())  # type: ignore[call-overload]

    return pytree.tree_map_only(torch.Tensor, one, tree)


def bits(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def difference(got: Any, want: Any, reference: Reference) -> str:
    """What differs between two trees of results and arguments, or nothing."""
    g, gs = pytree.tree_flatten(got)
    w, ws = pytree.tree_flatten(want)
    if gs != ws:
        return f"structure {gs} is not {ws}"
    k = -1
    for a, b in zip(g, w, strict=True):
        if not isinstance(b, torch.Tensor):
            if (a != b and (a == a or b == b)) or type(a) is not type(b):
                return f"{a} is not eager's {b}"
            continue
        k += 1
        if (a.dtype, a.shape, a.layout) != (b.dtype, b.shape, b.layout):
            return f"tensor {k} is {a.dtype}{list(a.shape)}, eager's {b.dtype}{list(b.shape)}"
        if a.layout != torch.strided:
            a, b = a.to_dense(), b.to_dense()
        if a.stride() != b.stride():
            return f"tensor {k} has strides {a.stride()}, eager's {b.stride()}"
        if not b.is_floating_point():
            if not torch.allclose(bits(a), bits(b), rtol=0, atol=0, equal_nan=True):
                return f"tensor {k}: {a} is not {b}"
        elif wrong := reference.wrong(k, a, b):
            return f"tensor {k}: {wrong}"
    return ""


@dataclasses.dataclass(frozen=True)
class Row:
    """One sample in one type and layout.

        `kind`: lowered (kernels ran), view (steps, and results in the arguments' memory, or an argument itself), empty
    (nothing to compute), extern (steps of torch), fallback, refused (by eager) or wrong; `why` says what was wrong,
    left to torch or refused.
    """

    entry: str
    dtype: str
    layout: str
    kind: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.entry} {self.dtype} {self.layout}: {self.kind} {self.why}"


def name_of(op: OpInfo) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def memory_of(tree: Any) -> set[int]:
    tensors = [t for t in pytree.tree_leaves(tree) if isinstance(t, torch.Tensor) and t.layout == torch.strided]
    return {t.untyped_storage().data_ptr() for t in tensors}


def kind_of(fast: Any, got: Any, args: Any) -> tuple[str, str]:
    stats = fast.stats()
    if stats.fallbacks:
        return "fallback", next(iter(stats.fallbacks))
    if (stats.calls, stats.hits) != (2, 1):
        return "wrong", f"{stats.hits} hits after {stats.calls} calls"
    calls = [line for line in fast.inspect("ir").splitlines() if " = extern " in line or " = contract " in line]
    left = [line for line in calls if "kind=view" not in line and "kind=guard" not in line]
    if left:
        return "extern", left[0]
    if stats.kernels:
        return "lowered", ""
    results = [t for t in pytree.tree_leaves(got) if isinstance(t, torch.Tensor)]
    if not any(t.numel() for t in results):
        return "empty", ""
    given = pytree.tree_leaves(args)
    if memory_of(results) <= memory_of(args) and (stats.steps or all(any(t is a for a in given) for t in results)):
        return "view", ""
    return "wrong", f"no kernel and no view: {fast.inspect('plan')}"


def run(op: Any, args: Any, pure: bool = True) -> tuple[str, str]:
    """(kind, why) of two calls under fastjit; `args` is (positional, named)."""
    positional, named = fresh(args)
    torch.manual_seed(3)
    want = op(*positional, **named)
    expected = (want, positional, named)
    reference = Reference(op, *args)
    fast = fastjit(pure=pure, on_unsupported="eager")(op)
    for call in (1, 2):
        now = fresh(args)
        torch.manual_seed(3)
        got = fast(*now[0], **now[1])
        if wrong := difference((got, *now), expected, reference):
            return "wrong", f"call {call}: {wrong}"
    return kind_of(fast, got, now)


def samples_of(op: OpInfo, dtype: torch.dtype, first: int) -> list[Any]:
    """Of the `first` samples, (positional, named) with the largest ahead."""
    found = itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=False), first)
    trees = [((s.input, *s.args), dict(s.kwargs)) for s in found]

    def size(tree: Any) -> int:
        return -sum(t.numel() for t in pytree.tree_leaves(tree) if isinstance(t, torch.Tensor))

    return sorted(trees, key=size)


def row_of(op: OpInfo, dtype: torch.dtype, layout: str, sample: Any, function: Any = None, pure: bool = True) -> Row:
    where = (name_of(op), str(dtype)[6:], layout)
    try:
        args = laid_out(sample, layout)
        positional, named = fresh(args)
        op.op(*positional, **named)
    except REFUSALS as refusal:
        return Row(*where, "refused", str(refusal).splitlines()[0] if str(refusal) else type(refusal).__name__)
    try:
        return Row(*where, *run(function or op.op, args, pure))
    except Exception as raised:
        return Row(*where, "wrong", f"raised {type(raised).__name__}: {raised}")


def lowered(rows: list[Row]) -> bool:
    return any(row.kind in ("lowered", "view") for row in rows)


def rows_of(index: int, every_sample: bool) -> list[Row]:
    """All rows of one entry: first every type, then, if any of them is lowered, every layout.

    Without `every_sample` each layout takes another one of the first six samples, the largest first.
    """
    op = op_db[index]
    torch.set_num_threads(1)
    samples: dict[torch.dtype, list[Any]] = {}
    rows: list[Row] = []
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for dtype in DTYPES:
            if dtype in op.supported_dtypes("cpu"):
                torch.manual_seed(0)
                try:
                    samples[dtype] = samples_of(op, dtype, 40 if every_sample else 6)
                except REFUSALS as refusal:
                    rows.append(Row(name_of(op), str(dtype)[6:], "contiguous", "refused", str(refusal)))
        for i, layout in enumerate(LAYOUTS):
            for dtype, found in samples.items():
                chosen = found if every_sample else found[i % max(len(found), 1) :][:1]
                rows += [row_of(op, dtype, layout, sample) for sample in chosen]
            if not lowered(rows) and not any(row.kind == "empty" for row in rows):
                break
        if lowered(rows):
            rows += by_default(op, samples)
    return rows


def by_default(op: OpInfo, samples: dict[torch.dtype, list[Any]]) -> list[Row]:
    """The default mode, which watches what the call reads: the first sample that computes something."""
    rows: list[Row] = []
    for dtype, found in samples.items():
        for sample in found:
            row = row_of(op, dtype, "contiguous", sample, pure=False)
            rows = [dataclasses.replace(row, layout="by default")]
            if row.kind not in ("refused", "empty"):
                return rows
    return rows


def sweep(indices: list[int], every_sample: bool = False) -> list[Row]:
    """Rows of these entries of op_db, in two processes: nothing else of a test run needs the other core."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, context) as pool:
        parts = pool.map(rows_of, indices, itertools.repeat(every_sample), chunksize=4)
        return [row for part in parts for row in part]
