"""One process of benchmarks/coverage.py: plays cases one after the other, a line of JSON for each.

A case is made from one seed for FastJIT, for eager, and twice in f64, once of these with everything that it reads moved
by a rounding. All get the same inputs and the same random numbers, call by call; after each call the results, the
arguments, the state and the generators of FastJIT's are held to eager's.

With --gradients floats among the inputs require grad, and each call is followed by backward() of the mean squares of
all results that require grad: the gradients of inputs and parameters are held to eager's, too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import _coverage_compare as compare
import fastjit
from coverage_cases import CASES, Case, Program
from fastjit._bench.models import library_of
from fastjit._function import FastFunction

CALLS, OTHER_BATCH, CHANGED = 4, 3, 2
SEED = 20240229
ROUNDING, UNIT = 2.0**-24, 2.0**-23
MOVED = 2  # runs in eager beside it, with --gradients
TIMED_S = 0.15
ROUNDS = 5
NO_REASON = "no hit, and no reason counted"


@dataclass
class Step:
    """One call of the protocol."""

    phase: str
    hits: int
    calls: int
    operators: int  # ATen calls that ran inside programs, of parts too
    reasons: list[str]
    differences: list[compare.Difference]


@dataclass
class Played:
    """What a case showed, as it goes into the result file."""

    name: str
    package: str
    hit: bool = False  # the third call was one
    second: float = 0.0  # how much of the second call ran inside programs
    reason: str = ""
    aten: int = 0  # calls of ATen that Python makes in eager's second call
    first_ms: float | None = None
    eager_ms: float | None = None
    hit_ms: float | None = None
    peer_ms: float | None = None  # eager's other form, where the case names one
    grade: str = "bits"
    differs: str = ""  # the worst difference, or the error
    phases: dict[str, list[str]] = field(default_factory=dict)  # phase -> of each call "hit", "eager", "recorded"
    reasons: dict[str, list[str]] = field(default_factory=dict)  # phase -> reasons
    goes_back: bool = False  # eager's call was followed by backward()


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    with contextlib.suppress(ImportError):
        import numpy

        numpy.random.seed(seed)


def generators() -> list[Any]:
    states: list[Any] = [torch.get_rng_state(), str(random.getstate())]
    with contextlib.suppress(ImportError):
        import numpy

        states.append(str(numpy.random.get_state()))
    return states


def in_f64(value: Any) -> Any:
    if isinstance(value, torch.nn.Module):
        return value.double()
    if isinstance(value, torch.Tensor) and value.is_complex():
        return value.to(torch.complex128)
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(in_f64, value))
    if isinstance(value, (tuple, list)):
        return type(value)(map(in_f64, value))
    if isinstance(value, dict):
        return {key: in_f64(item) for key, item in value.items()}
    return value


class AsksForF64(TorchDispatchMode):
    """Code that asks for f32 itself (for a table of frequencies, say) gets f64. Random numbers hang on the type."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags:
            return func(*args, **kwargs)
        args = [torch.float64 if one is torch.float32 else one for one in args]
        kwargs = {name: torch.float64 if one is torch.float32 else one for name, one in kwargs.items()}
        return func(*args, **kwargs)


def shake(value: Any, generator: torch.Generator, dtype: torch.dtype = torch.float64, by: float = ROUNDING) -> None:
    """Every float of the tensors of this type moved by half a unit in the last place of f32, or `by`, up or down."""
    for _, one in compare.places(value):
        if isinstance(one, torch.Tensor) and one.dtype == dtype and one.layout == torch.strided:
            signs = torch.randint(0, 2, one.shape, generator=generator) * 2 - 1
            with torch.no_grad(), contextlib.suppress(RuntimeError):  # an expanded tensor cannot be written
                one.mul_(1 + by * signs.to(dtype))


def tensors(value: Any) -> list[torch.Tensor]:
    return [one for _, one in compare.places(value) if isinstance(one, torch.Tensor)]


def is_error(result: Any) -> bool:
    return isinstance(result, dict) and "raised" in result


class Player:
    """The programs of one case, kept in step."""

    def __init__(self, case: Case, gradients: bool = False) -> None:
        self.case, self.gradients, self.goes_back = case, gradients, False
        self._make()  # what a package keeps of the first object of a class is not FastJIT's doing
        self.fast, self.eager = self._make(), self._make()
        self.shaking = torch.Generator().manual_seed(SEED)
        self.exact, self.shaken = self._make_f64(), self._make_f64(shaken=True)
        self.asks_for_f64 = True
        self.moved = [self._make() for _ in range(MOVED if gradients else 0)]
        for program in self.moved:
            shake(program.state, self.shaking, torch.float32, UNIT)
        target = self.fast.given
        wrapped = fastjit.fastjit(target)
        self.function: FastFunction[Any, Any] = fastjit.of(wrapped) if isinstance(target, torch.nn.Module) else wrapped
        if self.fast.call is target:
            self.fast.call = wrapped
        self.mode: Callable[[], Any] = torch.enable_grad if self.fast.grad or gradients else torch.no_grad
        self.first_s = 0.0
        self.count = 0

    def _make(self) -> Program:
        seed_all(SEED)
        return self.case.make()

    def _make_f64(self, shaken: bool = False) -> Program | None:
        with contextlib.suppress(Exception):
            program = self._make()
            for one in program.state if isinstance(program.state, list) else [program.state]:
                in_f64(one)
            if shaken:
                shake(program.state, self.shaking)
            return program
        return None

    def inputs(self, program: Program, batch: int, seed: int, double: bool = False) -> tuple[Any, dict[str, Any]]:
        seed_all(seed)
        args = program.inputs(batch)
        args, kwargs = (args, {}) if isinstance(args, tuple) else ((), args)
        args, kwargs = (in_f64(args), in_f64(kwargs)) if double else (args, kwargs)
        if self.gradients:
            self._leaves([args, kwargs])
        return args, kwargs

    def _leaves(self, inputs: Any) -> list[torch.Tensor]:
        """Those of the inputs that get gradients."""
        found = [one for one in tensors(inputs) if one.is_floating_point() and one.is_leaf and not one.is_inference()]
        return [one.requires_grad_() for one in found]

    def call(self, program: Program, args: Any, kwargs: dict[str, Any]) -> Any:
        """The result; with gradients also those of the inputs. Those of parameters are left in them."""
        if not self.gradients:
            with self.mode():
                return program.call(*args, **kwargs)
        leaves = self._leaves([args, kwargs])
        for one in [*leaves, *(p for module in program.modules() for p in module.parameters())]:
            one.grad = None
        with self.mode():
            result = program.call(*args, **kwargs)
            given = {id(one) for one in leaves}
            ends = [one for one in tensors(result) if one.requires_grad and id(one) not in given]
            if ends:
                self.goes_back = True
                sum(
                    (one.abs().square().mean().double() for one in ends), torch.zeros((), dtype=torch.double)
                ).backward()
        return [result, [one.grad for one in leaves]]

    def run(self, program: Program, batch: int, double: bool = False) -> tuple[Any, Any, float]:
        """(result or error, arguments and state, seconds)"""
        args, kwargs = self.inputs(program, batch, SEED + self.count, double)
        if program is self.shaken:
            shake([args, kwargs], self.shaking)
        if any(program is one for one in self.moved):
            shake([args, kwargs], self.shaking, torch.float32, UNIT)
        seed_all(self.count)
        is_reference = program is self.exact or program is self.shaken
        start = time.perf_counter()
        try:
            with AsksForF64() if is_reference and self.asks_for_f64 else contextlib.nullcontext():
                result = self.call(program, args, kwargs)
        except Exception as error:
            result = {"raised": f"{type(error).__name__}"}
            if program is self.fast or program is self.eager:
                self.raised = error
        taken = time.perf_counter() - start
        return result, [args, kwargs, program.state], taken

    def step(self, phase: str, batch: int, double: bool = False) -> Step:
        self.count += 1
        self.raised: Exception | None = None
        before = self.function.stats()
        result, after, taken = self.run(self.fast, batch, double)
        now = self.function.stats()
        generator = generators()
        fast_raised, self.raised = self.raised, None
        self.first_s = self.first_s or taken
        wanted, wanted_after, _ = self.run(self.eager, batch, double)
        found = compare.problems(generators(), generator)
        found = [compare.Difference("random generators", "wrong", one.what) for one in found]
        (self.exact, *exact), (self.shaken, *shaken) = self._references(batch)
        moved = [self.run(program, batch, double)[:2] for program in self.moved]
        found += compare.problems(result, wanted, exact[0], shaken[0], [one[0] for one in moved])
        found += compare.problems(after, wanted_after, exact[1], shaken[1], [one[1] for one in moved])
        if fast_raised is not None and self.raised is None:
            found.append(compare.Difference("error", "wrong", f"raised {fast_raised!r:.200}"))
        if fast_raised is not None and self.raised is not None and phase == "first":
            raise RuntimeError(f"the case itself raises {self.raised!r}") from self.raised
        reasons = [text for text, count in now.fallbacks.items() if count > before.fallbacks.get(text, 0)]
        return Step(
            phase, now.hits - before.hits, now.calls - before.calls, now.operators - before.operators, reasons, found
        )

    def _references(self, batch: int) -> tuple[tuple[Program | None, Any, Any], tuple[Program | None, Any, Any]]:
        found = self._f64(self.exact, batch), self._f64(self.shaken, batch)
        if self.asks_for_f64 and self.count == 1 and None in (found[0][0], found[1][0]):
            self.asks_for_f64 = False  # it needs f32 where it asks for that
            self.exact, self.shaken = self._make_f64(), self._make_f64(shaken=True)
            found = self._f64(self.exact, batch), self._f64(self.shaken, batch)
        return found

    def _f64(self, program: Program | None, batch: int) -> tuple[Program | None, Any, Any]:
        """The program's result and state, or None for all once it does not run on doubles."""
        if program is None:
            return None, None, None
        try:
            result, after, _ = self.run(program, batch, True)
        except Exception:
            return None, None, None
        return (program, result, after) if not is_error(result) else (None, None, None)

    def change(self, what: Callable[[Program], None]) -> None:
        for program in (self.fast, self.eager, self.exact, self.shaken, *self.moved):
            if program is not None:
                seed_all(SEED)
                with torch.no_grad():
                    what(program)

    def explain(self, batch: int) -> str:
        """What FastJIT says of a call that would be the next one."""
        args, kwargs = self.inputs(self.fast, batch, SEED + self.count + 1)
        with self.mode():
            return self.function.explain(*args, **kwargs) if self.fast.call is self.function else NO_REASON

    def aten(self) -> int:
        """ATen calls of one eager call that Python makes: those inside another operator are not counted."""
        args, kwargs = self.inputs(self.eager, self.eager.batches[0], SEED + 2)
        seed_all(2)
        with self.mode(), torch.autograd.profiler.profile() as profile:
            self.eager.call(*args, **kwargs)
        return sum(e.name.startswith("aten::") and not _inside_aten(e) for e in profile.function_events)


def _inside_aten(event: Any) -> bool:
    while (event := event.cpu_parent) is not None:
        if event.name.startswith("aten::"):
            return True
    return False


def halve(program: Program) -> None:
    """Parameters written in place, as an optimizer writes them."""
    for module in program.modules():
        for parameter in module.parameters():
            if parameter.is_floating_point():
                parameter.mul_(0.5)


def flip_mode(program: Program) -> None:
    for module in program.modules():
        module.train(not module.training)


def word(step: Step) -> str:
    if step.calls == 1:
        return "hit" if step.hits else "eager" if step.reasons else "recorded"
    return f"{step.hits} of {step.calls} hit"


def play(case: Case, gradients: bool = False) -> Played:
    player = Player(case, gradients)
    program, steps = player.fast, []
    batch, other = program.batches

    def call(phase: str, count: int, batch: int, double: bool = False) -> None:
        steps.extend(player.step(phase, batch, double) for _ in range(count))

    call("first", 3, batch)
    third = steps[-1]
    played = Played(case.name, case.package, hit=third.calls > 0 and third.hits == third.calls)
    if not played.hit:
        played.reason = "; ".join(third.reasons) or player.explain(batch)
    call("first", CALLS - 3, batch)
    call("other batch", OTHER_BATCH, other)
    if program.change is not None:
        player.change(lambda one: one.change() if one.change else None)
        call("changed", CHANGED, batch)
    if program.modules():
        player.change(halve)
        call("weights written", CHANGED, batch)
        if program.flips:
            player.change(flip_mode)
            call("other mode", CHANGED, batch)
            player.change(flip_mode)
    elif program.change is None:
        call("f64", CHANGED, batch, True)
    if gradients:
        _forgive_ties(steps)
    _judge(played, steps)
    _time(player, played)  # last: it makes more calls of two of the three programs
    played.second, played.goes_back = share(steps[1], played.aten), player.goes_back
    return played


def share(step: Step, aten: int) -> float:
    """Of a call's ATen calls, those inside programs: all of a hit's, else those that hits of its parts stood for."""
    hits = step.hits / max(step.calls, 1)
    return max(hits, min(step.operators / max(aten, 1), 1.0))


def _forgive_ties(steps: list[Step]) -> None:
    """A ReLU or a maximum whose argument is a rounding from a tie may fall to the other side, and gradients differ by
    what hangs on it: not twice in so few calls, as what is really wrong would."""
    wrong = [step for step in steps if any(one.grade == "wrong" for one in step.differences)]
    if len(wrong) != 1 or any(one.grade == "wrong" and math.isinf(one.ulps) for one in wrong[0].differences):
        return
    wrong[0].differences = [replace(one, grade="once") if one.grade == "wrong" else one for one in wrong[0].differences]


def _judge(played: Played, steps: list[Step]) -> None:
    for step in steps:
        played.phases.setdefault(step.phase, []).append(word(step))
        known = played.reasons.setdefault(step.phase, [])
        known += [reason for reason in step.reasons if reason not in known]
    found = [(step.phase, one) for step in steps for one in step.differences]
    if found:
        phase, one = max(found, key=lambda pair: (compare.GRADES.index(pair[1].grade), pair[1].ulps))
        played.grade, played.differs = one.grade, f"{phase}: {one.place or 'result'}: {one.what}"


def _time(player: Player, played: Played) -> None:
    """Median milliseconds of eager and of FastJIT, call by call in turn, on one set of inputs each."""
    played.aten = player.aten()
    played.first_ms = player.first_s * 1e3
    batch = player.fast.batches[0]
    made = {"eager_ms": player.eager, "hit_ms": player.fast}
    if player.eager.peer:
        made["peer_ms"] = CASES[player.eager.peer].make()
    samples: dict[str, list[float]] = {name: [] for name in made}
    inputs = {name: player.inputs(made[name], batch, SEED) for name in made}
    ends = time.perf_counter() + TIMED_S * len(made)
    while len(samples["eager_ms"]) < ROUNDS or (time.perf_counter() < ends and len(samples["eager_ms"]) < 100):
        for name, program in made.items():
            seed_all(0)
            start = time.perf_counter()
            player.call(program, *inputs[name])
            samples[name].append((time.perf_counter() - start) * 1e3)
        if len(samples["eager_ms"]) >= 2 and time.perf_counter() > ends + 3:
            break
    for name, values in samples.items():
        setattr(played, name, statistics.median(values))


@contextlib.contextmanager
def own_output() -> Iterator[Any]:
    """A stream to the parent; what cases print goes to stderr."""
    with os.fdopen(os.dup(1), "w") as stream:
        os.dup2(2, 1)
        yield stream


def main(given: argparse.Namespace) -> None:
    torch.set_num_threads(given.threads)
    warnings.simplefilter("ignore")
    with contextlib.suppress(ImportError):
        library_of("torchvision")  # which others import, and which may lack operators of its own
    with own_output() as stream, fastjit.stance("eager" if given.eager else "default"):
        for name in given.names:
            start = time.perf_counter()
            try:
                row = vars(play(CASES[name], given.gradients))
            except Exception as error:
                if given.throw:
                    raise
                why = f"{type(error).__name__}: {error}"[:500]
                row = vars(Played(name, CASES[name].package, reason=why, grade="broken", differs=why))
            row["seconds"] = round(time.perf_counter() - start, 2)
            stream.write(json.dumps(row) + "\n")
            stream.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--eager", action="store_true", help="without FastJIT: eager against eager")
    parser.add_argument("--gradients", action="store_true", help="each call with backward()")
    parser.add_argument("--throw", action="store_true", help="end with the traceback of a case that cannot be played")
    main(parser.parse_args())
