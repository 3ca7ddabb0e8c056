"""ConvNeXt tiny with four activations, one of them its user's own, with masked stores."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from _program import Made, Program


class FastSwish(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        a = 42 / 13
        y = x * (x + a) / (a + 3)
        y[x > 3] = x[x > 3]
        y[x < -3] = -1 / x[x < -3] ** 2
        return y


ACTIVATIONS = {"GELU": nn.GELU, "HardSwish": nn.Hardswish, "ReLU": nn.ReLU, "FastSwish": FastSwish}


def replace(module: nn.Module, activation: type[nn.Module]) -> None:
    for name, child in module.named_children():
        if isinstance(child, nn.GELU):
            setattr(module, name, activation())
        else:
            replace(child, activation)


def convnext(activation: str, batch: int, pixels: int = 64) -> Made:
    from fastjit._bench.models import library_of

    model = library_of("torchvision").models.convnext_tiny(weights=None)
    replace(model, ACTIVATIONS[activation])
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("layer_scale"):
                weight.fill_(0.5)  # as after training: at 1e-6 the branches would say nothing
    return model, (torch.randn(batch, 3, pixels, pixels),)


TITLE = "ConvNeXt"
QUESTION = "ConvNeXt tiny on 64 px with GELU, HardSwish, ReLU, FastSwish: does an activation of one's own cost more?"
PROGRAMS = [
    Program(
        f"{name}, batch {batch}",
        convnext,
        {"activation": name, "batch": batch},
        table=f"Batch {batch}",
        quick=(name, batch) == ("FastSwish", 1),
    )
    for batch in (1, 64)
    for name in ACTIVATIONS
]
