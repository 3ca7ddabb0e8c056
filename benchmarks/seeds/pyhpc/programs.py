"""pyhpc-benchmarks: two array programs of an ocean model in f64, unmodified, from their own repository (public domain).

Their PyTorch functions are scripted where they are defined; that is left out here, for eager and FastJIT, and torch.jit
scripts them as they do.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from _program import Made, Program

SOURCE, COMMIT = "https://github.com/dionhaefner/pyhpc-benchmarks", "d438ef8b76ecb51a019b105a6e06150e5a35c177"
FOLDER = Path(__file__).resolve().parents[3] / "build" / "pyhpc-benchmarks"
FUNCTIONS = {
    "equation_of_state": ("eos", "gsw_dHdT"),
    "isoneutral_mixing": ("isoneutral", "isoneutral_diffusion_pre"),
}
SIZES = {"4k": 4096, "16k": 16384, "64k": 65536, "256k": 262144, "1M": 1048576, "4M": 4194304}


def fetched() -> Path:
    if not (FOLDER / ".git").exists():
        subprocess.run(["git", "clone", "-q", SOURCE, str(FOLDER)], check=True)
    subprocess.run(["git", "-C", str(FOLDER), "-c", "advice.detachedHead=false", "checkout", "-q", COMMIT], check=True)
    return FOLDER


def part(case: str, backend: str) -> Any:
    """A module of theirs, with its PyTorch functions as they are written."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(fetched()))
    scripted = torch.jit.script
    torch.jit.script = lambda fn: fn  # type: ignore[assignment]
    try:
        return importlib.import_module(
            f"benchmarks.{case}.{FUNCTIONS[case][0]}_{backend}" if backend else f"benchmarks.{case}"
        )
    finally:
        torch.jit.script = scripted  # type: ignore[assignment]


def with_torch(case: str, size: int) -> Made:
    fn = getattr(part(case, "pytorch"), FUNCTIONS[case][1])
    return fn, tuple(torch.as_tensor(array) for array in part(case, "").generate_inputs(size))


def with_other(case: str, backend: str) -> Callable[[Made], Callable[[], Any]]:
    def make(made: Made) -> Callable[[], Any]:
        if backend == "jax":
            import jax

            jax.config.update("jax_enable_x64", True)
        module = part(case, backend)
        inputs = [one.numpy() for one in made[1]]
        if hasattr(module, "prepare_inputs"):
            inputs = module.prepare_inputs(*inputs, device="cpu")
        return lambda: module.run(*inputs, device="cpu")

    return make


TITLE = "pyhpc-benchmarks"
QUESTION = (
    "Equation of state and isoneutral mixing of an ocean model, f64, 4k to 4M points, as their authors wrote them."
)
# Means of the repository's own tables, AWS p3.2xlarge, one thread, torch 1.13.1.
REPORTED = [
    (
        "pyhpc-benchmarks on a CPU, as its author reports",
        ["program", "pytorch", "numpy", "numba", "jax", "taichi"],
        [
            ["equation_of_state, 1M", "56 ms", "723 ms", "111 ms", "68 ms", "-"],
            ["equation_of_state, 4M", "231 ms", "3.98 s", "444 ms", "335 ms", "-"],
            ["isoneutral_mixing, 1M", "698 ms", "956 ms", "468 ms", "623 ms", "411 ms"],
            ["isoneutral_mixing, 4M", "4.19 s", "5.02 s", "2.37 s", "2.97 s", "1.66 s"],
        ],
    )
]
PROGRAMS = [
    Program(
        f"{case}, {name}",
        with_torch,
        {"case": case, "size": size},
        peers=("torch.jit", "torch.compile") if name in ("4k", "64k", "1M") else ("torch.jit",),
        others={other: with_other(case, other) for other in ("numpy", "numba", "jax")},
        table=case,
        quick=name == "4k",
    )
    for case in FUNCTIONS
    for name, size in SIZES.items()
]
