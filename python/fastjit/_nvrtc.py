"""Finds NVRTC: the nvidia-cuda-nvrtc wheel, torch's own wheels, the toolkit, else the system's search path."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fastjit._load import extension


def candidates() -> list[str]:
    """Libraries found on this machine, the most wanted first."""
    roots = [Path(folder) for folder in sys.path if folder]
    patterns = [(root, "nvidia/*/lib/libnvrtc.so.*") for root in roots] + [
        (root, "torch/lib/libnvrtc*.so*") for root in roots
    ]
    for toolkit in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if toolkit:
            patterns.append((Path(toolkit), "lib64/libnvrtc.so*"))
    found = [str(path) for root, pattern in patterns for path in sorted(root.glob(pattern), reverse=True)]
    return [path for path in found if "builtins" not in path and ".alt." not in path]


def problem() -> str:
    """Opens NVRTC. Empty, or why it cannot be used."""
    if extension.nvrtc_version():
        return ""
    return str(extension.nvrtc_open(next(iter(candidates()), "")))


def architecture() -> int:
    """The sm to show code for: the current device's, or 90 without one."""
    import torch

    if not torch.cuda.is_available():
        return 90
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor
