"""Loops over a length whose results need gradients: one program serves every length, there and back.

The first call is a program of its own, the second one makes the loop one of any number of rounds, and the third tells
sizes in autograd's formulas from other numbers: every length after these is a hit.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fastjit
from gradient_tools import assert_same

IN, HIDDEN, BATCH = 4, 8, 3
LENGTHS = (7, 9, 8, 20, 5, 12, 33, 15, 64, 9, 7)


class Net(nn.Module):
    def __init__(self, loop: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.loop = loop
        self.gru, self.lstm = nn.GRUCell(IN, HIDDEN), nn.LSTMCell(IN, HIDDEN)
        self.rnn, self.upper = nn.RNNCell(IN, HIDDEN), nn.GRUCell(HIDDEN, HIDDEN)
        self.out, self.inner, self.norm = nn.Linear(HIDDEN, 5), nn.Linear(IN, IN), nn.LayerNorm(HIDDEN)
        self.tokens = nn.Embedding(10, IN)
        self.w = nn.Parameter(torch.randn(IN, HIDDEN) / 2)
        self.u = nn.Parameter(torch.randn(HIDDEN, HIDDEN) / 3)
        self.b = nn.Parameter(torch.randn(HIDDEN))
        self.decay = nn.Parameter(torch.tensor(0.3))
        self.places = nn.Parameter(torch.randn(16, HIDDEN))

    def step(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.w + h @ self.u + self.b)

    def forward(self, x: torch.Tensor, h: torch.Tensor, y: torch.Tensor, tokens: torch.Tensor) -> Any:
        return self.loop(self, x, h, y, tokens)


Loop = Callable[[Net, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], Any]


# ---- loops ----


def all_states(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    outs = []
    for t in range(x.size(0)):
        h = net.gru(x[t], h)
        outs.append(h)
    return net.out(torch.stack(outs))


def last_state(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    for t in range(x.size(0)):
        h = net.gru(x[t], h)
    return net.out(h)


def two_states(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    outs, c = [], h
    for t in range(x.size(0)):
        h, c = net.lstm(x[t], (h, c))
        outs.append(h)
    return torch.stack(outs)


def several_results(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    outs, c = [], h
    for t in range(x.size(0)):
        h, c = net.lstm(x[t], (h, c))
        outs.append(h)
    return torch.stack(outs), h, c


def loss_of_each_round(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    loss = 0.0
    for t in range(x.size(0)):
        h = net.gru(x[t], h)
        loss = loss + F.mse_loss(net.out(h), y[t])
    return loss


def mean_of_losses(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    loss = x.new_zeros(())
    for t in range(x.size(0)):
        h = net.rnn(x[t], h)
        loss += F.cross_entropy(net.out(h), tokens[t] % 5)
    return loss / x.size(0)


def a_layer_before(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    x, outs = net.inner(x), []
    for t in range(x.size(0)):
        h = net.step(x[t], h)
        outs.append(h)
    return torch.stack(outs)


def a_layer_before_batches(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    x, outs = net.inner(x.transpose(0, 1)), []
    for t in range(x.size(1)):
        h = net.step(x[:, t], h)
        outs.append(h)
    return torch.stack(outs, dim=1)


def an_embedding_before(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    x, outs = net.tokens(tokens), []
    for t in range(x.size(0)):
        h = net.gru(x[t], h)
        outs.append(h)
    return net.out(torch.stack(outs))


def rows(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    outs = []
    for row in x:
        h = net.step(row, h)
        outs.append(h)
    return torch.stack(outs)


def rows_of_a_layer(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    outs = []
    for _, row in enumerate(net.inner(x)):
        h = net.step(row, h)
        outs.append(h)
    return torch.stack(outs)


def rows_side_by_side(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    loss = 0.0
    for row, wanted in zip(x, y, strict=True):
        h = net.step(row, h)
        loss = loss + (net.out(h) - wanted).square().sum()
    return loss


def backwards(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    x, outs = net.inner(x), []
    for t in range(x.size(0) - 1, -1, -1):
        h = net.step(x[t], h)
        outs.append(h)
    return torch.stack(outs[::-1])


def both_ways(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    there = back = h
    outs, turned = [], []
    for t in range(x.size(0)):
        there = net.gru(x[t], there)
        outs.append(there)
    for t in reversed(range(x.size(0))):
        back = net.rnn(x[t], back)
        turned.insert(0, back)
    return torch.cat([torch.stack(outs), torch.stack(turned)], -1)


def from_the_first_state_on(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    outs = [h]
    for t in range(x.size(0)):
        h = net.step(x[t], h)
        outs.append(h)
    return torch.stack(outs)


def joined_by_cat(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    outs = []
    for t in range(x.size(0)):
        h = net.step(x[t], h)
        outs.append(h.unsqueeze(1))
    return torch.cat(outs, 1)


def joined_by_rows(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    outs = []
    for t in range(x.size(0)):
        h = net.step(x[t], h)
        outs.append(h)
    return torch.cat(outs, 0)


def leaky(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    drive, outs = x @ net.w, []
    for t in range(x.size(0)):
        h = net.decay * h + (1 - net.decay) * drive[t]
        outs.append(h)
    return torch.stack(outs)


def a_row_twice(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    drive, outs = x @ net.w, []
    for t in range(x.size(0)):
        h = torch.tanh(drive[t] + h @ net.u) * torch.sigmoid(drive[t])
        outs.append(h)
    return torch.stack(outs)


def normed(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    outs = []
    for t in range(x.size(0)):
        h = net.norm(torch.relu(x[t] @ net.w + h @ net.u))
        outs.append(h)
    return torch.stack(outs).mean(0)


def two_layers_at_once(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    lower = upper = h
    outs = []
    for t in range(x.size(0)):
        lower = net.gru(x[t], lower)
        upper = net.upper(lower, upper)
        outs.append(upper)
    return torch.stack(outs)


def lower_states(net: Net, x: torch.Tensor, h: torch.Tensor) -> list[torch.Tensor]:
    states = []
    for t in range(x.size(0)):
        h = net.gru(x[t], h)
        states.append(h)
    return states


def two_layers_one_by_one(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    upper, outs = h, []
    for state in lower_states(net, x, h):
        upper = net.upper(state, upper)
        outs.append(upper)
    return torch.stack(outs)


def two_layers_by_a_stack(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    below, upper, outs = torch.stack(lower_states(net, x, h)), h, []
    for t in range(below.size(0)):
        upper = net.upper(below[t], upper)
        outs.append(upper)
    return torch.stack(outs)


def rows_of_a_table(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    for t in range(x.size(0)):
        h = torch.tanh(x[t] @ net.w + net.places[t] + h @ net.u)
    return h


def steps_in_time(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    for _ in range(x.size(0)):
        h = h + 0.1 * torch.tanh(h @ net.u + net.b)
    return h


def masked(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    mask, outs = (y[..., :1] > 0).double(), []
    for t in range(x.size(0)):
        h = mask[t] * net.step(x[t], h) + (1 - mask[t]) * h
        outs.append(h)
    return torch.stack(outs)


def attending(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    memory, outs = x @ net.w, []
    for t in range(x.size(0)):
        weights = torch.softmax((memory * h).sum(-1), 0)
        h = torch.tanh(x[t] @ net.w + (weights.unsqueeze(-1) * memory).sum(0) @ net.u)
        outs.append(h)
    return torch.stack(outs)


def around_the_loop(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    drive, outs = x @ net.w, []
    for t in range(x.size(0)):
        h = torch.tanh(drive[t] + h @ net.u)
        outs.append(h)
    return torch.stack(outs) + drive


def differences(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    outs = []
    for t in range(1, x.size(0)):
        h = net.step(x[t] - x[t - 1], h)
        outs.append(h)
    return torch.stack(outs)


def after_a_burn_in(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    with torch.no_grad():
        for t in range(x.size(0)):
            h = net.gru(x[t], h)
    outs = []
    for t in range(x.size(0)):
        h = net.step(x[t], h)
        outs.append(h)
    return torch.stack(outs)


def beside_one_that_nobody_trains(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    other, outs = h, []
    for t in range(x.size(0)):
        other = net.gru(x[t], other)
    for t in range(x.size(0)):
        h = net.step(x[t], h)
        outs.append(h)
    return torch.stack(outs), other.detach()


def into_a_buffer(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    out = x.new_zeros(x.size(0), BATCH, HIDDEN)
    for t in range(x.size(0)):
        h = net.step(x[t], h)
        out[t] = h
    return out


def into_columns(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    out = torch.zeros(BATCH, x.size(0), HIDDEN, dtype=x.dtype)
    for t in range(x.size(0)):
        h = net.gru(x[t], h)
        out[:, t] = h
    return net.out(out)


def into_two_buffers_from_the_end(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    hs, ys = x.new_empty(x.size(0), BATCH, HIDDEN), torch.zeros_like(y)
    for t in reversed(range(x.size(0))):
        h = net.step(x[t], h)
        hs[t], ys[t] = h, net.out(h)
    return hs * 2, ys


def of_a_decoder(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    encoded = []
    for t in range(x.size(0)):
        h = net.gru(x[t], h)
        encoded.append(h)
    memory, out = torch.stack(encoded), torch.zeros_like(y)
    for t in range(1, x.size(0)):
        weights = torch.softmax((memory * h).sum(-1), 0)
        context = (weights.unsqueeze(-1) * memory).sum(0)
        h = net.upper(F.dropout(context, 0.1), net.gru(net.tokens(tokens[t - 1]), h))
        out[t] = net.out(h)
    return out


def an_embedding_in_each_round(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    """Its gradient is a call of torch's: inputs that rounds read were given up as if all calls had as many rounds."""
    for t in range(x.size(0)):
        h = torch.tanh(net.tokens(tokens[t]) @ net.w + h @ net.u)
    return h


def a_memory_that_all_steps_read(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    """Its gradient is added in place to what a round has made: the first loop's way back took the value before that."""
    memory, outs = torch.stack(lower_states(net, x, h)), []
    for t in range(x.size(0)):
        h = torch.tanh(x[t] @ net.w + memory.mean(0) * h)
        outs.append(h)
    return torch.stack(outs)


def with_dropout(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    outs = []
    for t in range(x.size(0)):
        h = F.dropout(net.step(F.dropout(x[t], 0.2), h), 0.3)
        outs.append(h)
    return net.out(torch.stack(outs))


SERVED: list[Loop] = [
    all_states,
    last_state,
    two_states,
    several_results,
    loss_of_each_round,
    mean_of_losses,
    a_layer_before,
    a_layer_before_batches,
    an_embedding_before,
    rows,
    rows_of_a_layer,
    rows_side_by_side,
    backwards,
    both_ways,
    from_the_first_state_on,
    joined_by_cat,
    joined_by_rows,
    leaky,
    a_row_twice,
    normed,
    two_layers_at_once,
    two_layers_one_by_one,
    two_layers_by_a_stack,
    steps_in_time,
    masked,
    attending,
    around_the_loop,
    differences,
    after_a_burn_in,
    beside_one_that_nobody_trains,
    an_embedding_in_each_round,
    a_memory_that_all_steps_read,
    with_dropout,
    into_a_buffer,
    into_columns,
    into_two_buffers_from_the_end,
    of_a_decoder,
]


# ---- loops of other kinds ----


def the_first_state_in_front(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    out = x.new_zeros(x.size(0) + 1, BATCH, HIDDEN)
    out[0] = torch.tanh(h @ net.u)
    for t in range(x.size(0)):
        h = net.step(x[t], h)
        out[t + 1] = h
    return out


def a_buffer_that_rounds_read(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    out, total = x.new_zeros(x.size(0), BATCH, HIDDEN), 0.0
    for t in range(x.size(0)):
        total = total + out.sum(0)
        h = net.step(x[t], h)
        out[t] = h
    return out, total


def adds_to_a_buffer(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    out = x @ net.w
    for t in range(x.size(0)):
        h = net.step(x[t], h)
        out[t] += h
    return out


def over_a_computed_buffer(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    out = x @ net.w
    for t in range(2, x.size(0)):
        h = net.step(x[t], h)
        out[t] = h
    return out


def into_a_long_buffer(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    out = x.new_zeros(2 * x.size(0), BATCH, HIDDEN)
    for t in range(x.size(0)):
        h = net.step(x[t], h)
        out[t] = h
    return out


def cut_off_each_round(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    outs = []
    for t in range(x.size(0)):
        h = net.step(x[t], h.detach())
        outs.append(h)
    return torch.stack(outs)


def another_first_round(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    outs = []
    for t in range(x.size(0)):
        h = net.step(x[t], h) if t else torch.tanh(x[t] @ net.w)
        outs.append(h)
    return torch.stack(outs)


def some_rounds_only(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    loss = torch.zeros((), dtype=x.dtype)
    for t in range(x.size(0)):
        h = net.step(x[t], h)
        if t % 3 == 1:
            loss = loss + h.square().sum()
    return loss


def one_round_in_the_middle(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    outs = []
    for t in range(x.size(0)):
        h = net.step(x[t], h)
        outs.append(h)
    return outs[2] + outs[-1]


def not_through_some(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    for t in range(x.size(0)):
        if t == x.size(0) // 2:
            h = h.detach()
        h = net.step(x[t], h)
    return h


def pairs_of_states(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    before, outs = h, []
    for t in range(x.size(0)):
        h, before = net.step(x[t], h) + 0.1 * before, h
        outs.append(h)
    return torch.stack(outs)


def part_of_the_rows(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    x, outs = net.inner(x), []
    for t in range(2, x.size(0)):
        h = net.step(x[t], h)
        outs.append(h)
    return torch.stack(outs)


def its_own_backward(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    loss = 0.0
    for t in range(x.size(0)):
        h = net.step(x[t], h)
        loss = loss + h.square().mean()
    return torch.autograd.grad(loss, [net.w, net.u]) if x.size(0) else None


def states_that_a_loop_turns(net: Net, x: Any, h: Any, y: Any, tokens: Any) -> Any:
    """The way back reads transposed states, views that rounds of the first loop make: the planner saw through them."""
    drive, outs, states = net.tokens(tokens) @ net.w, [], []
    for t in range(1, x.size(0)):
        h = torch.tanh(drive[t] + h @ net.u)
        h = net.decay * h + (1 - net.decay) * drive[t]
        states.append(h)
    upper = h * 0.3
    for state in states:
        upper = torch.tanh(state @ net.u + upper @ net.upper.weight_hh[:HIDDEN])
        outs.append(upper)
    return torch.cat([h, *outs])


OTHERS: list[Loop] = [
    the_first_state_in_front,
    a_buffer_that_rounds_read,
    adds_to_a_buffer,
    over_a_computed_buffer,
    into_a_long_buffer,
    cut_off_each_round,
    another_first_round,
    some_rounds_only,
    one_round_in_the_middle,
    not_through_some,
    pairs_of_states,
    part_of_the_rows,
    its_own_backward,
    states_that_a_loop_turns,
]


# ---- playing them ----


def inputs(length: int) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(length)
    x, h, y = (
        torch.randn(*sizes, dtype=torch.float64) for sizes in ((length, BATCH, IN), (BATCH, HIDDEN), (length, BATCH, 5))
    )
    return x, h, y, torch.randint(0, 10, (length, BATCH))


def total(results: Any, which: tuple[int, ...] = ()) -> torch.Tensor:
    return sum((results[i].square().sum() for i in which or range(len(results))), torch.zeros((), dtype=torch.float64))


def trained(net: Net, length: int, which: tuple[int, ...] = (), leaves: bool = False) -> Any:
    """Results and all gradients of one step, or eager's error."""
    net.zero_grad()
    x, h, y, tokens = inputs(length)
    x.requires_grad_(leaves)
    h.requires_grad_(leaves)
    torch.manual_seed(length)
    try:
        results = net(x, h, y, tokens)
        results = results if isinstance(results, tuple) else (results,)
        if all(isinstance(result, torch.Tensor) and result.requires_grad for result in results):
            total(results, which).backward()
    except Exception as error:  # eager's, whatever it is
        return type(error), str(error).splitlines()[0]
    return results, [p.grad for p in net.parameters()], x.grad, h.grad


def play(loop: Loop, lengths: tuple[int, ...], **options: Any) -> tuple[Any, str]:
    """The compiled function, and of each step whether its call was a hit or a miss."""
    net = Net(loop).double()  # sums of rounds are rounded in another order
    eager = copy.deepcopy(net)
    fastjit.fastjit(net)
    fast, seen = fastjit.of(net), ""
    for length in lengths:
        hits = fast.stats().hits
        assert_same(trained(net, length, **options), trained(eager, length, **options), f"length {length}")
        seen += "h" if fast.stats().hits > hits else "m"
    return fast, seen


def names(loops: list[Loop]) -> list[Any]:
    return [pytest.param(loop, id=loop.__name__) for loop in loops]


@pytest.mark.parametrize("loop", names(SERVED))
@torch.enable_grad()
def test_one_program_serves_every_length(loop: Loop) -> None:
    fast, seen = play(loop, LENGTHS)
    assert seen == "mmm" + "h" * (len(LENGTHS) - 3), fast.inspect("guards")
    assert not fast.stats().fallbacks


@pytest.mark.parametrize("loop", names(SERVED + OTHERS))
@torch.enable_grad()
def test_as_in_eager_with_few_rounds(loop: Loop) -> None:
    play(loop, (9, 7, 11, 4, 2, 3, 1, 6, 5, 0, 8))


@pytest.mark.parametrize("loop", names(OTHERS))
@torch.enable_grad()
def test_as_in_eager_where_lengths_matter(loop: Loop) -> None:
    play(loop, LENGTHS)


@torch.enable_grad()
def test_a_table_is_as_long_as_it_is() -> None:
    """Its gradient has all its rows, though a recording had as many rounds."""
    play(rows_of_a_table, (12, 14, 16, 15, 9, 16, 6, 11))


@pytest.mark.parametrize("loop", names([all_states, several_results, a_layer_before, rows, both_ways, around_the_loop]))
@torch.enable_grad()
def test_gradients_of_arguments(loop: Loop) -> None:
    fast, seen = play(loop, LENGTHS, leaves=True)
    assert seen == "mmm" + "h" * (len(LENGTHS) - 3), fast.inspect("guards")


@pytest.mark.parametrize("which", [(0,), (1,), (2,), (0, 2), (1, 2)], ids=str)
@torch.enable_grad()
def test_gradients_of_some_results(which: tuple[int, ...]) -> None:
    fast, seen = play(several_results, LENGTHS, which=which)
    assert seen == "mmm" + "h" * (len(LENGTHS) - 3), fast.inspect("guards")


class Wide(nn.Module):
    """Products of torch's stand in its rounds."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.cell, self.out = nn.GRUCell(IN, 320), nn.Linear(320, 5)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> Any:
        outs = []
        for t in range(x.size(0)):
            h = self.cell(x[t], h)
            outs.append(h)
        return self.out(torch.stack(outs))


@pytest.mark.parametrize("hooks", [False, True])
@torch.enable_grad()
def test_rounds_that_call_torch_on_the_way_back(hooks: bool) -> None:
    """Where hooks take gradients as soon as they are there, the way back stops between its parts."""
    net = Wide().double()
    eager = copy.deepcopy(net)
    fastjit.fastjit(net)
    fast, seen = fastjit.of(net), ""

    def step(net: nn.Module, length: int) -> Any:
        taken: dict[torch.Tensor, torch.Tensor] = {}

        def take(parameter: torch.Tensor) -> None:
            assert parameter.grad is not None
            taken[parameter], parameter.grad = parameter.grad, None

        handles = [p.register_post_accumulate_grad_hook(take) for p in net.parameters() if hooks]
        torch.manual_seed(length)
        result = net(*(torch.randn(*sizes, dtype=torch.float64) for sizes in ((length, 16, IN), (16, 320))))
        net.zero_grad()
        result.square().mean().backward()
        for handle in handles:
            handle.remove()
        return [result, *(taken[p] if hooks else p.grad for p in net.parameters())]

    for length in LENGTHS:
        hits = fast.stats().hits
        assert_same(step(net, length), step(eager, length), f"length {length}")
        seen += "h" if fast.stats().hits > hits else "m"
    assert seen == "mmm" + "h" * (len(LENGTHS) - 3), fast.inspect("guards")


# ---- layers of torch's ----


class Layers(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = kind(IN, HIDDEN, dtype=torch.float64, **options)

    def forward(self, x: torch.Tensor) -> Any:
        out, state = self.layers(x)
        return out.square().sum(), state


LAYERS = [
    pytest.param(nn.GRU, {}, id="gru"),
    pytest.param(nn.GRU, {"num_layers": 2, "batch_first": True}, id="gru, two layers, batch first"),
    pytest.param(nn.RNN, {"nonlinearity": "relu", "bias": False}, id="rnn with relu"),
    pytest.param(nn.RNN, {"num_layers": 2, "dropout": 0.4}, id="rnn with dropout"),
    pytest.param(nn.LSTM, {"num_layers": 2}, id="lstm"),
    pytest.param(nn.GRU, {"bidirectional": True}, id="gru in both directions"),
    pytest.param(nn.LSTM, {"num_layers": 2, "bidirectional": True, "batch_first": True}, id="two such layers"),
]


@pytest.mark.parametrize(("kind", "options"), LAYERS)
@torch.enable_grad()
def test_layers_of_torch(kind: type[nn.RNNBase], options: dict[str, Any]) -> None:
    net = Layers(kind, **options)
    eager = copy.deepcopy(net)
    fastjit.fastjit(net)
    fast, seen = fastjit.of(net), ""

    def step(net: nn.Module, length: int) -> Any:
        torch.manual_seed(length)
        sizes = (BATCH, length, IN) if options.get("batch_first") else (length, BATCH, IN)
        net.zero_grad()
        loss, _ = net(torch.randn(*sizes, dtype=torch.float64))
        loss.backward()
        return [loss] + [p.grad for p in net.parameters()]

    for length in itertools.chain(LENGTHS, (3, 1, 2)):
        hits = fast.stats().hits
        assert_same(step(net, length), step(eager, length), f"length {length}")
        seen += "h" if fast.stats().hits > hits else "m"
    assert seen[: len(LENGTHS)] == "mmm" + "h" * (len(LENGTHS) - 3), fast.inspect("guards")
    assert not fast.stats().fallbacks


# ---- whole steps ----


def optimizer_of(net: Net, kind: str) -> torch.optim.Optimizer:
    if kind == "adamw":
        return torch.optim.AdamW(net.parameters(), lr=1e-4)
    return torch.optim.SGD(net.parameters(), lr=1e-5, momentum=0.9)


def whole_step(loop: Loop, kind: str) -> tuple[Net, Callable[..., torch.Tensor]]:
    net = Net(loop).double()
    optimizer = optimizer_of(net, kind)

    def step(*args: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        results = net(*args)
        results = results if isinstance(results, tuple) else (results,)
        loss = sum(result.square().mean() for result in results if result.requires_grad)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return net, step


def play_steps(loop: Loop, kind: str, lengths: tuple[int, ...]) -> tuple[Any, str]:
    """As play(): optimizers write to the weights that rounds read, behind them."""
    (net, step), (eager, eager_step) = whole_step(loop, kind), whole_step(loop, kind)
    fast, seen = fastjit.fastjit(step), ""

    def run(step: Callable[..., Any], length: int) -> Any:
        args = inputs(length)
        torch.manual_seed(length)
        try:
            return step(*args)
        except Exception as error:  # eager's, whatever it is
            return type(error), str(error).splitlines()[0]

    for length in lengths:
        hits = fast.stats().hits
        assert_same(run(fast, length), run(eager_step, length), f"length {length}")
        assert_same(list(net.parameters()), list(eager.parameters()), f"length {length}")
        seen += "h" if fast.stats().hits > hits else "m"
    return fast, seen


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@pytest.mark.parametrize("loop", names(SERVED))
@torch.enable_grad()
def test_one_whole_step_serves_every_length(loop: Loop, kind: str) -> None:
    """The first call meets what torch imports for its optimizers, the second makes their state."""
    fast, seen = play_steps(loop, kind, LENGTHS)
    assert seen[4:] == "h" * (len(LENGTHS) - 4), fast.inspect("guards")


@pytest.mark.parametrize("loop", names(SERVED + OTHERS))
@torch.enable_grad()
def test_whole_steps_with_few_rounds(loop: Loop) -> None:
    if loop is not its_own_backward:
        play_steps(loop, "sgd", (9, 7, 11, 8, 4, 2, 3, 1, 6, 5, 0, 8))
