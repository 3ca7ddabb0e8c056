"""Every entry of op_db at four sizes: one dim of a sample is given other sizes, in all of its tensors together.

Results, strides and errors are eager's at each of them. Many samples raise at other sizes, in eager as here: ints among
the arguments stay what they are.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import multiprocessing
import warnings
from collections import Counter
from typing import Any

import pytest
import torch
from torch.testing._internal import common_methods_invocations as database
from torch.utils import _pytree as pytree

from fastjit import fastjit
from opinfo_forms import UNREPEATABLE
from opinfo_tools import name_of

SAMPLES = 3
SIZES = (0, 1, 4, 2)  # more than the sample has
TOLERANCE = {"rtol": 1e-7, "atol": 1e-7, "equal_nan": True}
RANDOM = (
    "bernoulli cauchy dropout exponential geometric log_normal multinomial normal poisson rand uniform rrelu".split()
)


def resized(tree: Any, size: int, more: int) -> Any:
    """Dims of this size have so many more elements, which repeat the others."""

    def one(t: torch.Tensor) -> torch.Tensor:
        for d, own in enumerate(t.shape):
            if own == size:
                t = t.index_select(d, torch.arange(own + more) % own)
        return t.clone(memory_format=torch.contiguous_format)

    return pytree.tree_map_only(torch.Tensor, one, tree)


def largest_dim(tree: Any) -> int:
    return max((s for t in pytree.tree_leaves(tree) if isinstance(t, torch.Tensor) for s in t.shape), default=0)


def called(function: Any, tree: Any) -> tuple[Any, str]:
    args, kwargs = resized(tree, -1, 0)
    torch.manual_seed(0)
    try:
        return pytree.tree_leaves((function(*args, **kwargs), args)), ""
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


def differ(got: Any, want: Any) -> bool:
    if not isinstance(want, torch.Tensor):
        return type(got) is not type(want) or (got != want and got == got)
    if (got.dtype, got.shape, got.layout) != (want.dtype, want.shape, want.layout):
        return True
    if want.layout != torch.strided:
        return False
    return got.stride() != want.stride() or not torch.allclose(got, want, **TOLERANCE)


def outcome(op: Any, sample: Any) -> tuple[str, int]:
    """What is wrong, or nothing; and how many calls were hits."""
    fast = fastjit(lambda *args, **kwargs: op(*args, **kwargs), on_unsupported="eager")
    size = largest_dim(sample)
    for more in SIZES:
        tree = resized(sample, size, more)
        want, refused = called(op, tree)
        got, raised = called(fast, tree)
        if raised.split(":")[0] != refused.split(":")[0]:
            return f"size {size + more}: raised {raised!r}, eager {refused!r}", 0
        if want is not None and (len(got) != len(want) or any(map(differ, got, want))):
            return f"size {size + more}: {got} is not {want}"[:2000], 0
    return "", fast.stats().hits


def sweep(indices: list[int]) -> tuple[list[str], Counter[str]]:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    wrong, seen = [], Counter[str]()
    for op in (database.op_db[i] for i in indices):
        name = name_of(op)
        if op.name in UNREPEATABLE or torch.float64 not in op.dtypes or any(word in name for word in RANDOM):
            continue
        try:
            samples = list(itertools.islice(op.sample_inputs("cpu", torch.float64), SAMPLES))
        except Exception:  # some need what is not installed
            continue
        for sample in samples:
            tree = ((sample.input, *sample.args), dict(sample.kwargs))
            tensors = [t for t in pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]
            if largest_dim(tree) < 2 or any(t.layout != torch.strided or t.is_nested for t in tensors):
                continue
            why, hits = outcome(op.op, tree)
            seen["calls"] += len(SIZES)
            seen["hits"] += hits
            if why:
                wrong.append(f"{name}: {why}")
    return wrong, seen


@pytest.fixture(scope="module")
def swept() -> tuple[list[str], Counter[str]]:
    entries = range(len(database.op_db))
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, context) as pool:
        parts = list(pool.map(sweep, [list(entries[k::8]) for k in range(8)]))
    return [why for wrong, _ in parts for why in wrong], sum((seen for _, seen in parts), Counter())


def test_every_entry_is_right_at_every_size(swept: Any) -> None:
    assert swept[0] == []


def test_many_are_hits(swept: Any) -> None:
    assert swept[1]["hits"] > 0.2 * swept[1]["calls"], swept[1]  # the first two calls never are
