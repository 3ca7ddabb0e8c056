"""On a GPU: the programs of tests/python/cuda_cases.py, launched on torch's current stream, against eager on the CPU.

Run with `pytest tests/gpu`; without a device every test is skipped.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

import cuda_device
from cuda_cases import Case, cases
from test_cuda import compare

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("case", [case for case in cases() if case.pure], ids=lambda case: case.name)
def test_a_program_means_on_the_device_what_eager_means_on_the_cpu(case: Case) -> None:
    with torch.no_grad():
        got = cuda_device.run(cuda_device.capture(case), list(case.args), "cuda")
        expected = case.function(*case.args)
    compare(case, got, list(expected) if isinstance(expected, tuple) else [expected])
