"""Training scripts: optimizers, what is done between backward and step, and losses."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from training_base import SCRIPTS, Log, Script, Wrap, batches, fit, mlp, script, state

# ---- optimizers and what is done between backward and step ----


def with_optimizer(make: Callable[..., Any]) -> Callable[[Wrap], Log]:
    def play(wrap: Wrap) -> Log:
        model = mlp(4, 8, 1)
        return fit(model, wrap(model), make(model.parameters()))

    return play


def stepping(model: nn.Module, optimizer: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that holds a whole step of that regression."""

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def whole_step_with(make: Callable[..., Any]) -> Callable[[Wrap], Log]:
    def play(wrap: Wrap) -> Log:
        model = mlp(4, 8, 1)
        optimizer = make(model.parameters())

        fast = wrap(stepping(model, optimizer))
        return [*(fast(x) for x in batches(8, 8, 4)), *state(model)]

    return play


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD with Nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "SGD that maximizes": lambda p: torch.optim.SGD(p, lr=0.01, maximize=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
}
for _name, _make in OPTIMIZERS.items():
    SCRIPTS[f"{_name} outside"] = Script(with_optimizer(_make), 4)
    SCRIPTS[f"{_name} inside"] = Script(whole_step_with(_make), 3)
for _foreach in (True, False):
    SCRIPTS[f"AdamW inside, foreach={_foreach}"] = Script(
        whole_step_with(lambda p, f=_foreach: torch.optim.AdamW(p, lr=0.01, foreach=f)), 3
    )
SCRIPTS["Adam with amsgrad inside"] = Script(whole_step_with(lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True)), 3)

SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5),
    "CosineAnnealingLR": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 5),
    "OneCycleLR": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=12),
    "ExponentialLR": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
    "LambdaLR": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 1 / (1 + epoch)),
}


def with_schedule(make: Callable[[Any], Any], inside: bool) -> Callable[[Wrap], Log]:
    def play(wrap: Wrap) -> Log:
        model = mlp(4, 8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = make(optimizer)
        if not inside:
            return fit(model, wrap(model), optimizer, after=lambda i: schedule.step() if i else None)

        fast, log = wrap(stepping(model, optimizer)), []
        for x in batches(8, 8, 4):
            log += [fast(x), optimizer.param_groups[0]["lr"]]
            schedule.step()
        return [*log, *state(model)]

    return play


for _name, _make in SCHEDULES.items():
    SCRIPTS[f"{_name} outside"] = Script(with_schedule(_make, False), 4)
    SCRIPTS[f"{_name}, the step inside"] = Script(with_schedule(_make, True), 3)


def clipped(clip: Callable[..., Any]) -> Callable[[Wrap], Log]:
    def play(wrap: Wrap) -> Log:
        model = mlp(4, 8, 1)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        return fit(model, wrap(model), optimizer, after=lambda _: clip(model.parameters()))

    return play


SCRIPTS["clip_grad_norm_"] = Script(clipped(lambda p: nn.utils.clip_grad_norm_(p, 0.1)), 4)
SCRIPTS["clip_grad_value_"] = Script(clipped(lambda p: nn.utils.clip_grad_value_(p, 0.05)), 4)
SCRIPTS["clip_grad_norm_ of the largest"] = Script(clipped(lambda p: nn.utils.clip_grad_norm_(p, 0.1, float("inf"))), 4)


@script(4)
def lr_changed_by_hand(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def lower(i: int) -> None:
        optimizer.param_groups[0]["lr"] *= 0.5

    return fit(model, wrap(model), optimizer, after=lower)


@script(4)
def parameter_groups(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters(), "weight_decay": 0.1}]
    return fit(model, wrap(model), torch.optim.AdamW(groups, lr=0.01))


@script(4)
def moving_average_of_weights(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    average = copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def blend(_: int) -> None:
        for a, p in zip(average.parameters(), model.parameters(), strict=True):
            a.lerp_(p, 0.1)

    return fit(model, wrap(model), torch.optim.SGD(model.parameters(), lr=0.1), after=blend) + state(average)


@script(4)
def averaged_model(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return fit(model, wrap(model), optimizer, after=lambda _: average.update_parameters(model)) + state(average)


@script(4)
def gradients_zeroed_in_place(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    fast, log = wrap(model), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in batches(5, 8, 4):
        optimizer.zero_grad(set_to_none=False)
        fast(x).square().mean().backward()
        log.append(model[0].weight.grad._version)
        optimizer.step()
    return [*log, *state(model)]


@script(7)
def gradient_accumulation(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    fast = wrap(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for i, x in enumerate(batches(8, 8, 4)):
        (fast(x).square().mean() / 4).backward()
        if i % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    return state(model)


# ---- losses ----


def with_loss(loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], inside: bool) -> Callable[[Wrap], Log]:
    def play(wrap: Wrap) -> Log:
        model = mlp(4, 16, 5, act=nn.ReLU)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        whole = wrap(lambda x, target: loss_of(model(x), target)) if inside else None
        fast, log = None if inside else wrap(model), []
        for i, x in enumerate(batches(4, 6, 4)):
            target = torch.tensor([0, 1, 4, 2, 3, i % 5])
            optimizer.zero_grad()
            loss = whole(x, target) if whole else loss_of(fast(x), target)
            loss.backward()
            optimizer.step()
            log.append(loss.detach())
        return [*log, *state(model)]

    return play


def one_hot(target: torch.Tensor) -> torch.Tensor:
    return (target[:, None] == torch.arange(5)).float()


LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "cross entropy": F.cross_entropy,
    "label smoothing": lambda y, t: F.cross_entropy(y, t, label_smoothing=0.1),
    "ignore_index": lambda y, t: F.cross_entropy(y, t, ignore_index=4),
    "class weights": lambda y, t: F.cross_entropy(y, t, weight=torch.tensor([1.0, 2.0, 3.0, 0.5, 1.0])),
    "sum of losses": lambda y, t: F.cross_entropy(y, t, reduction="sum"),
    "negative log likelihood": lambda y, t: F.nll_loss(F.log_softmax(y, -1), t),
    "binary cross entropy": lambda y, t: F.binary_cross_entropy_with_logits(y, one_hot(t)),
    "smooth l1": lambda y, t: F.smooth_l1_loss(y, one_hot(t)),
    "huber": lambda y, t: F.huber_loss(y, one_hot(t), delta=0.3),
    "divergence": lambda y, t: F.kl_div(F.log_softmax(y, -1), one_hot(t) * 0.8 + 0.04, reduction="batchmean"),
    "distillation": lambda y, t: (
        F.cross_entropy(y, t) + (y.softmax(-1) - y.detach().roll(1, 0).softmax(-1)).abs().sum()
    ),
    "focal": lambda y, t: ((1 - y.softmax(-1)) ** 2 * -one_hot(t) * y.log_softmax(-1)).sum(-1).mean(),
    "margins": lambda y, t: F.relu(y - (y * one_hot(t)).sum(-1, keepdim=True) + 0.5).mean(),
}
for _name, _loss in LOSSES.items():
    SCRIPTS[f"{_name} outside"] = Script(with_loss(_loss, False), 3)
    SCRIPTS[f"{_name} inside"] = Script(with_loss(_loss, True), 3)
