"""Calls whose results require grad: what autograd and its users see of a hit."""

from __future__ import annotations

import copy
import math
import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import fastjit
from gradient_tools import Log, assert_same, compare, leaf, log_of

Function = Any


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x * w).exp()


def call(f: Function) -> tuple[torch.Tensor, torch.Tensor, Any]:
    x, w = leaf(3, 4), leaf(4)
    return x, w, f(x, w)


# ---- one result ----


def backward(f: Function) -> Log:
    x, w, y = call(f)
    y.sum().backward()
    return [y.detach(), x.grad, w.grad, y.requires_grad, y.is_leaf]


def second_backward(f: Function) -> Log:
    x, _w, y = call(f)
    y.sum().backward()
    y.sum().backward()
    return [x.grad]


def kept_graph(f: Function) -> Log:
    x, w, y = call(f)
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    return [x.grad, w.grad]


def write_to_result(f: Function) -> Log:
    x, _w, y = call(f)
    y.mul_(2)
    y.sum().backward()
    return [y.detach(), x.grad]


def write_to_argument(f: Function) -> Log:
    x, w = leaf(3, 4), leaf(4)
    inner = x * 1
    y = f(inner, w)
    inner.add_(1)
    y.sum().backward()
    return [x.grad]


def write_to_what_is_kept_unread(f: Function) -> Log:
    """Eager keeps `w` and refuses to go back; no program reads it there."""
    x, w = leaf(3, 4), leaf(4)
    inner = w * 1
    y = f(x, inner)
    inner.detach().add_(1)
    with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
        y.sum().backward()
    return [x.grad, w.grad]


def gradient_of_one(f: Function) -> Log:
    x, w, y = call(f)
    return [torch.autograd.grad(y.sum(), [w]), x.grad, w.grad]


def backward_to_one(f: Function) -> Log:
    x, w, y = call(f)
    y.sum().backward(inputs=[x])
    return [x.grad, w.grad]


def hooks_after(f: Function) -> Log:
    log: Log = []
    x, w, y = call(f)
    y.register_hook(lambda g: log.append(("y", g.sum())))
    x.register_hook(lambda g: log.append(("x", g.sum())))
    w.register_hook(lambda g: g * 2)
    w.register_post_accumulate_grad_hook(lambda p: log.append(("w", p.grad.sum())))
    y.retain_grad()
    y.sum().backward()
    return [log, y.grad, w.grad]


def accumulated(f: Function) -> Log:
    x, w = leaf(3, 4), leaf(4)
    for _ in range(3):
        f(x, w).sum().backward()
    version, grad = x.grad._version, x.grad
    f(x, w).sum().backward()
    return [x.grad, w.grad, x.grad._version - version, x.grad is grad]


def argument_with_history(f: Function) -> Log:
    x, w = leaf(3, 4), leaf(4)
    f(x * 2, w).sum().backward()
    return [x.grad, w.grad]


def argument_is_view(f: Function) -> Log:
    x, w = leaf(6, 4), leaf(4)
    f(x[::2], w).sum().backward()
    return [x.grad, w.grad]


def on_another_thread(f: Function) -> Log:
    x, w, y = call(f)
    thread = threading.Thread(target=lambda: y.sum().backward())
    thread.start()
    thread.join()
    return [x.grad, w.grad]


def gradient_lies_otherwise(f: Function) -> Log:
    x, w, y = call(f)
    y.backward(torch.randn(4, 3).t())
    return [x.grad, w.grad]


def without_grad_between(f: Function) -> Log:
    x, w = leaf(3, 4), leaf(4)
    with torch.no_grad():
        y = f(x, w)
    f(x, w).sum().backward()
    return [y, x.grad, w.grad]


def inside_autocast(f: Function) -> Log:
    x, w = leaf(3, 4), leaf(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = f(x, w)
    y.float().sum().backward()
    return [y.detach(), x.grad, w.grad]


ONE = [backward, second_backward, kept_graph, write_to_result, write_to_argument, gradient_of_one, backward_to_one]
ONE += [hooks_after, accumulated, argument_with_history, argument_is_view, on_another_thread, gradient_lies_otherwise]
ONE += [without_grad_between]


@pytest.mark.parametrize("scenario", ONE, ids=lambda scenario: scenario.__name__)
def test_autograd_sees_what_it_sees_in_eager(scenario):
    stats = compare(scenario, product)
    assert stats.fallbacks == {} and stats.hits == stats.calls - stats.misses
    assert stats.misses == (2 if scenario is without_grad_between else 1)


def slices(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(3, 4)
    y[0] = x[0] * w
    y[1:] = x[1:] * 2
    return y


PROGRAMS = {
    "a write to an input that eager does not keep": (write_to_argument, lambda x, w: x.sigmoid() * w.detach().sum()),
    "a write to an input that eager keeps and no program reads": (
        write_to_what_is_kept_unread,
        lambda x, w: x.sign() * w,
    ),
    "a write to a result that eager does not keep": (write_to_result, lambda x, w: x * w),
    "a view of what the call made": (backward, lambda x, w: (x * w)[0]),
    "a transposed result": (backward, lambda x, w: (x * w).t()),
    "writes inside": (backward, lambda x, w: (x * w).mul_(3).relu_()),
    "writes to parts": (backward, slices),
    "a product in place, of which autograd keeps what was there": (
        backward,
        lambda x, w: (h := x.sin()).mul_((w * x).sigmoid()) * h.cos(),
    ),
    "an index": (backward, lambda x, w: (x * w).cumsum(0)[torch.tensor([0, 2])]),
    "a choice": (backward, lambda x, w: torch.where(x > 0, x * w, x.exp())),
    "a product": (inside_autocast, lambda x, w: torch.relu(x @ w) @ w),
    "what an operator sees in a view of its own, and autograd keeps": (
        backward,
        lambda x, w: torch.linalg.solve_triangular(
            torch.linalg.cholesky(x.t() @ x + 9 * torch.eye(4)), w[:, None], upper=False
        ),
    ),
    "what autograd keeps, handed out by a function that torch has written in Python": (
        backward,
        lambda x, w: torch.linalg.qr(x.t() @ x + torch.eye(4))[1] * w,
    ),
    "softmax and a loss": (
        backward,
        lambda x, w: torch.nn.functional.cross_entropy((x * w).softmax(-1), torch.tensor([0, 1, 3])),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_of(name):
    scenario, function = PROGRAMS[name]
    stats = compare(scenario, function)
    assert stats.hits == 2 and stats.fallbacks == {}


# ---- several results ----


def each_in_turn(f: Function) -> Log:
    x, w, (a, b) = call(f)
    a.sum().backward()
    b.sum().backward()
    return [x.grad, w.grad]


def only_the_second(f: Function) -> Log:
    x, w, (a, b) = call(f)
    b.sum().backward()
    return [x.grad, w.grad, a.requires_grad]


def gradient_of_a_result(f: Function) -> Log:
    x, w, (hidden, y) = call(f)
    (of_hidden,) = torch.autograd.grad(y.sum(), hidden, retain_graph=True)
    hidden.register_hook(lambda g: g * 3)
    hidden.retain_grad()
    (y.sum() + hidden.sum()).backward()
    return [of_hidden, hidden.grad, x.grad, w.grad]


def trunk(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    h = (x * w).sin()
    return h.cos(), h.exp()


def from_hidden(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    h = (x * w).tanh()
    return h, (h.exp() * w).sum()


def written_through_view(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Torch's formulas of such a write keep gradients in memory that they write."""
    h = (x * w).sum(0)
    part = h[:2]
    part.add_(1)
    return h, part * 3


def joined(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of what is joined are views of the whole one's."""
    whole = torch.cat([x, w[None], x])
    return whole, x @ whole.t()


def filled(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Autograd comes to `w` through `fill_`, which brings zeros."""
    return x * 2, (x * w).fill_(0.5)


SEVERAL = {
    "apart, in turn": (each_in_turn, lambda x, w: (x.sin(), w.cos())),
    "on one trunk, in turn": (each_in_turn, trunk),
    "one is not used": (only_the_second, lambda x, w: (x * w, (x + 1).exp())),
    "the other one's branch is infinite": (only_the_second, lambda x, w: ((x - x).log() * w, x * w)),
    "one follows from the other": (gradient_of_a_result, from_hidden),
    "one follows from the other, in turn": (each_in_turn, from_hidden),
    "one was written through a view, the other follows from the view": (gradient_of_a_result, written_through_view),
    "one was written through a view, in turn": (each_in_turn, written_through_view),
    "one is a copy of an argument": (each_in_turn, lambda x, w: ((h := x.clone()), h.sigmoid() * w)),
    "one is a copy of an argument, the other one alone": (only_the_second, lambda x, w: ((h := x.clone()).exp(), h)),
    "one joins what the other reads too": (each_in_turn, joined),
    "one joins what the other reads too, alone": (only_the_second, lambda x, w: joined(x, w)[::-1]),
    "one is a transposed view": (each_in_turn, lambda x, w: ((h := (x * w).t()).square(), h)),
    "gradients are zeros whatever comes": (only_the_second, filled),
    "gradients are zeros for the other one only": (only_the_second, lambda x, w: filled(x, w)[::-1]),
    "one needs none": (only_the_second, lambda x, w: ((x * w).detach() + 1, x * w)),
    "one has integers": (only_the_second, lambda x, w: ((x * w).argmax(-1), x * w)),
    "one is an argument": (only_the_second, lambda x, w: (x, x * w)),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_results(name):
    scenario, function = SEVERAL[name]
    stats = compare(scenario, function)
    assert stats.hits == 2 and stats.fallbacks == {}


def test_results_in_a_chain_have_a_node_each():
    def steps(x, w):
        a = (x * w).sin()
        b = a.exp()
        return a, b, b.sum()

    def scenario(f):
        x, w, (a, b, c) = call(f)
        grads = [torch.autograd.grad(c, t, retain_graph=True) for t in (a, b)]
        (a.sum() + c).backward()
        return [grads, x.grad, w.grad]

    assert compare(scenario, steps).hits == 2


def test_what_several_results_share_is_gone_back_through_once():
    """As a pyramid of features: the last one is computed from another, which shares the trunk with the rest."""
    weights = [torch.randn(64, 64) / 8 for _ in range(3)]

    def pyramid(x, w):
        for weight in weights:
            x = torch.tanh(x @ weight)
        one, other = x * w, x.sin()
        return one, other, other.exp()

    def scenario(f):
        x, w = leaf(64, 64), leaf(64)
        one, other, last = f(x, w)
        (of_other,) = torch.autograd.grad(last.sum(), other, retain_graph=True)
        (of_x,) = torch.autograd.grad(one.sum(), x, retain_graph=True)
        (one.sum() + last.sum() + other.square().sum()).backward()
        return [of_other, of_x, x.grad, w.grad]

    assert compare(scenario, pyramid).hits == 2
    fast = fastjit.fastjit(pyramid)
    with torch.enable_grad():
        for _ in range(2):
            fast(leaf(64, 64), leaf(64))
    there, *back = fast.inspect("ir").split("# the way back")
    assert there.count("contract") == 3 and [way.count("contract") for way in back] == [3, 0]


# ---- calls behind one another ----


def behind_one_another(f: Function) -> Log:
    """The weight is reached through the history of an argument, too, which is not the call's."""
    w, x = leaf(4), torch.randn(3, 4)
    for _ in range(4):
        x = f(x, w)
    x.sum().backward()
    return [x.detach(), w.grad]


def written_to_part(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = w * torch.ones(3, 4)
    y[1:] = x[1:]
    return y


BEHIND = [lambda x, w: x + w, lambda x, w: (x * w).tanh(), lambda x, w: torch.stack([x, x * w]).sum(0), written_to_part]


@pytest.mark.parametrize("function", BEHIND)
def test_gradients_of_a_call_end_where_it_began(function):
    stats = compare(behind_one_another, function)
    assert stats.misses == 2 and stats.hits == 10 and stats.fallbacks == {}


# ---- what differs from call to call ----


def test_requires_grad_is_in_the_key():
    def scenario(f):
        log = []
        for needs in (True, False, True):
            x, w = torch.randn(3, 4, requires_grad=needs), leaf(4)
            f(x, w).sum().backward()
            log += [x.grad, w.grad]
        return log

    stats = compare(scenario, product)
    assert stats.misses == 2 and stats.hits == 7


def test_the_second_size_is_any_size():
    def scenario(f):
        log = []
        for rows in (3, 5, 7):
            x, w = leaf(rows, 4), leaf(4)
            f(x, w).sum().backward()
            log += [x.grad, w.grad]
        return log

    stats = compare(scenario, product)
    assert stats.misses == 2 and stats.hits == 7


# ---- hooks on what was there before the call ----


def hook_on_an_argument(f: Function) -> Log:
    log: Log = []
    x, w = leaf(3, 4), leaf(4)
    x.register_hook(lambda g: log.append(g.sum()))
    x.register_hook(lambda g: g * 2)
    w.register_post_accumulate_grad_hook(lambda p: log.append(p.grad.clone()))
    f(x, w).sum().backward()
    return [log, x.grad, w.grad]


def hook_on_a_tensor_of_a_graph(f: Function) -> Log:
    """It has the sum of what comes from the call and from elsewhere, once."""
    log: Log = []
    x, w = leaf(3, 4), leaf(4)
    h = x.sin()
    h.register_hook(lambda g: log.append(g.clone()))
    h.register_hook(lambda g: g.clamp(-1, 1))
    h.retain_grad()
    (f(h, w).sum() + (h * 3).sum()).backward()
    return [log, h.grad, x.grad, w.grad]


def hook_that_goes(f: Function) -> Log:
    log: Log = []
    x, w = leaf(3, 4), leaf(4)
    for _ in range(2):
        handle = w.register_hook(lambda g: log.append(g.norm()) or g * 0.5)
        f(x, w).sum().backward()
        handle.remove()
        f(x, w).sum().backward()
    return [log, x.grad, w.grad]


def hook_that_raises(f: Function) -> Log:
    x, w = leaf(3, 4), leaf(4)

    def refuse(g: torch.Tensor) -> None:
        raise ValueError("no")

    w.register_hook(refuse)
    y = f(x, w).sum()
    with pytest.raises(ValueError, match="no"):
        y.backward()
    return [w.grad is None]


def node_hooks(f: Function) -> Log:
    log: Log = []
    x, w = leaf(3, 4), leaf(4)
    node = torch.autograd.graph.get_gradient_edge(w).node
    node.register_hook(lambda *_: log.append("behind"))
    node.register_prehook(lambda grads: log.append(grads[0].sum()))
    f(x, w).sum().backward()
    return [log, x.grad, w.grad]


HOOKS = [hook_on_an_argument, hook_on_a_tensor_of_a_graph, hook_that_goes, hook_that_raises, node_hooks]


@pytest.mark.parametrize("scenario", HOOKS, ids=lambda s: s.__name__)
def test_hooks_on_what_was_there_before(scenario):
    """They wait at the end of the call's own graph, which autograd does not reach when it records the way back."""
    stats = compare(scenario, product)
    assert (stats.misses, stats.hits, stats.fallbacks) == (1, 2, {}) or scenario is hook_that_goes
    assert stats.hits >= 2, stats


@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])
@pytest.mark.parametrize(
    "net",
    [
        nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)),
        nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True),
        nn.Sequential(nn.Conv1d(5, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Conv1d(4, 4, 3), nn.Flatten()),
    ],
    ids=["mlp", "encoder", "convolutions"],
)
def test_hooks_of_several_parameters_come_in_eagers_order(net, kind):
    order: list[str] = []
    net = copy.deepcopy(net)
    for name, parameter in net.named_parameters():
        getattr(parameter, kind)(lambda _, name=name: order.append(name))
    x, orders = torch.randn(2, 5, 16), []
    forward = fastjit.fastjit(net.forward)
    with torch.enable_grad():
        for call in (net, forward, forward, forward):
            order.clear()
            call(x).sum().backward()
            orders.append(list(order))
    assert forward.stats().hits == 2
    assert orders[1:] == [orders[0]] * 3


# ---- what requires grad already, and what the call lets require it ----


class Told(torch.nn.Module):
    """As models of transformers have it, so that checkpoints inside find something that requires grad."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer, self.how = torch.nn.Linear(4, 4), how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x[:, None]
        if self.how == "a new view":
            y.requires_grad = True
        h = self.layer(y)
        if self.how == "again":
            h.requires_grad_(True).requires_grad_()
            self.layer.bias.requires_grad = True
            self.layer.weight.requires_grad_(True)
        return h.tanh()


@torch.enable_grad()
@pytest.mark.parametrize("how", ["a new view", "again"])
def test_what_is_told_to_require_grad(how):
    torch.manual_seed(0)
    eager = Told(how)
    fast = fastjit.fastjit(copy.deepcopy(eager))
    for _ in range(4):
        x = torch.randn(3, 4)
        for net in (eager, fast):
            net.zero_grad()
            net(x).square().sum().backward()
        assert_same([p.grad for p in fast.parameters()], [p.grad for p in eager.parameters()])
    assert fastjit.of(fast).stats().hits == 3 and fastjit.of(fast).stats().fallbacks == {}


# ---- what stays eager, and why ----


def in_checkpoint(f: Function) -> Log:
    x, w = leaf(3, 4), leaf(4)
    checkpoint(f, x, w, use_reentrant=False).sum().backward()
    return [x.grad, w.grad]


def under_anomaly_detection(f: Function) -> Log:
    with torch.autograd.detect_anomaly(check_nan=False):
        return backward(f)


def hooked_inside(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x * w
    y.register_hook(lambda g: g * 2)
    return y.exp()


EAGER = {
    "use of a tensor outside operators by Tensor.register_hook": (backward, hooked_inside),
    "hooks for saved tensors are active, as in a checkpoint": (in_checkpoint, product),
    "anomaly detection is on": (under_anomaly_detection, product),
    "depends on data": (backward, lambda x, w: (x * w).prod()),
    "its gradients are not compiled: a result that requires grad shares memory with 'x'": (
        backward,
        lambda x, w: x[1:],
    ),
}


VIEWS = [
    lambda x, w: (x * w, w.expand(5, 4)),
    lambda x, w: (w[1:], (x * w).exp()),
    lambda x, w: (x.t(), x.view(-1)[2:], x * w, w.unsqueeze(0)),
]


def ask_of_views(f):
    x, w = leaf(3, 4), leaf(4)
    results = f(x, w)
    sum((each * torch.rand_like(each)).sum() for each in results).backward()
    log = [*results, x.grad, w.grad]
    for each in f(x, w):
        log += [each._is_view(), each._version, any(each._base is one for one in (x, w))]
        log.append(torch.autograd.grad(each.sum(), (x, w), allow_unused=True, retain_graph=True))
        with torch.no_grad():
            each.mul_(2)
        log += [each._version, x._version, w._version, each]
    return [x, w, *log]


@pytest.mark.parametrize("f", VIEWS)
def test_results_that_are_views_of_parameters_are_views_in_a_hit(f):
    first = compare(lambda call: [call(leaf(3, 4), leaf(4))], f)
    assert (first.hits, first.fallbacks) == (2, {})
    if f is VIEWS[0]:  # elements of an expanded tensor cannot be written
        return
    stats = compare(ask_of_views, f)
    assert stats.hits > 2 and stats.fallbacks == {}


def test_a_view_of_a_leaf_raises_eagers_error_when_it_is_written():
    stats = compare(lambda call: [call(leaf(3, 4), leaf(4))[0].mul_(2)], VIEWS[1])
    assert (stats.hits, stats.fallbacks) == (2, {})


def test_autograd_goes_through_a_view_that_is_a_result():
    def function(x, w):
        part = w[1:]
        return part, (x[:, 1:] * part).sum()

    def scenario(f):
        part, total = f(leaf(3, 4), leaf(4))
        return [part, total, torch.autograd.grad(total, part)]

    stats = compare(scenario, function)
    assert stats.hits == 0 and "shares memory with 'w'" in next(iter(stats.fallbacks)), stats.fallbacks


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("reason", EAGER)
def test_stays_eager(reason):
    scenario, function = EAGER[reason]
    stats = compare(scenario, function)
    assert stats.hits == 0 and any(reason in why for why in stats.fallbacks), stats.fallbacks


@torch.enable_grad()
@pytest.mark.parametrize(
    "function",
    [lambda x, w: (x * w).max(), lambda x, w: (x * w).median(), lambda x, w: x * w / (x * w).abs().max()],
    ids=["max", "median", "over the largest"],
)
def test_formulas_that_look_at_values_of_the_call(function):
    """Whether the largest element is a number decides which elements get a gradient: it is a value of the path."""
    compiled = fastjit.fastjit(function)
    for turn in range(6):
        x, w = torch.randn(3, 4), torch.randn(4, requires_grad=True)
        if turn in (2, 4):
            x[1, 2] = math.nan
        twin = w.detach().clone().requires_grad_()
        for f, weight in ((compiled, w), (function, twin)):
            f(x, weight).sum().backward()
        torch.testing.assert_close(w.grad, twin.grad, equal_nan=True)
    assert compiled.stats().hits == 4 and compiled.stats().fallbacks == {}, compiled.stats()


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_a_program_steps_back_while_hooks_for_saved_tensors_are_active():
    compiled = fastjit.fastjit(product, on_unsupported="eager")
    want = log_of(backward, product)
    for scenario, hits in [
        (backward, 0),
        (backward, 1),
        (in_checkpoint, 1),
        (under_anomaly_detection, 1),
        (backward, 2),
    ]:
        got = log_of(scenario, compiled)
        assert_same(got[-2:], want[1:3] if scenario is in_checkpoint else want[-2:])
        assert compiled.stats().hits == hits
    assert list(compiled.stats().fallbacks) == [
        "anomaly detection is on",
        "hooks for saved tensors are active, as in a checkpoint",
    ]


def under_hooks_for_saved_tensors(log: list) -> Any:
    return torch.autograd.graph.saved_tensors_hooks(lambda t: log.append(t.shape) or t, lambda t: t)


def under_hooks_for_nodes(log: list) -> Any:
    return torch.autograd.graph.node_creation_hook(lambda node: log.append(node.name()))


HOOKS = {"hooks for saved tensors are active, as in a checkpoint": under_hooks_for_saved_tensors}
if hasattr(torch.autograd.graph, "node_creation_hook"):  # torch 2.14
    HOOKS["a hook waits for new nodes of autograd's graph"] = under_hooks_for_nodes


@pytest.mark.parametrize("reason", HOOKS)
@pytest.mark.parametrize("f", [product, lambda x, w: product(x, w).detach()], ids=["returned", "dropped"])
def test_hooks_see_the_nodes_of_a_call(f, reason):
    compiled = fastjit.fastjit(f, on_unsupported="eager")
    seen, wanted = [], []
    with torch.enable_grad():
        for _ in range(3):
            call(compiled)
        assert compiled.stats().hits == 2
        for g, log in [(compiled, seen), (f, wanted)]:
            with HOOKS[reason](log):
                call(g)
        call(compiled)
    assert seen == wanted and wanted
    assert compiled.stats().fallbacks == {reason: 1}
    assert compiled.stats().hits == 3


def again(f: Function) -> Log:
    x, w, y = call(f)
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    g.pow(2).sum().backward()
    return [x.grad, w.grad]


def test_gradients_of_gradients_are_noticed_in_the_first_backward():
    stats = compare(again, product)
    assert stats.hits == 0
    assert stats.fallbacks == {"its gradients are differentiated again (create_graph=True)": 2}


def test_gradients_of_gradients_that_come_later_are_an_error_once():
    compiled = fastjit.fastjit(product)
    for _ in range(2):
        log_of(backward, compiled)
    (said,) = log_of(again, compiled)
    assert "are to be differentiated again (create_graph=True)" in said and "call it again" in said
    assert_same(log_of(again, compiled), log_of(again, product))
    assert compiled.stats().hits == 2


# ---- the call goes back itself ----


@pytest.fixture(scope="module")
def first_uses() -> None:
    """Torch imports parts of itself at the first step of an optimizer in a process: that call is not recorded."""
    with torch.enable_grad():
        step, _ = whole_step(OPTIMIZERS["AdamW"], clip=True)
        step(torch.ones(2, 6), torch.tensor([0, 1]))


def whole_step(optimizer_of, clip=False, last_zero=False):
    """One training step over a small network of its own, and the network."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = optimizer_of(net.parameters())

    def step(x, y):
        if not last_zero:
            optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        if last_zero:
            optimizer.zero_grad()
        return loss.detach()

    return step, net


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-2),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-2),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "foreach AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
}


def train(step, net, steps=8):
    log = []
    for seed in range(steps):
        torch.manual_seed(seed)
        log.append(step(torch.randn(5, 6), torch.randint(0, 3, (5,))))
        log += [
            (p.detach().clone(), p.grad if p.grad is None else p.grad.clone(), p._version) for p in net.parameters()
        ]
    return log


@pytest.mark.usefixtures("first_uses")
@pytest.mark.parametrize("kind", ["plain", "clip", "last_zero"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_training_step_is_one_program(name, kind):
    options = {kind: True} if kind != "plain" else {}
    step, net = whole_step(OPTIMIZERS[name], **options)
    other, twin = whole_step(OPTIMIZERS[name], **options)
    compiled = fastjit.fastjit(other, on_unsupported="eager")
    with torch.enable_grad():
        assert_same(train(compiled, twin), train(step, net))
    assert compiled.stats().hits >= 5 and compiled.stats().fallbacks == {}, compiled.stats()


def test_gradients_that_are_there_are_added_to():
    torch.manual_seed(0)
    net = nn.Linear(4, 2)
    twin = copy.deepcopy(net)

    def into(net):
        def step(x):
            loss = net(x).square().sum()
            loss.backward()
            return loss.detach()

        return step

    step, compiled = into(net), fastjit.fastjit(into(twin))
    with torch.enable_grad():
        for _ in range(5):
            x = torch.randn(3, 4)
            assert_same(compiled(x), step(x))
            held = twin.weight.grad
            assert_same(list(p.grad for p in twin.parameters()), list(p.grad for p in net.parameters()))
            assert held._version == net.weight.grad._version
        compiled(x)
        assert twin.weight.grad is held, "the same tensor, as eager adds to it in place"
    assert compiled.stats().hits == 4 and compiled.stats().misses == 2


def test_a_loss_that_was_gone_back_from_cannot_be_again():
    net = nn.Linear(4, 2)

    @fastjit.fastjit
    def step(x):
        net.zero_grad()
        loss = net(x).square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        for _ in range(4):
            loss = step(torch.randn(3, 4))
            assert loss.requires_grad
            with pytest.raises(RuntimeError, match="backward through the graph a second time"):
                loss.backward()
    assert step.stats().hits == 2


def backward_of(net):
    @fastjit.fastjit(on_unsupported="eager")
    def step(x):
        net.zero_grad()
        net(x).sum().backward()

    return step


def test_a_hook_on_a_parameter_keeps_a_training_step_eager():
    net, log = nn.Linear(4, 2), []
    net.weight.register_post_accumulate_grad_hook(lambda p: log.append(p.grad.sum().item()))

    step = backward_of(net)
    with torch.enable_grad():
        for _ in range(3):
            step(torch.ones(3, 4))
    assert len(log) == 3 and step.stats().hits == 0
    assert any("a hook waits for that of 'net.weight'" in why for why in step.stats().fallbacks), step.stats()


@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_hook_that_comes_later_is_run(kind):
    net, log = nn.Linear(4, 2), []

    step = backward_of(net)
    with torch.enable_grad():
        for _ in range(3):
            step(torch.ones(3, 4))
        assert step.stats().hits == 1
        getattr(net.weight, kind)(lambda _: log.append(kind))
        step(torch.ones(3, 4))
    assert log == [kind] and step.stats().hits == 1
    assert step.stats().fallbacks == {"a hook waits for the gradient of a parameter": 1}


def test_a_loss_is_read_without_gradients():
    net = nn.Linear(4, 2)
    loss = fastjit.fastjit(lambda x: net(x).square().sum().item())
    with torch.enable_grad():
        for _ in range(4):
            x = torch.randn(3, 4)
            assert loss(x) == pytest.approx(net(x).square().sum().item())
    assert loss.stats().hits == 3 and loss.stats().fallbacks == {}
