"""Gradients of some of a call's results alone: no hook hears of what autograd does not come to."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from torch import nn

import fastjit
from gradient_tools import assert_same


class Heads(nn.Module):
    """A trunk, a head of each result, and one that two of the three results share."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.trunk, self.both = nn.Linear(6, width), nn.Linear(width, width)
        self.a, self.b, self.c = nn.Linear(width, 3), nn.Linear(width, 2), nn.Linear(width, 4)

    def forward(self, x):
        h = torch.tanh(self.trunk(x))
        both = torch.sigmoid(self.both(h))
        return self.a(h), self.b(both), self.c(both)


def in_turn(a, b, c, net):
    b.sum().backward(retain_graph=True)
    a.square().sum().backward(retain_graph=True)
    c.sum().backward()


def of_a_head(a, b, c, net):
    return torch.autograd.grad(b.square().sum(), [net.b.weight], retain_graph=True), torch.autograd.grad(
        a.sum() + c.sum(), [net.c.bias, net.both.weight]
    )


def inputs_of_two(a, b, c, net):
    (a.sum() + b.sum()).backward(inputs=[net.b.weight, net.a.weight, net.trunk.bias])


def on_another_thread(a, b, c, net):
    loss = b.sum() + c.square().sum()
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()


WAYS: dict[str, Any] = {
    "one": lambda a, b, c, net: a.sum().backward(),
    "two that share a head": lambda a, b, c, net: (b.sum() + c.square().sum()).backward(),
    "two that do not": lambda a, b, c, net: (a.sum() + c.square().sum()).backward(),
    "all": lambda a, b, c, net: (a.sum() + b.exp().sum() + c.square().sum()).backward(),
    "in turn": in_turn,
    "of a head": of_a_head,
    "inputs of two": inputs_of_two,
    "on another thread": on_another_thread,
    "a gradient of a result": lambda a, b, c, net: torch.autograd.grad(a.sum() + b.sum(), [a, net.b.bias]),
}


def listen(net: nn.Module, log: list[Any]) -> list[Any]:
    handles = []
    for name, p in net.named_parameters():
        handles.append(p.register_hook(lambda g, name=name: log.append((name, g.clone()))))
        handles.append(p.register_post_accumulate_grad_hook(lambda p, name=name: log.append((name + ".grad",))))
    return handles


@pytest.mark.parametrize("hooks_before", [True, False], ids=["hooks before", "hooks behind"])
@pytest.mark.parametrize("name", WAYS)
@torch.enable_grad()
def test_hooks_hear_of_what_autograd_comes_to(name, hooks_before):
    def play(wrap: Any) -> Any:
        torch.manual_seed(9)
        net = Heads()
        fast = wrap(net)
        seen: list[Any] = []
        for i in range(3):
            torch.manual_seed(i)
            net.zero_grad()
            log: list[Any] = []
            handles = listen(net, log) if hooks_before else []
            results = fast(torch.randn(5, 6))
            for result_name, result in zip("abc", results, strict=True):
                result.register_hook(lambda g, name=result_name, log=log: log.append((name, g.clone())))
            handles += listen(net, log) if not hooks_before else []
            made = WAYS[name](*results, net)
            for handle in handles:
                handle.remove()
            seen.append((sorted(log, key=lambda one: one[0]), made, [p.grad for p in net.parameters()]))
        return seen, fast

    want, _ = play(lambda net: net)
    got, fast = play(fastjit.fastjit)
    assert_same(got, want)
    stats = fastjit.of(fast).stats()
    assert stats.hits == 2 and not stats.fallbacks


@torch.enable_grad()
def test_results_that_are_dropped():
    torch.manual_seed(0)
    net = Heads()
    plain, fast, x = copy.deepcopy(net), fastjit.fastjit(net), torch.randn(5, 6)
    for kept in (0, 1, 2, 0, 1, 2):
        net.zero_grad()
        result = fast(x)[kept]
        result.sum().backward(retain_graph=True)
        result.sum().backward()
        plain.zero_grad()
        (2 * plain(x)[kept].sum()).backward()
        assert_same([p.grad for p in net.parameters()], [p.grad for p in plain.parameters()])
    assert fastjit.of(fast).stats().hits == 5


@torch.enable_grad()
def test_a_result_that_is_dropped_ends_nothing():
    torch.manual_seed(0)
    net = Heads()
    fast, x = fastjit.fastjit(net), torch.randn(5, 6)
    for _ in range(3):
        a, b, c = fast(x)
        (a.sum() + b.sum()).backward(retain_graph=True)
        del b
        (a.sum() + c.sum()).backward()
    assert fastjit.of(fast).stats().hits == 2


@torch.enable_grad()
def test_a_way_back_in_parts():
    """The way back stops where gradients arrive that a hook waits for; heads are among them."""

    def play(wrap: Any) -> Any:
        torch.manual_seed(0)
        net = Heads(width=700)
        fast, seen = wrap(net), []
        log: list[Any] = []
        handles = listen(net, log)
        for i in range(6):
            torch.manual_seed(i)
            a, b, c = fast(torch.randn(5, 6))
            loss = (a.sum(), b.sum() + c.exp().sum(), a.square().sum() + c.sum())[i % 3]
            if i > 3:
                loss.backward(inputs=[net.c.weight, net.a.weight, net.both.weight])
            else:
                loss.backward()
            seen.append((sorted(log, key=lambda one: one[0]), [p.grad for p in net.parameters()]))
            net.zero_grad()
            log.clear()
        for handle in handles:
            handle.remove()
        return seen, fast

    want, _ = play(lambda net: net)
    got, fast = play(fastjit.fastjit)
    assert_same(got, want)
    assert fastjit.of(fast).stats().hits == 5


@torch.enable_grad()
def test_what_is_over_stays_over():
    """Also where autograd comes only to what some results reach: inputs= names no parameter of the trunk."""
    torch.manual_seed(0)
    net = Heads()
    fast = fastjit.fastjit(net)
    for _ in range(3):
        _, b, c = fast(torch.randn(5, 6))
        loss = b.exp().sum() + c.square().sum()
        loss.backward(inputs=[net.c.weight, net.both.weight], retain_graph=True)
        loss.backward(inputs=[net.c.weight, net.both.weight])
        with pytest.raises(RuntimeError, match="a second time"):
            (b.sum() + c.sum()).backward(inputs=[net.c.weight])
    assert fastjit.of(fast).stats().hits == 2
