"""Loops of Python over a size whose rounds are alike: one program runs any number of rounds.

The first length is a program of its own, the second one makes the loop one of any number of rounds, so that every
other length is a hit. What Python does otherwise in some rounds, or hands on in another way, is a program for each
length, and right all the same. Every test plays its calls in two worlds, eager and compiled.
"""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from fastjit import fastjit
from helpers import assert_same, in_threads
from loop_tools import SHORT, B, F, H, U, W, play, serves_every_length, step

LENGTHS = (10, 12, 9, 20, 50, 13, 11, 33, 300, 9, 12)
torch.manual_seed(3)
TABLE = torch.randn(40, H)
LOG: list[int] = []


# ---- loops that one program serves ----


def stacked(x: torch.Tensor, h: torch.Tensor) -> Any:
    outs = []
    for t in range(x.size(0)):
        h = torch.tanh(x[t] @ W + h @ U + B)
        outs.append(h)
    return torch.stack(outs), h


def last_state(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for t in range(len(x)):
        h = step(x[t], h)
    return h


def into_place(x: torch.Tensor, h: torch.Tensor) -> Any:
    n = x.shape[0]
    out = torch.empty(n, x.shape[1], H)
    for t in range(n):
        h = step(x[t], h)
        out[t] = h
    return out, h


def backwards(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    n, outs = x.shape[0], []
    for t in range(n):
        h = step(x[n - 1 - t], h)
        outs.append(h)
    return torch.stack(outs, 1)


def first_is_another(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    state, outs = None, []
    for t in range(x.size(0)):
        z = x[t] @ W
        state = z.tanh() if state is None else torch.tanh(z + state @ U)
        outs.append(state.unsqueeze(0))
    return torch.cat(outs)


def pointwise(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    y, all_of_it = torch.zeros_like(x[0]), []
    for t in range(x.size(0)):
        y = 0.9 * y + x[t]
        all_of_it.append(y)
    return torch.stack(all_of_it)


def from_one(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    h = x[0] @ W
    for t in range(1, x.size(0)):
        h = torch.sigmoid(h @ U + x[t] @ W) * h + x[t - 1] @ W
    return h


def but_the_last(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for t in range(x.size(0) - 1):
        h = step(x[t] + x[t + 1], h)
    return h + x[-1] @ W


def in_columns(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    x, outs = x.transpose(0, 1), []
    for t in range(x.size(1)):
        h = torch.relu(x[:, t] @ W + h @ U)
        outs.append(h)
    return torch.stack(outs, dim=1)


def output_first(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    outs = []
    for t in range(x.size(0)):
        outs.append(torch.sigmoid(h))
        h = step(x[t], h)
    return torch.stack(outs)


def in_a_tuple(x: torch.Tensor, h: torch.Tensor) -> Any:
    state = (h, torch.zeros_like(h))
    for t in range(x.size(0)):
        h, c = state
        c = c * 0.5 + x[t] @ W
        state = (torch.tanh(h @ U + c), c)
    return state


def two_lists(x: torch.Tensor, h: torch.Tensor) -> Any:
    states, sums = [h], []
    for t in range(x.size(0)):
        h = step(x[t], h)
        states.append(h)
        sums.append(h.sum(-1))
    return torch.stack(states), torch.stack(sums, -1)


def two_loops(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    outs = []
    for t in range(x.size(0)):
        h = step(x[t], h)
        outs.append(h)
    y = torch.stack(outs)
    for t in range(y.size(0)):
        h = torch.tanh(y[t] @ U - h)
    return h


class Cell(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.of_input, self.of_state = nn.Linear(inputs, 2 * H), nn.Linear(H, 2 * H)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        gate, new = (self.of_input(x) + self.of_state(h)).chunk(2, -1)
        gate = gate.sigmoid()
        return gate * h + (1 - gate) * new.tanh()


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.cells, self.out = nn.ModuleList([Cell(F), Cell(H)]), nn.Linear(H, 3)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> Any:
        first = second = h
        outs = []
        for t in range(x.size(0)):
            first = self.cells[0](x[t], first)
            second = self.cells[1](first, second)
            outs.append(self.out(second))
        return torch.stack(outs), second


LAYERS = Layers()


def modules(x: torch.Tensor, h: torch.Tensor) -> Any:
    return LAYERS(x, h)


def cell_of_torch(x: torch.Tensor, h: torch.Tensor) -> Any:
    for t in range(x.size(0)):
        h = RNN(x[t], h)
    return h


def of_both_states(x: torch.Tensor, h: torch.Tensor) -> Any:
    a, b = h, h * 0.5
    for t in range(x.size(0)):
        a = torch.tanh(a + b) + 0.1 * b
        b = step(x[t], b) * a
    return a, b


def of_both_states_alone(x: torch.Tensor, h: torch.Tensor) -> Any:
    a, b = h * 0.5, h + x[0] @ W
    for _ in range(x.size(0)):
        total, product = a + b, a * b
        a, b = torch.tanh(total @ U), torch.sigmoid(product @ U)
    return a, b


def over_rows(x: torch.Tensor, h: torch.Tensor) -> Any:
    outs = []
    for row in x:
        h = step(row, h)
        outs.append(h)
    return torch.stack(outs), h


def over_columns(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for column in x.transpose(0, 1).unbind(1):
        h = step(column, h)
    return h


def over_parts(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    h = h + 1
    for part in torch.unbind(torch.tanh(x), dim=-3):
        h = torch.sigmoid(h @ U) + part @ W
    return h


def the_last_row(x: torch.Tensor, h: torch.Tensor) -> Any:
    for row in x:
        h = step(row, h)
    return h, row * 2


def over_rows_twice(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for row in x:
        h = step(row, h)
    for row in x:
        h = torch.sigmoid(h @ U + row @ W)
    return h


def twice_over_all(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for t in range(x.size(0)):
        h = step(x[t], h)
    for t in range(x.size(0)):
        h = torch.sigmoid(h @ U + x[t] @ W)
    return h + x[-1] @ W


RNN = nn.RNNCell(F, H)

SERVED = {
    fn.__name__: fn
    for fn in (
        stacked, last_state, into_place, backwards, first_is_another, pointwise, from_one, but_the_last, in_columns,
        output_first, in_a_tuple, two_lists, two_loops, modules, cell_of_torch,
        of_both_states, of_both_states_alone, over_rows, over_columns, over_parts, the_last_row, over_rows_twice,
        twice_over_all,
    )
}  # fmt: skip


@pytest.mark.parametrize("name", SERVED)
def test_one_program_serves_any_number_of_rounds(name: str) -> None:
    fast = serves_every_length(SERVED[name], LENGTHS)
    kernels = fast.stats().compiles
    play_more = [(torch.randn(n, 3, F), torch.randn(3, H)) for n in (77, 1000)]
    for x, h in play_more:
        assert_same(fast(x, h), SERVED[name](x, h))
    assert fast.stats().compiles == kernels


@pytest.mark.parametrize("name", SERVED)
def test_few_rounds_or_none_are_as_in_eager(name: str) -> None:
    play(SERVED[name], (10, 12, *SHORT, 15, *SHORT))


def draws_for_nothing(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for _ in range(x.size(0)):
        torch.rand_like(h)
    return h + 1


def draws_for_the_last(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    noise = h
    for t in range(x.size(0)):
        noise = torch.rand_like(h) + x[t] @ W
    return h + noise


@pytest.mark.parametrize("fn", [draws_for_nothing, draws_for_the_last])
def test_each_round_draws_numbers_that_nobody_reads(fn: Callable[..., Any]) -> None:
    def seeded(f: Callable[..., Any], x: torch.Tensor, h: torch.Tensor) -> Any:
        torch.manual_seed(0)
        return f(x, h), torch.get_rng_state()

    fast = fastjit(fn)
    for n in LENGTHS:
        x, h = torch.randn(n, 3, F), torch.randn(3, H)
        assert_same(seeded(fast, x, h), seeded(fn, x, h))
    assert fast.stats().hits == len(LENGTHS) - 2
    assert not fast.stats().fallbacks
    assert re.search(r"^loop \d+\n    extern", str(fast.inspect("plan")), re.MULTILINE)


# ---- loops whose rounds are not alike, or whose values another number of rounds would move ----


def at_seven(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for t in range(x.size(0)):
        h = step(x[t], h)
        if t == 14:
            h = h * 2
    return h


def by_turns(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for t in range(x.size(0)):
        h = step(x[t], h) if t % 2 else h * 0.5
    return h


def counted(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    count = 0
    for t in range(x.size(0)):
        count += 1  # noqa: SIM113
        if count > 15:
            h = h - 1
        h = step(x[t], h)
    return h


def counted_by_a_size(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    count = x.size(1)
    for t in range(x.size(0)):
        count = count + x.size(1)
        h = step(x[t], h) if count < 50 else h * 0.5
    return h


def three_ago(x: torch.Tensor, h: torch.Tensor) -> Any:
    a = b = c = h
    for t in range(x.size(0)):
        a, b, c = b, c, h
        h = step(x[t], h)
    return a, b


def inputs_ago(x: torch.Tensor, h: torch.Tensor) -> Any:
    before = now = x[0]
    for t in range(x.size(0)):
        before, now = now, x[t]
        h = step(now, h)
    return before, h


def swapped(x: torch.Tensor, h: torch.Tensor) -> Any:
    a, b = h + 1, h - 1
    for t in range(x.size(0)):
        a, b = b, a
        h = step(x[t], h)
    return a, b, h


def swapped_sizes(x: torch.Tensor, h: torch.Tensor) -> Any:
    a, b = x.size(0), x.size(1)
    for t in range(x.size(0)):
        a, b = b, a
        h = step(x[t], h)
    return h * a - b


def swapped_items(x: torch.Tensor, h: torch.Tensor) -> Any:
    both = [h + 1, h - 1]
    for t in range(x.size(0)):
        both[0], both[1] = both[1], both[0]
        h = step(x[t], h)
    return both[0], h


def index_ago(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    before = now = 0
    for t in range(x.size(0)):
        before, now = now, t
        h = step(x[t], h)
    return h + x[before] @ W


def last_index(x: torch.Tensor, h: torch.Tensor) -> Any:
    for t in range(x.size(0)):
        h = step(x[t], h)
    return h * t, t


def state_before(x: torch.Tensor, h: torch.Tensor) -> Any:
    before = h
    for t in range(x.size(0)):
        before = h
        h = step(x[t], h)
    return before, h


def by_index(x: torch.Tensor, h: torch.Tensor) -> Any:
    kept = {}
    for t in range(x.size(0)):
        h = step(x[t], h)
        kept[t] = h
    return torch.stack(list(kept.values()))


def reads_its_list(x: torch.Tensor, h: torch.Tensor) -> Any:
    outs = [h]
    for t in range(x.size(0)):
        outs.append(step(x[t], outs[-1]))
    return outs[-1]


def asks_its_list(x: torch.Tensor, h: torch.Tensor) -> Any:
    outs: list[torch.Tensor] = []
    for t in range(x.size(0)):
        h = step(x[t], h) if len(outs) < 15 else h * 0.5
        outs.append(h)
    return torch.stack(outs)


def gives_its_list(x: torch.Tensor, h: torch.Tensor) -> Any:
    outs: list[torch.Tensor] = []
    kept = {"all": outs}
    for t in range(x.size(0)):
        h = step(x[t], h)
        outs.append(h)
    return torch.stack(outs), kept


def counts_its_list(x: torch.Tensor, h: torch.Tensor) -> Any:
    outs = []
    for t in range(x.size(0)):
        h = step(x[t], h)
        outs.append(h)
    return torch.stack(outs) / len(outs), outs[3]


def one_tensor_again(x: torch.Tensor, h: torch.Tensor) -> Any:
    outs, h = [], h.clone()
    for t in range(x.size(0)):
        h.add_(x[t] @ W)
        outs.append(h)
    return torch.stack(outs)


def leaves_early(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for t in range(x.size(0)):
        if t == 14:
            break
        h = step(x[t], h)
    return h


def returns_early(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for t in range(x.size(0)):
        h = step(x[t], h)
        if t > 13:
            return h * 2
    return h


def walks_on(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    scales = iter([1.0] * 15 + [2.0] * 1000)
    for t in range(x.size(0)):
        h = step(x[t], h) * next(scales)
    return h


def grows(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    seen = h[:, :0]
    for t in range(x.size(0)):
        h = step(x[t], h)
        seen = torch.cat([seen, h[:, :1]], 1)
        if seen.size(1) > 15:
            h = h * 0.5
    return h


def shifts_a_list(x: torch.Tensor, h: torch.Tensor) -> Any:
    last = [h, h, h]
    for t in range(x.size(0)):
        h = step(x[t], h)
        last = [last[1], last[2], h]
    return last


def reads_a_value(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for t in range(x.size(0)):
        h = step(x[t], h)
        if h.sum() > 100:
            h = h - 1
    return h


def draws(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for t in range(x.size(0)):
        h = step(x[t], h) * torch.rand(())
    return h


def draws_in_python(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    generator = random.Random(0)
    for t in range(x.size(0)):
        h = step(x[t], h) * generator.random()
    return h


def writes_an_argument(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for t in range(x.size(0)):
        h.add_(x[t] @ W)
    return h * 2


def of_a_table(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for t in range(x.size(0)):
        h = step(x[t], h) + TABLE[t]
    return h


def windows(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for t in range(x.size(0)):
        h = step(x[t : t + 2].sum(0), h)
    return h


def scaled(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for t in range(x.size(0)):
        h = step(x[t], h) + 0.1 * t
    return h


def squares(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    n = x.size(0)
    for t in range(n):
        h = step(x[t * t // n], h)
    return h


def logs(x: torch.Tensor, h: torch.Tensor) -> Any:
    LOG.clear()
    for t in range(x.size(0)):
        h = step(x[t], h)
        LOG.append(t)
    return h, list(LOG)


def at_the_end(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    n = x.size(0)
    for t in range(n):
        h = step(x[t], h)
        if t == n - 1:
            h = h * 2
    return h


def in_a_comprehension(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    return torch.stack([step(x[t], h) for t in range(x.size(0))])


def sums(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    return sum(step(x[t], h) for t in range(x.size(0)))


def nested(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for t in range(x.size(0)):
        for s in range(x.size(0)):
            h = h * 0.9 + x[s, :, :1] * x[t, :, 1:2]
    return h


def of_a_generator(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    def steps() -> Any:
        for t in range(x.size(0)):
            yield x[t]

    for xt in steps():
        h = step(xt, h)
    return h


class Counter:
    def __init__(self) -> None:
        self.count = 0


def counts_in_an_object(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    counter = Counter()
    for t in range(x.size(0)):
        counter.count += 1
        h = step(x[t], h) if counter.count < 15 else h * 0.5
    return h


def counts_in_a_closure(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    count = 0

    def more(h: torch.Tensor) -> torch.Tensor:
        nonlocal count
        count += 1
        return h if count < 15 else h * 0.5

    for t in range(x.size(0)):
        h = more(step(x[t], h))
    return h


def counts_in_an_outer_function(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    count = 0

    def more(h: torch.Tensor) -> torch.Tensor:
        nonlocal count
        count += 1
        return h if count < 15 else h * 0.5

    def run(h: torch.Tensor) -> torch.Tensor:
        for t in range(x.size(0)):
            h = more(step(x[t], h))
        return h

    return run(h)


def walks_in_a_list(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    scales = iter([1.0, 2.0] * 500)
    for t in range(x.size(0)):
        if 2.0 in scales:
            h = step(x[t], h)
    for s in scales:
        return h * s
    return h


def swapped_by_copies(x: torch.Tensor, h: torch.Tensor) -> Any:
    a, c = h + 1, h * 0.5
    for t in range(x.size(0)):
        a, c = c.clone(), a * 1.0
        h = step(x[t], h)
    return a, c, h


def swapped_in_place(x: torch.Tensor, h: torch.Tensor) -> Any:
    a, c = h + 1, h * 0.5
    for t in range(x.size(0)):
        before = a.clone()
        a.copy_(c)
        c.copy_(before)
        h = step(x[t], h)
    return a, c, h


def swapped_by_arithmetic(x: torch.Tensor, h: torch.Tensor) -> Any:
    a, c = h + 1, h * 0.5
    for t in range(x.size(0)):
        a, c = c * 1.0, a / 1.0
        h = step(x[t], h)
    return a, c, h


def rows_twice_at_once(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for row, again in zip(x, x, strict=True):
        h = step(row + again, h)
    return h


def counted_rows(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for t, row in enumerate(x):
        h = step(row, h) * (1 if t < 14 else 2)
    return h


def keeps_its_rows(x: torch.Tensor, h: torch.Tensor) -> Any:
    rows = []
    for row in x:
        rows.append(row)
        h = step(row, h)
    return h, torch.stack(rows), rows[0]


def row_before(x: torch.Tensor, h: torch.Tensor) -> Any:
    before = torch.zeros_like(x[0])
    for row in x:
        h = step(row - before, h)
        before = row
    return h, before


def knows_its_parts(x: torch.Tensor, h: torch.Tensor) -> Any:
    parts = x.unbind()
    for part in parts:
        h = step(part, h)
    return h, len(parts), parts[-1]


def asked_before(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    def made() -> Any:
        parts = x.unbind()
        LOG.append(len(parts))
        return iter(parts)

    LOG.clear()
    for part in made():
        h = step(part, h)
    return h * len(LOG)


def some_rows(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    rows = iter(x)
    h = step(next(rows), h) * 2
    for row in rows:
        h = step(row, h)
    return h


def stops_at_a_row(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    at = 0
    for row in x:
        h = step(row, h)
        at += 1  # noqa: SIM113
        if at == 11:
            break
    return h


def rows_in_a_comprehension(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    return torch.stack([step(row, h) for row in x])


def rows_of_rows(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for row in x:
        for part in row:
            h = step(part.expand(3, F), h)
    return h


def rows_written_to(x: torch.Tensor, h: torch.Tensor) -> Any:
    x = x.clone()
    for row in x:
        row.mul_(2)
        h = step(row, h)
    return x, h


def result_of_rows(x: torch.Tensor, h: torch.Tensor) -> Any:
    for row in x:
        h = step(row, h)
    return h, row


OTHERS = {
    fn.__name__: fn
    for fn in (
        at_seven, by_turns, counted, counted_by_a_size, three_ago, inputs_ago, swapped, swapped_sizes, swapped_items,
        index_ago, last_index, state_before, by_index, reads_its_list, asks_its_list, gives_its_list, counts_its_list,
        one_tensor_again, leaves_early, returns_early, walks_on, grows, shifts_a_list, reads_a_value, draws,
        draws_in_python, writes_an_argument, of_a_table, windows, scaled, squares, logs, at_the_end,
        in_a_comprehension, sums, nested, of_a_generator, counts_in_an_object, counts_in_a_closure,
        counts_in_an_outer_function, walks_in_a_list, swapped_by_copies, swapped_in_place, swapped_by_arithmetic,
        rows_twice_at_once, counted_rows, keeps_its_rows, row_before, knows_its_parts, asked_before, some_rows,
        stops_at_a_row, rows_in_a_comprehension, rows_of_rows, rows_written_to, result_of_rows,
    )
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_rounds_that_are_not_alike_are_right(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lengths = tuple(n for n in LENGTHS if n < (20 if name in ("nested", "rows_of_rows") else 1000))
        play(OTHERS[name], (*lengths, 14, 15, 16, 17, 41, *SHORT))


def test_threads_run_other_numbers_of_rounds_at_once() -> None:
    fast, _ = play(stacked, (10, 12))

    seeds = iter(range(4))

    def work() -> None:
        seed = next(seeds)
        generator = torch.Generator().manual_seed(seed)
        for n in range(9 + seed, 40 + seed):
            x, h = torch.randn(n, 3, F, generator=generator), torch.randn(3, H, generator=generator)
            with torch.no_grad():
                assert_same(fast(x, h), stacked(x, h))

    assert not in_threads(4, work)
    assert not fast.stats().fallbacks


def test_batches_and_rounds_differ_at_once() -> None:
    fast = fastjit(stacked)
    for n, m in ((10, 3), (12, 5), (9, 7), (30, 2), (11, 64)):
        x, h = torch.randn(n, m, F), torch.randn(m, H)
        assert_same(fast(x, h), stacked(x, h))
    assert fast.stats().hits == 3, fast.inspect("guards")


def test_the_guards_say_how_few_rounds_there_may_be() -> None:
    fast, _ = play(last_state, (10, 12, 9))
    assert "x.size(0) >= 2" in fast.inspect("guards")
    assert "is one size" not in fast.inspect("guards")


@pytest.mark.parametrize(("fn", "lines"), [(at_seven, 1), (three_ago, 2)])
def test_the_guards_say_which_loop_fixes_a_size(fn: Callable[..., Any], lines: int) -> None:
    fast, _ = play(fn, (10, 12))
    line = fn.__code__.co_firstlineno + lines
    wanted = f"x.size(0) is one size for the loop at test_any_trip.py:{line}, whose rounds are not alike"
    assert wanted in fast.inspect("guards")


@torch.enable_grad()
def test_with_gradients_each_number_of_rounds_is_a_program() -> None:
    fast = fastjit(last_state)
    for n in (10, 12, 9):
        x, h = torch.randn(n, 3, F), torch.randn(3, H, requires_grad=True)
        theirs = h.detach().clone().requires_grad_()
        fast(x, h).sum().backward()
        last_state(x, theirs).sum().backward()
        assert_same(h.grad, theirs.grad)
    assert fast.stats().misses == 3
