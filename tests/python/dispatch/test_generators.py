"""Generators of torch that a call seeds, saves and puts back: a program does so in the order of what draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fastjit
from helpers import assert_same

X = torch.arange(12.0).reshape(3, 4)


def agree(fast: Any, fn: Callable[..., Any], calls: int) -> None:
    """From each of so many seeds on, results and the state that is left are eager's."""
    for seed in range(calls):
        torch.manual_seed(seed)
        expected, after = fn(X), torch.get_rng_state()
        torch.manual_seed(seed)
        assert_same(fast(X), expected, exact=True)
        assert torch.equal(torch.get_rng_state(), after)


def seeds(x: Tensor) -> Tensor:
    y = torch.rand(4)
    torch.manual_seed(3)
    return x * y + torch.rand(4)


def saves(x: Tensor) -> tuple[Tensor, Tensor]:
    state = torch.get_rng_state()
    y = x + torch.rand(4)
    torch.set_rng_state(state)
    return y, y * torch.rand(4)


def forks(x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        y = x + torch.randn(4)
    return y * torch.rand(4)


def drops(x: Tensor) -> Tensor:
    before = torch.get_rng_state()
    torch.manual_seed(5)
    y = torch.nn.functional.dropout(x.exp(), 0.5, True)
    torch.random.set_rng_state(before)
    return y.tanh()


def keeps(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * torch.rand(4)
    return y, torch.get_rng_state()


@pytest.mark.parametrize("fn", [seeds, saves, forks, drops, keeps])
def test_state_is_left_as_eager_leaves_it(fn: Callable[..., Any]) -> None:
    fast = fastjit.jit(fn)
    agree(fast, fn, 6)
    assert fast.stats().fallbacks == {}
    assert fast.stats().hits >= 4, fast.stats()


def test_the_users_own_generator() -> None:
    def drawn(x: Tensor, g: torch.Generator) -> Tensor:
        state = g.get_state()
        y = x + torch.rand(4, generator=g)
        g.set_state(state)
        y = y * torch.rand(4, generator=g)
        g.manual_seed(8)
        return y + torch.randn(4, generator=g)

    eager, own = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    fast = fastjit.jit(drawn)
    for call in range(4):
        eager.manual_seed(call)
        own.manual_seed(call)
        assert_same(fast(X, own), drawn(X, eager), exact=True)
        assert torch.equal(own.get_state(), eager.get_state())
    assert fast.stats().hits == 3 and fast.stats().fallbacks == {}


def test_another_seed_is_another_variant() -> None:
    def seeded(x: Tensor, seed: int) -> Tensor:
        torch.manual_seed(seed)
        return x + torch.rand(4)

    fast = fastjit.jit(seeded)
    for seed in (1, 2000, -3, 1, 2000, -3):
        assert_same(fast(X, seed), seeded(X, seed), exact=True)
    assert fast.stats().hits == 3


def test_a_call_that_raises_leaves_the_state_of_eager() -> None:
    def raised(x: Tensor, i: Tensor) -> Tensor:
        torch.manual_seed(4)
        y = x + torch.rand(4)
        return y.index_select(0, i)

    fast = fastjit.jit(raised)
    good = torch.tensor([0, 2])
    for _ in range(3):
        assert_same(fast(X, good), raised(X, good), exact=True)
    states = []
    for run in (raised, fast):
        torch.manual_seed(9)
        with pytest.raises((IndexError, RuntimeError)):
            run(X, torch.tensor([7]))
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


def test_values_that_are_read_behind_a_seed() -> None:
    def read(x: Tensor) -> Tensor:
        state = torch.get_rng_state()
        torch.manual_seed(21)
        y = x + torch.rand(4)
        torch.set_rng_state(state)
        return y * 2 if bool(torch.rand(()) < 0.5) else y - 1

    fast = fastjit.jit(read)
    agree(fast, read, 20)
    assert fast.stats().hits == 18, fast.stats()


def test_verified_calls() -> None:
    fast = fastjit.jit(forks, verify=1.0)
    agree(fast, forks, 4)
    assert fast.stats().verified > 0 and fast.stats().mismatches == 0


def test_a_replaced_manual_seed_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = fastjit.jit(seeds)
    for _ in range(3):
        fast(X)
    calls: list[int] = []
    monkeypatch.setattr(torch, "manual_seed", calls.append)
    fast(X)
    assert calls == [3]


def test_a_generator_made_inside_stays_eager() -> None:
    def made(x: Tensor) -> Tensor:
        g = torch.Generator()
        g.manual_seed(2)
        return x + torch.rand(4, generator=g)

    fast = fastjit.jit(made, on_unsupported="eager")
    for _ in range(3):
        assert_same(fast(X), made(X), exact=True)
    assert fast.stats().hits == 0
