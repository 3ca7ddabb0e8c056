"""What loops over elements call once they are operators on all of them; recordings watch this code."""

from __future__ import annotations

from typing import Any

import torch

from fastjit._load import extension as _C

_slice, _select, _movedim = torch.ops.aten.slice.Tensor, torch.ops.aten.select.int, torch.ops.aten.movedim.int
_unsqueeze = torch.ops.aten.unsqueeze.default
_shares_memory = _C.shares_memory


def views(
    counts: tuple[int, ...],
    paths: tuple[tuple[torch.Tensor, tuple[Any, ...]], ...],
    written: tuple[int, ...],
    apart: tuple[tuple[int, int], ...],
) -> list[torch.Tensor] | None:
    """Each tensor's places in all rounds, the counters' dims in front; None where the loop must stay one.

    Args:
        counts: the rounds of each level.
        paths: tensors, with the steps from each to its place in a round.
        written: which of them are written.
        apart: pairs that must not share memory.
    """
    for count in counts:
        if count <= 0:
            return None
    for position in written:
        if not _is_injective(paths[position][0]):
            return None
    for one, other in apart:
        if _shares_memory(paths[one][0], paths[other][0]):
            return None
    found = []
    for tensor, steps in paths:
        view = _view(tensor, steps, counts)
        if view is None:
            return None
        found.append(view)
    return [view for view, _ in found] if _promote_alike(found) else None


def _promote_alike(found: list[tuple[torch.Tensor, int]]) -> bool:
    """Whether a number in a tensor without dims and its element in one with dims give results of the same type."""
    if all([view.dtype == found[0][0].dtype for view, _ in found]):
        return True
    numbers = [view.dim() == levels for view, levels in found]
    return all(numbers) or not any(numbers)


def _is_injective(tensor: torch.Tensor) -> bool:
    """Whether no two of its elements are the same memory."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return False
            reach += stride * (size - 1)
    return True


def _view(tensor: torch.Tensor, steps: tuple[Any, ...], counts: tuple[int, ...]) -> tuple[torch.Tensor, int] | None:
    levels: list[int] = []
    for kind, dim, *rest in steps:
        own = tensor.dim() - len(levels)
        if not -own <= dim < own:
            return None
        place = (dim + own if dim < 0 else dim) + len(levels)
        size = tensor.size(place)
        if kind == "at":
            level, start, step = rest
            last = start + (counts[level] - 1) * step
            if step <= 0 or start < 0 or last >= size:
                return None
            if start or step != 1 or last + 1 != size:
                tensor = _slice(tensor, place, start, last + 1, step)
            front = len([other for other in levels if other < level])
            if front != place:
                tensor = _movedim(tensor, place, front)
            levels.insert(front, level)
        elif kind == "select":
            (index,) = rest
            if not -size <= index < size:
                return None
            tensor = _select(tensor, place, index)
        else:
            tensor = _slice(tensor, place, *rest)
    return tensor, len(levels)


def pointwise(operator: Any, *operands: Any, **options: Any) -> torch.Tensor:
    """The operator on all rounds at once. A tensor comes with its levels: as many dims in front are rounds."""
    tensors = [operand for operand in operands if isinstance(operand, tuple)]
    levels = sorted({level for _, own in tensors for level in own})
    dims = max([tensor.dim() - len(own) for tensor, own in tensors])
    return operator(*[_aligned(operand, levels, dims) for operand in operands], **options)  # type: ignore[no-any-return]


def pointwise_into(operator: Any, target: Any, *operands: Any, **options: Any) -> None:
    """The same for an operator that writes to its first operand."""
    tensor, levels = target
    dims = tensor.dim() - len(levels)
    operator(tensor, *[_aligned(operand, sorted(levels), dims) for operand in operands], **options)


def _aligned(operand: Any, levels: list[int], dims: int) -> Any:
    if not isinstance(operand, tuple):
        return operand
    tensor, own = operand
    for position, level in enumerate(levels):
        if level not in own:
            tensor = _unsqueeze(tensor, position)
    if len(levels):
        for _ in range(dims - (tensor.dim() - len(levels))):
            tensor = _unsqueeze(tensor, len(levels))
    return tensor
