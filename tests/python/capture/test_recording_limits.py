"""Recording has a budget in operators, instructions and memory; past it the call goes on in eager and says why."""

import inspect
from pathlib import Path

import pytest
import torch

from fastjit import _C, fastjit
from helpers import assert_same, check

HERE = Path(__file__).name


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def many_operators(x, n):
    for _ in range(n):
        x = torch.sin(x)
    return x


def many_instructions(x, n):
    total = 0
    for i in range(n):
        total = (total + i) % 7
    return x + total


def line_of(function, text):
    lines, first = inspect.getsourcelines(function)
    return f"{HERE}:{first + next(i for i, line in enumerate(lines) if text in line)}"


def assert_many_operators_are_eager(n, limit, calls=1, **options):
    fast = fastjit(many_operators, on_unsupported="eager", **options)
    x = torch.randn(4)
    for _ in range(calls):
        assert_same(fast(x, n), many_operators(x, n), exact=True)
    place = line_of(many_operators, "torch.sin")
    assert fast.stats().fallbacks == {f"recording limit ({limit}) reached at {place}": calls}
    assert fast.stats().compiles == 0


def test_a_call_with_too_many_operators_goes_on_in_eager(monkeypatch):
    monkeypatch.setenv("FASTJIT_RECORD_OPERATORS", "20")
    assert_many_operators_are_eager(21, "20 operators", calls=2)


def test_a_call_at_the_limit_is_recorded(monkeypatch):
    monkeypatch.setenv("FASTJIT_RECORD_OPERATORS", "20")
    check(many_operators, torch.randn(4), 20)


def test_a_limit_of_zero_is_none(monkeypatch):
    for name in ("OPERATORS", "INSTRUCTIONS", "BYTES"):
        monkeypatch.setenv(f"FASTJIT_RECORD_{name}", "0")
    check(many_operators, torch.randn(4), 50)


def test_a_call_with_too_many_instructions_goes_on_in_eager(monkeypatch):
    monkeypatch.setenv("FASTJIT_RECORD_INSTRUCTIONS", "500")
    fast = fastjit(many_instructions, on_unsupported="eager")
    x = torch.randn(4)
    for _ in range(2):
        assert_same(fast(x, 1000), many_instructions(x, 1000), exact=True)
    (reason,) = fast.stats().fallbacks
    assert reason.startswith(f"recording limit (500 instructions) reached at {HERE}:")
    assert fast.stats().fallbacks == {reason: 2}
    check(many_instructions, x, 3)


def test_a_call_whose_notes_are_too_large_goes_on_in_eager(monkeypatch):
    monkeypatch.setenv("FASTJIT_RECORD_BYTES", "64K")
    assert_many_operators_are_eager(500, "65536 bytes")


def test_a_pure_function_has_the_same_limit(monkeypatch):
    monkeypatch.setenv("FASTJIT_RECORD_OPERATORS", "20")
    assert_many_operators_are_eager(30, "20 operators", pure=True)


def test_the_rest_of_the_call_is_not_watched(monkeypatch):
    monkeypatch.setenv("FASTJIT_RECORD_OPERATORS", "5")
    kept = []

    def f(x):
        for _ in range(10):
            x = x + 1
        kept.append(x.tolist())  # would be refused, and say so
        out = torch.empty(2)
        out.numpy()[:] = 3  # written by no operator
        return x, out

    fast = fastjit(f, on_unsupported="eager")
    x, out = fast(torch.zeros(2))
    assert kept == [[10.0, 10.0]] and x.tolist() == [10.0, 10.0] and out.tolist() == [3.0, 3.0]
    (reason,) = fast.stats().fallbacks
    assert reason.startswith("recording limit (5 operators) reached")


def test_an_exception_past_the_limit_is_the_functions_own(monkeypatch):
    monkeypatch.setenv("FASTJIT_RECORD_OPERATORS", "5")

    def f(x):
        for _ in range(10):
            x = x + 1
        raise KeyError("mine")

    fast = fastjit(f, on_unsupported="eager")
    with pytest.raises(KeyError, match="mine"):
        fast(torch.zeros(2))


def test_the_warning_names_the_way_out(monkeypatch):
    monkeypatch.setenv("FASTJIT_RECORD_OPERATORS", "20")
    with pytest.warns(UserWarning, match="recording limit .* or raise the FASTJIT_RECORD_ setting"):
        fastjit(many_operators)(torch.randn(4), 30)


def test_large_programs_are_well_inside():
    def recurrence(a, h, x):
        for t in range(1000):
            h = a * h + x[t]
        return h

    def update(parameters, gradients, momenta):
        for p, g, m in zip(parameters, gradients, momenta, strict=True):
            m.mul_(0.9).add_(g)
            p.add_(m, alpha=-0.1)

    def lists():
        return [torch.randn(3) for _ in range(2000)]

    for program in (
        _C.capture_debug(recurrence, torch.randn(4), torch.randn(4), torch.randn(1000, 4)),
        _C.capture_debug(update, lists(), lists(), lists()),
        _C.capture_debug(many_operators, torch.randn(4), 10_000),
    ):
        assert program["unsound"] == ""


def test_a_call_of_torch_may_take_and_write_any_number_of_tensors():
    def step(xs, ys):
        torch._foreach_add_(xs, ys)
        torch._foreach_mul_(xs, 0.5)
        return torch._foreach_neg(ys)

    check(step, [torch.randn(3) for _ in range(600)], [torch.randn(3) for _ in range(600)])
