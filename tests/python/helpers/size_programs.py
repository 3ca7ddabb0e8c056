"""Random programs whose Python code reads sizes, computes with them and gives them back to operators."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Sizes = dict[str, int]
BASE: Sizes = {"B": 4, "N": 6, "C": 8, "D": 5}


def inputs(sizes: Sizes, seed: int) -> list[Tensor]:
    """x and y of B x N x C, w of C x D, z of B x N, all of float64."""
    g = torch.Generator().manual_seed(seed)
    b, n, c, d = (sizes[k] for k in "BNCD")
    shapes = [(b, n, c), (b, n, c), (c, d), (b, n)]
    return [torch.randn(shape, generator=g, dtype=torch.float64) for shape in shapes]


class Maker:
    """Writes a program statement by statement, and runs it at BASE to see what goes."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.lines: list[str] = []
        self.scope: dict[str, Any] = {"torch": torch, "F": F}
        self.scope |= dict(zip("xywz", inputs(BASE, seed), strict=True))
        self.made = 0

    def names(self, kind: type) -> list[str]:
        return [k for k, v in self.scope.items() if isinstance(v, kind) and not isinstance(v, bool)]

    def tensor(self, rank: int | None = None, least: int = 0) -> str:
        fitting = [
            k
            for k in self.names(Tensor)
            if (rank is None or self.scope[k].dim() == rank) and self.scope[k].dim() >= least
        ]
        return self.rng.choice(fitting) if fitting else "x"

    def dim(self, t: str) -> int:
        rank = self.scope[t].dim()
        d = self.rng.randrange(rank) if rank else 0
        return d if self.rng.random() < 0.7 else d - rank

    def size(self, t: str, d: int) -> str:
        """An expression for one of its sizes."""
        value = self.scope[t].shape[d]
        ways = [f"{t}.shape[{d}]", f"{t}.size({d})"]
        ways += [k for k in self.names(int) if self.scope[k] == value]
        ways += [f"len({t})"] if d == 0 else []
        return self.rng.choice(ways)

    def int_(self) -> str:
        """Some int that follows from sizes."""
        known = self.names(int)
        if known and self.rng.random() < 0.6:
            return self.rng.choice(known)
        t = self.tensor(least=1)
        return self.size(t, self.rng.randrange(self.scope[t].dim()))

    def new(self, prefix: str) -> str:
        self.made += 1
        return f"{prefix}{self.made}"

    def int_statement(self) -> str:
        rng, name = self.rng, self.new("n")
        t = self.tensor(least=1)
        if rng.random() < 0.3 and self.scope[t].dim() > 1:
            return ", ".join(self.new("n") for _ in self.scope[t].shape) + f" = {t}.shape"
        a, b = self.int_(), self.int_()
        small = rng.choice([1, 2, 3, 4])
        return name + " = " + rng.choice(
            [
                f"{a} * {b}", f"{a} + {small}", f"{a} - {small}", f"{a} // {small}", f"{a} % {small + 1}",
                f"-{a}", f"max({a}, {small})", f"min({a}, {b})", f"{t}.numel()", f"({a} + {small}) // {small}",
                f"int({a})", f"{a} - {b}", f"{t}.shape[{self.dim(t)}]", f"{a}", f"{a} * {small}",
            ]
        )  # fmt: skip

    def view_sizes(self, t: str) -> str:
        shape = self.scope[t].shape
        parts = [self.size(t, d) for d in range(len(shape))]
        rng = self.rng
        if len(parts) > 1 and rng.random() < 0.5:
            i = rng.randrange(len(parts) - 1)
            parts[i : i + 2] = [f"{parts[i]} * {parts[i + 1]}"]
        elif parts and rng.random() < 0.5:
            i = rng.randrange(len(parts))
            f = rng.choice([2, 3, 4])
            if shape[i] % f == 0:
                parts[i : i + 1] = (
                    [f"{f}", f"{parts[i]} // {f}"] if rng.random() < 0.5 else [f"{parts[i]} // {f}", f"{f}"]
                )
        if parts and rng.random() < 0.3:
            parts[rng.randrange(len(parts))] = "-1"
        return ", ".join(parts)

    def index(self, t: str) -> str:
        rng = self.rng
        items = []
        for d in range(rng.randint(1, max(self.scope[t].dim(), 1))):
            way = rng.randrange(9)
            if way == 0:
                items.append(str(rng.randint(-2, 2)))
            elif way == 1:
                items.append(f"{self.size(t, d)} - 1")
            elif way < 4:
                items.append(":")
            elif way == 4:
                items.append(f":{rng.choice([self.int_(), str(rng.randint(-3, 7))])}")
            elif way == 5:
                items.append(f"{rng.choice([self.int_(), str(rng.randint(-3, 3))])}:")
            elif way == 6:
                items.append(f"{self.size(t, d)} // 2:{self.size(t, d)}")
            elif way == 7:
                items.append(f"1:{self.int_()}:{rng.choice(['', 2])}")
            else:
                items.append("None")
        if rng.random() < 0.2:
            items.insert(rng.randrange(len(items) + 1), "...")
        return ", ".join(items)

    def tensor_statement(self) -> str:
        rng, t = self.rng, self.tensor()
        u, n = self.tensor(), self.int_()
        d = self.dim(t)
        m3 = self.tensor(rank=3)
        makers: list[Callable[[], str]] = [
            lambda: f"{t}.view({self.view_sizes(t)})",
            lambda: f"{t}.reshape({self.view_sizes(t)})",
            lambda: f"{t}.reshape(({self.view_sizes(t)},))",
            lambda: f"{t}[{self.index(t)}]",
            lambda: f"{t}[{self.index(t)}] * 2",
            lambda: f"{t}.narrow({d}, {rng.choice(['0', '1'])}, {self.size(t, d)} - 1)",
            lambda: f"{t}.transpose({d}, {self.dim(t)})",
            lambda: f"{t} / {n}",
            lambda: f"{t} * (1 / {n})",
            lambda: f"{t} * {n} + {rng.choice(['0.5', n])}",
            lambda: f"{t} * {n} ** -0.5",
            lambda: f"{t}.sum({d}) / {self.size(t, d)}",
            lambda: f"{t}.mean({d}, keepdim=True)",
            lambda: f"torch.zeros({n}, 3, dtype=torch.float64)",
            lambda: f"torch.ones({t}.shape, dtype=torch.float64) + {t}",
            lambda: f"{t}.new_zeros({t}.size())",
            lambda: f"{t}.new_full(({n},), 2.5)",
            lambda: f"torch.arange({n}, dtype=torch.float64)",
            lambda: f"torch.arange(1, {n} + 1) * 2",
            lambda: f"{t} + torch.arange({self.size(t, -1) if self.scope[t].dim() else 3})",
            lambda: f"torch.full(({n}, {self.int_()}), {n}).double()",
            lambda: f"{t}.expand(2, *{t}.shape)",
            lambda: f"{t}.unsqueeze(0).expand({n}, {', '.join(['-1'] * self.scope[t].dim())})",
            lambda: f"{t} + {u}",
            lambda: f"torch.cat([{t}, {t}], {d})",
            lambda: f"torch.cat([{t}, {t}.narrow({d}, 0, {self.size(t, d)} // 2)], {d})",
            lambda: f"torch.stack([{t}, {t} * 2], {d})",
            lambda: f"{t}.softmax({d})",
            lambda: f"{t}.tanh() - {t}",
            lambda: f"{m3} @ w",
            lambda: f"F.linear({m3}, w.t())",
            lambda: f"F.linear({m3}, w.t(), w[0])",
            lambda: f"{m3} @ {m3}.transpose(1, 2)",
            lambda: f"({m3}.unsqueeze(1) @ {m3}.unsqueeze(1).transpose(-1, -2)).relu()",
            lambda: f"F.layer_norm({t}, ({self.size(t, -1) if self.scope[t].dim() else 1},))",
            lambda: f"F.pad({t}, (1, {rng.randint(0, 2)}))",
            lambda: f"{t}.flatten({rng.choice([0, 1])})",
            lambda: f"{t}.unflatten({d}, (-1, 2))",
            lambda: f"{t}.repeat(2, {', '.join(['1'] * max(self.scope[t].dim() - 1, 1))})",
            lambda: f"{t}.split({n}, {d})[{rng.choice([0, -1])}]",
            lambda: f"torch.cat({t}.split([{n}, {self.size(t, d)} - {n}], {d}), {d})",
            lambda: f"{t}.chunk({rng.randint(1, 3)}, {d})[{rng.choice([0, -1])}] * 2",
            lambda: f"torch.cat({t}.tensor_split({rng.randint(1, 3)}, {d})[::-1], {d})",
            lambda: f"{t}.roll({rng.choice([-2, -1, 1, 3])}, {d})",
            lambda: f"F.pad({t}, (0, 0, {rng.randint(-1, 2)}, {n}))",
            lambda: f"{t}[torch.arange({n}) % {self.size(t, 0)}]",
            lambda: f"{t}.repeat_interleave({rng.randint(1, 3)}, {d})",
            lambda: f"torch.einsum('bij,bkj->bik', {m3}, {m3})",
            lambda: f"F.interpolate({m3}, scale_factor={rng.choice([2.0, 0.5, 3.0])})",
            lambda: f"F.interpolate({m3}, size={n})",
            lambda: f"{t} + torch.linspace(0, 1, {n}, dtype=torch.float64).sum()",
            lambda: f"{t}.clamp(max={n})",
            lambda: f"F.scaled_dot_product_attention({m3}, {m3}, {m3})",
            lambda: f"{t} if {self.test()} else {u}",
            lambda: f"{t}.mul({n})",
        ]
        return f"{self.new('t')} = {rng.choice(makers)()}"

    def test(self) -> str:
        rng = self.rng
        a, b = self.int_(), rng.choice([self.int_(), str(rng.randint(0, 8))])
        t, u = self.tensor(), self.tensor()
        return rng.choice(
            [f"{a} > {b}", f"{a} == {b}", f"{a} % 2 == 0", f"{t}.shape == {u}.shape", 
             f"{t}.shape[-1:] != {u}.shape[-1:]",
             f"{a} <= {b}", f"{a}", f"{t}.dim() > 1 and {a} > 2"]
        )  # fmt: skip

    def statement(self) -> list[str]:
        rng = self.rng
        if rng.random() < 0.35:
            return [self.int_statement()]
        if rng.random() < 0.1:
            t = self.tensor()
            return [f"if {self.test()}:", f"    {t} = {t} * 2", "else:", f"    {t} = {t} + 1"]
        if rng.random() < 0.05:
            t = self.tensor()
            return [f"for i in range(min({self.int_()}, 3)):", f"    {t} = {t} + i"]
        return [self.tensor_statement()]

    def make(self) -> str:
        for _ in range(self.rng.randint(4, 14)):
            lines = self.statement()
            trial = dict(self.scope)
            try:
                exec("\n".join(lines), trial)
            except Exception:
                continue
            big = any(isinstance(v, Tensor) and v.numel() > 20_000 for v in trial.values())
            if big or any(isinstance(v, Tensor) and v.dim() > 5 for v in trial.values()):
                continue
            self.scope = {k: v for k, v in trial.items() if k != "__builtins__"}
            self.lines += lines
        results = [*[k for k in self.names(Tensor) if k not in "xywz"][-4:], *self.names(int)[-2:], "x", "x.shape"]
        body = "".join(f"    {line}\n" for line in self.lines)
        return f"def f(x, y, w, z):\n{body}    return {', '.join(results)},\n"
