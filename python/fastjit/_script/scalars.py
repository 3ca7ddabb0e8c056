"""Operators of TorchScript on numbers, lists and sizes as Python expressions: {0} is the first operand."""

from __future__ import annotations

import math
from typing import Any

import torch

# By name with overload, else by name where no operand is a tensor.
EXPRESSIONS: dict[str, str] = {
    "aten::size": "{0}.shape",
    "aten::size.int": "{0}.size({1})",
    "aten::dim": "{0}.dim()",
    "aten::numel": "{0}.numel()",
    "aten::len.Tensor": "len({0})",
    "aten::stride": "{0}.stride()",
    "aten::stride.int": "{0}.stride({1})",
    "aten::is_contiguous": "{0}.is_contiguous()",
    "aten::is_floating_point": "{0}.is_floating_point()",
    "aten::is_complex": "{0}.is_complex()",
    "prim::dtype": "dtype_numbers[{0}.dtype]",
    "prim::device": "{0}.device",
    "prim::is_cuda": "{0}.is_cuda",
    "prim::is_sparse": "{0}.is_sparse",
    "prim::is_nested": "{0}.is_nested",
    "prim::requires_grad": "{0}.requires_grad",
    "prim::unchecked_cast": "{0}",
    "prim::unchecked_unwrap_optional": "{0}",
    "aten::_unwrap_optional": "unwrapped({0})",
    "aten::Bool.Tensor": "bool({0})",
    "aten::Int.Tensor": "int({0})",
    "aten::Float.Tensor": "float({0})",
    "aten::item": "{0}.item()",
    "aten::IntImplicit": "int(implicit({0}))",
    "aten::FloatImplicit": "float(implicit({0}))",
    "aten::ScalarImplicit": "implicit({0}).item()",
    "aten::Bool.int": "bool({0})",
    "aten::Bool.float": "bool({0})",
    "aten::Int.bool": "int({0})",
    "aten::Int.float": "int({0})",
    "aten::Int.int": "{0}",
    "aten::Int.Scalar": "int({0})",
    "aten::Float.int": "float({0})",
    "aten::Float.bool": "float({0})",
    "aten::Float.float": "{0}",
    "aten::Float.Scalar": "float({0})",
    "aten::__is__": "{0} is {1}",
    "aten::__isnot__": "{0} is not {1}",
    "aten::__not__": "not {0}",
    "aten::__range_length": "len(range({0}, {1}, {2}))",
    "aten::__derive_index": "{1} + {0} * {2}",
    "aten::add": "{0} + {1}",
    "aten::sub": "{0} - {1}",
    "aten::mul": "{0} * {1}",
    "aten::neg": "-{0}",
    "aten::div": "divided({0}, {1})",
    "aten::floordiv.int": "{0} // {1}",
    "aten::remainder.int": "{0} % {1}",
    "aten::items": "list({0}.items())",
    "aten::pow.int": "float({0} ** {1})",
    "aten::pow.int_to_int": "{0} ** {1}",
    "aten::pow.float_int": "{0} ** {1}",
    "aten::eq": "{0} == {1}",
    "aten::ne": "{0} != {1}",
    "aten::lt": "{0} < {1}",
    "aten::le": "{0} <= {1}",
    "aten::gt": "{0} > {1}",
    "aten::ge": "{0} >= {1}",
    "aten::__and__.bool": "{0} and {1}",
    "aten::__or__.bool": "{0} or {1}",
    "aten::__and__.int": "{0} & {1}",
    "aten::__or__.int": "{0} | {1}",
    "prim::abs": "abs({0})",
    "prim::min.int": "min({0}, {1})",
    "prim::max.int": "max({0}, {1})",
    "prim::min.float": "({0} if {0} < {1} else {1})",
    "prim::max.float": "({0} if {0} > {1} else {1})",
    "prim::min.self_int": "min({0})",
    "prim::max.self_int": "max({0})",
    "aten::sqrt.int": "math.sqrt({0})",
    "aten::sqrt.float": "math.sqrt({0})",
    "aten::floor.float": "math.floor({0})",
    "aten::ceil.float": "math.ceil({0})",
    "aten::pow.float": "powered({0}, {1})",
    "aten::pow.int_float": "powered({0}, {1})",
    "aten::isnan.float": "{0} != {0}",
    "aten::isinf.float": "abs({0}) == math.inf",
    "aten::isfinite.float": "abs({0}) < math.inf",
    "aten::round.float": "float(round({0}))",
    "aten::len": "len({0})",
    "aten::upper": "{0}.upper()",
    "aten::lower": "{0}.lower()",
    "aten::slice.str": "{0}[{1}:{2}:{3}]",
    "prim::type": "{0}.type",
    "aten::__getitem__": "{0}[{1}]",
    "aten::slice": "{0}[{1}:{2}:{3}]",
    "aten::list": "list({0})",
    "aten::copy": "{0}.copy()",
    "aten::keys": "list({0})",
    "aten::values": "list({0}.values())",
    "aten::__contains__": "{1} in {0}",
    "aten::index": "{0}.index({1})",
    "aten::is_grad_enabled": "is_grad_enabled()",
    "aten::is_autocast_enabled": "is_autocast_enabled()",
    "aten::is_autocast_cpu_enabled": "is_autocast_enabled('cpu')",
    "aten::sum.int": "sum({0})",
    "aten::all.int": "all({0})",
    "aten::all.bool": "all({0})",
    "aten::any.int": "any({0})",
    "aten::any.bool": "any({0})",
    "prim::NumToTensor": "number_tensor({0})",
    "prim::TupleIndex": "{0}[{1}]",
    **{f"aten::get.{key}": "{0}.get({1})" for key in ("str", "int", "float", "bool")},
    **{f"aten::get.default_{key}": "{0}.get({1}, {2})" for key in ("str", "int", "float", "bool")},
}

# The same of those that look at a text from one position to another, where these are its ends.
WHOLE_TEXTS: dict[str, str] = {
    "aten::find": "{0}.find({1})",
    "aten::startswith": "{0}.startswith({1})",
    "aten::endswith": "{0}.endswith({1})",
}

# The same of those that change their first operand, and give it or nothing.
STATEMENTS: dict[str, str] = {
    "aten::append": "{0}.append({1})",
    "aten::extend": "{0}.extend({1})",
    "aten::add_": "{0}.extend({1})",
    "aten::insert": "{0}.insert({1}, {2})",
    "aten::reverse": "{0}.reverse()",
    "aten::clear": "{0}.clear()",
    "aten::_set_item": "{0}[{1}] = {2}",
    "aten::Delete": "del {0}[{1}]",
}

# What reads elements of a tensor.
READS = frozenset(
    "aten::" + name for name in "Bool Int Float item IntImplicit FloatImplicit ScalarImplicit equal allclose".split()
)


def divided(a: Any, b: Any) -> float:
    """As C++ divides."""
    if b != 0:
        return float(a / b)
    return math.nan if a == 0 or a != a else math.copysign(math.inf, a) * math.copysign(1.0, b)


def powered(a: float, b: float) -> float:
    """As C's pow(); Python gives a complex number or an error where that gives NaN or infinity."""
    if a < 0 and b % 1 != 0 and abs(a) < math.inf and abs(b) < math.inf:
        return math.nan
    try:
        return float(float(a) ** b)
    except OverflowError:
        return -math.inf if a < 0 and b % 2 == 1 else math.inf


def unwrapped(value: Any) -> Any:
    if value is None:
        raise RuntimeError("Unwrapping null optional")
    return value


def implicit(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() or tensor.requires_grad:
        raise RuntimeError("Cannot convert a tensor of dimension 1 or more, or one that requires grad, to a number")
    return tensor


def number_tensor(number: Any) -> torch.Tensor:
    dtype = torch.bool if isinstance(number, bool) else torch.int64 if isinstance(number, int) else torch.float64
    return torch.scalar_tensor(number, dtype=dtype)


def listed(items: list[Any]) -> str:
    """A list of texts or ints as TorchScript writes it."""
    return f"[{', '.join([str(item) for item in items])}]"


def raised(message: str, kind: str, place: str) -> Exception:
    """As the interpreter says it."""
    head = "The following operation failed in the TorchScript interpreter.\nTraceback of TorchScript"
    said = message if kind == "AssertionError" else f"{kind}: {message}"
    return torch.jit.Error(f"{head} (most recent call last):\n{place}{said}\n")


# TorchScript's own numbers of dtypes; for another one the original runs.
DTYPE_NUMBERS = {
    getattr(torch, name): number
    for number, name in enumerate(
        "uint8 int8 int16 int32 int64 float16 float32 float64 complex32 complex64 complex128 bool".split()
    )
} | {torch.bfloat16: 15}

HELPERS: dict[str, Any] = {
    "math": math,
    "divided": divided,
    "powered": powered,
    "unwrapped": unwrapped,
    "listed": listed,
    "is_grad_enabled": torch.is_grad_enabled,
    "is_autocast_enabled": torch.is_autocast_enabled,
    "implicit": implicit,
    "number_tensor": number_tensor,
    "dtype_numbers": DTYPE_NUMBERS,
}
