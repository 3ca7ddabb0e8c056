"""Deep thin models in the three forms that people write, and a small ResNet."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from _program import Made, Program

EVERY_DEPTH = (250, 500, 750, 1000)


class Looped(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Block(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outer), nn.BatchNorm2d(outer)
        self.short = nn.Conv2d(inner, outer, 1, stride, bias=False) if stride != 1 or inner != outer else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.first(x)))
        return torch.relu(self.norm2(self.second(y)) + self.short(x))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        widths = ((16, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1))
        self.blocks = nn.Sequential(*(Block(*width) for width in widths))
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def sequential(depth: int) -> Made:
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(depth))), (torch.randn(4, 4),)


def looped(depth: int) -> Made:
    return Looped(depth), (torch.randn(4, 4),)


def listed(depth: int) -> Made:
    layers = [nn.Linear(4, 4).requires_grad_(False) for _ in range(depth)]

    def run(x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(x)
        return x

    return run, (torch.randn(4, 4),)


def resnet(pixels: int) -> Made:
    return ResNet(), (torch.randn(4, 3, pixels, pixels),)


TITLE = "Deep thin models"
QUESTION = "Linear(4, 4) one after the other, 250 to 1000 of them on 4 rows, as three kinds of Python; a small ResNet."
FORMS = (
    ("nn.Sequential", sequential),
    ("a loop over a ModuleList", looped),
    ("a list of layers in a function", listed),
)
PROGRAMS = [
    Program(f"{depth} layers, {form}", make, {"depth": depth}, table="Deep thin models", quick=depth == 250)
    for form, make in FORMS
    for depth in EVERY_DEPTH
]
PROGRAMS += [Program(f"ResNet, {side} px, batch 4", resnet, {"pixels": side}, table="ResNet") for side in (16, 32, 64)]
BANDS = "depth"  # the spread of the times over this value
