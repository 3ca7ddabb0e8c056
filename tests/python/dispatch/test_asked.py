"""Calls that each hit makes again: clocks, and generators of random numbers that Python code draws from."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fastjit
from helpers import assert_same

X = torch.arange(12.0).reshape(3, 4)


def states() -> list[Any]:
    """Of every generator that a call may draw from."""
    numpy_state = np.random.get_state()
    return [random.getstate(), numpy_state[1].tolist(), numpy_state[2:], torch.get_rng_state()]


class Drawn:
    """A function under fastjit, each call of which must draw what eager draws and leave what eager leaves."""

    def __init__(self, fn: Callable[..., Any], **options: Any) -> None:
        self.fn = fn
        self.fast = fastjit.jit(fn, **options)

    def call(self, *args: Any, seed: int) -> Any:
        results, after = [], []
        for run in (self.fn, self.fast):
            random.seed(seed)
            np.random.seed(seed)
            torch.manual_seed(seed)
            results.append(run(*args))
            after.append(states())
        assert_same(results[1], results[0], exact=True)
        for eager, fast in zip(*after, strict=True):
            assert torch.equal(eager, fast) if isinstance(eager, Tensor) else eager == fast
        return results[1]

    def hits(self, *args: Any, calls: int = 12, least: int | None = None, waits: int = 0) -> None:
        """`waits`: calls that may be left eager since those before them did not come again."""
        for seed in range(calls):
            self.call(*args, seed=seed)
        stats = self.fast.stats()
        assert sum(stats.fallbacks.values()) <= waits, stats
        assert all(why.startswith("its last recordings served no second call: ") for why in stats.fallbacks), stats
        assert stats.hits >= (calls - 1 if least is None else least), stats


def one(x: Tensor) -> Tensor:
    return x * random.random() + 1


def order(x: Tensor) -> tuple[Tensor, float]:
    a = random.random()
    b = np.random.rand()
    c = random.uniform(-2, 3)
    return x * (a - b) + np.random.uniform(1, 2) * c + torch.rand(4), c


def whole(x: Tensor) -> Tensor:
    return x * random.randint(1, 1000) + random.randrange(5, 900, 3)


def normal(x: Tensor) -> Tensor:
    return x + np.random.randn() * np.random.normal(1.0, 2.0) + np.random.random()


@pytest.mark.parametrize("fn", [one, order, normal])
def test_any_number_hits_where_only_tensors_meet_it(fn: Callable[..., Any]) -> None:
    Drawn(fn).hits(X)


def test_an_int_that_a_loop_draws() -> None:
    """randint draws again until a number is small enough: each number of draws is a variant."""
    Drawn(whole).hits(X, calls=40, least=28)


def test_a_number_of_an_argument_and_a_drawn_one() -> None:
    def scaled(x: Tensor, p: float) -> Tensor:
        if random.random() < p:
            return x * p * 2
        return x - p

    drawn = Drawn(scaled)
    for seed in range(40):
        drawn.call(X, 0.1 + seed / 50, seed=seed)
    assert drawn.fast.stats().hits >= 36
    assert drawn.fast.stats().fallbacks == {}


class Augment:
    def __init__(self) -> None:
        self.last = 0.0

    def flip(self, x: Tensor) -> Tensor:
        if random.random() < 0.5:
            x = x.flip(-1)
        if random.random() < 0.3:
            x = -x
        self.last = random.random()
        return x * 2 + self.last


def test_branches_on_drawn_numbers_are_variants() -> None:
    eager, fast = Augment(), Augment()
    flip = fastjit.jit(fast.flip)
    for seed in range(60):
        random.seed(seed)
        expected, state = eager.flip(X), random.getstate()
        random.seed(seed)
        assert_same(flip(X), expected, exact=True)
        assert random.getstate() == state
        assert fast.last == eager.last
    stats = flip.stats()
    assert stats.hits == 56 and len(flip.variants()) == 4, stats


def test_explain_tells_the_number_that_is_new() -> None:
    def branch(x: Tensor) -> Tensor:
        return x * 2 + 1 if random.random() < 0.5 else x - 1

    fast = fastjit.jit(branch)
    random.seed(1)  # 0.13, 0.85
    fast(X)
    state = random.getstate()
    assert "value of (random.random() < 0.5) at" in fast.explain(X)
    assert "was True, is False" in fast.explain(X)
    assert random.getstate() == state
    assert "asked again: random.random() at" in fast.inspect("guards")


def test_a_choice_is_a_variant_each() -> None:
    def chosen(x: Tensor) -> Tensor:
        return x * random.choice([1.0, 2.5, 4.0]) + x[random.randint(0, 2)] + int(random.random() * 2)

    Drawn(chosen).hits(X, calls=120, least=50, waits=30)


def test_a_call_that_starts_again_in_eager_draws_once() -> None:
    """The program stops behind what was drawn: eager must find the generators as they were."""

    def raised(x: Tensor, i: Tensor) -> Tensor:
        y = x * random.random() + np.random.rand()
        return y.index_select(0, i) * 2

    drawn = Drawn(raised)
    good = torch.tensor([0, 2])
    for seed in range(3):
        drawn.call(X, good, seed=seed)
    after = []
    for run in (drawn.fn, drawn.fast):
        random.seed(7)
        np.random.seed(7)
        with pytest.raises((IndexError, RuntimeError)):
            run(X, torch.tensor([0, 9]))
        after.append((random.getstate(), np.random.get_state()[1].tolist()))
    assert after[0] == after[1]
    drawn.call(X, good, seed=4)
    assert drawn.fast.stats().hits == 3


def test_values_of_tensors_and_drawn_numbers_decide_together() -> None:
    def both(x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x * random.random() + 1
        if random.random() < 0.5:
            return x - 3
        return x + random.random()

    drawn = Drawn(both)
    for seed in range(30):
        drawn.call(X if seed % 3 else -X - 1, seed=seed)
    assert drawn.fast.stats().hits >= 26
    assert drawn.fast.stats().fallbacks == {}


def test_verified_calls_draw_once() -> None:
    drawn = Drawn(order, verify=1.0)
    drawn.hits(X)
    assert drawn.fast.stats().mismatches == 0 and drawn.fast.stats().verified > 0


def test_numbers_that_are_read_otherwise_are_named() -> None:
    def shown(x: Tensor) -> Tensor:
        r = random.random()
        names[f"{r:.3f}"] = 1
        return x * r

    names: dict[str, int] = {}
    fast = fastjit.jit(shown, on_unsupported="eager")
    random.seed(3)
    a, b = fast(X), fast(X)
    assert not torch.equal(a, b) and len(names) == 2
    assert any("use of the number random.random()" in why for why in fast.stats().fallbacks), fast.stats()


def test_torch_gets_a_drawn_number() -> None:
    def dropped(x: Tensor) -> Tensor:
        return torch.nn.functional.dropout(x, p=random.random()) + 1

    drawn = Drawn(dropped, on_unsupported="error")
    for seed in range(4):
        drawn.call(X, seed=seed)
    assert drawn.fast.stats().hits == 3


def test_a_number_where_programs_hold_constants_is_named() -> None:
    def cut(x: Tensor) -> Tensor:
        return x + torch.arange(0.0, 3.0 + random.random()).sum()

    drawn = Drawn(cut, on_unsupported="eager")
    for seed in range(4):
        drawn.call(X, seed=seed)
    assert drawn.fast.stats().hits == 0


def test_arrays_of_numpy_stay_eager() -> None:
    def array(x: Tensor) -> Tensor:
        return x * torch.from_numpy(np.random.rand(4))

    drawn = Drawn(array, on_unsupported="eager")
    for seed in range(3):
        drawn.call(X, seed=seed)
    assert any("np.random.rand" in why for why in drawn.fast.stats().fallbacks)


def test_generators_of_the_users_own_stay_eager() -> None:
    own = random.Random(4)

    def drawn(x: Tensor) -> Tensor:
        return x * own.random()

    fast = fastjit.jit(drawn, on_unsupported="eager")
    other = random.Random(4)
    for _ in range(4):
        assert_same(fast(X), X * other.random(), exact=True)


def test_a_replaced_function_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = fastjit.jit(one)
    for _ in range(3):
        fast(X)
    monkeypatch.setattr(random, "random", lambda: 2.0)
    assert_same(fast(X), X * 2.0 + 1, exact=True)


class Timer:
    def __init__(self) -> None:
        self.start = self.took = 0.0
        self.calls = 0


def test_clocks_are_asked_again() -> None:
    timer = Timer()

    def timed(x: Tensor) -> tuple[Tensor, float]:
        timer.start = time.time()
        begin = time.perf_counter()
        y = (x @ x.T).exp().sum(0)
        timer.took = (time.perf_counter() - begin) * 1000
        return y, time.monotonic()

    fast = fastjit.jit(timed)
    big = torch.randn(700, 700)
    seen, shares = [], []
    for _ in range(4):
        before, wall = time.monotonic(), time.time()
        y, now = fast(big)
        after = time.monotonic()
        assert_same(y, (big @ big.T).exp().sum(0), exact=True)
        assert before <= now <= after
        assert wall <= timer.start <= time.time()
        assert 0 < timer.took <= (after - before) * 1000
        shares.append(timer.took / ((after - before) * 1000))
        seen.append(now)
    assert fast.stats().hits == 3, fast.stats()
    assert seen == sorted(set(seen))
    assert max(shares[1:]) > 0.2, shares  # of a hit the program ran between the two


def test_a_clock_before_operators_may_feed_them() -> None:
    def seeded(x: Tensor) -> Tensor:
        return x * (time.time() * 1e-9) + 1

    fast = fastjit.jit(seeded)
    results = [fast(X) for _ in range(4)]
    assert fast.stats().hits == 3
    assert all(1.5 < float(r[0, 1]) < 5 for r in results)


def test_what_operators_took_decides_nothing_in_a_program() -> None:
    def slow(x: Tensor) -> Tensor:
        begin = time.perf_counter()
        y = x.exp()
        return y * 2 if time.perf_counter() - begin > 10 else y

    fast = fastjit.jit(slow, on_unsupported="eager")
    for _ in range(3):
        assert_same(fast(X), X.exp(), exact=True)
    assert any("operators run before time.perf_counter()" in why for why in fast.stats().fallbacks), fast.stats()


def test_a_clock_that_is_printed_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    def printed(x: Tensor) -> Tensor:
        begin = time.perf_counter()
        y = x * 2
        print(f"took {time.perf_counter() - begin:.1f}")
        return y

    fast = fastjit.jit(printed, on_unsupported="eager")
    for _ in range(2):
        fast(X)
    assert capsys.readouterr().out.count("took") == 2
    assert any("use of the number (time.perf_counter() - " in why for why in fast.stats().fallbacks), fast.stats()


def test_threads_draw_no_number_twice() -> None:
    fast = fastjit.jit(lambda x: x * 0 + random.random())
    double = torch.zeros(2, dtype=torch.float64)
    fast(double)
    random.seed(5)
    seen: list[float] = []

    def draw() -> None:
        seen.extend(float(fast(double)[0]) for _ in range(200))

    threads = [threading.Thread(target=draw) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    random.seed(5)
    assert sorted(seen) == sorted(random.random() for _ in range(800))


def test_generator_objects_are_drawn_from() -> None:
    def noisy(x: Tensor, g: torch.Generator) -> Tensor:
        y = x + torch.rand(4, generator=g) + torch.randn(4, generator=g)
        y = y * torch.bernoulli(torch.full((4,), 0.5), generator=g)
        return y[torch.multinomial(torch.ones(3), 3, generator=g)]

    eager, own = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    fast = fastjit.jit(noisy)
    for _ in range(5):
        assert_same(fast(X, own), noisy(X, eager), exact=True)
        assert torch.equal(own.get_state(), eager.get_state())
    assert fast.stats().hits == 4
