"""Are the results right? Outputs and mutated arguments against eager's, errors against an f64 run."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

# What torch.testing allows between two correct float results: rtol, atol.
TOLERANCE = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (1.3e-6, 1e-5),
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
}
LOOSEST = (1.6e-2, 1e-5)
SEED = 20240229


@dataclass(frozen=True)
class Outcome:
    """What one call left behind: its results and its arguments afterwards."""

    results: list[Any]
    arguments: list[Any]


@dataclass(frozen=True)
class Errors:
    """Distance from the reference: largest absolute one, and in units of the last place of the result's dtype."""

    max_abs: float = 0.0
    max_ulp: float = 0.0


def leaves(value: Any) -> list[Any]:
    """Tensors and plain values of nested tuples, lists and dicts, in order."""
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in leaves(item)]
    if isinstance(value, dict):
        return [leaf for key in value for leaf in leaves(value[key])]
    return [value]


def tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor)]


def run_once(fn: Callable[..., Any], args: Any, kwargs: Any) -> Outcome:
    """Calls `fn` on copies of the arguments that alias each other as the originals do; random numbers start anew."""
    own_args, own_kwargs = copy.deepcopy((args, kwargs))
    torch.manual_seed(SEED)
    results = fn(*own_args, **own_kwargs)
    return Outcome(copy.deepcopy(leaves(results)), leaves((own_args, own_kwargs)))


def same(left: Any, right: Any) -> bool:
    """Equal bit for bit, NaN equal to itself."""
    if isinstance(left, torch.Tensor):
        return left.shape == right.shape and torch.allclose(left, right, rtol=0, atol=0, equal_nan=True)
    return bool(left is right or left == right)


def mutates(before: Any, outcome: Outcome) -> bool:
    return not all(
        same(old, new)
        for old, new in zip(leaves(before), outcome.arguments, strict=True)
        if isinstance(old, torch.Tensor)
    )


def restorer(value: Any) -> Callable[[], None]:
    """A function that writes back what the tensors of `value` hold now."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors(value)}
    saved = [(storage, copy.deepcopy(storage)) for storage in storages.values()]

    def restore() -> None:
        for storage, content in saved:
            storage.copy_(content)

    return restore


def in_f64(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, (tuple, list)):
        return type(value)(in_f64(item) for item in value)
    if isinstance(value, dict):
        return {key: in_f64(item) for key, item in value.items()}
    return value


def reference(fn: Callable[..., Any], args: Any, kwargs: Any) -> Outcome | None:
    """The same call in f64, or None where the function does not run on doubles (captured f32 tensors, say)."""
    try:
        if isinstance(fn, torch.nn.Module):
            fn = copy.deepcopy(fn).double()
        return run_once(fn, in_f64(args), in_f64(kwargs))
    except Exception:  # the user's function may raise anything
        return None


def ulp_of(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Spacing of `dtype` at each |value| (f64 in, f64 out), never below its smallest subnormal."""
    info = torch.finfo(dtype)
    exponent = torch.frexp(value.abs())[1] - 1
    spacing = torch.ldexp(torch.full_like(value, info.eps), exponent)
    return spacing.clamp_min(info.smallest_normal * info.eps)


def distance(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """|got - want| in f64; 0 where both are the same infinity or NaN, infinity where only one is finite."""
    a, b = got.double(), want.double()
    gap = (a - b).abs()
    gap = torch.where((a == b) | (a.isnan() & b.isnan()), torch.zeros_like(gap), gap)
    return gap.nan_to_num(nan=math.inf, posinf=math.inf)


def errors(outcome: Outcome, exact: Outcome) -> Errors:
    max_abs = max_ulp = 0.0
    got_all, want_all = outcome.results + outcome.arguments, exact.results + exact.arguments
    for got, want in zip(got_all, want_all, strict=True):
        if not isinstance(got, torch.Tensor) or not got.is_floating_point() or got.numel() == 0:
            continue
        gap = distance(got, want)
        max_abs = max(max_abs, gap.max().item())
        ulps = gap / ulp_of(want.double().nan_to_num(), got.dtype)
        max_ulp = max(max_ulp, ulps.max().item())
    return Errors(max_abs, max_ulp)


def explain_difference(outcome: Outcome, eager: Outcome, exact: Outcome | None) -> str | None:
    """None when `outcome` is as right as eager's, else what differs."""
    if len(outcome.results) != len(eager.results):
        return f"{len(outcome.results)} results, eager gives {len(eager.results)}"
    for kind, got_all, want_all, exact_all in (
        ("result", outcome.results, eager.results, exact.results if exact else None),
        ("argument", outcome.arguments, eager.arguments, exact.arguments if exact else None),
    ):
        for index, (got, want) in enumerate(zip(got_all, want_all, strict=True)):
            problem = _compare(got, want, exact_all[index] if exact_all is not None else None)
            if problem is not None:
                return f"{kind} {index}: {problem}"
    return None


def _compare(got: Any, want: Any, exact: Any) -> str | None:
    if not isinstance(want, torch.Tensor):
        if isinstance(want, float) and isinstance(got, float):
            return (
                None if math.isclose(got, want, rel_tol=1e-6) or got == want or want != want else f"{got}, not {want}"
            )
        return None if type(got) is type(want) and same(got, want) else f"{got!r}, not {want!r}"
    if not isinstance(got, torch.Tensor):
        return f"{type(got).__name__}, not a tensor"
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype}{list(got.shape)}, not {want.dtype}{list(want.shape)}"
    if not want.is_floating_point():
        return None if torch.equal(got, want) else "values differ"
    rtol, atol = TOLERANCE.get(want.dtype, LOOSEST)
    if torch.allclose(got, want, rtol=rtol, atol=atol, equal_nan=True):
        return None
    if isinstance(exact, torch.Tensor) and exact.shape == got.shape:
        allowed = 2 * distance(want, exact).max().item() + atol
        if bool((distance(got, exact) <= allowed + rtol * exact.double().abs().nan_to_num()).all()):
            return None
    return f"differs by {distance(got, want).max().item():.3g}"
