"""Small training scripts: `name -> Script`. Each is played in eager and with what it gives to fastjit."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import itertools
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Log = list[Any]
Wrap = Callable[[Any], Any]  # fastjit, or nothing


@dataclasses.dataclass
class Script:
    """`play` trains for some steps with what `wrap` makes of its model or step, and notes what it sees."""

    play: Callable[[Wrap], Log]
    hits: int = 3  # at least
    eager: str = ""  # a part of the only reason that is allowed, of a call that runs eagerly


SCRIPTS: dict[str, Script] = {}


def script(hits: int = 3, eager: str = "", name: str = "") -> Callable[..., Any]:
    def add(play: Callable[[Wrap], Log]) -> Callable[[Wrap], Log]:
        SCRIPTS[name or play.__name__.replace("_", " ")] = Script(play, hits, eager)
        return play

    return add


def mlp(*sizes: int, act: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), act()]
    return nn.Sequential(*layers[:-1])


def state(model: nn.Module) -> Log:
    tensors = [t.detach().clone() for t in model.state_dict().values()]
    return tensors + [p.grad.clone() if p.grad is not None else None for p in model.parameters()]


def batches(steps: int, *sizes: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*sizes, generator=generator) for _ in range(steps)]


def fit(model: nn.Module, fast: Any, optimizer: Any, steps: int = 5, after: Callable[..., Any] | None = None) -> Log:
    """Squared error of a regression, step by step."""
    log: Log = []
    for i, x in enumerate(batches(steps, 8, 4)):
        optimizer.zero_grad()
        loss = (fast(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        if after:
            after(i)
        optimizer.step()
        log.append(loss.detach())
    return [*log, *state(model)]


# ---- optimizers and what is done between backward and step ----


def with_optimizer(make: Callable[..., Any]) -> Callable[[Wrap], Log]:
    def play(wrap: Wrap) -> Log:
        model = mlp(4, 8, 1)
        return fit(model, wrap(model), make(model.parameters()))

    return play


def whole_step_with(make: Callable[..., Any]) -> Callable[[Wrap], Log]:
    def play(wrap: Wrap) -> Log:
        model = mlp(4, 8, 1)
        optimizer = make(model.parameters())

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        fast = wrap(step)
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

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        fast, log = wrap(step), []
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


# ---- autograd around a call ----


@script(3)
def hooks_on_tensors(wrap: Wrap) -> Log:
    fast, log = wrap(lambda x, w: (x * w).sin()), []

    def note(g: torch.Tensor) -> None:
        log.append(g.sum())

    for x in batches(4, 3, 4):
        x.requires_grad_()
        w = torch.ones(4, requires_grad=True)
        y = fast(x, w)
        y.register_hook(note)
        x.register_hook(lambda g: g * 2)
        y.sum().backward()
        log += [x.grad, w.grad]
    return log


@script(0, "a hook waits for that of")
def hooks_on_parameters(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    log: Log = []
    model[0].weight.register_hook(lambda g: log.append(g.norm()))
    model[2].bias.register_post_accumulate_grad_hook(lambda p: log.append(p.grad.clone()))
    return fit(model, wrap(model), torch.optim.SGD(model.parameters(), lr=0.1)) + log


@script(3)
def optimizer_in_hooks(wrap: Wrap) -> Log:
    """Each parameter is updated as soon as its gradient is there; the hooks come after the recording."""
    model = mlp(4, 8, 1)
    fast = wrap(model)
    xs = batches(5, 8, 4)
    fast(xs[0])

    def update(p: torch.Tensor) -> None:
        p.data.sub_(0.1 * p.grad)
        p.grad = None

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(update)
    for x in xs:
        fast(x).square().mean().backward()
    return state(model)


@script(4)
def forward_hooks_of_modules(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    model[0].register_forward_hook(lambda module, given, out: out * 2)
    return fit(model, wrap(model), torch.optim.SGD(model.parameters(), lr=0.1))


@script(0, "read of Tensor.grad_fn")
def full_backward_hooks_of_modules(wrap: Wrap) -> Log:
    model, log = mlp(4, 8, 1), []
    model[0].register_full_backward_hook(lambda module, given, out: log.append(out[0].sum()))
    return fit(model, wrap(model), torch.optim.SGD(model.parameters(), lr=0.1)) + log


@script(4)
def partial_gradients(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    fast, log = wrap(model), []
    for i, x in enumerate(batches(5, 8, 4)):
        parameters = list(model.parameters())
        log += torch.autograd.grad(fast(x).square().mean(), parameters[i % 3 :: 2])
    return log


@script(4)
def backward_into_some(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    fast = wrap(model)
    for i, x in enumerate(batches(5, 8, 4)):
        fast(x).square().mean().backward(inputs=[list(model.parameters())[i % 4]])
    return state(model)


@script(4)
def two_backwards_with_retain_graph(wrap: Wrap) -> Log:
    model = mlp(4, 8, 2)
    fast = wrap(model)
    for x in batches(5, 8, 4):
        y = fast(x)
        y[:, 0].mean().backward(retain_graph=True)
        y[:, 1].square().mean().backward()
    return state(model)


@script(4)
def a_graph_that_was_freed(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    fast, log = wrap(model), []
    for x in batches(5, 8, 4):
        loss = fast(x).square().mean()
        loss.backward()
        try:
            loss.backward()
        except RuntimeError as error:
            log.append(str(error)[:40])
    return [*log, *state(model)]


@script(2)
def requires_grad_flipped(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    fast, log = wrap(model), []
    for i, x in enumerate(batches(8, 8, 4)):
        model[0].requires_grad_(i % 4 < 2)
        model.zero_grad()
        fast(x).square().mean().backward()
        log += state(model)
    return log


@script(4)
def frozen_layers(wrap: Wrap) -> Log:
    model = mlp(4, 8, 8, 1)
    model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    return fit(model, wrap(model), optimizer)


@script(3)
def an_exception_in_backward(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    fast, log = wrap(model), []

    def refuse(_: torch.Tensor) -> None:
        raise ValueError("no")

    for i, x in enumerate(batches(5, 8, 4)):
        model.zero_grad()
        y = fast(x)
        if i % 2:
            y.register_hook(refuse)
        try:
            y.square().mean().backward()
        except ValueError as error:
            log.append(str(error))
        log += state(model)
    return log


@script(3)
def a_write_between(wrap: Wrap) -> Log:
    fast, log = wrap(lambda x, w: (x * w).exp()), []
    for i, x in enumerate(batches(4, 3, 4)):
        w = torch.ones(4, requires_grad=True)
        y = fast(x, w)
        if i % 2:
            y.add_(1)
        try:
            y.sum().backward()
        except RuntimeError as error:
            log.append("modified by an inplace operation" in str(error))
        log.append(w.grad)
    return log


@script(3)
def no_grad_and_enable_grad_inside(wrap: Wrap) -> Log:
    model, target = mlp(4, 8, 2), mlp(4, 8, 2)

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            goal = target(x).softmax(-1)
            with torch.enable_grad():
                y = model(x)
        return F.kl_div(y.log_softmax(-1), goal, reduction="batchmean")

    fast, log = wrap(loss_of), []
    for x in batches(4, 8, 4):
        loss = fast(x)
        loss.backward()
        log.append(loss.detach())
    return [*log, *state(model), *state(target)]


@script(3)
def evaluation_between_steps(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    fast, log = wrap(model), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in batches(4, 8, 4):
        optimizer.zero_grad()
        fast(x).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            log.append(fast(x))
    return [*log, *state(model)]


@script(3)
def detached_target(wrap: Wrap) -> Log:
    """One step of a bootstrapped value, as in temporal differences."""
    model = mlp(4, 8, 1)
    fast = wrap(lambda x, after: (model(x) - (0.9 * model(after)).detach() - 1).square().mean())
    optimizer, log = torch.optim.SGD(model.parameters(), lr=0.05), []
    for x in batches(4, 8, 4):
        optimizer.zero_grad()
        loss = fast(x, x.flip(0))
        loss.backward()
        optimizer.step()
        log.append(loss.detach())
    return [*log, *state(model)]


@script(3)
def backward_on_other_threads(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    fast = wrap(model)
    for x in batches(4, 8, 4):
        loss = fast(x).square().mean()
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
    return state(model)


@script(3)
def gradients_of_arguments(wrap: Wrap) -> Log:
    """A perturbation of the input in the direction of its gradient."""
    model = mlp(4, 8, 3)
    fast, log = wrap(model), []
    for x in batches(4, 5, 4):
        x.requires_grad_()
        (g,) = torch.autograd.grad(F.cross_entropy(fast(x), torch.tensor([0, 1, 2, 0, 1])), x)
        log.append(x.detach() + 0.1 * g.sign() * (g.abs() > 1e-6))
    return log


@script(0, "differentiated again")
def gradient_penalty(wrap: Wrap) -> Log:
    critic = mlp(4, 8, 1)
    fast, log = wrap(critic), []
    optimizer = torch.optim.Adam(critic.parameters(), lr=0.01)
    for x in batches(4, 8, 4):
        x.requires_grad_()
        (g,) = torch.autograd.grad(fast(x).sum(), x, create_graph=True)
        penalty = (g.norm(dim=1) - 1).square().mean()
        optimizer.zero_grad()
        penalty.backward()
        optimizer.step()
        log.append(penalty.detach())
    return [*log, *state(critic)]


# ---- layers ----


@script(5)
def batch_norm_in_training_and_evaluation(wrap: Wrap) -> Log:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    fast, log = wrap(model), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i, x in enumerate(batches(9, 8, 4)):
        model.train(i % 3 != 2)
        optimizer.zero_grad()
        loss = fast(x).square().mean()
        loss.backward()
        optimizer.step()
        log.append(loss.detach())
    return [*log, *state(model)]


@script(4)
def dropout(wrap: Wrap) -> Log:
    model = nn.Sequential(nn.Linear(4, 32), nn.Dropout(0.5), nn.Linear(32, 1))
    fast, log = wrap(model), []
    for x in batches(5, 8, 4):
        torch.manual_seed(7)
        loss = fast(x).square().mean()
        loss.backward()
        log += [loss.detach(), torch.get_rng_state()]
    return [*log, *state(model)]


@script(4)
def convolutions(wrap: Wrap) -> Log:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)
    )
    fast, log = wrap(model), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for x in batches(5, 4, 1, 8, 8):
        optimizer.zero_grad()
        loss = F.cross_entropy(fast(x), torch.tensor([0, 1, 2, 0]))
        loss.backward()
        optimizer.step()
        log.append(loss.detach())
    return [*log, *state(model)]


def embedding(padding: int | None) -> Callable[[Wrap], Log]:
    def play(wrap: Wrap) -> Log:
        table, head = nn.Embedding(7, 4, padding_idx=padding), nn.Linear(4, 2)
        fast, log = wrap(lambda ids: head(table(ids).mean(1))), []
        optimizer = torch.optim.Adam([*table.parameters(), *head.parameters()], lr=0.1)
        for i in range(4):
            optimizer.zero_grad()
            loss = F.cross_entropy(fast(torch.tensor([[0, 1, i], [4, i, i + 1]])), torch.tensor([0, 1]))
            loss.backward()
            optimizer.step()
            log.append(loss.detach())
        return [*log, *state(table), *state(head)]

    return play


SCRIPTS["embedding"] = Script(embedding(None), 3)
SCRIPTS["embedding with padding"] = Script(embedding(0), 3)


def cells(make: Callable[[], nn.Module], pair: bool) -> Callable[[Wrap], Log]:
    def play(wrap: Wrap) -> Log:
        cell, head = make(), nn.Linear(6, 1)

        def unrolled(xs: torch.Tensor) -> torch.Tensor:
            h: Any = torch.zeros(xs.size(1), 6)
            if pair:
                h = (h, torch.zeros_like(h))
            for x in xs:
                h = cell(x, h)
            return head(h[0] if pair else h)

        fast, log = wrap(unrolled), []
        optimizer = torch.optim.Adam([*cell.parameters(), *head.parameters()], lr=0.01)
        for xs in batches(4, 5, 3, 4):
            optimizer.zero_grad()
            loss = fast(xs).square().mean()
            loss.backward()
            optimizer.step()
            log.append(loss.detach())
        return [*log, *state(cell), *state(head)]

    return play


SCRIPTS["LSTMCell"] = Script(cells(lambda: nn.LSTMCell(4, 6), True), 3)
SCRIPTS["GRUCell"] = Script(cells(lambda: nn.GRUCell(4, 6), False), 3)
SCRIPTS["RNNCell"] = Script(cells(lambda: nn.RNNCell(4, 6), False), 3)


def recurrent(make: Callable[..., nn.Module]) -> Callable[[Wrap], Log]:
    def play(wrap: Wrap) -> Log:
        layer = make(4, 6)
        fast = wrap(lambda xs: layer(xs)[0])
        for xs in batches(4, 5, 3, 4):
            fast(xs).square().mean().backward()
        return state(layer)

    return play


SCRIPTS["RNN"] = Script(recurrent(nn.RNN), 3)
SCRIPTS["LSTM"] = Script(recurrent(nn.LSTM), 3)
SCRIPTS["GRU"] = Script(recurrent(nn.GRU), 3)
for kind in (nn.RNN, nn.LSTM, nn.GRU):
    options = {"batch_first": True, "bidirectional": True, "num_layers": 2}
    SCRIPTS[f"{kind.__name__}, two layers, both ways"] = Script(recurrent(partial(kind, **options)), 3)


class Attention(nn.Module):
    """Heads by einsum, and a mask of what comes later."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        # A bias of the keys would get rounding for a gradient, which Adam makes large.
        self.qkv, self.out = nn.Linear(size, 3 * size, bias=False), nn.Linear(size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in self.qkv(x).chunk(3, -1))
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / q.size(-1) ** 0.5
        later = torch.ones(x.size(1), x.size(1), dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        return self.out(torch.einsum("bhij,bjhd->bihd", weights, v).flatten(-2))


class Language(nn.Module):
    """A language model of one block, whose head may share its weight with the table."""

    def __init__(self, tied: bool, attention: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.table, self.place = nn.Embedding(11, 8), nn.Parameter(torch.randn(6, 8) * 0.1)
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(2))
        self.attention, self.mlp = attention(), mlp(8, 16, 8, act=nn.GELU)
        self.head = nn.Linear(8, 11, bias=False)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids) + self.place
        x = x + self.attention(self.norms[0](x))
        return self.head(x + self.mlp(self.norms[1](x)))


class Scaled(Attention):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))


def language(tied: bool, attention: Callable[[], nn.Module], inside: bool = False) -> Callable[[Wrap], Log]:
    def play(wrap: Wrap) -> Log:
        model = Language(tied, attention)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

        def step(ids: torch.Tensor, f: Any = model) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(f(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            return loss.detach()

        fast = wrap(step if inside else model)
        generator = torch.Generator().manual_seed(0)
        data = [torch.randint(0, 11, (3, 7), generator=generator) for _ in range(8 if inside else 5)]
        return [*(fast(ids) if inside else step(ids, fast) for ids in data), *state(model)]

    return play


SCRIPTS["language model, einsum attention"] = Script(language(False, lambda: Attention(8, 2)), 4)
SCRIPTS["language model, tied weights"] = Script(language(True, lambda: Attention(8, 2)), 4)
SCRIPTS["language model, scaled dot product"] = Script(language(True, lambda: Scaled(8, 2)), 4)
SCRIPTS["language model, a whole step"] = Script(language(True, lambda: Attention(8, 2), True), 3)


@script(4)
def transformer_encoder_layer(wrap: Wrap) -> Log:
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    fast = wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in batches(5, 2, 5, 8):
        optimizer.zero_grad()
        fast(x).square().mean().backward()
        optimizer.step()
    return state(model)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "layer norm": lambda: nn.LayerNorm(8),
    "group norm": lambda: nn.GroupNorm(2, 8),
    "RMS norm": lambda: nn.RMSNorm(8),
    "PReLU": lambda: nn.PReLU(8),
    "ELU": nn.ELU,
    "SiLU": nn.SiLU,
    "Mish": nn.Mish,
    "GELU, tanh": lambda: nn.GELU("tanh"),
    "softmax": lambda: nn.Softmax(-1),
    "softplus": nn.Softplus,
    "hard swish": nn.Hardswish,
    "leaky ReLU": nn.LeakyReLU,
    "GLU": lambda: nn.Sequential(nn.Linear(8, 16), nn.GLU()),
    "bilinear": lambda: Twice(nn.Bilinear(8, 8, 8)),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)),
    "residual": lambda: Residual(mlp(8, 16, 8)),
}


class Twice(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x, x)  # type: ignore[no-any-return]


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)  # type: ignore[no-any-return]


def with_layer(make: Callable[[], nn.Module]) -> Callable[[Wrap], Log]:
    def play(wrap: Wrap) -> Log:
        model = nn.Sequential(nn.Linear(4, 8), make(), nn.Linear(8, 1))
        return fit(model, wrap(model), torch.optim.SGD(model.parameters(), lr=0.1))

    return play


for _name, _layer in LAYERS.items():
    SCRIPTS[f"layer: {_name}"] = Script(with_layer(_layer), 4)


# ---- several models and losses ----


@script(6)
def adversaries_in_turn(wrap: Wrap) -> Log:
    maker, critic = mlp(3, 8, 4), mlp(4, 8, 1)
    make, judge = wrap(maker), wrap(critic)
    of_maker = torch.optim.Adam(maker.parameters(), lr=0.01)
    of_critic = torch.optim.Adam(critic.parameters(), lr=0.01)
    log: Log = []
    for real, noise in zip(batches(5, 8, 4), batches(5, 8, 3, seed=1), strict=True):
        of_critic.zero_grad()
        loss = F.softplus(judge(make(noise).detach())).mean() + F.softplus(-judge(real)).mean()
        loss.backward()
        of_critic.step()
        of_maker.zero_grad()
        fooled = F.softplus(-judge(make(noise))).mean()
        fooled.backward()
        of_maker.step()
        log += [loss.detach(), fooled.detach()]
    return [*log, *state(maker), *state(critic)]


@script(3)
def clipped_ratio_of_policies(wrap: Wrap) -> Log:
    """The update of proximal policy optimization, with an entropy bonus and a value loss."""
    trunk, policy, value = mlp(4, 8, 8), nn.Linear(8, 3), nn.Linear(8, 1)
    parameters = [*trunk.parameters(), *policy.parameters(), *value.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.01)

    def loss_of(x: torch.Tensor, action: torch.Tensor, old: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
        h = trunk(x)
        logs = policy(h).log_softmax(-1)
        ratio = (logs.gather(1, action[:, None])[:, 0] - old).exp()
        surrogate = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
        entropy = -(logs.exp() * logs).sum(-1)
        return -surrogate.mean() - 0.01 * entropy.mean() + 0.5 * F.mse_loss(value(h)[:, 0], gain)

    fast, log = wrap(loss_of), []
    for x in batches(4, 8, 4):
        action = torch.arange(8) % 3
        loss = fast(x, action, torch.full((8,), -1.1), x.sum(1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 0.5)
        optimizer.step()
        log.append(loss.detach())
    return [*log, *state(trunk), *state(policy), *state(value)]


@script(3)
def variational_autoencoder(wrap: Wrap) -> Log:
    encoder, decoder = mlp(4, 8, 4), mlp(2, 8, 4)

    def loss_of(x: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_variance = encoder(x).chunk(2, -1)
        z = mean + noise * (0.5 * log_variance).exp()
        prior = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(-1).mean()
        return F.mse_loss(decoder(z), x), prior

    fast, log = wrap(loss_of), []
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=0.01)
    for x, noise in zip(batches(4, 8, 4), batches(4, 8, 2, seed=1), strict=True):
        optimizer.zero_grad()
        error, prior = fast(x, noise)
        (error + 0.1 * prior).backward()
        optimizer.step()
        log += [error.detach(), prior.detach()]
    return [*log, *state(encoder), *state(decoder)]


@script(3)
def losses_in_turn(wrap: Wrap) -> Log:
    model, aid = mlp(4, 8, 3), nn.Linear(3, 1)
    fast = wrap(lambda x: ((y := model(x)), aid(y).square().mean()))
    for x in batches(4, 8, 4):
        y, other = fast(x)
        other.backward(retain_graph=True)
        F.cross_entropy(y, torch.arange(8) % 3).backward()
    return state(model) + state(aid)


@script(3)
def contrastive(wrap: Wrap) -> Log:
    model = mlp(4, 8, 4)

    def loss_of(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a, b = F.normalize(model(a), dim=-1), F.normalize(model(b), dim=-1)
        scores = a @ b.t() / 0.2
        same = torch.arange(len(scores))
        return (F.cross_entropy(scores, same) + F.cross_entropy(scores.t(), same)) / 2

    fast, log = wrap(loss_of), []
    for x in batches(4, 6, 4):
        loss = fast(x, x + 0.1)
        loss.backward()
        log.append(loss.detach())
    return [*log, *state(model)]


@script(3)
def mixed_up_pairs(wrap: Wrap) -> Log:
    model = mlp(4, 8, 3)

    def loss_of(x: torch.Tensor, target: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
        y = model(share * x + (1 - share) * x.flip(0))
        return share * F.cross_entropy(y, target) + (1 - share) * F.cross_entropy(y, target.flip(0))

    fast, log = wrap(loss_of), []
    for i, x in enumerate(batches(4, 6, 4)):
        loss = fast(x, torch.arange(6) % 3, torch.tensor(0.3 + 0.1 * i))
        loss.backward()
        log.append(loss.detach())
    return [*log, *state(model)]


# ---- models that are stored, copied and changed ----


@script(4)
def state_saved_and_loaded(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    fast, log = wrap(model), []
    kept = io.BytesIO()
    for i, x in enumerate(batches(6, 8, 4)):
        optimizer.zero_grad()
        fast(x).square().mean().backward()
        optimizer.step()
        if i == 2:
            torch.save([model.state_dict(), optimizer.state_dict()], kept)
        if i == 4:
            kept.seek(0)
            for thing, values in zip([model, optimizer], torch.load(kept), strict=True):
                thing.load_state_dict(values)
        log += state(model)
    return log


@script(3)
def a_copy_of_the_model(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    fast = wrap(model)
    xs = batches(4, 8, 4)
    for x in xs:
        fast(x).square().mean().backward()
    twin = copy.deepcopy(model)
    other = wrap(twin)
    for x in xs:
        other(x).mean().backward()
    return state(model) + state(twin)


@script(3)
def weights_replaced(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    fast = wrap(model)
    for i, x in enumerate(batches(6, 8, 4)):
        if i == 3:
            model[0].weight = nn.Parameter(torch.ones(8, 4))
        fast(x).square().mean().backward()
    return state(model)


@script(4)
def weights_set_by_data(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    fast = wrap(model)
    for i, x in enumerate(batches(5, 8, 4)):
        model[0].weight.data = torch.full((8, 4), 0.1 * i)
        fast(x).square().mean().backward()
    return state(model)


@script(4)
def weights_initialized_again(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    fast = wrap(model)
    for x in batches(5, 8, 4):
        nn.init.xavier_uniform_(model[0].weight)
        fast(x).square().mean().backward()
    return state(model)


@script(3)
def other_sizes_of_batches(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    fast = wrap(model)
    for rows in (8, 3, 8, 3, 8):
        fast(batches(1, rows, 4)[0]).square().mean().backward()
    return state(model)


@script(4)
def in_double_precision(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1).double()
    fast = wrap(model)
    for x in batches(5, 8, 4):
        fast(x.double()).square().mean().backward()
    return state(model)


@script(3)
def in_place_inside(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)

    def hidden(x: torch.Tensor) -> torch.Tensor:
        h = model[0](x)
        h.mul_(0.5).add_(1)
        h[:, 0] = 1
        h[:, 1:3] += h[:, 3:5]
        return model[2](h)

    fast = wrap(hidden)
    for x in batches(4, 8, 4):
        fast(x).square().mean().backward()
    return state(model)


@script(3)
def a_penalty_on_the_weights(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    fast = wrap(lambda x: model(x).square().mean() + 0.01 * sum(p.square().sum() for p in model.parameters()))
    for x in batches(4, 8, 4):
        fast(x).backward()
    return state(model)


@script(3)
def a_loss_and_its_parts(wrap: Wrap) -> Log:
    model = mlp(4, 8, 2)

    def parts(x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = model(x)
        found = {"fit": y[:, 0].square().mean(), "rest": y[:, 1].abs().mean()}
        return found | {"all": found["fit"] + 0.1 * found["rest"]}

    fast, log = wrap(parts), []
    for x in batches(4, 8, 4):
        found = fast(x)
        found["all"].backward()
        log += [t.detach() for t in found.values()]
    return [*log, *state(model)]


@script(3)
def straight_through(wrap: Wrap) -> Log:
    model = mlp(4, 8, 4)

    def coded(x: torch.Tensor) -> torch.Tensor:
        y = model(x)
        return y + ((y * 4).round() / 4 - y).detach()

    fast = wrap(coded)
    for x in batches(4, 8, 4):
        fast(x).square().mean().backward()
    return state(model)


@script(3)
def a_step_of_sgd_by_hand(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for p, g in zip(model.parameters(), grads, strict=True):
                p.sub_(0.1 * g)
        return loss.detach()

    fast = wrap(step)
    return [*(fast(x) for x in batches(6, 8, 4)), *state(model)]


@script(3)
def the_whole_step_accumulates(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    fast, log = wrap(step), []
    for x in batches(6, 8, 4):
        log += [fast(x), *state(model)]
    return log


@script(3)
def a_detached_state_between_calls(wrap: Wrap) -> Log:
    """Truncated backpropagation through time."""
    cell, head = nn.GRUCell(4, 6), nn.Linear(6, 1)
    fast = wrap(lambda x, h: ((new := cell(x, h)), head(new).square().mean()))
    h = torch.zeros(8, 6)
    for x in batches(5, 8, 4):
        h, loss = fast(x, h.detach())
        loss.backward()
    return [h.detach(), *state(cell), *state(head)]


@script(3)
def a_state_that_is_not_detached(wrap: Wrap) -> Log:
    cell = nn.GRUCell(4, 6)
    fast = wrap(cell)
    h = torch.zeros(8, 6)
    for x in batches(5, 8, 4):
        h = fast(x, h)
    h.square().mean().backward()
    return [h.detach(), *state(cell)]


@script(3)
def a_function_of_ones_own(wrap: Wrap) -> Log:
    class Cubed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return g * 3 * ctx.saved_tensors[0] ** 2

    model = mlp(4, 8, 1)
    fast = wrap(lambda x: Cubed.apply(model(x)).mean())
    for x in batches(4, 8, 4):
        fast(x).backward()
    return state(model)


@script(0, "hooks for saved tensors are active")
def inside_a_checkpoint(wrap: Wrap) -> Log:
    model = mlp(4, 8, 1)
    fast = wrap(model)
    for x in batches(4, 8, 4):
        torch.utils.checkpoint.checkpoint(fast, x.requires_grad_(), use_reentrant=False).mean().backward()
    return state(model)


def played(script: Script, wrap: Wrap) -> Log:
    torch.manual_seed(11)
    with torch.enable_grad(), contextlib.redirect_stdout(io.StringIO()):
        return script.play(wrap)
