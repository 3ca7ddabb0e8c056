"""What follows from constants of a call alone is made once, and is the call's own where somebody could tell."""

from __future__ import annotations

import math
import threading

import pytest
import torch

from fastjit import fastjit
from helpers import assert_same


def launches(fast) -> int:
    plan = fast.inspect("plan").split("\n\n", 1)[1]
    return sum(line.split()[:1] == ["kernel"] and "(" in line for line in plan.splitlines())


def grid(width: int, stride: float) -> torch.Tensor:
    at = torch.arange(width) * stride
    x, y = at.repeat(width), at.view(-1, 1).repeat(1, width).view(-1)
    return torch.stack((x, y, x, y), dim=1)


def anchored(x):
    half = torch.tensor([[10.0, 13.0], [16.0, 30.0]]) * 0.5
    base = torch.cat((8 - half, 8 + half), dim=1)
    return x * (grid(8, 4.0)[:, None, :] + base[None]).view(-1, 4)


def rotary(x):
    frequencies = 1.0 / (10000 ** (torch.arange(0, 16, 2).float() / 16))
    angles = torch.outer(torch.arange(x.shape[0]).float(), frequencies)
    angles = torch.cat((angles, angles), dim=-1)
    half = torch.cat((-x[:, 8:], x[:, :8]), dim=-1)
    return x * angles.cos() + half * angles.sin()


def windowed(x):
    window = 0.5 - 0.5 * torch.cos(torch.arange(16) * (2 * math.pi / 16))
    return x * (window / window.sum())


CASES = {anchored: (128, 4), rotary: (12, 16), windowed: (32, 16)}


@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_each_call_is_the_kernel_that_reads_them(fn):
    fast = fastjit(fn)
    for seed in range(4):
        x = torch.randn(*CASES[fn], generator=torch.Generator().manual_seed(seed))
        assert_same(fast(x), fn(x))
    assert (fast.stats().hits, fast.stats().fallbacks) == (3, {})
    assert launches(fast) <= 2


def test_a_result_is_a_tensor_of_its_own():
    def f(x):
        made = grid(4, 2.0)
        return made, made[:2], x + made.sum()

    fast, x = fastjit(f), torch.ones(3)
    kept = [fast(x) for _ in range(4)]
    for made in kept:
        assert_same(made, f(x))
        made[0].add_(7)
    assert len({made[0].data_ptr() for made in kept}) == 4
    assert_same(fast(x), f(x))
    assert fast.stats().hits == 4


def test_what_the_call_writes_is_made_anew():
    def f(x):
        made = grid(4, 2.0)
        made[:, 0] += x
        made.clamp_(0, 5)
        return made.sum(0)

    fast = fastjit(f)
    for k in range(4):
        assert_same(fast(torch.tensor(float(k))), f(torch.tensor(float(k))))
    assert (fast.stats().hits, fast.stats().fallbacks) == (3, {})


def test_what_it_writes_elsewhere_stays_what_it_was():
    def f(x, out):
        made = grid(4, 2.0)
        out.copy_(made)
        out.mul_(x)
        return made * x

    fast = fastjit(f)
    for k in range(4):
        mine, eagers = torch.empty(16, 4), torch.empty(16, 4)
        assert_same(fast(torch.tensor(float(k)), mine), f(torch.tensor(float(k)), eagers))
        assert_same(mine, eagers)
    assert (fast.stats().hits, fast.stats().fallbacks) == (3, {})


def test_a_number_that_differs_is_no_constant():
    def f(x, k):
        return x * torch.cat((torch.arange(4) * k, torch.arange(4) + k)).exp()

    fast, x = fastjit(f), torch.linspace(0, 1, 8)
    for k in (0.1, 0.2, 0.3, 0.4):
        assert_same(fast(x, k), f(x, k))
    assert fast.stats().fallbacks == {}


def test_random_numbers_are_drawn_in_each_call():
    def f(x):
        return x * torch.cat((torch.rand(4), torch.zeros(4))).exp()

    fast, x = fastjit(f), torch.ones(8)
    for seed in range(4):
        torch.manual_seed(seed)
        mine = fast(x)
        torch.manual_seed(seed)
        assert_same(mine, f(x))
    assert fast.stats().hits == 3


@pytest.mark.parametrize("options", [{"on_miss": "background"}, {"verify": 1}], ids=lambda o: next(iter(o)))
def test_with_options(options):
    fast, x = fastjit(anchored, **options), torch.randn(128, 4)
    for _ in range(300):
        assert_same(fast(x), anchored(x))
        if fast.stats().hits >= 3:
            break
    assert fast.stats().hits >= 3 and fast.stats().fallbacks.keys() <= {
        "its program is being compiled in the background"
    }


def test_sizes_and_threads():
    fast = fastjit(anchored)
    wrong = []

    def run() -> None:
        with torch.no_grad():
            for k in range(50):
                x = torch.full((128, 4), float(k))
                if not torch.equal(fast(x), anchored(x)):
                    wrong.append(k)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_it_is_exported_with_the_program(tmp_path):
    """What was computed once is data of the library."""
    fast, x = fastjit(anchored), torch.randn(128, 4)
    fast(x)
    fast.export(str(tmp_path / "anchored"), x)
    assert (tmp_path / "anchored.h").exists()
