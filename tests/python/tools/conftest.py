"""A file of cases and caches of their own, for the tests of `fastjit bench`."""

from __future__ import annotations

from pathlib import Path

import pytest

CASE = """
import torch

def scale(x, factor=2.0):
    return x * factor + 1

def scale_args(n=8):
    return torch.randn(n, n), 3.0

def drift(x):
    drift.calls += 1
    return x + drift.calls

drift.calls = 0

def drift_args():
    return torch.zeros(4)

def add_in_place(x, y):
    x.add_(y)
    return x

def no_inputs(x):
    return x
"""


@pytest.fixture
def case_file(tmp_path: Path) -> Path:
    path = tmp_path / f"case_{tmp_path.name}.py"
    path.write_text(CASE)
    return path


@pytest.fixture
def own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FASTJIT_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
