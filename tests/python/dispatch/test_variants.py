"""Many variants of one function: each is found again, and methods count them per bound object."""

from __future__ import annotations

import gc
import re
import warnings

import pytest
import torch

import fastjit
from fastjit import FastJITWarning


def test_forty_kinds_of_call_are_all_hits() -> None:
    @fastjit.jit
    def f(x, y=None, *, scale=1.0, mode="add", extra=(), table=None):
        y = x if y is None else y
        out = x * y + scale if mode == "add" else x - y * scale
        for item in extra:
            out = out + item
        return out + table["bias"] if table else out

    calls = []
    for n in range(3, 13):
        x = torch.randn(n, 4)
        calls += [
            ((x,), {}),
            ((x, x.clone()), {"mode": "sub", "scale": 0.5}),
            ((x,), {"extra": [x, x]}),
            ((x,), {"table": {"bias": x[0]}}),
        ]
    for _ in range(3):
        for args, kwargs in calls:
            torch.testing.assert_close(f(*args, **kwargs), f.__wrapped__(*args, **kwargs), rtol=0, atol=0)
    before = f.stats()
    for args, kwargs in calls:
        torch.testing.assert_close(f(*args, **kwargs), f.__wrapped__(*args, **kwargs), rtol=0, atol=0)
    after = f.stats()
    assert after.hits - before.hits == 40 and after.fallbacks == before.fallbacks


class Layer(torch.nn.Module):  # modules are compared by identity
    @fastjit.jit(max_variants=2)
    def scaled(self, x):
        return x * 2 + 1


def test_methods_count_variants_per_bound_object() -> None:
    Layer.scaled.clear()
    layers = [Layer() for _ in range(5)]
    inputs = [torch.randn(4), torch.randn(2, 3)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", FastJITWarning)
        for _ in range(3):
            hits = Layer.scaled.stats().hits
            for layer in layers:
                for x in inputs:
                    torch.testing.assert_close(layer.scaled(x), x * 2 + 1)
    stats = Layer.scaled.stats()
    assert stats.variants == 10 and stats.hits - hits == 10 and stats.fallbacks == {}, stats
    with pytest.warns(FastJITWarning, match=r"variant limit \(2\) reached: x took 3 layouts"):
        layers[0].scaled(torch.randn(1, 1, 1))
    # Variants go with their objects.
    del layers[1:], layer
    gc.collect()
    other = Layer()
    other.scaled(inputs[0])
    assert Layer.scaled.stats().variants == 3


def test_functions_count_all_their_variants() -> None:
    @fastjit.jit(max_variants=2)
    def f(x):
        return x * 2 + 1

    inputs = [torch.randn(4), torch.randn(4, 4)]
    for x in inputs * 2:
        f(x)
    said = (
        r"variant limit \(2\) reached: x took 3 layouts; raise max_variants, or call it with tensors of fewer sizes, "
        r"strides and dtypes$"
    )
    with pytest.warns(FastJITWarning, match=said):
        f(torch.randn(1, 1, 1))
    assert f.stats().variants == 2


def test_the_limit_names_the_fact_that_changes() -> None:
    class Settings:
        rate = 1.0

    settings = Settings()

    @fastjit.jit(max_variants=2)
    def f(x):
        return x * float(f"{settings.rate}")

    for rate in (0.5, 0.25):
        settings.rate = rate
        f(torch.ones(4))
        f(torch.ones(4))
    line = f.__wrapped__.__code__.co_firstlineno + 2
    says = f"variant limit (2) reached: settings.rate at test_variants.py:{line} keeps changing"
    settings.rate = 0.125
    with pytest.warns(FastJITWarning, match=re.escape(f"{says}; raise max_variants, or pass what changes as a tensor")):
        f(torch.ones(4))
    settings.rate = 0.1
    f(torch.ones(4))
    assert f.stats().fallbacks == {says: 2}


def test_the_last_used_stands_first() -> None:
    @fastjit.jit
    def f(x):
        return x * 2 + 1

    shapes = [(4,), (4, 4), (2, 2, 2)]
    for shape in shapes:
        f(torch.randn(shape))
    f(torch.randn(4, 4))
    assert [v.signature for v in f.variants()] == ["f32[4,4]", "f32[2,2,2]", "f32[4]"]


class _State:
    def __init__(self, x):
        self.x = x


def test_a_new_instance_each_call_is_one_variant() -> None:
    @fastjit.jit
    def f(state):
        return state.x * 2 + 1

    for n in range(40):
        x = torch.arange(4.0) + n
        torch.testing.assert_close(f(_State(x)), x * 2 + 1)
    stats = f.stats()
    assert (stats.misses, stats.hits, stats.variants, stats.fallbacks) == (2, 38, 1, {}), stats
    assert [v.signature for v in f.variants()] == ["_State(1), f32[4]"]


class _Slots:
    __slots__ = ("__weakref__", "x")

    def __init__(self, x):
        self.x = x


def test_recordings_that_never_serve_again_stop() -> None:
    @fastjit.jit
    def f(state):
        return state.x * 2 + 1

    reason = "its last recordings served no second call"
    with pytest.warns(FastJITWarning, match=reason + ".*pass the tensors in"):
        for n in range(80):
            x = torch.arange(4.0) + n
            torch.testing.assert_close(f(_Slots(x)), x * 2 + 1)
    stats = f.stats()
    assert stats.hits == 0 and stats.misses == 80, stats
    ((said, calls),) = stats.fallbacks.items()
    assert said.startswith(reason) and calls == 16 + 32 + 22  # of 80: eight are recorded, and one after each stretch


def test_each_object_of_a_method_is_recorded_at_once() -> None:
    class Block(torch.nn.Module):
        @fastjit.jit
        def scaled(self, x):
            return x * 2 + 1

    blocks = [Block() for _ in range(30)]
    for x in (torch.randn(4), torch.randn(2, 3)):
        for _ in range(3):
            before = Block.scaled.stats()
            for block in blocks:
                torch.testing.assert_close(block.scaled(x), x * 2 + 1)
        assert Block.scaled.stats().hits == before.hits + 30
    assert Block.scaled.stats().fallbacks == {} and Block.scaled.stats().misses == 60


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu", "norm"])
def test_a_batch_of_one_shares_the_kernels_of_larger_ones(activation):
    """A dim of size 1 that nothing is broadcast over is no reason for another kernel."""
    first, second = torch.nn.Linear(16, 64), torch.nn.Linear(64, 16)
    middle = {
        "gelu": torch.nn.GELU(),
        "gelu_tanh": torch.nn.GELU(approximate="tanh"),
        "silu": torch.nn.SiLU(),
        "norm": torch.nn.LayerNorm(64),
    }[activation]
    fast = fastjit.jit(lambda x: x + second(middle(first(x))))
    with torch.no_grad():
        for batch in (1, 2, 3):  # the third is a hit of a program for any batch
            x = torch.randn(batch, 3, 16)
            for _ in range(3):
                torch.testing.assert_close(fast(x), fast.eager(x))
    keys = [row.keys for row in fast.variants()]
    assert len(keys) == 2 and keys[0] == keys[1]
    assert fast.stats().hits >= 4
