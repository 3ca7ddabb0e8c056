"""Two real processes train one model over gloo: gradients as eager's, the same in both, each kernel compiled once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

WORKER = Path(__file__).parents[1] / "helpers" / "distributed_worker.py"
PROCESSES = 2

if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("this torch has no gloo", allow_module_level=True)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Per process: way of making the model -> eager or fast -> what was seen."""
    folder = tmp_path_factory.mktemp("distributed")
    environment = os.environ | {"FASTJIT_CACHE_DIR": str(folder / "cache"), "GLOO_SOCKET_IFNAME": "lo"}
    commands = [[sys.executable, str(WORKER), str(rank), str(PROCESSES), str(folder)] for rank in range(PROCESSES)]
    running = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for command in commands]
    try:
        ended = [(process.communicate(timeout=200)[1], process.returncode) for process in running]
    finally:
        for process in running:
            process.kill()
    for said, code in ended:
        assert code == 0, said
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(PROCESSES)]


AROUND = [
    "around",
    "around, gradients in buckets",
    "around, static graph",
    "around, unused parameters",
    "around, small buckets",
    "around, gradients added up",
    *(IN_PARTS := ["around, in parts", "around, in parts, gradients in buckets"]),
    "each layer",
]


def near(got: list[list[float]], want: list[list[float]]) -> None:
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(torch.tensor(g), torch.tensor(w), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("way", [*AROUND, "outside", "sharded"])
def test_gradients_and_weights_are_eagers_and_the_same_in_all_processes(seen, way):
    for each in seen:
        near(each[way]["fast"]["gradients"], each[way]["eager"]["gradients"])
        near(each[way]["fast"]["weights"], each[way]["eager"]["weights"])
    first, *others = (each[way]["fast"] for each in seen)
    for other in others:
        assert other["weights"] == first["weights"]
        assert other["gradients"] == first["gradients"]


@pytest.mark.parametrize("way", AROUND)
def test_a_model_inside_is_a_program(seen, way):
    calls = 5 * (2 if way == "around, gradients added up" else 1)
    for each in seen:
        assert each[way]["fast"]["hits"] == calls - 1 and each[way]["fast"]["fallbacks"] == []


@pytest.mark.parametrize("way", IN_PARTS)
def test_buckets_leave_between_the_parts_of_the_way_back(seen, way):
    for each in seen:
        assert each[way]["fast"]["nodes"] > 1 and each["around"]["fast"]["nodes"] == 1


def test_what_stays_eager_says_why(seen):
    for each in seen:
        assert all("distributed.py" in why for why in each["outside"]["fast"]["fallbacks"])
        assert each["whole steps"]["hits"] == 0 and each["whole steps"]["fallbacks"], each["whole steps"]
        assert each["sharded"]["fast"]["hits"] == 0 and each["sharded"]["fast"]["fallbacks"]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="parts are for CPython 3.11")
def test_models_in_what_stays_eager_are_programs(seen):
    for each in seen:
        assert "module" in each["outside"]["fast"]["parts"]
        assert any("Busy" in part for part in each["whole steps"]["parts"]), each["whole steps"]


def test_each_kernel_is_compiled_in_one_process(seen):
    """They share a cache folder: what one compiles, the other one reads."""
    compiled = [each["around"]["fast"]["compiles"] for each in seen]
    read = [each["around"]["fast"]["from the cache"] for each in seen]
    assert sum(compiled) > 0 and sum(read) == sum(compiled), (compiled, read)
