"""Ints that are indices, bounds of slices or sizes, and that differ from call to call: positions, steps, counts.

The first two values are facts, the third one makes the int a symbol of the program: whatever int from 2 on comes then
is a hit. Every test plays its calls in two worlds, eager and compiled, and says how many recordings they took.
"""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn

from fastjit import FastJITWarning, fastjit
from helpers import assert_same, hits_as_eager, in_threads, outcome

N = 16
VALUES = (4, 7, 3, 5, 9, 2, 11, 13, 8, 6)


def play(fn: Callable[..., Any], values: Iterable[tuple[Any, ...]], **options: Any) -> tuple[Any, str]:
    """The compiled function, and of each call whether it was a hit or a miss; `x` is written alike in both worlds."""
    fast, seen = fastjit(fn, **options), ""
    for given in values:
        x = torch.randn(N, N)
        seen += "h" if hits_as_eager(fast, fn, (x.clone(), *given), (x, *given)) else "m"
    return fast, seen


PROGRAMS: dict[str, Callable[..., Any]] = {
    "select": lambda x, p: x[p] * 2 + x[:, p],
    "slice": lambda x, p: x[:p].sin() + 1,
    "rest": lambda x, p: x[p:].sin() + x[p - 1],
    "window": lambda x, p: x[p : p + 2].exp() * 2,
    "from the end": lambda x, p: x[-p] * 2 + x[:, -p:].sum(),
    "narrow": lambda x, p: x.narrow(0, p, 2) - 1,
    "arange": lambda x, p: torch.arange(p, p + 4).float() + x[0, :4],
    "sizes": lambda x, p: torch.zeros(p, 3) + x[0, 0],
    "a list of sizes": lambda x, p: torch.ones((p, p + 1)) * x[0, 0],
    "expand": lambda x, p: x[0].expand(p, N) * 2,
    "repeat": lambda x, p: x[0].repeat(p, 1) * 2,
    "arithmetic": lambda x, p: x[(p * 2 + 1) % N] * p + x[p // 2] / p,
    "floats": lambda x, p: x * (p / 10) + x[p] * (1 - p / 1000),
    "a comparison": lambda x, p: x[p] * 2 if p < x.size(0) else x[0] * p,
    "smaller one": lambda x, p: x[min(p, 20)] * 2,
    "a mask of positions": lambda x, p: torch.where(torch.arange(N) < p, x, x * 2) + x[p],
    "softmax": lambda x, p: x[:p, :p].softmax(-1),
    "products": lambda x, p: x[:p] @ x[:, :p],
    "cat": lambda x, p: torch.cat((x[:p], x[p:])) * 2,
    "torch's own": lambda x, p: x.cumsum(0)[p] * 2,
    "interpolate": lambda x, p: nn.functional.interpolate(x[None, None], size=(p, p + 1)),
    "a layer norm": lambda x, p: nn.functional.layer_norm(x[:, :p], (p,)) * 2,
    "random numbers": lambda x, p: torch.rand(p, 3) + x[0, 0],
    "results": lambda x, p: (x[p] * 2, p, p + 1, {"next": 2 * p}),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_fourth_value_is_a_hit(name: str) -> None:
    fast, seen = play(PROGRAMS[name], [(p,) for p in VALUES])
    assert seen == "mmm" + "h" * (len(VALUES) - 3)
    assert not fast.stats().fallbacks
    assert "p >= 2" in fast.inspect("guards")


def store(x: torch.Tensor, p: int) -> torch.Tensor:
    x[p] = x[p - 1] * 2
    return x.sum(1)


def store_window(x: torch.Tensor, p: int) -> torch.Tensor:
    x[:, p : p + 2] += 1
    return x * 2


def store_after_copy(x: torch.Tensor, p: int) -> torch.Tensor:
    y = x.clone()
    y[p, 1] = 7.0
    y[1:p] *= 2
    return y


@pytest.mark.parametrize("fn", [store, store_window, store_after_copy])
def test_writes_at_any_position(fn: Callable[..., Any]) -> None:
    """`y[1:p]` is nothing for 1, and `x[2:]` all of it for 0: whether a slice is empty or whole is a guard."""
    seen = play(fn, [(p,) for p in (*VALUES, *VALUES)])[1]
    assert seen.startswith("mmmhh") and seen.endswith("h" * len(VALUES))


def test_two_ints_and_the_values_that_repeat() -> None:
    def fn(x: torch.Tensor, p: int, q: int) -> torch.Tensor:
        return x[p : p + q] * 2 + x[q]

    pairs = [(4, 3), (4, 5), (4, 6), (5, 6), (6, 7), (7, 2), (3, 9), (2, 2), (9, 9), (10, 5), (4, 12)]
    fast, seen = play(fn, pairs)
    assert seen.endswith("hh") and not fast.stats().fallbacks
    assert {"p >= 2", "q >= 2"} <= set(fast.inspect("guards").splitlines())


def test_what_symbols_are_not() -> None:
    """0, 1, negative and huge ints, ints of other types: variants of their own, or eager's errors."""
    odd = (0, 1, -1, -N, N, -N - 1, 100, True, 2.0, 10**20, -(10**20), 2**63 - 1, torch.tensor(3))
    fast, seen = play(lambda x, p: x[p] * 2 + 1, [(p,) for p in (*VALUES, *odd, *VALUES)])
    assert seen.endswith("h" * len(VALUES))
    assert fast.inspect("guards").count("p < 16") == 1


def test_no_program_is_for_minus_one() -> None:
    """Registers of a program that has not run hold -1: no call is taken for the last one."""
    numbers = (2.0, 3.0, 5.0, 7.0)
    assert play(lambda x, p: x * numbers[p % 4], [(p,) for p in (4, 7, 5, 9, -1, -2, -3)])[1][-3:] == "mmm"


def test_floats_of_huge_ints_are_pythons_own() -> None:
    """Python divides ints beyond 2**53 as they are, a program what floats hold of them."""
    huge = (2**53, 2**53 + 1, 2**60 + 1, 2**62 + 3)
    fn = fastjit(lambda x, p: x.double() * (p / 3) + x[p % N])
    for p in (*VALUES[:5], *huge, *VALUES):
        x = torch.randn(N, N)
        assert_same(fn(x, p), x.double() * (p / 3) + x[p % N], exact=True)
    assert fn.stats().hits >= len(VALUES)


def test_ints_inside_of_arguments() -> None:
    def fn(x: torch.Tensor, *, at: tuple[int, dict[str, int]]) -> torch.Tensor:
        return x[at[0]] * x[at[1]["end"] - 1]

    fast = fastjit(fn)
    for i in range(12):
        x, at = torch.randn(N, N), (3 + i % 5, {"end": 2 + i % 7})
        assert_same(fast(x, at=at), fn(x, at=at))
    assert fast.stats().hits == 9 and not fast.stats().fallbacks


@pytest.mark.parametrize("options", [{"verify": 1.0}, {"on_miss": "background"}])
def test_positions_beside_values_that_are_read(options: dict[str, Any]) -> None:
    def fn(x: torch.Tensor, p: int) -> torch.Tensor:
        y = x[p] * 2
        return y + x[p - 1] if y.sum() > 0 else y - x[p - 1]

    fast, _ = play(fn, [(2 + i % 13,) for i in range(60)], on_unsupported="eager", **options)
    assert fast.stats().hits > 30 and not fast.stats().mismatches


@pytest.mark.parametrize(
    ("fn", "what"),
    [
        (lambda x, p: x * {4: 1.0, 7: 2.0}.get(p, 3.0), "Python code"),
        (lambda x, p: x * int(f"{p}"), "Python code"),
        (lambda x, p: torch.roll(x, p, 0) * 2, "aten::roll at test_any_int.py"),
    ],
)
def test_what_fixes_an_int_is_named(fn: Callable[..., Any], what: str) -> None:
    fast, seen = play(fn, [(p,) for p in VALUES[:5]])
    assert seen == "mmmmm"
    assert f"p is one number for {what}" in fast.inspect("guards")


def test_lists_of_sizes_and_other_ints() -> None:
    """An int that begins to differ beside sizes in a list was taken for any int, and for the recorded one."""

    def fn(x: torch.Tensor, p: int) -> torch.Tensor:
        return x.new_zeros((x.size(0), p)) + 1

    fast = fastjit(fn)
    for n, p in ((3, 4), (5, 6), (7, 6), (7, 8), (9, 5), (6, 7), (5, 5)):
        x = torch.ones(n, 2)
        assert_same(fast(x, p), fn(x, p))
    assert fast.stats().hits >= 3


def test_sizes_that_differ_together_with_an_int() -> None:
    def fn(x: torch.Tensor, p: int) -> torch.Tensor:
        return x[:, :p].softmax(-1) * x.size(1)

    fast = fastjit(fn)
    for n, p in ((8, 4), (9, 5), (12, 3), (20, 11), (30, 30), (31, 7), (17, 16)):
        x = torch.randn(3, n)
        assert_same(fast(x, p), fn(x, p))
    assert fast.stats().hits >= 3 and not fast.stats().fallbacks


class Cached(nn.Module):
    """Attention over a cache that is written in place, at a position that the caller counts."""

    def __init__(self, width: int = 8, longest: int = 64) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.register_buffer("keys", torch.zeros(2, longest, width))
        self.register_buffer("values", torch.zeros(2, longest, width))

    def forward(self, x: torch.Tensor, start: int) -> torch.Tensor:
        end = start + x.size(1)
        self.keys[:, start:end] = self.k(x)
        self.values[:, start:end] = self.v(x)
        scores = self.q(x) @ self.keys[:, :end].transpose(1, 2)
        return scores.softmax(-1) @ self.values[:, :end]


def test_a_cache_of_keys_and_values() -> None:
    torch.manual_seed(0)
    eager = Cached().requires_grad_(False)
    model = Cached().requires_grad_(False)
    model.load_state_dict(eager.state_dict())
    fast = fastjit(model.forward)
    for start in range(60):
        x = torch.randn(2, 1, 8)
        assert_same(fast(x, start), eager(x, start))
        assert_same(model.keys, eager.keys)
    stats = fast.stats()
    assert stats.hits == 57 and stats.variants == 3 and not stats.fallbacks  # 0, 1, and 2 for any position


class Ring:
    """A buffer that is filled one row a call; each class below counts in another way."""

    def __init__(self) -> None:
        self.at = 0
        self.rows = torch.zeros(32, 8)

    def push(self, x: torch.Tensor) -> torch.Tensor:
        self.rows[self.at] = x * 2
        self.at += 1
        return self.rows.mean()


class Wrapping(Ring):
    def push(self, x: torch.Tensor) -> torch.Tensor:
        self.rows[self.at] = x * 2
        self.at = (self.at + 1) % 32
        return self.rows[: self.at + 1].sum(0)


class Listed(Ring):
    def __init__(self) -> None:
        super().__init__()
        self.state = {"at": 0}

    def push(self, x: torch.Tensor) -> torch.Tensor:
        at = self.state["at"]
        self.rows[at] = x * 2
        self.state["at"] = at + 1
        return self.rows[at] + at


@pytest.mark.parametrize("kind", [Ring, Wrapping, Listed])
def test_positions_that_the_call_finds_and_counts(kind: type[Ring]) -> None:
    eager, ours = kind(), kind()
    fast = fastjit(ours.push)
    for i in range(48 if kind is Wrapping else 32):
        x = torch.randn(8)
        assert_same(fast(x), eager.push(x))
        assert ours.at == eager.at and vars(ours).get("state") == vars(eager).get("state"), i
        assert_same(ours.rows, eager.rows)
    assert fast.stats().hits >= 27
    if kind is not Wrapping:
        assert outcome(fast, x) == outcome(eager.push, x)  # past the end: eager's error


def test_a_position_that_someone_else_sets() -> None:
    ring = Ring()
    ring.rows.normal_()

    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x * ring.rows[ring.at]).sin() + ring.rows[ring.at : ring.at + 2].sum(0)

    fast = fastjit(fn)
    for at in (5, 9, 3, 8, 20, 30, 31, 2, 0, 1, -1, 17):
        ring.at = at
        x = torch.randn(8)
        assert_same(fast(x), fn(x))
    assert fast.stats().hits == 5  # 8 to 30, 2 and 17; at 31 the slice ends early
    assert "ring.at < 32" in fast.inspect("guards")


WEIGHTS = torch.linspace(-1, 1, N * N).view(N, N).requires_grad_()
LOSSES: dict[str, Callable[..., torch.Tensor]] = {
    "select": lambda x, p: (x[p] * WEIGHTS[0]).sum(),
    "a column": lambda x, p: torch.tanh(x[:, p] * WEIGHTS[1]).sum(),
    "slice": lambda x, p: (x[:p].sin() * WEIGHTS[2]).sum(),
    "a row of the weights": lambda x, p: (x * WEIGHTS[p]).sum(),
    "a factor": lambda x, p: (x[p] * p).sum() / p,
    "softmax": lambda x, p: (x[:p] @ WEIGHTS).softmax(-1)[0].pow(2).sum(),
    "mean": lambda x, p: x[:p].mean() * 2,
    "two": lambda x, p: (x[p] * x[p - 1]).sum(),
}


@pytest.mark.parametrize("name", LOSSES)
@torch.enable_grad()
def test_gradients_at_any_position(name: str) -> None:
    """The first recording with the int as a symbol tells nothing of what formulas compute of it, the next one does."""
    fn = LOSSES[name]
    fast = fastjit(fn)

    def gradients(call: Callable[..., torch.Tensor], x: torch.Tensor, p: int) -> list[torch.Tensor | None]:
        leaf = x.clone().requires_grad_()
        WEIGHTS.grad = None
        call(leaf, p).backward()
        return [leaf.grad, WEIGHTS.grad]

    for p in (4, 7, 9, 5, 6, 8, 3, 12, 11, 10, 13, 2):
        x = torch.randn(N, N)
        for got, wanted in zip(gradients(fast, x, p), gradients(fn, x, p), strict=True):
            assert (got is None) == (wanted is None)
            if got is not None:
                assert_same(got, wanted)
    assert fast.stats().hits >= 6 and not fast.stats().fallbacks


def test_threads_at_positions_of_their_own() -> None:
    def fn(x: torch.Tensor, p: int) -> torch.Tensor:
        return x[p] * 2 + x[:p].sum(0)

    fast, x = fastjit(fn), torch.randn(64, 512)
    for p in (4, 7, 9):
        fast(x, p)
    wrong: list[int] = []
    firsts = itertools.count()

    def work() -> None:
        first = next(firsts)
        for i in range(300):
            p = 2 + (first + 7 * i) % 60
            if not torch.allclose(fast(x, p), fn(x, p), atol=1e-5):
                wrong.append(p)

    assert not in_threads(4, work)
    assert not wrong and fast.stats().hits > 1190


def test_values_that_never_come_again_are_said_to_vary() -> None:
    """Where nothing but the value itself will do, recordings stop as for other numbers."""
    fast = fastjit(lambda x, p: x * {4: 1.0}.get(p, 3.0))
    with pytest.warns(FastJITWarning, match="p took 9 values"):
        for p in range(2, 60):
            fast(torch.randn(3), p)
    assert fast.stats().misses == 58


# Random programs


def expression(rng: random.Random) -> str:
    ints = ("p", "q", "p + 1", "q - 1", "p // 2", "p * 2 % n", "min(p, q)", "max(p, q)", "n - p", "n // q")
    one, two = rng.choice(ints), rng.choice(ints)
    forms = (
        f"x[{one}]",
        f"x[:, {one}]",
        f"x[{one}, :{two}].sum() + x[0]",
        f"x[:{one}].sum(0)",
        f"x[{one}:{two}].sum(0) + x[1]",
        f"x.narrow(0, {one}, 2)[1]",
        f"x[-{one}] * {two}",
        f"x[0] * ({one}) / ({two} + 1)",
        f"torch.full((n,), {one}) + x[{two}]",
        f"torch.arange({one}, {one} + n) * x[0]",
        f"(x[2] if {one} < {two} else x[3])",
        f"x[:{one}, :{two}].relu().sum() + x[4]",
        f"torch.where(torch.arange(n) >= {one}, x[5], x[{two}])",
        f"x[{one}:].amax(0) if {one} < n else x[6]",
    )
    return rng.choice(forms)


def statements(rng: random.Random) -> list[str]:
    lines = [f"y = {expression(rng)}"]
    for _ in range(rng.randint(1, 3)):
        lines.append(
            rng.choice(
                (
                    f"y = y + {expression(rng)}",
                    f"y = torch.tanh(y) * {expression(rng)}",
                    f"x[p] = {expression(rng)}",
                    f"x[:, q] += {expression(rng)}",
                    f"x[p:q] *= {rng.choice(('p', 'q', '2'))}",
                )
            )
        )
    return lines


@pytest.mark.parametrize("part", range(4))
def test_random_programs(part: int) -> None:
    hits = calls = 0
    for seed in range(part * 30, part * 30 + 30):
        rng = random.Random(seed)
        source = "def fn(x, p, q):\n    n = x.size(0)\n    " + "\n    ".join(statements(rng)) + "\n    return y\n"
        names: dict[str, Any] = {"torch": torch}
        exec(source, names)
        pairs = [(rng.randint(2, N - 2), rng.randint(2, N - 2)) for _ in range(14)]
        pairs += [(rng.choice((0, 1, -1, N, 3)), rng.choice((0, 1, -2, N + 3, 5))) for _ in range(4)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FastJITWarning)
            try:
                seen = play(names["fn"], pairs)[1]
            except AssertionError as error:
                raise AssertionError(f"seed {seed}:\n{source}") from error
        hits += seen.count("h")
        calls += len(seen)
    assert hits > calls / 4
