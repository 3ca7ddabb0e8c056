"""Operators of op_db under fastjit, twice, against eager: results, arguments after the call, hits, what ran."""

from __future__ import annotations

import functools
import os
import warnings
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo

from opinfo_tools import LAYOUTS, SCALED, Outcome, fresh, laid_out, run, samples_of

FULL = os.environ.get("FASTJIT_OPINFO_FULL") == "1"
DTYPES = [
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]

# Nothing here has a row of its own in the lowering table, and their samples take long.
SKIPPED = (
    "linalg.",
    "fft.",
    "sparse.",
    "signal.",
    "_refs",
    "jiterator",
    "ops.",
    "nn.functional.grid",
    "nn.functional.ctc",
    "svd",
)
SKIPPED += (
    "nn.functional.scaled_dot",
    "nn.functional.conv",
    "nn.functional.interpolate",
    "to_sparse",
    "pca",
    "lu",
    "stft",
    "istft",
)
# op_db's function for these sets torch's seed itself, or hands out memory that nobody wrote: no two calls are equal.
UNEQUAL = {
    "cauchy",
    "exponential",
    "geometric",
    "log_normal",
    "normal",
    "uniform",
    "bernoulli",
    "rand_like",
    "randn_like",
}
UNEQUAL |= {"randint_like", "multinomial", "nn.functional.rrelu", "empty_like", "empty_strided", "empty", "new_empty"}
UNEQUAL |= {
    "new_empty_strided",
    "nn.functional.dropout",
    "nn.functional.dropout2d",
    "nn.functional.dropout3d",
    "empty_permuted",
}
UNEQUAL |= {"nn.functional.alpha_dropout", "nn.functional.feature_alpha_dropout", "nn.functional.fractional_max_pool2d"}
UNEQUAL |= {"nn.functional.fractional_max_pool3d", "nn.functional.multi_head_attention_forward"}
# Their terms cancel: the sum is this many times smaller than what is added.
CANCEL = {
    "var_mean": 16.0,
    "std_mean": 16.0,
    "nn.functional.multilabel_soft_margin_loss": 32.0,
    "nn.functional.multi_margin_loss": 8.0,
}


def name_of(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def entries() -> list[Any]:
    return [op for op in op_db if not op.name.startswith(SKIPPED) and op.name not in UNEQUAL]


def outcomes(op: Any, dtype: torch.dtype, layouts: tuple[str, ...]) -> list[tuple[str, Outcome]]:
    found = []
    if dtype not in op.supported_dtypes("cpu"):
        return []
    try:
        samples = samples_of(op, dtype, 0 if FULL else 1)
    except (RuntimeError, ValueError, NotImplementedError):
        return []
    pointwise = isinstance(op, (UnaryUfuncInfo, BinaryUfuncInfo))
    scaled = not pointwise or op.name in SCALED
    for sample in samples:
        for layout in layouts:
            args = sample
            try:
                if layout != "plain":
                    args = laid_out(sample, layout)
                positional, named = fresh(args)
                op.op(*positional, **named)
            except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError):
                continue  # eager refuses the layout
            outcome = run(op.op, args, scaled, pure=True, ulps=CANCEL.get(op.name, 2.0))
            found.append((f"{name_of(op)} {str(dtype)[6:]} {layout}", outcome))
    return found


@functools.cache
def in_f32() -> dict[str, list[tuple[str, Outcome]]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name_of(op): outcomes(op, torch.float32, ("plain",)) for op in entries()}


def here(found: list[tuple[str, Outcome]]) -> bool:
    return any(o.kind in ("lowered", "view") for _, o in found)


@functools.cache
def of_dtype(dtype: torch.dtype) -> dict[str, list[tuple[str, Outcome]]]:
    """Entries that run as kernels in f32, or that do not take f32."""
    first = in_f32()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            name_of(op): outcomes(op, dtype, ("plain",))
            for op in entries()
            if FULL or here(first[name_of(op)]) or not first[name_of(op)]
        }


def wrong(found: dict[str, list[tuple[str, Outcome]]]) -> list[str]:
    return [f"{what}: {o.wrong}" for rows in found.values() for what, o in rows if o.wrong]


def test_f32_matches_eager():
    assert wrong(in_f32()) == []


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
def test_other_types_match_eager(dtype):
    assert wrong(of_dtype(dtype)) == []


@pytest.mark.parametrize("layout", [*LAYOUTS, "empty"])
def test_layouts_match_eager(layout):
    first = in_f32()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {name_of(op): outcomes(op, torch.float32, (layout,)) for op in entries() if here(first[name_of(op)])}
    assert wrong(found) == []


def test_how_many_entries_run_as_kernels():
    counts: dict[str, set[str]] = {"unary": set(), "binary": set()}
    all_of: dict[str, set[str]] = {"unary": set(), "binary": set()}
    tables = [in_f32(), of_dtype(torch.int64), of_dtype(torch.bool)]
    for op in entries():
        if not isinstance(op, (UnaryUfuncInfo, BinaryUfuncInfo)):
            continue
        kind = "unary" if isinstance(op, UnaryUfuncInfo) else "binary"
        all_of[kind].add(name_of(op))
        if any(here(table.get(name_of(op), [])) for table in tables):
            counts[kind].add(name_of(op))
    missing = {kind: sorted(all_of[kind] - counts[kind]) for kind in counts}
    print(f"unary {len(counts['unary'])}, binary {len(counts['binary'])}; as one call of torch: {missing}")
    assert len(counts["unary"]) >= 82, missing
    assert len(counts["binary"]) >= 53, missing
