"""What `make bench-models` runs: 20 models that no one here wrote, three deep programs, and blocks repeated 4 and 48
times, which load_case() finds in this file by name.

Images and sequences are short, so that a call takes some tens of milliseconds: what is measured is the program around
the products, and a first call's work does not depend on the size of an image.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastjit._bench.load import CaseSpec
from fastjit._bench.models import ModelSpec

CONVOLUTIONS, ATTENTION = "convolutions", "attention"
TOKENS = {"vocab_size": 1000, "bos_token_id": 1, "eos_token_id": 2}


@dataclass(frozen=True)
class Model:
    """kind: pure convolutional nets are held against eager and torch.jit, all others against torch.compile too."""

    short: str
    name: str
    kind: str
    layers: int
    image_size: int | None = None
    length: int | None = None
    config: dict[str, Any] = field(default_factory=dict)

    def spec(self, batch: int = 1) -> ModelSpec:
        return ModelSpec(self.name, batch, self.image_size, self.length, self.config)


def _image(short: str, name: str, kind: str, layers: int, size: int) -> Model:
    return Model(short, name, kind, layers, image_size=size)


def _text(short: str, layers: int, length: int, **config: Any) -> Model:
    return Model(short, f"transformers:{short}", ATTENTION, layers, length=length, config={**TOKENS, **config})


MODELS = (
    Model("vit_tiny", "timm:vit_tiny_patch16_224", ATTENTION, 12),
    _image("mixer", "timm:mixer_s32_224", ATTENTION, 16, 224),
    _image("xcit_nano", "timm:xcit_nano_12_p16_224", ATTENTION, 14, 224),
    _image("maxvit_pico", "timm:maxvit_pico_rw_256", ATTENTION, 21, 128),
    _image("swin_tiny", "timm:swin_tiny_patch4_window7_224", ATTENTION, 12, 112),
    _image("cait_xxs24", "timm:cait_xxs24_224", ATTENTION, 26, 112),
    _image("coatnet_nano", "timm:coatnet_nano_rw_224", ATTENTION, 14, 128),
    _image("mobilevit_xxs", "timm:mobilevit_xxs", ATTENTION, 16, 128),
    _image("poolformer_s12", "timm:poolformer_s12", CONVOLUTIONS, 12, 128),
    _image("convnext_atto", "timm:convnext_atto", CONVOLUTIONS, 12, 128),
    _image("efficientnet_b0", "timm:efficientnet_b0", CONVOLUTIONS, 16, 128),
    _image("hrnet_w18_small", "timm:hrnet_w18_small", CONVOLUTIONS, 16, 128),
    _image("resnet50", "torchvision:resnet50", CONVOLUTIONS, 50, 128),
    _image("mobilenet_v3_large", "torchvision:mobilenet_v3_large", CONVOLUTIONS, 15, 128),
    _image("regnet_y_400mf", "torchvision:regnet_y_400mf", CONVOLUTIONS, 16, 128),
    _image("densenet121", "torchvision:densenet121", CONVOLUTIONS, 58, 96),
    _text("gpt2", 12, 32),
    _text("bert", 12, 32),
    _text("llama", 16, 64, hidden_size=256, intermediate_size=688, num_hidden_layers=16, num_attention_heads=8),
    _text("t5", 12, 64, num_layers=12, d_model=256, d_kv=64, d_ff=1024, num_heads=4),
)

HERE = str(Path(__file__).resolve())
DEEP = {
    "x = sin(x) + 0.1, 800 times": "sines",
    "1000 steps of h = a*h + x[t]": "recurrence",
    "800 Linear(4, 4)": "linears",
}
FEW, MANY = 4, 48


def deep_case(name: str) -> CaseSpec:
    return CaseSpec(HERE, name)


def block_case(kind: str, count: int) -> CaseSpec:
    return CaseSpec(HERE, f"{kind}_{count}", args_name=f"{kind}_args")


def sines(x: Tensor) -> Tensor:
    for _ in range(800):
        x = torch.sin(x) + 0.1
    return x


def sines_args() -> tuple[Tensor]:
    return (torch.randn(1000),)


def recurrence(a: Tensor, h: Tensor, x: Tensor) -> Tensor:
    for t in range(1000):
        h = a * h + x[t]
    return h


def recurrence_args() -> tuple[Tensor, Tensor, Tensor]:
    return torch.rand(64), torch.zeros(64), torch.randn(1000, 64)


def linears_args() -> tuple[Tensor]:
    return (torch.randn(4, 4),)


class TransformerBlock(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class ConvNextBlock(nn.Module):
    """Depthwise convolution, then an MLP over the channels, scaled, beside the residual."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.down(F.gelu(self.up(y))) * self.scale).permute(0, 3, 1, 2)


class ResNetBlock(nn.Module):
    """Two convolutions with batch norm beside the residual."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(x + self.norm2(self.conv2(y)))


BLOCKS: dict[str, type[nn.Module]] = {
    "transformer": TransformerBlock,
    "convnext": ConvNextBlock,
    "resnet": ResNetBlock,
}


def transformer_args() -> tuple[Tensor]:
    return (torch.randn(2, 32, 64),)


def convnext_args() -> tuple[Tensor]:
    return (torch.randn(2, 32, 14, 14),)


def resnet_args() -> tuple[Tensor]:
    return (torch.randn(2, 32, 14, 14),)


def __getattr__(name: str) -> nn.Module:
    """The modules among the cases, made when they are asked for: `linears`, `transformer_48` and so on."""
    torch.manual_seed(0)
    if name == "linears":
        made: nn.Module = nn.Sequential(*(nn.Linear(4, 4) for _ in range(800)))
    else:
        kind, _, count = name.rpartition("_")
        if kind not in BLOCKS or not count.isdecimal():
            raise AttributeError(name)
        made = nn.Sequential(*(BLOCKS[kind]() for _ in range(int(count))))
    globals()[name] = made.eval()
    return globals()[name]
