"""Random programs on tensors whose sizes depend on data, against eager: `FOUND_SIZES=seed:count` runs others."""

from __future__ import annotations

import os
import random

import pytest
import torch

from fastjit import fastjit
from helpers import assert_same

BEGIN, COUNT = (int(part) for part in os.environ.get("FOUND_SIZES", "0:60").split(":"))


class Maker:
    """Lines of a function of x (rows by 4), m (rows) and k. `rows` are names of tensors of 4 columns by their size: an
    expression that is equal for those that may be added up."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.rows = {"x": "n", "x0": "n"}
        self.vectors = {"m": "n"}
        self.results: list[str] = []
        self.count = 0

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def add(self, line: str) -> None:
        self.lines.append("    " + line)

    def any_rows(self) -> str:
        return self.random.choice(list(self.rows))

    def alike(self, name: str) -> str:
        return self.random.choice([one for one, size in self.rows.items() if size == self.rows[name]])

    def pick(self) -> None:
        source, new = self.any_rows(), self.name()
        column, bound = self.random.randrange(4), self.random.choice(["0", "0.3", "-0.5", "k"])
        size = f"{self.rows[source]}/{source}.{column}.{bound}"
        if self.random.random() < 0.5:
            self.add(f"{new} = {source}[{source}[:, {column}] > {bound}]")
        else:
            self.add(f"{new}i = ({source}[:, {column}] > {bound}).nonzero()[:, 0]")
            self.add(f"{new} = {source}[{new}i] * 1.5")
        self.rows[new] = size

    def compute(self) -> None:
        a, new = self.any_rows(), self.name()
        b = self.alike(a)
        form = self.random.choice(
            [
                "{a} * 2 - {b}",
                "({a} + {b}).tanh()",
                "{a} - {a}.mean(0)",
                "torch.where({a} > {b}, {a}, k)",
                "{a}.flip(0)",
                "{a} * torch.arange({a}.shape[1])",
                "{a} / ({b}.abs() + 1)",
                "{a}.t().contiguous().t()",
                "{a}.exp().clamp(max=3)",
            ]
        )
        self.add(f"{new} = {form.format(a=a, b=b)}")
        self.rows[new] = self.rows[a]

    def join(self) -> None:
        parts, new = [self.any_rows() for _ in range(self.random.choice([2, 2, 3]))], self.name()
        self.add(f"{new} = torch.cat(({', '.join(parts)}), 0)")
        self.rows[new] = "+".join(self.rows[part] for part in parts)

    def write(self) -> None:
        a, new = self.any_rows(), self.name()
        self.add(f"{new} = {a} * 1.25" if self.random.random() < 0.5 else f"{new} = torch.cat(({a}, {a} + 1))")
        self.rows[new] = self.rows[a] if "*" in self.lines[-1] else f"{self.rows[a]}+{self.rows[a]}"
        for _ in range(self.random.randrange(1, 3)):
            self.add(
                f"{new}"
                + self.random.choice(
                    [
                        "[:, 1] += 2",
                        "[..., 0::2].clamp_(0, 1)",
                        "[0] = 3",
                        "[-1] *= k",
                        ".mul_(0.5)",
                        "[:, 0].neg_()",
                        f"[{new}[:, 2] > 0] = 0",
                    ]
                )
            )

    def take(self) -> None:
        a, new, n = self.any_rows(), self.name(), self.random.choice([1, 3, 5, 100])
        if self.random.random() < 0.5:
            self.add(f"{new} = {a}[:{n}]")
        else:
            self.add(f"{new} = {a}[{a}[:, 1].argsort(descending=True)[:{n}]]")
        self.rows[new] = f"min({self.rows[a]},{n})"

    def total(self) -> None:
        a = self.any_rows()
        self.results.append(
            self.random.choice(
                [f"{a}.abs().sum()", f"{a}.abs().sum(1) * 2", f"{a}.square().mean(0)", f"({a} * 2).abs().sum(0)"]
            )
        )

    def read(self) -> None:
        """An int that Python reads of a size, and what is made with it."""
        a, new, n = self.any_rows(), self.name(), f"n{self.count}"
        size = self.rows[a]
        self.add(
            f"{n} = " + self.random.choice(["len({a})", "{a}.shape[0]", "{a}.size(0)", "{a}.shape[-2]"]).format(a=a)
        )
        kind = self.random.randrange(5)
        if kind == 0:
            form = self.random.choice(
                [
                    "torch.zeros({n}, 4) + {a}",
                    "{a} / ({n} + 1)",
                    "torch.arange({n}).unsqueeze(1) * 0.01 + {a}",
                    "{a}.view({n}, -1) * 0.5",
                    "{a} * (1.0 / ({n} + 2))",
                    "x.new_full(({n}, 4), 0.5).cumsum(0) - {a}",
                    "x.new_ones(4).expand({n}, -1) - {a}",
                ]
            )
            self.add(f"{new} = {form.format(a=a, n=n)}")
        elif kind == 1:
            self.add(f"{new} = {a}[: {n} // 2] * 2")
            size = f"({size})//2"
        elif kind == 2:
            self.add(f"{new} = torch.cat((torch.ones({n}, 4), {a}))")
            size = f"{size}+{size}"
        elif kind == 3:
            asks = self.random.choice(
                [f"{n} == 0", f"{n} > 12", f"{n} % 2 == 0", f"{n} < len(x)", f"{n} > 7 and {n} < 20"]
            )
            self.add(f"{new} = {a} * 2 if {asks} else {a} / ({n} + 1)")
        else:
            self.add(f"{new} = {a} + 1 / ({n} + 1)")
            self.results.append(self.random.choice([n, f"{n} * 2 + 1", f"{n} // 3", f"{a}.numel() - 1", f"{a}.shape"]))
        self.rows[new] = size

    def text(self, reads: bool = False) -> str:
        self.add("x0 = x * 2 + m.unsqueeze(1)")
        self.pick()
        steps = [self.pick, self.compute, self.compute, self.join, self.write, self.take, self.total]
        steps += [self.read] * 4 if reads else []
        for _ in range(self.random.randrange(3, 12)):
            self.random.choice(steps)()
        for name in self.random.sample(list(self.rows), min(3, len(self.rows))):
            self.results.append(name)
        return "def f(x, m, k):\n" + "\n".join(self.lines) + f"\n    return {', '.join(self.results)},\n"


def outcome(call, *args):
    try:
        return call(*args)
    except (RuntimeError, IndexError) as error:
        return str(error).splitlines()[0]


def check(seed: int, text: str) -> None:
    space = {"torch": torch}
    exec(compile(text, f"<found sizes {seed}>", "exec"), space)
    f = space["f"]
    fast = fastjit(f)
    generator = torch.Generator().manual_seed(seed)
    for call in range(7):
        rows = (30, 30, 30, 41, 30, 55, 30)[call]
        shift = (0, 0, 0.2, 0, -3, 0, 0)[call]
        x = torch.randn(rows, 4, generator=generator) + shift
        m = torch.randn(rows, generator=generator)
        mine, eagers = outcome(fast, x.clone(), m, 0.25), outcome(f, x.clone(), m, 0.25)
        if isinstance(eagers, str):
            assert mine == eagers, text
        else:
            for got, expected in zip(mine, eagers, strict=True):
                try:
                    assert_same(got, expected)
                except AssertionError as error:
                    raise AssertionError(f"call {call}\n{text}") from error
    assert set(fast.stats().fallbacks) <= {"an operator raised"} or fast.stats().hits > 0, (fast.stats(), text)


@pytest.mark.parametrize("seed", range(BEGIN, BEGIN + COUNT))
def test_a_random_program_is_eagers(seed):
    check(seed, Maker(seed).text())


@pytest.mark.parametrize("seed", range(BEGIN, BEGIN + COUNT))
def test_a_random_program_that_reads_sizes_is_eagers(seed):
    check(seed, Maker(seed).text(reads=True))
