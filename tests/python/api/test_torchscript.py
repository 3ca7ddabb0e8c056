"""fastjit of functions and modules of TorchScript: one program, with values, errors and types of the original."""

import copy
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import fastjit
from fastjit import fastjit as jit
from script_cases import compare, same


class Pair(NamedTuple):
    first: Tensor
    count: int


def loops(x: Tensor, n: int) -> tuple[Tensor, int]:
    y = x * 2 + 1
    for i in range(n):
        y = torch.sin(y) * i
    if n > 2:
        y = y + x.shape[0]
    return y, x.shape[0]


def containers(
    x: Tensor, hs: list[Tensor], o: int | None = None
) -> tuple[Tensor, dict[str, Tensor], list[Tensor], Pair]:
    out = torch.jit.annotate(list[Tensor], [])
    for h in hs:
        if o is not None:
            h = h + o
        out.append(torch.tanh(h @ x))
    hs.append(x)
    return torch.stack(out), {"a": out[0], "b": x}, out, Pair(x, len(hs))


def in_place(x: Tensor, y: Tensor) -> Tensor:
    x[0] = 1.0
    x[1:] += y[1:]
    y.mul_(2)
    return x


def checked(x: Tensor, n: int) -> Tensor:
    assert n > 0, "n is not positive"
    if n > 5:
        raise ValueError("n is " + str(n))
    return x.view(n, -1) * 2


def constants(x: Tensor) -> Tensor:
    table = torch.tensor([1.0, 2.0, 3.0])
    return x * table + torch.ones([3], dtype=torch.float64, device=x.device).to(x.dtype)


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(4, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        h, c = torch.zeros(x.size(1), 8), torch.zeros(x.size(1), 8)
        out = torch.jit.annotate(list[Tensor], [])
        for t in range(x.size(0)):
            h, c = self.cell(x[t], (h, c))
            out.append(h)
        return torch.stack(out), (h, c)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.BatchNorm1d(4), nn.Dropout(0.5))
        self.register_buffer("steps", torch.zeros(1))
        self.scale = 3

    def helper(self, x: Tensor) -> Tensor:
        self.steps += 1
        return x * self.steps * self.scale

    def forward(self, x: Tensor) -> Tensor:
        return self.helper(self.inner(x))


class Block(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(inplace=True),
            nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer),
        )  # fmt: skip
        self.down: nn.Module | None = None
        if stride != 1 or inner != outer:
            self.down = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x: Tensor) -> Tensor:
        kept = x if self.down is None else self.down(x)
        return torch.relu(self.body(x) + kept)


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1),
        Block(8, 8, 1), Block(8, 16, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(16, 10),
    ).eval()  # fmt: skip


r = torch.randn
FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]] = {
    "loops": (loops, lambda k: (r(4, 3), 5)),
    "no rounds": (loops, lambda k: (r(4, 3), 0)),
    "containers": (containers, lambda k: (r(3, 3), [r(3, 3), r(3, 3)])),
    "an optional that is there": (containers, lambda k: (r(3, 3), [r(3, 3)], 2)),
    "in place": (in_place, lambda k: (r(4, 3), r(4, 3))),
    "checked": (checked, lambda k: (r(4, 3), 2)),
    "constants": (constants, lambda k: (r(2, 3),)),
}


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_scripted_function_is_one_program(name):
    function, make = FUNCTIONS[name]
    compare(torch.jit.script(function), make, hits=3)


@pytest.mark.parametrize("change", [lambda x: x.double(), lambda x: x[:2], lambda x: torch.cat([x, x])])
def test_other_types_and_sizes_come_later(change):
    scripted = torch.jit.script(loops)
    f = compare(scripted, lambda k: (r(4, 3), 5), hits=3)
    for _ in range(3):
        x = change(r(4, 3))
        same(scripted(x, 5), f(x, 5))
    assert f.stats().hits >= 4 and not f.stats().fallbacks


@pytest.mark.parametrize("make", [Cell, Counting, resnet, lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh())])
def test_a_scripted_module_is_one_program(make):
    x = {Cell: (5, 2, 4), resnet: (1, 3, 32, 32)}.get(make, (6, 4))
    compare(torch.jit.script(make().eval()), lambda k: (r(x),), hits=5, calls=6)


@pytest.mark.parametrize("how", ["trace", "freeze", "method"])
def test_traced_and_frozen_modules_and_methods(how):
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    scripted = torch.jit.trace(module, r(3, 4)) if how == "trace" else torch.jit.script(module)
    scripted = torch.jit.freeze(scripted) if how == "freeze" else scripted
    compare(scripted.forward if how == "method" else scripted, lambda k: (r(3, 4),), hits=3)


def test_a_traced_function_uses_sizes():
    traced = torch.jit.trace(lambda x: x.view(x.size(0), -1) * x.size(0), r(3, 4, 5))
    f = compare(traced, lambda k: (r(3, 4, 5),), hits=3)
    for size in (2, 5, 7, 9):
        x = r(size, 4, 5)
        same(traced(x), f(x))
    assert not f.stats().fallbacks


def test_replaced_and_changed_attributes_are_seen():
    scripted = torch.jit.script(Counting().eval())
    f = jit(scripted)
    x = r(6, 4)

    def both() -> None:
        expected = copy.deepcopy(scripted)(x)
        same(expected, f(x))

    for _ in range(4):
        both()
    hits = f.stats().hits
    scripted.inner[0].weight.data.mul_(2)
    both()
    assert f.stats().hits == hits + 1
    scripted.inner[0].weight = nn.Parameter(r(4, 4))
    both()
    scripted.scale = 7
    both()
    scripted.inner[2].train()
    both()
    scripted.steps = torch.full((1,), 5.0)
    both()
    both()
    assert not f.stats().fallbacks and scripted.steps.item() == 7


def test_errors_are_the_interpreters():
    scripted = torch.jit.script(checked)
    f = jit(scripted)
    for n in (2, 2, 0, 7, 5, 2, 5, 0):
        x = r(4, 3)
        try:
            expected: Any = scripted(x, n)
        except Exception as error:
            expected = error
        if isinstance(expected, Exception):
            with pytest.raises(type(expected)) as raised:
                f(x, n)
            assert str(raised.value) == str(expected)
        else:
            same(expected, f(x, n))
    with pytest.raises(RuntimeError, match="Expected a value of type 'Tensor'"):
        f(3, 2)


def test_gradients_are_right():
    scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 8), nn.Tanh()))
    f, x = jit(scripted, on_unsupported="eager"), r(3, 4)
    with torch.enable_grad():
        for _ in range(3):
            (expected,) = torch.autograd.grad(scripted(x).sum(), [scripted[0].weight])
            (found,) = torch.autograd.grad(f(x).sum(), [scripted[0].weight])
            same(expected, found)
    assert f.stats().hits == 2 and f.stats().fallbacks == {}


def test_training_mode_draws_and_counts_as_the_interpreter():
    scripted = torch.jit.script(Counting().train())
    other, x = copy.deepcopy(scripted), r(6, 4)
    f = jit(scripted)
    for seed in range(4):
        torch.manual_seed(seed)
        expected = other(x)
        torch.manual_seed(seed)
        same(expected, f(x))
    same(dict(other.named_buffers()), dict(scripted.named_buffers()))
    assert f.stats().hits >= 2


def test_the_callers_list_stays_as_it_was():
    f, hs = jit(torch.jit.script(containers)), [r(3, 3)]
    for _ in range(3):
        result = f(r(3, 3), hs)
        assert len(hs) == 1 and result[3].count == 2 and type(result[3])._fields == ("first", "count")


def test_hooks_run():
    scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    f, x, seen = jit(scripted, on_unsupported="eager"), r(3, 4), []
    f(x), f(x)
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: seen.append(1))
    try:
        f(x)
    finally:
        handle.remove()
    assert seen
    same(scripted(x), f(x))


def test_threads():
    scripted = torch.jit.script(Cell())
    f, failures = jit(scripted), []

    def work() -> None:
        with torch.no_grad():
            for _ in range(20):
                x = r(5, 2, 4)
                try:
                    same(scripted(x), f(x))
                except BaseException as error:
                    failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failures and f.stats().hits > 60


def prints(x: Tensor) -> Tensor:
    print(x.size(0))
    return x + 1


def formats(x: Tensor) -> tuple[Tensor, str]:
    return x + 1, f"{x.size(0) / 2}"


@pytest.mark.parametrize(
    ("function", "said"), [(prints, "prim::Print, which no table knows,"), (formats, "aten::format")]
)
def test_what_is_not_known_is_named_with_its_line(function, said, recwarn):
    scripted = torch.jit.script(function)
    f, x = jit(scripted), r(3)
    for _ in range(2):
        same(scripted(x), f(x))
    line = function.__code__.co_firstlineno + 1
    reason = f"its TorchScript has {said} at test_torchscript.py:{line}"
    assert f.stats().fallbacks == {reason: 2} and f.explain(x) == f"eager: {reason}"
    assert sum(reason in str(warning.message) for warning in recwarn.list) == 1


def test_it_tells_of_itself():
    scripted = torch.jit.script(loops)
    f = jit(scripted, name="mine")
    f(r(4, 3), 5)
    assert f.__wrapped__ is scripted and "mine" in repr(f) and f.explain(r(4, 3), 5).startswith("a hit")
    assert "test_torchscript.py" in f.inspect("ir") and f.__name__ == "loops"
    same(f.eager(torch.ones(4, 3), 1), scripted(torch.ones(4, 3), 1))
    with pytest.raises(fastjit.UnsupportedError, match="its TorchScript has prim::Print"):
        jit(torch.jit.script(prints), on_unsupported="error")(r(2))
