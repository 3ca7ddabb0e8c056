"""Forward and backward, and whole training steps, over eager and torch.compile; and what the forward pass keeps."""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.append(str(Path(__file__).resolve().parent / "seeds"))

import _harness as harness
import fastjit
from _program import programs_of
from fastjit._bench import measure, table
from fastjit._bench.models import library_of

PEERS = ("eager", "torch.compile")
EACH = (*PEERS, "fastjit")
Forward = Callable[..., torch.Tensor]
ResNet, convnext = programs_of("functional").ResNet, programs_of("convnext")
FastSwish = convnext.FastSwish


class HardSwish(nn.Module):
    """As a user writes it out."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.clamp(x + 3, 0, 6) / 6


class Chain(nn.Module):
    """Ten pointwise operators."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64))

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

    def __init__(self) -> None:
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
    must: float | None = None
    aim: float | None = None
    loss: Callable[[Forward, torch.Tensor], torch.Tensor] = mean_square
    compiles: bool = True  # torch.compile has no second derivatives


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


PROGRAMS = [
    Program("10 pointwise operators on 64 floats", Chain, (64,), must=2, aim=1 / 0.35),
    Program("MLP 16-64-64-4, batch 32", mlp, (32, 16), must=2, aim=4),
    Program("LSTM cell, 50 steps, batch 4", Recurrent, (50, 4, 16), must=2, aim=4),
    Program("toy ResNet, 16 px, batch 4", ResNet, (4, 3, 16, 16), must=2, aim=4),
    Program("toy ResNet, 64 px, batch 4", ResNet, (4, 3, 64, 64), must=1, aim=1.2),
    Program("transformer encoder, 4 layers, batch 4 of 32", encoder, (4, 32, 64), must=1, aim=1.2),
    Program("whole AdamW step, MLP 16-64-64-4, batch 32", mlp, (32, 16), adamw, must=5, aim=15),
    Program("whole AdamW step, PINN 1-32-32-1, 64 points", solution, (64, 1), adamw, loss=equation, compiles=False),
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
]
KEPT = {"ReLU": nn.ReLU, "GELU": nn.GELU, "hard swish, written out": HardSwish, "FastSwish": FastSwish}


def step_of(program: Program, model: nn.Module, forward: Forward) -> Callable[[torch.Tensor], Any]:
    if program.optimizer is None:

        def both_ways(x: torch.Tensor) -> torch.Tensor:
            model.zero_grad()
            out = forward(x)
            out.square().mean().backward()
            return out.detach()

        return both_ways
    optimizer = program.optimizer(model.parameters())

    def whole(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = program.loss(forward, x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return whole


def variants_of(program: Program, peers: list[str]) -> dict[str, Callable[[torch.Tensor], Any]]:
    """The same step of the same model, made by each."""
    torch.manual_seed(0)
    model = program.make()
    made = {"eager": step_of(program, model, model)}
    if "torch.compile" in peers and program.compiles:
        twin = copy.deepcopy(model)
        made["torch.compile"] = step_of(program, twin, torch.compile(twin))
    twin = copy.deepcopy(model)
    if program.optimizer is None:
        made["fastjit"] = step_of(program, twin, fastjit.fastjit(twin))
    else:
        made["fastjit"] = fastjit.fastjit(step_of(program, twin, twin))
    return made


@torch.enable_grad()
def measured(program: Program, options: harness.Options) -> dict[str, Any]:
    made = variants_of(program, options.given.peers.split(","))
    torch.manual_seed(1)
    batches = [torch.randn(*program.sizes) for _ in range(4)]
    found: dict[str, Any] = {}
    results: dict[str, list[Any]] = {}
    for name, step in made.items():
        start = time.perf_counter()
        results[name] = [step(batches[0])]
        found[name] = {"first_s": time.perf_counter() - start}
        results[name] += [step(x) for x in batches[1:]]
    for name, got in results.items():
        for one, want in zip(got, results["eager"], strict=True):
            torch.testing.assert_close(one, want, rtol=1e-3, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")
    timers = {name: measure.make_timer(step, (batches[0],), {}) for name, step in made.items()}
    for name, samples in harness.rounds_of(timers, options).items():
        found[name]["samples_s"] = samples
    return found


@torch.enable_grad()
def memory_of(activation: Callable[[], nn.Module]) -> dict[str, int]:
    """Bytes that saved-tensor hooks see in eager, and that hits hand over to their way back; eager's without hits."""
    layers = [nn.Linear(256, 1024), activation(), nn.Linear(1024, 256), activation(), nn.Linear(256, 10)]
    model, x = nn.Sequential(*layers), torch.randn(256, 256)
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), x)}
    seen: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(x)
    fast = fastjit.fastjit(model)
    for _ in range(2):
        fast(x).sum().backward()
    eager = sum(seen.values())
    hits = fastjit.of(fast).stats().hits
    return {"eager": eager, "fastjit": fastjit.of(fast).variants()[0].kept_bytes if hits else eager}


def body(options: harness.Options) -> harness.Outcome:
    programs = [program for program in PROGRAMS if options.wants(program.name)]
    targets, rows, results = [], [], {}
    columns = ["a step", *EACH, "over the best other", "first call: eager", "torch.compile", "fastjit"]
    for program in programs:
        options.progress.say(program.name)
        torch.compiler.reset()
        found = results[program.name] = measured(program, options)
        best = {name: min(one["samples_s"]) for name, one in found.items()}
        other = min((name for name in best if name != "fastjit"), key=lambda name: best[name])
        over = best[other] / best["fastjit"]
        cells = [table.seconds(best[name]) if name in best else "-" for name in EACH]
        firsts = [table.seconds(found[name]["first_s"]) if name in found else "-" for name in EACH]
        rows.append([program.name, *cells, f"{table.figures(over)}x {other}", *firsts])
        options.done(rows[-1])
        what = f"{program.name}: times as fast as the best of eager, torch.compile"
        if program.must is not None:
            targets.append(harness.Target(what, program.must, program.aim, over, better="higher"))
    sheets = [harness.Sheet("Forward and backward, and whole steps", columns, rows)]
    if not options.only:
        kept = results["kept"] = {name: memory_of(make) for name, make in KEPT.items()}
        lines = [[name, *(f"{one[who] / 1e6:.2f} MB" for who in ("eager", "fastjit"))] for name, one in kept.items()]
        sheets.append(
            harness.Sheet(
                "Kept between the two ways, MLP 256-1024-256-10, batch 256", ["activation", "eager", "fastjit"], lines
            )
        )
        over = kept["FastSwish"]["fastjit"] / kept["ReLU"]["fastjit"]
        detail = f"eager {kept['FastSwish']['eager'] / kept['ReLU']['eager']:.2f}"
        targets.append(harness.Target("kept for the way back: FastSwish over ReLU", 1.05, 1, over, detail=detail))
    return harness.Outcome(targets, sheets, results)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--peers", default=",".join(PEERS), help="without torch.compile a run is no figure")


QUESTION = """\
How long do forward and backward take of models whose forward pass is a program, and whole training steps that are one?
Eager and torch.compile (its default mode, on the model) run the same steps in turn, in one process; results are
compared first. A first call compiles what no cache has."""


if __name__ == "__main__":
    sys.exit(
        harness.run(
            "training",
            "training",
            QUESTION,
            body,
            add_options,
            apart=lambda given: given.peers != ",".join(PEERS),
        )
    )
