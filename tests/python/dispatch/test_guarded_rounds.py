"""Loops of Python that read a value in each round: their rounds are one loop of the program, with a guard in it."""

from __future__ import annotations

import copy
import random
import re

import pytest
import torch
from torch import Tensor, nn

from fastjit import fastjit, of

ROUNDS = 24


def loops_with_guards(compiled: object) -> int:
    """How many loops of the plan last called hold a guard."""
    plan = str(of(compiled).inspect("plan"))
    return len(re.findall(r"^loop \d+\n(?:    .*\n)*?    guard \d+\+\d+\*round", plan, re.MULTILINE))


class Decoder(nn.Module):
    """Greedy: goes on until it finds token 0."""

    def __init__(self, rounds: int = ROUNDS, hidden: int = 24, words: int = 40) -> None:
        super().__init__()
        self.rounds = rounds
        self.words = nn.Embedding(words, hidden)
        self.cell = nn.GRUCell(hidden, hidden)
        self.out = nn.Linear(hidden, words)

    def forward(self, h: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        found = torch.zeros(self.rounds, h.shape[0], dtype=torch.long)
        token = torch.ones(h.shape[0], dtype=torch.long)
        for at in range(self.rounds):
            h = self.cell(self.words(token), h)
            token = (self.out(h) + bias[at]).argmax(1)
            found[at] = token
            if not (token.max() > 0).item():
                break
        return found, h


def bias_that_stops(at: int | None, rounds: int = ROUNDS, batch: int = 1) -> Tensor:
    bias = torch.zeros(rounds, batch, 40)
    for i in range(rounds):
        bias[i, :, 0 if i == at else 1 + i % 7] = 1e4
    return bias


def check(compiled: object, eager: object, *args: object) -> None:
    got, want = compiled(*copy.deepcopy(args)), eager(*copy.deepcopy(args))
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_decoder_is_one_loop_with_guards(batch: int) -> None:
    model = Decoder()
    compiled = fastjit(copy.deepcopy(model))
    h = torch.randn(batch, 24)
    for _ in range(4):
        check(compiled, model, h, bias_that_stops(None, batch=batch))
    stats = of(compiled).stats()
    assert (stats.hits, dict(stats.fallbacks)) == (3, {})
    assert loops_with_guards(compiled) == 1


def test_each_end_is_a_variant_of_its_own() -> None:
    model = Decoder()
    compiled = fastjit(copy.deepcopy(model))
    h = torch.randn(1, 24)
    ends = [None, 7, 20, 0, ROUNDS - 1]
    for end in ends:
        check(compiled, model, h, bias_that_stops(end))
    hits = of(compiled).stats().hits
    for end in [*reversed(ends), *ends]:
        check(compiled, model, h, bias_that_stops(end))
    assert of(compiled).stats().hits == hits + 2 * len(ends)
    assert dict(of(compiled).stats().fallbacks) == {}


def test_a_run_that_ends_early_writes_nothing() -> None:
    """What the function writes to its argument is written once no guard can fail any more."""

    def walk(x: Tensor, out: Tensor, limit: Tensor) -> Tensor:
        for at in range(ROUNDS):
            x = x * 0.75 + 0.25
            x = torch.where(x > 1, x - 0.5, x) * 0.75
            x = x.abs() * 0.5 + x * 0.25 + 0.125
            x = x * 0.5 + x * x * 0.125
            out[at] = x
            if (x.max() > limit[at]).item():
                break
        return x + 1

    compiled = fastjit(walk)
    limit = torch.full((ROUNDS,), 1e9)
    x = torch.rand(50)
    for _ in range(3):
        outs = torch.zeros(2, ROUNDS, 50).unbind()
        assert torch.equal(compiled(x, outs[0], limit), walk(x, outs[1], limit))
        assert torch.equal(*outs) and outs[0]._version == outs[1]._version
    assert of(compiled).stats().hits == 2
    assert loops_with_guards(compiled) == 1
    limit[11] = -1
    for _ in range(3):
        outs = [torch.zeros(ROUNDS, 50) for _ in range(2)]
        assert torch.equal(compiled(x, outs[0], limit), walk(x, outs[1], limit))
        assert torch.equal(*outs)
    assert dict(of(compiled).stats().fallbacks) == {}


def test_several_guards_of_a_round_and_other_values_in_each() -> None:
    """The values that a loop expects are those of its rounds: which of two ways each took."""

    rounds = 15  # values that differ from call to call: two a round

    def walk(x: Tensor, turns: Tensor, ends: Tensor) -> Tensor:
        taken = 0
        for at in range(rounds):
            for _ in range(3):
                x = x * 0.75 + 0.5
                x = torch.where(x > 1, x - 0.25, x) + x * x * 0.125
                x = x.abs() * 0.5 + x * 0.25 + 0.0625
            taken += 1 if (x.min() < turns[at]).item() else 2
            if (x.max() > ends[at]).item():
                break
        return x + taken

    compiled = fastjit(walk)
    x = torch.rand(40)
    ends = torch.full((rounds,), 1e9)
    ways = [torch.where(torch.arange(rounds) % 3 == i, 1e9, -1e9) for i in range(3)]
    for turns in [*ways, *ways, *ways]:
        assert torch.equal(compiled(x, turns, ends), walk(x, turns, ends))
    stats = of(compiled).stats()
    assert stats.hits == 6 and dict(stats.fallbacks) == {}
    assert loops_with_guards(compiled) == 1


def test_loops_over_a_size_that_read_values() -> None:
    """Another number of rounds reads another number of values: each is a program of its own."""

    def walk(x: Tensor, h: Tensor) -> Tensor:
        for at in range(x.shape[0]):
            for _ in range(3):
                h = h * 0.75 + x[at] * 0.25
                h = torch.where(h > 1, h - 0.25, h) + h * h * 0.125
            if (h.max() > 100).item():
                break
        return h

    compiled = fastjit(walk)
    h = torch.rand(30)
    for rounds in [20, 25, 31, 20, 25, 31, 44, 12, 44, 12]:
        x = torch.rand(rounds, 30)
        assert torch.equal(compiled(x, h), walk(x, h))
    x = torch.rand(25, 30)
    x[9] = 1e4
    for _ in range(3):
        assert torch.equal(compiled(x, h), walk(x, h))
    assert of(compiled).stats().hits >= 6 and dict(of(compiled).stats().fallbacks) == {}


OPERATIONS = [
    lambda x, y: x * 0.75 + y,
    lambda x, y: x - y * 0.5,
    lambda x, y: torch.where(x > y, x, y * 0.5),
    lambda x, y: x.abs() + y * 0.25,
    lambda x, y: torch.maximum(x, y) * 0.5 + 0.25,
    lambda x, y: x * y * 0.125 + 0.5,
]


@pytest.mark.parametrize("seed", range(12))
def test_random_rounds_with_a_guard(seed: int) -> None:
    of_seed = random.Random(seed)
    steps = [of_seed.choice(OPERATIONS) for _ in range(of_seed.randint(8, 14))]
    asked = of_seed.randrange(len(steps))
    rows, rounds = of_seed.choice([1, 5, 33]), of_seed.choice([20, 31])

    def walk(x: Tensor, y: Tensor, limits: Tensor) -> tuple[Tensor, Tensor]:
        seen = []
        for at in range(rounds):
            for i, step in enumerate(steps):
                x, y = step(x, y), x * 0.5
                if i == asked and (x.max() > limits[at]).item():
                    return x, y
            seen.append(y)
        return x, torch.stack(seen)

    compiled = fastjit(walk)
    x, y = torch.rand(rows, 8), torch.rand(rows, 8)
    never = torch.full((rounds,), float("inf"))
    early = never.clone()
    early[of_seed.randrange(rounds)] = -1
    for limits in [never, never, early, never, early, early, never]:
        for one, other in zip(compiled(x, y, limits), walk(x, y, limits), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    stats = of(compiled).stats()
    assert (stats.hits, dict(stats.fallbacks)) == (5, {})
    assert loops_with_guards(compiled) == 1
