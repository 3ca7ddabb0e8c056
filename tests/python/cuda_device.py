"""Runs the kernels of a captured program through the CUDA driver, on a device (or, with a stand-in, on the host)."""

from __future__ import annotations

from typing import Any

import torch

from cuda_cases import Case
from fastjit import _nvrtc, fastjit
from fastjit._load import extension

DTYPES = {
    "f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16, "i8": torch.int8,
    "i16": torch.int16, "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8, "bool": torch.bool,
}  # fmt: skip


def capture(case: Case) -> Any:
    function = fastjit(pure=True)(case.function)
    function(*case.args)
    assert function.stats().fallbacks == {}
    return function


def run(function: Any, inputs: list[torch.Tensor], device: str) -> list[torch.Tensor]:
    """The outputs, on the CPU. `inputs` are the program's, in its order, on the CPU."""
    assert _nvrtc.problem() == ""
    memory = extension.cuda_memory(function, 0)
    arena = torch.empty(memory["arena"] + 64, dtype=torch.uint8, device=device)
    scratch = torch.empty(memory["scratch"] + 64, dtype=torch.uint8, device=device)
    tensors: list[torch.Tensor | None] = []
    addresses: list[int] = []
    for kind, index, dtype, sizes, strides, offset, base in memory["slots"]:
        tensor = None
        if kind == "input":
            tensor = torch.empty_strided(
                inputs[index].shape, inputs[index].stride(), dtype=DTYPES[dtype], device=device
            )
            tensor.copy_(inputs[index])
        elif kind == "tensor":
            tensor = torch.empty_strided(sizes, strides, dtype=DTYPES[dtype], device=device)
        elif kind == "alias":
            addresses.append(addresses[base] + offset * DTYPES[dtype].itemsize)
        if tensor is not None:
            addresses.append(tensor.data_ptr())
        elif kind == "temp":
            addresses.append((arena.data_ptr() + 63) // 64 * 64 + offset)
        tensors.append(tensor)
    stream = torch._C._cuda_getCurrentRawStream(torch.cuda.current_device()) if device == "cuda" else 0
    extension.cuda_run(function, 0, addresses, (scratch.data_ptr() + 63) // 64 * 64, stream, 0)
    if device == "cuda":
        torch.cuda.synchronize()
    results = [tensors[slot] for slot in memory["outputs"]]
    return [result.cpu() for result in results if result is not None]
