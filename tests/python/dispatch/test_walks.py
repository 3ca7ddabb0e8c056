"""What loops walk beside range(n): parts of tensors, enumerations, several at once, lists that loops before filled; and
what rounds compute of their index. One program serves every length, and what another reads of it makes it a fact.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import nn

from helpers import play_as_eager
from loop_tools import SHORT, F, H, play, serves_every_length, step

LENGTHS = (10, 12, 9, 20, 50, 13, 11, 33, 120, 9, 12)
torch.manual_seed(3)
CELLS = nn.ModuleList([nn.GRUCell(F, H), nn.GRUCell(H, H)]).requires_grad_(False)
LSTMS = nn.ModuleList([nn.LSTMCell(F, H), nn.LSTMCell(H, H)]).requires_grad_(False)


# ---- what they walk ----


def enumerated(x: torch.Tensor, h: torch.Tensor) -> Any:
    out = x.new_zeros(x.size(0), 3, H)
    for t, row in enumerate(x):
        h = step(row, h)
        out[t] = h
    return out, h


def enumerated_from_two(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for t, row in enumerate(x.unbind(0), 2):
        h = step(row, h) / t
    return h


def side_by_side(x: torch.Tensor, h: torch.Tensor) -> Any:
    outs = []
    for row, other in zip(x, x.flip(0), strict=True):
        h = step(row * other, h)
        outs.append(h)
    return torch.stack(outs)


def three_side_by_side(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for t, (a, b, c) in enumerate(zip(x.unbind(0), x * 2, torch.cumsum(x, 0), strict=False)):
        h = step(a + b - c * 0.1, h) + 0.01 * t
    return h


def slices_of_one(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    outs = []
    for part in x.split(1):
        h = step(part[0], h)
        outs.append(torch.tanh(part))
    return torch.cat(outs)


def kept_parts(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    rows = x.unbind(0)
    h = h * 2
    for t, row in enumerate(rows):
        h = step(row, h) * 0.5 if t > 0 else step(row, h)
    return h


def run(rows: Iterable[torch.Tensor], h: torch.Tensor) -> torch.Tensor:
    for row in rows:
        h = step(row, h)
    return h


def parts_of_a_caller(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    return run(x.unbind(0), h)


def falling(x: torch.Tensor, h: torch.Tensor) -> Any:
    outs = []
    for t in range(x.size(0) - 1, -1, -1):
        h = step(x[t], h)
        outs.append(h)
    return torch.stack(outs), h


def falling_to_one(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for t in range(x.size(0) - 1, 0, -1):
        h = step(x[t] - x[t - 1], h)
    return h


def reversed_range(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(x.size(0), 3, H)
    for t in reversed(range(x.size(0))):
        h = step(x[t], h)
        out[t] = h
    return out


def comprehension(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    return torch.stack([step(row, h) for row in x])


def comprehension_of_indices(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    return torch.stack([step(x[t], h) * (0.01 * t) for t in range(x.size(0))], 1)


def comprehensions(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    rows = [torch.tanh(row) for row in x]
    twice = [row * 2 for row in rows]
    return torch.stack([a + b for a, b in zip(rows, twice, strict=True)])


# ---- lists that they fill ----


def layers(x: torch.Tensor, h: torch.Tensor) -> Any:
    outs, last = x, []
    for cell in CELLS:
        state, filled = torch.zeros_like(h), []
        for row in outs:
            state = cell(row, state)
            filled.append(state)
        outs = filled
        last.append(state)
    return torch.stack(outs), torch.stack(last)


def both_ways(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    n = x.size(0)
    there, back, state = [], [], torch.zeros_like(h)
    for t in range(n):
        state = CELLS[0](x[t], state)
        there.append(state)
    state = torch.zeros_like(h)
    for t in range(n - 1, -1, -1):
        state = CELLS[0](x[t], state)
        back.insert(0, state)
    return torch.cat([torch.stack(there), torch.stack(back)], -1)


def turned(x: torch.Tensor, h: torch.Tensor) -> Any:
    outs = []
    for t in reversed(range(x.size(0))):
        h = step(x[t], h)
        outs.append(h)
    outs.reverse()
    return torch.stack(outs, 1)


def a_turned_copy(x: torch.Tensor, h: torch.Tensor) -> Any:
    outs = []
    for row in x:
        h = step(row, h)
        outs.append(h)
    return torch.stack(outs[::-1]), torch.stack(outs)


def last_item(x: torch.Tensor, h: torch.Tensor) -> Any:
    outs = []
    for row in x:
        h = step(row, h)
        outs.append(h * 2)
    return outs[-1], torch.stack(outs)


def added_to(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    outs = []
    for row in x:
        h = step(row, h)
        outs += [h, h * 2]
    return torch.cat(outs)


def states_in_lists(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    hidden, cell, outs = [h, h * 0.5], [torch.zeros_like(h) for _ in range(2)], []
    for row in x:
        hidden[0], cell[0] = LSTMS[0](row, (hidden[0], cell[0]))
        hidden[1], cell[1] = LSTMS[1](hidden[0], (hidden[1], cell[1]))
        outs.append(hidden[1])
    return torch.stack(outs)


def new_lists(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    hidden, outs = [h, h * 0.5], []
    for row in x:
        new, given = [], row
        for i, cell in enumerate(CELLS):
            given = cell(given, hidden[i])
            new.append(given)
        hidden = new
        outs.append(given)
    return torch.stack(outs)


# ---- what they do with the index ----


def another_first_round(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    outs = []
    for t in range(x.size(0)):
        if t == 0:
            h = h * 0.5
        elif t >= 1:
            h = h + 0.25
        h = step(x[t], h)
        outs.append(h)
    return torch.stack(outs)


def another_last_round(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for t in range(x.size(0)):
        h = step(x[t], h) if t < x.size(0) - 1 else h * 2
    return h


def first_and_last(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    outs = []
    for t, row in enumerate(x):
        if t == 0:
            h = h + 1
        h = step(row, h)
        if t == x.size(0) - 1:
            h = h.sigmoid()
        outs.append(h)
    return torch.stack(outs)


def falling_to_a_last_one(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for t in reversed(range(x.size(0))):
        h = step(x[t], h)
        if t != 0:
            h = h * 0.5
    return h


def by_time(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    dt = 1.0 / x.size(0)
    for i in range(x.size(0)):
        h = h + dt * torch.sin(h * (i * dt) + (2 * i + 1) * 0.125)
    return h


def by_index(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for i in range(x.size(0)):
        h = torch.sin(h + i) - i / x.size(1)
    return h


def masked_by_length(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    lengths = torch.tensor([2, 7, 5])
    for t in range(x.size(0)):
        inside = (t < lengths).unsqueeze(1)
        h = torch.where(inside, step(x[t], h), h)
    return h


def integers(x: torch.Tensor, h: torch.Tensor) -> Any:
    total = torch.zeros(3, dtype=torch.long)
    for t in range(x.size(0)):
        total = total * 3 + t
    return total, h


def falling_numbers(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for t in range(x.size(0) - 1, -1, -1):
        h = torch.cos(h + 0.5 * t) + (x.size(0) - t)
    return h


SERVED = {
    fn.__name__: fn
    for fn in (
        enumerated, enumerated_from_two, side_by_side, three_side_by_side, slices_of_one, kept_parts,
        parts_of_a_caller, falling, falling_to_one, reversed_range, comprehension, comprehension_of_indices,
        comprehensions, layers, both_ways, turned, a_turned_copy, last_item, added_to, states_in_lists, new_lists,
        another_first_round, another_last_round, first_and_last, falling_to_a_last_one, by_time, by_index,
        masked_by_length, integers, falling_numbers,
    )
}  # fmt: skip


@pytest.mark.parametrize("name", SERVED)
def test_one_program_serves_every_length(name: str) -> None:
    serves_every_length(SERVED[name], LENGTHS)


@pytest.mark.parametrize("name", SERVED)
def test_few_rounds_or_none_are_as_in_eager(name: str) -> None:
    play(SERVED[name], (10, 12, *SHORT, 15, *SHORT))


# ---- what hangs on the number of rounds: a program for each ----


def counts_parts(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    rows = x.unbind(0)
    for row in rows:
        h = step(row, h)
    return h * len(rows)


def reads_a_part(x: torch.Tensor, h: torch.Tensor) -> Any:
    rows = x.unbind(0)
    for row in rows:
        h = step(row, h)
    return h, rows[3]


def gives_parts(x: torch.Tensor, h: torch.Tensor) -> Any:
    rows = x.unbind(0)
    for row in rows:
        h = step(row, h)
    return h, rows


def skips(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    rows = iter(x)
    for row in rows:
        h = step(row + next(rows, row), h)
    return h


def counts_both_ways(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    rows, count = x.unbind(0), 0
    for row in rows:
        h = step(row, h)
    for _ in reversed(rows):
        count += 1
    return h * count


def counts_with_an_index(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for i, j in enumerate(range(x.size(0))):
        h = torch.sin(h + i + j)
    return h


def counts_beside_parts(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for i, row in zip(range(x.size(0)), x, strict=False):
        h = step(row, h) + i
    return h


class Counting:
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Any:
        return iter(range(self.count))


def counts_in_a_class(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for i in Counting(x.size(0)):
        h = torch.sin(h + i)
    return h * len(list(Counting(x.size(0))))


def counts_in_c(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    indices = range(x.size(0))
    outs = [step(row, h) for row in x]
    return h * len(list(indices)) + sum(map(len, [outs])) + outs[-1]


def counts_what_a_function_gives(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    outs = [step(row, h) for row in x]
    return outs[-1] * sum(map(len, map(lambda _: outs, (0,))))


def walks_parts_that_a_list_has(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    rows = [row for row in x]
    for row in rows:
        h = step(row, h)
    return h


def walks_one_tensor_again_and_again(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    outs = []
    for row in x:
        outs.append(h)
        h = step(row, h) if h.dim() > 5 else h
    for out in outs:
        h = torch.tanh(h + out)
    return h


def walks_items_of_two_rounds(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    outs, before = [step(row, h) for row in x], h
    for out in outs:
        h = torch.tanh(h + out - before)
        before = out
    return h


def joins_a_list_and_parts(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    outs = [step(row, h) for row in x]
    for out, row in zip(outs, x, strict=True):
        h = step(row, h + out)
    return h


def takes_one_before(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    rows = iter(x)
    h = h if x.size(0) == 0 else step(next(rows), h)
    for row in rows:
        h = step(row, h)
    return h


def one_iterator_twice(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    rows = iter(x.unbind(0))
    for a, b in zip(rows, rows, strict=False):
        h = step(a - b, h)
    return h


def the_shorter(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for a, b in zip(x, x[1:], strict=False):  # noqa: RUF007
        h = step(a - b, h)
    return h


def leaves(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for t, row in enumerate(x):
        if t == 8:
            break
        h = step(row, h)
    return h


def every_hundredth(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for t in range(x.size(0)):
        h = step(x[t], h)
        if t % 16 > 14:
            h = h * 0.5
    return h


def one_before_the_last(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for t in range(x.size(0)):
        h = step(x[t], h) if t != x.size(0) - 2 else h * 2
    return h


def from_a_size(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for t, row in enumerate(x, x.size(0)):
        h = step(row, h) + 0.125 * t
    return h


def divides_by_the_index(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for t in range(x.size(0)):
        h = step(x[t], h) + 1.0 / (t - 40.5)
    return h


def in_front_of_more(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    outs = [h, h * 2]
    for row in x:
        outs.insert(0, step(row, outs[0]))
    return torch.stack(outs)


def first_item(x: torch.Tensor, h: torch.Tensor) -> Any:
    outs = []
    for row in x:
        h = step(row, h)
        outs.append(h)
    return outs[0], outs[len(outs) // 2]


def swapped_lists(x: torch.Tensor, h: torch.Tensor) -> Any:
    a, b = [h, h * 2], [h * 3, h * 4]
    for row in x:
        a[0] = step(row, b[0])
        a, b = b, a
    return a[0], b[0], a[1], b[1]


def one_list_twice(x: torch.Tensor, h: torch.Tensor) -> Any:
    a = b = [h, h * 2]
    for t, row in enumerate(x):
        a[0] = step(row, b[0])
        if t == 11:
            b = list(a)
    return a[0], b[0]


def writes_to_items(x: torch.Tensor, h: torch.Tensor) -> Any:
    outs = [torch.tanh(row) for row in x]
    for out in outs:
        out.mul_(2)
    return torch.stack(outs), [out * 2 for out in outs][-1]


def list_in_a_list(x: torch.Tensor, h: torch.Tensor) -> Any:
    outs: list[list[torch.Tensor]] = [[], []]
    for row in x:
        h = step(row, h)
        outs[0].append(h)
    return torch.stack(outs[0]), outs


def of_a_generator(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    return sum(step(row, h) for row in x)  # type: ignore[return-value]


def appends_while_it_walks(x: torch.Tensor, h: torch.Tensor) -> Any:
    outs = [step(row, h) for row in x]
    more = []
    for out in outs:
        if len(outs) < 30:
            outs.append(out * 0.5)
        more.append(out)
    return torch.stack(more)


OTHERS = {
    fn.__name__: fn
    for fn in (
        walks_parts_that_a_list_has, walks_one_tensor_again_and_again, walks_items_of_two_rounds, counts_both_ways,
        counts_with_an_index, counts_beside_parts, counts_in_a_class, counts_in_c, counts_what_a_function_gives,
        joins_a_list_and_parts, counts_parts, reads_a_part, gives_parts, skips, takes_one_before, one_iterator_twice,
        the_shorter, leaves, every_hundredth, one_before_the_last, from_a_size, divides_by_the_index,
        in_front_of_more, first_item, swapped_lists, one_list_twice, writes_to_items, list_in_a_list, of_a_generator,
        appends_while_it_walks,
    )
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_other_loops_are_as_in_eager(name: str) -> None:
    play(OTHERS[name], (10, 12, 9, 20, 50, 13, 33, 10, 12, 9))


def test_parts_of_tensors_that_are_as_long_by_chance_are_not_one_size() -> None:
    def both(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(3, H)
        for a, b in zip(x, y, strict=False):
            h = step(a - b, h)
        return h

    def pairs() -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
        for n, m in ((10, 10), (12, 12), (9, 9), (20, 20), (12, 9), (9, 12), (14, 14), (0, 7)):
            yield torch.randn(n, 3, F), torch.randn(m, 3, F)

    fast, seen = play_as_eager(both, pairs())
    assert seen[2:4] == "hh" and seen[6] == "h", fast.inspect("guards")
    assert not fast.stats().fallbacks
