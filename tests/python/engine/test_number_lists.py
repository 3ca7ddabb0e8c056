"""Loops of Python's whose rounds compute with numbers of their own: these are a list, and rounds share their code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fastjit

W = torch.randn(32, 32, generator=torch.Generator().manual_seed(0)) / 6


def decayed(x: Any, rounds: int) -> Any:
    for i in range(rounds):
        x = torch.tanh(x @ W) * (1 + i * 0.001)
    return x


def adam(x: Any, rounds: int) -> Any:
    m, v, p = torch.zeros_like(x), torch.zeros_like(x), x
    for t in range(1, rounds + 1):
        g = p * 0.3 + x
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        p = p - 0.01 * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
    return p


def sharpened(x: Any, rounds: int) -> Any:
    for i in range(rounds):
        x = torch.softmax(x * (1 + i * 0.01), -1)
    return x


def hashed(x: Any, rounds: int) -> Any:
    h = (x * 100).to(torch.int64)
    for i in range(rounds):
        h = (h * 31 + i * i) ^ (h >> 3)
    return h


def swapped_sides(x: Any, rounds: int) -> Any:
    for i in range(rounds):
        x = torch.sin(0.5 + i - x) + torch.where(x > i * 0.1, x, 1.0 / (i + 1))
    return x


def played(function: Callable[[Any, int], Any], rounds: int, x: Any) -> Any:
    want = function(x.clone(), rounds)

    def call(x: Any) -> Any:
        return function(x, rounds)

    fast = fastjit.fastjit(call)
    for _ in range(3):
        got = fast(x.clone())
        assert got.dtype == want.dtype and got.stride() == want.stride()
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    stats = fast.stats()
    assert stats.hits == 2 and not stats.fallbacks
    return fast


@pytest.mark.parametrize("function", [decayed, adam, sharpened, hashed, swapped_sides])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounds_with_numbers_of_their_own_share_kernels(function: Any, dtype: Any) -> None:
    if function is decayed and dtype is torch.float64:
        dtype = torch.float32  # as its weight
    x = torch.randn(4, 32, generator=torch.Generator().manual_seed(1)).to(dtype)
    few, many = (played(function, rounds, x) for rounds in (60, 240))
    kernels = [sum((fast.stats().compiles, fast.stats().memory_hits)) for fast in (few, many)]
    assert max(kernels) < 12
    assert "numbers of test_number_lists.py" in str(many.inspect("ir"))
    assert "loop" in many.inspect("plan") or "rounds" in many.inspect("plan")


def test_integers_are_divided_by_numbers_in_the_code() -> None:
    def divided(x: Any, rounds: int) -> Any:
        h = (x * 1000).to(torch.int64)
        for i in range(rounds):
            h = (h * 5 + 1) // (i + 1) + h % (i + 2) + torch.div(h, i + 3, rounding_mode="trunc")
        return h

    played(divided, 12, torch.randn(50))


def test_few_numbers_stay_in_the_code() -> None:
    fast = played(sharpened, 5, torch.randn(4, 32))
    assert "numbers of" not in str(fast.inspect("ir"))


def test_programs_for_any_size_have_lists() -> None:
    @fastjit.fastjit
    def call(x: Any) -> Any:
        return adam(x, 40)

    for size in (5, 9, 17, 33, 1000):
        x = torch.randn(size)
        torch.testing.assert_close(call(x), adam(x, 40), rtol=1e-4, atol=1e-5)
    stats = call.stats()
    assert stats.hits >= 3 and not stats.fallbacks


def test_another_number_of_rounds_is_another_list() -> None:
    rounds = 20

    @fastjit.fastjit
    def call(x: Any) -> Any:
        return swapped_sides(x, rounds)

    x = torch.randn(7)
    for rounds in (20, 20, 33, 33, 20):
        torch.testing.assert_close(call(x), swapped_sides(x, rounds), rtol=1e-4, atol=1e-5)
    assert call.stats().hits == 3 and not call.stats().fallbacks
