"""Functions compiled and dropped, over and over: memory, mappings, descriptors and objects stay where they are.

`python tests/soak/soak.py --warmup 10000 --cycles 90000` prints what grew after the warm-up as JSON and exits with 1
when it is more than the limits. Each cycle compiles a kernel of its own (a constant that no other cycle has), in turn
of a function, a bound method and a module with a hook.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import sys
import weakref
from pathlib import Path

import torch

from fastjit import fastjit, of

LIMITS = {"rss_kb": 2048, "maps": 16, "descriptors": 4, "objects": 200, "alive": 0}


class Scaler:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def run(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


class Shift(torch.nn.Module):
    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.by


def learn(fast, stats, *args: torch.Tensor) -> None:
    fast(*args)
    fast(*args)
    now = stats()
    assert now.hits == 1 and now.compiles == 1, now


def cycle(number: int, x: torch.Tensor) -> list[weakref.ref]:
    """Compiles something new, runs it, drops it; what should be gone now."""
    factor = number + 0.5
    # Every eighth goes through the disk too, whose limit evicts.
    options = {"cache": True if number % 8 == 0 else "memory"}
    if number % 3 == 0:
        fast = fastjit(**options)(lambda x: x * factor)
        learn(fast, fast.stats, x)
        return [weakref.ref(fast)]
    if number % 3 == 1:
        scaler = Scaler(factor)
        fast = fastjit(**options)(scaler.run)
        learn(fast, fast.stats, x)
        return [weakref.ref(fast), weakref.ref(scaler)]
    module = fastjit(**options)(Shift(factor))
    module.register_forward_hook(lambda module, args, out: out * 2)
    learn(module, of(module).stats, x)
    return [weakref.ref(module)]


def measure() -> dict[str, int]:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what is free is not held
    return {
        "rss_kb": int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024,
        "maps": Path("/proc/self/maps").read_text().count("\n"),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "objects": len(gc.get_objects()),
    }


def play(first: int, cycles: int, x: torch.Tensor) -> int:
    """Plays the cycles and counts what is alive though dropped."""
    alive = 0
    for number in range(first, first + cycles):
        gone = cycle(number, x)
        if any(ref() is not None for ref in gone):  # a compiled module refers to itself
            gc.collect()
        alive += sum(ref() is not None for ref in gone)
        if sys.stderr.isatty() and number % 100 == 0:
            print(f"\r{number}", end="", file=sys.stderr)
    return alive


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--warmup", type=int, default=10_000)
    parser.add_argument("--cycles", type=int, default=90_000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # collections need not look at torch's own objects
    gc.disable()
    x = torch.arange(8.0)
    with torch.no_grad():
        alive = play(0, given.warmup, x)
        before = measure()
        alive += play(given.warmup, given.cycles, x)
        after = measure()
    grown = {name: after[name] - before[name] for name in before} | {"alive": alive}
    over = [name for name, limit in LIMITS.items() if grown[name] > limit]
    print(json.dumps({"grown": grown, "at": after, "over": over}))
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
