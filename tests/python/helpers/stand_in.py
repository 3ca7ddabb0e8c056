"""Tensors of the stand-in for a CUDA device, see fake_cuda.py."""

from __future__ import annotations

from typing import Any

import torch


def put(value: Any, index: int = 0) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.ops.fake_cuda.to(value, index)
    return tuple(put(item, index) for item in value) if isinstance(value, tuple) else value


def back(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.ops.fake_cuda.cpu(value)
    return tuple(map(back, value)) if isinstance(value, tuple) else value
