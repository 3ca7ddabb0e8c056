"""Plays the steps of a random script in two worlds, eager and under @fastjit, and compares what can be seen."""

from __future__ import annotations

import collections
import contextlib
import io
import linecache
from typing import Any, ClassVar

import torch

from fastjit import fastjit
from random_scripts import STATE, WORLD, Program
from script_tools import Form

# Why calls of random scripts may run eagerly: the beginning of the reason, or a part of it.
REASONS = (
    "requires grad",
    "a written tensor shares memory",
    "is not supported",
    "an earlier recording was unsound",
    "state: ",
    "value of a tensor left tensor land",
    "depends on data",
    "side effect",
    "Tensor.__hash__",
    "store to",
    "change of",
    "list.append",
    "read of Tensor.is_leaf",
    "storage_offset",
    "identity of",
    "an operator raised",
    "raised at",
    "variant limit",
    "its last recordings served no second call",
)


class Mismatch(AssertionError):
    """What the two worlds show differs, or what ran is not what should have."""


def _world(program: Program, fast: bool) -> dict[str, Any]:
    scope: dict[str, Any] = {"jit": fastjit if fast else lambda f: f, "__name__": "script_world"}
    for text in (WORLD, program.source):
        name = f"<random script {hash(text):x}>"
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        exec(compile(text, name, "exec"), scope)
    if fast:
        scope["f"] = fastjit(scope["f"])
    return scope


def _run(scope: dict[str, Any], step: str) -> tuple[str | None, str]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            exec(step, scope)
        except Exception as error:
            return f"{type(error).__name__}: {error}", printed.getvalue()
    return None, printed.getvalue()


class Player:
    """One script. `ran` counts the calls of all scripts by what they were."""

    ran: ClassVar[collections.Counter[str]] = collections.Counter()
    reasons: ClassVar[collections.Counter[str]] = collections.Counter()

    def __init__(self, program: Program) -> None:
        self.program = program
        self.steps: list[str] = []
        self.eager, self.fast = _world(program, False), _world(program, True)
        # A recording of arguments that share memory is another program, although either serves both:
        # FASTJIT_CHECK=record cannot tell these.
        self.shared, self.over = False, False
        self.last = ""  # what the last step was, if that was a call: a call like it must be the same
        self.changed = False

    def note_sharing(self) -> None:
        tensors = [self.eager[name] for name in ("X", "Y", "T0", "T1")] + [*self.eager["net"].state_dict().values()]
        self.shared |= len({t.untyped_storage()._cdata for t in tensors}) < len(tensors)

    def change(self, step: str) -> None:
        self.steps.append(step)
        self.last, self.changed = "", True
        expected, got = _run(self.eager, step), _run(self.fast, step)
        if got != expected:
            raise Mismatch(self.report(f"the step shows {got}, eager shows {expected}"))

    def call(self, step: str) -> None:
        self.note_sharing()
        self.shared |= step.count("X") > 1 or "T0" in step or "T1" in step
        if self.over:
            return
        again = bool(self.steps) and self.steps[-1] == step
        self.steps.append(step)
        function = self.fast["f"]
        for scope in (self.eager, self.fast):
            scope["R"] = None
        before = function.stats()
        torch.manual_seed(0)
        expected = _run(self.eager, step)
        torch.manual_seed(0)
        got = _run(self.fast, step)
        self.over = self.shared and "FASTJIT_CHECK=record" in (got[0] or "")
        if self.over:
            return
        if got != expected:
            raise Mismatch(self.report(f"it shows {got}, eager shows {expected}"))
        self.compare()
        outcome = self.outcome(before, function.stats(), expected[0])
        if outcome.startswith("eager: ") and not any(reason in outcome for reason in REASONS):
            raise Mismatch(self.report(f"an unexpected reason: {outcome}"))
        counts = ("new",) if "COUNT[0]" in self.program.source else ()  # a value that each call changes, given up soon
        # Values that it may have written itself.
        compares = ("new", "eager") if ".item()" in self.program.source else ()
        follows = {"hit": ("hit", *compares), "new": ("hit", "eager", *counts, *compares)}
        may_follow = follows.get(self.last if again else "", ())
        if may_follow and outcome.split(":")[0] not in may_follow:
            raise Mismatch(self.report(f"nothing changed after a {self.last}, but it was: {outcome}"))
        Player.ran["hit after a change" if outcome == "hit" and self.changed else outcome.split(":")[0]] += 1
        if outcome.startswith("eager: "):
            Player.reasons[outcome[7:].split(" at ")[0]] += 1
        self.last = outcome

    def outcome(self, before: Any, after: Any, error: str | None) -> str:
        fresh = [why for why, n in after.fallbacks.items() if n > before.fallbacks.get(why, 0)]
        if after.hits > before.hits:
            return "hit"
        if fresh:
            return f"eager: {fresh[0]}"
        if error:
            return "raised"
        assert after.record_ms > before.record_ms
        return "new"

    def compare(self) -> None:
        forms = []
        for scope in (self.eager, self.fast):
            form = Form()
            for name in STATE:
                form.add(name, scope[name])
            form.add("result", scope["R"])
            forms.append(form)
        expected, got = forms
        if got.text != expected.text:
            pairs = zip(got.text, expected.text, strict=False)
            raise Mismatch(self.report(next((f"{g!r}, eager has {e!r}" for g, e in pairs if g != e), "more or less")))
        for g, e in zip(got.contents, expected.contents, strict=True):
            if not self.same(g, e):
                raise Mismatch(self.report(f"{g.tolist()}, eager has {e.tolist()}"))

    def same(self, got: torch.Tensor, expected: torch.Tensor) -> bool:
        """Every bit of an exact program, else up to a few roundings of the largest value."""
        g, e = got.double(), expected.double()
        equal = (g == e) | (g.isnan() & e.isnan())
        if self.program.exact or not got.is_floating_point():
            return bool((equal & ((g.signbit() == e.signbit()) | g.isnan() | self.program.any_zero)).all())
        wide = got.dtype in (torch.float32, torch.float64)
        bound = (1e-5 if wide else 0.05) * (1 + e.nan_to_num(0, 0, 0).abs().max()) if e.numel() else 0.0
        return bool((equal | ((g - e).abs() <= bound)).all())

    def report(self, what: str) -> str:
        """What is wrong, and a file that shows it."""
        return f"{what}\n{reproducer(self.program, self.steps)}"


def reproducer(program: Program, steps: list[str]) -> str:
    return f'''# ---- a file that shows it ----
import torch
from fastjit import fastjit

WORLD = r\'\'\'{WORLD}\'\'\'
FUNCTION = r"""
{program.source}"""
STEPS = {steps!r}

worlds = []
for fast in (False, True):
    scope = {{"jit": fastjit if fast else lambda f: f, "__name__": "script_world"}}
    exec(WORLD, scope)
    exec(FUNCTION, scope)
    if fast:
        scope["f"] = fastjit(scope["f"])
    worlds.append(scope)
torch.set_grad_enabled(False)
for step in STEPS:
    print(step)
    for scope in worlds:
        try:
            torch.manual_seed(0)
            exec(step, scope)
        except Exception as error:
            print("   ", type(error).__name__, error)
        if "f(" in step:
            print("   ", [scope[name] for name in {STATE!r}], scope["R"])
print(worlds[1]["f"].stats())
'''
