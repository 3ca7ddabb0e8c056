"""One process of several that train together: run by test_distributed.py; writes what it saw as JSON."""

from __future__ import annotations

import copy
import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import fastjit
from gradient_tools import nodes_of_ours

STEPS = 5
Made = tuple[nn.Module, Any, nn.Module]  # whose parameters are trained, what is called, whose stats count


class Network(nn.Module):
    rate = 0.1

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.idle = nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.first(x)).tanh())


class Busy(Network):
    def __init__(self) -> None:
        super().__init__()
        del self.idle


class Wide(Network):
    """Whose gradients fill several buckets, and come in several parts."""

    rate = 0.01  # with a higher one, rounding errors of eager's are ten times as large each step

    def __init__(self) -> None:
        super().__init__()
        del self.idle
        self.first = nn.Sequential(nn.Linear(4, 520), nn.Tanh(), nn.Linear(520, 520), nn.Tanh(), nn.Linear(520, 520))
        self.last, self.norm = nn.Linear(520, 2), nn.LayerNorm(520)


def fast(model: nn.Module) -> nn.Module:
    return fastjit.fastjit(model, on_unsupported="eager")


def around(**options: Any) -> Callable[[nn.Module, bool], Made]:
    def make(model: nn.Module, is_fast: bool) -> Made:
        shared = DistributedDataParallel(fast(model) if is_fast else model, **options)
        return shared, shared, model

    return make


def outside(model: nn.Module, is_fast: bool) -> Made:
    shared = DistributedDataParallel(model)
    return shared, fast(shared) if is_fast else shared, shared


def layers(model: nn.Module, is_fast: bool) -> Made:
    for layer in (model.first, model.last) if is_fast else ():
        fast(layer)
    return (shared := DistributedDataParallel(model)), shared, model.last


def sharded(model: nn.Module, is_fast: bool) -> Made:
    from torch.distributed.fsdp import fully_shard

    for layer in (model.first, model.last):
        fully_shard(layer)
    fully_shard(model)
    return model, fast(model) if is_fast else model, model


# name -> (how the model is made, which network, batches between two exchanges of gradients)
WAYS: dict[str, tuple[Callable[[nn.Module, bool], Made], type[nn.Module], int]] = {
    "around": (around(), Busy, 1),
    "around, gradients in buckets": (around(gradient_as_bucket_view=True), Busy, 1),
    "around, static graph": (around(static_graph=True), Busy, 1),
    "around, unused parameters": (around(find_unused_parameters=True), Network, 1),
    "around, small buckets": (around(bucket_cap_mb=0.0001), Busy, 1),
    "around, gradients added up": (around(), Busy, 2),
    "around, in parts": (around(), Wide, 1),
    "around, in parts, gradients in buckets": (around(gradient_as_bucket_view=True, bucket_cap_mb=1), Wide, 1),
    "each layer": (layers, Busy, 1),
    "outside": (outside, Busy, 1),
    "sharded": (sharded, Busy, 1),
}


def whole(tensor: torch.Tensor) -> list[float]:
    """All of a small tensor, some elements of a large one."""
    full = (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().flatten()
    return full[:: max(1, full.numel() // 100)].tolist()  # type: ignore[no-any-return]


def played(way: str, is_fast: bool, rank: int) -> dict[str, Any]:
    make, network, parts = WAYS[way]
    torch.manual_seed(0)
    trained, call, counted = make(copy.deepcopy(network()), is_fast)
    optimizer = torch.optim.SGD(trained.parameters(), lr=network.rate, momentum=0.9)
    gradients: list[list[float]] = []
    last_nodes = 0
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(parts):
            torch.manual_seed(100 * step + 10 * part + rank)
            x = torch.randn(6, 4)
            if part + 1 < parts:
                with trained.no_sync():
                    call(x).square().mean().backward()
            else:
                result = call(x)
                last_nodes = nodes_of_ours(result)
                result.square().mean().backward()
        gradients += [whole(p.grad) for p in trained.parameters() if p.grad is not None]
        optimizer.step()
    stats = fastjit.of(counted).stats() if is_fast else None
    return {
        "gradients": gradients,
        "weights": [whole(p) for p in trained.parameters()],
        "nodes": last_nodes,
        "hits": stats.hits if stats else 0,
        "compiles": stats.compiles if stats else 0,
        "from the cache": stats.disk_hits if stats else 0,
        "fallbacks": list(stats.fallbacks) if stats else [],
        "parts": {name: str(part) for name, part in stats.parts.items()} if stats else {},
    }


def whole_steps() -> dict[str, Any]:
    """A function that holds backward and update over a model that processes share."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Busy())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @fastjit.fastjit(on_unsupported="eager")
    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    for _ in range(STEPS):
        step(torch.randn(6, 4))
    return {"hits": step.stats().hits, "fallbacks": list(step.stats().fallbacks), "parts": list(step.stats().parts)}


def main(rank: int, processes: int, folder: Path) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=processes)
    seen = {way: {name: played(way, name == "fast", rank) for name in ("eager", "fast")} for way in WAYS}
    seen["whole steps"] = whole_steps()
    (folder / f"{rank}.json").write_text(json.dumps(seen))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
    sys.stdout.flush()
    os._exit(0)  # threads of gloo's abort some processes that end otherwise, of eager programs too
