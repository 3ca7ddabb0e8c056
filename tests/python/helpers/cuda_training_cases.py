"""Training on a CUDA device, the stand-in or a real one: models, and steps whose results are compared with eager's."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Put = Callable[[Any], Any]


class FastSwish(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x < -3, torch.zeros_like(x), torch.where(x > 3, x, x * (x + 3) / 6))


class Scaled(torch.autograd.Function):
    """A user's own: its backward is Python code."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return grad * (s + x * s * (1 - s))


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        return Scaled.apply(self.linear(x))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Heads by hand: products, a softmax and turned views."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.norm, self.heads = nn.LayerNorm(width), heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, steps, width = x.shape
        qkv = self.qkv(self.norm(x)).view(batch, steps, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-2, -1) * 0.35, -1)
        return x + self.out((weights @ v).transpose(1, 2).reshape(batch, steps, width))  # type: ignore[no-any-return]


class Checkpointed(nn.Module):
    def __init__(self, dropout: float = 0.0, width: int = 16) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 32), nn.GELU(), nn.Dropout(dropout), nn.Linear(32, width)
            )
            for _ in range(3)
        )
        checkpoint(torch.sin, torch.zeros(1), use_reentrant=False)  # torch imports and wraps at the first call

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return x


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2),
        nn.GroupNorm(2, 8),
        FastSwish(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "pointwise": (lambda: nn.Sequential(nn.Linear(8, 16), FastSwish(), nn.Linear(16, 16), nn.GELU()), (5, 8)),
    "norm": (lambda: nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.SiLU(), nn.Linear(16, 4)), (5, 8)),
    "convolutions": (convolutions, (4, 3, 9, 9)),
    "attention": (lambda: nn.Sequential(Attention(), Attention()), (2, 6, 16)),
    "own function": (Own, (5, 8)),
}
# Eager's autocast runs them again without on the stand-in, which torch takes for a device without autocast.
CHECKPOINTS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {"checkpoints": (Checkpointed, (5, 16))}


def moved(model: nn.Module, put: Put) -> nn.Module:
    """A copy of the model on the device."""
    model = copy.deepcopy(model)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            module._parameters[name] = nn.Parameter(put(parameter.detach()))
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = put(buffer)
    return model


@dataclass
class Played:
    losses: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)  # of the last step, then parameters and buffers


def play(model: nn.Module, forward: Callable[..., Tensor], x: Tensor, steps: int = 4) -> Played:
    """Steps of SGD with momentum on a mean square."""
    optimizer, out = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), Played()
    with torch.enable_grad():
        for _ in range(steps):
            optimizer.zero_grad()
            loss = forward(x).float().square().mean()
            loss.backward()
            optimizer.step()
            out.losses.append(loss.detach())
    out.gradients = [p.grad for p in model.parameters() if p.grad is not None]
    out.gradients += [p.detach() for p in model.parameters()] + [b.float() for b in model.buffers()]
    return out


def assert_alike(got: Played, expected: Played, back: Put, close: float = 1e-4) -> None:
    """Differences are held against the largest element of all gradients: those of a bias before a norm are noise."""
    assert len(got.gradients) == len(expected.gradients) > 0
    scale = max(float(back(gradient).abs().max()) for gradient in expected.gradients) + 1
    for one, other in zip([*got.losses, *got.gradients], [*expected.losses, *expected.gradients], strict=True):
        torch.testing.assert_close(back(one), back(other), rtol=close, atol=close * scale)


def pairs(got: Any, expected: Any) -> Any:
    """Two results side by side, whether they are one value each or tuples."""
    return zip(*(v if isinstance(v, tuple) else (v,) for v in (got, expected)), strict=True)


def beside_the_host(kept: Tensor) -> dict[str, Callable[[Tensor, Tensor], Any]]:
    """Functions of a tensor on the device and one on the CPU; `kept` lies on the CPU and is written."""

    def written(x: Tensor, y: Tensor) -> Tensor:
        kept.add_(y)
        return x * 2

    return {
        "both": lambda x, y: (x * 2 + 1, y * 3 + 1),
        "one of no dims": lambda x, y: x * y[0],
        "moved": lambda x, y: (x * 2).cpu() + y,
        "made there": lambda x, y: (x * 2, torch.arange(4) + 1),
        "torch.tensor": lambda x, y: (x * torch.tensor(2.5), torch.tensor(2.5), torch.tensor([1, 2]) * 2),
        "torch.tensor, written": lambda x, y: (x * 2, torch.tensor(2.5).add_(1)),
        "product": lambda x, y: (x + 1, y.view(2, 4) @ y.view(4, 2)),
        "views": lambda x, y: (x + 1, y.view(2, 4)[1].clone(), y[2:4]),
        "out": lambda x, y: (x + 1, torch.add(y, 1, out=torch.empty(8))),
        "found and written": written,
    }


# Functions of a tensor of 8 elements on the device and a number on the CPU, which Python code reads.
READS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "result": lambda x, y: (x * 2, x.sum().item()),
    "arithmetic": lambda x, y: x * (1 - 0.9 ** x.abs().amax().item()),
    "arithmetic of the host's": lambda x, y: x * (1 - 0.9 ** y.item()),
    "branch": lambda x, y: x * 2 if x[0] > -0.5 else x * 3,
    "comparison": lambda x, y: x * 2 if x.amax().item() > 1.3 else x * 3,
    "comparison with the host's": lambda x, y: x * 2 if y.item() < x.sum().item() else x * 3,
    "any": lambda x, y: x * 2 if bool((x > 1.5).any()) else x * 3,
    "equal": lambda x, y: x * 2 if torch.equal(x, x) else x * 3,
    "not a number": lambda x, y: x * 2 if math.isnan(x.sum().item()) else x * 3,
    "chosen elements": lambda x, y: (x[x > 0].sum() + 1, x.nonzero()),
}
