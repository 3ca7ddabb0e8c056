"""The same call on small inputs, for the cost of a call as such."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

SMALL = 4  # what a dimension is cut to
Cut = Callable[[int, int], int]  # dimension index, length -> length

# Tried in this order until the function accepts one: all dimensions, all in proportion, only the first (a batch).
CUTS: tuple[Cut, ...] = (
    lambda index, length: min(length, SMALL),
    lambda index, length: max(1, length // 64),
    lambda index, length: min(length, 1) if index == 0 else length,
)


def shrink(value: Any, cut: Cut) -> Any:
    """`value` with every tensor cut down, layout (order of strides, expanded dimensions) kept."""
    if isinstance(value, torch.Tensor):
        return _shrink_tensor(value, cut)
    if isinstance(value, (tuple, list)):
        return type(value)(shrink(item, cut) for item in value)
    if isinstance(value, dict):
        return {key: shrink(item, cut) for key, item in value.items()}
    return value


def _shrink_tensor(tensor: torch.Tensor, cut: Cut) -> torch.Tensor:
    small = tensor.detach()
    sizes = [cut(index, length) for index, length in enumerate(tensor.shape)]
    for index, length in enumerate(sizes):
        small = small.narrow(index, 0, min(length, 1) if tensor.stride(index) == 0 else length)
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    dense = small.permute(order).contiguous().clone()
    back = sorted(range(tensor.dim()), key=lambda place: order[place])
    return dense.permute(back).expand(sizes)


def tiny_inputs(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Small inputs the function accepts; None when none of the cuts gives such."""
    for cut in CUTS:
        try:
            small: tuple[tuple[Any, ...], dict[str, Any]] = shrink((args, kwargs), cut)
            with torch.no_grad():
                fn(*shrink(args, cut), **shrink(kwargs, cut))
        except Exception:  # the user's function says no in its own way
            continue
        return small
    return None
