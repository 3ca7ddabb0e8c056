"""The functions whose CUDA kernels are tested: pairwise over op, dtype and layout, a few ops a kernel; or all of them.

A case is captured on the CPU; its kernels' CUDA source is what the tests compile and run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from helpers import assert_same

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
LAYOUTS = ("contiguous", "transposed", "strided", "sliced", "broadcast")
ROWS, COLUMNS = 5, 37
SPECIAL = (float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1e-40, -1.0, 1.0, 0.5, 88.7, -104.0, 1e30)

# Ops whose results must have eager's bits; the others have at most 4 ULP between them and eager (whose own square root
# is not the nearest float).
EXACT = {
    "add", "sub", "mul", "div", "neg", "abs", "minimum", "maximum", "fmin", "fmax", "floor", "ceil", "trunc",
    "round", "copysign", "where", "floor_divide", "remainder", "fmod", "signbit", "eq", "ne", "lt", "le", "gt",
    "ge", "relu", "clamp",
}  # fmt: skip

Make = Callable[[torch.dtype, str, int], torch.Tensor]


@dataclass(frozen=True)
class Case:
    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    tolerance: str  # "exact", "ulp" (4 ULP, 1 for halves) or "close" (torch.testing's)
    pure: bool = True


FLOAT_UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    name: getattr(torch, name)
    for name in (
        "neg", "abs", "floor", "ceil", "trunc", "round", "signbit", "relu", "clamp", "sqrt", "rsqrt", "exp", "exp2",
        "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh",
        "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "sigmoid",
    )
}  # fmt: skip
FLOAT_UNARY["clamp"] = lambda x: torch.clamp(x, -0.75, 2)  # in its place above: ops whose bits are eager's come first
FLOAT_BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    name: getattr(torch, name)
    for name in (
        "add", "sub", "mul", "div", "minimum", "maximum", "fmin", "fmax", "copysign", "floor_divide", "remainder",
        "fmod", "pow", "atan2", "hypot", "eq", "ne", "lt", "le", "gt", "ge",
    )
}  # fmt: skip


def not_denormal(y: torch.Tensor) -> torch.Tensor:
    """Eager's vectors give NaN for the remainder by a denormal; its own scalar code gives the remainder."""
    return torch.where((y.abs() < 1e-30) & (y != 0), 3, y)


FLOAT_BINARY["remainder"] = lambda x, y: torch.remainder(x, not_denormal(y))
FLOAT_BINARY["fmod"] = lambda x, y: torch.fmod(x, not_denormal(y))
FLOAT_BINARY["where"] = lambda x, y: torch.where(x > y, x, y)
INT_BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    name: getattr(torch, name)
    for name in (
        "add", "sub", "mul", "minimum", "maximum", "bitwise_and", "bitwise_or", "bitwise_xor", "eq", "ne", "lt", "le",
        "gt", "ge",
    )
}  # fmt: skip
INT_BINARY |= {
    "fmin": lambda x, y: torch.fmin(x, y) + torch.fmax(x, y),
    "where": lambda x, y: torch.where(x < y, x, y),
    "shl": lambda x, y: torch.bitwise_left_shift(x, y & 15),
    "shr": lambda x, y: torch.bitwise_right_shift(x, y & 15),
    "div": lambda x, y: torch.div(x, 3, rounding_mode="trunc") + y,
    "floor_divide": lambda x, y: torch.floor_divide(x, 7) + y,
    "remainder": lambda x, y: torch.remainder(x, 5) + y,
    "fmod": lambda x, y: torch.fmod(x, 6) + y,
    "neg": lambda x, y: -x,
    "abs": lambda x, y: torch.abs(x) - y,
    "not": lambda x, y: torch.bitwise_not(y),
    "signbit": lambda x, y: torch.signbit(x) | (y > 3),
}
SIGNED_ONLY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    # Not the lowest number: dividing that by -1 ends eager's process.
    "by_minus_one": lambda x, y: torch.div(x.clamp(min=-99), -1, rounding_mode="trunc") + x.clamp(min=-99) % -1,
    "negative_divisor": lambda x, y: torch.floor_divide(x, -7) + torch.remainder(y, -5) + torch.fmod(x, -3),
}
BOOL_BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "and": torch.logical_and,
    "or": lambda x, y: x | y,
    "xor": torch.logical_xor,
    "not": lambda x, y: torch.logical_not(x),
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "where": lambda x, y: torch.where(x, y, ~x),
    "add": torch.add,
    "mul": torch.mul,
}


def tensor(dtype: torch.dtype, layout: str, seed: int, *, special: bool = True) -> torch.Tensor:
    """ROWS x COLUMNS (to broadcast: 1 x COLUMNS or ROWS x 1) in a memory layout."""
    shape = (ROWS, COLUMNS)
    if layout == "broadcast":
        shape = (1, COLUMNS) if seed % 2 else (ROWS, 1)
    stored = {
        "transposed": (shape[1], shape[0]),
        "strided": (shape[0], 2 * shape[1]),
        "sliced": (shape[0] + 2, shape[1] + 3),
    }.get(layout, shape)
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        made = torch.randn(stored, generator=generator, dtype=torch.float64) * 2
        if special:
            flat = made.view(-1)
            count = min(len(SPECIAL), flat.numel())
            place = torch.randperm(flat.numel(), generator=generator)[:count]
            flat[place] = torch.tensor(SPECIAL[:count], dtype=torch.float64)
        made = made.to(dtype)
    elif dtype == torch.bool:
        made = torch.randint(0, 2, stored, generator=generator).to(dtype)
    else:
        low = 0 if dtype == torch.uint8 else -120
        made = torch.randint(low, 121, stored, generator=generator).to(dtype)
        info = torch.iinfo(dtype)
        made.view(-1)[:2] = torch.tensor([info.min, info.max], dtype=dtype)
    if layout == "transposed":
        return made.t()
    if layout == "strided":
        return made[:, ::2]
    return made[1:-1, 2:-1] if layout == "sliced" else made


def pairs(dtypes: Iterable[torch.dtype], shift: int, full: bool) -> Iterator[tuple[torch.dtype, str]]:
    """Every dtype and every layout at least once, and over all shifts every pair; or all pairs."""
    dtypes = tuple(dtypes)
    if full:
        yield from ((dtype, layout) for dtype in dtypes for layout in LAYOUTS)
        return
    for i in range(max(len(dtypes), len(LAYOUTS))):
        yield dtypes[i % len(dtypes)], LAYOUTS[(i + shift) % len(LAYOUTS)]


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def groups_of(count: int, table: dict[str, Callable[..., torch.Tensor]]) -> list[tuple[str, ...]]:
    names = list(table)
    return [tuple(names[i : i + count]) for i in range(0, len(names), count)]


def together(functions: list[Callable[..., torch.Tensor]]) -> Callable[..., Any]:
    return lambda *args: tuple(function(*args) for function in functions)


def pointwise(full: bool) -> Iterator[Case]:
    tables: list[tuple[dict[str, Any], tuple[torch.dtype, ...], int]] = [
        (FLOAT_UNARY, FLOATS, 1),
        (FLOAT_BINARY, FLOATS, 2),
        (INT_BINARY, INTS, 2),
        (SIGNED_ONLY, INTS[:4], 2),
        (BOOL_BINARY, (torch.bool,), 2),
    ]
    for table, dtypes, arity in tables:
        for shift, names in enumerate(groups_of(2 if table is FLOAT_BINARY else 3, table)):
            exact = dtypes is not FLOATS or EXACT.issuperset(names)
            for dtype, layout in pairs(dtypes, shift, full):
                args = [tensor(dtype, layout, 10 * shift + 1)]
                if arity == 2:
                    args.append(tensor(dtype, "contiguous" if layout == "broadcast" else layout, 10 * shift + 2))
                function = together([table[name] for name in names])
                name = f"{'+'.join(names)} {short(dtype)} {layout}"
                yield Case(name, function, tuple(args), "exact" if exact else "ulp")


def conversions(full: bool) -> Iterator[Case]:
    everything = (*FLOATS, *INTS, torch.bool)
    for i, dtype in enumerate(everything):
        layouts = LAYOUTS if full else (LAYOUTS[i % len(LAYOUTS)],)
        for layout in layouts:
            x = tensor(dtype, layout, i, special=False)
            if dtype.is_floating_point:
                x = x.abs()
            others = [other for other in everything if other != dtype]
            yield Case(f"to {short(dtype)} {layout}", lambda x, o=others: tuple(x.to(d) for d in o), (x,), "exact")
    halves = torch.arange(0, 1 << 16, dtype=torch.int32).to(torch.int16)
    for dtype in (torch.float16, torch.bfloat16):
        every = halves.view(dtype)
        yield Case(f"every {short(dtype)}", lambda x: x.float(), (every,), "exact")
        near = every.float().nan_to_num(0, 6e4, -6e4)
        values = torch.cat([near, near * (1 + 2**-12), near * (1 + 2**-9), near * 1.0004882])
        yield Case(f"rounding to {short(dtype)}", lambda x, d=dtype: x.to(d), (values,), "exact")


REDUCTIONS: dict[str, tuple[Callable[[torch.Tensor, int], Any], tuple[torch.dtype, ...], str]] = {
    "sum": (lambda x, d: x.sum(d), (*FLOATS, torch.int64), "close"),
    "mean": (lambda x, d: x.mean(d), FLOATS, "close"),
    "prod": (lambda x, d: (x * 0.25 + 1).prod(d), (torch.float32, torch.float64), "close"),
    "prod_int": (lambda x, d: x.prod(d), (torch.int64, torch.int32), "exact"),
    "amax": (lambda x, d: x.amax(d), (*FLOATS, torch.int32, torch.uint8), "exact"),
    "amin": (lambda x, d: x.amin(d), (*FLOATS, torch.int64, torch.int8), "exact"),
    "argmax": (lambda x, d: x.argmax(d), (torch.float32, torch.float64, torch.int32), "exact"),
    "argmin": (lambda x, d: x.argmin(d), (torch.float32, torch.bfloat16, torch.int64), "exact"),
    "any": (lambda x, d: (x > 1).any(d), (torch.float32, torch.int32), "exact"),
    "all": (lambda x, d: (x > -1).all(d), (torch.float64, torch.int8), "exact"),
    "softmax": (lambda x, d: torch.softmax(x, d), FLOATS, "close"),
    "log_softmax": (lambda x, d: torch.log_softmax(x, d), FLOATS[:2], "close"),
    "var": (lambda x, d: x.var(d), FLOATS[:2], "close"),
    "norm_rows": (lambda x, d: (x - x.amax(d, keepdim=True)).exp().sum(d), FLOATS[:2], "close"),
}


def reductions(full: bool) -> Iterator[Case]:
    layouts = LAYOUTS[:4]
    for shift, (name, (function, dtypes, tolerance)) in enumerate(REDUCTIONS.items()):
        for i, dtype in enumerate(dtypes):
            for layout in layouts if full else (layouts[(i + shift) % len(layouts)],):
                for dim in (0, 1) if full else ((i + shift // 2) % 2,):
                    x = tensor(dtype, layout, shift, special=False)
                    yield Case(
                        f"{name} {short(dtype)} {layout} dim {dim}",
                        lambda x, f=function, d=dim: f(x, d),
                        (x,),
                        tolerance,
                    )


def fused() -> Iterator[Case]:
    x, y = tensor(torch.float32, "contiguous", 1, special=False), tensor(torch.float32, "strided", 2, special=False)
    row, cube = tensor(torch.float32, "broadcast", 3, special=False), torch.randn(3, 4, 6, 7)
    nan = tensor(torch.float32, "contiguous", 4)
    functional = torch.nn.functional
    yield Case("gelu chain", lambda x, y: functional.gelu(x * y + 1) * x, (x, y), "close")
    yield Case("gelu tanh", lambda x: functional.gelu(x, approximate="tanh"), (x,), "close")
    yield Case("silu of bfloat16", lambda x: functional.silu(x), (x.bfloat16(),), "ulp")
    yield Case("layer_norm", lambda x, r: functional.layer_norm(x, (COLUMNS,)) * r, (x, row), "close")
    yield Case("softmax of 3 dims", lambda x: torch.softmax(x * 2, 1), (cube,), "close")
    yield Case("sum of 2 dims", lambda x: x.permute(2, 0, 3, 1).sum((1, 3)), (cube,), "close")
    yield Case("full sum", lambda x: (x * x).sum(), (x,), "close")
    yield Case("max with nan", lambda x: (x.amax(1), x.argmax(1), x.amin(0)), (nan,), "exact")
    yield Case("cat and flip", lambda x, y: torch.cat([x.flip(0), y + 1], 1), (x, y), "exact")
    yield Case("index", lambda x: x + torch.arange(COLUMNS, device=x.device), (x,), "exact")
    yield Case("select", lambda x: torch.where(x > 3, x, x * (x + 3) / 6), (x,), "exact")
    yield Case("addcmul", lambda x, y: torch.addcmul(x, x, y, value=0.5), (x, y), "close")
    yield Case("lerp", lambda x, y: torch.lerp(x, y, 0.25), (x, y), "close")
    yield Case("empty", lambda x: torch.exp(x[:0]) + 1, (x,), "exact")
    yield Case("scalar float", lambda x, a: x * a + 1, (x, 2.75), "exact", pure=False)
    yield Case("scalar int", lambda x, a: x + a, (tensor(torch.int64, "sliced", 5), 1000), "exact", pure=False)


def cases(*, full: bool = False) -> list[Case]:
    return [*pointwise(full), *conversions(full), *reductions(full), *fused()]


def ulps(got: torch.Tensor, expected: torch.Tensor, count: float) -> None:
    """At most `count` ULP apart; NaN and infinities in the same places."""
    finite = torch.isfinite(expected)
    torch.testing.assert_close(
        torch.where(finite, 0, got), torch.where(finite, 0, expected), rtol=0, atol=0, equal_nan=True
    )
    a, b = got[finite].double(), expected[finite].double()
    info = torch.finfo(expected.dtype)
    bound = count * torch.clamp(b.abs() * info.eps, min=info.tiny * info.eps)
    worst = ((a - b).abs() / bound).max().item() if a.numel() else 0
    assert worst <= 1, f"{worst * count:.1f} ULP"


def compare(case: Case, got: Any, expected: Any) -> None:
    if case.tolerance != "ulp":
        assert_same(got, expected, exact=case.tolerance == "exact")
        return
    for g, e in zip(got, expected, strict=True):
        assert g.dtype == e.dtype and g.stride() == e.stride()
        ulps(g, e, 4 if e.dtype in (torch.float32, torch.float64) else 1) if e.is_floating_point() else assert_same(
            g, e, exact=True
        )
