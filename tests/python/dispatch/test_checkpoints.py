"""`torch.utils.checkpoint` inside a call: its program keeps what eager keeps, and computes the rest again."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, create_selective_checkpoint_contexts

import fastjit
from gradient_tools import Log, compare, leaf
from helpers import assert_same

Function = Callable[..., Any]
LAYER = nn.Linear(4, 4).double()  # sums of squares have large elements, whose f32 roundings are no matter here
STATE: list[Any] = [0, []]


def again(function: Function, *args: Any, **how: Any) -> Any:
    return checkpoint(function, *args, use_reentrant=False, **how)


def block(x: Tensor) -> Tensor:
    return LAYER(x.sin()).tanh() * x


def one(x: Tensor) -> Tensor:
    return again(block, x) * 2


def in_a_row(x: Tensor) -> Tensor:
    for _ in range(3):
        x = again(block, x) + x
    return x.square()


def nested(x: Tensor) -> Tensor:
    return again(lambda y: again(block, y.exp()) + again(block, y), x)


def several_results(x: Tensor) -> Any:
    return again(lambda y: (LAYER(y).sigmoid(), y.cos(), 3), x)


def keywords_and_numbers(x: Tensor) -> Tensor:
    return again(lambda y, n, scale, shift: LAYER(y * n) * scale + shift, x, 2.5, scale=x.cos(), shift=3)


def closure(x: Tensor) -> Tensor:
    h = x.exp()
    return again(lambda y: (y * h).sin() * LAYER.weight.sum(), x)


def a_result_is_its_own(x: Tensor) -> Any:
    h = again(lambda y: LAYER(y).exp(), x)
    return h, again(lambda y: y.sigmoid() * 2, h)


def written_inside(x: Tensor) -> Tensor:
    def inner(y: Tensor) -> Tensor:
        h = LAYER(y)
        h.mul_(2).add_(1)
        h[:, 0] = y[:, 1]
        return h.sin()

    return again(inner, x)


def without_checks(x: Tensor) -> Tensor:
    return again(block, x, determinism_check="none", preserve_rng_state=False, early_stop=False)


def in_sequence(x: Tensor) -> Tensor:
    return checkpoint_sequential([nn.Tanh(), block, torch.sin, block], 2, x, use_reentrant=False)


def reads_a_value(x: Tensor) -> Tensor:
    return again(lambda y: LAYER(y).sin() * (2 if y.sum() > -1e9 else 3), x)


def partly_without_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        h = again(block, x)
    return again(block, x) * h


FUNCTIONS = (
    one,
    in_a_row,
    nested,
    several_results,
    keywords_and_numbers,
    closure,
    a_result_is_its_own,
    written_inside,
    without_checks,
    in_sequence,
    reads_a_value,
    partly_without_grad,
)


def backward(f: Function) -> Log:
    x = leaf(3, 4, dtype=torch.float64)
    LAYER.zero_grad()
    out = f(x)
    results = [r for r in (out if isinstance(out, tuple) else (out,)) if isinstance(r, Tensor)]
    torch.autograd.backward([r.sum() for r in results])
    return [out, x.grad, LAYER.weight.grad, LAYER.bias.grad]


def gradients_of_some(f: Function) -> Log:
    x = leaf(3, 4, dtype=torch.float64)
    out = f(x)
    first = out[0] if isinstance(out, tuple) else out
    twice = [torch.autograd.grad(first.sum(), [x], retain_graph=True) for _ in range(2)]
    return [twice, torch.autograd.grad(first.square().sum(), [LAYER.weight, x], allow_unused=True)]


@pytest.mark.parametrize("scenario", [backward, gradients_of_some])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradients(function, scenario):
    stats = compare(scenario, function, times=4)
    assert stats.hits == 3 and stats.fallbacks == {}, stats


class Block(nn.Module):
    def __init__(self, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(dropout)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.down(nn.functional.gelu(self.up(self.norm(x)))))


class Stack(nn.Module):
    def __init__(self, depth: int, width: int, checkpoints: bool = True, **how: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, **how) for _ in range(depth))
        self.head, self.checkpoints = nn.Linear(width, 1), checkpoints

    def forward(self, x: Tensor) -> Tensor:
        for one in self.blocks:
            x = again(one, x) if self.checkpoints else one(x)
        return self.head(x).square().mean()


@torch.enable_grad()
def test_the_way_back_keeps_what_each_checkpoint_is_given():
    rows, width, depth = 32, 16, 6
    kept = {}
    for checkpoints in (True, False):
        torch.manual_seed(0)
        eager = Stack(depth, width, checkpoints)
        fast = fastjit.fastjit(copy.deepcopy(eager))
        for _ in range(4):
            x = torch.randn(rows, width)
            eager(x).backward(), fast(x).backward()
        assert_same([p.grad for p in fast.parameters()], [p.grad for p in eager.parameters()])
        assert fastjit.of(fast).stats().hits == 3 and fastjit.of(fast).stats().fallbacks == {}
        kept[checkpoints] = fastjit.of(fast).variants()[0].kept_bytes
    one = rows * width * 4
    assert kept[True] <= (depth + 1) * one, kept
    assert kept[False] > 3 * kept[True], kept


@torch.enable_grad()
def test_a_deep_stack():
    torch.manual_seed(0)
    eager = Stack(48, 8)
    fast = fastjit.fastjit(copy.deepcopy(eager))
    for _ in range(3):
        x = torch.randn(4, 8)
        eager(x).backward(), fast(x).backward()
    assert_same([p.grad for p in fast.parameters()], [p.grad for p in eager.parameters()])
    assert fastjit.of(fast).stats().hits == 2 and fastjit.of(fast).stats().fallbacks == {}


@torch.enable_grad()
def test_sizes_that_vary():
    torch.manual_seed(0)
    eager = Stack(3, 8)
    fast = fastjit.fastjit(copy.deepcopy(eager))
    for rows in (5, 6, 7, 9, 4, 30):
        x = torch.randn(rows, 8)
        eager(x).backward(), fast(x).backward()
        assert_same([p.grad for p in fast.parameters()], [p.grad for p in eager.parameters()])
    assert fastjit.of(fast).stats().fallbacks == {}
    assert fastjit.of(fast).stats().hits >= 3, fastjit.of(fast).stats()


@torch.enable_grad()
def test_random_numbers_are_drawn_once():
    runs = []
    for wrap in (lambda model: model, fastjit.fastjit):
        torch.manual_seed(0)
        model = Stack(3, 8, dropout=0.5)
        fast = wrap(model)
        for _ in range(4):
            fast(torch.randn(4, 8)).backward()
        runs.append([p.grad for p in model.parameters()] + [torch.rand(2)])
    assert_same(runs[1], runs[0])
    assert fastjit.of(fast).stats().hits == 3 and fastjit.of(fast).stats().fallbacks == {}


@torch.enable_grad()
@pytest.mark.parametrize("numerics", [torch.float32, torch.bfloat16])
def test_whole_steps(numerics):
    runs = []
    for wrap in (lambda step: step, fastjit.fastjit):
        torch.manual_seed(0)
        model = Stack(3, 8)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def step(x: Tensor, model=model, optimizer=optimizer) -> Tensor:
            optimizer.zero_grad()
            with torch.autocast("cpu", numerics, enabled=numerics != torch.float32):
                loss = model(x)
            loss.backward()
            optimizer.step()
            return loss.detach()

        fast = wrap(step)
        runs.append([fast(torch.randn(4, 8)) for _ in range(6)] + list(model.parameters()))
    tolerance = {"rtol": 2e-2, "atol": 2e-3} if numerics != torch.float32 else {}
    torch.testing.assert_close(runs[1], runs[0], **tolerance)
    assert fast.stats().hits >= 4 and fast.stats().fallbacks == {}, fast.stats()


# ---- what the way back finds changed ----


def weight_written_between(f: Function) -> Log:
    """Eager keeps no weight of a checkpoint's, and so does not notice; it takes what it finds."""
    x = leaf(3, 4, dtype=torch.float64)
    LAYER.zero_grad()
    out = f(x)
    before = LAYER.weight.detach().clone()
    with torch.no_grad():
        LAYER.weight.mul_(2)
    out.sum().backward()
    with torch.no_grad():
        LAYER.weight.copy_(before)
    return [x.grad, LAYER.weight.grad]


def given_written_between(f: Function) -> Log:
    x = leaf(3, 4, dtype=torch.float64)
    y = x.detach().clone()
    LAYER.zero_grad()
    out = f(y)
    y.mul_(2)
    out.sum().backward()
    return [LAYER.weight.grad]


def test_a_weight_that_is_written_before_the_way_back():
    stats = compare(weight_written_between, lambda x: again(lambda y: LAYER(LAYER(y).sin()), x), times=4)
    assert stats.hits == 3 and stats.fallbacks == {}, stats


def test_what_a_checkpoint_was_given_is_written_before_the_way_back():
    stats = compare(given_written_between, one, times=4)
    assert stats.hits == 3 and stats.fallbacks == {}, stats


# ---- what stays eager, and why ----


def draws_others(x: Tensor) -> Tensor:
    return again(lambda y: nn.functional.dropout(LAYER(y), 0.5), x, preserve_rng_state=False)


def counts(x: Tensor) -> Tensor:
    def inner(y: Tensor) -> Tensor:
        STATE[0] += 1
        return LAYER(y).sin()

    return again(inner, x)


NORM = nn.BatchNorm1d(4).double()


def moves_statistics(x: Tensor) -> Tensor:
    return again(lambda y: NORM(LAYER(y)).sin(), x)


def writes_what_was_read(x: Tensor) -> Tensor:
    h = x.exp()
    out = again(lambda y: LAYER(y).sin() * h, x)
    h.detach().mul_(2)
    return out


def reentrant(x: Tensor) -> Tensor:
    return checkpoint(block, x, use_reentrant=True)


def selective(x: Tensor) -> Tensor:
    keep = [torch.ops.aten.addmm.default]
    return again(block, x, context_fn=lambda: create_selective_checkpoint_contexts(keep))


def debugged(x: Tensor) -> Tensor:
    return again(block, x, debug=True)


def hooks_of_its_own(x: Tensor) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.float(), lambda t: t.double()):
        return block(x)


def unknown_inside(x: Tensor) -> Tensor:
    """It turns out in the middle of the second checkpoint that the call cannot be a program."""
    x = again(block, x)
    return again(lambda y: LAYER(y.sin()) * float(y.detach().numpy()[0, 0] * 0 + 2), x) + again(block, x)


EAGER = {
    "aten::dropout draws random numbers in torch.utils.checkpoint(preserve_rng_state=False) at": draws_others,
    "a side effect or a random number of Python in torch.utils.checkpoint": counts,
    "aten::add_.Tensor in torch.utils.checkpoint writes to what was there before, twice, at": moves_statistics,
    "writes to what torch.utils.checkpoint reads again": writes_what_was_read,
    "its gradients are not compiled": reentrant,
    "torch.utils.checkpoint with a context_fn": selective,
    "read of uname_result.machine": debugged,
    "use of hooks for saved tensors at": hooks_of_its_own,
    "use of a tensor outside operators by": unknown_inside,
}


def with_state(f: Function) -> Log:
    STATE[0] = 0
    NORM.reset_running_stats()
    got = backward(f)
    return [*got, STATE[0], NORM.running_mean.clone(), NORM.num_batches_tracked.clone(), torch.rand(2)]


@pytest.mark.parametrize("reason", EAGER)
def test_stays_eager(reason):
    stats = compare(with_state, EAGER[reason], times=4)
    assert any(reason in why for why in stats.fallbacks), stats.fallbacks
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None


@torch.enable_grad()
def test_an_error_inside():
    def inner(y: Tensor) -> Tensor:
        return LAYER(y.sin()) @ y

    compiled = fastjit.fastjit(lambda x: again(inner, x), on_unsupported="eager")
    for _ in range(3):
        with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
            compiled(leaf(3, 4, dtype=torch.float64))
        assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    assert_same(again(block, x := leaf(3, 4, dtype=torch.float64)), block(x))


@torch.enable_grad()
@pytest.mark.parametrize(
    ("function", "way_out"),
    [
        (reentrant, "pass use_reentrant=False to torch.utils.checkpoint"),
        (moves_statistics, "'python -m fastjit docs training' says what a checkpoint inside a call may do"),
    ],
)
def test_what_the_warning_says(function, way_out):
    compiled = fastjit.fastjit(function)
    with pytest.warns(fastjit.FastJITWarning, match=re.escape(way_out)):
        for _ in range(3):
            compiled(leaf(3, 4, dtype=torch.float64)).sum().backward()
