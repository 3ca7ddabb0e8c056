"""Random programs that write to parts of tensors: arguments, their copies and fresh memory, through views of views."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

SIZES = ((4, 6), (6,), (2, 3, 4), (5, 1), (3, 3))


class Program:
    """Text of one program; each line runs as it is added, so that sizes are known and eager accepts it."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)
        torch.manual_seed(seed)
        size = self.choose.choice(SIZES)
        self.args = {"a": torch.randn(size), "b": torch.randn(size), "c": torch.randn(self.choose.choice(SIZES))}
        self.names: dict[str, Any] = {name: value.clone() for name, value in self.args.items()} | {"torch": torch}
        self.pool, self.kept, self.lines = list(self.args), list[str](), list[str]()
        for _ in range(self.choose.randint(4, 16)):
            self.step()

    def value(self, text: str) -> torch.Tensor:
        return eval(text, self.names)

    def line(self, text: str) -> bool:
        try:
            exec(text, self.names)
        except RuntimeError:  # what is read and what is written share memory in part
            return False
        self.lines.append(text)
        return True

    def name(self, text: str, names: list[str]) -> None:
        made = f"t{len(self.lines)}"
        if self.line(f"{made} = {text}"):
            names.append(made)

    def view(self, x: str) -> str:
        now = self.value(x)
        if now.dim() == 0:
            return x
        dim = self.choose.randrange(now.dim())
        size, skipped = now.shape[dim], ":, " * dim
        kind = self.choose.randrange(8)
        if kind == 0 and size:
            return f"{x}.select({dim}, {self.choose.randrange(size)})"
        if kind == 1:
            start = self.choose.randrange(size + 1)
            return f"{x}.narrow({dim}, {start}, {self.choose.randint(0, size - start)})"
        if kind == 2:
            return f"{x}[{skipped}{self.choose.randrange(2)}::2]"
        if kind == 3:
            return f"{x}.transpose(0, {dim})"
        if kind == 4:
            return f"{x}.unsqueeze({dim})"
        if kind == 5:
            return f"{x}[{skipped}1:-1]"
        if kind == 6 and now.dim() >= 2 and min(now.shape) > 0:
            return f"{x}.diagonal()"
        return f"{x}.reshape(-1)" if now.is_contiguous() else x

    def fitting(self, like: torch.Tensor) -> str:
        """A tensor of the pool, or a view of one, that broadcasts to `like`; else a number."""
        for _ in range(6):
            x = self.choose.choice(self.pool)
            x = self.view(x) if self.choose.random() < 0.6 else x
            try:
                if torch.broadcast_shapes(self.value(x).shape, like.shape) == like.shape:
                    return x
            except RuntimeError:
                continue
        return self.choose.choice(("0.5", "-1.0", "2.0"))

    def computed(self, x: str) -> str:
        now, kind = self.value(x), self.choose.randrange(6)
        if kind == 0:
            return f"torch.tanh({x})"
        if kind == 1:
            return f"({x} * 0.5 + {self.fitting(now)})"
        if kind == 2:
            return f"{x}.clone()"
        if kind == 3 and now.dim() and now.numel():
            return f"({x} - {x}.mean(-1, keepdim=True))"
        if kind == 4 and now.dim() == 2 and now.numel():
            return f"({x} @ {x}.t() @ {x} * 0.1)"
        return f"(torch.maximum({x}, {x} * 0.5) - {self.fitting(now)})"

    def write(self) -> None:
        target = self.view(self.choose.choice(self.pool))
        if self.choose.random() < 0.4:
            target = self.view(target)
        source = self.fitting(self.value(target))
        if self.choose.random() < 0.6 and source.isidentifier():
            source = self.computed(source)
        kind = self.choose.randrange(7)
        if kind == 0 and not source[-1].isdigit():
            self.line(f"{target}.copy_({source})")
        elif kind == 1:
            self.line(f"{target}.add_({source})")
        elif kind in (2, 3):
            self.line(f"{target}[...] = {source}")
        elif kind == 4:
            self.line(f"{target}.fill_({self.choose.randrange(4)})")
        else:
            self.line(f"{target}.{self.choose.choice(('zero_', 'tanh_', 'neg_'))}()")

    def step(self) -> None:
        x, kind = self.choose.choice(self.pool), self.choose.randrange(11)
        if kind == 0:
            self.name(f"{x}.clone()", self.pool)
        elif kind == 1:
            self.name(self.choose.choice((f"torch.zeros_like({x})", f"torch.empty_like({x}).fill_(0.25)")), self.pool)
        elif kind == 2:
            self.name(self.view(x), self.pool)
        elif kind == 3:
            self.name(f"{self.view(x)}{self.choose.choice(('.clone()', ' * 2'))}", self.kept)
        elif kind == 4:
            self.name(self.computed(x), self.pool)
        else:
            self.write()

    def text(self) -> str:
        made = [name for name in self.pool if name not in self.args and self.choose.random() < 0.5]
        results = [self.choose.choice(self.pool), *made, *self.kept]
        return "\n    ".join(["def program(a, b, c):", *self.lines, f"return [{', '.join(results)}]"])


def others(args: list[torch.Tensor], choose: random.Random) -> list[torch.Tensor]:
    """Arguments like these at other sizes: dims of one size are of one size again."""
    sizes = {size: choose.choice((2, 3, 4, 5, 6, 7, 8, 9, 12, 17)) for size in (2, 3, 4, 5, 6)}
    if choose.random() < 0.1:
        sizes[choose.randint(2, 6)] = choose.choice((0, 1))
    return [torch.randn([sizes.get(size, size) for size in x.shape]) for x in args]


def make(seed: int) -> tuple[Callable[..., Any], list[torch.Tensor], str]:
    """A program, its arguments and its text."""
    made = Program(seed)
    text = made.text()
    names: dict[str, Any] = {"torch": torch}
    exec(compile(text, f"<parts {seed}>", "exec"), names)
    return names["program"], list(made.args.values()), text
