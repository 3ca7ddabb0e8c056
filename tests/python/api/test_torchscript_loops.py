"""Loops of TorchScript: over elements as operators on all of them, and those that data decide on between programs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fastjit import fastjit as jit
from script_cases import clones, compare, same


def doubled(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            y[i, j] = x[i, j] * 2
    return y


def stencil(x: Tensor, y: Tensor, s: float) -> Tensor:
    for i in range(1, x.shape[0] - 1):
        for j in range(x.shape[1]):
            y[i, j] += (x[i - 1, j] + x[i + 1, j] - 2 * x[i, j]) * s
    return y


def columns(x: Tensor, b: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for j in range(x.size(1)):
        out[:, j] = torch.exp(x[:, j]) + b
        for i in range(0, x.size(0), 2):
            x[i, j] = x[i, j] + 1.0
    return out


def row_numbers(x: Tensor, w: Tensor) -> Tensor:
    """A row's sum of another type: an element has no dims, a row of them has."""
    y = torch.zeros(x.size(0), w.size(0))
    for i in range(x.size(0)):
        y[i] = x[i, 0] * w
    return y


def last_wins(x: Tensor) -> Tensor:
    y = torch.zeros(3)
    for i in range(x.size(0)):
        for j in range(x.size(1)):
            y[0] = x[i, j]
            y[1] += x[i, j]
    return y


def recurrence(x: Tensor) -> Tensor:
    for i in range(1, x.size(0)):
        x[i] = x[i - 1] * 0.5 + x[i]
    return x


def wrapped(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    for i in range(x.size(0)):
        y[i] = x[i - 1]
    return y


def newton(x: Tensor, tolerance: float) -> tuple[Tensor, int]:
    y, n = x.abs() + 1, 0
    while bool(((y * y - x) / (1 + x)).abs().max() > tolerance):
        y = 0.5 * (y + x / y)
        n += 1
    return y, n


def branch(x: Tensor) -> tuple[Tensor, int]:
    if bool(x.sum() > 0):  # noqa: SIM108
        y = torch.sin(x) + 1
    else:
        y = torch.cos(x) * x.size(0)
    return y * 2, x.size(0)


def counted(x: Tensor, n: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    out = torch.jit.annotate(list[Tensor], [])
    h = torch.zeros(3)
    for i in range(int(n)):
        h = torch.tanh(h @ w + x[i])
        out.append(h)
        x[i] = h * i
    if len(out) == 0:
        raise ValueError("none")
    return torch.stack(out), h


def nested(x: Tensor, limit: float) -> tuple[Tensor, int, list[int]]:
    rounds = torch.jit.annotate(list[int], [])
    for i in range(x.size(0)):
        n = 0
        while float(x[i].abs().sum()) > limit:
            x[i] *= 0.5
            n += 1
            if n > 20:
                break
        rounds.append(n)
    total = 0
    for n in rounds:
        total += n
    return x + 1, total, rounds


class Search(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(1))
        self.scale = 2

    def forward(self, x: Tensor) -> tuple[dict[str, Tensor], int]:
        self.calls += 1
        best = torch.zeros(x.size(0))
        for i in range(x.size(1)):
            v = self.linear(x[:, i])
            if bool(v.sum() > best.sum()):
                best = v.sum(1) * self.scale
            elif float(v.max()) < -1.0:
                break
        return {"best": best, "calls": self.calls * 1}, x.size(1)


r = torch.randn


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "row-major": lambda: r(70, 50),
    "column-major": lambda: r(50, 70).t(),
    "every other row": lambda: r(140, 50)[::2],
    "every other column": lambda: r(70, 100)[:, ::2],
    "float64": lambda: r(70, 50).double(),
    "int64": lambda: torch.randint(0, 9, (70, 50)),
    "no rows": lambda: r(0, 5),
    "no columns": lambda: r(5, 0),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_element_loop_is_a_few_operators(layout):
    f = compare(torch.jit.script(doubled), lambda k: (LAYOUTS[layout](),), hits=3)
    assert f.stats().operators <= 3 * 6


@pytest.mark.parametrize("layout", ["row-major", "column-major", "every other row"])
def test_a_stencil_is_a_few_operators(layout):
    f = compare(torch.jit.script(stencil), lambda k: (LAYOUTS[layout](), LAYOUTS[layout](), 0.5), hits=3)
    assert f.stats().operators <= 3 * 30


def test_a_stencil_on_one_array_is_a_loop():
    scripted = torch.jit.script(stencil)
    f = jit(scripted)
    for _ in range(3):
        x = r(6, 3)
        y = x.clone()
        same(scripted(x, x, 0.5), f(y, y, 0.5))
    for _ in range(3):
        x = r(7, 3)
        y = x.clone()
        same(scripted(x[:-1], x[1:], 0.5), f(y[:-1], y[1:], 0.5))
        same(x, y)
    for _ in range(3):  # what was learnt of arrays that overlap is not for others, and the other way round
        args = (r(6, 3), r(6, 3), 0.5)
        copied = clones(args)
        same(scripted(*copied), f(*args))


def test_arrays_that_begin_to_overlap():
    scripted = torch.jit.script(stencil)
    f = compare(scripted, lambda k: (r(6, 3), r(6, 3), 0.5), hits=3)
    x = r(7, 3)
    y = x.clone()
    same(scripted(x[:-1], x[1:], 0.5), f(y[:-1], y[1:], 0.5))
    same(x, y)


def test_an_array_that_overlaps_itself():
    scripted = torch.jit.script(stencil)
    f = jit(scripted)
    for _ in range(3):
        x, y = r(6, 3), r(3).expand(6, 3)
        copied = y[0].clone().expand(6, 3)
        same(scripted(x, copied, 0.5), f(x, y, 0.5))


@pytest.mark.parametrize(
    ("function", "make"),
    [
        (columns, lambda k: (r(7, 5), r(7))),
        (row_numbers, lambda k: (r(6, 4).double(), r(3))),
        (row_numbers, lambda k: (r(6, 4), r(3))),
        (last_wins, lambda k: (r(4, 5),)),
        (recurrence, lambda k: (r(9, 4),)),
        (wrapped, lambda k: (r(5, 2),)),
    ],
)
def test_other_loops_over_elements(function, make):
    compare(torch.jit.script(function), make, hits=3)


def fresh(f: Any) -> int:
    return sum(part.misses for part in f.stats().parts.values())


DECIDED: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]] = {
    "a loop until it is near": (newton, lambda k: (r(50).abs() * 10 ** (k % 4), 1e-4)),
    "a branch": (branch, lambda k: (r(5) + (-1) ** k,)),
    "a number of rounds": (counted, lambda k: (r(40, 3), torch.tensor(1 + 3 * k), r(3, 3))),
    "loops in a loop": (nested, lambda k: (r(4, 3) * 5**k, 1.0)),
}


@pytest.mark.parametrize("name", DECIDED)
def test_data_decide_between_programs(name):
    function, make = DECIDED[name]
    scripted = torch.jit.script(function)
    f = jit(scripted)

    def call(k: int) -> None:
        args = make(k)
        copied = clones(args)
        same(scripted(*copied), f(*args))
        same(copied, args)

    for k in range(4):
        call(k)
    recorded = fresh(f)
    for k in range(4, 10):
        call(k)
    stats = f.stats()
    assert fresh(f) == recorded and not stats.fallbacks, stats
    assert stats.hits >= 6 and stats.calls == 10 and stats.parts


def test_data_decide_in_a_module():
    scripted = torch.jit.script(Search())
    other = clones(scripted)
    f = jit(scripted)
    for k in range(12):
        x = r(3, 5, 4)
        same(other(x), f(x))
        if k == 8:
            scripted.scale = other.scale = 5
        if k == 9:
            scripted.linear.weight = nn.Parameter(r(4, 4))
            other.linear.weight = scripted.linear.weight
    assert not f.stats().fallbacks and f.stats().hits >= 4


def test_an_error_between_programs_is_the_interpreters():
    scripted = torch.jit.script(counted)
    f = jit(scripted)
    for n in (2, 3, 0, 5):
        args = (r(20, 3), torch.tensor(n), r(3, 3))
        if n:
            same(scripted(*clones(args)), f(*args))
            continue
        with pytest.raises(torch.jit.Error) as expected:
            scripted(*args)
        with pytest.raises(torch.jit.Error) as raised:
            f(*args)
        assert str(raised.value) == str(expected.value)


def test_gradients_pass_through_decisions():
    scripted = torch.jit.script(branch)
    f = jit(scripted, on_unsupported="eager")
    with torch.enable_grad():
        for sign in (1, -1, 1):
            x = (r(5).abs() * sign).requires_grad_()
            (expected,) = torch.autograd.grad(scripted(x)[0].sum(), [x])
            (found,) = torch.autograd.grad(f(x)[0].sum(), [x])
            same(expected, found)


def test_what_runs_between_decisions_tells_of_itself():
    scripted = torch.jit.script(newton)
    f = jit(scripted, name="root")
    x = r(9).abs()
    f.warmup(x, 1e-4)
    assert list(f.parts()) == ["root, part 1", "root, part 2"] and f.__wrapped__ is scripted
    assert "2 parts" in f.explain(x, 1e-4) and "mul" in f.inspect("ir") and repr(f) == "<fastjit function root>"
    assert f.variants()[0].kernels and f.stats().hits >= 1
    f.clear()
    assert f.stats().variants == 0
    same(scripted(x, 1e-4), f(x, 1e-4))
    with pytest.raises(ValueError, match="depends on values"):
        f.export("/tmp/never", x, 1e-4)
