"""Functions that cannot be one program: what they call is compiled in parts."""

from __future__ import annotations

import copy
import gc
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fastjit
from fastjit import FastFunction
from helpers import assert_same, in_threads

pytestmark = pytest.mark.skipif(sys.version_info >= (3, 12), reason="parts are for CPython 3.11")


class Block(torch.nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(width, width), torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return x + self.second(torch.relu(self.first(x))) * scale


class Net(torch.nn.Module):
    """Of no program: it notes every call under a new key."""

    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(depth))
        self.log: dict[object, int] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks[0](x)
        self.note()
        for i, block in enumerate(self.blocks[1:]):
            x = block(x, scale=0.5 + i)
        return x

    def note(self) -> None:
        self.log[object()] = id(self) % 3


def pair(make: Callable[[], torch.nn.Module]) -> tuple[Any, Any, FastFunction[..., Any]]:
    """A module, the same given to fastjit, and what that gives."""
    torch.manual_seed(0)
    eager = make().eval()
    torch.manual_seed(0)
    fast = fastjit.fastjit(make().eval(), on_unsupported="eager")
    return eager, fast, fastjit.of(fast)


def play(eager: Any, fast: Any, calls: int, size: int = 3) -> None:
    with torch.no_grad():
        for seed in range(calls):
            x = torch.randn(size, 8, generator=torch.Generator().manual_seed(seed))
            torch.testing.assert_close(fast(x), eager(x))


def test_the_blocks_of_a_net_that_is_no_program_are_programs() -> None:
    eager, fast, function = pair(Net)
    play(eager, fast, 8)
    stats = function.stats()
    assert stats.hits == 0 and sum(stats.fallbacks.values()) >= 5
    assert list(stats.parts) == ["blocks.0", "blocks.1", "blocks.2", "blocks.3"]
    assert all(part.hits >= 3 and part.kernels >= 1 for part in stats.parts.values())
    assert stats.operators == sum(part.operators for part in stats.parts.values()) > 0
    assert len(fast.log) == len(eager.log) == 8
    said = function.explain(torch.randn(3, 8))
    assert "test_parts.py:" in said
    assert said.endswith("; these parts of it run as programs: blocks.0, blocks.1, blocks.2 and 1 more (see parts())")
    assert "kernel" in function.parts()["blocks.2"].inspect("plan")
    with pytest.raises(LookupError, match=r"; it runs in parts: ask parts\(\)\['blocks\.0'\]\.inspect\('plan'\)"):
        function.inspect("plan")
    shown = repr(stats)
    assert "parts={'blocks.0': " in shown and " hits of " in shown


@torch.enable_grad()
def test_the_blocks_are_programs_with_gradients_too() -> None:
    eager, fast, function = pair(Net)
    for seed in range(8):
        x = torch.randn(3, 8, generator=torch.Generator().manual_seed(seed))
        for net in (eager, fast):
            net.zero_grad()
            net(x).square().mean().backward()
        for want, got in zip(eager.parameters(), fast.parameters(), strict=True):
            torch.testing.assert_close(got.grad, want.grad)
    stats = function.stats()
    assert stats.hits == 0 and list(stats.parts) == ["blocks.0", "blocks.1", "blocks.2", "blocks.3"]
    assert all(part.hits >= 3 and part.kernels >= 1 for part in stats.parts.values())


class Asking(Net):
    def note(self) -> None:
        os.getpid()


def test_the_warning_says_that_there_are_parts() -> None:
    fast = fastjit.fastjit(Asking().eval())
    said = r" because call of getpid at test_parts.py:\d+; .* \(3 parts of it are programs: see parts\(\)\)$"
    with torch.no_grad(), pytest.warns(fastjit.FastJITWarning, match=said):
        fast(torch.randn(3, 8))


def test_nothing_raises_where_parts_would_compile() -> None:
    eager, fast, function = pair(Net)
    play(eager, fast, 3)
    with fastjit.stance("error_on_compile"):
        play(eager, fast, 3)
    assert function.stats().parts == {}
    play(eager, fast, 12)
    assert function.stats().parts


def test_parts_that_do_not_pay_are_no_longer_looked_for() -> None:
    def count(n: int) -> int:
        return n + 1

    class Chatty(Net):
        def note(self) -> None:
            super().note()
            for _ in range(2000):
                count(1)

    eager, fast, function = pair(Chatty)
    play(eager, fast, 80)
    hits = function.stats().parts["blocks.0"].hits
    play(eager, fast, 20)
    assert 0 < hits == function.stats().parts["blocks.0"].hits


def test_what_a_part_reads_is_a_fact() -> None:
    eager, fast, function = pair(Net)
    play(eager, fast, 6)
    before = function.stats().parts["blocks.2"].hits
    with torch.no_grad():
        for net in (eager, fast):
            net.blocks[2].first.weight.mul_(2)
            net.blocks[1].second = torch.nn.Identity()
            net.blocks[3].register_forward_hook(lambda module, args, out: out + 1)
    play(eager, fast, 6)
    parts = function.stats().parts
    assert parts["blocks.2"].hits == before + 6
    assert parts["blocks.1"].misses >= 2 and parts["blocks.3"].misses >= 2


class Deep(torch.nn.Module):
    """The line that no program can have lies two levels down."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = Net(3), Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.inner(x))


def test_the_outermost_that_can_be_programs_are() -> None:
    eager, fast, function = pair(Deep)
    play(eager, fast, 30)
    parts = function.parts()
    assert set(parts) == {"inner.blocks.0", "inner.blocks.1", "inner.blocks.2", "last"}
    assert all(part.stats().hits >= 15 for part in parts.values())


def helper(x: torch.Tensor, *rest: torch.Tensor, power: int = 2, **named: float) -> torch.Tensor:
    return (x * sum(rest, torch.zeros(()))).pow(power) + named.get("shift", 0.0)


def scaled(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x * 2) + 1


def shifted(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x + 2) * 3


def asking(x: torch.Tensor) -> torch.Tensor:
    x = scaled(x)
    os.getppid()
    return shifted(x)


def around(x: torch.Tensor) -> torch.Tensor:
    return asking(x) - 1


def test_functions_that_an_obstacle_is_in_are_looked_through_at_once() -> None:
    fast = fastjit.jit(lambda x: around(x), on_unsupported="eager")
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(4)
            assert_same(fast(x), shifted(scaled(x)) - 1)
    parts = {name.split(" ")[0]: (part.hits, part.misses) for name, part in fast.stats().parts.items()}
    assert parts == {"scaled": (1, 1), "shifted": (2, 1)}
    assert fast.stats().hits == 0


class Halving(torch.nn.Module):
    """As many rounds as a value says, each of which reads five values."""

    def step(self, x: torch.Tensor) -> torch.Tensor:
        for i in range(5):
            x = x * 0.9 if x.sum() > -i else x + 1
        return torch.tanh(x)

    def forward(self, x: torch.Tensor, rounds: torch.Tensor) -> torch.Tensor:
        while rounds > 0:
            x = self.step(x)
            rounds = rounds - 1
        return x


def driven(module: Halving, x: torch.Tensor, rounds: torch.Tensor) -> torch.Tensor:
    return module(x, rounds) + 1


def test_what_reads_most_of_too_many_values_is_looked_through_at_once() -> None:
    module = Halving()
    fast = fastjit.jit(lambda x, rounds: driven(module, x, rounds), on_unsupported="eager")
    with torch.no_grad():
        for rounds in range(12, 16):  # two are recorded whole, as if they came again
            x, many = torch.rand(4), torch.tensor(float(rounds))
            assert_same(fast(x, many), driven(module, x, many))
    assert fast.stats().hits == 0
    parts = {name.split(" ")[0]: (part.hits, part.calls) for name, part in fast.stats().parts.items()}
    assert set(parts) == {"Halving.step"}
    hits, calls = parts["Halving.step"]
    assert calls >= 15
    assert hits == calls - 1


def applied(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return module(x) * 2


class Timed(torch.nn.Module):
    """Made for each solve, as solvers wrap what they are given."""

    def __init__(self, field: torch.nn.Module, scale: float) -> None:
        super().__init__()
        self.field, self.scale = field, scale

    def forward(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.field(y) * torch.cos(t * self.scale)


class Solver:
    """Takes steps until it is there: how many, and which are taken back, the values say."""

    def __init__(self, field: torch.nn.Module, y: torch.Tensor, scale: float) -> None:
        self.field = Timed(field, scale)
        self.state = (y, torch.zeros(()), torch.tensor(0.2), [y, y])

    def step(self, state: tuple[Any, ...]) -> tuple[Any, ...]:
        y, t, dt, kept = state
        assert torch.isfinite(y).all() and dt > 0
        new = y + dt * self.field(t, y)
        if (new - y).abs().max() < 0.3:
            return new, t + dt, dt * 1.1, [y, new]
        return y, t, dt * 0.5, kept

    def advance(self, end: torch.Tensor) -> torch.Tensor:
        while self.state[1] < end:
            self.state = self.step(self.state)
        return self.state[0] + self.state[3][0]

    def solve(self, ends: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.advance(end) for end in ends])


def test_modules_that_the_whole_makes_are_compared_by_what_they_hold() -> None:
    def run(y: torch.Tensor, field: torch.nn.Module, scale: float = 1.0) -> torch.Tensor:
        return Solver(field, y, scale).solve(torch.tensor([1.0, 2.0, 3.0]))

    torch.manual_seed(0)
    field, other = Block(4), Block(4)
    fast = fastjit.jit(run, on_unsupported="eager")

    def check(*args: Any) -> int:
        before = fast.stats().operators
        assert torch.allclose(fast(*args), run(*args), atol=1e-6)
        return fast.stats().operators - before

    with torch.no_grad():
        # Two calls are recorded whole. The steps of the next, which make a solver and a module of their own, hit.
        ran = [check(torch.randn(3, 4), field) for _ in range(6)]
        assert min(ran[2:]) > 100, ran
        assert any("value limit" in reason for reason in fast.stats().fallbacks)
        step = next(part for name, part in fast.stats().parts.items() if "Solver.step" in name)
        assert step.hits > step.calls / 2, fast.stats().parts
        field.first.weight.mul_(0.5)
        check(torch.randn(3, 4), field)
        for _ in range(3):
            check(torch.randn(3, 4), other)
            check(torch.randn(3, 4), field, 2.0)


def test_modules_that_live_on_are_not_looked_into() -> None:
    """Other modules of one class are arguments of a part: each has facts of its own."""

    def apply(block: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return block(x) * 2 + 1

    blocks = [Block(4) for _ in range(6)]

    def run(x: torch.Tensor) -> torch.Tensor:
        for block in blocks:
            x = apply(block, x)
        print(end="")
        return x

    fast = fastjit.jit(run, on_unsupported="eager")
    with torch.no_grad():
        for call in range(8):
            x, before = torch.randn(2, 4), fast.stats().operators
            assert torch.allclose(fast(x), run(x), atol=1e-6)
            assert call < 3 or fast.stats().operators - before >= 6 * 2, call


def test_a_function_that_is_given_a_module_has_its_own_name() -> None:
    block = Block()

    def whole(x: torch.Tensor) -> torch.Tensor:
        os.getppid()
        return applied(block, x)

    fast = fastjit.jit(whole, on_unsupported="eager")
    with torch.no_grad():
        for _ in range(3):
            fast(torch.randn(2, 8))
    ((name, part),) = fast.stats().parts.items()
    assert name.startswith("applied (test_parts.py:") and part.hits >= 1


def test_functions_are_parts_with_every_kind_of_argument() -> None:
    seen: dict[object, int] = {}

    def whole(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        seen[object()] = 1
        return helper(x, y, x, power=3, shift=0.5) + helper(y, x, y, power=3, shift=0.5)

    fast = fastjit.fastjit(whole, on_unsupported="eager")
    with torch.no_grad():
        for _ in range(6):
            x, y = torch.randn(5), torch.randn(5)
            torch.testing.assert_close(fast(x, y), whole(x, y))
    ((name, part),) = fast.stats().parts.items()
    assert name.startswith("helper (test_parts.py:") and part.hits >= 5


def test_errors_are_eagers_own() -> None:
    def fails(x: torch.Tensor, n: int) -> torch.Tensor:
        y = (x * 2).relu()
        if n == 3:
            raise KeyError(n)
        return y.view(n, -1) + 1

    def whole(x: torch.Tensor, n: int, seen: Any) -> torch.Tensor:
        seen[object()] = 1
        return fails(x, n)

    fast, x = fastjit.fastjit(whole, on_unsupported="eager"), torch.randn(8)
    seen: dict[object, int] = {}
    with torch.no_grad():
        for _ in range(6):
            assert torch.equal(fast(x, 2, seen), whole(x, 2, seen))
        with pytest.raises(KeyError) as raised:
            fast(x, 3, seen)
        with pytest.raises(RuntimeError, match="shape '\\[5, -1\\]' is invalid"):
            fast(x, 5, seen)
        names = [entry.name for entry in raised.traceback]
        assert names[-2:] == ["whole", "fails"]
        assert torch.equal(fast(x, 2, seen), whole(x, 2, seen))
    assert any(part.hits for part in fast.stats().parts.values())


def test_effects_of_parts_happen_once_a_call() -> None:
    class Counts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls, self.last = 0, None
            self.register_buffer("total", torch.zeros(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            self.total.add_(x.sum(0))
            self.last = x * 2
            return self.last + self.total

    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.counts, self.log = Counts(), {}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.log[object()] = 1
            return self.counts(self.counts(x))

    eager, fast, function = pair(Two)
    play(eager, fast, 10)
    assert fast.counts.calls == eager.counts.calls == 20
    torch.testing.assert_close(fast.counts.total, eager.counts.total)
    torch.testing.assert_close(fast.counts.last, eager.counts.last)
    assert function.stats().parts["counts"].hits >= 10


def test_modes_that_the_whole_enters_hold_in_parts() -> None:
    class Cast(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block, self.log = Block(), {}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.log[object()] = 1
            plain = self.block(x)
            with torch.autocast("cpu", torch.bfloat16):
                return plain, self.block(x)

    eager, fast, function = pair(Cast)
    with torch.no_grad():
        for _ in range(6):
            x = torch.randn(3, 8)
            for got, wanted in zip(fast(x), eager(x), strict=True):
                assert got.dtype == wanted.dtype
                torch.testing.assert_close(got, wanted, rtol=2e-2, atol=2e-2)
    assert function.stats().parts["block"].variants == 2
    assert function.stats().parts["block"].hits >= 4


def test_training_runs_in_parts() -> None:
    eager, fast, function = pair(Net)
    with torch.enable_grad():
        for _ in range(5):
            x = torch.randn(3, 8)
            got, wanted = fast(x).sum(), eager(x).sum()
            got.backward()
            wanted.backward()
    for mine, other in zip(fast.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)
    parts = function.stats().parts
    assert parts and all(part.hits > 0 and part.fallbacks == {} for part in parts.values()), parts


def test_threads_and_recursion() -> None:
    seen: dict[object, int] = {}

    def work(x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + 1).relu() * x

    def deep(x: torch.Tensor, n: int) -> torch.Tensor:
        seen[object()] = n
        return work(x) if n == 0 else deep(x, n - 1) + 0

    fast, x = fastjit.fastjit(lambda x, n: deep(x, n), on_unsupported="eager"), torch.randn(6)

    @torch.no_grad()
    def run() -> None:
        for _ in range(20):
            assert torch.equal(fast(x, 20), work(x))

    assert not in_threads(4, run)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(60_000)  # of Python, which does not use the C stack for it
    try:
        with torch.no_grad():
            assert torch.equal(fast(x, 20_000), work(x))
    finally:
        sys.setrecursionlimit(limit)


def test_nothing_is_kept_alive_or_left_behind() -> None:
    seen: dict[object, int] = {}

    def whole(block: Block, x: torch.Tensor) -> torch.Tensor:
        seen[object()] = 1
        return block(x)

    fast = fastjit.fastjit(whole, on_unsupported="eager")
    block = Block().eval()
    with torch.no_grad():
        for _ in range(6):
            fast(block, torch.randn(2, 8))
    assert fast.stats().parts["Block"].hits >= 2
    assert set(vars(block)) == set(vars(Block()))
    gone = weakref.ref(block)
    del block
    gc.collect()
    assert gone() is None
    with torch.no_grad():
        for _ in range(200):
            other = Block().eval()
            x = torch.randn(2, 8)
            torch.testing.assert_close(fast(other, x), other(x))
    assert len(fast.parts()) <= 1
    fast.clear()
    assert fast.parts() == {}


class Recurrent(torch.nn.Module):
    """A loop of Python over a list of the rows of a tensor: each length is a program of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = torch.nn.LSTMCell(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = torch.zeros(x.size(1), 8)
        for row in list(x):
            h, c = self.cell(row, (h, c))
        return h


def test_lengths_that_never_come_again_run_in_parts() -> None:
    torch.manual_seed(0)
    eager = Recurrent().requires_grad_(False)
    model = copy.deepcopy(eager)
    fast = fastjit.fastjit(model.forward, on_unsupported="eager")
    for length in range(3, 40):
        x = torch.randn(length, 2, 4)
        torch.testing.assert_close(fast(x), eager(x))
    (name,) = fast.parts()
    assert "LSTMCell" in name
    cell = fast.parts()[name].stats()
    assert fast.stats().hits == 0 and cell.misses == 2
    assert cell.hits > 600  # of 698 calls behind the first recordings


def test_error_still_raises() -> None:
    _, fast, _ = pair(Net)
    strict = fastjit.fastjit(Net().eval(), on_unsupported="error")
    with torch.no_grad(), pytest.raises(fastjit.UnsupportedError):
        for _ in range(4):
            strict(torch.randn(3, 8))
    del fast
