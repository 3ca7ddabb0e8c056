"""Loops of Python over a size whose rounds call torch: one program runs any number of rounds.

Products too large for a kernel, sorts, attention and what else torch computes stand in the rounds as they stand in
eager's. As in test_any_trip, the first length is a program of its own, and the second one makes the loop one of any
number of rounds.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fastjit import fastjit
from helpers import assert_same, in_threads, play_as_eager

WIDE, LENGTHS = 520, (10, 12, 9, 20, 50, 13, 11, 33, 9, 12)
SHORT = (2, 3, 1, 4, 5, 0)


def modules() -> tuple[nn.Module, ...]:
    torch.manual_seed(5)
    made = nn.LSTMCell(8, WIDE), nn.Linear(WIDE, WIDE), nn.Conv1d(4, 4, 3, padding=1, groups=2), nn.GRUCell(8, WIDE)
    return tuple(module.requires_grad_(False) for module in made)


LSTM, WIDER, CONV, GRU = modules()
TABLE = torch.randn(60, 8)


def lstm(x: torch.Tensor, h: torch.Tensor) -> Any:
    state, outs = (h, torch.zeros_like(h)), []
    for t in range(x.size(0)):
        state = LSTM(x[t], state)
        outs.append(state[0])
    return torch.stack(outs), state


def last_state(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for t in range(len(x)):
        h = GRU(x[t], h)
    return h


def into_place(x: torch.Tensor, h: torch.Tensor) -> Any:
    out = torch.empty(x.size(0), 3, WIDE)
    for t in range(x.size(0)):
        h = torch.relu(WIDER(h) + x[t, :, :1])
        out[t] = h
    return out, h


def backwards(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    n, outs = x.shape[0], []
    for t in range(n):
        h = torch.tanh(WIDER(h) * x[n - 1 - t, :, :1])
        outs.append(h[:, :4])
    return torch.cat(outs, 1)


def first_is_another(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    state = None
    for t in range(x.size(0)):
        rows = x[t].repeat(1, WIDE // 8)
        state = rows.tanh() if state is None else torch.tanh(rows + WIDER(state))
    return state if state is not None else h


def sorts(x: torch.Tensor, h: torch.Tensor) -> Any:
    state, outs = torch.zeros(3, 8), []
    for t in range(x.size(0)):
        values, places = torch.sort(x[t] + state, -1)
        outs.append(places)
        state = values * 0.5
    return torch.stack(outs), state


def best_of(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    score = torch.zeros(3)
    for t in range(x.size(0)):
        best, _ = torch.topk(x[t], 2, -1)
        score = score + best.sum(-1)
    return score


def sorts_the_input(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(3, 8)
    for t in range(x.size(0)):
        total = total + x[t].sort(-1)[0]
    return total


def attends(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    state = x.new_zeros(1, 3, 8)
    for t in range(x.size(0)):
        state = F.scaled_dot_product_attention(state + 1, x[t][None], x[t][None]) + state * 0.1
    return state


def convolves(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    state = torch.zeros(2, 4, 8)
    for t in range(x.size(0)):
        state = torch.tanh(CONV(state) + x[t].sum(0))
    return state


def looks_up(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    token, outs = torch.zeros(3, dtype=torch.long), []
    for t in range(x.size(0)):
        token = ((TABLE[token] * x[t]).cumsum(-1).argsort(-1)[:, 0] + token) % 60
        outs.append(token)
    return torch.stack(outs, -1)


def two_loops(x: torch.Tensor, h: torch.Tensor) -> Any:
    outs = []
    for t in range(x.size(0)):
        h = torch.tanh(WIDER(h) + x[t, :, :1])
        outs.append(h)
    seen, back = torch.stack(outs), torch.zeros_like(h)
    for t in range(x.size(0)):
        back = torch.tanh(WIDER(back) + seen[t] * 0.1)
    return seen, back


def in_columns(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    x = x.transpose(0, 1)
    for t in range(x.size(1)):
        h = torch.sigmoid(WIDER(h) + x[:, t, :1])
    return h


def fixed_and_moved(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    side = x.sum(0).sort(-1)[0]
    for t in range(x.size(0)):
        h = torch.tanh(WIDER(h) + (x[t] @ side.t()).sort(-1)[0][:, :1])
    return h


def drops(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for t in range(x.size(0)):
        h = torch.tanh(WIDER(h) + x[t, :, :1]) * (torch.rand(3, 1) > 0.25)
    return h


def drops_in_place(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for t in range(x.size(0)):
        h = torch.tanh(WIDER(h) + x[t, :, :1]) * torch.empty(3, 1).bernoulli_(0.7)
    return h


def drops_out(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for t in range(x.size(0)):
        h = F.dropout(torch.tanh(WIDER(h) + x[t, :, :1]), 0.3)
    return F.alpha_dropout(h, 0.2, training=True)


SERVED = {
    fn.__name__: fn
    for fn in (
        lstm, last_state, into_place, backwards, first_is_another, sorts, best_of, sorts_the_input, attends, convolves,
        looks_up, two_loops, in_columns, fixed_and_moved,
    )
}  # fmt: skip


def play(fn: Callable[..., Any], lengths: tuple[int, ...]) -> tuple[Any, str]:
    """The compiled function, and of each call whether it was a hit or a miss."""
    return play_as_eager(fn, ((torch.randn(n, 3, 8), torch.randn(3, WIDE)) for n in lengths))


@pytest.mark.parametrize("name", SERVED)
def test_one_program_serves_any_number_of_rounds(name: str) -> None:
    fast, seen = play(SERVED[name], LENGTHS)
    assert seen == "mm" + "h" * (len(LENGTHS) - 2), fast.inspect("guards")
    assert not fast.stats().fallbacks
    assert "\nloop " in fast.inspect("plan")
    compiled = fast.stats().compiles
    for n in (77, 300):
        x, h = torch.randn(n, 3, 8), torch.randn(3, WIDE)
        assert_same(fast(x, h), SERVED[name](x, h))
    assert fast.stats().compiles == compiled


@pytest.mark.parametrize("name", SERVED)
def test_few_rounds_or_none_are_as_in_eager(name: str) -> None:
    play(SERVED[name], (10, 12, *SHORT, 15, *SHORT))


@pytest.mark.parametrize("loop", [drops, drops_out, drops_in_place])
def test_random_numbers_are_drawn_in_eager_s_order(loop: Callable[..., Any]) -> None:
    fast = fastjit(loop)
    for n in LENGTHS:
        x, h = torch.randn(n, 3, 8), torch.randn(3, WIDE)
        torch.manual_seed(n)
        theirs, state = loop(x, h), torch.get_rng_state()
        torch.manual_seed(n)
        assert_same(fast(x, h), theirs)
        assert torch.equal(torch.get_rng_state(), state)
    assert fast.stats().hits == len(LENGTHS) - 2, fast.inspect("guards")


def test_tensors_of_the_rounds_are_as_alone_as_eager_s() -> None:
    fast, _ = play(lstm, (10, 12, 9))
    x, h = torch.randn(15, 3, 8), torch.randn(3, WIDE)
    kept, before = x.clone(), h.clone()
    outs, (last, cell) = fast(x, h)
    again = fast(x, h)
    last.add_(1)
    outs.zero_()
    cell.mul_(2)
    assert_same((x, h), (kept, before))
    assert_same(again, lstm(x, h))


def test_a_state_that_is_an_argument_is_not_written_over() -> None:
    fast, _ = play(into_place, (10, 12, 9))
    x, h = torch.randn(15, 3, 8), torch.randn(3, WIDE)
    before = h.clone()
    assert_same(fast(x, h), into_place(x, before))
    assert torch.equal(h, before)


# ---- calls that are not the same in all rounds ----


def rolls_by_the_round(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for t in range(x.size(0)):
        h = torch.roll(torch.tanh(WIDER(h)), t, -1) + x[t, :, :1]
    return h


def another_kth(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(3)
    for t in range(x.size(0)):
        total = total + x[t].kthvalue(1 + t % 8, -1)[0]
    return total


def sorts_in_place(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    h = h.clone()
    for t in range(x.size(0)):
        torch.sort(h + x[t, :, :1], out=(h, torch.empty(3, WIDE, dtype=torch.long)))
    return h


def grows(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    seen = x[0]
    for t in range(1, x.size(0)):
        seen = torch.cat([seen, x[t].sort(-1)[0]])
    return seen


def reads_a_value(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for t in range(x.size(0)):
        h = torch.tanh(WIDER(h))
        if h.sum().item() > 1e9:
            h = h + x[t, :, :1]
    return h


def looks_back(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    states = [h, h]
    for t in range(x.size(0)):
        states.append(torch.tanh(WIDER(states[-1]) + states[-2] * x[t, :, :1]))
    return states[-1]


def draws_from_its_own(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    own = torch.Generator().manual_seed(4)
    for t in range(x.size(0)):
        h = torch.tanh(WIDER(h)) * torch.rand(3, 1, generator=own) + x[t, :, :1]
    return h


def draws_in_place(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for t in range(x.size(0)):
        h = torch.tanh(WIDER(h) + x[t, :, :1]) * torch.empty(3, 1).uniform_(1.0, 1.0)
    return h


OTHERS = {
    fn.__name__: fn
    for fn in (
        draws_in_place, rolls_by_the_round, another_kth, sorts_in_place, grows, reads_a_value, looks_back,
        draws_from_its_own,
    )
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.filterwarnings("ignore")
def test_rounds_that_call_otherwise_are_right(name: str) -> None:
    lengths = [*(n for n in LENGTHS if name != "grows" or n < 40), 14, 15, *SHORT]
    play(OTHERS[name], tuple(n for n in lengths if n > 0 or name != "grows"))


def test_threads_run_other_numbers_of_rounds_at_once() -> None:
    fast, _ = play(lstm, (10, 12, 9))
    seeds = iter(range(3))

    def work() -> None:
        seed = next(seeds)
        generator = torch.Generator().manual_seed(seed)
        for n in range(9 + seed, 24 + seed):
            x, h = torch.randn(n, 3, 8, generator=generator), torch.randn(3, WIDE, generator=generator)
            with torch.no_grad():
                assert_same(fast(x, h), lstm(x, h))

    assert not in_threads(3, work)
    assert not fast.stats().fallbacks


def test_an_error_in_a_later_round_is_eager_s() -> None:
    def inverts(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        state = torch.eye(3)
        for t in range(x.size(0)):
            state = torch.linalg.inv(state + x[t, :, :3] * 0.1) * 0.5 + torch.eye(3)
        return state

    fast, _ = play(inverts, (10, 12, 9))
    x, h = torch.randn(20, 3, 8), torch.randn(3, WIDE)
    x[15, :, :3] = float("nan")
    x[16] = 0
    assert_same(fast(x, h), inverts(x, h))
    singular = torch.zeros(20, 3, 8)
    singular[0, :, :3] = -10 * torch.eye(3)
    with pytest.raises(torch.linalg.LinAlgError) as theirs:
        inverts(singular, h)
    with pytest.raises(torch.linalg.LinAlgError) as ours:
        fast(singular, h)
    assert str(ours.value) == str(theirs.value)


def test_random_programs_of_rounds() -> None:
    parts = (
        "torch.sort({v}, -1)[0]", "WIDER({v})", "torch.cumsum({v}, 0) * 0.1", "torch.flip({v}, [0]).sort(0)[0]",
        "torch.topk({v}, 4, -1)[0].repeat(1, 130)", "torch.tanh({v})", "{v} * x[t, :, :1]", "({v} + {w})",
        "torch.logcumsumexp({v}, 1) * 0.01", "torch.max_pool1d({v}, 2).repeat(1, 2)", "torch.sigmoid({v}) - {w}",
    )  # fmt: skip
    served = 0
    for seed in range(12):
        pick = random.Random(seed)
        lines = ["def f(x, h):", "    a, b, outs = h, h * 0.5, []", "    for t in range(x.size(0)):"]
        for _ in range(pick.randint(2, 4)):
            v, w = pick.sample("ab", 2)
            value = pick.choice(parts).format(v=pick.choice((v, f"({v} - x[t, :, 1:2])")), w=w)
            lines.append(f"        {v} = torch.tanh({value}) + 0.1 * {w}")
        lines += ["        outs.append(a[:, :8])", "    return torch.stack(outs), " + pick.choice(("a", "b", "a + b"))]
        scope: dict[str, Any] = {"torch": torch, "F": F, "WIDER": WIDER}
        exec("\n".join(lines), scope)
        _, seen = play(scope["f"], (10, 12, 9, 17, 11))
        served += seen == "mmhhh"
    assert served == 12
