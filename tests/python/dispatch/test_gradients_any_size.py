"""Programs with gradients for any size: the second recording tells which numbers of autograd's formulas are sizes.

Each test plays training calls at several sizes in eager and compiled, compares the results and every gradient, and says
how many recordings they took.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastjit
from gradient_tools import leaf
from helpers import assert_same

BATCHES = [32, 7, 64, 1, 2, 3, 33, 32, 64, 2, 1, 7, 5, 19, 100, 4, 6, 8, 33, 9, 21, 40, 50, 11]
FEW = 3

Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def _grad():
    with torch.enable_grad():
        yield


def parameters_of(fn: Function) -> list[Tensor]:
    return list(fn.parameters()) if isinstance(fn, nn.Module) else []


def step(fn: Function, weights: list[Tensor], args: tuple[Tensor, ...]) -> list[Tensor | None]:
    """The results and the gradients of all that gets one. The gradients of results differ from element to element."""
    args = tuple(a.detach().clone().requires_grad_(a.requires_grad) for a in args)
    for weight in weights:
        weight.grad = None
    out = fn(*args)
    outs = [out] if isinstance(out, Tensor) else list(out)
    given = [torch.linspace(-1, 2, o.numel()).reshape(o.shape).to(o.dtype) for o in outs]
    torch.autograd.backward(outs, given)
    return [*(o.detach() for o in outs), *(a.grad for a in args), *(w.grad for w in weights)]


def play(
    fn: Function,
    make: Callable[..., tuple[Tensor, ...]],
    sizes: Iterable[Any] = BATCHES,
    misses: int = FEW,
    tolerance: float | None = None,
) -> Any:
    module = fn if isinstance(fn, nn.Module) else None
    mine = copy.deepcopy(module) if module else fn
    fast = fastjit.jit(mine)
    count = 0
    for size in sizes:
        args = make(*(size if isinstance(size, tuple) else (size,)))
        want = step(fn, parameters_of(fn), args)
        got = step(fast, parameters_of(mine), args)
        for g, w in zip(got, want, strict=True):
            assert (g is None) == (w is None)
            if g is None or w is None:
                continue
            assert g.shape == w.shape
            if tolerance is None:
                assert_same(g, w)
            else:
                torch.testing.assert_close(g, w, rtol=tolerance, atol=tolerance)
        count += 1
    known = fastjit.of(fast) if module else fast
    stats, guards = known.stats(), known.inspect("guards")
    assert stats.fallbacks == {}, (stats, guards)
    assert stats.misses <= misses, (stats, guards)
    assert stats.hits == count - stats.misses
    return fast


class Block(nn.Module):
    """An attention block of a transformer."""

    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, width // self.heads).unbind(2)
        scores = q.transpose(1, 2) @ k.permute(0, 2, 3, 1) / (width // self.heads) ** 0.5
        mixed = torch.softmax(scores, -1) @ v.transpose(1, 2)
        return x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Fused(Block):
    """The same through torch's operator, with its dropout and masks."""

    def __init__(self, dropout: float = 0.0, causal: bool = True, mask: bool = False, rank: int = 4) -> None:
        super().__init__()
        self.options = {"dropout_p": dropout, "is_causal": causal}
        self.mask, self.rank = mask, rank

    def forward(self, x: Tensor) -> Tensor:
        torch.manual_seed(1)
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        if self.rank == 3:
            q, k, v = (part.reshape(-1, length, width // self.heads) for part in (q, k, v))
        mask = torch.ones(length, length, dtype=torch.bool).tril() if self.mask else None
        mixed = F.scaled_dot_product_attention(q, k, v, mask, **self.options)
        mixed = mixed.view(batch, self.heads, length, -1)
        return x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, key_padding_mask=x[:, :, 0] > 2, need_weights=False)[0]


class Recurrent(nn.Module):
    """Layers that oneDNN computes, whose workspace is as large as it wants."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.layers = nn.LSTM(5, 6, batch_first=True, **options)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        torch.manual_seed(1)
        y, (h, c) = self.layers(x)
        return y, h, c


def encoder_layer() -> nn.Module:
    return nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)


class Cells(nn.Module):
    def __init__(self, cell: type[nn.Module] = nn.RNNCell) -> None:
        super().__init__()
        self.cell = cell(5, 6)
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        for t in range(4):
            h = self.cell(x[:, t], h)
        return self.head(h)


class GatedCells(Cells):
    """The formulas of an LSTM's cell, without its writes into parts of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Linear(11, 24)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        c = torch.zeros_like(h)
        for t in range(4):
            gates = self.gates(torch.cat([x[:, t], h], 1))
            c = torch.sigmoid(gates[:, :6]) * c + torch.sigmoid(gates[:, 6:12]) * torch.tanh(gates[:, 12:18])
            h = torch.sigmoid(gates[:, 18:]) * torch.tanh(c)
        return self.head(h)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.table(words).mean(1))


def swish(x: Tensor) -> Tensor:
    y = torch.where(x > 3, x, x * (x + 3) / 6)
    return torch.where(x < -3, torch.zeros_like(x), y)


CASES: dict[str, tuple[Function, Callable[..., tuple[Tensor, ...]]]] = {
    "chain": (lambda x, w: (x * w).tanh() * x.sigmoid(), lambda n: (leaf(n, 5), leaf(5))),
    "a formula without operators": (lambda x: x + 1, lambda n: (leaf(n, 5),)),
    "sum": (lambda x: x.exp().sum(), lambda n: (leaf(n, 5),)),
    "sum of a dim": (lambda x: x.exp().sum(0), lambda n: (leaf(n, 5),)),
    "mean": (lambda x: x.exp().mean(), lambda n: (leaf(n, 5),)),
    "mean of a dim": (lambda x: x.exp().mean(0), lambda n: (leaf(n, 5),)),
    "mean of dims": (lambda x: x.exp().mean((0, 2)), lambda n: (leaf(n, 5, 3),)),
    "mse": (lambda x, y: F.mse_loss(x, y), lambda n: (leaf(n, 5), torch.randn(n, 5))),
    "cross entropy": (lambda x, y: F.cross_entropy(x, y), lambda n: (leaf(n, 5), torch.randint(0, 5, (n,)))),
    "bce": (lambda x, y: F.binary_cross_entropy_with_logits(x, y), lambda n: (leaf(n, 5), torch.rand(n, 5))),
    "bce of each": (
        lambda x, y: F.binary_cross_entropy_with_logits(x * 2, y, reduction="none").sum(1),
        lambda n: (leaf(n, 5), torch.rand(n, 5)),
    ),
    "softmax": (lambda x: torch.softmax(x, -1), lambda n: (leaf(n, 5),)),
    "group norm": (lambda x, w: F.group_norm(x.exp(), 2, w), lambda n: (leaf(n, 4, n + 1, 3), leaf(4))),
    "slices": (lambda x: x[1:, :3] * x[:-1, 2:], lambda n: (leaf(n + 1, 5),)),
    "swish": (swish, lambda n: (leaf(n, 5),)),
    "two results": (lambda x: (x.exp(), x.sin().sum(1)), lambda n: (leaf(n, 5),)),
    "an inner result": (lambda x: (y := x.exp(), (y * x).mean()), lambda n: (leaf(n, 5),)),
    "cat": (lambda x, y: torch.cat([x.sin(), y.cos()], 1), lambda n: (leaf(n, 5), leaf(n, 5))),
    "expand": (lambda x, w: w.expand(x.shape[0], -1) * x, lambda n: (leaf(n, 5), leaf(5))),
    "reshape": (lambda x: x.sin().reshape(x.shape[0] * 5, 2).cos(), lambda n: (leaf(n, 5, 2),)),
}


@pytest.mark.parametrize("name", CASES)
def test_functions(name: str) -> None:
    fn, make = CASES[name]
    play(fn, make, [n for n in BATCHES if n > 1], misses=3, tolerance=2e-5)


def test_a_batch_of_one_between() -> None:
    fn, make = CASES["mean"]
    play(fn, make, BATCHES, misses=3, tolerance=2e-5)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


class Steps(nn.Module):
    """A cell of torch's, called once a step: its gates are parts of one tensor, which it writes to."""

    def __init__(self, kind: type[nn.RNNCellBase]) -> None:
        super().__init__()
        self.cell = kind(5, 6)

    def forward(self, x: Tensor) -> Tensor:
        state: Any = None
        made = []
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
            made.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(made, 1)


class Outputs(nn.Module):
    """Writes to parts, in a loop, and reads of them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 6)

    def forward(self, x: Tensor) -> Tensor:
        out = torch.zeros(x.shape[0], 4, 6)
        for t in range(4):
            out[:, t] = self.first(x[:, t]) + (out[:, t - 1] if t else 0)
        out[:, :2].mul_(0.5)
        out[:, 1:3].add_(1)
        return out * out


class Rows(nn.Module):
    """Writes to rows, each as long as the batch, and to what is left of them."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(5, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out = torch.zeros(5, x.shape[0], 6)
        state = None
        for t in range(4):
            state = self.cell(x[:, t], state)
            out[t + 1] = state
        out[1:, :, 2:4].mul_(2)
        out[2:, 1:].sub_(out[:3, :-1].clone())
        return out * out, out[3]


def diagonal(x: Tensor) -> Tensor:
    out = torch.zeros(x.shape[0], 5)
    out.diagonal().copy_(x.exp().sum(0)[: min(x.shape[0], 5)])
    return out * out


def added(x: Tensor) -> Tensor:
    out = x * 2
    out[:, 1:3] += 1
    return out * out


MODULES: dict[str, tuple[Callable[[], nn.Module], Callable[..., tuple[Tensor, ...]]]] = {
    "mlp": (mlp, lambda n: (torch.randn(n, 5),)),
    "norm": (lambda: nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.GELU()), lambda n: (leaf(n, 5),)),
    "attention": (Block, lambda n: (leaf(n, 6, 16),)),
    "cells": (Cells, lambda n: (torch.randn(n, 4, 5), torch.zeros(n, 6))),
    "LSTM cells": (lambda: Steps(nn.LSTMCell), lambda n: (leaf(n, 4, 5),)),
    "GRU cells": (lambda: Steps(nn.GRUCell), lambda n: (leaf(n, 4, 5),)),
    "RNN cells": (lambda: Steps(nn.RNNCell), lambda n: (leaf(n, 4, 5),)),
    "gated cells": (GatedCells, lambda n: (torch.randn(n, 4, 5), torch.zeros(n, 6))),
    "fused attention": (Fused, lambda n: (leaf(2, n, 16),)),
    "attention with a mask": (lambda: Fused(causal=False, mask=True), lambda n: (leaf(2, n, 16),)),
    "attention with dropout": (lambda: Fused(dropout=0.2), lambda n: (leaf(2, n, 16),)),
    "attention of three dims": (lambda: Fused(rank=3), lambda n: (leaf(2, n, 16),)),
    "padding": (Padded, lambda n: (leaf(2, n, 16),)),
    "encoder layer": (encoder_layer, lambda n: (leaf(2, n, 16),)),
    "LSTM over lengths": (Recurrent, lambda n: (leaf(3, n, 5),)),
    "LSTM of batches": (Recurrent, lambda n: (leaf(n, 4, 5),)),
    "LSTM of two layers both ways": (
        lambda: Recurrent(num_layers=2, bidirectional=True, dropout=0.3),
        lambda n: (leaf(3, n, 5),),
    ),
    "LSTM of two layers": (lambda: Recurrent(num_layers=2, dropout=0.3), lambda n: (leaf(3, n, 5),)),
    "instance norm": (lambda: nn.InstanceNorm2d(3, affine=True), lambda n: (leaf(n, 3, 4, n + 1),)),
    "words": (Words, lambda n: (torch.randint(0, 11, (n, 4)),)),
    "writes to parts": (Outputs, lambda n: (leaf(n, 4, 5),)),
    "writes to rows": (Rows, lambda n: (leaf(n, 4, 5),)),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str) -> None:
    make_module, make = MODULES[name]
    torch.manual_seed(0)
    # Where a gradient has as many elements as a weight by chance, the two must not share memory: another program each.
    chance = {"norm": 1, "LSTM of batches": 2, "LSTM of two layers": 2, "LSTM of two layers both ways": 2}
    chance["writes to rows"] = 1
    play(make_module(), make, [n for n in BATCHES if n > 1], misses=3 + chance.get(name, 0), tolerance=1e-4)


FIXED: dict[str, tuple[Callable[[], Function], Callable[..., tuple[Tensor, ...]], str]] = {
    "writes to a diagonal": (lambda: diagonal, lambda n: (leaf(n, 5),), "x.size(0) is one size for aten::diagonal at"),
    "sums in place of a part": (lambda: added, lambda n: (leaf(n, 4, 5),), "which writes to a part of a tensor"),
    "variance": (
        lambda: lambda x: x.var(),
        lambda n: (leaf(n, 5),),
        "x.size(0) is one size for aten::var at",
    ),
}


@pytest.mark.parametrize("name", FIXED)
def test_what_is_not_known_for_any_size_is_for_one(name: str) -> None:
    make_function, make, why = FIXED[name]
    fast = play(make_function(), make, [3, 4, 3, 5, 4], misses=3, tolerance=1e-4)
    known = fastjit.of(fast) if isinstance(fast, nn.Module) else fast
    assert why in known.inspect("guards")


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * x.cos() * (x.shape[0] // 16 if x.shape[0] > 30 else 3)


ROWS = [32, 40, 64, 7, 16, 5, 8, 9, 1, 2, 3, 33, 100, 4, 17, 48]
PAIRS = [(4, 6), (6, 4), (3, 8), (5, 5), (2, 9), (7, 3), (8, 8), (4, 12), (12, 2), (1, 6), (6, 1), (9, 11), (10, 20)]
TWICE = [(4, 8), (8, 16), (3, 5), (5, 10), (7, 2), (2, 4), (9, 9), (6, 12), (11, 3), (13, 30)]
# Numbers of formulas that follow from sizes and were the same in two recordings, or the same as another size.
CHANCE: dict[str, tuple[Function, Callable[..., tuple[Tensor, ...]], list[Any]]] = {
    "a quotient in mul": (lambda x: x.exp() * (x.shape[0] // 16), lambda n: (leaf(n, 5),), ROWS),
    "a quotient in pow": (lambda x: (x.abs() + 1) ** (x.shape[0] // 16), lambda n: (leaf(n, 5),), ROWS),
    "a quotient in clamp": (lambda x: (x * 3).clamp(0, x.shape[0] // 16), lambda n: (leaf(n, 5),), ROWS),
    "a quotient as alpha": (lambda x: torch.add(x, x.exp(), alpha=x.shape[0] // 16), lambda n: (leaf(n, 5),), ROWS),
    "a quotient in roll": (lambda x: x.sin().roll(x.shape[0] // 16, 0), lambda n: (leaf(n, 5),), ROWS),
    "the least of two": (lambda x: x.exp() * min(x.shape[0], 8), lambda n: (leaf(n, 5),), ROWS),
    "a strided slice": (lambda x: x.sin()[::2].cos(), lambda n: (leaf(n, 5),), ROWS),
    "a pool that rounds up": (lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), lambda n: (leaf(1, 2, n + 3, 9),), ROWS),
    "a mean of dims": (lambda x: x.exp().mean((0, 1)), lambda n, m: (leaf(n, m, 3),), PAIRS),
    "a mean of two of six": (lambda x: x.exp().mean((0, 1)), lambda n, m: (leaf(n, m, 1, 2, 1, 3),), PAIRS),
    "a variance of all": (lambda x: x.exp().var(), lambda n, m: (leaf(n, m),), PAIRS),
    "a variance of too few": (lambda x: x.exp().var(correction=40), lambda n: (leaf(n, 5),), [4, 5, 6, 9, 12, 33]),
    "a deviation of too few": (lambda x: (x * 2).std(correction=40), lambda n: (leaf(n, 5),), [4, 5, 6, 9, 12, 33]),
    "a mean of too few": (
        lambda x: torch.var_mean(x * 2, correction=40)[0],
        lambda n: (leaf(n, 5),),
        [4, 5, 6, 9, 12, 33],
    ),
    "a slice of columns": (
        lambda x, w, y: x.t()[: y.shape[0]].t() @ w[: y.shape[0]],
        lambda n, m: (leaf(5, n), leaf(n, 4), torch.randn(m, 2)),
        [(9, 4), (12, 5), (14, 6), (8, 8), (20, 7), (6, 6), (30, 9)],
    ),
    "parts of cat": (
        lambda x, y: (torch.cat([x.sin(), x.cos(), x.exp()]), y.sin()),
        lambda n, m: (leaf(n, 5), leaf(m, 5)),
        TWICE,
    ),
    "a quotient of sizes": (
        lambda x, y: x.exp() * (y.shape[0] // x.shape[0]),
        lambda n, m: (leaf(n, 5), leaf(m, 5)),
        TWICE,
    ),
    "soft labels": (lambda x, y: F.cross_entropy(x, y), lambda n: (leaf(n, 5), torch.rand(n, 5)), ROWS),
    "smooth labels": (
        lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1),
        lambda n: (leaf(7, n + 1), torch.randint(0, n + 1, (7,))),
        ROWS,
    ),
    "an own backward": (lambda x: Scaled.apply(x), lambda n: (leaf(n, 5),), ROWS),
    "cumprod": (lambda x: x.sigmoid().cumprod(0), lambda n: (leaf(n, 5),), ROWS),
}


@pytest.mark.parametrize("name", CHANCE)
def test_no_number_is_taken_for_another_by_chance(name: str) -> None:
    """Whatever the recordings prove, gradients are eager's; calls beyond eight recordings in vain run eagerly."""
    fn, make, sizes = CHANCE[name]
    fast = fastjit.jit(fn)
    for size in [*sizes, *sizes]:
        args = make(*(size if isinstance(size, tuple) else (size,)))
        for g, w in zip(step(fast, [], args), step(fn, [], args), strict=True):
            torch.testing.assert_close(g, w, rtol=2e-4, atol=2e-4, equal_nan=True)
    assert fast.stats().hits > 0


@pytest.mark.parametrize("known", [2, 4])
def test_an_int_argument_that_was_the_size_by_chance(known: int) -> None:
    fast = fastjit.jit(lambda x, k: (x.exp() * k).sum(0))
    for n, k in [(2, 2), (4, 4), (5, known), (7, known), (known, 7), (9, 9)]:
        x = leaf(n, 5)
        twin = x.detach().clone().requires_grad_()
        fast(x, k).sum().backward()
        (twin.exp() * k).sum().backward()
        torch.testing.assert_close(x.grad, twin.grad)


@pytest.mark.parametrize("make_module", [Block, Fused, encoder_layer])
def test_the_length_of_a_sequence_too(make_module: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    sizes = [(4, 6), (5, 7), (3, 9), (17, 12), (2, 30), (8, 2), (4, 6), (31, 31), (7, 5)]
    # Two recordings lie on a line, and so do these three: the fourth one tells both sizes apart. By chance one gradient
    # has as many elements as a weight.
    play(make_module(), lambda n, m: (leaf(n, m, 16),), sizes, misses=5, tolerance=1e-4)


@pytest.mark.parametrize("name", ["mean", "cross entropy", "sum of a dim"])
def test_no_size_is_taken_for_another_number(name: str) -> None:
    """Sizes that are equal to constants of the formulas, and to each other."""
    fn, make = CASES[name]
    play(fn, make, [5, 10, 5, 25, 2, 3, 5, 50], misses=3, tolerance=2e-5)


@pytest.mark.parametrize("by_class", [True, False])
def test_whole_steps(by_class: bool) -> None:
    model = mlp()
    twin = copy.deepcopy(model)

    def train(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        out = net(x)
        loss = F.cross_entropy(out, y) if by_class else ((out - y) ** 2).mean()
        loss.backward()
        with torch.no_grad():
            for p in net.parameters():
                p.sub_(0.01 * p.grad)
                p.grad = None
        return loss.detach()

    fast = fastjit.jit(train)
    for n in BATCHES:
        x, y = torch.randn(n + 1, 5), torch.randint(0, 3, (n + 1,)) if by_class else torch.randn(n + 1, 3)
        torch.testing.assert_close(fast(model, x, y), train(twin, x, y), rtol=1e-4, atol=1e-5)
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
    stats = fast.stats()
    assert stats.fallbacks == {}
    assert stats.misses <= 3, (stats, fast.inspect("guards"))
    assert stats.hits == len(BATCHES) - stats.misses


class Positions(nn.Module):
    """Its second weight is read in parts, whose length changes, before the optimizer writes all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.positions = nn.Parameter(torch.randn(1, 40, 6))
        self.head = nn.Linear(6, 3)

    def forward(self, words: Tensor) -> Tensor:
        return self.head((self.table(words) + self.positions[:, : words.shape[1]]).tanh().mean(1))


def test_whole_steps_that_read_a_part_of_a_weight() -> None:
    torch.manual_seed(0)
    models = [Positions(), Positions()]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.01) for model in models]

    def train(which: int, x: Tensor, y: Tensor) -> Tensor:
        optimizers[which].zero_grad()
        loss = F.cross_entropy(models[which](x), y)
        loss.backward()
        optimizers[which].step()
        return loss.detach()

    fast = fastjit.jit(lambda x, y: train(0, x, y))
    sizes = [(8, 12), (8, 12), (8, 12), (7, 9), (5, 21), (9, 30), (3, 4), (8, 33), (2, 13), (16, 7), (4, 2)]
    for n, length in sizes:
        x, y = torch.randint(0, 11, (n, length)), torch.randint(0, 3, (n,))
        torch.testing.assert_close(fast(x, y), train(1, x, y), rtol=1e-4, atol=1e-5)
        for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
    assert fast.stats().hits >= len(sizes) - 5, (fast.stats(), fast.inspect("guards"))


def test_calls_at_other_sizes_before_going_back() -> None:
    """What a call keeps has the sizes of that call, whatever the program has run at since."""

    def f(x: Tensor) -> Tensor:
        return (x.exp() * x.sin()).mean()

    fast = fastjit.jit(f)
    sizes = [32, 7, 64, 2, 3, 33]
    for n in sizes[:3]:
        fast(leaf(n, 5)).backward()
    inputs = [leaf(n, 5) for n in sizes]
    for x, y in zip(inputs, [fast(x) for x in inputs], strict=True):
        y.backward()
        twin = x.detach().clone().requires_grad_()
        f(twin).backward()
        torch.testing.assert_close(x.grad, twin.grad)
    assert fast.stats().misses == 2


class NextToken(nn.Module):
    """Trained as language models are: on all but the last token, to foretell all but the first."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.layer, self.out = nn.Embedding(20, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(torch.tanh(self.layer(self.tokens(tokens))[0]))


def test_arguments_with_gaps() -> None:
    """x[:, :-1] is as many elements from row to row as x has, which follows from no size of its own."""
    net = NextToken()
    eager = copy.deepcopy(net)
    fast = fastjit.of(fastjit.fastjit(net))
    for n in (9, 7, 12, 8, 30, 15, 5, 64):
        x = torch.randint(0, 20, (4, n))
        for one in (net, eager):
            one.zero_grad()
            F.cross_entropy(one(x[:, :-1]).reshape(-1, 20), x[:, 1:].reshape(-1)).backward()
        assert_same([p.grad for p in net.parameters()], [p.grad for p in eager.parameters()])
    assert fast.stats().hits >= 5, fast.inspect("guards")
    assert not fast.stats().fallbacks


@pytest.mark.parametrize("size", [3, 20])
def test_what_is_kept_of_an_expanded_argument(size: int) -> None:
    """Eager keeps a copy with all elements, of which the way back took the first for all."""
    layer = nn.Linear(8, 6).double()
    fast = fastjit.jit(lambda x: layer(x) * 2 + 1)
    for _ in range(3):
        x = torch.randn(3, 1, 8, dtype=torch.float64).expand(3, size, 8)
        got = []
        for fn in (fast, lambda x: layer(x) * 2 + 1):
            layer.zero_grad()
            fn(x).square().sum().backward()
            got.append([p.grad.clone() for p in layer.parameters()])
        assert_same(*got)
    assert fast.stats().hits == 2
