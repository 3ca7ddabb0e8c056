"""Steps of torch's optimizers: gradients are looked up in each call, parameters and state are eager's to a few ULP."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from fastjit import fastjit
from gradient_tools import whole_step
from helpers import since

# name -> (class, options)
OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "SGD": (torch.optim.SGD, {"lr": 0.1}),
    "SGD with momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "SGD after Nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "Adam": (torch.optim.Adam, {"lr": 0.01}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "Adam with amsgrad": (torch.optim.Adam, {"lr": 0.01, "amsgrad": True}),
    "RMSprop": (torch.optim.RMSprop, {"lr": 0.01}),
    "RMSprop centered": (torch.optim.RMSprop, {"lr": 0.01, "centered": True, "momentum": 0.9}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.05, "lr_decay": 0.1}),
}
# Those whose loops differ from step to step at first, too.
ALL_OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = OPTIMIZERS | {
    "NAdam": (torch.optim.NAdam, {"lr": 0.01}),
    "RAdam": (torch.optim.RAdam, {"lr": 0.01}),
    "Adamax": (torch.optim.Adamax, {"lr": 0.01}),
    "Adadelta": (torch.optim.Adadelta, {"lr": 0.5}),
    "Rprop": (torch.optim.Rprop, {"lr": 0.01}),
    "ASGD": (torch.optim.ASGD, {"lr": 0.01}),
}
SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 1 / (1 + epoch)),
    "CosineAnnealingLR": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 20),
}
STEPS = 6
ULPS = 8


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def near(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Within a few ULP of the largest value of its tensor."""
    assert (got.dtype, got.shape, got.stride()) == (expected.dtype, expected.shape, expected.stride())
    if not expected.is_floating_point():
        assert torch.equal(got, expected)
        return
    unit = torch.finfo(expected.dtype).eps * max(float(expected.abs().max()), 1e-30)
    torch.testing.assert_close(got, expected, rtol=0, atol=ULPS * unit)


class Pair:
    """One optimizer under fastjit, and its twin in eager, which gets the same gradients."""

    def __init__(self, name: str, *, foreach: bool, clips: bool = False, groups: int = 1, **options: Any) -> None:
        kind, own = ALL_OPTIMIZERS[name]
        self.model = network()
        self.twin = copy.deepcopy(self.model)

        def optimizer(model: nn.Module) -> Any:
            parameters = list(model.parameters())
            per_group = len(parameters) // groups
            parts = [{"params": parameters[i * per_group :][:per_group]} for i in range(groups)]
            return kind(parts, foreach=foreach, **{**own, **options})

        self.optimizer, self.other = optimizer(self.model), optimizer(self.twin)

        def step(model: nn.Module, optimizer: Any) -> torch.Tensor | None:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5, foreach=foreach) if clips else None
            optimizer.step()
            return norm

        self.step: Callable[[], Any] = lambda: step(self.twin, self.other)
        self.fast = fastjit(lambda: step(self.model, self.optimizer))

    def gradients(self, none: bool, without: tuple[int, ...] = ()) -> None:
        """A real backward of the one model; the twin gets copies, so that steps alone are compared."""
        with torch.enable_grad():
            self.optimizer.zero_grad(set_to_none=none)
            self.other.zero_grad(set_to_none=none)
            self.model(torch.randn(4, 5)).square().sum().backward()
        for n, (p, q) in enumerate(zip(self.model.parameters(), self.twin.parameters(), strict=True)):
            if n in without:
                p.grad = q.grad = None
            elif none or q.grad is None:
                q.grad = p.grad.clone()
            else:
                q.grad.copy_(p.grad)

    def both(self) -> int:
        """Steps both and compares; the number of hits."""
        hits, versions = self.fast.stats().hits, [p._version for p in self.model.parameters()]
        others = [p._version for p in self.twin.parameters()]
        got, expected = self.fast(), self.step()
        assert (got is None) == (expected is None)
        if expected is not None:
            near(got, expected)
        for p, q in zip(self.model.parameters(), self.twin.parameters(), strict=True):
            near(p.detach(), q.detach())
            assert (p.grad is None) == (q.grad is None)
            if p.grad is not None:
                near(p.grad, q.grad)
            mine, theirs = self.optimizer.state.get(p, {}), self.other.state.get(q, {})
            assert list(mine) == list(theirs)
            for key, value in theirs.items():
                near(mine[key], value) if isinstance(value, torch.Tensor) else self.equal(mine[key], value)
        moved = [p._version > v for p, v in zip(self.model.parameters(), versions, strict=True)]
        assert moved == [q._version > v for q, v in zip(self.twin.parameters(), others, strict=True)]
        return self.fast.stats().hits - hits

    def set_rate(self, rate: float) -> None:
        for optimizer in (self.optimizer, self.other):
            for group in optimizer.param_groups:
                group["lr"] = rate

    @staticmethod
    def equal(got: Any, expected: Any) -> None:
        assert got == expected and type(got) is type(expected)


def steps_under(
    pair: Pair, schedules: list[Any], steps: int, without: Callable[[int], tuple[int, ...]] = lambda _: ()
) -> list[int]:
    """The hits of these steps, each of which is compared and followed by a step of the schedules."""
    hits = []
    for step in range(steps):
        pair.gradients(True, without(step + 1))
        hits.append(pair.both())
        for schedule in schedules:
            schedule.step()
    return hits


def hits_from_the_third(name: str, steps: int) -> list[int]:
    """RAdam goes another way once its count says that the variance can be told, with these betas at step 6: that is
    another program."""
    return [int(step > 2 and not (name == "RAdam" and step == 6)) for step in range(1, steps + 1)]


@pytest.fixture(autouse=True)
def gradients_on():
    with torch.enable_grad():
        yield


@pytest.mark.parametrize("none", [True, False], ids=["grads set to None", "grads zeroed"])
@pytest.mark.parametrize("foreach", [True, False], ids=["foreach", "loop"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_hits_from_the_third_on(name, foreach, none):
    """The first step makes the state, the second is recorded."""
    pair = Pair(name, foreach=foreach)
    hits = []
    for _ in range(STEPS):
        pair.gradients(none)
        hits.append(pair.both())
    assert hits[2:] == [1] * (STEPS - 2), pair.fast.stats()
    assert pair.fast.stats().fallbacks == {}


class Positions(nn.Module):
    """Rows of a table that an index picks, as the relative positions of a windowed attention: torch's own calls read
    and write the table, so its optimizer's do, with the numbers that Python computes of the step."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(9, 2))
        self.index = torch.randint(0, 9, (16,))
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = self.table[self.index].view(4, 4, 2).permute(2, 0, 1)
        return self.layer(x) + bias.sum(0)


@pytest.mark.parametrize("foreach", [True, False], ids=["foreach", "loop"])
@pytest.mark.parametrize("name", ["SGD with momentum", "Adam", "AdamW", "RMSprop", "NAdam"])
def test_whole_steps_of_a_table_that_an_index_reads(name, foreach):
    kind, options = ALL_OPTIMIZERS[name]
    torch.manual_seed(0)
    model = Positions()
    twin = copy.deepcopy(model)
    steps = [whole_step(m, kind(m.parameters(), foreach=foreach, **options)) for m in (model, twin)]
    fast = fastjit(steps[0])
    for _ in range(STEPS):
        x = torch.randn(4, 4)
        near(fast(x), steps[1](x))
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            near(p.detach(), q.detach())
    assert fast.stats().hits >= STEPS - 3 and fast.stats().fallbacks == {}, fast.stats()


INSIDE: dict[str, Callable[[Any], Any]] = SCHEDULES | {
    "StepLR": lambda o: torch.optim.lr_scheduler.StepLR(o, 7),
    "MultiStepLR": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [5, 11]),
    "warmup, then a cosine": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [torch.optim.lr_scheduler.LinearLR(o, total_iters=5), torch.optim.lr_scheduler.CosineAnnealingLR(o, 40)],
        [5],
    ),
}


@pytest.mark.parametrize("schedule", INSIDE)
def test_a_schedule_that_steps_with_the_optimizer(schedule):
    """As transformers are trained: each step has its own rate. Milestones are ways of their own."""
    torch.manual_seed(0)
    model = network()
    twin = copy.deepcopy(model)

    def make(model):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scheduler, plain = INSIDE[schedule](optimizer), whole_step(model, optimizer)

        def step(x):
            loss = plain(x)
            scheduler.step()
            return loss

        return step, optimizer, scheduler

    (step, optimizer, scheduler), (other, other_optimizer, other_scheduler) = make(model), make(twin)
    fast = fastjit(step)
    for _ in range(30):
        x = torch.randn(4, 5)
        near(fast(x), other(x))
        assert optimizer.param_groups[0]["lr"] == other_optimizer.param_groups[0]["lr"]
        assert scheduler.last_epoch == other_scheduler.last_epoch
    assert fast.stats().hits >= 20, fast.stats()


@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_a_parameter_is_read_once(name):
    """The moments' new values go on to the parameter in registers, past the bias corrections that Python computes."""
    pair = Pair(name, foreach=True)
    for _ in range(3):
        pair.gradients(True)
        pair.both()
    plan = pair.fast.inspect("plan")
    [update] = re.findall(r"kernel (\d+) is fj_\w*sqrt\w*:", plan)
    assert len(re.findall(rf"^ *kernel {update} \(", plan, re.MULTILINE)) == 4  # two layers: weights and biases
    assert len(re.findall(r"kernel \d+ \(", plan)) == 3 * 4  # beside it the step counts, read and written
    assert "tensor f64" not in plan  # numbers are 8 bytes in the arena


@pytest.mark.parametrize("foreach", [True, False], ids=["foreach", "loop"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_parameter_without_a_gradient_in_some_steps(name, foreach):
    """Which parameters have gradients is a fact: each choice of them is a variant, and comes back to its own."""
    pair = Pair(name, foreach=foreach)
    hits = []
    for without in ((), (), (), (1,), (1,), (), (1,), (0, 2), (), (1,)):
        pair.gradients(True, without)
        hits.append(pair.both())
    assert hits[2] == 1 and hits[-2:] == [1, 1], (hits, pair.fast.stats())
    assert pair.fast.stats().fallbacks == {}


@pytest.mark.parametrize("foreach", [True, False], ids=["foreach", "loop"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_learning_rate_changes_between_steps(name, foreach):
    pair = Pair(name, foreach=foreach)
    for rate in (0.1, 0.1, 0.1, 0.05, 0.05, 0.1, 0.025, 0.1):
        pair.set_rate(rate)
        pair.gradients(True)
        pair.both()
    stats = pair.fast.stats()
    assert stats.hits >= 3 and stats.fallbacks == {}, stats


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("foreach", [True, False], ids=["foreach", "loop"])
@pytest.mark.parametrize("name", ALL_OPTIMIZERS)
def test_a_learning_rate_that_a_scheduler_sets(name, foreach, schedule):
    """The first step makes the state and sees the first rate, the second one another, so that the third is a hit. A
    scheduler also puts a function of its own in the place of step(), which binds a method in each call."""
    pair = Pair(name, foreach=foreach)
    schedules = [SCHEDULES[schedule](o) for o in (pair.optimizer, pair.other)]
    assert steps_under(pair, schedules, 9) == hits_from_the_third(name, 9), pair.fast.stats()
    assert pair.fast.stats().fallbacks == {}


@pytest.mark.parametrize("name", ["SGD with momentum", "Adam", "Adagrad"])
def test_a_scheduler_of_two_groups(name):
    """What the first step would have read of the second group it never came to while it was recorded."""
    pair = Pair(name, foreach=True, groups=2)
    schedules = [SCHEDULES["LambdaLR"](o) for o in (pair.optimizer, pair.other)]
    assert steps_under(pair, schedules, 7) == hits_from_the_third(name, 7), pair.fast.stats()


@pytest.mark.parametrize("name", ["SGD with momentum", "Adam", "NAdam"])
def test_a_rate_that_stays_for_three_steps(name):
    pair = Pair(name, foreach=True)
    hits = []
    for rate in (0.1, 0.1, 0.1, 0.05, 0.025, 0.1, 0.01):
        pair.set_rate(rate)
        pair.gradients(True)
        hits.append(pair.both())
    assert hits == [0, 0, 1, 0, 1, 1, 1], pair.fast.stats()


@pytest.mark.parametrize("foreach", [True, False], ids=["foreach", "loop"])
@pytest.mark.parametrize("name", ["SGD with momentum", "Adam", "RMSprop", "NAdam"])
def test_a_state_that_is_made_in_the_middle(name, foreach):
    """The last bias has no gradient before step 5, which makes its state; the step after it is another program, which
    knows of the rate."""
    pair = Pair(name, foreach=foreach)
    schedules = [SCHEDULES["LambdaLR"](o) for o in (pair.optimizer, pair.other)]
    hits = steps_under(pair, schedules, 9, lambda step: (3,) if step < 5 else ())
    assert hits == [0, 0, 1, 1, 0, 0, 1, 1, 1], pair.fast.stats()
    assert pair.fast.stats().fallbacks == {}


@pytest.mark.parametrize("name", ["SGD with momentum", "Adam"])
def test_a_state_that_is_made_while_the_rate_stays(name):
    """That the rate varies is known from before, also where the calls around the new state found the same one."""
    pair = Pair(name, foreach=True)
    hits = []
    for step, rate in enumerate((0.1, 0.05, 0.02, 0.02, 0.02, 0.02, 0.01, 0.005)):
        pair.set_rate(rate)
        pair.gradients(True, (3,) if step < 4 else ())
        hits.append(pair.both())
    assert hits == [0, 0, 1, 1, 0, 0, 1, 1], pair.fast.stats()


@pytest.mark.parametrize("name", ["SGD with momentum", "Adam"])
def test_an_optimizer_that_two_functions_share(name):
    pair = Pair(name, foreach=True)
    schedules = [SCHEDULES["CosineAnnealingLR"](o) for o in (pair.optimizer, pair.other)]
    functions = [pair.fast, fastjit(lambda: pair.optimizer.step())]
    hits: list[list[int]] = [[], []]
    for step in range(10):
        which = step % 2
        pair.fast = functions[which]
        pair.gradients(True)
        hits[which].append(pair.both())
        for schedule in schedules:
            schedule.step()
    assert hits == [[0, 0, 1, 1, 1], [0, 0, 1, 1, 1]], [f.stats() for f in functions]


@pytest.mark.parametrize("name", ["SGD with momentum", "Adam", "NAdam"])
def test_a_state_that_is_loaded_between_steps(name):
    """It brings new groups and a new state: two recordings, and hits again."""
    pair = Pair(name, foreach=True)
    schedules = [SCHEDULES["LambdaLR"](o) for o in (pair.optimizer, pair.other)]
    assert steps_under(pair, schedules, 4) == [0, 0, 1, 1]
    for optimizer in (pair.optimizer, pair.other):
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    hits = steps_under(pair, schedules, 5)
    assert hits[2:] == [1, 1, 1], (hits, pair.fast.stats())
    assert pair.fast.stats().fallbacks == {}


@pytest.mark.parametrize("foreach", [True, False], ids=["foreach", "loop"])
def test_without_momentum(foreach):
    """As adversarial networks are trained: 0.0 ** step is a number like others."""
    pair = Pair("Adam", foreach=foreach, betas=(0.0, 0.9))
    assert steps_under(pair, [], 5) == [0, 0, 1, 1, 1], pair.fast.stats()
    assert pair.fast.stats().fallbacks == {}


@pytest.mark.parametrize("done", [6_900, 7_076, 400_000])
@pytest.mark.parametrize("foreach", [True, False], ids=["foreach", "loop"])
@pytest.mark.parametrize("name", ["Adam", "AdamW", "Adamax", "NAdam", "RAdam"])
def test_after_thousands_of_steps(name, foreach, done):
    """A power of beta becomes 0 there, which is no error of Python's although the C library says so."""
    pair = Pair(name, foreach=foreach)
    steps_under(pair, [], 2)
    for optimizer in (pair.optimizer, pair.other):
        for state in optimizer.state.values():
            state["step"].fill_(done)
    pair.fast = fastjit(lambda: pair.optimizer.step())
    assert sum(steps_under(pair, [], 6)) >= 4, pair.fast.stats()
    assert pair.fast.stats().fallbacks == {}


_FIRST_USE = """
import torch
from fastjit import fastjit
weight = torch.nn.Parameter(torch.randn(8))
weight.grad = torch.randn(8)
optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
step, hits = fastjit(optimizer.step), []
for i in range(6):
    optimizer.param_groups[0]["lr"] = 0.1 / (i + 1)
    before = step.stats().hits
    step()
    hits.append(step.stats().hits - before)
print(hits, list(step.stats().fallbacks.values()))
"""


def test_the_first_step_of_a_process():
    """It imports what torch imports when an optimizer is first used: it is no recording, and yet has seen the rate. It
    does not warn, since the next call is recorded."""
    done = subprocess.run([sys.executable, "-c", _FIRST_USE], capture_output=True, text=True)
    fallbacks = "[]" if since(2, 15) else "[1]"  # torch 2.15 imports all before
    assert (done.stdout, done.stderr) == (f"[0, 0, 1, 1, 1, 1] {fallbacks}\n", "")


class Descent:
    """An optimizer as users write them: a count of steps, a rate, and a state that is made when it is first needed."""

    def __init__(self, parameters: Any, lazily: str) -> None:
        self.parameters, self.lazily = list(parameters), lazily
        self.lr, self.steps = 0.1, 0
        self.state: dict[Any, Any] = {}
        self.means: Any = None
        self.own: Any = None

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        if self.lazily == "one list" and self.means is None:
            self.means = [torch.zeros_like(p) for p in self.parameters]
            self.own = {"count": 0}
        for i, p in enumerate(self.parameters):
            if self.lazily == "one list":
                mean, own = self.means[i], self.own
            else:
                if p not in self.state:
                    self.state[p] = {"mean": torch.zeros_like(p), "count": 0}
                own = self.state[p]
                mean = own["mean"]
            own["count"] += 1
            mean.mul_(0.9).add_(p.grad, alpha=0.1)
            p.sub_(mean * (self.lr / (1 - 0.9 ** own["count"]) / self.steps**0.5))


@pytest.mark.parametrize("lazily", ["one list", "by parameter"])
def test_an_optimizer_of_the_users(lazily):
    pair = Pair("SGD", foreach=True)
    mine, theirs = Descent(pair.model.parameters(), lazily), Descent(pair.twin.parameters(), lazily)
    pair.fast, pair.step = fastjit(mine.step), theirs.step
    hits = []
    for step in range(8):
        mine.lr = theirs.lr = 0.1 / (step + 1)
        pair.gradients(True)
        hits.append(pair.both())
        assert mine.steps == theirs.steps and str(mine.own) == str(theirs.own)
        assert [s["count"] for s in mine.state.values()] == [s["count"] for s in theirs.state.values()]
    assert hits == [0, 0] + [1] * 6, pair.fast.stats()


@pytest.mark.parametrize("foreach", [True, False], ids=["foreach", "loop"])
@pytest.mark.parametrize("name", ["SGD with momentum", "Adam", "RMSprop"])
def test_gradients_are_clipped_by_their_norm(name, foreach):
    pair = Pair(name, foreach=foreach, clips=True)
    hits, norms = [], []
    for step in range(STEPS):
        pair.gradients(True)
        scale = 0.01 if step % 2 else 1.0  # some norms are small enough already
        for model in (pair.model, pair.twin):
            for p in model.parameters():
                p.grad.mul_(scale)
        norms.append(float(torch.stack([p.grad.norm() for p in pair.twin.parameters()]).norm()))
        hits.append(pair.both())
    assert min(norms) < 0.5 < max(norms)
    assert hits[2:] == [1] * (STEPS - 2), pair.fast.stats()


def test_two_groups_with_options_of_their_own():
    models = [network(), network()]
    optimizers = [
        torch.optim.SGD([{"params": m[0].parameters(), "lr": 0.5}, {"params": m[2].parameters()}], lr=0.1, momentum=0.9)
        for m in models
    ]
    fast = fastjit(lambda: optimizers[0].step())
    for _ in range(STEPS):
        x = torch.randn(4, 5)
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            model(x).square().sum().backward()
        for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
            q.grad.copy_(p.grad)
        fast(), optimizers[1].step()
        for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
            near(p.detach(), q.detach())
    assert fast.stats().hits >= STEPS - 2 and fast.stats().fallbacks == {}


def test_the_step_is_given_itself():
    """`fastjit(optimizer.step)`; a state that is loaded is the one that steps go on from."""
    pair = Pair("Adam", foreach=True)
    pair.fast = fastjit(pair.optimizer.step)
    for _ in range(4):
        pair.gradients(True)
        pair.both()
    assert pair.fast.stats().hits >= 2
    states = [copy.deepcopy(o.state_dict()) for o in (pair.optimizer, pair.other)]
    pair.gradients(True)
    pair.both()
    pair.optimizer.load_state_dict(states[0])
    pair.other.load_state_dict(states[1])
    for _ in range(3):
        pair.gradients(True)
        pair.both()
    assert pair.fast.stats().fallbacks == {}, pair.fast.stats()
