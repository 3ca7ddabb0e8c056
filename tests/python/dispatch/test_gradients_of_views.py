"""Results that share memory: views of each other, as `chunk` and `h[:, -1]` give them, and what is detached of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fastjit
from gradient_tools import Log, compare, leaf
from helpers import assert_same

Function = Callable[..., Any]
LAYER = torch.nn.Linear(4, 8).double()  # sums of squares have large elements, whose f32 roundings are no matter here


def halves(x: Tensor) -> Any:
    """As encoders of variational autoencoders give mean and variance: the tensor itself is no result."""
    return LAYER(x).chunk(2, -1)


def with_last(x: Tensor) -> Any:
    h = LAYER(x).tanh()
    return h, h[:, -1], h.t()


def with_what_follows(x: Tensor) -> Any:
    h = LAYER(x).sin()
    part = h[:, 1:3]
    return h, part, (part * 2).cos()


def transposed_first(x: Tensor) -> Any:
    """As the logits of CLIP."""
    logits = LAYER(x) @ LAYER(x).t() * 2
    return logits.t(), logits


def parts_of_what_is_kept(x: Tensor) -> Any:
    """Autograd keeps what both lie in, which no program reads."""
    h = x.tanh()
    return h[:1], h[1:]


def each_row(x: Tensor) -> Any:
    return LAYER(x).relu().unbind(1)


def one_is_used(x: Tensor) -> Any:
    q, k, v = LAYER(x).split([2, 2, 4], -1)
    return (q * 2).sum(), k, v


def view_of_a_view(x: Tensor) -> Any:
    h = LAYER(x).exp()
    part = h[:, 2:]
    return part, part[1:], h[0]


def written_before(x: Tensor) -> Any:
    h = LAYER(x) * 2
    part = h[1:]
    part.mul_(3)
    return h, part


def detached(x: Tensor) -> Any:
    """As state that is kept: `self.hidden = h.detach()`."""
    h = LAYER(x).tanh()
    return h, h.detach()


def view_and_detached(x: Tensor) -> Any:
    h = LAYER(x).exp()
    return h.view(-1), h.detach(), h


VIEWS = [halves, parts_of_what_is_kept, with_last, with_what_follows, transposed_first, each_row, one_is_used,
         view_of_a_view, written_before, detached, view_and_detached]  # fmt: skip


def seen(f: Function) -> Log:
    """What autograd shows of the results, and which of them are views of which."""
    results = f(leaf(3, 4, dtype=torch.float64))
    of_each = [[t.detach(), t.requires_grad, t._is_view(), t._version, t.stride(), t.is_leaf] for t in results]
    bases = [[other._base is t for other in results] for t in results]
    memory = [t.untyped_storage().data_ptr() for t in results]
    return [of_each, bases, [memory.index(one) for one in memory], [t.storage_offset() for t in results]]


def gradients_of_all(f: Function) -> Log:
    x = leaf(3, 4, dtype=torch.float64)
    LAYER.zero_grad()
    sum(
        (t.square().sum() * i for i, t in enumerate(f(x), 1) if t.requires_grad), torch.zeros((), dtype=torch.float64)
    ).backward()
    return [x.grad, LAYER.weight.grad, LAYER.bias.grad]


def gradients_of_each(f: Function) -> Log:
    x = leaf(3, 4, dtype=torch.float64)
    results = [t for t in f(x) if t.requires_grad]
    return [torch.autograd.grad(t.cos().sum(), (x, LAYER.weight), retain_graph=True) for t in results]


def written_behind(f: Function) -> Log:
    x = leaf(3, 4, dtype=torch.float64)
    results = f(x)
    log: Log = []
    try:
        results[1].mul_(2)
        log += [t.detach().clone() for t in results] + [t._version for t in results]
        results[0].sum().backward()
    except RuntimeError as error:
        log.append(str(error).partition(" is a view")[1] or str(error)[:40])
    return [*log, x.grad]


def hooked(f: Function) -> Log:
    x, log = leaf(3, 4, dtype=torch.float64), []
    first, second = [t for t in f(x) if t.requires_grad or t._base is None][:2]
    first.register_hook(lambda g: log.append(g.clone()))
    first.retain_grad()
    (first.sum() + (second * 3).sum()).backward()
    return [*log, first.grad, x.grad]


@pytest.mark.parametrize("scenario", [seen, gradients_of_all, gradients_of_each, written_behind, hooked])
@pytest.mark.parametrize("function", VIEWS, ids=lambda function: function.__name__)
def test_results_that_share_memory(function, scenario):
    stats = compare(scenario, function)
    assert stats.hits == 2 and stats.fallbacks == {}


def test_views_at_any_size():
    fast = fastjit.fastjit(with_last)
    with torch.enable_grad():
        for rows in (3, 5, 7, 11, 9):
            x = leaf(rows, 4, dtype=torch.float64)
            got, want = ([torch.autograd.grad(t.square().sum(), x, retain_graph=True)[0] for t in f(x)]
                         for f in (fast, with_last))  # fmt: skip
            assert_same(got, want)
    assert fast.stats().hits == 3 and fast.stats().fallbacks == {}


def test_views_under_verify_and_without_gradients():
    fast = fastjit.fastjit(with_last, verify=True)
    for _ in range(3):
        x = torch.randn(3, 4, dtype=torch.float64)
        with torch.enable_grad():
            assert_same([t.detach() for t in fast(x)], [t.detach() for t in with_last(x)])
        assert_same(fast(x), with_last(x))
    assert fast.stats().mismatches == 0 and fast.stats().fallbacks == {}


def views_beside(x: Tensor) -> Any:
    """As masks, samples and indices that a model gives beside its loss."""
    h = LAYER(x).tanh()
    with torch.no_grad():
        sample = (h * 2).exp()
        first, rest = sample[0], sample[1:].split(1)
    return h.sum(), h.detach()[0], (x.detach() > 0).to(h.dtype)[1:], first, *rest, *h.detach().exp().split(2)


def with_what_is_detached(x: Tensor) -> Any:
    h = LAYER(x).tanh()
    return h, h.detach()[0]


def written_with_gradients(f: Function) -> Log:
    """Where grad mode was off when a view was made, eager refuses to write what requires grad to it."""
    log: Log = []
    for place in range(1, len(f(leaf(3, 4, dtype=torch.float64)))):
        x, w = leaf(3, 4, dtype=torch.float64), leaf(1, dtype=torch.float64)
        results = f(x)
        try:
            results[place].mul_(w)
            (results[place].sum() + results[0].sum()).backward()
            log += [results[place].detach(), x.grad, w.grad]
        except RuntimeError as error:
            log.append(str(error)[:80])
    return log


@pytest.mark.parametrize("scenario", [seen, gradients_of_all, written_with_gradients])
@pytest.mark.parametrize("function", [views_beside, with_what_is_detached], ids=lambda function: function.__name__)
def test_views_that_need_no_gradient_beside_results_that_do(function, scenario):
    stats = compare(scenario, function)
    assert stats.fallbacks == {} and stats.hits == stats.calls - 1


@torch.enable_grad()
def test_views_made_without_gradients_in_a_call_that_needs_none():
    def sampled(x: Tensor) -> Any:
        with torch.no_grad():
            first = (x * 2).exp()[0]
        return first, (x * 3)[1:]

    fast = fastjit.fastjit(sampled)
    for _ in range(4):
        x, w = torch.randn(3, 4), leaf(1)
        for got, want in zip(fast(x), sampled(x), strict=True):
            assert_same(got, want)
            errors = []
            for view in (got, want):
                try:
                    view.mul_(w)
                    errors.append("")
                except RuntimeError as error:
                    errors.append(str(error))
            assert errors[0] == errors[1]
    assert fast.stats().hits == 3 and fast.stats().fallbacks == {}
