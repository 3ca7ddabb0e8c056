"""What traffic.py runs at random sizes: models, and functions that make their arguments."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cases
import chains
from fastjit._bench.models import library_of

BLOCKS, WIDTH, HEADS = 12, 192, 3
Arguments = tuple[Any, ...]


@dataclass(frozen=True)
class Model:
    name: str
    make: Callable[[], Callable[..., Any]]  # ImportError where its library is missing
    draw: Callable[[random.Random], Arguments]


class Block(nn.Module):
    """Pre-norm, as in ViT and GPT-2, written as people write it."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(self.norms[0](x)).reshape(b, n, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


def ready(model: nn.Module) -> nn.Module:
    return model.requires_grad_(False).eval()


def transformer() -> nn.Module:
    torch.manual_seed(0)
    return ready(nn.Sequential(*(Block() for _ in range(BLOCKS))))


class Lstm(nn.Module):
    """A library's layer: the loop over the steps is in torch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(32, 64, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0].relu()


class LstmCells(nn.Module):
    """A cell, step by step: the loop over the steps is in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Linear(32 + 64, 4 * 64)

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(x.size(0), 64)
        steps = []
        for t in range(x.size(1)):
            i, f, g, o = self.gates(torch.cat([x[:, t], h], 1)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            steps.append(h)
        return torch.stack(steps, 1)


class WideCells(nn.Module):
    """A cell whose products torch's library computes, over what `unbind` gives."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.LSTMCell(32, 1024), nn.Linear(1024, 8)

    def forward(self, x: Tensor) -> Tensor:
        state, steps = (x.new_zeros(x.size(0), 1024), x.new_zeros(x.size(0), 1024)), []
        for step in x.unbind(1):
            state = self.cell(step, state)
            steps.append(self.out(state[0]))
        return torch.stack(steps, 1)


class BothWays(nn.Module):
    """Layers of cells that go through a sequence from both ends, with a list of what each step gave."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead = nn.ModuleList([nn.GRUCell(32, 64), nn.GRUCell(128, 64)])
        self.back = nn.ModuleList([nn.GRUCell(32, 64), nn.GRUCell(128, 64)])

    def forward(self, x: Tensor) -> Tensor:
        for ahead, back in zip(self.ahead, self.back, strict=True):
            state, first = x.new_zeros(x.size(0), 64), []
            for step in x.unbind(1):
                state = ahead(step, state)
                first.append(state)
            state, last = torch.zeros_like(state), []
            for t in reversed(range(x.size(1))):
                state = back(x[:, t], state)
                last.insert(0, state)
            x = torch.cat([torch.stack(first, 1), torch.stack(last, 1)], -1)
        return x


class Flow(nn.Module):
    """As many steps of an equation as the sequence is long, which ask what time it is."""

    def __init__(self) -> None:
        super().__init__()
        self.pull = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        y, dt = x[:, 0], 1.0 / x.size(1)
        for t, step in enumerate(x.unbind(1)):
            speed = torch.tanh(self.pull(y)) * (t * dt)
            y = y + dt * (speed + step if t > 0 else speed)
        return y


def resnet() -> nn.Module:
    torch.manual_seed(0)

    class Residual(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
                nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width),
            )  # fmt: skip

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(x + self.body(x))

    layers = [nn.Conv2d(3, 16, 3, stride=2, padding=1), Residual(16), nn.MaxPool2d(2), Residual(16)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)]
    return ready(nn.Sequential(*layers, *head))


def timm_model(name: str, **config: Any) -> Callable[[], nn.Module]:
    return lambda: ready(library_of("timm").create_model(name, **config))


class Tagger(nn.Module):
    """An embedding, GRU cells in a Python loop and a loss, which is trained: its way back is a loop too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.cell, self.head = nn.Embedding(1000, 32), nn.GRUCell(32, 64), nn.Linear(64, 9)

    def forward(self, ids: Tensor) -> Tensor:
        x, outs = self.embedding(ids), []
        h = x.new_zeros(x.size(0), 64)
        for t in range(x.size(1)):
            h = self.cell(x[:, t], h)
            outs.append(h)
        return F.cross_entropy(self.head(torch.stack(outs, 1)).transpose(1, 2), ids % 9)


class TrainedGru(nn.Module):
    """A library's layer, which torch runs step by step where it is trained."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.head = nn.GRU(32, 64, num_layers=2, batch_first=True), nn.Linear(64, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x)[0]).square().mean()


def of_transformers(name: str, layers: int) -> nn.Module:
    t = library_of("transformers")
    torch.manual_seed(0)
    common = {"vocab_size": 1000, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
    sizes = {"hidden_size": 256, "num_hidden_layers": layers, "num_attention_heads": 4, "intermediate_size": 1024}
    if name == "GPT-2":
        return ready(t.GPT2LMHeadModel(t.GPT2Config(n_embd=256, n_layer=layers, n_head=4, **common)))
    if name == "BERT":
        return ready(t.BertModel(t.BertConfig(**sizes, **common)))
    return ready(t.LlamaForCausalLM(t.LlamaConfig(**sizes, **common)))


def transformers_model(name: str) -> Callable[[], Callable[..., Any]]:
    def make() -> Callable[..., Any]:
        model = of_transformers(name, 2)
        return lambda ids: model(ids)

    return make


def images(batch: tuple[int, int], least: int, most: int, step: int = 1) -> Callable[[random.Random], Arguments]:
    """Batches of so many images, each side `step` times least to most."""

    def draw(rng: random.Random) -> Arguments:
        height, width = (step * rng.randint(least, most) for _ in range(2))
        return (torch.randn(rng.randint(*batch), 3, height, width),)

    return draw


def sequences(least: int, most: int, width: int) -> Callable[[random.Random], Arguments]:
    return lambda rng: (torch.randn(rng.randint(2, 7), rng.randint(least, most), width),)


def tokens(rng: random.Random) -> Arguments:
    return (torch.randint(2, 1000, (rng.randint(2, 7), rng.randint(5, 64))),)


def played(function: Callable[..., Any], model: Callable[..., Any], args: Arguments) -> Any:
    """What it gives; of a model that is trained, the loss and all gradients."""
    if not isinstance(model, nn.Module) or not any(p.requires_grad for p in model.parameters()):
        return function(*args)
    model.zero_grad()
    with torch.enable_grad():
        loss = function(*args)
        loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters())]


TRANSFORMER = Model("transformer, batch 2-7 x length 30-64", transformer, sequences(30, 64, WIDTH))
RESNET = Model("toy ResNet, batch 2-7 x 32-96 px", resnet, images((2, 7), 8, 24, 4))
MODELS = (
    TRANSFORMER,
    RESNET,
    Model("toy ResNet, batch 2-7 x any 32-96 px", resnet, images((2, 7), 32, 96)),
    Model("timm vit_tiny, batch 2-30", timm_model("vit_tiny_patch16_224", img_size=32), images((2, 30), 1, 1, 32)),
    Model(
        "timm vit_tiny with dynamic_img_size, batch 2-5 x 64-192 px",
        timm_model("vit_tiny_patch16_224", dynamic_img_size=True, depth=3),
        images((2, 5), 4, 12, 16),
    ),
    Model("timm convnext_atto, batch 2-4 x 64-128 px", timm_model("convnext_atto"), images((2, 4), 64, 128)),
    *(
        Model(f"transformers {name}, batch 2-7 x length 5-64", transformers_model(name), tokens)
        for name in ("BERT", "GPT-2", "Llama")
    ),
    Model("nn.LSTM, batch 2-7 x length 3-40", lambda: ready(Lstm()), sequences(3, 40, 32)),
    Model("LSTM cells in a Python loop, batch 2-40 x length 6", lambda: ready(LstmCells()),
          lambda rng: (torch.randn(rng.randint(2, 40), 6, 32),)),
    Model("LSTM cells in a Python loop, batch 2-7 x length 3-40", lambda: ready(LstmCells()), sequences(3, 40, 32)),
    Model("nn.LSTMCell(32, 1024) over x.unbind(1), batch 2-7 x length 3-40", lambda: ready(WideCells()),
          sequences(3, 40, 32)),
    Model("GRU cells from both ends, two layers, batch 2-7 x length 3-40", lambda: ready(BothWays()),
          sequences(3, 40, 32)),
    Model("steps of an equation in time, batch 2-7 x length 3-40", lambda: ready(Flow()), sequences(3, 40, 32)),
    Model("GRU cells in a Python loop, trained, length 5-64", Tagger,
          lambda rng: (torch.randint(2, 1000, (4, rng.randint(5, 64))),)),
    Model("nn.GRU of two layers, trained, length 5-64", TrainedGru,
          lambda rng: (torch.randn(4, rng.randint(5, 64), 32),)),
)  # fmt: skip


def functions() -> list[Model]:
    """The 24 chains and the functions of cases.py."""

    def chain(one: chains.Chain) -> Model:
        image = one.name == "channel_norm"  # of 65536 elements each
        unit, most = (64 * chains.COLUMNS, 30) if image else (chains.COLUMNS, 200)
        return Model(one.name, lambda: one.fn, lambda rng: one.inputs(unit * rng.randint(2, most)))

    def case(name: str) -> Model:
        make = getattr(cases, name + "_args")
        return Model(name, lambda: getattr(cases, name), lambda rng: make(rng.randint(8, 200)))

    names = [name for name, fn in inspect.getmembers(cases, inspect.isfunction) if hasattr(cases, name + "_args")]
    return [*map(chain, chains.CHAINS), *map(case, names)]
