"""Losses of what a mask picks: they compare the sizes of their operands, whose number of elements differs each call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastjit
from gradient_tools import assert_same

Fn = Callable[[Tensor, Tensor, Tensor], Any]
COUNTS = [12, 7, 3, 9, 20, 5, 8, 11, 2, 13, 6, 1, 0, 4]
FEW = 3  # programs: of no masked element, one, and more


@pytest.fixture(autouse=True, params=["plain", "gradients"])
def _mode(request: pytest.FixtureRequest) -> Iterator[None]:
    with torch.set_grad_enabled(request.param == "gradients"):
        yield


def inputs(count: int, *columns: int) -> tuple[Tensor, Tensor, Tensor]:
    mask = torch.zeros(20, dtype=torch.bool)
    mask[torch.randperm(20)[:count]] = True
    return torch.randn(20, *columns, requires_grad=True), torch.rand(20, *columns), mask


def play(fn: Fn, counts: list[int], *columns: int) -> fastjit.Stats:
    """One compiled function at each of the counts, and its gradients, against eager."""
    fast = fastjit.fastjit(fn, on_unsupported="eager")
    for count in counts:
        x, y, mask = inputs(count, *columns)
        outs = [fn(x, y, mask), fast(x, y, mask)]
        assert_same(outs[1], outs[0], f"{count} elements")
        if not outs[0].requires_grad:
            continue
        want, got = (torch.autograd.grad(out, x, torch.ones_like(out))[0] for out in outs)
        assert_same(got, want, f"gradient of {count} elements")
    return fast.stats()


LOSSES: dict[str, Fn] = {
    "mse": lambda x, y, m: F.mse_loss(x[m], y[m]),
    "mse, sum": lambda x, y, m: F.mse_loss(x[m], y[m], reduction="sum"),
    "l1": lambda x, y, m: F.l1_loss(x[m], y[m]),
    "l1 of work": lambda x, y, m: F.l1_loss(x[m].exp() * 0.5, y[m] + 1, reduction="sum"),
    "smooth l1": lambda x, y, m: F.smooth_l1_loss(x[m], y[m], beta=0.3),
    "huber": lambda x, y, m: F.huber_loss(x[m], y[m], delta=0.4),
    "logits": lambda x, y, m: F.binary_cross_entropy_with_logits(x[m], y[m]),
    "selected": lambda x, y, m: F.mse_loss(torch.masked_select(x, y > 0.5), torch.masked_select(y, y > 0.5)),
    "flattened": lambda x, y, m: F.l1_loss(x[m].flatten(), y[m].view(-1)),
    "logits, sum": lambda x, y, m: F.binary_cross_entropy_with_logits(x[m], y[m], reduction="sum"),
}


@pytest.mark.parametrize("columns", [(), (5,)], ids=["elements", "rows"])
@pytest.mark.parametrize("name", LOSSES)
def test_one_program_for_any_count(name: str, columns: tuple[int, ...]) -> None:
    stats = play(LOSSES[name], COUNTS, *columns)
    assert not stats.fallbacks
    assert stats.variants <= FEW and stats.hits >= len(COUNTS) - FEW


OTHERS: dict[str, Fn] = {
    "both ways": lambda x, y, m: F.mse_loss(x[m], x[m].sin()) + F.smooth_l1_loss(x[m] * 2, x[m].cos()),
    "weighted logits": lambda x, y, m: F.binary_cross_entropy_with_logits(x[m], y[m], y[m], pos_weight=x.detach()[0]),
    "no reduction": lambda x, y, m: F.mse_loss(x[m], y[m], reduction="none"),
    "each, then all": lambda x, y, m: F.huber_loss(x[m], y[m], reduction="none").sum(),
    "soft margin": lambda x, y, m: F.soft_margin_loss(x[m], y[m]),
    "entropy": lambda x, y, m: F.binary_cross_entropy(x[m].sigmoid(), y[m]),
    "divergence": lambda x, y, m: F.kl_div(F.log_softmax(x[m], -1), y[m], reduction="batchmean"),
    "classes": lambda x, y, m: F.cross_entropy(x[m], y[m].argmax(-1)),
    "poisson": lambda x, y, m: F.poisson_nll_loss(x[m], y[m]),
    "gaussian": lambda x, y, m: F.gaussian_nll_loss(x[m], y[m], x[m] * x[m] + 1),
    "hinge": lambda x, y, m: F.hinge_embedding_loss(x[m], y[m].round() * 2 - 1),
    "cosine": lambda x, y, m: (1 - F.cosine_similarity(x[m], y[m], -1)).mean(),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_losses_are_right(name: str) -> None:
    """Whether or not there is a program for any count."""
    stats = play(OTHERS[name], [count for count in COUNTS if count > 1], 5)
    assert stats.hits or stats.fallbacks


@pytest.mark.parametrize("loss", [nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss])
def test_loss_of_a_module(loss: type[nn.Module]) -> None:
    criterion = loss()
    stats = play(lambda x, y, m: criterion(x[m] * 2, y[m]), COUNTS, 3)
    assert not stats.fallbacks and stats.variants <= FEW


def test_masks_are_kernels() -> None:
    """Not torch's picking: one launch sums, where the mean's divisor is the mask's own count."""
    fast = fastjit.fastjit(LOSSES["mse"])
    with torch.no_grad():
        for count in (12, 7, 3):
            x, y, mask = inputs(count, 5)
            fast(x, y, mask)
    assert "extern" not in fast.inspect("plan").split("\n\n", 1)[1]


def test_own_check_of_shapes() -> None:
    def f(x: Tensor, y: Tensor, m: Tensor) -> Tensor:
        a, b = x[m], y[m]
        if not a.size() == b.size() or a.shape != b.shape:
            raise ValueError
        return (a - b).abs().sum()

    stats = play(f, COUNTS, 2)
    assert not stats.fallbacks and stats.variants <= FEW


def test_whether_any_are_there() -> None:
    def f(x: Tensor, y: Tensor, m: Tensor) -> Tensor:
        a, b = x[m], y[m]
        return (a - b).abs().mean() if a.numel() > 0 else x.sum() * 0

    stats = play(f, COUNTS, 5)
    assert not stats.fallbacks and stats.variants <= FEW


def test_one_comparison_that_stands_there_twice() -> None:
    stats = play(lambda x, y, m: F.mse_loss(x[y > 0.5], y[y > 0.5]), COUNTS, 3)
    assert not stats.fallbacks and stats.variants <= FEW


def test_a_mask_and_what_it_leaves() -> None:
    stats = play(lambda x, y, m: F.l1_loss(x[~m], y[~m]) + F.mse_loss(x[m], y[m]), COUNTS, 3)
    assert not stats.fallbacks and stats.variants <= FEW + 1  # also where nothing is left


def test_a_network_on_masked_rows() -> None:
    net = nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 4))
    counts = [count for count in COUNTS if count not in (0, 1, 4, 5, 8)]  # other lengths that are in it
    stats = play(lambda x, y, m: F.cross_entropy(net(x[m]), y[m].argmax(-1) % 4), counts, 5)
    assert not stats.fallbacks and stats.variants == 1


def test_bounds_that_happen_to_be_equal() -> None:
    """Two numbers of the caller are no one mask, though they are one number in the recorded call."""

    def f(x: Tensor, y: Tensor, low: float, high: float) -> Tensor:
        a, b = x[y > low], y[y > high]
        return a.sum() - b.sum() if a.shape == b.shape else x.sum() * 3

    fast = fastjit.fastjit(f, on_unsupported="eager")
    y = torch.linspace(0, 1, 20)
    for low, high in [(0.5, 0.5), (0.25, 0.25), (0.3, 0.3), (0.25, 0.75), (0.1, 0.6), (0.7, 0.7)]:
        x = torch.randn(20, requires_grad=True)
        assert_same(fast(x, y, low, high), f(x, y, low, high), f"{low} and {high}")


# ---- writes to what shares memory with it ----


def write_flat(x: Tensor, y: Tensor, m: Tensor) -> Tensor:
    a = (x * 1)[m]
    a.view(-1).mul_(2)
    return (a * y[m]).sum()


def write_broadcast(x: Tensor, y: Tensor, m: Tensor) -> Tensor:
    whole = (x * 1)[m]
    a, b = torch.broadcast_tensors(whole, y[m])
    a.mul_(2)
    return F.mse_loss(whole, b)


def write_before_flat_is_read(x: Tensor, y: Tensor, m: Tensor) -> Tensor:
    a = (x * 1)[m]
    flat = a.flatten()
    a.mul_(3)
    return F.l1_loss(flat, y[m].flatten())


@pytest.mark.parametrize("fn", [write_flat, write_broadcast, write_before_flat_is_read])
def test_writes_are_seen(fn: Fn) -> None:
    stats = play(fn, [count for count in COUNTS if count > 1], 3)
    assert stats.hits or stats.fallbacks


# ---- sizes that are not the same in each call ----


def said(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    return a.sum() - b.sum() if a.shape == b.shape else x.sum() * 3


def two_masks(x: Tensor, y: Tensor, m: Tensor) -> Tensor:
    return said(x[m], y[y > 0.5], x)


def written_mask(x: Tensor, y: Tensor, m: Tensor) -> Tensor:
    n = m.clone()
    a = y[n]
    n[:3] = True
    return said(a, y[n], x)


def cut(x: Tensor, y: Tensor, m: Tensor) -> Tensor:
    return said(x[m][:6], y[m], x)


def turned(x: Tensor, y: Tensor, m: Tensor) -> Tensor:
    return said(x[m].t(), y[m], x)


def joined(x: Tensor, y: Tensor, m: Tensor) -> Tensor:
    return said(torch.cat([x[m], y[m]]), y[m], x)


def narrowed(x: Tensor, y: Tensor, m: Tensor) -> Tensor:
    a = x[m]
    return said(a.narrow(0, 0, 2) if len(m) == 20 and bool(m.sum() >= 2) else a, y[m], x)


@pytest.mark.parametrize("fn", [two_masks, written_mask, cut, turned, joined, narrowed])
@pytest.mark.parametrize("first", [2, 3, 5])
def test_other_sizes_are_read(fn: Fn, first: int) -> None:
    """Alike in the recorded call (5 rows of 5, 2 that are narrowed to 2, ...), and not in others."""
    stats = play(fn, [first, first, *COUNTS], first)
    assert stats.misses + stats.hits <= stats.calls
    assert stats.variants >= 2 or stats.fallbacks


def test_compared_again_in_a_loop() -> None:
    """The right side of one comparison is the left side, and an operand, of the next round."""

    def f(x: Tensor, y: Tensor, m: Tensor) -> Tensor:
        a, b, total = x[m], y[m], x.sum() * 0
        for _ in range(3):
            if a.size() == b.size():
                total = total + a.sum() * b.size()[0]
            a, b = b, a * 2
        return total

    play(f, COUNTS, 2)
