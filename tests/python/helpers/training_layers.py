"""Training scripts: layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from training_base import SCRIPTS, Log, Script, Wrap, batches, fit, mlp, script, state

# ---- layers ----


@script(5)
def batch_norm_in_training_and_evaluation(wrap: Wrap) -> Log:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    fast, log = wrap(model), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i, x in enumerate(batches(9, 8, 4)):
        model.train(i % 3 != 2)
        optimizer.zero_grad()
        loss = fast(x).square().mean()
        loss.backward()
        optimizer.step()
        log.append(loss.detach())
    return [*log, *state(model)]


@script(4)
def dropout(wrap: Wrap) -> Log:
    model = nn.Sequential(nn.Linear(4, 32), nn.Dropout(0.5), nn.Linear(32, 1))
    fast, log = wrap(model), []
    for x in batches(5, 8, 4):
        torch.manual_seed(7)
        loss = fast(x).square().mean()
        loss.backward()
        log += [loss.detach(), torch.get_rng_state()]
    return [*log, *state(model)]


@script(4)
def convolutions(wrap: Wrap) -> Log:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)
    )
    fast, log = wrap(model), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for x in batches(5, 4, 1, 8, 8):
        optimizer.zero_grad()
        loss = F.cross_entropy(fast(x), torch.tensor([0, 1, 2, 0]))
        loss.backward()
        optimizer.step()
        log.append(loss.detach())
    return [*log, *state(model)]


def embedding(padding: int | None) -> Callable[[Wrap], Log]:
    def play(wrap: Wrap) -> Log:
        table, head = nn.Embedding(7, 4, padding_idx=padding), nn.Linear(4, 2)
        fast, log = wrap(lambda ids: head(table(ids).mean(1))), []
        optimizer = torch.optim.Adam([*table.parameters(), *head.parameters()], lr=0.1)
        for i in range(4):
            optimizer.zero_grad()
            loss = F.cross_entropy(fast(torch.tensor([[0, 1, i], [4, i, i + 1]])), torch.tensor([0, 1]))
            loss.backward()
            optimizer.step()
            log.append(loss.detach())
        return [*log, *state(table), *state(head)]

    return play


SCRIPTS["embedding"] = Script(embedding(None), 3)
SCRIPTS["embedding with padding"] = Script(embedding(0), 3)


def cells(make: Callable[[], nn.Module], pair: bool) -> Callable[[Wrap], Log]:
    def play(wrap: Wrap) -> Log:
        cell, head = make(), nn.Linear(6, 1)

        def unrolled(xs: torch.Tensor) -> torch.Tensor:
            h: Any = torch.zeros(xs.size(1), 6)
            if pair:
                h = (h, torch.zeros_like(h))
            for x in xs:
                h = cell(x, h)
            return head(h[0] if pair else h)

        fast, log = wrap(unrolled), []
        optimizer = torch.optim.Adam([*cell.parameters(), *head.parameters()], lr=0.01)
        for xs in batches(4, 5, 3, 4):
            optimizer.zero_grad()
            loss = fast(xs).square().mean()
            loss.backward()
            optimizer.step()
            log.append(loss.detach())
        return [*log, *state(cell), *state(head)]

    return play


SCRIPTS["LSTMCell"] = Script(cells(lambda: nn.LSTMCell(4, 6), True), 3)
SCRIPTS["GRUCell"] = Script(cells(lambda: nn.GRUCell(4, 6), False), 3)
SCRIPTS["RNNCell"] = Script(cells(lambda: nn.RNNCell(4, 6), False), 3)


def recurrent(make: Callable[..., nn.Module]) -> Callable[[Wrap], Log]:
    def play(wrap: Wrap) -> Log:
        layer = make(4, 6)
        fast = wrap(lambda xs: layer(xs)[0])
        for xs in batches(4, 5, 3, 4):
            fast(xs).square().mean().backward()
        return state(layer)

    return play


SCRIPTS["RNN"] = Script(recurrent(nn.RNN), 3)
SCRIPTS["LSTM"] = Script(recurrent(nn.LSTM), 3)
SCRIPTS["GRU"] = Script(recurrent(nn.GRU), 3)
for kind in (nn.RNN, nn.LSTM, nn.GRU):
    options = {"batch_first": True, "bidirectional": True, "num_layers": 2}
    SCRIPTS[f"{kind.__name__}, two layers, both ways"] = Script(recurrent(partial(kind, **options)), 3)


class Attention(nn.Module):
    """Heads by einsum, and a mask of what comes later."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        # A bias of the keys would get rounding for a gradient, which Adam makes large.
        self.qkv, self.out = nn.Linear(size, 3 * size, bias=False), nn.Linear(size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in self.qkv(x).chunk(3, -1))
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / q.size(-1) ** 0.5
        later = torch.ones(x.size(1), x.size(1), dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        return self.out(torch.einsum("bhij,bjhd->bihd", weights, v).flatten(-2))


class Language(nn.Module):
    """A language model of one block, whose head may share its weight with the table."""

    def __init__(self, tied: bool, attention: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.table, self.place = nn.Embedding(11, 8), nn.Parameter(torch.randn(6, 8) * 0.1)
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(2))
        self.attention, self.mlp = attention(), mlp(8, 16, 8, act=nn.GELU)
        self.head = nn.Linear(8, 11, bias=False)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids) + self.place
        x = x + self.attention(self.norms[0](x))
        return self.head(x + self.mlp(self.norms[1](x)))


class Scaled(Attention):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))


def language(tied: bool, attention: Callable[[], nn.Module], inside: bool = False) -> Callable[[Wrap], Log]:
    def play(wrap: Wrap) -> Log:
        model = Language(tied, attention)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

        def step(ids: torch.Tensor, f: Any = model) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(f(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            return loss.detach()

        fast = wrap(step if inside else model)
        generator = torch.Generator().manual_seed(0)
        data = [torch.randint(0, 11, (3, 7), generator=generator) for _ in range(8 if inside else 5)]
        return [*(fast(ids) if inside else step(ids, fast) for ids in data), *state(model)]

    return play


SCRIPTS["language model, einsum attention"] = Script(language(False, lambda: Attention(8, 2)), 4)
SCRIPTS["language model, tied weights"] = Script(language(True, lambda: Attention(8, 2)), 4)
SCRIPTS["language model, scaled dot product"] = Script(language(True, lambda: Scaled(8, 2)), 4)
SCRIPTS["language model, a whole step"] = Script(language(True, lambda: Attention(8, 2), True), 3)


@script(4)
def transformer_encoder_layer(wrap: Wrap) -> Log:
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    fast = wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in batches(5, 2, 5, 8):
        optimizer.zero_grad()
        fast(x).square().mean().backward()
        optimizer.step()
    return state(model)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "layer norm": lambda: nn.LayerNorm(8),
    "group norm": lambda: nn.GroupNorm(2, 8),
    "RMS norm": lambda: nn.RMSNorm(8),
    "PReLU": lambda: nn.PReLU(8),
    "ELU": nn.ELU,
    "SiLU": nn.SiLU,
    "Mish": nn.Mish,
    "GELU, tanh": lambda: nn.GELU("tanh"),
    "softmax": lambda: nn.Softmax(-1),
    "softplus": nn.Softplus,
    "hard swish": nn.Hardswish,
    "leaky ReLU": nn.LeakyReLU,
    "GLU": lambda: nn.Sequential(nn.Linear(8, 16), nn.GLU()),
    "bilinear": lambda: Twice(nn.Bilinear(8, 8, 8)),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)),
    "residual": lambda: Residual(mlp(8, 16, 8)),
}


class Twice(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x, x)  # type: ignore[no-any-return]


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)  # type: ignore[no-any-return]


def with_layer(make: Callable[[], nn.Module]) -> Callable[[Wrap], Log]:
    def play(wrap: Wrap) -> Log:
        model = nn.Sequential(nn.Linear(4, 8), make(), nn.Linear(8, 1))
        return fit(model, wrap(model), torch.optim.SGD(model.parameters(), lr=0.1))

    return play


for _name, _layer in LAYERS.items():
    SCRIPTS[f"layer: {_name}"] = Script(with_layer(_layer), 4)
