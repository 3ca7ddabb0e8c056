"""What eager's last bits hang on beside its arguments: the CPU. The one place that accepts other bits than eager's.

torch takes `sqrt`, and `pow` to the power 0.5, of f32 and f64 from MKL, whose last bit differs from CPU to CPU and is
wrong on some (docs/numerics.md has the measurement). FastJIT's are correctly rounded on every CPU. So a result that is
compared bit for bit is right where it is eager's, or at least as near as eager's to the value that eager would have
given with correctly rounded roots.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

TYPES = (torch.float32, torch.float64)


def at_least_as_near(got: torch.Tensor, eager: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Per element: `got` is eager's, sign of zero included, or no farther from `truth` than eager's."""
    g, e, t = (x.double() for x in (got, eager, truth))
    same = ((g == e) & (g.signbit() == e.signbit())) | (g.isnan() & e.isnan())
    return same | ((g != e) & ((g - t).abs() <= (e - t).abs()))


class RoundedRoots(TorchDispatchMode):
    """Eager whose square roots of f32 and f64 are correctly rounded: IEEE's, which numpy takes from the CPU."""

    ROOTS = ("aten::sqrt", "aten::sqrt_", "aten::_foreach_sqrt", "aten::_foreach_sqrt_")
    POWERS = ("aten::pow", "aten::pow_")

    def is_root(self, func: Any, args: tuple) -> bool:
        name = func._schema.name
        return name in self.ROOTS or (name in self.POWERS and isinstance(args[1], float) and args[1] == 0.5)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if not self.is_root(func, args):
            return func(*args, **kwargs)
        listed = isinstance(args[0], (list, tuple))
        operands = [t.clone() for t in (args[0] if listed else [args[0]])]
        out = func(*args, **kwargs)
        results = args[0] if out is None else out if listed else [out]
        for operand, result in zip(operands, results, strict=True):
            if result.dtype in TYPES and operand.is_floating_point():
                with np.errstate(invalid="ignore"):
                    root = np.asarray(np.sqrt(operand.to(result.dtype).numpy()))
                result.data.copy_(torch.from_numpy(root))  # .data: no version counts it
        return out
