"""``verify=``: compares what a program made of copies with what the function itself returned."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import struct
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fastjit import _reproducer, _source
from fastjit._load import FastJITWarning
from fastjit._load import extension as _C

# (relative to the element, relative to the largest element): torch.testing's tolerances. Complex numbers have those of
# their parts; all others are compared exactly.
_TOLERANCES = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (1.3e-6, 1e-5),
    torch.float16: (1e-3, 1e-3),
    torch.bfloat16: (1.6e-2, 1.6e-2),
}
# The second opinion: how often and by how many units the inputs and each step's result are moved, and how many times
# what that does to the result is allowed on top.
_DRAWS, _UNITS, _SLACK = 6, 4.0, 4.0
# Operators whose float results are exact.
_EXACT = frozenset(name.removesuffix(".*") for name, facts in _C.operator_rows() if "Exact" in facts.split(" | "))


@dataclasses.dataclass
class Outcome:
    """What the program made of copies, and what the call began with: inputs and the state of the random numbers."""

    copies: list[torch.Tensor]
    before: list[torch.Tensor]
    versions: list[int]
    random_state: torch.Tensor
    result: Any


@dataclasses.dataclass
class Leaf:
    """One tensor that the call shows: `got` by the program, `want` by eager."""

    path: str
    got: torch.Tensor
    want: torch.Tensor


class _Differs(Exception):
    pass


def copies_of(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The same tensors on memory of their own: strides, offsets, shared storages, inference tensors or not."""
    storages: dict[int, torch.UntypedStorage] = {}
    out = []
    for t in tensors:
        storage = t.untyped_storage()
        if storage._cdata not in storages:
            storages[storage._cdata] = storage.clone()  # type: ignore[no-untyped-call]
        with torch.inference_mode(t.is_inference()), torch.no_grad():
            copy = torch.empty(0, dtype=t.dtype, device=t.device)
            out.append(copy.set_(storages[storage._cdata], t.storage_offset(), t.size(), t.stride()))
    return out


def _version(t: torch.Tensor) -> int:
    return 0 if t.is_inference() else t._version


def run(shadow: Any) -> Outcome | None:
    """The program on copies; None: it asks for eager."""
    with torch.no_grad():
        copies = copies_of(shadow.inputs)
        written = copies_of([shadow.inputs[i] for i in shadow.written])
    before = list(shadow.inputs)
    for i, copy in zip(shadow.written, written, strict=True):
        before[i] = copy
    versions = [_version(t) - _version(c) for t, c in zip(shadow.inputs, copies, strict=True)]
    outcome = Outcome(copies, before, versions, torch.get_rng_state(), shadow.run(copies))
    return None if shadow.why else outcome


def judge(shadow: Any, outcome: Outcome, result: Any, error: BaseException | None) -> None:
    """Compares; a difference takes the program out of service, writes a reproducer and warns."""
    with torch.no_grad():
        leaves: list[Leaf] = []
        try:
            if error is not None:
                raise _Differs(f"eager raised {type(error).__name__}, the program did not")
            for leaf in _Form(shadow, outcome).leaves(result):
                leaves.append(leaf)  # also those before a difference in form
            _values(shadow, outcome, leaves)
            if not shadow.drew_alike():
                raise _Differs("the program drew other random numbers")
            return
        except _Differs as found:
            what = str(found)
        shadow.quarantine(what)
        facts = shadow.describe()
        results = [(leaf.path, leaf.want, leaf.got) for leaf in leaves]
        where = _reproducer.write(facts, what, outcome.before, outcome.random_state, results)
    warnings.warn(
        f"fastjit: {facts['name']}({facts['signature']}) computed something else than eager: {what}; the call returned "
        f"eager's result, and calls like it stay eager; please report it; reproducer: {where}",
        FastJITWarning,
        stacklevel=_C.user_level(),
    )


class _Form:
    """Everything but contents: types, metadata, identity and shared memory."""

    def __init__(self, shadow: Any, outcome: Outcome) -> None:
        self.shadow, self.outcome = shadow, outcome
        self.inputs = {id(c): t for c, t in zip(outcome.copies, shadow.inputs, strict=True)}
        self.originals = {id(t) for t in shadow.inputs}
        self.storages = {
            c.untyped_storage()._cdata: t.untyped_storage()._cdata
            for c, t in zip(outcome.copies, shadow.inputs, strict=True)
        }
        self.known = set(self.storages.values())
        self.seen: set[int] = set()
        self.partner: dict[int, Any] = {}  # of eager's tensors: the program's

    def leaves(self, result: Any) -> Iterator[Leaf]:
        yield from self.walk("result", self.outcome.result, result)
        rows = zip(self.shadow.names, self.outcome.copies, self.shadow.inputs, self.outcome.versions, strict=True)
        shared = collections.Counter(t.untyped_storage()._cdata for t in self.shadow.inputs)
        for name, copy, original, version in rows:
            alone = shared[original.untyped_storage()._cdata] == 1  # views of one base share a count, their copies not
            if alone and _version(original) - _version(copy) != version:
                raise _Differs(f"the version counter of {name} moved otherwise")
            yield Leaf(name, copy, original)

    def walk(self, path: str, got: Any, want: Any) -> Iterator[Leaf]:
        if isinstance(want, torch.Tensor):
            yield from self.tensor(path, got, want)
            return
        if got is want:  # an argument that comes back: what is written in it was an input
            return
        if type(got) is not type(want):
            raise _Differs(f"{path} is a {type(got).__name__}, not a {type(want).__name__}")
        if id(want) in self.seen:
            return
        if isinstance(want, (float, complex)):
            if _bits(got) != _bits(want):
                raise _Differs(f"{path} is {got!r}, not {want!r}")
        elif isinstance(want, (int, str, bytes, type(None), torch.dtype, torch.device, torch.Size)):
            if got != want:
                raise _Differs(f"{path} is {got!r}, not {want!r}")
        else:
            self.seen.add(id(want))
            for name, mine, theirs in _parts(path, got, want):
                yield from self.walk(name, mine, theirs)

    def tensor(self, path: str, got: Any, want: torch.Tensor) -> Iterator[Leaf]:
        if not isinstance(got, torch.Tensor):
            raise _Differs(f"{path} is a {type(got).__name__}, not a tensor")
        yield Leaf(path, got, want)
        if self.inputs.get(id(got), got if id(want) in self.originals else want) is not want:
            raise _Differs(f"{path} is not the tensor that eager returned")
        if self.partner.setdefault(id(want), got) is not got:
            raise _Differs(f"{path} is a tensor of its own, and not in eager")
        for name, mine, theirs in (
            ("dtype", got.dtype, want.dtype),
            ("sizes", tuple(got.shape), tuple(want.shape)),
            ("strides", got.stride(), want.stride()),
        ):
            if mine != theirs:
                raise _Differs(f"{path} has {name} {mine}, not {theirs}")
        mine, theirs = got.untyped_storage()._cdata, want.untyped_storage()._cdata
        if mine not in self.storages and theirs not in self.known:  # memory of its own in both
            self.storages[mine] = theirs
            self.known.add(theirs)
        if self.storages.get(mine) != theirs:
            raise _Differs(f"{path} shares memory otherwise than eager's")


def _bits(number: complex) -> bytes:
    """Of both parts; a NaN is a NaN, as in tensors."""
    parts = (complex(number).real, complex(number).imag)
    return struct.pack("dd", *(math.nan if math.isnan(part) else part for part in parts))


def _parts(path: str, got: Any, want: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(want, dict):
        if list(got) != list(want):
            raise _Differs(f"{path} has keys {list(got)}, not {list(want)}")
        for key in want:
            yield f"{path}[{key!r}]", got[key], want[key]
    if isinstance(want, (list, tuple)):
        if len(got) != len(want):
            raise _Differs(f"{path} has {len(got)} items, not {len(want)}")
        for index, (mine, theirs) in enumerate(zip(got, want, strict=True)):
            yield f"{path}[{index}]", mine, theirs
    mine, theirs = getattr(got, "__dict__", {}), getattr(want, "__dict__", {})
    if list(mine) != list(theirs):
        raise _Differs(f"{path} has attributes {list(mine)}, not {list(theirs)}")
    for name in theirs:
        yield f"{path}.{name}", mine[name], theirs[name]


def _tolerances(dtype: torch.dtype) -> tuple[float, float] | None:
    return _TOLERANCES.get(dtype.to_real())


def _wide(t: torch.Tensor) -> torch.Tensor:
    return t.to(torch.complex128 if t.is_complex() else torch.float64)


def _distance(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """|got - want| elementwise, in double; infinite where only one is NaN or they are other infinities."""
    if want.is_complex():
        apart = _distance(torch.view_as_real(got.resolve_conj()), torch.view_as_real(want.resolve_conj()))
        return torch.hypot(apart[..., 0], apart[..., 1])
    g, w = got.double(), want.double()
    apart = torch.nan_to_num((g - w).abs(), nan=math.inf)
    if _tolerances(want.dtype) is None:
        apart = apart.clamp(min=1.0)  # large integers that differ are one double
    same = (got == want) | (g.isnan() & w.isnan())
    return torch.where(same, 0.0, apart)


def _sizes(t: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(_wide(t).abs(), nan=0.0, posinf=0.0)


def _largest(t: torch.Tensor) -> float:
    return _sizes(t).max().item() if t.numel() else 0.0


def _allowed(want: torch.Tensor, magnitude: float = 0.0) -> torch.Tensor:
    relative, largest = _tolerances(want.dtype) or (0.0, 0.0)
    return relative * _sizes(want) + largest * max(_largest(want), magnitude)


def _values(shadow: Any, outcome: Outcome, leaves: list[Leaf]) -> None:
    off = [_distance(leaf.got, leaf.want) for leaf in leaves]
    wrong = [(d > _allowed(leaf.want)).any().item() for d, leaf in zip(off, leaves, strict=True)]
    if not any(wrong):
        return
    moved = _moved(shadow, outcome, leaves)
    # Without a second opinion the tolerance is taken of the largest input: terms of that size may have cancelled.
    magnitude = 0.0 if moved else max((_largest(t) for t in outcome.before if _tolerances(t.dtype)), default=0.0)
    for index, leaf in enumerate(leaves):
        if not wrong[index]:
            continue
        allowed = _allowed(leaf.want, magnitude) + (_SLACK * moved[index] if moved else 0.0)
        bad = off[index] > allowed
        if bad.any():
            place = tuple(int(i) for i in bad.nonzero()[0])
            mine, theirs = leaf.got[place].item(), leaf.want[place].item()
            raise _Differs(f"{leaf.path} differs in {int(bad.sum())} of {bad.numel()} elements: at {list(place)} "
                           f"it is {mine!r}, not {theirs!r}")  # fmt: skip


class _Move(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Each operator's float result is moved by a few units, up or down by chance, as its own rounding may."""

    def __init__(self, units: float, dice: torch.Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.units, self.dice = units, dice

    def move(self, t: Any) -> Any:
        if not isinstance(t, torch.Tensor) or _tolerances(t.dtype) is None:
            return t
        by = (torch.rand(t.shape, generator=self.dice, dtype=torch.float64) * 2 - 1) * self.units
        moved = _wide(t) * (1 + by.to(t.device) * torch.finfo(t.dtype).eps)
        return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device).copy_(moved)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        aliases = any(a.alias_info is not None for a in (*func._schema.arguments, *func._schema.returns))
        if aliases or func._schema.name in _EXACT:
            return out
        return pytree.tree_map(self.move, out)


def _moved(shadow: Any, outcome: Outcome, leaves: list[Leaf]) -> list[torch.Tensor] | None:
    """How far the recorded program's results move with the roundings of its steps; None: torch cannot play it."""
    facts = shadow.describe()
    scope: dict[str, Any] = {}
    dice = torch.Generator().manual_seed(0)
    state = torch.get_rng_state()

    def play(units: float) -> list[torch.Tensor]:
        torch.set_rng_state(outcome.random_state)
        mode = _Move(units, dice)
        inputs = copies_of(outcome.before)
        for t in inputs:
            if units and _tolerances(t.dtype) and not _overlaps(t):
                t.copy_(mode.move(t))
        given = dict(zip(facts["inputs"], inputs, strict=True))
        with mode if units else contextlib.nullcontext():
            outputs = scope["program"](given, facts["scalars"])
        return [*outputs, *inputs]

    try:
        exec(_source.from_ir(facts["ir"], facts["steps"]), scope)
        still = play(0.0)
        if [t.shape for t in still] != [leaf.want.shape for leaf in leaves]:
            return None
        moved = [torch.zeros(t.shape, dtype=torch.float64, device=t.device) for t in still]
        for _ in range(_DRAWS):
            for m, now, then in zip(moved, play(_UNITS), still, strict=True):
                torch.maximum(m, _distance(now, then), out=m)
    except Exception:
        return None
    finally:
        torch.set_rng_state(state)
    return moved


def _overlaps(t: torch.Tensor) -> bool:
    return any(step == 0 and size > 1 for step, size in zip(t.stride(), t.shape, strict=True))
