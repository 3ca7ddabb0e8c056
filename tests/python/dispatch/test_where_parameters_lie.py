"""The parameters of a deep model lie elsewhere in a later call: its hits read them where they are now."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import fastjit

DEPTH = 24


def deep_model() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(DEPTH)))


def new_memory(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data * 0.9


def one_flat_buffer(model: nn.Module) -> None:
    parameters = list(model.parameters())
    flat = torch.cat([torch.zeros(3), *(p.detach().reshape(-1) for p in parameters)])
    at = 3
    for parameter in parameters:
        parameter.data = flat[at : at + parameter.numel()].view_as(parameter)
        at += parameter.numel()


def shared_until_written(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data = torch._lazy_clone(parameter.data + 0.01)


def swapped(model: nn.Module) -> None:
    for parameter in model.parameters():
        other = nn.Parameter(parameter.detach() * 1.1, requires_grad=False)
        torch._C._swap_tensor_impl(parameter, other)  # swap_tensors() refuses what anyone has a weak reference to


@pytest.mark.parametrize("move", [new_memory, one_flat_buffer, shared_until_written, swapped])
def test_hits_follow_parameters_to_where_they_lie(move: Callable[[nn.Module], None]) -> None:
    model = deep_model().requires_grad_(False)
    x = torch.randn(4, 4)
    fast = fastjit.fastjit(copy.deepcopy(model))
    for _ in range(3):
        torch.testing.assert_close(fast(x), model(x))
    for _ in range(2):
        move(model)
        move(fast)
        for _ in range(2):
            torch.testing.assert_close(fast(x), model(x))
    stats = fastjit.of(fast).stats()
    assert (stats.misses, stats.hits, stats.fallbacks) == (1, 6, {})
