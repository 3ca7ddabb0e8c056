"""Modes that a call enters itself, autocast, inference mode, gradients off: they belong to its steps and results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fastjit import fastjit
from helpers import assert_same

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 8))


def facts(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What a mode leaves on a result. Inference tensors have no version."""
    inference = tensor.is_inference()
    return tensor.dtype, inference, tensor.requires_grad, None if inference else tensor._version


def agree(fast: Any, *args: Any, exact: bool = True) -> Any:
    """Equal to eager in values, and in what the modes leave on each result. Products of float32 that a kernel adds up
    have other last bits: such results are not compared exactly."""
    got, expected = fast(*args), fast.eager(*args)
    assert_same(got, expected, exact)
    pairs = zip(got, expected, strict=True) if isinstance(got, tuple) else [(got, expected)]
    for g, e in pairs:
        assert facts(g) == facts(e)
    return got


def all_hits(fast: Any, calls: int) -> None:
    """All calls but the first were hits of one variant."""
    stats = fast.stats()
    assert (stats.calls, stats.hits, stats.variants, stats.fallbacks) == (calls, calls - 1, 1, {}), stats


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_autocast_casts_products_and_keeps_the_rest(dtype):
    layer = nn.Linear(16, 16)

    def f(x):
        with torch.autocast("cpu", dtype=dtype):
            y = layer(x)
            z = F.mse_loss(y, x, reduction="none")  # in float32
            w = torch.cat([y, x])  # in the widest of its types
        return y, z, w, x * 2

    fast = fastjit(f)
    for _ in range(4):
        results = agree(fast, torch.randn(4, 16))
        assert [r.dtype for r in results] == [dtype, F32, F32, F32]
    all_hits(fast, 4)


def test_a_network_under_autocast():
    model = net()

    def f(x):
        with torch.autocast("cpu", dtype=BF16):
            return model(x)

    fast = fastjit(f)
    for _ in range(4):
        x = torch.randn(4, 16)
        got, expected = fast(x), f(x)
        assert got.dtype == expected.dtype == BF16
        assert_same(got, expected)
    all_hits(fast, 4)


def test_weights_changed_in_place_between_calls():
    """Autocast keeps casts of weights for the time of a region only: each call casts what the weights are then."""
    layer = nn.Linear(16, 8)

    def f(x):
        with torch.autocast("cpu", dtype=BF16):
            return layer(layer.weight.new_ones(1, 16) * x) + layer(x)

    fast = fastjit(f)
    for n in range(5):
        agree(fast, torch.randn(4, 16))
        layer.weight.mul_(1.5)
        layer.bias.add_(n)
    all_hits(fast, 5)


def test_weights_changed_within_the_region():
    """Where gradients are off nothing is cached: the second product sees the change."""
    weight = torch.randn(8, 16)

    def f(x):
        with torch.autocast("cpu", dtype=BF16):
            first = F.linear(x, weight)
            weight.mul_(2)
            second = F.linear(x, weight)
            weight.mul_(0.5)
        return first, second

    fast = fastjit(f)
    for _ in range(4):
        first, second = agree(fast, torch.randn(4, 16))
        assert not torch.equal(first, second)
    all_hits(fast, 4)


def test_a_second_region_and_what_is_between():
    a, b = torch.randn(8, 8), torch.randn(8, 8)

    def f(x):
        with torch.autocast("cpu", dtype=BF16):
            y = x @ a
        z = y.float() @ b
        with torch.autocast("cpu", dtype=F16):
            w = z @ a
        return y, z, w, w + 1

    fast = fastjit(f)
    for _ in range(4):
        results = agree(fast, torch.randn(4, 8), exact=False)
        assert [r.dtype for r in results] == [BF16, F32, F16, F16]
    all_hits(fast, 4)


def test_nested_regions():
    a = torch.randn(8, 8)

    def f(x):
        with torch.autocast("cpu", dtype=BF16):
            y = x @ a
            with torch.autocast("cpu", enabled=False):
                z = x @ a
                with torch.autocast("cpu", dtype=F16):
                    w = x @ a
            v = x @ a
        return y, z, w, v

    fast = fastjit(f)
    for _ in range(4):
        results = agree(fast, torch.randn(4, 8), exact=False)
        assert [r.dtype for r in results] == [BF16, F32, F16, BF16]
    all_hits(fast, 4)


def test_a_region_under_a_mode_of_the_caller():
    """The mode of the caller is a fact of the call; what the call enters is its own."""
    a = torch.randn(8, 8)

    def f(x):
        y = x @ a
        with torch.autocast("cpu", enabled=False):
            return y, x @ a

    fast, x = fastjit(f), torch.randn(4, 8)
    for _ in range(3):
        assert [r.dtype for r in agree(fast, x, exact=False)] == [F32, F32]
    before = fast.stats()
    assert before.hits == 2
    for _ in range(3):
        with torch.autocast("cpu", dtype=BF16):
            assert [r.dtype for r in agree(fast, x, exact=False)] == [BF16, F32]
    assert [r.dtype for r in agree(fast, x, exact=False)] == [F32, F32]


def test_the_type_of_the_region_is_a_value():
    a = torch.randn(8, 8)

    def f(x, dtype, on):
        with torch.autocast("cpu", dtype=dtype, enabled=on):
            return x @ a

    fast, x = fastjit(f), torch.randn(4, 8)
    for _ in range(3):
        for dtype, on in ((BF16, True), (F16, True), (BF16, False)):
            assert agree(fast, x, dtype, on, exact=False).dtype == (dtype if on else F32)
    stats = fast.stats()
    assert (stats.variants, stats.hits, stats.fallbacks) == (3, 6, {})


@pytest.mark.parametrize("raises", [False, True])
def test_the_mode_ends_with_the_call(raises):
    def f(x):
        with torch.autocast("cpu", dtype=BF16):
            return (x @ x).index_select(0, torch.arange(9) if raises and x.shape[0] < 9 else torch.arange(2))

    fast, x = fastjit(f, on_unsupported="eager") if raises else fastjit(f), torch.randn(4, 4)
    for _ in range(3):
        if raises:
            with pytest.raises(IndexError):
                fast(x)
        else:
            agree(fast, x)
        assert not torch.is_autocast_enabled("cpu") and (x @ x).dtype == F32
    assert fast.stats().hits == (0 if raises else 2)


def test_inference_mode_inside():
    def f(x):
        with torch.inference_mode():
            y = x * 2
            z = y.t()
        return y, z

    fast = fastjit(f)
    for _ in range(4):
        y, z = agree(fast, torch.randn(3, 4))
        assert y.is_inference() and z.is_inference() and not torch.is_inference_mode_enabled()
        with pytest.raises(RuntimeError, match="Inference tensors do not track version counter"):
            _ = y._version
    all_hits(fast, 4)


def test_inference_mode_that_is_left_again():
    def f(x):
        with torch.inference_mode():
            y = x * 2
            with torch.inference_mode(False):
                z = x + 3
        return z * y.shape[0]

    fast = fastjit(f)
    for _ in range(4):
        assert not agree(fast, torch.randn(3)).is_inference()
    all_hits(fast, 4)


def test_results_of_both_kinds_stay_eager():
    def f(x):
        with torch.inference_mode():
            y = x * 2
        return y, x + 1

    fast = fastjit(on_unsupported="eager")(f)
    for _ in range(3):
        y, z = agree(fast, torch.randn(3))
        assert (y.is_inference(), z.is_inference()) == (True, False)
    why = "some of its results are made in inference mode, others are not"
    assert fast.stats().fallbacks == {why: 3}


def test_a_write_under_inference_mode():
    """An argument that is written keeps its version as in eager."""

    def f(x):
        with torch.inference_mode():
            x.add_(1)
            return x * 2

    fast = fastjit(f)
    for call in range(4):
        x, twin = torch.zeros(3), torch.zeros(3)
        assert_same(fast(x), f(twin), exact=True)
        assert_same(x, twin, exact=True)
        assert x._version == twin._version and not x.is_inference(), call
    all_hits(fast, 4)


def test_gradients_off_inside():
    model = net()

    def f(x):
        with torch.no_grad():
            y = model(x)
        return y, x * 2

    fast = fastjit(f)
    with torch.enable_grad():
        for _ in range(4):
            x = torch.randn(4, 16)
            got, expected = fast(x), f(x)
            assert_same(got, expected)
            assert [facts(t) for t in got] == [facts(t) for t in expected]
    all_hits(fast, 4)


def autocast_form(x):
    return x @ x.t()


FORMS: dict[str, tuple[Callable[[], Any], torch.dtype, bool]] = {
    "autocast": (lambda: torch.autocast("cpu", dtype=BF16), BF16, False),
    "autocast that is off": (lambda: torch.autocast("cpu", dtype=BF16, enabled=False), F32, False),
    "inference_mode": (lambda: torch.inference_mode(), F32, True),
    "no_grad": (lambda: torch.no_grad(), F32, False),
    "enable_grad": (lambda: torch.enable_grad(), F32, False),
}


@pytest.mark.parametrize("form", FORMS)
def test_decorators_under_fastjit(form):
    make, dtype, inference = FORMS[form]
    fast = fastjit(make()(autocast_form))
    for _ in range(4):
        got = agree(fast, torch.randn(4, 6), exact=False)
        assert (got.dtype, got.is_inference()) == (dtype, inference)
    all_hits(fast, 4)


@pytest.mark.parametrize("form", FORMS)
def test_decorators_of_what_is_called(form):
    make, dtype, inference = FORMS[form]
    inner = make()(autocast_form)

    def f(x):
        first = inner(x)
        return first if inference else (first, x @ x.t(), inner(x + 1))

    fast = fastjit(f)
    for _ in range(4):
        got = agree(fast, torch.randn(4, 6), exact=False)
        results = got if isinstance(got, tuple) else (got,)
        assert [r.dtype for r in results] == [dtype, F32, dtype][: len(results)]
        assert all(r.is_inference() == inference for r in results)
    all_hits(fast, 4)


def test_decorated_methods_of_modules():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 6)

        @torch.autocast("cpu", dtype=BF16)
        def cast(self, x):
            return self.inner(x)

        @torch.no_grad()
        def forward(self, x):
            return self.cast(x), self.inner(x)

    model = Model()
    fast = fastjit(lambda x: model(x))
    with torch.enable_grad():
        for _ in range(4):
            low, high = agree(fast, torch.randn(4, 6), exact=False)
            assert (low.dtype, high.dtype, high.requires_grad) == (BF16, F32, False)
    all_hits(fast, 4)


def test_numbers_read_within_a_region():
    """A guard within the region has the bits of the cast product."""

    def f(x):
        with torch.autocast("cpu", dtype=BF16):
            y = x @ x.t()
            return y * 2 if y.max() > 1.5 else y - 1

    fast = fastjit(f)
    torch.manual_seed(0)
    seen = set()
    for _ in range(20):
        x = torch.randn(2, 2)
        agree(fast, x)
        seen.add(bool((x @ x.t()).max() > 1.5))
    stats = fast.stats()
    assert len(seen) == 2 and (stats.variants, stats.hits, stats.fallbacks) == (2, 18, {})
