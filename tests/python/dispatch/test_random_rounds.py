"""Random loops of Python over a size: what rounds hand on, swap, append, write and ask is drawn.

Some of them one program serves for any number of rounds, others are a program for each. All are right.
"""

from __future__ import annotations

import random
import warnings
from typing import Any

import torch

from fastjit import fastjit
from helpers import outcome

PROGRAMS = 80
LENGTHS = (10, 12, 9, 20, 14, 7, 15, 40, 3, 2, 1, 11, 30)
NAMES = {
    "torch": torch,
    "W": torch.randn(4, 4, generator=torch.Generator().manual_seed(1)) / 3,
    "V": torch.randn(60, 4, generator=torch.Generator().manual_seed(2)),
}


class Drawn:
    """The text of a function `f(x, h)` with one loop."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        draw = self.random
        self.is_plain = draw.random() < 0.5
        self.states = ["a", "b", "c"][: draw.randint(1, 3)]
        self.lists = ["outs", "more"][: draw.randint(0, 2)]
        self.count = draw.choice(["0", "n", "x.size(1)", "1.5"]) if draw.random() < 0.25 and not self.is_plain else ""
        self.out = draw.random() < 0.3
        lines = ["n = x.size(0)"]
        for name in self.states:
            lines.append(f"{name} = " + draw.choice(["h", "h + 1", "x[0] * 2", "torch.zeros_like(h)", "h * 0.5"]))
        lines += [f"{name} = " + draw.choice(["[]", "[]", "[h]"]) for name in self.lists]
        if self.count:
            lines.append(f"k = {self.count}")
        if self.out:
            lines.append("out = torch.zeros(n, 3, 4)")
        stop = draw.choice(["n", "n", "n", "n - 1", "x.shape[0]", "len(x)", "n // 2"])
        lines.append(f"for t in range({draw.choice(['', '', '', '1, ', '2, '])}{stop}):")
        lines += ["    " + self.statement() for _ in range(draw.randint(1, 5))]
        lines.append(f"return ({', '.join(self.results())},)")
        self.text = "def f(x, h):\n    " + "\n    ".join(lines)

    def index(self) -> str:
        if self.is_plain:
            return self.random.choice(["t", "t", "t", "n - 1 - t"])
        return self.random.choice(["t", "t", "t", "t", "n - 1 - t", "t - 1", "t // 2", "-1 - t", "0", "t + 1", "2"])

    def value(self, depth: int = 0) -> str:
        draw, p = self.random, self.random.random()
        if depth > 1 or p < 0.35:
            return draw.choice(self.states)
        if p < 0.6:
            return f"x[{self.index()}]" if p < 0.55 else f"V[{self.index()}]"
        if p < 0.66 and self.count:
            return f"({self.value(depth + 1)} * k)"
        if p < 0.7:
            return f"x[{self.index()}:{self.index()} + 2].sum(0)"
        if p < 0.84:
            return f"torch.tanh({self.value(depth + 1)} @ W)"
        return f"({self.value(depth + 1)} {draw.choice('+-*')} {self.value(depth + 1)})"

    def statement(self) -> str:
        draw, p = self.random, self.random.random()
        name = draw.choice(self.states)
        if self.is_plain and not 0.65 < p < 0.86:
            p = 0.0
        if p < 0.58 and len(self.states) > 1 and p > 0.5:
            one, other = draw.sample(self.states, 2)
            return f"{one}, {other} = {other}, {one}"
        if 0.58 < p < 0.65:
            return f"{name} = {draw.choice(self.states) if p < 0.62 else self.value()}"
        if 0.65 < p < 0.8 and self.lists:
            return f"{draw.choice(self.lists)}.append({self.value()})"
        if 0.8 < p < 0.86 and self.out:
            return f"out[{draw.choice(['t', 't', 'n - 1 - t', '0'])}] = {self.value()}"
        if 0.86 < p < 0.9 and self.count:
            return draw.choice(["k += 1", "k = k + 2", "k = t", "k = x.size(1)"])
        if 0.9 < p < 0.95:
            asked = ["t > 0", "t == 0", "t == 13", "t % 2", "t < n - 1", "n > 12", "t >= 2"]
            return f"if {draw.choice(asked + ['k > 20'] * bool(self.count))}: {name} = {self.value()}"
        return f"{name} = torch.tanh({self.value()}) * 0.7 + {self.value()} * 0.1"

    def results(self) -> list[str]:
        draw = self.random
        given = draw.sample(self.states, draw.randint(1, len(self.states)))
        for name in self.lists:
            forms = ["torch.stack({0})", "torch.stack({0}, 1) if len({0}) else h", "torch.stack([h, *{0}])"]
            forms += ["torch.cat({0}, -1)", "torch.stack({0}) if {0} else h", "{0}[-1:]"]
            given.append(draw.choice(forms).format(name))
        if self.is_plain:
            return given + ["out"] * self.out
        given += [one for one in ("out", "k", "t", "x[t] * 2") if draw.random() < 0.4 and (one != "k" or self.count)]
        return [one for one in given if one != "out" or self.out]


def is_same(got: Any, wanted: Any) -> bool:
    if type(got) is not type(wanted):
        return False
    if isinstance(wanted, torch.Tensor):
        is_like = got.shape == wanted.shape and got.dtype == wanted.dtype
        return is_like and torch.allclose(got, wanted, rtol=1e-4, atol=1e-4, equal_nan=True)
    if isinstance(wanted, (tuple, list)):
        return len(got) == len(wanted) and all(map(is_same, got, wanted))
    return bool(got == wanted)


def test_random_loops_are_right_at_any_length() -> None:
    served = 0
    for seed in range(PROGRAMS):
        text, names = Drawn(seed).text, dict(NAMES)
        exec(text, names)
        fn = names["f"]
        fast = fastjit(fn)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for n in LENGTHS:
                generator = torch.Generator().manual_seed(n)
                x, h = torch.randn(n, 3, 4, generator=generator), torch.randn(3, 4, generator=generator)
                wanted, got = outcome(fn, x, h), outcome(fast, x, h)
                assert is_same(got, wanted), f"seed {seed}, length {n}:\n{text}"
        served += fast.stats().hits > len(LENGTHS) // 2
    assert served >= 4
