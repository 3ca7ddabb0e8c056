"""Item 2: tensors that a call makes of Python numbers, and indices given as lists."""

from __future__ import annotations

import gc
from typing import Any

import torch

from script_tools import World, script


class Holder:
    """An object that functions find numbers in."""

    def __init__(self, values: Any) -> None:
        self.values = values


@script(2)
def constant_vector(w: World) -> None:
    f, x = w.jit(lambda x: x * torch.tensor([1.0, -2.0, 3.0])), torch.ones(3)
    w.learn(f, x)
    gc.collect()
    w.change("the argument")
    w.call("hit", f, 2 * x)


@script(2)
def matrix_of_numbers(w: World) -> None:
    def turn(x: torch.Tensor, c: float, s: float) -> torch.Tensor:
        return x @ torch.tensor([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])

    f, x = w.jit(turn), torch.arange(6.0).view(2, 3)
    w.learn(f, x, 0.5, 0.25)
    w.change("an entry of the matrix")
    w.learn(f, x, 0.5, 0.75)
    w.call("hit", f, x, 0.5, 0.25)


@script(2)
def vector_of_a_global(w: World) -> None:
    held = Holder([0.0, -9.5, 0.0])
    f, x = w.jit(lambda x: x + torch.tensor(held.values, dtype=torch.float64)), torch.ones(3)
    w.learn(f, x)
    held.values[1] = 4.0
    w.change("an entry")
    w.learn(f, x)
    held.values = [True, 2, 5]
    w.change("entries of other types")
    w.learn(f, x)


@script(3)
def constant_is_written_and_returned(w: World) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = torch.tensor([1.0, 2.0, 3.0])
        kept = torch.as_tensor([4, 5])
        made[0] = x[0]
        made.mul_(2)
        return made, kept

    f, x = w.jit(f), torch.ones(3)
    first, second = w.learn(f, x)
    first.add_(10)
    second.zero_()
    w.change("the results were written")
    w.call("hit", f, x)
    w.call("hit", f, x * 3)


@script(3)
def constant_itself_is_returned(w: World) -> None:
    f, x = w.jit(lambda x: (torch.tensor([1.0, 2.0]), x + 1)), torch.ones(3)
    out = w.learn(f, x)
    out[0].fill_(7)
    w.change("the result was written")
    w.call("hit", f, x)


@script(3)
def view_of_a_constant_is_returned(w: World) -> None:
    f, x = w.jit(lambda x: (torch.tensor([[1, 2], [3, 4]])[1], x + 1)), torch.ones(3)
    out = w.learn(f, x)
    out[0].fill_(7)
    w.change("the result was written")
    w.call("hit", f, x)


@script(2)
def lists_as_indices(w: World) -> None:
    held = Holder([2, 0])
    f, x = w.jit(lambda x: (x[[0, 2]], x[:, [-1, 0]], x[held.values])), torch.arange(9.0).view(3, 3)
    w.learn(f, x)
    w.change("the argument")
    w.call("hit", f, x + 1)
    held.values[0] = 1
    w.change("an index")
    w.learn(f, x)


@script(3)
def list_as_index_of_a_store(w: World) -> None:
    def f(x: torch.Tensor, v: float) -> torch.Tensor:
        x[[0, 2]] = x[[1, 1]] * v
        return x.sum()

    f = w.jit(f)
    w.learn(f, torch.arange(6.0).view(3, 2), 2.0)
    w.change("the argument")
    w.call("hit", f, torch.ones(3, 2), 2.0)


@script(2)
def lists_that_hold_tensors(w: World) -> None:
    x, t = torch.arange(8.0).view(2, 4), torch.tensor(2)
    g = w.jit(lambda x, t: x[:, [0, t]])
    w.learn(g, x, t)
    t.fill_(3)
    w.change("the number in the tensor")
    w.call("new", g, x, t)
    t.fill_(2)
    w.change("back")
    w.call("hit", g, x, t)


@script(2)
def small_ints_in_a_vector(w: World) -> None:
    f, x = w.jit(lambda x, t: x + torch.tensor([t, t + 1, 0.5])), torch.ones(3)
    for t in (1, 2, 3):
        w.call("new", f, x, t)
    for t in (1, 2, 3):
        w.change("the number")
        w.call("hit", f, x, t)
