"""Are two results the same? Every tensor and value that is reached from them, compared place by place.

`problems()` holds a result to eager's: types, keys, sizes, strides and plain values must be equal, and floats must be
eager's bits, or within two units in the last place of a run in f64 ("ulps"), or at most twice as far from it as eager
itself, or as a rounding of all that the call reads moves the result ("rounding"), or at most eight times as far
("far"). A result that no such run can judge is "unjudged" where it is close to eager's. All else is "wrong"; whoever
plays many calls may find it "once".
"""

from __future__ import annotations

import enum
import functools
import math
import struct
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fastjit._bench.check import distance, ulp_of

ULPS = 2.0
EAGER_ERRORS = 2.0  # times eager's own largest error, or what a rounding of weights and inputs does
CLOSE = 1e-5  # of the largest magnitude: without a run in f64, more than that is called wrong
F64_ROUNDING = 1e-13  # of the largest magnitude: what rounding may do to results that are f64 themselves
REFERENCE_OFF = 1e-2  # a run in f64 that is further from eager drew other numbers, or took another path
FAR_ERRORS = 8.0  # times the same: another order of sums, as of a convolution in another layout; beyond it is wrong
GRADES = ("bits", "ulps", "rounding", "far", "once", "unjudged", "wrong")
MOST_PLACES = 200_000
_SKIPPED = {"_compiled_call_impl", "__orig_class__"}
_WHOLE = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_CODE = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)
_OPAQUE = (type, types.ModuleType, torch.Generator, torch.dtype, *_CODE)


@dataclass(frozen=True)
class Difference:
    """One place where two values are not the same bits."""

    place: str
    grade: str
    what: str
    ulps: float = 0.0


def places(value: Any, place: str = "", seen: dict[int, Any] | None = None) -> Iterator[tuple[str, Any]]:
    """(place, leaf) of all that is reached from `value`; each object once, and only the name of what is code."""
    seen = {} if seen is None else seen
    if isinstance(value, torch.Tensor):
        yield place, value
        if isinstance(value, torch.nn.Parameter) and value.grad is not None and id(value) not in seen:
            seen[id(value)] = value
            yield f"{place}.grad", value.grad
        return
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, enum.Enum)):
        yield place, value
        return
    if isinstance(value, _OPAQUE) or (callable(value) and not hasattr(value, "__dict__")):
        yield place, type(value).__name__
        return
    if id(value) in seen or len(seen) > MOST_PLACES:
        return
    seen[id(value)] = value
    yield f"{place}<type>", type(value).__qualname__
    if isinstance(value, dict):
        yield f"{place}<keys>", [str(key) if not isinstance(key, torch.Tensor) else "tensor" for key in value]
        for index, (key, item) in enumerate(value.items()):
            named = key if isinstance(key, (str, int)) else index
            if named not in _SKIPPED:
                yield from places(item, f"{place}[{named!r}]", seen)
    elif isinstance(value, (list, tuple)):
        yield f"{place}<length>", (list if isinstance(value, list) else tuple).__len__(value)  # e3nn has its own
        for index, item in enumerate(value):
            yield from places(item, f"{place}[{index}]", seen)
    for name, item in getattr(value, "__dict__", {}).items():
        if name not in _SKIPPED and "_hooks" not in name and not isinstance(item, _CODE):
            yield from places(item, f"{place}.{name}", seen)


def problems(got: Any, want: Any, exact: Any = None, shaken: Any = None, moved: Sequence[Any] = ()) -> list[Difference]:
    """What differs between two results.

    `exact`: what the same call gave in f64, or None where there was no such run; `shaken`: the same with weights and
    inputs moved by a rounding; `moved`: runs as eager's with weights and inputs moved by a unit in the last place.
    """
    mine, theirs = list(places(got)), list(places(want))
    names = [place for place, _ in theirs]
    if [place for place, _ in mine] != names:
        odd = sorted({place for place, _ in mine} ^ set(names)) or ["their order"]
        return [Difference(odd[0], "wrong", f"{len(mine)} places, eager has {len(names)}")]
    judge: Judge | None = None
    found = []
    for (place, one), (_, other) in zip(mine, theirs, strict=True):
        if not _same(one, other):
            runs = (want, exact, shaken, *moved)
            judge = judge or Judge(*(dict(places(run)) if run is not None else {} for run in runs))
            found.append(_difference(place, one, other, judge))
    return found


def worst(found: list[Difference]) -> Difference | None:
    return max(found, key=lambda one: (GRADES.index(one.grade), one.ulps), default=None)


def _same(got: Any, want: Any) -> bool:
    """Bit for bit; a NaN is as good as another."""
    if isinstance(want, torch.Tensor) and isinstance(got, torch.Tensor):
        if _layout(got) != _layout(want):
            return False
        got, want = _dense(got), _dense(want)
        if not want.is_floating_point() or want.element_size() == 1:
            return torch.equal(got, want)
        whole = _WHOLE[want.element_size()]
        same = want.is_contiguous() and torch.equal(got.view(whole), want.view(whole))
        return same or torch.equal(_bits(got), _bits(want))
    if isinstance(want, float) and isinstance(got, float):
        return struct.pack("d", got) == struct.pack("d", want) or (math.isnan(got) and math.isnan(want))
    return type(got) is type(want) and bool(got == want)


def _difference(place: str, got: Any, want: Any, judge: Judge) -> Difference:
    if isinstance(want, torch.Tensor) and isinstance(got, torch.Tensor):
        if _layout(got) != _layout(want):
            return Difference(place, "wrong", f"{_layout(got)}, not {_layout(want)}", math.inf)
        one, other = _dense(got), _dense(want)
        if other.is_floating_point() and other.element_size() > 1:
            return _grade(place, one, other, judge)
        count = int((one != other).sum())
        return Difference(place, "wrong", f"{count} of {other.numel()} values of {other.dtype} differ", math.inf)
    if isinstance(want, float) and isinstance(got, float) and math.isclose(got, want, rel_tol=CLOSE):
        pair = [torch.tensor(number, dtype=torch.float64) for number in (got, want)]  # was read out of a tensor
        return Difference(place, "unjudged", f"{got!r}, not {want!r}", float(distance(*pair)))
    return Difference(place, "wrong", f"{_short(got)}, not {_short(want)}", math.inf)


def _short(value: Any) -> str:
    text = f"a tensor of {list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
    return text if len(text) < 80 else text[:77] + "..."


def _layout(tensor: torch.Tensor) -> str:
    if tensor.layout != torch.strided:
        return f"{type(tensor).__name__} {tensor.dtype} {tuple(tensor.shape)} {tensor.layout}"
    grad = " requires grad" if tensor.requires_grad else ""
    return f"{type(tensor).__name__} {tensor.dtype} {tuple(tensor.shape)} strides {tensor.stride()}{grad}"


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Whole numbers that are equal where the bits are, but for NaNs, which all count as one."""
    tensor = torch.where(tensor.isnan(), torch.full_like(tensor, math.nan), tensor).contiguous()
    return tensor.view(_WHOLE[tensor.element_size()])


def _scale(tensor: torch.Tensor) -> float:
    return float(tensor.double().nan_to_num(posinf=0, neginf=0).abs().max()) if tensor.numel() else 0.0


class Judge:
    """A run in f64 beside eager's: which of its tensors tell how far a result may be off.

    It must be a run of the same call. One that drew other numbers or took another path is far from eager in most
    places; where it is far in a few, these are sums that cancel, and must be close to eager beside the largest values.
    """

    def __init__(
        self, eager: dict[str, Any], exact: dict[str, Any], shaken: dict[str, Any], *moved: dict[str, Any]
    ) -> None:
        self.exact: dict[str, torch.Tensor] = {}
        self.shaken, self.moved = shaken, moved
        self.far: set[str] = set()
        scales = [0.0]
        for place, want in eager.items():
            judge = exact.get(place)
            if not isinstance(want, torch.Tensor) or not isinstance(judge, torch.Tensor) or not want.numel():
                continue
            want, judge = _dense(want), _dense(judge)
            if judge.dtype != torch.float64 or want.dtype == torch.float64 or not want.is_floating_point():
                continue
            if judge.shape == want.shape:
                self.exact[place] = judge
                scales.append(_scale(want))
                if float(distance(want, judge).max()) > REFERENCE_OFF * max(scales[-1], 1e-30):
                    self.far.add(place)
        self.largest = max(scales)
        if 2 * len(self.far) > len(self.exact):
            self.exact = {}

    def spread(self, place: str, want: torch.Tensor) -> float:
        """How far a unit in the last place of everything that the call reads moves eager's result."""
        found = [_dense(run[place]) for run in self.moved if isinstance(run.get(place), torch.Tensor)]
        return max((float(distance(one, want).max()) for one in found if one.shape == want.shape), default=0.0)

    def noise(self, place: str) -> float:
        """How far a rounding of everything that the call reads moves the result."""
        one, other = self.exact[place], self.shaken.get(place)
        if not isinstance(other, torch.Tensor) or (other := _dense(other)).shape != one.shape:
            return 0.0
        moved = float(distance(other, one).max())
        return moved if moved <= REFERENCE_OFF * max(_scale(one), 1e-30) or place in self.far else 0.0


def _grade(place: str, got: torch.Tensor, want: torch.Tensor, judge: Judge) -> Difference:
    apart = distance(got, want)
    most, scale = float(apart.max()), _scale(want)
    ulps = float((apart / ulp_of(want.double().nan_to_num(), want.dtype)).max())
    said = f"{ulps:.3g} ULP, {most:.3g} beside values of up to {scale:.3g}"
    exact = judge.exact.get(place)
    if exact is None or (place in judge.far and most > CLOSE * judge.largest):
        grade = "ulps" if ulps <= 1 else "unjudged" if most <= CLOSE * max(scale, 1e-30) else "wrong"
        if grade != "ulps":
            grade = _among(most, judge.spread(place, want), 0.0) or grade
        if grade == "unjudged" and want.dtype == torch.float64 and most <= F64_ROUNDING * scale:
            grade = "rounding"
        return Difference(place, grade, f"{said}, and no run in f64 to judge it", ulps)
    ours, eagers = distance(got, exact), distance(want, exact)
    off = ulp_of(exact.nan_to_num(), want.dtype)
    if bool((ours <= ULPS * off).all()):
        return Difference(place, "ulps", said, ulps)
    said += f"; {float(ours.max()):.3g} from f64, eager {float(eagers.max()):.3g}"
    usual = max(float(eagers.max()), judge.noise(place), judge.spread(place, want))
    return Difference(place, _among(float(ours.max()), usual, ULPS * float(off.max())) or "wrong", said, ulps)


def _among(most: float, usual: float, beside: float) -> str:
    """The grade of an error beside one that is usual; none: it is more than that explains."""
    for grade, times in (("rounding", EAGER_ERRORS), ("far", FAR_ERRORS)):
        if most <= times * usual + beside:
            return grade
    return ""
