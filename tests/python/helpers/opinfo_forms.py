"""Every entry of op_db, called, in place and with `out=`, in the default mode: two calls, compared with eager.

Compared are results and arguments (values, types, sizes, strides, offsets, which tensors are one or share memory, which
are views, versions), the generator's state, and errors. Values are eager's bit for bit where no kernel of
fastjit ran and eager repeats itself, else within the bounds of error_bounds (torch's own tolerance where there are
none).
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import multiprocessing
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.testing._internal import common_methods_invocations as database
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils import _pytree as pytree

from error_bounds import Reference, tensors_of
from fastjit import fastjit
from lowering_tools import DTYPES
from opinfo_tools import REFUSALS, difference, fresh, name_of, samples_of
from script_tools import Form

FORMS = ("call", "in place", "out=")
UNWRITTEN = "it hands out memory that nobody wrote"
# Entries whose values eager itself does not repeat, and why: everything but their values is compared.
UNREPEATABLE = dict.fromkeys(
    "empty empty_like empty_strided empty_permuted new_empty new_empty_strided resize_ resize_as_".split(), UNWRITTEN
)
# Compared with torch's own tolerance: what iterates with kernels' rounding has no bound, and LAPACK's least squares
# round otherwise from one address of their memory to the next. The inverse of a singular product multiplies the
# product's rounding.
TOLERATED = ("svd_lowrank", "pca_lowrank", "linalg.lstsq", "linalg.lstsq.grad_oriented", "linalg.pinv.singular")
# Of a line of a form: the memory, and what is no promise of memory of its own.
GROUP, OWN = re.compile(r" storage=(\d+)"), re.compile(r" (?:bytes=\d+|view=\w+)")
# Worst first: what stands for an entry with several samples.
KINDS = ("wrong", "eager", "kernels", "extern", "views", "refused")


@dataclasses.dataclass(frozen=True)
class Row:
    """One sample in one form.

    `kind`: kernels (a hit that ran some), extern (a hit of torch's own operators alone), views (a hit that computed
    nothing: views and arguments), eager, refused (eager raised, and so did fastjit) or wrong.
    """

    entry: str
    form: str
    kind: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.entry} ({self.form}): {self.kind} {self.why}"


@dataclasses.dataclass
class Seen:
    """What one call showed."""

    error: str
    form: list[str]
    values: tuple[Any, ...]
    generator: torch.Tensor


def unseeded(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Stands for op_db's wrapper that seeds the generator itself: here each call is seeded from outside."""
    return op(*args, **kwargs)


def entry_name(index: int) -> str:
    """An entry's name; a later entry of the same name has a number."""
    name = name_of(database.op_db[index])
    before = sum(name_of(op) == name for op in database.op_db[:index])
    return f"{name} ({before + 1})" if before else name


def first_type(op: OpInfo) -> torch.dtype | None:
    known = op.supported_dtypes("cpu")
    others = [torch.complex64, torch.complex128, *sorted(known, key=str)]
    return next((dtype for dtype in [*DTYPES, *others] if dtype in known), None)


def see(function: Callable[..., Any], args: Any) -> Seen:
    positional, named = fresh(args)
    torch.manual_seed(3)
    for generator in pytree.tree_leaves(args):
        if isinstance(generator, torch.Generator):
            generator.manual_seed(3)
    out, error = None, ""
    try:
        out = function(*positional, **named)
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    form = Form()
    for name, value in {"args": positional, "named": named, "result": out}.items():
        form.add(name, value)
    # How much memory lies behind a result of its own is no promise (eager's mse_loss hands out that of all its terms),
    # nor whether it is a view of a tensor that nobody has (eager's ravel gives one of its copy).
    groups = {group for line in form.text if not line.startswith("result") for group in GROUP.findall(line)}
    text = [line if set(GROUP.findall(line)) & groups else OWN.sub("", line) for line in form.text]
    return Seen(error, text, (out, positional, named), torch.get_rng_state())


def exactly(got: Any, want: Any) -> str:
    """What differs between two trees of equal form, to the bit; a NaN equals another."""
    pairs = zip(pytree.tree_leaves(got), pytree.tree_leaves(want), strict=True)
    for k, (a, b) in enumerate((a, b) for a, b in pairs if isinstance(b, torch.Tensor)):
        if b.layout != torch.strided:
            a, b = a.to_dense(), b.to_dense()
        a, b = a.resolve_conj().resolve_neg(), b.resolve_conj().resolve_neg()
        if b.is_complex():
            a, b = torch.view_as_real(a), torch.view_as_real(b)
        if b.is_floating_point() and b.element_size() == 1:
            a, b = a.float(), b.float()
        same = a == b
        if b.is_floating_point():
            same = (same & (torch.signbit(a) == torch.signbit(b))) | ((a != a) & (b != b))
        if not bool(same.all()):
            return f"tensor {k} is {a}, eager's {b}"
    return ""


def kind_of(fast: Any) -> tuple[str, str]:
    stats = fast.stats()
    if stats.fallbacks:
        return "eager", next(iter(stats.fallbacks))
    if (stats.calls, stats.hits) != (2, 1):
        return "wrong", f"{stats.hits} hits after {stats.calls} calls"
    return ("kernels" if stats.kernels else "extern" if stats.steps else "views"), ""


def repeats(function: Callable[..., Any], args: Any, want: Seen) -> bool:
    """Eager gives these values again and again."""
    return not any(exactly(see(function, args).values, want.values) for _ in range(8))


def narrow(values: Any) -> Any:
    def one(t: torch.Tensor) -> torch.Tensor:
        return t.float() if t.dtype == torch.float64 else t

    return pytree.tree_map_only(torch.Tensor, one, values)


def closely(got: Any, want: Any) -> str:
    try:
        torch.testing.assert_close(tensors_of(got), tensors_of(want), equal_nan=True)
    except AssertionError as wrong:
        return str(wrong)
    return ""


def play(name: str, function: Callable[..., Any], args: Any) -> tuple[str, str]:
    """(kind, why) of one call in eager and two under fastjit; `args` is (positional, named)."""
    want = see(function, args)
    fast = fastjit(on_unsupported="eager")(function)
    calls = [see(fast, args) for _ in range(2)]
    for number, got in enumerate(calls, 1):
        if got.error != want.error:
            return "wrong", f"call {number}: {got.error or 'no error'}, in eager {want.error or 'none'}"
        if got.form != want.form:
            lines = itertools.zip_longest(got.form, want.form)
            return "wrong", f"call {number}: " + "; ".join(f"{g}, in eager {w}" for g, w in lines if g != w)
        if not torch.equal(got.generator, want.generator):
            return "wrong", f"call {number}: the generator is in another state"
    if want.error:
        return "refused", want.error.splitlines()[0]
    kind, why = kind_of(fast)
    reference = Reference(function, *args)
    for number, got in enumerate(calls, 1) if name not in UNREPEATABLE else ():
        if kind != "kernels":
            found = exactly(got.values, want.values)
            if found and (name in TOLERATED or not repeats(function, args, want)):
                found = closely(narrow(got.values), narrow(want.values))
        elif name in TOLERATED:
            found = closely(got.values, want.values)
        else:
            found = difference(got.values, want.values, reference)
            if found and "out" in args[1]:  # of a wider type than what is computed
                found = closely(narrow(got.values), narrow(want.values))
        if found:
            return "wrong", f"call {number} ({kind}): {found}"
    return kind, why


def outs_of(result: Any, number: int) -> Any:
    """Something to write `result` to: tensors like it, of no element, spread in memory, or of a wider type."""

    def one(t: torch.Tensor) -> torch.Tensor:
        if number == 1:
            return torch.empty(0, dtype=t.dtype)
        if number == 2:
            return torch.stack([torch.zeros_like(t)] * 2, -1).select(-1, 1)
        if number == 3:
            return torch.ones_like(t, dtype=torch.complex128 if t.is_complex() else torch.float64)
        return torch.ones_like(t)

    if isinstance(result, torch.Tensor):
        return one(result)
    return tuple(one(t) for t in result)


OUTS = 4


def calls_of(op: OpInfo, form: str, args: Any, outs: tuple[int, ...]) -> Iterator[tuple[Callable[..., Any], Any]]:
    """(function, (positional, named)) of one sample in one form."""
    if form == "call":
        yield op.op, args
    elif form == "in place":
        yield op.inplace_variant, args
    else:
        positional, named = fresh(args)
        torch.manual_seed(3)
        try:
            result = op.op(*positional, **named)
        except REFUSALS:
            return
        results = result if isinstance(result, (tuple, list)) else [result]
        if not all(isinstance(t, torch.Tensor) and t.layout == torch.strided for t in results):
            return
        for number in outs:
            yield op.op, (args[0], {**args[1], "out": outs_of(result, number)})


def forms_of(op: OpInfo) -> list[str]:
    has = {"call": True, "in place": op.inplace_variant is not None, "out=": op.supports_out}
    return [form for form in FORMS if has[form]]


def rows_of(index: int, samples: int) -> list[Row]:
    """All rows of one entry: in each form the `samples` largest of those that eager takes, as many that it refuses.

    With one sample two of the ways to give `out=` are tried, else all.
    """
    database.wrapper_set_seed = unseeded
    torch.set_num_threads(1)
    op, name = database.op_db[index], entry_name(index)
    rows: list[Row] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            dtype = first_type(op)
            found = samples_of(op, dtype, max(samples, 6)) if dtype else []
        except Exception as refusal:
            return [Row(name, form, "refused", f"no sample: {refusal}".splitlines()[0]) for form in forms_of(op)]
        outs = tuple(range(OUTS)) if samples > 1 else (0, 1 + index % (OUTS - 1))
        for form in forms_of(op):
            taken, here = 0, []
            for sample in found:
                calls = [row_of(name, form, *call) for call in calls_of(op, form, sample, outs)]
                taken += any(row.kind != "refused" for row in calls)
                here += calls
                if taken == samples:
                    break
            rows += here or [Row(name, form, "refused", "no sample")]
        errors = [row_of(name, "call", op.op, args) for args in errors_of(op, samples)]
        rows += [row for row in errors if row.kind in ("refused", "wrong")]
    return rows


def errors_of(op: OpInfo, first: int) -> list[Any]:
    """(positional, named) of calls that torch's own tests expect to raise."""
    if op.error_inputs_func is None:
        return []
    samples = [error.sample_input for error in itertools.islice(op.error_inputs("cpu"), first)]
    return [((sample.input, *sample.args), dict(sample.kwargs)) for sample in samples]


def row_of(name: str, form: str, function: Callable[..., Any], args: Any) -> Row:
    try:
        return Row(name, form, *play(name, function, args))
    except Exception as raised:
        return Row(name, form, "wrong", f"raised {type(raised).__name__}: {raised}")


def sweep(indices: list[int], samples: int, processes: int = 2) -> list[Row]:
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, context) as pool:
        parts = pool.map(rows_of, indices, itertools.repeat(samples), chunksize=4)
        return [row for part in parts for row in part]


def by_form(rows: list[Row]) -> dict[str, dict[str, Row]]:
    """Form -> entry -> the row of its worst sample that eager takes."""
    found: dict[str, dict[str, Row]] = {form: {} for form in FORMS}
    for row in rows:
        known = found[row.form].get(row.entry)
        if known is None or KINDS.index(row.kind) < KINDS.index(known.kind):
            found[row.form][row.entry] = row
    return found


def reason(why: str) -> str:
    """A reason for eager without the names and places of one call."""
    text = re.sub(r" at [\w<>. -]+:\d+", "", why.splitlines()[0])
    text = re.sub(r"aten::\w+(\.\w+)?", "an operator", text)
    return re.sub(r"'[^']*'", "'…'", text)
