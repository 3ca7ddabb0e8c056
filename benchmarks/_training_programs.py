"""The programs of training.py and training_quality.py: a model, the sizes of its batches, and a step of training."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

sys.path.append(str(Path(__file__).resolve().parent / "seeds"))

import fastjit
from _program import programs_of
from fastjit._bench.models import library_of

Forward = Callable[..., torch.Tensor]
ResNet, convnext = programs_of("functional").ResNet, programs_of("convnext")
FastSwish = convnext.FastSwish


class HardSwish(nn.Module):
    """As a user writes it out."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.clamp(x + 3, 0, 6) / 6


class Chain(nn.Module):
    """Ten pointwise operators."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * self.weight
        for _ in range(9):
            y = y.sin()
        return y


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(16, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = torch.zeros(x.shape[1], 32)
        out = []
        for t in range(x.shape[0]):
            h, c = self.cell(x[t], (h, c))
            out.append(h)
        return torch.stack(out)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)


def convnext_tiny(activation: str) -> nn.Module:
    """Without the random depth of training, which no two variants would draw alike."""
    model, _ = convnext.convnext(activation, 1)
    return model.eval()


def torchvision_model(name: str) -> nn.Module:
    """With batch statistics, and without the random depth of training."""
    model = library_of("torchvision").models.get_model(name)
    for module in model.modules():
        if isinstance(module, nn.Dropout) or type(module).__name__ == "StochasticDepth":
            module.p = 0.0
    return model


class GPT(nn.Module):
    """GPT-2 with 12 layers, whose embedding and head share a weight."""

    def __init__(self, checkpoints: bool = False) -> None:
        super().__init__()
        gpt2 = library_of("transformers")
        sizes = {
            "bos_token_id": None,
            "eos_token_id": None,
            "n_layer": 12,
            "n_embd": 192,
            "n_head": 3,
            "n_positions": 64,
            "vocab_size": 512,
        }
        drop = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        self.model = gpt2.GPT2LMHeadModel(gpt2.GPT2Config(**sizes, **drop, use_cache=False))
        if checkpoints:
            self.model.gradient_checkpointing_enable()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = (x * 100).long().remainder(512)
        return self.model(tokens).logits


def mean_square(forward: Forward, x: torch.Tensor) -> torch.Tensor:
    return forward(x).square().mean()


def equation(forward: Forward, x: torch.Tensor) -> torch.Tensor:
    """How far u is from solving u'' = -sin(x), as physics-informed networks have it."""
    x = x.detach().requires_grad_()
    u = forward(x)
    slope = torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)[0]
    second = torch.autograd.grad(slope, x, torch.ones_like(u), create_graph=True)[0]
    return (second + torch.sin(x)).square().mean()


def solution() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))


@dataclass
class Program:
    name: str
    make: Callable[[], nn.Module]
    sizes: tuple[int, ...]
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None  # a whole step with it
    ends: Literal["gradient", "loss behind", "loss inside"] = "gradient"  # where backward() begins
    must: float | None = None
    aim: float | None = None
    loss: Callable[[Forward, torch.Tensor], torch.Tensor] = mean_square
    compiles: bool = True  # torch.compile has no second derivatives
    large: tuple[int, ...] | None = None  # where a step needs too little memory at its own sizes to be measured

    def made(self) -> nn.Module:
        return WithLoss(self.make()) if self.ends == "loss inside" else self.make()


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


PROGRAMS = [
    Program("10 pointwise operators on 64 floats", Chain, (64,), must=2, aim=1 / 0.35, large=(16384, 64)),
    Program("MLP 16-64-64-4, batch 32", mlp, (32, 16), must=2, aim=4, large=(8192, 16)),
    *(
        Program(f"{name}, its {ends}", make, sizes, ends=ends)
        for name, make, sizes in (("10 pointwise operators", Chain, (64,)), ("MLP", mlp, (32, 16)))
        for ends in ("loss inside", "loss behind")
    ),
    Program("LSTM cell, 50 steps, batch 4", Recurrent, (50, 4, 16), must=2, aim=4, large=(50, 64, 16)),
    Program("toy ResNet, 16 px, batch 4", ResNet, (4, 3, 16, 16), must=2, aim=4),
    Program("toy ResNet, 64 px, batch 4", ResNet, (4, 3, 64, 64), must=1, aim=1.2),
    Program("transformer encoder, 4 layers, batch 4 of 32", encoder, (4, 32, 64), must=1, aim=1.2),
    Program("whole AdamW step, MLP 16-64-64-4, batch 32", mlp, (32, 16), adamw, must=5, aim=15, large=(8192, 16)),
    Program(
        "whole AdamW step, PINN 1-32-32-1, 64 points",
        solution,
        (64, 1),
        adamw,
        loss=equation,
        compiles=False,
        large=(16384, 1),
    ),
    *(
        Program(
            f"ConvNeXt tiny with {name}, 64 px, batch 4",
            partial(convnext_tiny, name),
            (4, 3, 64, 64),
            must=1.15 if name == "FastSwish" else 1,
            aim=1.5 if name == "FastSwish" else 1.2,
        )
        for name in convnext.ACTIVATIONS
    ),
    *(
        Program(f"torchvision {name}, 96 px", partial(torchvision_model, name), (4, 3, 96, 96), must=1, aim=1.2)
        for name in ("resnet18", "mobilenet_v3_small")
    ),
    Program("GPT-2, 12 layers of 192, batch 2 of 64 tokens", GPT, (2, 64), must=1, aim=1.2),
    Program(
        "the same GPT-2, each layer a checkpoint, batch 8", partial(GPT, checkpoints=True), (8, 64), must=1, aim=1.2
    ),
]


class WithLoss(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return mean_square(self.model, x)


def both_ways_of(program: Program, model: nn.Module, forward: Forward) -> Callable[[torch.Tensor], Any]:
    weights, given = list(model.parameters()), {}

    def both_ways(x: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            weight.grad = None
        out = forward(x)
        if program.ends != "gradient":
            loss = out.square().mean() if program.ends == "loss behind" else out
            loss.backward()
            return out.detach()
        if out.shape not in given:
            given[out.shape] = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
        out.backward(given[out.shape])
        return out.detach()

    return both_ways


def step_of(program: Program, model: nn.Module, forward: Forward) -> Callable[[torch.Tensor], Any]:
    if program.optimizer is None:
        return both_ways_of(program, model, forward)
    optimizer = program.optimizer(model.parameters())

    def whole(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = program.loss(forward, x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return whole


def fast_step(program: Program, model: nn.Module) -> tuple[Callable[[torch.Tensor], Any], fastjit.FastFunction]:
    """The step with its forward pass as a program, or the whole step as one; and that program."""
    if program.optimizer is None:
        fast = fastjit.fastjit(model)
        return step_of(program, model, fast), fastjit.of(fast)
    whole = fastjit.fastjit(step_of(program, model, model))
    return whole, whole


def variants_of(program: Program, peers: list[str]) -> dict[str, Callable[[torch.Tensor], Any]]:
    """The same step of the same model, made by each."""
    torch.manual_seed(0)
    model = program.made()
    made = {"eager": step_of(program, model, model)}
    if "torch.compile" in peers and program.compiles:
        twin = copy.deepcopy(model)
        made["torch.compile"] = step_of(program, twin, torch.compile(twin))
    made["fastjit"], _ = fast_step(program, copy.deepcopy(model))
    return made
