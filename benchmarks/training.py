"""Forward and backward, and whole training steps, over eager and torch.compile; and what the forward pass keeps."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import _harness as harness
import fastjit
from _training_programs import PROGRAMS, FastSwish, HardSwish, Program, variants_of
from fastjit._bench import measure, table

PEERS = ("eager", "torch.compile")
EACH = (*PEERS, "fastjit")
KEPT = {"ReLU": nn.ReLU, "GELU": nn.GELU, "hard swish, written out": HardSwish, "FastSwish": FastSwish}


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
compared first. backward() begins at the result, with a gradient that is given to all alike; in two rows with a loss
that the call computes itself, in two with one that is computed behind it, in eager mode by all. A first call compiles
what no cache has."""


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
