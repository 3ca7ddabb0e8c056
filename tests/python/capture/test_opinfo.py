"""Operators of op_db under fastjit, twice, against eager: results, arguments after the call, hits, what ran.

Every entry that is lowered meets every element type in every layout with one of its samples, and the default mode once.
FASTJIT_OPINFO_FULL=1 (`make opinfo-full`) takes up to 40 samples for each combination.
"""

from __future__ import annotations

import collections
import functools
import os
import re
from pathlib import Path

import pytest
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo

from fastjit._opsdoc import states_in
from lowering_tools import DTYPES
from opinfo_tools import LAYOUTS, Row, lowered, name_of, sweep

FULL = os.environ.get("FASTJIT_OPINFO_FULL") == "1"
TYPES = [str(dtype)[6:] for dtype in DTYPES]
INTEGERS = {"int8", "int16", "int32", "int64", "uint8"}

RANDOM = "its result is drawn anew by every call: op_db's function seeds the generator itself, or not at all"
LOWRANK = "singular vectors have no sign of their own: it hangs on the rounding of the products before"
SINGULAR = "the inverse of a singular product multiplies the product's rounding; test_opinfo_forms compares it closely"
UNWRITTEN = "hands out memory that nobody wrote"
# What eager gives is not defined by the arguments: entry -> why.
UNREPEATABLE = dict.fromkeys(
    "cauchy exponential geometric log_normal normal uniform bernoulli randn randint rand_like randn_like "
    "randint_like multinomial nn.functional.rrelu nn.functional.dropout nn.functional.dropout2d "
    "nn.functional.dropout3d nn.functional.alpha_dropout nn.functional.feature_alpha_dropout "
    "nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d "
    "nn.functional.multi_head_attention_forward".split(),
    RANDOM,
) | dict.fromkeys(
    "empty empty_like empty_strided empty_permuted new_empty new_empty_strided resize_".split(), UNWRITTEN
)
UNREPEATABLE |= dict.fromkeys(["svd_lowrank", "pca_lowrank"], LOWRANK)
UNREPEATABLE |= {"linalg.pinv.singular": SINGULAR}


def is_unrepeatable(op):
    return op.name in UNREPEATABLE or name_of(op) in UNREPEATABLE


# op_db rows that are left to torch although the entry is lowered elsewhere: entries, types, layouts, reason.
ANY_TYPE, ANY_LAYOUT = {*TYPES}, {*LAYOUTS, "by default"}
EXCEPTIONS = [
    (
        "div.trunc_rounding div.floor_rounding fmod remainder floor_divide __rmod__",
        INTEGERS,
        ANY_LAYOUT,
        "eager raises for a zero divisor, which only torch's operator can find out",
    ),
    ("pow __rpow__", INTEGERS, ANY_LAYOUT, "eager raises for a negative exponent, as above"),
    ("unbind unbind_copy", ANY_TYPE, {"empty"}, "the result is a tuple of no tensors: there is nothing to compile"),
    ("unfold_copy", ANY_TYPE, {"empty"}, "nothing is computed; torch's operator checks the sizes of an empty operand"),
    ("var std var_mean std_mean", ANY_TYPE, {"empty"}, "torch warns of too few elements"),
    (
        "var.unbiased std.unbiased var_mean.unbiased std_mean.unbiased",
        ANY_TYPE,
        {"transposed", "broadcast", "empty"},
        "torch warns of too few elements",
    ),
    ("inner", ANY_TYPE, {"empty"}, "a product of vectors is a library call, as matmul is"),
    (
        "masked.sum masked.prod masked.amax masked.amin masked.argmax masked.argmin masked.mean masked.norm "
        "masked.var masked.std masked.softmax masked.log_softmax masked.softmin masked.normalize masked.logaddexp "
        "masked.logsumexp",
        ANY_TYPE,
        {"by default"},
        "torch.masked is Python that defines a class while it runs: not a closed world",
    ),
]


@functools.cache
def documented(state: str) -> set[str]:
    """The entries that docs/ops.md, which is generated and tested, gives this state."""
    document = (Path(__file__).parents[3] / "docs" / "ops.md").read_text(encoding="utf-8")
    names = [name for name, (found, _) in states_in(document).items() if found == state]
    return {re.sub(r" \((.*)\)$", r".\1", name) for name in names}


# Documented as lowered at least partly, but with samples that the sweep does not take: entries -> why.
OTHER_SAMPLES = {
    "nn.functional.batch_norm": "the largest samples train; test_lowering has the rest",
    "cartesian_prod": "only the product of one vector is lowered, and the largest samples have several",
    "broadcast_shapes item": "its result is no tensor: nothing is computed",
    "eye signal.windows.bartlett signal.windows.blackman signal.windows.hamming signal.windows.hann "
    "signal.windows.general_cosine signal.windows.general_hamming signal.windows.kaiser "
    "signal.windows.nuttall": "without tensors the first samples are taken, which are of no element",
    "nn.functional.pad.reflect nn.functional.pad.replicate nn.functional.pad.circular": "only what has no element is "
    "lowered, and the largest samples have some",
    "diff": "of the samples that are taken the differences are none or several",
    "atleast_1d atleast_2d atleast_3d": "alone it returns a view in a way that capture does not know, or the argument",
}


def excepted(row: Row) -> int | None:
    """Which exception allows a row to be left to torch; -1 where the document says that some samples are."""
    for k, (entries, types, layouts, _) in enumerate(EXCEPTIONS):
        here = row.entry in entries.split() and row.dtype in types and row.layout in layouts
        if here and row.kind in ("extern", "fallback"):
            return k
    return -1 if row.kind in ("extern", "fallback") and row.entry in documented("partly") else None


@functools.cache
def rows() -> tuple[Row, ...]:
    return tuple(sweep([i for i, op in enumerate(op_db) if not is_unrepeatable(op)], FULL))


@functools.cache
def by_entry() -> dict[str, list[Row]]:
    """The rows of the entries that are lowered in some type."""
    found = collections.defaultdict(list)
    for row in rows():
        found[row.entry].append(row)
    return {entry: of for entry, of in found.items() if lowered(of)}


def test_every_sample_is_right():
    assert [str(row) for row in rows() if row.kind == "wrong"] == []


@pytest.mark.parametrize("layout", [*LAYOUTS, "by default"])
@pytest.mark.parametrize("dtype", TYPES)
def test_lowered_entries_hit_without_torch(dtype, layout):
    """Right, one hit, no fallback, kernels (views: steps) in every type and layout, but for what a table gives."""
    wrong, ran = [], 0
    for of in by_entry().values():
        for row in of:
            if (row.dtype, row.layout) != (dtype, layout):
                continue
            ran += row.kind in ("lowered", "view")
            if row.kind in ("wrong", "extern", "fallback") and excepted(row) is None:
                wrong.append(str(row))
    assert wrong == []
    assert ran > 0 or layout == "by default"


def test_every_lowered_entry_meets_every_type_and_layout_that_eager_takes():
    supported = {name_of(op): {str(d)[6:] for d in op.supported_dtypes("cpu")} for op in op_db}
    for entry, of in by_entry().items():
        met = {(row.dtype, row.layout) for row in of}
        typed = {row.dtype for row in of if row.why != "no sample"}
        for dtype in supported[entry] & set(TYPES):
            assert dtype in typed
            sampled = (dtype, "strided") in met
            assert not sampled or all((dtype, layout) in met for layout in LAYOUTS), (entry, dtype)


def test_the_default_mode_hits_once_for_each_lowered_entry():
    missing = {
        entry: [str(row) for row in of if row.layout == "by default"]
        for entry, of in by_entry().items()
        if not any(
            row.layout == "by default" and (row.kind in ("lowered", "view") or excepted(row) is not None) for row in of
        )
    }
    assert missing == {}


def test_no_exception_is_unused():
    used = {excepted(row) for of in by_entry().values() for row in of}
    assert [EXCEPTIONS[k] for k in range(len(EXCEPTIONS)) if k not in used] == []
    assert sorted(set(UNREPEATABLE) - ({op.name for op in op_db} | {name_of(op) for op in op_db})) == []


def test_every_entry_that_the_document_calls_lowered_is_here():
    names = documented("lowered") | documented("partly")
    assert len(names) > 250
    unseen = {name_of(op) for op in op_db if is_unrepeatable(op)}
    assert names - set(by_entry()) - unseen == set(" ".join(OTHER_SAMPLES).split())


def test_how_many_entries_run_as_kernels():
    kinds = {"unary": UnaryUfuncInfo, "binary": BinaryUfuncInfo}
    here = {kind: {name_of(op) for op in op_db if isinstance(op, of)} for kind, of in kinds.items()}
    counts = {kind: len(names & set(by_entry())) for kind, names in here.items()}
    left = {kind: sorted(names - set(by_entry())) for kind, names in here.items()}
    total = collections.Counter(row.kind for row in rows())
    print(f"{len(by_entry())} entries lowered, {counts}; rows {dict(total)}; as calls of torch: {left}")
    assert counts["unary"] >= 82 and counts["binary"] >= 53, left
