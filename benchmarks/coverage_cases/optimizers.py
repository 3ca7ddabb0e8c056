"""Steps of torch.optim, over all tensors at once (foreach) and one by one, and of another package's optimizers."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from . import Program, add

OF_TORCH: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.01, "momentum": 0.9},
    "Adam": {"lr": 0.001},
    "AdamW": {"lr": 0.001},
    "RMSprop": {"lr": 0.001},
    "Adagrad": {"lr": 0.01},
}
FOREACH, LOOP = "foreach", "loop"
OF_PYTORCH_OPTIMIZER = ("Lion", "AdaBelief", "RAdam", "Lamb", "ADOPT")


def name_of(optimizer: str, form: str) -> str:
    return f"optim_{optimizer.lower()}_{form}"


def stepping(make: Any, peer: str = "") -> Program:
    """A step with new gradients each time, as `zero_grad()` and `backward()` leave them."""
    layer = functools.partial(nn.TransformerEncoderLayer, 32, 4, 64, batch_first=True)
    module = nn.Sequential(layer(), layer(), nn.Linear(32, 10))
    optimizer = make(module.parameters())

    def gradients(_: int) -> tuple[()]:
        for parameter in module.parameters():
            parameter.grad = torch.randn_like(parameter)
        return ()

    def slower() -> None:
        for group in optimizer.param_groups:
            group["lr"] *= 0.5

    state = [module, optimizer]
    return Program(optimizer.step, gradients, state, change=slower, grad=True, flips=False, peer=peer)


def of_torch(name: str, form: str) -> Program:
    make = functools.partial(getattr(torch.optim, name), **OF_TORCH[name], foreach=form == FOREACH)
    return stepping(make, name_of(name, FOREACH))


def of_pytorch_optimizer(name: str) -> Program:
    import pytorch_optimizer

    return stepping(functools.partial(getattr(pytorch_optimizer, name), lr=1e-3))


for _name in OF_TORCH:
    for _form in (FOREACH, LOOP):
        add("torch", name_of(_name, _form), functools.partial(of_torch, _name, _form))
for _name in OF_PYTORCH_OPTIMIZER:
    add("pytorch-optimizer", f"{_name.lower()}_step", functools.partial(of_pytorch_optimizer, _name))
