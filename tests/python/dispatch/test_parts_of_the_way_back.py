"""Hooks that take a parameter's gradient as soon as it is there: the way back goes on in parts between them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastjit
from gradient_tools import Log, assert_same, nodes_of_ours

WIDTH = 520  # the gradient of a layer's weight is as large as a part


class Tied(nn.Module):
    """Its first layer is its last one, too."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.middle = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.shared(self.middle(self.shared(x).tanh()).relu())


class TwoResults(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = deep(2), deep(2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.first(x)
        return hidden, self.last(hidden)


def deep(layers: int = 4) -> nn.Module:
    return nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(layers)])


def hooked(model: nn.Module, hook: Callable[[str, nn.Parameter], Any]) -> nn.Module:
    def add(name: str, parameter: nn.Parameter) -> None:
        def call(p: nn.Parameter) -> None:
            hook(name, p)

        parameter.register_post_accumulate_grad_hook(call)

    for name, parameter in model.named_parameters():
        add(name, parameter)
    return model


@torch.enable_grad()
def compare(scenario: Callable[[nn.Module], Log], model: nn.Module, turns: int = 3) -> fastjit.Stats:
    """Plays a scenario with two copies of a model, and compares the logs of each turn."""
    eager, fast = copy.deepcopy(model), fastjit.fastjit(copy.deepcopy(model))
    for turn in range(turns):
        logs = []
        for each in (eager, fast):
            torch.manual_seed(turn)
            try:
                logs.append(scenario(each))
            except RuntimeError as error:
                logs.append([type(error).__name__, str(error).partition("[")[0]])
        assert_same(logs[1], logs[0], f"turn {turn}")
    return fastjit.of(fast).stats()


def gradients(model: nn.Module) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


@torch.enable_grad()
def test_gradients_arrive_while_the_others_are_to_come():
    there: dict[str, set[str]] = {}

    def note(name: str, _: nn.Parameter) -> None:
        there[name] = {n for n, p in model.named_parameters() if p.grad is not None}

    model = fastjit.fastjit(hooked(deep(), note))
    for _ in range(3):
        model.zero_grad()
        there.clear()
        result = model(torch.randn(8, WIDTH))
        result.sum().backward()
    assert fastjit.of(model).stats().hits == 2
    assert nodes_of_ours(result) >= 4
    for layer in range(4):
        assert f"{layer}.0.weight" in there[f"{layer}.0.weight"]
        assert not {f"{below}.0.weight" for below in range(layer)} & there[f"{layer}.0.weight"]


@torch.enable_grad()
@pytest.mark.parametrize("make", [deep, Tied])
def test_parts_make_what_the_whole_makes(make):
    torch.manual_seed(0)
    model, x = make(), torch.randn(8, WIDTH)
    made = []
    for each in (copy.deepcopy(model), hooked(copy.deepcopy(model), lambda name, p: None)):
        fastjit.fastjit(each)
        for _ in range(2):
            each.zero_grad()
            result = each(x)
            result.square().mean().backward()
        assert fastjit.of(each).stats().hits == 1
        made.append((nodes_of_ours(result), gradients(each)))
    assert made[0][0] == 1 < made[1][0]
    for whole, parts in zip(made[0][1], made[1][1], strict=True):
        assert torch.equal(whole, parts)


@torch.enable_grad()
def test_without_hooks_there_is_one_node():
    model = fastjit.fastjit(deep())
    for _ in range(2):
        result = model(torch.randn(8, WIDTH))
    assert fastjit.of(model).stats().hits == 1
    assert nodes_of_ours(result) == 1


def test_an_update_in_the_hook():
    """As eager has it: a weight is updated, and its gradient gone, before that of the layer below is there."""

    def update(_: str, p: nn.Parameter) -> None:
        assert p.grad is not None
        with torch.no_grad():
            p.sub_(p.grad, alpha=0.1)
        p.grad = None

    def scenario(model: nn.Module) -> Log:
        if not getattr(model, "is_hooked", False):
            hooked(model, update).is_hooked = True  # type: ignore[assignment]
        loss = model(torch.randn(8, WIDTH)).square().mean()
        loss.backward()
        return [loss, *[p.detach().clone() for p in model.parameters()]]

    for model in (deep(), Tied()):
        assert compare(scenario, model, turns=5).hits == 4


def test_a_write_to_what_is_still_to_be_read_is_eagers_error():
    def scenario(model: nn.Module) -> Log:
        log: Log = []

        def write(name: str, _: nn.Parameter) -> None:
            log.append(name)
            if name == "3.0.weight":
                with torch.no_grad():
                    model[1][0].weight.mul_(1.5)

        handles = [
            p.register_post_accumulate_grad_hook(lambda p, name=name: write(name, p))
            for name, p in model.named_parameters()
        ]
        try:
            model(torch.randn(8, WIDTH)).sum().backward()
        finally:
            for handle in handles:
                handle.remove()
        return log

    assert compare(scenario, deep()).hits == 2


def test_an_error_in_a_hook_and_a_call_after_it():
    def scenario(model: nn.Module) -> Log:
        def fail(p: nn.Parameter) -> None:
            raise RuntimeError("not now")

        model.zero_grad()
        handle = model[2][0].weight.register_post_accumulate_grad_hook(fail)
        result = model(torch.randn(8, WIDTH))
        with pytest.raises(RuntimeError, match="not now"):
            result.sum().backward()
        handle.remove()
        below = [p.grad is None for p in model[:2].parameters()]
        model.zero_grad()
        model(torch.randn(8, WIDTH)).sum().backward()
        return [below, gradients(model)]

    assert compare(scenario, deep()).hits == 5


@pytest.mark.parametrize("retain", [True, False])
def test_back_twice(retain):
    def scenario(model: nn.Module) -> Log:
        hooked(model, lambda name, p: None)
        model.zero_grad()
        loss = model(torch.randn(8, WIDTH)).square().sum()
        loss.backward(retain_graph=retain)
        loss.backward()
        return gradients(model)

    assert compare(scenario, deep()).hits == 2


def test_back_within_a_hook():
    def scenario(model: nn.Module) -> Log:
        log: Log = []

        def again(name: str, p: nn.Parameter) -> None:
            log.append(name)
            if name == "2.0.weight" and log.count(name) == 1:
                log.append(torch.autograd.grad(loss, [model[0][0].weight], retain_graph=True)[0])

        model.zero_grad()
        handles = [
            p.register_post_accumulate_grad_hook(lambda p, name=name: again(name, p))
            for name, p in model.named_parameters()
        ]
        loss = model(torch.randn(8, WIDTH)).square().sum()
        loss.backward(retain_graph=True)
        for handle in handles:
            handle.remove()
        names = sorted(each for each in log if isinstance(each, str))
        return [names, [each for each in log if not isinstance(each, str)], gradients(model)]

    assert compare(scenario, deep()).hits == 2


def test_gradients_of_some():
    def scenario(model: nn.Module) -> Log:
        hooked(model, lambda name, p: None)
        x = torch.randn(8, WIDTH, requires_grad=True)
        hidden, result = model(x)
        log = [torch.autograd.grad(result.sum(), [model.last[0][0].weight], retain_graph=True)]
        log.append(torch.autograd.grad(result.sum(), [x, model.first[1][0].bias], retain_graph=True))
        log.append(torch.autograd.grad(result.sum(), [hidden], retain_graph=True))
        log.append(torch.autograd.grad(hidden.sum(), [model.first[0][0].weight], retain_graph=True))
        model.zero_grad()
        (result.sum() + hidden.square().sum()).backward()
        return [*log, gradients(model), x.grad]

    assert compare(scenario, TwoResults()).hits == 2


def test_any_number_of_rows():
    def scenario(model: nn.Module) -> Log:
        hooked(model, lambda name, p: p.grad.mul_(0.5))
        log: Log = []
        for rows in (8, 16, 24, 9, 31):
            model.zero_grad()
            result = model(torch.randn(rows, WIDTH))
            result.square().mean().backward()
            log.append(gradients(model))
        return log

    stats = compare(scenario, deep(), turns=2)
    assert stats.hits >= 7, stats


@torch.enable_grad()
def test_a_layer_that_is_frozen():
    def scenario(model: nn.Module) -> Log:
        for p in model[2].parameters():
            p.requires_grad_(False)
        for p in model.parameters():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(lambda p: None)
        model.zero_grad()
        model(torch.randn(8, WIDTH)).sum().backward()
        return gradients(model)

    assert compare(scenario, deep()).hits == 2
