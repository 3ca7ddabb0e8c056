"""Generators of torch that a call seeds, saves and puts back: a program does so in the order of what draws."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fastjit
from helpers import assert_same, in_threads

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


def made_and_seeded(x: Tensor) -> Tensor:
    g = torch.Generator("cpu").manual_seed(2)
    return x + torch.rand(4, generator=g) * torch.randn(4, generator=g)


def made_without_a_seed(x: Tensor) -> Tensor:
    return x.relu() + torch.randn(4, generator=torch.Generator())


def made_two(x: Tensor) -> Tensor:
    first, second = torch.Generator(), torch.Generator(device=torch.device("cpu"))
    first.manual_seed(7)
    y = x + torch.rand(4, generator=second)
    y = y * torch.rand(4, generator=first)
    second.manual_seed(7)
    return y - torch.rand(4, generator=second) + torch.rand(4, generator=first)


def drawn_by(g: torch.Generator, like: Tensor) -> Tensor:
    return torch.empty_like(like).normal_(generator=g)


def made_and_passed_on(x: Tensor) -> Tensor:
    g = torch.Generator().manual_seed(11)
    torch.poisson(x.abs(), generator=g)  # how much it draws depends on values
    return drawn_by(g, x) + drawn_by(g, x) * torch.rand(4)


def made_and_set_back(x: Tensor) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(5)
    state = g.get_state()
    y = x + torch.rand(4, generator=g)
    g.set_state(state)
    return y * torch.rand(4, generator=g), g.get_state()


def made_of_a_sequence(x: Tensor) -> Tensor:
    sequence = np.random.SeedSequence(entropy=7, pool_size=8, spawn_key=(1, 2))
    first, second = sequence.generate_state(2)
    for seed in (first, second, *np.random.SeedSequence(3).generate_state(1)):
        x = x + torch.randn(4, generator=torch.Generator().manual_seed(int(seed)))
    return x


MADE = [
    made_and_seeded,
    made_without_a_seed,
    made_two,
    made_and_passed_on,
    made_and_set_back,
    made_of_a_sequence,
]


@pytest.mark.parametrize("fn", MADE)
def test_generators_that_the_call_makes(fn: Callable[..., Any]) -> None:
    fast = fastjit.jit(fn)
    agree(fast, fn, 6)
    assert fast.stats().fallbacks == {}
    assert fast.stats().hits == 5, fast.stats()


@pytest.mark.parametrize("fn", MADE)
def test_verified_generators_that_the_call_makes(fn: Callable[..., Any]) -> None:
    fast = fastjit.jit(fn, verify=1.0)
    agree(fast, fn, 4)
    assert fast.stats().verified > 0 and fast.stats().mismatches == 0


def test_threads_have_generators_of_their_own() -> None:
    def many(x: Tensor) -> Tensor:
        g = torch.Generator().manual_seed(3)
        for _ in range(20):
            x = x + torch.randn(64, 64, generator=g)
        return x

    fast, x = fastjit.jit(many), torch.zeros(64, 64)
    expected = many(x)
    fast(x)

    @torch.no_grad()
    def run() -> None:
        for _ in range(50):
            assert torch.equal(fast(x), expected)

    assert not in_threads(4, run)
    assert fast.stats().hits >= 200 and fast.stats().fallbacks == {}


def test_another_seed_of_a_new_generator_is_another_variant() -> None:
    def seeded(x: Tensor, seed: int) -> Tensor:
        return x + torch.rand(4, generator=torch.Generator().manual_seed(seed))

    def of_entropy(x: Tensor, entropy: int) -> Tensor:
        (seed,) = np.random.SeedSequence(entropy).generate_state(1)
        return seeded(x, int(seed))

    for fn in (seeded, of_entropy):
        fast = fastjit.jit(fn)
        for seed in (1, 2000, 4, 1, 2000, 4):
            assert_same(fast(X, seed), fn(X, seed), exact=True)
        assert fast.stats().hits == 3


def test_seeds_that_each_call_finds_anew() -> None:
    def read(x: Tensor) -> Tensor:
        return x + torch.rand(4, generator=torch.Generator().manual_seed(int(x.sum())))

    def drawn(x: Tensor) -> Tensor:
        g = torch.Generator().manual_seed(random.randrange(3))
        return x + torch.rand(4, generator=g)

    def drawn_by_torch(x: Tensor) -> Tensor:
        g = torch.Generator().manual_seed(int(torch.randint(3, (1,))))
        return x + torch.rand(4, generator=g)

    for fn in (read, drawn, drawn_by_torch):
        fast = fastjit.jit(fn, on_unsupported="eager")
        for call in range(12):
            x = X + call % 4
            random.seed(call)
            torch.manual_seed(call)
            expected = fn(x)
            random.seed(call)
            torch.manual_seed(call)
            assert_same(fast(x), expected, exact=True)


def test_values_that_are_read_of_a_new_generator() -> None:
    def read(x: Tensor) -> Tensor:
        g = torch.Generator().manual_seed(21)
        x = x + torch.rand(4, generator=g)
        x = x * 2 if bool(torch.rand(()) < 0.5) else x - 1
        return x + torch.rand(4, generator=g)

    fast = fastjit.jit(read)
    agree(fast, read, 20)
    assert fast.stats().hits == 18, fast.stats()


def test_a_call_that_raises_behind_a_new_generator() -> None:
    def raised(x: Tensor, i: Tensor) -> Tensor:
        g = torch.Generator().manual_seed(4)
        return (x + torch.rand(4, generator=g)).index_select(0, i)

    fast = fastjit.jit(raised)
    good = torch.tensor([0, 2])
    for _ in range(3):
        assert_same(fast(X, good), raised(X, good), exact=True)
        with pytest.raises((IndexError, RuntimeError)):
            fast(X, torch.tensor([7]))


class Holder:
    generator: torch.Generator | None = None
    items: list[Any] = []  # noqa: RUF012


HOLDER = Holder()


def returned(x: Tensor) -> Any:
    g = torch.Generator().manual_seed(2)
    return x + torch.rand(4, generator=g), g


def returned_in_an_object(x: Tensor) -> Any:
    holder = Holder()
    holder.generator = torch.Generator().manual_seed(2)
    return x + torch.rand(4, generator=holder.generator), holder


def stored(x: Tensor) -> Tensor:
    HOLDER.generator = torch.Generator().manual_seed(2)
    return x + torch.rand(4, generator=HOLDER.generator)


def appended(x: Tensor) -> Tensor:
    HOLDER.items.append(torch.Generator())
    return x + torch.rand(4)


def tagged(x: Tensor) -> Tensor:
    y = x + 1
    y.generator = torch.Generator()  # type: ignore[attr-defined]
    return y


def shown(x: Tensor) -> Tensor:
    return x + len(repr(torch.Generator()))


def addressed(x: Tensor) -> Tensor:
    return x + id(torch.Generator()) % 7


def hashed(x: Tensor) -> Tensor:
    return x + hash(torch.Generator()) % 7


def asked(x: Tensor) -> Tensor:
    return x + torch.Generator().initial_seed() % 5


def seeded_by_the_system(x: Tensor) -> Tensor:
    g = torch.Generator()
    g.seed()
    return x * 0 + torch.rand(4, generator=g) * 0


def copied(x: Tensor) -> Tensor:
    g = torch.Generator().manual_seed(2).clone_state()
    return x + torch.rand(4, generator=g)


def entropy_of_the_system(x: Tensor) -> Tensor:
    (seed,) = np.random.SeedSequence().generate_state(1)
    return x * 0 + torch.rand(4, generator=torch.Generator().manual_seed(int(seed))) * 0


def no_entropy(x: Tensor) -> Tensor:
    (seed,) = np.random.SeedSequence(entropy=None, pool_size=8).generate_state(1)
    return x * 0 + torch.rand(4, generator=torch.Generator().manual_seed(int(seed))) * 0


def spawned(x: Tensor) -> Tensor:
    (seed,) = np.random.SeedSequence(7).spawn(1)[0].generate_state(1)
    return x + torch.rand(4, generator=torch.Generator().manual_seed(int(seed)))


@functools.cache
def noise_of(g: torch.Generator) -> Tensor:
    return torch.rand(4, generator=g)


def cached(x: Tensor) -> Tensor:
    return x + noise_of(torch.Generator().manual_seed(2))


@functools.cache
def number_of(g: torch.Generator) -> int:
    return len(NUMBERED)


NUMBERED: list[int] = []


def numbered(x: Tensor) -> Tensor:
    NUMBERED.append(1)
    return x + number_of(torch.Generator())


ESCAPES = [
    cached,
    numbered,
    returned,
    returned_in_an_object,
    stored,
    appended,
    tagged,
    shown,
    addressed,
    hashed,
    asked,
    seeded_by_the_system,
    copied,
    entropy_of_the_system,
    no_entropy,
    spawned,
]


@pytest.mark.parametrize("fn", ESCAPES)
def test_new_generators_that_others_may_see_stay_eager(fn: Callable[..., Any]) -> None:
    fast = fastjit.jit(fn, on_unsupported="eager")
    for _ in range(3):
        fast(X)
    assert fast.stats().hits == 0, fast.stats()


def test_a_sequence_that_was_there_before_stays_eager() -> None:
    sequence = np.random.SeedSequence(7)

    def drawn(x: Tensor) -> Tensor:
        (seed,) = sequence.generate_state(1)
        return x + torch.rand(4, generator=torch.Generator().manual_seed(int(seed)))

    fast = fastjit.jit(drawn, on_unsupported="eager")
    for call in range(4):
        sequence = np.random.SeedSequence(call)
        assert_same(fast(X), drawn(X), exact=True)
    assert fast.stats().hits == 0


def test_operators_of_others_may_keep_a_generator() -> None:
    kept: list[Any] = []

    with torch.library._scoped_library("fj_generators", "DEF") as library:
        library.define("keep(Tensor x, *, Generator? generator=None) -> Tensor")

        def keep(x: Tensor, *, generator: Any = None) -> Tensor:
            kept.append(generator)
            return x + 1

        library.impl("keep", keep, "CPU")

        def used(x: Tensor) -> Any:
            return torch.ops.fj_generators.keep(x, generator=torch.Generator())

        fast = fastjit.jit(used, on_unsupported="eager")
        for _ in range(3):
            fast(X)
    assert len(kept) == 3 and fast.stats().hits == 0


def test_pure_functions_may_make_none() -> None:
    fast = fastjit.jit(made_and_seeded, pure=True, on_unsupported="eager")
    for _ in range(3):
        assert_same(fast(X), made_and_seeded(X), exact=True)
    assert fast.stats().hits == 0
