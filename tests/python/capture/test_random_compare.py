"""What judges random programs: eager itself is right, every kind of fault is caught, nothing else is."""

from __future__ import annotations

import dataclasses
import itertools
import math
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import random_programs as lines
from error_bounds import SLACK, UNITS, distance, spacing
from random_compare import check_seeds, compare
from random_programs import Maker, Program, copy_all
from shadows import Replay

TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool]
ROUNDED = [*lines.UNARY_ROUND, *lines.SUMS, *lines.MATMUL, *lines.IN_PLACE_ROUND]
EXACT = [*lines.UNARY_SAME, *lines.UNARY_JUMP, *lines.BINARY_SAME, *lines.COMPARE, *lines.VIEWS, *lines.EXTREMES]
EXACT += [*lines.IN_PLACE, *lines.IN_PLACE_ONE, *lines.JOIN, *lines.LOOPS, *[f"{{x}}.{name}()" for name in lines.CASTS]]


def program_of(text: str, *before: str) -> Program:
    """The lines before, then one of the tables on a0 and a1."""
    line = text.format(x="a0", y="a1", s="s", out="v0")
    makes = text not in lines.IN_PLACE + lines.IN_PLACE_ONE + lines.IN_PLACE_ROUND
    line = f"v0 = {line}" if makes and text not in lines.LOOPS else line
    name = "v0" if makes else "a0"
    tainted = {name} if text in ROUNDED else set()
    return Program(0, [*before, line], [name], ["a0", "a1"], tainted, 1.234)


def value(dtype: torch.dtype, seed: int, shape: tuple[int, ...] = (6, 6)) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(shape, generator=generator)
    return drawn > 0 if dtype == torch.bool else (drawn * (1 if dtype.is_floating_point else 3)).to(dtype)


def refused_by_eager(program: Program, inputs: list[torch.Tensor]) -> bool:
    try:
        program.function()(*copy_all(inputs), program.number)
    except (RuntimeError, IndexError, TypeError, ValueError):
        return True
    return False


@pytest.mark.parametrize("text", ROUNDED + EXACT)
def test_eager_is_within_the_bounds_of_every_line_and_type(text):
    """Of what goes into a line too: the first operand was moved by a rounding before."""
    played = 0
    befores = [(), ("a0 = a0.float()",)]
    befores += [("a0 = torch.sin(a0)",)] if text not in lines.UNARY_JUMP + lines.COMPARE else []
    row = (6,) if text in lines.IN_PLACE else (6, 6)
    for first, second, before in itertools.product(TYPES, TYPES if "{y}" in text else TYPES[:1], befores):
        if before and second not in (first, torch.float32, torch.float64):
            continue
        program, inputs = program_of(text, *before), [value(first, 1), value(second, 2, row)]
        if refused_by_eager(program, inputs):
            continue
        played += 1
        case = (first, second, before)
        want = program.function()(*copy_all(inputs), program.number)[0]
        replay = Replay(program.function(), lambda inputs=inputs: copy_all(inputs), program.number)
        replay.draw(4)
        truth, bound = replay.truth[0], replay.bounds[0]
        if text in EXACT and not before:
            assert torch.equal(truth, want.double()) and not bound.any(), case
        if not want.is_floating_point():
            continue
        eps = max(torch.finfo(t if t.is_floating_point else torch.float32).eps for t in (want.dtype, first))
        largest = truth.abs().amax() + 1
        # Eager's erf is off by some units of 1, also where it is near -1 and gelu cancels.
        own = 8 * eps * largest if "gelu" in text else 0.0
        allowed = 2 * (SLACK * bound + UNITS * spacing(truth, want.dtype)) + own
        assert (distance(want, truth) <= allowed).all(), case
        assert (bound <= 1000 * eps * largest).all(), case
    assert played


class Planted:
    """Stands for fastjit: plays another program, or the same one, and then puts a fault into what came out."""

    def __init__(self, program: Program, fault: Callable[[torch.Tensor], None] = lambda t: None) -> None:
        self.program, self.fault = program, fault

    def __call__(self, *args: Any) -> tuple[torch.Tensor, ...]:
        found = self.program.function()(*args)
        self.fault(found[0].data)  # whose version stays as it was
        return found

    def stats(self) -> types.SimpleNamespace:
        return types.SimpleNamespace(hits=1, fallbacks={})


def judged(program: Program, inputs: list[torch.Tensor], planted: Planted) -> str:
    return compare(program, inputs, lambda function: planted).wrong


def added_to(k: int, amount: float) -> Callable[[torch.Tensor], None]:
    def fault(t: torch.Tensor) -> None:
        t.view(-1)[k] += amount

    return fault


FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("text", ROUNDED)
def test_a_rounded_result_off_by_more_than_its_bound_is_caught(text, dtype):
    """One element: of functions by 12 units, of what sums terms by twice (log2 n + 8) units of their magnitudes.

    In f64, where the reference is as far off as kernels, by twice as many; in halves, whose sums are in f32, by 4.
    """
    program, inputs = program_of(text), [value(dtype, 1), value(dtype, 2)]
    assert not refused_by_eager(program, inputs)
    want = program.function()(*copy_all(inputs), program.number)[0].double()
    magnitude = want
    if text in lines.SUMS + lines.MATMUL:
        sums = [t.double().abs() for t in inputs]
        linear = any(name in text for name in (".sum(", ".mean(", ".cumsum(")) or text in lines.MATMUL
        magnitude = program.function()(*sums, program.number)[0] if linear else want.abs().amax().expand_as(want)
    units = 12.0 if text not in lines.SUMS + lines.MATMUL else 2 * (math.log2(inputs[0].numel()) + 8)
    units = min(units * (2 if dtype == torch.float64 else 1), 4 if dtype.itemsize == 2 else math.inf)
    k = int(magnitude.reshape(-1).abs().argmax())
    by = units * torch.finfo(dtype).eps * magnitude.reshape(-1)[k].abs().item()
    assert judged(program, inputs, Planted(program, added_to(k, by)))
    assert judged(program, inputs, Planted(program, added_to(k, math.nan)))
    assert judged(program, inputs, Planted(program)) == ""


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("text", EXACT)
def test_an_exact_result_off_by_one_unit_is_caught(text, dtype):
    row = (6,) if text in lines.IN_PLACE else (6, 6)
    program, inputs = program_of(text), [value(dtype, 1), value(dtype, 2, row)]
    assert not refused_by_eager(program, inputs)

    def fault(t: torch.Tensor) -> None:
        first = t.flatten()[0]
        t[(0,) * t.dim()] = torch.nextafter(first, first + 1) if t.is_floating_point() else ~first

    assert judged(program, inputs, Planted(program, fault))
    assert judged(program, inputs, Planted(program)) == ""


@pytest.mark.parametrize(
    "tainted, right, faulty",
    [
        ("v0", "v0 = a0.var(-1)", "v0 = (a0 * a0).mean(-1) * 1.2 - a0.mean(-1) ** 2 * 1.2"),
        ("v0", "v0 = F.gelu(a0)", "v0 = F.gelu(a0, approximate='tanh')"),
        ("v0", "v0 = F.layer_norm(a0, a0.shape[-1:])", "v0 = F.layer_norm(a0, a0.shape[-1:], eps=1e-6)"),
        ("v0", "v0 = torch.softmax(a0, -1)", "v0 = torch.softmax(a0.bfloat16(), -1).float()"),
        ("v0", "v0 = a0.double().sum()", "v0 = a0.sum().double()"),
        ("v0", "a0.tanh_()\nv0 = a0 * 2", "v0 = a0.tanh() * 2"),
        ("", "v0 = a0.bfloat16().float()", "v0 = a0.clone()"),
        ("", "v0 = a0 * 0.1 + a1", "v0 = (a0.double() * 0.1 + a1).float()"),
        ("", "v0 = a0[1:]", "v0 = a0[1:].clone()"),
        ("", "v0 = a0.clone()", "v0 = a0.view(6, 6)"),
        ("", "v0 = a0.t()", "v0 = a0.t().contiguous()"),
        ("", "a0.add_(1)\nv0 = a1 + 1", "a0.add_(0.5).add_(0.5)\nv0 = a1 + 1"),
        ("", "v0 = a0.amax(-1)", "v0 = a0[:, 2:].amax(-1)"),
        ("", "v0 = torch.cat([a0, a1])", "v0 = torch.cat([a1, a0])"),
        ("", "v0 = a0 > a0.flip(0)", "v0 = a0 >= a0.flip(0).flip(1)"),
    ],
)
def test_other_formulas_and_lost_steps_are_caught(tainted, right, faulty):
    def program(text: str) -> Program:
        return Program(0, [text], ["v0"], ["a0", "a1"], {tainted, "a0"} if tainted else set(), 1.234)

    inputs = [value(torch.float32, 1) + 3, value(torch.float32, 2)]
    assert judged(program(right), inputs, Planted(program(faulty)))
    assert compare(program(right), inputs).wrong == ""


def test_faults_in_the_middle_of_programs_are_caught():
    """One statement of each changes its result by a thousandth; wherever more than half of that arrives, it is seen."""
    seen = 0
    for seed in range(100):
        program, inputs = Maker(seed).make()
        k = seed % max(len(program.lines), 1)
        name, _, made = (program.lines or [""])[k].partition(" = ")
        if not made or "[" in name or "for " in made:
            continue
        # Out of place: the memory it shares with others stays theirs.
        scaled = f"{name} = {name} * 1.001 if {name}.is_floating_point() else {name}"
        mutant = dataclasses.replace(program, lines=[*program.lines[: k + 1], scaled, *program.lines[k + 1 :]])
        if refused_by_eager(mutant, inputs) or refused_by_eager(program, inputs):
            continue
        before, after = (p.function()(*copy_all(inputs), p.number) for p in (program, mutant))
        arrived = any(
            a.dtype.itemsize >= 4 and ((a - b).abs() > 5e-4 * b.abs()).any()
            for a, b in zip(after, before, strict=True)
            if a.is_floating_point() and a.shape == b.shape
        )
        if arrived:
            seen += 1
            assert judged(program, inputs, Planted(mutant)), program.source()
    assert seen >= 20


def wrong(rows: list[str], outputs: list[str], inputs: list[torch.Tensor], tainted: set[str]) -> str:
    names = [f"a{i}" for i in range(len(inputs))]
    return compare(Program(0, rows, outputs, names, tainted, 0.5), inputs).wrong


def test_an_f64_tensor_times_an_f32_sum_is_as_exact_as_the_sum():
    a, b = value(torch.float64, 1, (17, 33)), value(torch.float32, 2, (17, 33)) * 100
    assert wrong(["v0 = a1.sum(0)", "a0.mul_(v0)"], ["v0"], [a, b], {"v0", "a0"}) == ""


def test_tensors_without_elements_share_no_memory():
    a, b = value(torch.float32, 1), value(torch.float32, 2)
    rows = ["v0 = a0[6:] * 2", "v1 = a1[6:] + 1", "v2 = v0.sum(0)", "v3 = v1[0:1]"]
    assert wrong(rows, ["v0", "v1", "v2", "v3"], [a, b], {"v2"}) == ""


def test_a_masked_write_into_an_expanded_tensor_is_followed():
    """With other rounded values in the program, so that there is something to follow."""
    rows = ["v0 = a0.expand(3, 6, 6)", "v0[v0 > 0] = 0.5", "v1 = torch.sin(a0)", "v2 = v1.expand(3, 6, 6)"]
    program = Program(0, [*rows, "v2[v0 < 0] = 0.5"], ["v0", "v2"], ["a0"], {"v1", "v2"}, 0.5)
    inputs = [value(torch.float32, 1)]
    want = program.function()(*copy_all(inputs), 0.5)
    replay = Replay(program.function(), lambda: copy_all(inputs), 0.5)
    replay.draw(4)
    assert torch.equal(replay.truth[0], want[0].double()) and not replay.bounds[0].any()
    assert (distance(want[1], replay.truth[1]) <= 2 * replay.bounds[1]).all() and replay.bounds[1].any()


def test_no_rounded_value_is_written_into_integers():
    """Their cast is a step that jumps."""
    for seed in range(300):
        program, inputs = Maker(seed).make()
        for name, t in zip(program.arguments, inputs, strict=True):
            assert t.is_floating_point() or name not in program.tainted, program.source()


@pytest.mark.parametrize(
    "seed", [202611276815, 202611290445, 202611301966], ids=["root", "gelu of a view", "gelu of sums"]
)
def test_what_eager_itself_is_off_by_on_some_cpus_is_allowed(seed):
    """MKL's square roots of f64 and oneDNN's gelu; the latter differs from one argument to its neighbour."""
    assert check_seeds(range(seed, seed + 1)) == ([], {})
