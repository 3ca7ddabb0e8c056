"""What benchmarks/training_quality.py and digits.py make of their measurements, on programs that take no time."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def quality(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    import training_quality

    return training_quality


@pytest.mark.usefixtures("own_caches")
def test_gradients_of_a_program_are_compared_with_f64(quality: ModuleType) -> None:
    program = next(one for one in quality.PROGRAMS if one.name.startswith("MLP"))
    found = quality.errors(program)
    assert found["all_hits"] and not found["fallbacks"]
    assert set(found["eager"]) == set(found["fastjit"]) and len(found["eager"]) == 7
    assert all(0 < error < 1e-5 for variant in ("eager", "fastjit") for error in found[variant].values())
    assert torch.get_default_dtype() == torch.float32


def test_errors_below_two_units_count_as_that(quality: ModuleType) -> None:
    found = {"eager": {"a": 0.0, "b": 1e-6, "c": 1e-5}, "fastjit": {"a": 1e-7, "b": 2e-6, "c": 0.0}}
    assert quality.ratios(found) == {"a": 1.0, "b": pytest.approx(2.0), "c": pytest.approx(quality.FLOOR / 1e-5)}


def test_gradients_that_are_zero_are_left_out(quality: ModuleType) -> None:
    found = {
        "eager": {"weight": 1e-6, "bias before a norm": 2e8},
        "fastjit": {"weight": 2e-6, "bias before a norm": 5e8},
    }
    assert quality.ratios(found) == {"weight": pytest.approx(2.0)}


def test_a_program_that_ran_eagerly_is_no_success(quality: ModuleType) -> None:
    one = {"peak_bytes": 10, "kept_bytes": 0, "all_hits": True, "fallbacks": {}}
    eager = {"all_hits": False, "peak_bytes": 99, "fallbacks": {"a hook": 3}}
    memory = {"a": {"eager": one, "fastjit": one}, "b": {"eager": one, "fastjit": one | eager}}
    (target,) = quality.targets({"memory": memory})
    assert target.measured == 1.0 and target.must == 1.0 and "0 of 1" in target.detail
    assert quality.ran_as(eager) == "eager: a hook"


def test_what_lies_outside_of_the_seeds(quality: ModuleType) -> None:
    import digits

    assert digits.outside([0.9, 0.95], [0.92, 0.93]) == 0
    assert digits.outside([0.9, 0.95], [0.8, 0.9]) == pytest.approx(0.05)
    assert digits.outside([0.9, 0.95], [0.97, 0.97]) == pytest.approx(0.02)
