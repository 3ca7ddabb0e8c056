"""benchmarks/coverage.py without the packages that it plays: its list, its comparison, its worker on torch alone."""

from __future__ import annotations

import collections
import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import _coverage_compare as compare  # noqa: E402
import coverage_cases  # noqa: E402
from coverage_cases.optimizers import FOREACH, LOOP, OF_TORCH, name_of  # noqa: E402

MOST_OF_ONE_PACKAGE = 0.15


def test_the_list_is_as_broad_as_it_says() -> None:
    cases = coverage_cases.CASES.values()
    counts = collections.Counter(case.package for case in cases)
    assert len(cases) >= 150 and len(counts) >= 15
    assert max(counts.values()) <= MOST_OF_ONE_PACKAGE * len(cases), counts.most_common(1)
    assert all(name == case.name and name.isidentifier() for name, case in coverage_cases.CASES.items())
    assert {name_of(optimizer, form) for optimizer in OF_TORCH for form in (FOREACH, LOOP)} <= set(coverage_cases.CASES)


def test_every_package_is_pinned() -> None:
    import tomllib

    text = (BENCHMARKS.parent / "pyproject.toml").read_text()
    pins = tomllib.loads(text)["project"]["optional-dependencies"]["coverage"]
    names = {pin.partition("==")[0].lower().replace("_", "-") for pin in pins}
    assert all("==" in pin for pin in pins)
    wanted = {package.lower().replace("_", "-") for package in coverage_cases.packages()} - {"torch"}
    assert wanted <= names, wanted - names


def test_two_cases_have_two_names() -> None:
    name = next(iter(coverage_cases.CASES))
    with pytest.raises(ValueError, match="two cases"):
        coverage_cases.add("torch", name, coverage_cases.CASES[name].make)


class State:
    def __init__(self) -> None:
        self.history = [torch.arange(3.0)]
        self.options = {"rate": 0.5, "name": "a"}
        self.module = torch.nn.BatchNorm1d(2)


def spoil_value(state: State) -> None:
    state.history[0][1] += 1e-3


def spoil_bit(state: State) -> None:
    assert state.module.running_mean is not None
    state.module.running_mean[0] = -0.0


def spoil_number(state: State) -> None:
    state.options["rate"] = 0.25


def spoil_order(state: State) -> None:
    state.options = dict(reversed(state.options.items()))


def spoil_type(state: State) -> None:
    state.history = tuple(state.history)  # type: ignore[assignment]


def spoil_length(state: State) -> None:
    state.history.append(torch.zeros(1))


def spoil_strides(state: State) -> None:
    state.history[0] = torch.arange(3.0).repeat_interleave(2)[::2]


def spoil_grad_flag(state: State) -> None:
    state.module.weight.requires_grad_(False)


def spoil_gradient(state: State) -> None:
    state.module.weight.grad = torch.ones(2)


SPOILT = [
    spoil_value, spoil_bit, spoil_number, spoil_order, spoil_type, spoil_length, spoil_strides, spoil_grad_flag,
    spoil_gradient,
]  # fmt: skip


@pytest.mark.parametrize("spoil", SPOILT)
def test_a_difference_is_found(spoil: Any) -> None:
    state = State()
    other = copy.deepcopy(state)
    assert not compare.problems(other, state)
    spoil(other)
    found = compare.worst(compare.problems(other, state))
    assert found is not None and found.grade in ("wrong", "ulps"), found
    assert (found.grade == "wrong") == (spoil is not spoil_bit)  # two zeros are no unit in the last place apart


def moved(exact: torch.Tensor, by: float) -> torch.Tensor:
    """f32 of `exact`, with one value off by that much."""
    result = exact.float()
    result[0] += by
    return result


@pytest.mark.parametrize(
    ("ours", "eagers", "grade"),
    [(1e-7, 0.0, "ulps"), (1e-5, 0.8e-5, "rounding"), (4e-5, 1e-5, "far"), (1e-3, 1e-5, "wrong"), (1e-3, 0.0, "wrong")],
)
def test_grades_follow_the_run_in_f64(ours: float, eagers: float, grade: str) -> None:
    exact = torch.linspace(1, 2, 64, dtype=torch.float64)
    found = compare.worst(compare.problems(moved(exact, ours), moved(exact, -eagers), exact))
    assert found is not None and found.grade == grade, found


def test_a_run_in_f64_of_another_call_does_not_judge() -> None:
    want = torch.linspace(1, 2, 64)
    other = torch.linspace(5, 9, 64, dtype=torch.float64)
    found = compare.worst(compare.problems(want + 0.5, want, other))
    assert found is not None and found.grade == "wrong"


def test_equal_nans_are_equal() -> None:
    one, other = torch.tensor([float("nan"), 1.0]), torch.tensor([-float("nan"), 1.0])
    assert not compare.problems(one, other)


def played(name: str, tmp_path: Path, *flags: str, **settings: str) -> dict[str, Any]:
    paths = os.pathsep.join([str(BENCHMARKS), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "FASTJIT_CACHE_DIR": str(tmp_path), **settings}
    order = [sys.executable, str(BENCHMARKS / "_coverage_worker.py"), "--throw", *flags, name]
    done = subprocess.run(order, env=environment, capture_output=True, text=True, timeout=120, check=True)
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def test_the_worker_plays_a_case(tmp_path: Path) -> None:
    row = played("image_quantiles", tmp_path)
    assert row["hit"] and row["reason"] == "" and row["grade"] in compare.GRADES[:3]
    assert row["phases"]["first"] == ["recorded", "hit", "hit", "hit"]
    assert row["aten"] > 5 and row["second"] == 1.0 and row["first_ms"] > 0 and row["hit_ms"] > 0


def test_the_worker_tells_why_a_case_is_eager(tmp_path: Path) -> None:
    row = played("image_quantiles", tmp_path, FASTJIT_RECORD_OPERATORS="2")
    assert not row["hit"] and row["second"] == 0.0 and row["grade"] == "bits"
    assert row["reason"].startswith("recording limit (2 operators) reached at torch_itself.py:")


def test_the_worker_goes_back(tmp_path: Path) -> None:
    row = played("transformer_encoder", tmp_path, "--gradients")
    assert row["hit"] and row["goes_back"] and row["grade"] in compare.GRADES[:4], row
    assert row["phases"]["first"] == ["recorded", "hit", "hit", "hit"]
    assert not played("image_quantiles", tmp_path)["goes_back"]


def test_programs_without_gradients_are_not_counted() -> None:
    import coverage

    def row(name: str, **more: Any) -> dict[str, Any]:
        return {"name": name, "reason": "", "grade": "bits", "goes_back": True, **more}

    rows = [row("one"), row("step", goes_back=False), row("odd", grade="broken", reason="the case itself raises x")]
    counted, sheet = coverage.split_by_gradients(rows)
    assert [one["name"] for one in counted] == ["one"]
    assert sheet.rows == [
        ["nothing that it gives requires grad", "1", "step"],
        ["the case itself raises x", "1", "odd"],
    ]
