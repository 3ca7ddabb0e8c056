"""Loads and stores with a mask in calls whose results require grad, for any number of masked elements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import pytest
import torch
from torch import Tensor, nn

import fastjit
from gradient_tools import assert_same


@pytest.fixture(autouse=True)
def _with_grad() -> Iterator[None]:
    with torch.enable_grad():
        yield


COUNTS = [0, 1, 2, 5, 12]


def swish(x: Tensor, w: Tensor) -> Tensor:
    y = x * (x + w) / 3
    y[x > 3] = x[x > 3]
    y[x < -3] = -1 / x[x < -3] ** 2
    return y


def numbers(x: Tensor, w: Tensor) -> Tensor:
    y = x * w
    y[x > 3] = 0
    y[x < -3] = -1.5
    return y.exp()


def added(x: Tensor, w: Tensor) -> Tensor:
    y = x * w
    return y.index_put((x > 3,), x[x > 3].sin(), accumulate=True) * w


def added_in_place(x: Tensor, w: Tensor) -> Tensor:
    y = x * w
    y.index_put_((x > 3,), x[x > 3] * x[x > 3], accumulate=True)
    return y.cos()


def not_in_place(x: Tensor, w: Tensor) -> Tensor:
    y = x * w
    mask = y > 3
    return y.index_put((mask,), y[mask].sqrt() + 1)


def inputs(count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """`count` elements above 3, and as many below -3 as there is room for."""
    x = torch.rand(3, 4, dtype=torch.float64)
    x.view(-1)[:count] += 4
    if count < 7:
        x.view(-1)[12 - count :] -= 5
    return x.to(dtype).requires_grad_(), torch.randn(4).to(dtype).requires_grad_()


def gradients(function: Callable[[Tensor, Tensor], Tensor], x: Tensor, w: Tensor) -> list[Tensor]:
    x, w = x.detach().clone().requires_grad_(), w.detach().clone().requires_grad_()
    y = function(x, w)
    return [y.detach(), *torch.autograd.grad(y, [x, w], torch.linspace(-1, 2, 12, dtype=y.dtype).view(3, 4))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("function", [swish, numbers, added, added_in_place, not_in_place])
def test_any_count_after_any_other(function: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype) -> None:
    for first, second in product(COUNTS, COUNTS):
        compiled = fastjit.fastjit(function)
        for count in (first, second, second, first):
            given = inputs(count, dtype)
            assert_same(gradients(compiled, *given), gradients(function, *given), f"{count} after {first}")
        stats = compiled.stats()
        assert stats.hits >= 3 and not stats.fallbacks, (first, second, stats)


def test_a_whole_step_with_masked_stores() -> None:
    def steps(compiles: bool) -> tuple[list[Tensor], fastjit.Stats | None]:
        torch.manual_seed(1)
        scale = nn.Parameter(torch.ones(4))
        optimizer = torch.optim.SGD([scale], 0.1)

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = swish(x, scale).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = fastjit.fastjit(step) if compiles else step
        losses = [run(inputs(count, torch.float32)[0].detach()) for count in (2, 1, 5, 0, 3, 12)]
        return [*losses, scale.detach()], run.stats() if compiles else None

    want, _ = steps(False)
    got, stats = steps(True)
    assert_same(got, want)
    assert stats is not None and stats.hits >= 3, stats


class FastSwish(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * (x + 42 / 13) / (42 / 13 + 3)
        y[x > 3] = x[x > 3]
        y[x < -3] = -1 / x[x < -3] ** 2
        return y


def test_it_keeps_no_more_than_relu() -> None:
    kept = {}
    for activation in (nn.ReLU, FastSwish):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 64), activation(), nn.Linear(64, 8), activation(), nn.Linear(8, 1))
        fast = fastjit.fastjit(model)
        for _ in range(3):
            fast(torch.randn(32, 8) * 3).sum().backward()
        assert fastjit.of(fast).stats().hits == 2, fastjit.of(fast).stats()
        kept[activation] = fastjit.of(fast).variants()[0].kept_bytes
    assert kept[FastSwish] <= kept[nn.ReLU], kept


def test_convolutions_behind_and_code_that_reads_other_sizes() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            y = FastSwish()(self.first(x * 4))
            return self.second(y) * y.shape[0]

    torch.manual_seed(0)
    model = Block()
    compiled = fastjit.fastjit(lambda x: model(x))
    for _ in range(4):
        x = torch.randn(2, 3, 6, 6)
        want = torch.autograd.grad(model(x).sum(), list(model.parameters()))
        assert_same(torch.autograd.grad(compiled(x).sum(), list(model.parameters())), want)
    assert compiled.stats().hits == 3, compiled.stats()


SIZES: dict[str, Callable[[Tensor], float]] = {
    "shape": lambda v: v.shape[0],
    "len": len,
    "numel": lambda v: v.numel(),
    "torch.numel": torch.numel,
    "nbytes": lambda v: v.nbytes // 4,
    "by another name": lambda v: getattr(v, "sha" + "pe")[0],
    "a method of the class": lambda v: torch.Tensor.size(v)[0],
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("how", SIZES)
def test_a_count_that_python_reads_is_no_constant(how: str, grad: bool) -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 2
        v = x[x > 0]
        y[x > 0] = v * SIZES[how](v)
        return y

    compiled = fastjit.fastjit(f, on_unsupported="eager")
    with torch.set_grad_enabled(grad):
        for _ in range(5):
            x = torch.randn(12, requires_grad=grad)
            assert_same(compiled(x), f(x))


def test_a_gradient_that_sums_masked_elements_is_eager() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        y = x * 2
        y[x > 3] = x[x > 3] * w
        return y

    compiled = fastjit.fastjit(f, on_unsupported="eager")
    for count in (1, 5, 1, 2):
        x, _ = inputs(count, torch.float32)
        w = torch.tensor(1.5, requires_grad=True)
        got = torch.autograd.grad(compiled(x, w).sum(), [x, w])
        assert_same(got, torch.autograd.grad(f(x, w).sum(), [x, w]))
    assert any("depends on data" in reason for reason in compiled.stats().fallbacks)


def squares_of_rows(x: Tensor, w: Tensor) -> Tensor:
    rows = x[:, 0] > 1
    return ((x - w) ** 2)[rows].mean() + (x * w)[rows].exp().sum()


# Numbers made of the masked elements of x, which are 3 x 4, with weights w of 4.
TOTALS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": lambda x, w: (x * w)[x > 3].sum(),
    "mean": lambda x, w: (x * w)[x > 3].mean(),
    "of an input": lambda x, w: x[x > 3].mean() * w.sum(),
    "two masks": lambda x, w: (x * w)[x > 3].mean() / (1 + (x / w)[x < -3].exp().sum()),
    "two values": lambda x, w: (x[x > 3] * (w + x)[x > 3]).mean() + x[x > 3].sin().sum(),
    "by a count": lambda x, w: (x * w)[x > 3].abs().sum() / (x > 3).sum(),
    "rows": squares_of_rows,
    "beside another mean": lambda x, w: x.detach()[x > 3].mean() * (x * w).mean() + (x + w).mean(),
    "a mean of what is stored": lambda x, w: swish(x, w)[x > 3].mean(),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("how", TOTALS)
def test_totals_of_any_count_after_any_other(how: str, dtype: torch.dtype) -> None:
    f = TOTALS[how]

    def back(function: Callable[[Tensor, Tensor], Tensor], x: Tensor, w: Tensor) -> list[Tensor]:
        x, w = x.detach().clone().requires_grad_(), w.detach().clone().requires_grad_()
        total = function(x, w)
        return [total.detach(), *torch.autograd.grad(total, [x, w])]

    for first, second in product(COUNTS, COUNTS):
        compiled, plain = fastjit.fastjit(f), fastjit.fastjit(f)
        for count in (first, second, second, first):
            given = inputs(count, dtype)
            assert_same(back(compiled, *given), back(f, *given), f"{count} after {first}")
            with torch.no_grad():
                assert_same(plain(*given), f(*given))
        for stats in (compiled.stats(), plain.stats()):
            assert stats.hits >= 3 and not stats.fallbacks, (first, second, stats)


def test_a_number_read_of_a_total_is_eagers() -> None:
    """What Python decides by is computed bit for bit: torch picks the elements, and adds them up."""

    def f(x: Tensor) -> Tensor:
        return x * 2 if x[x > 0].sum() > 8 else x - 1

    compiled = fastjit.fastjit(f)
    for scale in (1, 2, 1, 2, 1):
        x = torch.arange(-4.0, 5.0) * scale * 0.9
        assert_same(compiled(x), f(x))
    assert compiled.stats().hits >= 3, compiled.stats()


LINEAR: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "nonzero": lambda x, m: (x * 2)[m[:, 0].nonzero()[:, 0]].sum(),
    "parts": lambda x, m: torch.cat([x[m], x[m] * 2]).sum(),
    "numbers of times": lambda x, m: x.repeat_interleave(m.sum(1), 0).sum(),
}


@pytest.mark.parametrize("how", LINEAR)
def test_the_way_back_from_a_sum_of_as_many_as_data_say(how: str) -> None:
    """Nothing that autograd kept is as long, but it spreads the gradient over that many."""
    f = LINEAR[how]
    compiled, plain = (fastjit.fastjit(f, on_unsupported="eager") for _ in range(2))
    for count in (5, 5, 20, 3, 20, 7, 12):
        m = (torch.randperm(20) < count).view(4, 5)
        m[0, 0] = True
        x, y = torch.randn(4, 5), torch.randn(4, 5)
        x.requires_grad_()
        assert_same(torch.autograd.grad(compiled(x, m), x), torch.autograd.grad(f(x, m), x))
        with torch.no_grad():
            assert_same(plain(y, m), f(y, m))
    assert any("depends on data" in why for why in compiled.stats().fallbacks), compiled.stats()
    assert plain.stats().hits >= 3 and not plain.stats().fallbacks, plain.stats()


def class_of_some(x: Tensor, w: Tensor, mask: Tensor, classes: Tensor) -> Tensor:
    """As a network on a graph has it, some of whose nodes are known."""
    return nn.functional.cross_entropy((x @ w)[mask], classes[mask])


def layer_of_some(x: Tensor, w: Tensor, mask: Tensor, classes: Tensor) -> Tensor:
    h = nn.functional.linear((x * 2)[mask], w.t())
    return nn.functional.cross_entropy(h.relu() * h.sigmoid(), classes[mask], reduction="sum")


@pytest.mark.parametrize("function", [class_of_some, layer_of_some])
@pytest.mark.parametrize("inside", [False, True], ids=["call", "whole step"])
def test_losses_of_masked_rows(function: Callable[..., Tensor], inside: bool) -> None:
    """Other operators than pointwise ones on as many rows as the mask has, and their way back."""

    def run(compiles: bool) -> tuple[list[Tensor], fastjit.Stats | None]:
        torch.manual_seed(5)
        w, x, classes = torch.randn(8, 4, requires_grad=True), torch.randn(20, 8), torch.randint(0, 4, (20,))
        optimizer = torch.optim.SGD([w], 0.1)

        def step(mask: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = function(x, w, mask, classes)
            loss.backward()
            optimizer.step()
            return loss.detach()

        f = fastjit.fastjit(step if inside else function) if compiles else step if inside else function
        seen = []
        for count in (7, 9, 5, 12, 7, 17, 6):
            mask = torch.zeros(20, dtype=torch.bool)
            mask[torch.randperm(20)[:count]] = True
            if inside:
                seen.append(f(mask))
            else:
                loss = f(x, w, mask, classes)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                seen.append(loss.detach())
        return [*seen, w.detach()], f.stats() if isinstance(f, fastjit.FastFunction) else None

    want, _ = run(False)
    got, stats = run(True)
    assert_same(got, want)
    assert stats is not None and stats.hits >= 5 and not stats.fallbacks, stats


EAGER = {
    "a result": lambda x, w, m, y: (x @ w)[m],
    "one of two": lambda x, w, m, y: (nn.functional.cross_entropy((x @ w)[m], y[m]), (x @ w)[m].sigmoid()),
    "variance": lambda x, w, m, y: (x @ w)[m].var() + nn.functional.cross_entropy((x @ w)[m], y[m]),
    "norm": lambda x, w, m, y: nn.functional.cross_entropy(nn.functional.layer_norm((x @ w)[m], (4,)), y[m]),
    "slice": lambda x, w, m, y: nn.functional.cross_entropy((x @ w)[m][:, :3].relu(), y[m].clamp(max=2)),
    "smoothed": lambda x, w, m, y: nn.functional.cross_entropy((x @ w)[m], y[m], label_smoothing=0.1),
}


@pytest.mark.parametrize("name", EAGER)
def test_where_formulas_need_the_count_the_call_runs_eagerly(name: str) -> None:
    function, classes = EAGER[name], torch.randint(0, 4, (20,))
    compiled = fastjit.fastjit(function, on_unsupported="eager")
    for count in (7, 9, 5, 3, 12, 1, 20):
        x, w = torch.randn(20, 8), torch.randn(8, 4, requires_grad=True)
        mask = torch.randperm(20) < count
        seen = []
        for f in (compiled, function):
            got = f(x, w, mask, classes)
            losses = got if isinstance(got, tuple) else (got,)
            seen.append(torch.autograd.grad(sum(loss.square().sum() for loss in losses), w))
        torch.testing.assert_close(*seen, equal_nan=True)
    assert any("depends on data" in why for why in compiled.stats().fallbacks), compiled.stats()


@pytest.mark.parametrize("count", [0, 1, 4, 20])
def test_a_count_that_is_another_size_too(count: int) -> None:
    """Nothing tells them apart then: such a call runs eagerly, and what it gives is eager's."""
    x, classes = torch.randn(20, 8), torch.randint(0, 4, (20,))
    compiled = fastjit.fastjit(class_of_some, on_unsupported="eager")
    for now in (count, 9, count, 11, count):
        mask = torch.arange(20) < now
        w = torch.randn(8, 4, requires_grad=True)
        got, want = (f(x, w, mask, classes) for f in (compiled, class_of_some))
        assert_same(got.detach(), want.detach())
        assert_same(*(torch.autograd.grad(loss, w) for loss in (got, want)))
