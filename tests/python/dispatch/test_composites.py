"""Operators of torch's that are made of others, at sizes that are multiples of each other and in no order.

A program follows some of them for any size. What it is given must not be a number that C++ code computed of the
recorded sizes: each case is played at ten sizes, twice each, against eager.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, randn

from fastjit import fastjit
from gradient_tools import leaf
from helpers import assert_same, hits_of

SIZES = (2, 4, 8, 6, 12, 3, 16, 24, 4, 40)
Case = tuple[Callable[..., Tensor], Callable[[int], tuple[Tensor, ...]]]


def labels(classes: int, *sizes: int) -> Tensor:
    return torch.randint(0, classes, sizes)


def shares(*sizes: int) -> Tensor:
    return randn(*sizes).softmax(1)


def signs(*sizes: int) -> Tensor:
    return torch.randint(0, 2, sizes) * 2 - 1


ANY_SIZE: dict[str, Case] = {
    "cross entropy of rows": (F.cross_entropy, lambda n: (randn(n, 5), labels(5, n))),
    "cross entropy, rank 1": (F.cross_entropy, lambda n: (randn(n), torch.tensor(1))),
    "cross entropy, rank 3": (F.cross_entropy, lambda n: (randn(n, 5, 6), labels(5, n, 6))),
    "cross entropy, length": (F.cross_entropy, lambda n: (randn(3, 5, n), labels(5, 3, n))),
    "cross entropy, rank 5": (F.cross_entropy, lambda n: (randn(n, 5, 2, 3, 2), labels(5, n, 2, 3, 2))),
    "cross entropy of classes": (F.cross_entropy, lambda n: (randn(4, n), labels(2, 4))),
    "cross entropy, each": (
        lambda x, t: F.cross_entropy(x, t, reduction="none"),
        lambda n: (randn(n, 5, 2 * n), labels(5, n, 2 * n)),
    ),
    "weighted cross entropy": (
        lambda x, t, w: F.cross_entropy(x, t, w),
        lambda n: (randn(3, n), labels(2, 3), torch.rand(n)),
    ),
    "smoothed labels": (
        lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1),
        lambda n: (randn(n, 5), labels(5, n)),
    ),
    "nll_loss, rank 3": (F.nll_loss, lambda n: (randn(n, 5, 6), labels(5, n, 6))),
    "nll_loss, rank 4": (F.nll_loss, lambda n: (randn(2, 5, n, 3), labels(5, 2, n, 3))),
    "adaptive_avg_pool1d": (lambda x: F.adaptive_avg_pool1d(x, 2), lambda n: (randn(2, 3, n),)),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 2), lambda n: (randn(2, 3, n, 6),)),
    "adaptive_avg_pool2d to one": (lambda x: F.adaptive_avg_pool2d(x, 1), lambda n: (randn(2, 3, n, n),)),
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 3, 2, 1), lambda n: (randn(2, 3, n + 3),)),
    "max_pool1d": (lambda x: F.max_pool1d(x, 3, 2, 1), lambda n: (randn(2, 3, n + 3),)),
    "max_pool2d": (lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True), lambda n: (randn(2, 3, n + 3, n + 2),)),
    "conv1d": (F.conv1d, lambda n: (randn(2, 3, n + 3), randn(4, 3, 2))),
    "conv1d of channels": (F.conv1d, lambda n: (randn(2, n, 7), randn(4, n, 2))),
    "conv1d, same": (
        lambda x, w: F.conv1d(x, w, padding="same"),
        lambda n: (randn(2, 3, n + 3), randn(4, 3, 3)),
    ),
    "conv2d": (lambda x, w: F.conv2d(x, w, stride=2), lambda n: (randn(n, 3, n + 3, 5), randn(4, 3, 2, 2))),
    "conv3d": (F.conv3d, lambda n: (randn(2, 3, n + 3, 5, 4), randn(4, 3, 2, 2, 2))),
    "conv_transpose1d": (F.conv_transpose1d, lambda n: (randn(2, 3, n + 3), randn(3, 4, 2))),
    "conv_transpose2d": (F.conv_transpose2d, lambda n: (randn(2, 3, n + 3, 4), randn(3, 4, 2, 2))),
    "conv_transpose3d": (F.conv_transpose3d, lambda n: (randn(2, 3, n + 3, 4, 3), randn(3, 4, 2, 2, 2))),
    "cosine_embedding_loss": (F.cosine_embedding_loss, lambda n: (randn(n, 5), randn(n, 5), signs(n))),
    "hinge_embedding_loss": (F.hinge_embedding_loss, lambda n: (randn(n, 5), signs(n, 5))),
    "margin_ranking_loss": (F.margin_ranking_loss, lambda n: (randn(n), randn(n), signs(n))),
    "group_norm of a batch": (lambda x: F.group_norm(x, 2), lambda n: (randn(n, 4, 3),)),
    "group_norm of a length": (lambda x: F.group_norm(x, 2), lambda n: (randn(2, 4, n),)),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), lambda n: (randn(3, 4, n),)),
    "layer_norm": (lambda x: F.layer_norm(x, x.shape[1:]), lambda n: (randn(2, n),)),
    "hstack": (lambda x, y: torch.hstack([x, y]), lambda n: (randn(n), randn(2 * n))),
    "vstack": (lambda x, y: torch.vstack([x, y]), lambda n: (randn(n, 3), randn(2 * n, 3))),
    "pad by mirror": (lambda x: F.pad(x, (1, 1), mode="reflect"), lambda n: (randn(2, n + 3),)),
    "pad in a circle": (lambda x: F.pad(x, (1, 1, 2, 0), mode="circular"), lambda n: (randn(2, 3, n + 3, n + 4),)),
    "product of batches": (torch.matmul, lambda n: (randn(n, 1, 2, 4), randn(3, 4, n))),
    "linear": (F.linear, lambda n: (randn(2, n, 4), randn(3, 4), randn(3))),
}
# Their C++ code divides by sizes, or gives them to others.
EACH_SIZE: dict[str, Case] = {
    "group_norm of channels": (lambda x: F.group_norm(x, 2), lambda n: (randn(2, 2 * n, 3),)),
    "instance_norm": (F.instance_norm, lambda n: (randn(n, 4, 5),)),
    "rms_norm": (lambda x: F.rms_norm(x, (5,)), lambda n: (randn(n, 5),)),
    "shares": (F.cross_entropy, lambda n: (randn(n, 5), shares(n, 5))),
    "shares, rank 4": (F.cross_entropy, lambda n: (randn(2, 5, n, 3), shares(2, 5, n, 3))),
    "shares, sum": (
        lambda x, t: F.cross_entropy(x, t, reduction="sum"),
        lambda n: (randn(n, 5), shares(n, 5)),
    ),
    "shares, smoothed": (
        lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1, reduction="sum"),
        lambda n: (randn(4, n), shares(4, n)),
    ),
    "weighted shares": (
        lambda x, t, w: F.cross_entropy(x, t, w, reduction="sum"),
        lambda n: (randn(3, n), shares(3, n), torch.rand(n)),
    ),
    "smoothed labels of classes": (
        lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1),
        lambda n: (randn(3, n), labels(2, 3)),
    ),
}


def play(case: Case) -> int:
    run, make = case
    fast = fastjit(lambda *args: run(*args))
    for n in SIZES:
        for _ in range(2):
            args = make(n)
            with torch.no_grad():
                assert_same(fast(*args), run(*args))
    return hits_of(fast, 2 * len(SIZES))


@pytest.mark.parametrize("name", ANY_SIZE)
def test_composites_of_any_size(name):
    assert play(ANY_SIZE[name]) >= 2 * len(SIZES) - 3


@pytest.mark.parametrize("name", EACH_SIZE)
def test_composites_that_give_numbers_of_sizes(name):
    assert play(EACH_SIZE[name]) >= len(SIZES)


def of_lengths(logits: Tensor, targets: Tensor, *lengths: Tensor) -> Tensor:
    return F.ctc_loss(logits.log_softmax(-1), targets, *lengths)


def of_sizes(logits: Tensor, targets: Tensor, *lengths: Tensor) -> Tensor:
    steps = torch.full((logits.shape[1],), logits.shape[0])
    return F.ctc_loss(logits.log_softmax(-1), targets, steps, torch.full_like(steps, targets.shape[1]))


def of_a_list(logits: Tensor, targets: Tensor, *lengths: Tensor) -> Tensor:
    return F.ctc_loss(logits.log_softmax(-1), targets, [12, 12], [5, 4])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("function", [of_lengths, of_sizes, of_a_list], ids=lambda function: function.__name__)
@torch.enable_grad()
def test_numbers_that_a_composite_looks_at_unseen(function, dtype):
    """ctc_loss() takes tensors of lengths for lists of numbers and has a tensor made of them, neither by an operator
    that is seen; where no gradient is needed it is one call of torch's, lengths included."""
    fast = fastjit(function, on_unsupported="eager")
    for i in range(6):
        logits, targets = leaf(12, 2, 8), labels(7, 2, 5) + 1
        lengths = torch.tensor([12, 11 - i % 3], dtype=dtype), torch.tensor([5, 4 - i % 2], dtype=dtype)
        got, want = (f(logits, targets, *lengths) for f in (fast, function))
        assert_same(got.detach(), want.detach(), exact=True)
        assert_same(*(torch.autograd.grad(one, logits)[0] for one in (got, want)), exact=True)
    reasons = " ".join(fast.stats().fallbacks)
    expected = "depends on data" if function is of_a_list else "numbers of a tensor are read unseen by aten::ctc_loss"
    assert expected in reasons and fast.stats().hits == 0
    with torch.no_grad():
        for i in range(4):
            lengths = torch.tensor([12, 11 - i % 3], dtype=dtype), torch.tensor([5, 4 - i % 2], dtype=dtype)
            assert_same(fast(logits, targets, *lengths), function(logits, targets, *lengths), exact=True)
    assert fast.stats().hits >= 3
