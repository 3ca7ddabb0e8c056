"""Requests of ever new sizes, and tokens that are generated one by one: what do recordings cost where none repeats?"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import _harness as harness
from fastjit import fastjit
from fastjit._bench import table
from fastjit._bench.models import library_of

BLOCKS, WIDTH, HEADS = 12, 192, 3
CALLS = 30
TOKENS = 128
SETTLED = 4  # the first token that must be a hit, as all after it


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


def transformer() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(BLOCKS))).requires_grad_(False).eval()


class Lstm(nn.Module):
    """Two gates and a state, step by step over as many steps as there are."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(32, 64, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(x)[0].relu()


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
    return nn.Sequential(*layers, *head).requires_grad_(False).eval()


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[random.Random], Tensor]]] = {
    "transformer, batch 2-7 x length 30-64": (
        transformer,
        lambda rng: torch.randn(rng.randint(2, 7), rng.randint(30, 64), WIDTH),
    ),
    "toy ResNet, batch 2-7 x 32-96 px": (
        resnet,
        lambda rng: torch.randn(rng.randint(2, 7), 3, 4 * rng.randint(8, 24), 4 * rng.randint(8, 24)),
    ),
}


def traffic(make: Callable[[], nn.Module], draw: Callable[[random.Random], Tensor]) -> tuple[float, float, list[int]]:
    """Seconds of all calls in eager and compiled, recordings included, and which calls were recorded."""
    model, rng = make(), random.Random(0)
    fast = fastjit(lambda x: model(x))
    eager_s = fast_s = 0.0
    recorded = []
    with torch.no_grad():
        model(draw(rng))  # torch's own first use
        for call in range(CALLS):
            x = draw(rng)
            start = time.perf_counter()
            wanted = model(x)
            middle = time.perf_counter()
            got = fast(x)
            end = time.perf_counter()
            eager_s, fast_s = eager_s + middle - start, fast_s + end - middle
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
            if fast.stats().misses > len(recorded):
                recorded.append(call + 1)
    assert not fast.stats().fallbacks, fast.stats()
    return eager_s, fast_s, recorded


def decoder(name: str) -> Any:
    import transformers as t

    torch.manual_seed(0)
    common = {"vocab_size": 1000, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
    if name == "GPT-2":
        model = t.GPT2LMHeadModel(t.GPT2Config(n_embd=256, n_layer=12, n_head=4, **common))
    else:
        sizes = {"hidden_size": 256, "num_hidden_layers": 12, "num_attention_heads": 4, "intermediate_size": 1024}
        model = t.LlamaForCausalLM(t.LlamaConfig(**sizes, **common))
    return model.requires_grad_(False).eval()


def generated(model: Any, forward: Any, ids: Tensor) -> tuple[Tensor, list[float]]:
    """What greedy decoding gives, and the seconds of each call of the model."""
    seconds: list[float] = []

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        result = forward(*args, **kwargs)
        seconds.append(time.perf_counter() - start)
        return result

    own = model.forward
    timed.__signature__ = __import__("inspect").signature(own)  # type: ignore[attr-defined]
    model.forward = timed
    try:
        return model.generate(ids, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False), seconds
    finally:
        model.forward = own


def generate(name: str, batch: int) -> tuple[list[float], list[float], int]:
    """Seconds of each token in eager and compiled, and the first token from which on all are hits."""
    model = decoder(name)
    own = model.forward
    fast = fastjit(lambda *args, **kwargs: own(*args, **kwargs))
    ids = torch.randint(2, 1000, (batch, 8), generator=torch.Generator().manual_seed(1))
    hits: list[int] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        before = fast.stats().hits
        result = fast(*args, **kwargs)
        hits.append(fast.stats().hits - before)
        return result

    wanted, eager = generated(model, own, ids)
    got, compiled = generated(model, call, ids)
    assert torch.equal(got, wanted) and not fast.stats().fallbacks, fast.stats()
    first = next(i for i in range(len(hits) + 1) if all(hits[i:])) + 1
    _, eager_again = generated(model, own, ids)
    return eager + eager_again, compiled, first


def body(options: harness.Options) -> harness.Outcome:
    rows, ratios, late = [], {}, 0
    for name, (make, draw) in MODELS.items():
        eager_s, fast_s, recorded = traffic(make, draw)
        ratios[name] = fast_s / eager_s
        late += sum(call > 3 for call in recorded)
        rows.append([name, table.seconds(eager_s), table.seconds(fast_s), f"{fast_s / eager_s:.2f}",
                     ", ".join(map(str, recorded))])  # fmt: skip
    tokens, speedups, first = [], [], 0
    try:
        library_of("transformers")
        names = ["GPT-2", "Llama"]
    except ImportError:
        names = []
    for name in names:
        for batch in (1, 4):
            eager, fast, hit = generate(name, batch)
            eager_token, fast_token = statistics.median(eager[SETTLED:]), statistics.median(fast[SETTLED:])
            speedups.append(eager_token / fast_token)
            first = max(first, hit)
            tokens.append([f"{name}, batch {batch}", table.seconds(eager_token), table.seconds(fast_token),
                           f"{speedups[-1]:.2f}", str(hit)])  # fmt: skip
    transformer_name = next(iter(MODELS))
    targets = [
        harness.Target(
            f"{CALLS} calls of a transformer of {BLOCKS} blocks at random sizes, recordings included, over eager",
            1.0,
            0.6,
            ratios[transformer_name],
        ),
        harness.Target("recordings after the third call of a model at random sizes", 0, None, late),
    ]
    if speedups:
        targets += [
            harness.Target("generate(): the first token from which on all calls are hits", SETTLED, None, first),
            harness.Target(
                "generate(): times as fast as eager, a token, the slowest model", 1.5, 3, min(speedups), "higher"
            ),
        ]
    return harness.Outcome(
        targets,
        [
            harness.Sheet(
                f"{CALLS} calls at random sizes", ["model", "eager", "fastjit", "over eager", "recorded calls"], rows
            ),
            harness.Sheet(
                f"greedy decoding of {TOKENS} tokens, 12 layers, width 256",
                ["model", "eager, a token", "fastjit, a token", "times as fast", "hits from token"],
                tokens,
            ),
        ],
        {},
    )


if __name__ == "__main__":
    sys.exit(harness.run("traffic", "Traffic", __doc__ or "", body))
