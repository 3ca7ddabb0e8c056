"""Random loops over time in Python: states, writes to parts, collected values, neighbours and numbers, by a seed."""

from __future__ import annotations

import linecache
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

STEPS = (12, 30, 70, 140)
SIZES = (1, 3, 8, 16, 17, 33, 64, 100)
TYPES = (torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.int64)


@dataclass
class Loop:
    """`function(*arguments)`; it writes to some of them."""

    function: Callable[..., Any]
    arguments: list[torch.Tensor]
    source: str


class Writer:
    """Values stay between -1 and 1, and only inputs decide a choice: rounding must not grow from step to step."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.rng_tensors = torch.Generator().manual_seed(seed)
        choice = self.rng.choice
        self.steps, self.shape = choice(STEPS), [choice(SIZES) for _ in range(choice((1, 1, 2)))]
        self.dtype = choice(TYPES)
        self.time_is_last = self.chance(0.3)
        self.states = ["h", "g"][: choice((1, 2))]

    def chance(self, of: float) -> bool:
        return self.rng.random() < of

    def tensor(self, *sizes: int) -> torch.Tensor:
        if not self.dtype.is_floating_point:
            return torch.randint(-3, 4, sizes, generator=self.rng_tensors)
        return (torch.rand(sizes, generator=self.rng_tensors, dtype=torch.float64) * 0.8 - 0.4).to(self.dtype)

    def over_time(self, steps: int) -> torch.Tensor:
        return self.tensor(*self.shape, steps) if self.time_is_last else self.tensor(steps, *self.shape)

    def at(self, name: str, step: str) -> str:
        return f"{name}[..., {step}]" if self.time_is_last else f"{name}[{step}]"

    def loads(self) -> list[str]:
        loads = [self.at("x", "t"), "a", "b", *self.states]
        loads += [self.at("out", "t+1")] * self.chance(0.3)
        loads += [self.rng.choice((self.at("out", "t+2"), self.at("out", "t")))] * self.chance(0.25)
        loads += [self.at("x", f"{self.steps - 1}-t")] * self.chance(0.2)
        loads += ["torch.roll(h, 1, 0)"] * (self.chance(0.15) and self.shape[0] > 2)
        return loads + ["acc"] * self.chance(0.15)

    def value(self, loads: list[str], depth: int = 0) -> str:
        if depth > 2 or self.chance(0.25):
            return self.rng.choice(loads)
        a, b = self.value(loads, depth + 1), self.value(loads, depth + 1)
        which = self.rng.random()
        if which < 0.6:
            return f"({a} {self.rng.choice('+-*')} {b})"
        if which < 0.8 and self.dtype.is_floating_point:
            return f"torch.{self.rng.choice(('tanh', 'sin', 'relu', 'sigmoid'))}({a})"
        return f"torch.where({self.at('x', 't')} > a, {a}, {b})" if which < 0.9 else f"torch.maximum({a}, {b})"

    def body(self) -> list[str]:
        loads = self.loads()
        lines = [f"next_h = ({self.value(loads)}).clamp(-1, 1)"]
        if "g" in self.states:
            lines.append(f"g = ({self.value(loads)} - {self.rng.choice(loads)}).clamp(-1, 1)")
        lines.append("h = next_h")
        stores = [
            f"{self.at('out', 't')} = h",
            f"{self.at('out', 't')} += h",
            f"{self.at('out', 't+1')} = h - {self.at('out', 't')}",
            "acc += h",
            "every.append(h)",
            "every.append(h * 2)",
        ]
        return lines + self.rng.sample(stores, self.rng.choice((0, 1, 1, 2)))

    def source(self) -> str:
        lines = ["def f(x, a, b, h, g, acc, out):"]
        lines += ["    out = out.clone()"] * self.chance(0.5) + ["    acc = acc.clone()"] * self.chance(0.5)
        steps = f"reversed(range({self.steps}))" if self.chance(0.2) else f"range({self.steps})"
        lines += ["    every = []", f"    for t in {steps}:", *(f"        {line}" for line in self.body())]
        collected = self.rng.choice(("torch.stack(every)", "torch.cat(every)", "every[-1]", "torch.stack(every, -1)"))
        return "\n".join([*lines, f"    return ({collected} if every else x), h, g, acc, out", ""])


def loop_of(seed: int) -> Loop:
    writer = Writer(seed)
    source = writer.source()
    name = f"<loop {seed}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    names: dict[str, Any] = {"torch": torch}
    exec(compile(source, name, "exec"), names)
    short = writer.shape[1:] if len(writer.shape) == 2 and writer.chance(0.3) else writer.shape
    plain = [writer.tensor(*writer.shape) for _ in range(4)]
    arguments = [writer.over_time(writer.steps), writer.tensor(*short), *plain, writer.over_time(writer.steps + 2)]
    return Loop(names["f"], arguments, source)
