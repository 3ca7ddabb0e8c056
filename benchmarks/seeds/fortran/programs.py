"""What Fortran asks of a model: arrays with the first index innermost, other large strides, a column model."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from _program import Made, Program

SIDE, ROWS = 512, 8192


def double(x: Tensor) -> Tensor:
    y = x * 2
    y[3, 5] = 1.0
    return y


def in_place(x: Tensor) -> Tensor:
    """The caller's array, written to; each call leaves what the next one would write too."""
    x[:] = (x * 0 + 1) * 2
    x[3, 5] = 1.0
    return x


def element_loop(x: Tensor) -> Tensor:
    """As the example of FTorch does it, an element at a time."""
    y = torch.empty_like(x)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            y[i, j] = x[i, j] * 2
    return y


def strided(fn: object, layout: str, dtype: torch.dtype, side: int = SIDE) -> Made:
    if layout == "column-major":
        x = torch.randn(side, side).to(dtype).t()
    elif layout == "every 4th row":
        x = torch.randn(side * 4, side).to(dtype)[::4]
    elif layout == "every 4th column":
        x = torch.randn(side, side * 4).to(dtype)[:, ::4]
    else:
        x = torch.randn(side, side).to(dtype)
    return fn, (x,)  # type: ignore[return-value]


def column_model(activation: type[nn.Module], rows: int = ROWS) -> Made:
    widths = (42, *([256] * 5), 64)
    layers: list[nn.Module] = []
    for inner, outer in itertools.pairwise(widths):
        layers += [nn.Linear(inner, outer, dtype=torch.float64), activation()]
    return nn.Sequential(*layers[:-1]), (torch.randn(rows, 42, dtype=torch.float64),)


TITLE = "From Fortran"
QUESTION = (
    "Arrays of Fortran's layout and a column model, called from Python; docs/export.md has the times of calls from "
    "Fortran."
)
LAYOUTS = ("column-major", "every 4th row", "every 4th column")
PROGRAMS = [
    Program(f"x*2, one element changed, {layout} {kind}", strided, {"fn": double, "layout": layout, "dtype": dtype})
    for layout in LAYOUTS
    for kind, dtype in (("f64", torch.float64), ("f32", torch.float32))
]
PROGRAMS += [
    Program(
        "the same in the caller's array, column-major f64",
        strided,
        {"fn": in_place, "layout": "column-major", "dtype": torch.float64},
        quick=True,
    ),
    Program(
        "an element at a time, 32 x 32 f64",
        strided,
        {"fn": element_loop, "layout": "column-major", "dtype": torch.float64, "side": 32},
    ),
    Program(
        "an element at a time in TorchScript, 512 x 512 f64",
        strided,
        {"fn": torch.jit.script(element_loop), "layout": "column-major", "dtype": torch.float64},
        peers=("torch.jit",),
    ),
    Program("column model, tanh", column_model, {"activation": nn.Tanh}, table="Column model, 8192 rows"),
    Program("column model, relu", column_model, {"activation": nn.ReLU}, table="Column model, 8192 rows"),
]
